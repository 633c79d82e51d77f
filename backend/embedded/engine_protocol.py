"""What the scheduler asks of an engine. The engine proper and the tests' closed-form engine both fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer


class Step(Protocol):
    """What one forward of the target yielded, raw: nothing is cut behind a stop.

    `ids`: accepted drafts first, the target's own token last; the prefill yields exactly one.
    `proposed`: the ids drafted for this verify step, accepted or not; empty for the prefill and without speculation.
    `accepted`: how many of `proposed` the target agreed with; `len(ids) == accepted + 1`.
    """

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def proposed(self) -> tuple[int, ...]: ...
    @property
    def accepted(self) -> int: ...


class Generation(Protocol):
    """The state of one request inside the engine. Used from one thread only."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens taken from the prefix cache. Known once the first step is done."""

    def step(self) -> Step:
        """The first call prefills; each later one is a verify step, or a plain decode without speculation."""

    def close(self) -> None:
        """Frees the KV cache, keeping the prefix for reuse. Safe to call twice."""


class Engine(Protocol):
    """One copy of the weights, serving with and without the draft."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> str: ...
    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The strings a chat template may name: `bos_token`, `eos_token`, ..."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int:
        """Prompt plus completion tokens at most."""

    @property
    def num_steps(self) -> int:
        """Drafts per verify step where a request does not say."""

    @property
    def max_num_steps(self) -> int: ...
    @property
    def model_name(self) -> str: ...
    @property
    def draft_name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> object:
        """Where it computes; its string is the name, such as cpu or cuda:0."""

    @property
    def threads(self) -> int: ...
    @property
    def bit_exact(self) -> bool | None:
        """Whether the self-check at start-up found a row's result independent of its neighbours; None: not checked."""

    def start(
        self, prompt_ids: Sequence[int], *, temperature: float, top_p: float, seed: int | None, num_steps: int
    ) -> Generation:
        """Opens a request. `temperature` 0 is greedy; `num_steps` 0 decodes without the draft."""

    def flush_cache(self) -> None:
        """Forgets every cached prefix."""
