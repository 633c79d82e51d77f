"""The draft-and-verify loop: one copy of the weights, any number of requests, each with its own caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.embedded.attention import KVCache
from backend.embedded.draft import Draft
from backend.embedded.prefix_cache import PrefixCache, PrefixEntry, common_prefix
from backend.embedded.sampling import Verdict, target_distribution, verify_greedy, verify_sampled
from backend.embedded.target import Target
from backend.embedded.text import Text

PREFILL_ROWS = 64  # prompt rows per forward


@dataclass(frozen=True)
class Step:
    """One engine output, raw: accepted drafts first, the target's token last; the prefill yields one token."""

    ids: tuple[int, ...]
    proposed: tuple[int, ...] = ()
    accepted: int = 0


@dataclass(frozen=True)
class Names:
    """What the engine is called on the screen."""

    model: str
    draft: str


class Engine:
    """Serves a target with and without its draft. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        target: Target,
        draft: Draft,
        text: Text,
        names: Names,
        *,
        num_steps: int,
        max_num_steps: int = 8,
        threads: int = 1,
        bit_exact: bool | None = None,
        context_length: int | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.tokenizer = text.tokenizer
        self.chat_template = text.chat_template
        self.eos_ids = text.eos_ids
        self.special_tokens = text.special_tokens
        self.model_name = names.model
        self.draft_name = names.draft
        self.num_steps = num_steps
        self.max_num_steps = max_num_steps
        self.threads = threads
        self.bit_exact = bit_exact
        self.context_length = context_length or target.config.context_length
        self._prefixes = PrefixCache()

    @property
    def vocab_size(self) -> int:
        return self.target.config.vocab_size

    @property
    def dtype(self) -> str:
        return self.target.dtype

    @property
    def device(self) -> torch.device:
        return self.target.device

    def start(
        self,
        prompt_ids: Sequence[int],
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        num_steps: int | None = None,
    ) -> Generation:
        """Begin a request; nothing is computed before its first `step`. `num_steps` 0 decodes without the draft."""
        steps = self.num_steps if num_steps is None else num_steps
        if not prompt_ids:
            raise ValueError("The prompt is empty; give at least one token.")
        if not 0 <= steps <= self.max_num_steps:
            raise ValueError(f"num_steps must lie between 0 and {self.max_num_steps}, not {steps}.")
        rng = torch.Generator()
        rng.manual_seed(seed) if seed is not None else rng.seed()
        return Generation(self, list(prompt_ids), Choice(temperature, top_p, rng), steps, self._prefixes)

    def flush_cache(self) -> None:
        """Forget the prefixes of earlier requests."""
        self._prefixes.clear()


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen from logits. temperature 0 is greedy."""

    temperature: float
    top_p: float
    rng: torch.Generator

    def verify(self, logits: Tensor, drafts: list[int]) -> Verdict:
        """logits: [len(drafts) + 1, vocab]"""
        if self.temperature == 0:
            return verify_greedy(logits, drafts)
        # Drawn on the CPU whatever the device is, so that a seed means the same everywhere.
        return verify_sampled(target_distribution(logits.cpu(), self.temperature, self.top_p), drafts, self.rng)


