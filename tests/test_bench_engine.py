"""The engine's benchmark: both lanes and the peers on the same questions, told in one table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backend.bench.engine import Pair, Timing, format_peers, format_table, measure, second_turn
from backend.bench.peers import LlamaCpp, Peer, Transformers
from backend.bench.questions import BUILT_IN, Question
from backend.embedded.gguf_file import GgufFile
from backend.embedded.loading import load_engine
from backend.embedded.model_files import cache_folder, find_gguf
from tests.tiny_pair import tiny_engine


class Clockwork(Peer):
    """A peer of a fixed speed, so that the table's arithmetic can be seen."""

    name = "clockwork"

    def speed(self, prompt: Sequence[int], max_tokens: int) -> float | None:
        assert prompt
        return float(max_tokens)


def timing(tokens: int, seconds: float, steps: int) -> Timing:
    return Timing(tuple(range(tokens)), 0.5, seconds, steps, tokens - 1 - steps)


def test_both_lanes_and_the_peers_answer_every_question() -> None:
    engine = tiny_engine("int4")
    questions = [Question("words", "w3"), Question("words", "w5"), Question("more", "w7")]
    pairs = measure(engine, questions, 20, [Clockwork()])
    assert [pair.set_name for pair in pairs] == ["words", "words", "more"]
    assert all(pair.same for pair in pairs)
    assert [pair.peers for pair in pairs] == [{"clockwork": 20.0}] * 3
    table = format_table(pairs).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == ["| words", "| more", "| all"]
    assert "3 of 3" in table[-1]


def test_a_peers_row_gives_its_speed_and_both_lanes_ratios() -> None:
    pairs = [Pair("chat", timing(21, 2.0, 20), timing(21, 1.0, 10), {"clockwork": 20.0}) for _ in range(2)]
    assert format_peers(pairs).splitlines()[-1] == "| clockwork | 20.0 | 0.50x | 1.00x |"


def test_the_table_tells_speedup_and_acceptance_length() -> None:
    pairs = [Pair("chat", timing(21, 2.0, 20), timing(21, 1.0, 10))]
    assert format_table(pairs).splitlines()[-1] == "| all | 1 | 10.0 | 20.0 | 2.00x | 2.00 | 0.50 | 1 of 1 |"


@pytest.mark.heavy
def test_real_peers_decode_the_same_weights_and_a_cached_prefix_halves_the_wait() -> None:
    engine = load_engine(threads=1)
    gguf = find_gguf(None, cache_folder(), lambda _message, _fraction: None)
    file = GgufFile(gguf)
    peers: list[Peer] = [LlamaCpp(gguf, 1, 1024), Transformers(file.read_weights(), file.eos_id)]
    pairs = measure(engine, BUILT_IN[:1], 24, peers)
    assert set(pairs[0].peers) == {"llama.cpp", "transformers float32"}
    assert all(speed is not None and speed > 0 for speed in pairs[0].peers.values())
    cached, fresh = second_turn(engine)
    assert cached < fresh / 2
