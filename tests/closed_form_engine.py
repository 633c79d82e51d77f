"""An engine whose every token is known, fast enough for any test: the chain models of `sglang_cpu`, without weights.

The target's greedy successor of token t is t + 1 (mod 1,024). The draft has the successors v and v + 1 swapped for each
v divisible by 5, so from a multiple of 5 steps yield 1, 4, 1, 4, ... tokens. Sampled, the target takes t + 1 or t + 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

VOCAB_SIZE = 1024
EOS_ID = VOCAB_SIZE - 1


def do_nothing() -> None:
    """The default of `ClosedFormEngine.before_step`."""


def build_chain_tokenizer() -> Tokenizer:
    """One word `wN` per id, joined by spaces; `<s>`, `<unk>` and `</s>` are special."""
    vocab = {"<s>": 0, "<unk>": 1, **{f"w{index}": index for index in range(2, EOS_ID)}, "</s>": EOS_ID}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "<unk>", "</s>")])
    return tokenizer


def follow_draft(token: int) -> int:
    """The draft's successor of `token`."""
    right = (token + 1) % VOCAB_SIZE
    if 5 <= right < EOS_ID and right % 5 == 0:
        return right + 1
    if 6 <= right <= EOS_ID and right % 5 == 1:
        return right - 1
    return right


@dataclass(frozen=True)
class ClosedFormStep:
    ids: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: int


class ClosedFormGeneration:
    """One request: the last token and, sampled, a random state are all there is to it."""

    def __init__(
        self,
        engine: ClosedFormEngine,
        prompt_ids: tuple[int, ...],
        temperature: float,
        seed: int | None,
        num_steps: int,
    ) -> None:
        self.cached_tokens = engine.cached_prefix(prompt_ids, with_draft=num_steps > 0)
        self.closed = False
        self._engine = engine
        self._last = prompt_ids[-1]
        self._prompt_ids = prompt_ids
        self._is_sampled = temperature > 0
        self._random = random.Random(seed)
        self._num_steps = num_steps
        self._is_prefilled = False

    def step(self) -> ClosedFormStep:
        assert not self.closed
        self._engine.before_step()
        self._engine.steps_done += 1
        proposed = self._draft() if self._is_prefilled else ()
        self._is_prefilled = True
        ids: list[int] = []
        for drafted in (*proposed, None):
            self._last = self._follow_target(self._last)
            ids.append(self._last)
            if drafted != self._last:
                break
        return ClosedFormStep(tuple(ids), proposed, len(ids) - 1)

    def close(self) -> None:
        self.closed = True
        self._engine.remember(self._prompt_ids)

    def _draft(self) -> tuple[int, ...]:
        drafts: list[int] = []
        token = self._last
        for _ in range(self._num_steps):
            token = follow_draft(token)
            drafts.append(token)
        return tuple(drafts)

    def _follow_target(self, token: int) -> int:
        stride = self._random.choice((1, 2)) if self._is_sampled else 1
        return (token + stride) % VOCAB_SIZE


@dataclass
class ClosedFormEngine:
    """Fits `engine_protocol.Engine`. `before_step` runs on the engine's thread, to slow it down or make it fail."""

    before_step: Callable[[], None] = do_nothing
    context_length: int = 4096
    num_steps: int = 3
    max_num_steps: int = 7
    chat_template: str = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer: Tokenizer = field(default_factory=build_chain_tokenizer)
    special_tokens: Mapping[str, str] = field(default_factory=lambda: {"bos_token": "<s>", "eos_token": "</s>"})
    eos_ids: tuple[int, ...] = (EOS_ID,)
    vocab_size: int = VOCAB_SIZE
    model_name: str = "chain"
    draft_name: str = "chain-eagle3"
    dtype: str = "fp32"
    device: str = "cpu"
    threads: int = 1
    bit_exact: bool | None = True
    steps_done: int = 0
    generations: list[ClosedFormGeneration] = field(default_factory=list)
    _prefixes: list[tuple[int, ...]] = field(default_factory=list)

    def start(
        self, prompt_ids: Sequence[int], *, temperature: float, top_p: float, seed: int | None, num_steps: int
    ) -> ClosedFormGeneration:
        assert 0 < top_p <= 1
        generation = ClosedFormGeneration(self, tuple(prompt_ids), temperature, seed, num_steps)
        self.generations.append(generation)
        return generation

    def flush_cache(self) -> None:
        self._prefixes.clear()

    def remember(self, prompt_ids: tuple[int, ...]) -> None:
        """Keeps a prompt as a prefix for later ones."""
        self._prefixes.append(prompt_ids)

    def cached_prefix(self, prompt_ids: tuple[int, ...], *, with_draft: bool) -> int:
        """Tokens shared with an earlier prompt. As in SGLang, one is always computed, and two with EAGLE."""
        longest = max((_count_shared(prompt_ids, known) for known in self._prefixes), default=0)
        return max(0, min(longest, len(prompt_ids)) - (2 if with_draft else 1)) if longest else 0


def _count_shared(ids: tuple[int, ...], known: tuple[int, ...]) -> int:
    shared = 0
    for left, right in zip(ids, known, strict=False):
        if left != right:
            break
        shared += 1
    return shared
