"""The target writes its own training text: many conversations at once, one forward for all of them.

A row starts the chat template at the user turn, perhaps with a seed phrase, and lets the target write the question;
the answer follows. Taps and soft labels come for free while it writes, so no second pass over the text is needed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.embedded.chat_template import render_chat
from backend.embedded.target import Target
from backend.embedded.text import Text
from backend.embedded.training.corpus import Conversation
from backend.embedded.training.taps import TOP, TappedConversation

LONGEST = 512  # tokens of one conversation
LONGEST_QUESTION = 96
QUESTION_TEMPERATURE = 0.9
ANSWER_TEMPERATURES = (0.0, 0.0, 0.0, 0.5, 0.8, 1.0)  # half the answers greedy: drafts are mostly judged there


@dataclass(frozen=True)
class Frame:
    """The template's fixed parts as ids: what opens the user turn, what stands between question and answer."""

    opening: tuple[int, ...]
    turn: tuple[int, ...]
    end_id: int

    @classmethod
    def of(cls, text: Text) -> Frame:
        """Cut the rendered template around a marker that stands for the question."""
        marker = "\u241e"
        rendered = render_chat(
            text.chat_template,
            [{"role": "user", "content": marker}],
            special_tokens=text.special_tokens,
            add_generation_prompt=True,
        )
        before, after = rendered.split(marker)
        encode = text.tokenizer.encode
        return cls(
            tuple(encode(before, add_special_tokens=False).ids),
            tuple(encode(after, add_special_tokens=False).ids),
            text.eos_ids[0],
        )


@dataclass
class _Row:
    """One conversation being written."""

    forced: list[int]  # ids still to be fed, whatever the target would say
    answer_temperature: float
    ids: list[int] = field(default_factory=list)
    answer_start: int | None = None  # None while the question is being written


class _BatchAttention:
    """One row per conversation, each over its own cache. keys, values: [layers, rows, kv_heads, LONGEST, dim]"""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        self._keys, self._values, self._positions = keys, values, positions
        self._rows = torch.arange(len(positions))
        self._lengths = (positions + 1).tolist()

    def __call__(self, layer: int, queries: Tensor, keys_and_values: Tensor, /) -> Tensor:
        rows, heads, dim = queries.shape
        keys, values = keys_and_values.chunk(2, dim=1)
        kv_heads = keys.shape[1]
        self._keys[layer, self._rows, :, self._positions] = keys
        self._values[layer, self._rows, :, self._positions] = values
        grouped = queries.view(rows, 1, kv_heads, heads // kv_heads, dim)
        # Row by row over just what each has written: one call for all would read every row up to the longest.
        attended = [
            F.scaled_dot_product_attention(query, key[None, :, :length], value[None, :, :length])
            for query, key, value, length in zip(
                grouped, self._keys[layer], self._values[layer], self._lengths, strict=True
            )
        ]
        return torch.cat(attended).view(rows, heads * dim)


class Writer:
    """Writes conversations without end; a finished row makes room for a new one at once."""

    def __init__(self, target: Target, text: Text, seeds: Sequence[str], *, rows: int, seed: int) -> None:
        """`seeds` are openings of questions."""
        config = target.config
        self._target = target
        self._frame = Frame.of(text)
        self._openings = [tuple(text.tokenizer.encode(phrase, add_special_tokens=False).ids) for phrase in seeds]
        self._random = random.Random(seed)
        self._rng = torch.Generator().manual_seed(seed)
        shape = (config.num_layers, rows, config.num_kv_heads, LONGEST, config.head_dim)
        self._keys = torch.zeros(shape)
        self._values = torch.zeros(shape)
        # What is kept of every position: in place, since millions of small tensors would scatter the memory.
        self._taps = torch.zeros(rows, LONGEST, len(config.taps) * config.hidden_size, dtype=torch.bfloat16)
        self._top_ids = torch.zeros(rows, LONGEST, TOP, dtype=torch.int64)
        self._top_probabilities = torch.zeros(rows, LONGEST, TOP)
        self._rows = [self._begin() for _ in range(rows)]

    def write(self) -> Iterator[tuple[Conversation, TappedConversation]]:
        while True:
            yield from self._advance()

    def _begin(self) -> _Row:
        opening = self._random.choice(self._openings)
        return _Row([*self._frame.opening, *opening], self._random.choice(ANSWER_TEMPERATURES))

    @torch.inference_mode()
    def _advance(self) -> list[tuple[Conversation, TappedConversation]]:
        """Feed every row its next token, let the target choose what follows, hand out what is complete."""
        for row in self._rows:
            row.ids.append(row.forced.pop(0))
        positions = torch.tensor([len(row.ids) - 1 for row in self._rows])
        attend = _BatchAttention(self._keys, self._values, positions)
        ids = torch.tensor([row.ids[-1] for row in self._rows])
        hidden = self._target.run(ids, self._target.rotations[positions], attend)
        if hidden.taps is None:
            raise RuntimeError("The target was run without its taps.")
        logits = self._target.logits(hidden.last).float()
        top_ids = logits.topk(TOP, dim=-1).indices
        places = (torch.arange(len(self._rows)), positions)
        self._taps[places] = hidden.taps.bfloat16()
        self._top_ids[places] = top_ids
        self._top_probabilities[places] = logits.softmax(-1).gather(-1, top_ids)
        finished = []
        for index, row in enumerate(self._rows):
            if not row.forced:
                self._choose(row, logits[index])
            if not row.forced:
                finished.append(self._complete(index))
                self._rows[index] = self._begin()
        return [pair for pair in finished if pair is not None]

    def _choose(self, row: _Row, logits: Tensor) -> None:
        """Put the next id into `forced`; leave it empty where the conversation is complete."""
        if row.answer_start is None:
            self._go_on_with_question(row, logits)
        elif row.ids[-1] != self._frame.end_id and len(row.ids) < LONGEST:
            row.forced.append(self._draw(logits, row.answer_temperature))

    def _go_on_with_question(self, row: _Row, logits: Tensor) -> None:
        token = self._draw(logits, QUESTION_TEMPERATURE)
        written = len(row.ids) - len(self._frame.opening)
        if token != self._frame.end_id and written < LONGEST_QUESTION:
            row.forced.append(token)
            return
        row.forced.extend(self._frame.turn)
        row.answer_start = len(row.ids) + len(self._frame.turn)

    def _draw(self, logits: Tensor, temperature: float) -> int:
        if temperature == 0:
            return int(logits.argmax())
        cumulative = (logits / temperature).softmax(-1).cumsum(-1)
        point = torch.rand(1, generator=self._rng) * cumulative[-1]
        return int(torch.searchsorted(cumulative, point))

    def _complete(self, index: int) -> tuple[Conversation, TappedConversation] | None:
        """A conversation as it is kept, or None where the answer stayed empty."""
        row = self._rows[index]
        length = len(row.ids)
        if row.answer_start is None or length <= row.answer_start + 1:
            return None
        probabilities = self._top_probabilities[index, :length].clone()
        probabilities[: row.answer_start - 1] = 0
        tapped = TappedConversation(
            torch.tensor(row.ids),
            self._taps[index, :length].clone(),
            self._top_ids[index, :length].clone(),
            probabilities,
            row.answer_start,
        )
        ids = np.array(row.ids, np.uint16 if max(row.ids) < 2**16 else np.uint32)
        return Conversation(ids, row.answer_start, row.answer_temperature), tapped
