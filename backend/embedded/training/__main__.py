"""`python -m backend.embedded.training`: make an EAGLE-3 draft for the built-in target, from nothing.

    python -m backend.embedded.training all --folder build/draft --conversations 200 --minutes 20

`write` lets the target write a corpus and keeps its taps, `tap` computes the taps of an existing corpus, `train`
trains on them, `all` writes and trains. Each resumes where it stopped. Threads: set OMP_NUM_THREADS. With `--bf16`
a CPU that multiplies bfloat16 in hardware (AVX512_BF16, AMX) does all of it two to three times as fast.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from backend.embedded.linear import DTYPES, Dtype
from backend.embedded.loading import ASSETS, load_built_in
from backend.embedded.training.corpus import Conversation, Corpus
from backend.embedded.training.generate import Writer
from backend.embedded.training.taps import SHARD, TappedConversation, list_shards, save_shard, shard_path, write_all
from backend.embedded.training.train import Recipe, Trainer, choose_draft_vocab, new_head, warm_head

DRAFT_VOCAB = 8192


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.action in ("write", "all"):
        write_corpus(options)
    if options.action == "tap":
        tap_corpus(options)
    if options.action in ("train", "all"):
        train(options)


def write_corpus(options: argparse.Namespace) -> None:
    """Let the target write conversations, shard by shard: `corpus.npz` and `taps/` in the folder."""
    corpus_file, taps = options.folder / "corpus.npz", options.folder / "taps"
    taps.mkdir(exist_ok=True)
    kept: list[Conversation] = list(Corpus.load(corpus_file)) if corpus_file.exists() else []
    loaded = load_built_in(_dtype(options), _tell)
    seeds = [line.replace("\\n", "\n") for line in (ASSETS / "training" / "seeds.txt").read_text().splitlines()]
    # Another seed for each resumed run, or it would write the same conversations again.
    writer = Writer(loaded.target, loaded.text, seeds, rows=options.rows, seed=options.seed + len(kept))
    source = writer.write()
    with tqdm(total=options.conversations, initial=len(kept), unit="conversation") as bar:
        while len(kept) < options.conversations:
            shard = list(itertools.islice(source, SHARD))
            tapped: list[TappedConversation] = [taps_of for _, taps_of in shard]
            save_shard(shard_path(taps, len(list_shards(taps))), tapped)
            kept.extend(conversation for conversation, _ in shard)
            Corpus.of(kept).save(corpus_file)
            bar.update(len(shard))


def tap_corpus(options: argparse.Namespace) -> None:
    """Compute the taps of `corpus.npz`, for a corpus whose taps were not kept."""
    corpus = Corpus.load(options.folder / "corpus.npz")
    loaded = load_built_in(_dtype(options), _tell)
    shards = write_all(loaded.target, corpus, options.folder / "taps")
    for _ in tqdm(shards, total=-(-len(corpus) // SHARD), unit="shard"):
        pass


def train(options: argparse.Namespace) -> None:
    """Train, logging to `run/log.jsonl`; the best draft so far is in `run/best`."""
    loaded = load_built_in("fp32", _tell)
    target = loaded.target
    if options.warm_start:
        head, ids = warm_head(options.warm_start, target.embedding)
    else:
        corpus = Corpus.load(options.folder / "corpus.npz")
        ids = choose_draft_vocab(corpus, DRAFT_VOCAB, target.config.vocab_size)
        head = new_head(target.config, target.embedding, target.head.tensors()["weight"], ids)
    recipe = Recipe(
        seconds=60 * options.minutes,
        muon_lr=options.muon_lr,
        adam_lr=options.adam_lr,
        seed=options.seed,
        bfloat16=options.bf16,
    )
    trainer = Trainer(head, ids, options.folder / "taps", options.folder / "run", recipe)
    if trainer.resume():
        print("Going on from", options.folder / "run")
    print(json.dumps(asdict(trainer.run())))
    print("The draft is in", options.folder / "run" / "best")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m backend.embedded.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("write", "tap", "train", "all"))
    parser.add_argument("--folder", type=Path, required=True, help="where corpus, taps and drafts are kept")
    parser.add_argument("--conversations", type=int, default=4000, help="to write (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=64, help="conversations written at once (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=120, help="of training (default: %(default)s)")
    parser.add_argument("--warm-start", type=Path, help="a draft checkpoint to go on from")
    parser.add_argument("--muon-lr", type=float, default=0.01, help="of the matrices (default: %(default)s)")
    parser.add_argument("--adam-lr", type=float, default=1e-3, help="of head and norms (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="multiply in bfloat16; weights stay float32 in training")
    parser.add_argument("--dtype", choices=DTYPES, help="of the writing and tapped target, if not as --bf16 says")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _dtype(options: argparse.Namespace) -> Dtype:
    dtype: Dtype | None = options.dtype
    return dtype or ("bf16" if options.bf16 else "fp32")


def _tell(message: str, fraction: float) -> None:
    print(f"\r{message} {fraction:.0%}\033[K", end="" if fraction < 1 else "\n", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
