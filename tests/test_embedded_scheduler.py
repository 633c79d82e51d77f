"""Requests take turns, one engine step each; nothing that one of them meets stops the others."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backend.embedded.protocol import Job, RequestError
from backend.embedded.scheduler import (
    Failure,
    Limits,
    Output,
    QueueFullError,
    Reply,
    Scheduler,
    SpecCounters,
    measure_throughput,
)
from backend.embedded.stop import StopRule
from tests.closed_form_engine import ClosedFormEngine, ClosedFormStep

WAIT = 20.0  # seconds until a test gives up


class Gate:
    """Lets the engine do a step only when told."""

    def __init__(self) -> None:
        self._tickets: queue.Queue[None] = queue.Queue()
        self.is_open = False

    def __call__(self) -> None:
        if not self.is_open:
            self._tickets.get(timeout=WAIT)

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self._tickets.put(None)

    def open(self) -> None:
        self.is_open = True
        self.let(1)


class Inbox:
    """What one reply sent."""

    def __init__(self) -> None:
        self._items: queue.Queue[Output | Failure] = queue.Queue()

    def __call__(self, item: Output | Failure) -> None:
        self._items.put(item)

    def take(self) -> Output | Failure:
        return self._items.get(timeout=WAIT)

    def take_all(self) -> list[Output]:
        outputs: list[Output] = []
        while not outputs or outputs[-1].finish is None:
            item = self.take()
            assert isinstance(item, Output)
            outputs.append(item)
        return outputs

    @property
    def is_empty(self) -> bool:
        return self._items.empty()


def make_job(rid: str, *, start: int = 10, tokens: int = 20, speculative: bool = True, num_steps: int = 3) -> Job:
    return Job(
        rid=rid,
        speculative=speculative,
        prompt_ids=(start,),
        temperature=0.0,
        top_p=1.0,
        seed=None,
        num_steps=num_steps,
        stop=StopRule(tokens),
        skip_special_tokens=True,
        keep_stop=False,
    )


@contextmanager
def serving(engine: ClosedFormEngine, limits: Limits | None = None) -> Iterator[Scheduler]:
    scheduler = Scheduler(engine, limits or Limits())
    scheduler.start()
    try:
        yield scheduler
    finally:
        if isinstance(engine.before_step, Gate):
            engine.before_step.open()
        scheduler.close()
        assert not scheduler.is_alive


def submit(scheduler: Scheduler, job: Job) -> tuple[Reply, Inbox]:
    inbox = Inbox()
    return scheduler.submit(job, inbox), inbox


def test_two_requests_take_turns_step_by_step() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, first = submit(scheduler, make_job("a"))
        _, second = submit(scheduler, make_job("b"))
        for _ in range(4):
            gate.let(2)
            first.take()
            second.take()
            assert first.is_empty and second.is_empty


def test_a_long_reply_does_not_hold_up_a_short_one_that_came_later() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, long = submit(scheduler, make_job("long", tokens=500))
        gate.let(3)
        for _ in range(3):
            long.take()
        _, short = submit(scheduler, make_job("short", tokens=2))
        gate.let(6)
        assert len(short.take_all()) == 2


def test_short_requests_do_not_starve_a_long_one() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate), Limits(max_running=2)) as scheduler:
        _, long = submit(scheduler, make_job("long", tokens=500))
        for index in range(8):
            submit(scheduler, make_job(f"short{index}", tokens=1))
        gate.let(8)
        for _ in range(4):
            long.take()


def test_counters_are_raw_and_count_the_last_step() -> None:
    with serving(ClosedFormEngine()) as scheduler:
        _, inbox = submit(scheduler, make_job("a", start=9, tokens=20))
        outputs = inbox.take_all()
    last = outputs[-1]
    assert [len(output.ids) for output in outputs] == [1, 1, 4, 1, 4, 1, 4, 1, 3]
    assert last.completion_tokens == 20
    assert last.counters == SpecCounters(8, 12, 24, (4, 0, 0, 4))
    cut = 1 + last.counters.accepted + last.counters.verify_steps - last.completion_tokens
    assert cut == 1


def test_proposed_ids_include_the_rejected_ones() -> None:
    with serving(ClosedFormEngine()) as scheduler:
        _, inbox = submit(scheduler, make_job("a", start=9, tokens=6))
        outputs = inbox.take_all()
    assert [output.proposed for output in outputs] == [(), (10, 10, 10), (12, 13, 14)]
    assert [output.ids for output in outputs] == [(10,), (11,), (12, 13, 14, 15)]


def test_without_drafts_there_are_no_counters() -> None:
    with serving(ClosedFormEngine()) as scheduler:
        _, inbox = submit(scheduler, make_job("a", num_steps=0, tokens=5))
        outputs = inbox.take_all()
    assert [len(output.ids) for output in outputs] == [1] * 5
    assert outputs[-1].counters == SpecCounters()


def test_steps_that_could_begin_a_stop_string_are_sent_together() -> None:
    job = make_job("a", start=9, tokens=20)
    rule = StopRule(20, ("w11 w13",))
    with serving(ClosedFormEngine()) as scheduler:
        _, inbox = submit(scheduler, Job(**{**vars(job), "stop": rule}))
        outputs = inbox.take_all()
    assert outputs[0].ids == (10,)
    assert outputs[1].ids == (11, 12, 13, 14, 15)
    assert outputs[1].proposed is None


def test_an_abort_ends_a_reply_before_its_next_step() -> None:
    gate = Gate()
    engine = ClosedFormEngine(before_step=gate)
    with serving(engine) as scheduler:
        reply, inbox = submit(scheduler, make_job("a", tokens=500))
        gate.let(2)
        inbox.take()
        inbox.take()
        scheduler.abort(reply)
        gate.let(1)  # the step that may be under way
        outputs = inbox.take_all()
        assert len(outputs) <= 2
        assert outputs[-1].finish is not None and outputs[-1].finish.kind == "abort"
        assert engine.generations[0].closed


def test_a_waiting_request_can_be_aborted() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate), Limits(max_running=1)) as scheduler:
        submit(scheduler, make_job("a", tokens=500))
        reply, inbox = submit(scheduler, make_job("b"))
        scheduler.abort(reply)
        gate.let(1)
        (output,) = inbox.take_all()
        assert output.ids == () and output.completion_tokens == 0


def test_an_abort_by_id_takes_along_what_begins_so_at_its_address_only() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, named = submit(scheduler, make_job("chat", tokens=3))
        _, begun = submit(scheduler, make_job("chat-1", tokens=3))
        _, baseline = submit(scheduler, make_job("chat-2", tokens=3, speculative=False, num_steps=0))
        scheduler.abort_named("chat", speculative=True)
        gate.open()
        finishes = [inbox.take_all()[-1].finish for inbox in (named, begun, baseline)]
    assert [finish.kind for finish in finishes if finish] == ["abort", "abort", "length"]


def test_an_abort_by_an_unknown_id_ends_nothing() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, inbox = submit(scheduler, make_job("chat-1", tokens=3))
        scheduler.abort_named("chat", speculative=True)
        gate.open()
        finish = inbox.take_all()[-1].finish
    assert finish is not None and finish.kind == "length"


def test_more_requests_than_may_wait_are_turned_away() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate), Limits(max_running=1, max_queued=1)) as scheduler:
        submit(scheduler, make_job("a"))
        submit(scheduler, make_job("b"))
        with pytest.raises(QueueFullError, match="The request queue is full"):
            submit(scheduler, make_job("c"))


def test_an_id_in_use_is_refused_at_its_address_only() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        submit(scheduler, make_job("a"))
        with pytest.raises(RequestError, match="Duplicate request ID"):
            submit(scheduler, make_job("a"))
        submit(scheduler, make_job("a", speculative=False))


def test_an_engine_error_ends_its_reply_and_no_other() -> None:
    def fail_once() -> None:
        if engine.steps_done == 1:
            engine.steps_done += 1
            raise RuntimeError("out of memory")

    engine = ClosedFormEngine(before_step=fail_once)
    with serving(engine) as scheduler:
        _, doomed = submit(scheduler, make_job("a"))
        assert isinstance(doomed.take(), Output)
        failure = doomed.take()
        assert isinstance(failure, Failure) and "out of memory" in failure.message
        assert engine.generations[0].closed
        _, other = submit(scheduler, make_job("b"))
        assert other.take_all()[-1].completion_tokens == 20


def test_the_cache_is_flushed_when_idle_and_not_while_a_reply_runs() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, inbox = submit(scheduler, make_job("a", tokens=9))
        gate.let(1)
        inbox.take()
        refused = scheduler.flush_cache(0)
        gate.let(1)
        assert refused.result(WAIT) is False
        gate.open()
        inbox.take_all()
        assert scheduler.flush_cache(0).result(WAIT) is True
        _, inbox = submit(scheduler, make_job("b", tokens=2))
        assert inbox.take_all()[-1].cached_tokens == 0


def test_a_flush_starts_the_totals_of_its_own_address_anew() -> None:
    with serving(ClosedFormEngine()) as scheduler:
        _, inbox = submit(scheduler, make_job("a", tokens=9))
        inbox.take_all()
        for asked, is_kept in ((False, True), (True, False)):
            assert scheduler.flush_cache(WAIT, speculative=asked).result(WAIT) is True
            assert (scheduler.load(speculative=True).counters.verify_steps > 0) is is_kept


def test_a_flush_that_may_wait_is_done_once_the_reply_has_ended() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate)) as scheduler:
        _, inbox = submit(scheduler, make_job("a", tokens=9))
        waiting = scheduler.flush_cache(WAIT)
        gate.open()
        inbox.take_all()
        assert waiting.result(WAIT) is True


def test_closing_ends_what_runs_and_what_waits() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate), Limits(max_running=1)) as scheduler:
        inboxes = [submit(scheduler, make_job(rid, tokens=500))[1] for rid in ("a", "b")]
        gate.let(1)
        inboxes[0].take()
    for inbox in inboxes:
        item = inbox.take()
        while isinstance(item, Output):
            item = inbox.take()
        assert item == Failure("The server is shutting down.", status=503)
    with pytest.raises(QueueFullError):
        submit(scheduler, make_job("c"))


def test_the_load_of_an_address_counts_its_own_requests() -> None:
    gate = Gate()
    with serving(ClosedFormEngine(before_step=gate), Limits(max_running=1)) as scheduler:
        _, inbox = submit(scheduler, make_job("a", tokens=500))
        submit(scheduler, make_job("b"))
        gate.let(3)
        for _ in range(3):
            inbox.take()
        load = scheduler.load(speculative=True)
        assert (load.running, load.waiting) == (1, 1)
        assert load.counters.verify_steps == 2
        assert scheduler.load(speculative=False).running == 0


def test_throughput_leaves_out_the_step_that_starts_the_clock() -> None:
    assert measure_throughput([]) == 0.0
    assert measure_throughput([(1.0, 7)]) == 0.0
    assert measure_throughput([(1.0, 7), (1.5, 4), (2.0, 1)]) == 5.0


def test_the_histogram_ends_at_the_largest_accepted_count_that_occurred() -> None:
    counters = SpecCounters()
    for accepted in (0, 2, 0):
        counters = counters.with_step(ClosedFormStep(tuple(range(accepted + 1)), (1, 2, 3), accepted))
    assert counters == SpecCounters(3, 2, 9, (2, 0, 1))
    assert counters.acceptance_length == pytest.approx(5 / 3)
    assert SpecCounters().acceptance_length is None
