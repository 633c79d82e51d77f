"""The training loop: shards of tapped conversations in, a draft checkpoint out."""

from __future__ import annotations

import copy
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.embedded.checkpoint import load_checkpoint, save_checkpoint
from backend.embedded.config import DraftConfig, TargetConfig
from backend.embedded.training.corpus import Corpus
from backend.embedded.training.head import StepResult, TrainableHead
from backend.embedded.training.muon import Muon
from backend.embedded.training.taps import SHARD, TappedConversation, list_shards, read_shard


@dataclass(frozen=True)
class Recipe:
    """What a run is made of. It ends after `seconds`, or after `updates` where those are given.

    Rows are token positions that carry a label.
    """

    seconds: float = math.inf
    updates: int | None = None
    unrolled_steps: int = 3
    step_decay: float = 0.8  # weight of step j is step_decay ** j
    rows_per_update: int = 2048
    muon_lr: float = 0.01
    adam_lr: float = 1e-3
    warmup_updates: int = 20
    final_lr: float = 0.05  # of the peak, at the end of the cosine
    averaging: float = 0.97  # of the exponential moving average that is measured and exported
    bfloat16: bool = False  # multiply in bfloat16, keep the weights in float32
    held_out_shards: int = 3  # never more than a quarter of all
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """One line of the log. `acceptance`: share of rows whose first j + 1 drafts are all the target's choice.

    `length` is the acceptance length this predicts on the text at hand: 1 + the sum of `acceptance`.
    """

    seconds: float
    updates: int
    rows: int
    loss: float
    acceptance: tuple[float, ...]
    length: float
    held_out: bool


def choose_draft_vocab(corpus: Corpus, size: int, vocab_size: int) -> Tensor:
    """The target ids that answers use most, in ascending order. [size]"""
    answers = np.concatenate([item.ids[item.answer_start :] for item in corpus])
    counts = np.bincount(answers, minlength=vocab_size)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]).copy())


def invert_draft_vocab(target_ids: Tensor, vocab_size: int) -> Tensor:
    """[draft vocab] target ids -> [vocab] draft ids, -1 where a target id has none."""
    inverse = torch.full((vocab_size,), -1, dtype=torch.int64)
    inverse[target_ids] = torch.arange(len(target_ids))
    return inverse


def draft_config(target: TargetConfig, draft_vocab_size: int) -> DraftConfig:
    """One decoder layer of the target's own width, each tap normalised: their sizes differ a hundredfold."""
    return DraftConfig(
        num_layers=1,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        intermediate_size=target.intermediate_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        num_taps=len(target.taps),
        fc_norm=True,
    )


def new_head(target: TargetConfig, embedding: Tensor, head: Tensor, target_ids: Tensor) -> TrainableHead:
    """A fresh head whose output rows start as the target's own. embedding, head: [vocab, hidden] float32"""
    config = draft_config(target, len(target_ids))
    fresh = TrainableHead(config, embedding, invert_draft_vocab(target_ids, target.vocab_size))
    with torch.no_grad():
        fresh.lm_head.weight.copy_(head[target_ids])
    return fresh


def warm_head(folder: Path, embedding: Tensor) -> tuple[TrainableHead, Tensor]:
    """Go on from a checkpoint. Returns the head and its draft vocabulary's target ids."""
    checkpoint = load_checkpoint(folder)
    inverse = invert_draft_vocab(checkpoint.target_ids, checkpoint.config.vocab_size)
    head = TrainableHead(checkpoint.config, embedding, inverse)
    parameters = {
        name: tensor.float() for name, tensor in checkpoint.tensors.items() if name in dict(head.named_parameters())
    }
    head.load_state_dict(parameters, strict=True)
    return head, checkpoint.target_ids


def chain_acceptance(results: Sequence[StepResult]) -> list[Tensor]:
    """Per unrolled step, for every row with all labels: were this and all earlier drafts right? [rows] bool each"""
    last = results[-1].rows
    chained = torch.ones(len(last), dtype=torch.bool)
    chain = []
    for result in results:
        chained = chained & result.correct[torch.searchsorted(result.rows, last)]
        chain.append(chained)
    return chain


def batches(
    folder: Path, held_out: Sequence[Path], rows: int, rng: random.Random
) -> Iterator[list[TappedConversation]]:
    """Endless batches of about `rows` labelled rows, from conversations shuffled inside groups of four shards.

    The folder is read anew each epoch, so training can begin while the taps are still being written.
    """
    while True:
        order = [path for path in list_shards(folder) if path not in held_out]
        rng.shuffle(order)
        for group in (order[start : start + 4] for start in range(0, len(order), 4)):
            items = [item for path in group for item in read_shard(path)]
            rng.shuffle(items)
            batch: list[TappedConversation] = []
            size = 0
            for item in items:
                batch.append(item)
                size += max(len(item.ids) - item.answer_start, 0)
                if size >= rows:
                    yield batch
                    batch, size = [], 0


