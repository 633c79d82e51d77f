"""`python -m backend.bench.engine`: how fast the embedded pair is, with and without its draft, and whether they agree.

Both lanes answer every question in turn, their order alternating, the prefix cache flushed before each, one warm-up
excluded; `--peers` lets llama.cpp and transformers answer the same questions between them. Speeds are decode speeds:
(tokens - 1) / (last - first arrival). On a machine that is not idle only the ratios mean something.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from backend.bench.peers import LlamaCpp, Peer, Transformers
from backend.bench.questions import Question, load_questions
from backend.embedded.chat_template import render_chat
from backend.embedded.engine import Engine
from backend.embedded.gguf_file import GgufFile
from backend.embedded.linear import DTYPES
from backend.embedded.loading import load_engine
from backend.embedded.model_files import cache_folder, find_gguf

FIRST_TURN = "Explain to a ten-year-old why the sky is blue, and what a rainbow has to do with it."
PEER_CONTEXT = 2048


@dataclass(frozen=True)
class Timing:
    """One answer. seconds: from the first token to the last; first: from the request to the first token."""

    ids: tuple[int, ...]
    first: float
    seconds: float
    verify_steps: int
    accepted: int

    @property
    def speed(self) -> float | None:
        """Decode speed in tokens per second; None for a one-token answer."""
        return (len(self.ids) - 1) / self.seconds if len(self.ids) > 1 and self.seconds > 0 else None


@dataclass(frozen=True)
class Pair:
    """The same question with and without the draft."""

    set_name: str
    baseline: Timing
    drafted: Timing
    peers: Mapping[str, float | None] = field(default_factory=dict)  # tokens per second by name

    @property
    def speedup(self) -> float | None:
        if self.baseline.speed is None or self.drafted.speed is None:
            return None
        return self.drafted.speed / self.baseline.speed

    @property
    def same(self) -> bool:
        return self.baseline.ids == self.drafted.ids


def prompt_ids(engine: Engine, question: str) -> list[int]:
    return chat_ids(engine, [{"role": "user", "content": question}])


def chat_ids(engine: Engine, messages: list[dict[str, str]]) -> list[int]:
    rendered = render_chat(engine.chat_template, messages, special_tokens=engine.special_tokens)
    return list(engine.tokenizer.encode(rendered, add_special_tokens=False).ids)


def answer(engine: Engine, prompt: Sequence[int], num_steps: int, max_tokens: int) -> Timing:
    """Greedy, until an end token or `max_tokens`; what was verified behind the end is dropped."""
    engine.flush_cache()
    generation = engine.start(prompt, num_steps=num_steps)
    sent = time.perf_counter()
    ids = list(generation.step().ids)
    first = last = time.perf_counter()
    steps = accepted = 0
    while len(ids) < max_tokens and not set(ids).intersection(engine.eos_ids):
        step = generation.step()
        last = time.perf_counter()
        ids.extend(step.ids)
        steps, accepted = steps + 1, accepted + step.accepted
    generation.close()
    return Timing(tuple(_cut(ids, engine.eos_ids, max_tokens)), first - sent, last - first, steps, accepted)


def measure(engine: Engine, questions: Iterable[Question], max_tokens: int, peers: Sequence[Peer] = ()) -> list[Pair]:
    """Both lanes on every question, the order alternating, then the peers."""
    pairs = []
    warm_up = prompt_ids(engine, "Hello!")
    answer(engine, warm_up, engine.num_steps, 16)
    for peer in peers:
        peer.speed(warm_up, 16)
    for index, question in enumerate(questions):
        prompt = prompt_ids(engine, question.text)
        order = (0, engine.num_steps) if index % 2 == 0 else (engine.num_steps, 0)
        timings = {steps: answer(engine, prompt, steps, max_tokens) for steps in order}
        speeds = {peer.name: peer.speed(prompt, max_tokens) for peer in peers}
        pairs.append(Pair(question.set_name, timings[0], timings[engine.num_steps], speeds))
    return pairs


def second_turn(engine: Engine, max_tokens: int = 64) -> tuple[float, float]:
    """Seconds to the first token of a follow-up question: with the first turn's prefix cached, and without."""
    first = [{"role": "user", "content": FIRST_TURN}]
    reply = answer(engine, chat_ids(engine, first), engine.num_steps, max_tokens)
    text = engine.tokenizer.decode(list(reply.ids), skip_special_tokens=True)
    follow_up = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "Why is that?"}]
    prompt = chat_ids(engine, follow_up)
    cached = _first_token_seconds(engine, prompt)
    engine.flush_cache()
    return cached, _first_token_seconds(engine, prompt)


def _first_token_seconds(engine: Engine, prompt: Sequence[int]) -> float:
    generation = engine.start(prompt)
    sent = time.perf_counter()
    generation.step()
    taken = time.perf_counter() - sent
    generation.close()
    return taken


