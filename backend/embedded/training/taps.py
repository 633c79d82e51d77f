"""What the trainer needs of the target, computed once per conversation and kept on disk.

For every position: the tapped hidden states; for every position that predicts an answer token: the target's
most likely next tokens with their probabilities (soft labels). 3.5 kB a token for SmolLM2, in shards read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.embedded.target import Target
from backend.embedded.training.corpus import Conversation, Corpus

SHARD = 32  # conversations per file
TOP = 8  # next tokens kept per position


@dataclass(frozen=True)
class TappedConversation:
    """ids: [length] int64; taps: [length, num_taps * hidden] bfloat16.

    top_ids: [length, TOP] int64 and top_probabilities: [length, TOP] float32: the target's distribution of
    the *next* token; all zero before the position that predicts the first answer token.
    """

    ids: Tensor
    taps: Tensor
    top_ids: Tensor
    top_probabilities: Tensor
    answer_start: int


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"taps-{shard:05d}.safetensors"


def attend_causally(_layer: int, queries: Tensor, keys_and_values: Tensor) -> Tensor:
    """Plain causal attention over one whole conversation. [rows, heads, dim] -> [rows, heads * dim]"""
    q, k, v = (part.transpose(0, 1)[None] for part in (queries, *keys_and_values.chunk(2, dim=1)))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attended[0].transpose(0, 1).reshape(len(queries), -1)


@torch.inference_mode()
def tap(target: Target, conversation: Conversation) -> TappedConversation:
    """Run the target over one conversation."""
    ids = torch.from_numpy(conversation.ids.astype(np.int64))
    hidden = target.run(ids, target.rotations[: len(ids)], attend_causally)
    if hidden.taps is None:
        raise RuntimeError("The target was run without its taps.")
    first = max(conversation.answer_start - 1, 0)
    logits = target.logits(hidden.last[first:]).float()
    top_logits, top_ids = logits.topk(TOP, dim=-1)
    probabilities = torch.exp(top_logits - logits.logsumexp(-1, keepdim=True))
    length = len(ids)
    all_ids = torch.zeros(length, TOP, dtype=torch.int64)
    all_probabilities = torch.zeros(length, TOP)
    all_ids[first:] = top_ids
    all_probabilities[first:] = probabilities
    return TappedConversation(ids, hidden.taps.bfloat16(), all_ids, all_probabilities, conversation.answer_start)


def write_shard(target: Target, corpus: Corpus, shard: int, folder: Path) -> Path:
    """Tap `SHARD` conversations into one file; a shard that is there already is left alone."""
    path = shard_path(folder, shard)
    if path.exists():
        return path
    save_shard(path, [tap(target, conversation) for conversation in corpus[shard * SHARD : (shard + 1) * SHARD]])
    return path


def save_shard(path: Path, tapped: Sequence[TappedConversation]) -> None:
    """Written beside its place, then moved: a shard is there whole or not at all."""
    partial = path.with_suffix(".partial")
    save_file(
        {
            "ids": torch.cat([item.ids for item in tapped]).to(torch.int32),
            "lengths": torch.tensor([len(item.ids) for item in tapped]),
            "answer_starts": torch.tensor([item.answer_start for item in tapped]),
            "taps": torch.cat([item.taps for item in tapped]),
            "top_ids": torch.cat([item.top_ids for item in tapped]).to(torch.int32),
            "top_probabilities": torch.cat([item.top_probabilities for item in tapped]).half(),
        },
        partial,
    )
    partial.replace(path)


def read_shard(path: Path) -> list[TappedConversation]:
    tensors = load_file(path)
    lengths: Sequence[int] = tensors["lengths"].tolist()
    split = {
        name: torch.split(tensors[name], list(lengths)) for name in ("ids", "taps", "top_ids", "top_probabilities")
    }
    return [
        TappedConversation(ids.long(), taps, top_ids.long(), probabilities.float(), answer_start)
        for ids, taps, top_ids, probabilities, answer_start in zip(
            split["ids"],
            split["taps"],
            split["top_ids"],
            split["top_probabilities"],
            tensors["answer_starts"].tolist(),
            strict=True,
        )
    ]


def list_shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("taps-*.safetensors"))


def write_all(target: Target, corpus: Corpus, folder: Path) -> Iterator[Path]:
    """Tap the whole corpus, shard by shard; resumes where an earlier run ended."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(-(-len(corpus) // SHARD)):
        yield write_shard(target, corpus, shard, folder)