class Generation:
    """One request. `ids` is the prompt and all that was verified; the last id has not been through the target yet."""

    def __init__(
        self, engine: Engine, prompt_ids: list[int], choice: Choice, num_steps: int, prefixes: PrefixCache
    ) -> None:
        self._engine = engine
        self._choice = choice
        self._num_steps = num_steps
        self._prefixes = prefixes
        self.ids = prompt_ids
        self.cached_tokens = 0
        self._entry: PrefixEntry | None = None
        self._pending: list[Tensor] = []  # taps of rows that the draft has not read yet, oldest first
        self._draft_length = 0  # rows in the draft's cache that came from the target's taps
        self._started = False
        self._closed = False

    @torch.inference_mode()
    def step(self) -> Step:
        """The prefill first, then one verify step per call (a plain decode without drafts)."""
        if self._closed:
            raise RuntimeError("This generation is closed.")
        if not self._started:
            self._started = True
            return self._prefill()
        drafts = self._propose()
        return self._verify(drafts)

    def close(self) -> None:
        """Hand the caches back, so that a later request with the same beginning need not compute it again."""
        if self._closed:
            return
        self._closed = True
        if self._entry is not None:
            self._prefixes.put(self._entry.keep(self.ids[:-1], self._draft_length))
        self._entry = None
        self._pending = []

    def _prefill(self) -> Step:
        target, ids = self._engine.target, self.ids
        entry, reused = self._take_prefix()
        self._entry = entry
        self.cached_tokens = self._draft_length = reused
        for start in range(reused, len(ids), PREFILL_ROWS):
            rows = self._as_tensor(ids[start : start + PREFILL_ROWS])
            hidden = target.forward(rows, start, entry.target_cache, tap=self._speculates)
            self._remember(hidden.taps, len(rows))
        verdict = self._choice.verify(target.logits(hidden.last[-1:]), [])
        self.ids.extend(verdict.ids)
        return Step(verdict.ids)

    def _propose(self) -> list[int]:
        """Let the draft read what was verified since, then draft a chain from there."""
        steps = min(self._num_steps, self._engine.context_length - len(self.ids))
        if steps <= 0 or self._entry is None or self._entry.draft_cache is None:
            return []
        target, draft, cache = self._engine.target, self._engine.draft, self._entry.draft_cache
        taps = self._pending[0] if len(self._pending) == 1 else torch.cat(self._pending)
        self._pending = []
        start, rows = self._draft_length, taps.shape[0]
        read = self._as_tensor(self.ids[start + 1 : start + 1 + rows])
        hidden = self._read_taps(taps, read, start, cache)
        self._draft_length = start + rows
        drafts = []
        for place in range(steps):
            token, hidden = draft.propose(hidden)
            drafts.append(token)
            if place + 1 < steps:
                embedded = target.embed(self._as_tensor([token]))
                hidden = draft.forward(embedded, hidden, self._draft_length + place, cache)
        return drafts

    def _read_taps(self, taps: Tensor, read: Tensor, start: int, cache: KVCache) -> Tensor:
        """Run the draft over target rows; returns the last row's hidden state. [1, hidden]"""
        target, draft = self._engine.target, self._engine.draft
        for first in range(0, taps.shape[0], PREFILL_ROWS):
            part = slice(first, first + PREFILL_ROWS)
            hidden = draft.forward(target.embed(read[part]), draft.fuse(taps[part]), start + first, cache)
        return hidden[-1:]

    def _verify(self, drafts: list[int]) -> Step:
        """One target forward over the last token and the chain."""
        if self._entry is None:
            raise RuntimeError("The prefill has not run.")
        target = self._engine.target
        position = len(self.ids) - 1
        rows = self._as_tensor([self.ids[-1], *drafts])
        hidden = target.forward(rows, position, self._entry.target_cache, tap=self._speculates)
        verdict = self._choice.verify(target.logits(hidden.last), drafts)
        self._remember(hidden.taps, verdict.accepted + 1)
        self.ids.extend(verdict.ids)
        return Step(verdict.ids, tuple(drafts), verdict.accepted)

    def _remember(self, taps: Tensor | None, rows: int) -> None:
        if taps is not None:
            self._pending.append(taps[:rows])

    def _as_tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, device=self._engine.device)

    @property
    def _speculates(self) -> bool:
        return self._num_steps > 0

    def _take_prefix(self) -> tuple[PrefixEntry, int]:
        """The caches of the request that shares most with this prompt, and how many rows of them hold.

        At least the last prompt row is computed anew: its logits are needed. With the draft one more is, because
        the draft's row t also depends on token t + 1.
        """
        entry = self._prefixes.take(self.ids, self._speculates)
        if entry is None:
            capacity = self._engine.context_length
            draft_cache = self._engine.draft.new_cache(capacity) if self._speculates else None
            return PrefixEntry((), 0, self._engine.target.new_cache(capacity), draft_cache), 0
        shared = min(common_prefix(entry.ids, self.ids), len(self.ids) - 1)
        if self._speculates:
            shared = min(max(shared - 1, 0), entry.draft_length)
        return entry, shared