def hold_out(shards: Sequence[Path], most: int) -> Sequence[Path]:
    """The first shards, up to a quarter of all, at least one. Raises ValueError where nothing is left to train on."""
    if len(shards) < 2:
        raise ValueError(f"Training needs two shards of taps, {2 * SHARD} conversations, or more: one is held out.")
    return shards[: max(1, min(most, len(shards) // 4))]


@torch.no_grad()
def evaluate(head: TrainableHead, shards: Sequence[Path], steps: int) -> tuple[float, list[float]]:
    """Mean first-step loss and chained acceptance on shards that training never sees."""
    losses, chains = [], []
    for path in shards:
        items = read_shard(path)
        for start in range(0, len(items), 8):
            results = head.unroll(items[start : start + 8], steps)
            losses.append(results[0].loss.item())
            chains.append(torch.stack(chain_acceptance(results)))
    return sum(losses) / len(losses), torch.cat(chains, dim=1).float().mean(1).tolist()


class Trainer:
    """Trains a head on the shards in a folder, logs JSON lines, and keeps its last and best state on disk."""

    def __init__(self, head: TrainableHead, target_ids: Tensor, taps: Path, output: Path, recipe: Recipe) -> None:
        self._head = head
        self._target_ids = target_ids
        self._taps = taps
        self._output = output
        self._recipe = recipe
        # What is measured and exported: averaged weights accept more drafts than the last ones at a high rate.
        self._average = copy.deepcopy(head)
        embedding_like = [head.lm_head.weight]
        matrices = [p for p in head.parameters() if p.dim() == 2 and p is not head.lm_head.weight]
        vectors = [p for p in head.parameters() if p.dim() == 1]
        self._optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, recipe.muon_lr),
            torch.optim.AdamW(
                [{"params": embedding_like, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0}],
                recipe.adam_lr,
                betas=(0.9, 0.95),
            ),
        ]
        self._peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in self._optimisers]
        self._started = time.monotonic()
        self._earlier = 0.0
        self._updates = 0
        self._rows = 0

    def run(self, evaluate_every: int = 40) -> Progress:
        """Train until the recipe's time is over; returns the last held-out measurement."""
        held_out = hold_out(list_shards(self._taps), self._recipe.held_out_shards)
        source = batches(self._taps, held_out, self._recipe.rows_per_update, self._rng())
        best = self._measure(held_out)
        while self._share_done() < 1:
            progress = self._update(next(source))
            self._log(progress)
            if self._updates % evaluate_every == 0:
                measured = self._measure(held_out)
                if measured.length > best.length:
                    best = measured
                    self._save("best", measured)
                self._save_state(measured)
        last = self._measure(held_out)
        if last.length >= best.length:
            self._save("best", last)
        self._save_state(last)
        return last

    def resume(self) -> bool:
        """Take up an earlier run's weights, optimisers and clock, where there is one."""
        path = self._output / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self._head.load_state_dict(state["head"])
        self._average.load_state_dict(state["average"])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self._updates, self._rows, self._earlier = state["updates"], state["rows"], state["seconds"]
        return True

    def _rng(self) -> random.Random:
        return random.Random(self._recipe.seed + self._updates)

    def _elapsed(self) -> float:
        return self._earlier + time.monotonic() - self._started

    def _share_done(self) -> float:
        recipe = self._recipe
        return self._updates / recipe.updates if recipe.updates else self._elapsed() / recipe.seconds

    def _update(self, batch: list[TappedConversation]) -> Progress:
        recipe = self._recipe
        self._set_learning_rates()
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            results = self._head.unroll(batch, recipe.unrolled_steps)
        weights = [recipe.step_decay**step for step in range(len(results))]
        loss = torch.stack([w * r.loss for w, r in zip(weights, results, strict=True)]).sum() / sum(weights)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_([self._head.lm_head.weight], 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self._follow()
        self._updates += 1
        self._rows += len(results[0].rows)
        acceptance = [float(right.float().mean()) for right in chain_acceptance(results)]
        return self._progress(loss.item(), acceptance, held_out=False)

    @torch.no_grad()
    def _follow(self) -> None:
        # Early on the average follows closely, so that a fresh head's first random weights are soon forgotten.
        weight = max(1 - self._recipe.averaging, 1 / (self._updates + 2))
        for average, parameter in zip(self._average.parameters(), self._head.parameters(), strict=True):
            average.lerp_(parameter, weight)

    def _set_learning_rates(self) -> None:
        recipe = self._recipe
        cosine = recipe.final_lr + (1 - recipe.final_lr) * 0.5 * (1 + math.cos(math.pi * min(1, self._share_done())))
        factor = cosine * min(1.0, (self._updates + 1) / recipe.warmup_updates)
        for optimiser, peaks in zip(self._optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def _measure(self, held_out: Sequence[Path]) -> Progress:
        loss, acceptance = evaluate(self._average, held_out, self._recipe.unrolled_steps)
        progress = self._progress(loss, acceptance, held_out=True)
        self._log(progress)
        return progress

    def _progress(self, loss: float, acceptance: list[float], held_out: bool) -> Progress:
        return Progress(
            seconds=round(self._elapsed(), 1),
            updates=self._updates,
            rows=self._rows,
            loss=round(loss, 4),
            acceptance=tuple(round(share, 4) for share in acceptance),
            length=round(1 + sum(acceptance), 4),
            held_out=held_out,
        )

    def _log(self, progress: Progress) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        with (self._output / "log.jsonl").open("a") as file:
            file.write(json.dumps(asdict(progress)) + "\n")

    def _save(self, name: str, measured: Progress) -> None:
        weights = dict(self._average.named_parameters())
        save_checkpoint(
            self._output / name, self._head.config, weights, self._target_ids, acceptance=measured.acceptance
        )

    def _save_state(self, measured: Progress) -> None:
        self._save("last", measured)
        partial = self._output / "state.pt.partial"
        torch.save(
            {
                "head": self._head.state_dict(),
                "average": self._average.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
                "updates": self._updates,
                "rows": self._rows,
                "seconds": self._elapsed(),
            },
            partial,
        )
        partial.replace(self._output / "state.pt")