def acceptance_length(pairs: Sequence[Pair]) -> float | None:
    """(A + V) / V over all answers; None where no verify step ran."""
    steps = sum(pair.drafted.verify_steps for pair in pairs)
    return (sum(pair.drafted.accepted for pair in pairs) + steps) / steps if steps else None


def format_table(pairs: Sequence[Pair]) -> str:
    """A Markdown table: one row per set, then all. Medians, with the quartiles of the speedup."""
    header = "| set | n | baseline tokens/s | EAGLE-3 tokens/s | speedup (quartiles) | τ | TTFT s | same tokens |"
    lines = [header, "|---|---|---|---|---|---|---|---|"]
    names = list(dict.fromkeys(pair.set_name for pair in pairs))
    groups = [(name, [pair for pair in pairs if pair.set_name == name]) for name in names]
    for name, group in [*groups, ("all", list(pairs))]:
        baseline = [pair.baseline.speed for pair in group if pair.baseline.speed]
        drafted = [pair.drafted.speed for pair in group if pair.drafted.speed]
        ratios = [pair.speedup for pair in group if pair.speedup]
        first = [pair.drafted.first for pair in group]
        same = sum(pair.same for pair in group)
        cells = (
            name,
            len(group),
            _median(baseline, 1),
            _median(drafted, 1),
            f"{_median(ratios, 2)}x{_quartiles(ratios)}",
            _number(acceptance_length(group), 2),
            _median(first, 2),
            f"{same} of {len(group)}",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def format_peers(pairs: Sequence[Pair]) -> str:
    """A Markdown table: each peer's median speed, and the median over questions of each lane's ratio to it."""
    lines = ["| peer | tokens/s | baseline : peer | EAGLE-3 : peer |", "|---|---|---|---|"]
    for name in dict.fromkeys(name for pair in pairs for name in pair.peers):
        measured = [(pair, speed) for pair in pairs if (speed := pair.peers.get(name))]
        speeds = [speed for _, speed in measured]
        ratios = [
            [lane.speed / speed for lane, speed in lanes if lane.speed]
            for lanes in (
                [(pair.baseline, speed) for pair, speed in measured],
                [(pair.drafted, speed) for pair, speed in measured],
            )
        ]
        baseline, drafted = (f"{_median(values, 2)}x{_quartiles(values)}" for values in ratios)
        lines.append(f"| {name} | {_median(speeds, 1)} | {baseline} | {drafted} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    questions = load_questions(options.questions, options.limit)
    for dtype in options.dtype or [None]:
        engine = load_engine(draft=options.draft, dtype=dtype, threads=options.threads, num_steps=options.num_steps)
        print(
            f"\n{engine.model_name}, {engine.dtype}, threads: {engine.threads}, drafts a step: {engine.num_steps}, "
            f"greedy, {options.tokens} tokens at most; rows independent on this CPU: {engine.bit_exact}\n"
        )
        cached, fresh = second_turn(engine)
        megabytes = psutil.Process().memory_info().rss / 1e6
        pairs = measure(engine, questions, options.tokens, _load_peers(options.peers, engine))
        print(format_table(pairs))
        if options.peers:
            print("\n" + format_peers(pairs))
        print(f"\nSecond turn: first token after {cached:.2f} s with the prefix cached, {fresh:.2f} s without.")
        print(f"Memory of this process before any peer was loaded: {megabytes:.0f} MB.", flush=True)


def _load_peers(wanted: bool, engine: Engine) -> list[Peer]:
    if not wanted:
        return []
    path = find_gguf(None, cache_folder(), lambda _message, _fraction: None)
    file = GgufFile(path)
    return [
        LlamaCpp(path, engine.threads, PEER_CONTEXT),
        Transformers(file.read_weights(), file.eos_id),
    ]


def _cut(ids: list[int], eos_ids: Sequence[int], max_tokens: int) -> list[int]:
    end = next((place + 1 for place, token in enumerate(ids) if token in eos_ids), len(ids))
    return ids[: min(end, max_tokens)]


def _median(values: Sequence[float], digits: int) -> str:
    return _number(statistics.median(values) if values else None, digits)


def _quartiles(values: Sequence[float]) -> str:
    if len(values) < 4:
        return ""
    low, _, high = statistics.quantiles(values, n=4)
    return f" ({low:.2f} to {high:.2f})"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m backend.bench.engine", description=__doc__)
    parser.add_argument("--questions", type=Path, help="a .jsonl file or a folder of them (default: six built-in)")
    parser.add_argument("--limit", type=int, help="questions per set (default: all)")
    parser.add_argument("--tokens", type=int, default=256, help="per answer, at most (default: %(default)s)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="one table each (default: the measured one)")
    parser.add_argument("--peers", action="store_true", help="measure llama.cpp and transformers beside the lanes")
    parser.add_argument("--threads", type=int, help="(default: measured)")
    parser.add_argument("--num-steps", type=int, help="drafts per verify step (default: the engine's)")
    parser.add_argument("--draft", type=Path, help="a draft checkpoint (default: the shipped one)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
