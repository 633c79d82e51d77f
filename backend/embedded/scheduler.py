"""The thread that owns the engine and serves all requests in turn, one step each."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from backend.embedded.detokenizer import Detokenizer
from backend.embedded.engine_protocol import Engine, Generation, Step
from backend.embedded.protocol import Job, RequestError
from backend.embedded.stop import Finish, cut_at_stop, may_be_stopping

log = logging.getLogger(__name__)

THROUGHPUT_STEPS = 40  # SGLang's --decode-log-interval


class QueueFullError(RuntimeError):
    """As many requests wait as may. HTTP 503."""


@dataclass(frozen=True)
class Limits:
    """How many requests are served in turn, and how many more may wait."""

    max_running: int = 4
    max_queued: int = 16


@dataclass(frozen=True)
class SpecCounters:
    """Totals over verify steps, raw: not reduced by a cut, the last step included.

    V is `verify_steps`, A is `accepted`; `histogram[k]` counts the steps that accepted k drafts and, as SGLang's, ends
    at the largest k that occurred.
    """

    verify_steps: int = 0
    accepted: int = 0
    proposed: int = 0
    histogram: tuple[int, ...] = ()

    def with_step(self, step: Step) -> SpecCounters:
        """The totals with one more verify step."""
        histogram = list(self.histogram) + [0] * (step.accepted + 1 - len(self.histogram))
        histogram[step.accepted] += 1
        return SpecCounters(
            self.verify_steps + 1, self.accepted + step.accepted, self.proposed + len(step.proposed), tuple(histogram)
        )

    @property
    def acceptance_length(self) -> float | None:
        """(A + V) / V; None without a verify step."""
        return (self.accepted + self.verify_steps) / self.verify_steps if self.verify_steps else None


@dataclass(frozen=True)
class Output:
    """What a reply grew by: one verify step, or several where a stop string could have been beginning."""

    text: str
    ids: tuple[int, ...]
    proposed: tuple[int, ...] | None  # the drafts of this step; None unless it is exactly one step
    completion_tokens: int  # so far
    cached_tokens: int
    counters: SpecCounters
    finish: Finish | None = None


@dataclass(frozen=True)
class Failure:
    """The end of a reply that the engine could not bring to its own."""

    message: str
    status: int = 500


Deliver = Callable[[Output | Failure], None]


@dataclass(frozen=True)
class Load:
    """What one address has to do at a moment."""

    running: int
    waiting: int
    used_tokens: int  # prompt and completion tokens of the running requests
    waiting_tokens: int
    throughput: float  # tokens per second over the last steps of the latest busy period; 0 before the second step
    counters: SpecCounters  # since the start or the last flush of the cache


class Reply:
    """One job on its way: its engine state, its text, its counters. `deliver` is called on the engine's thread."""

    def __init__(self, job: Job, deliver: Deliver, engine: Engine) -> None:
        self.job = job
        self.aborted = False
        self._deliver = deliver
        self._detokenizer = Detokenizer(
            engine.tokenizer, job.prompt_ids, skip_special_tokens=job.skip_special_tokens, keep_stop=job.keep_stop
        )
        # A stop string may be a special token's, which the reply's text leaves out.
        self._stop_text = Detokenizer(engine.tokenizer, (), skip_special_tokens=False)
        self._generation: Generation | None = None
        self._ids: list[int] = []
        self._sent = 0
        self._unsent_steps: list[Step] = []
        self._counters = SpecCounters()

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens so far."""
        return len(self.job.prompt_ids) + len(self._ids)

    def step(self, engine: Engine) -> Step:
        """One step of the engine; the first opens the request there."""
        if self._generation is None:
            self._generation = engine.start(
                self.job.prompt_ids,
                temperature=self.job.temperature,
                top_p=self.job.top_p,
                seed=self.job.seed,
                num_steps=self.job.num_steps,
            )
        step = self._generation.step()
        if self._ids and self.job.num_steps > 0:
            self._counters = self._counters.with_step(step)
        self._ids.extend(step.ids)
        self._unsent_steps.append(step)
        return step

    def take_output(self, step: Step) -> Output | None:
        """What to send after `step`; None while a stop string could be beginning."""
        finish = cut_at_stop(self._ids, len(step.ids), self.job.stop, self._stop_text.decode)
        if finish is None and may_be_stopping(self._ids, self.job.stop, self._stop_text.decode):
            return None
        return self._take(finish)

    def take_abort(self) -> Output:
        """What is still unsent, with the mark that the reply was broken off."""
        return self._take(Finish("abort", len(self._ids)))

    def send(self, output: Output | Failure) -> None:
        self._deliver(output)

    def close(self) -> None:
        """Frees what the engine holds for this reply."""
        if self._generation is not None:
            self._generation.close()

    def _take(self, finish: Finish | None) -> Output:
        kept = finish.kept if finish else len(self._ids)
        new_ids = self._ids[self._sent : kept]
        if finish is None:
            text = self._detokenizer.advance(new_ids)
        else:
            text = self._detokenizer.finish(new_ids, finish.matched)
        proposed = self._unsent_steps[0].proposed if len(self._unsent_steps) == 1 else None
        self._sent = kept
        self._unsent_steps.clear()
        return Output(
            text=text,
            ids=tuple(new_ids),
            proposed=proposed,
            completion_tokens=kept,
            cached_tokens=self._generation.cached_tokens if self._generation else 0,
            counters=self._counters,
            finish=finish,
        )


@dataclass(frozen=True)
class Flush:
    """A wish to forget the cached prefixes, good until `deadline` on the monotonic clock."""

    deadline: float
    done: Future[bool]
    speculative: bool  # the address that was asked


class Scheduler:
    """Serves jobs fairly: every running reply gets one step before any gets its next.

    All engine calls happen on the scheduler's own thread. An engine error ends the reply that met it, not the thread.
    """

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.limits = limits
        self._engine = engine
        self._changed = threading.Condition()
        self._waiting: deque[Reply] = deque()
        self._running: deque[Reply] = deque()
        self._flushes: list[Flush] = []
        self._closing = False
        self._counters = {True: SpecCounters(), False: SpecCounters()}
        self._recent: dict[bool, deque[tuple[float, int]]] = {
            lane: deque(maxlen=THROUGHPUT_STEPS) for lane in (True, False)
        }
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 3.0) -> None:
        """Ends every reply after the step under way, and the thread. Waits up to `timeout` seconds for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    def submit(self, job: Job, deliver: Deliver) -> Reply:
        """Queues a job. Raises QueueFullError, or RequestError where its id is in use at this address."""
        reply = Reply(job, deliver, self._engine)
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise QueueFullError("The server is shutting down.")
            if any(self._is_same(job, other.job) for other in (*self._running, *self._waiting)):
                raise RequestError(f"Duplicate request ID detected: {job.rid}")
            if len(self._running) + len(self._waiting) >= self.limits.max_running + self.limits.max_queued:
                raise QueueFullError("The request queue is full.")
            self._waiting.append(reply)
            self._changed.notify()
        return reply

    def abort(self, reply: Reply) -> None:
        """Ends one reply after the step under way. Nothing happens where it has ended already."""
        with self._changed:
            reply.aborted = True
            self._changed.notify()

    def abort_named(self, rid: str, *, speculative: bool) -> None:
        """Ends the reply of one address that is called `rid`, and those whose ids begin so; unknown ids end nothing.

        As SGLang 0.5.23 does (`TokenizerManager.abort_request`, then `Scheduler.abort_request`).
        """
        with self._changed:
            replies = self._replies_of(speculative)
            if any(reply.job.rid == rid for reply in replies):
                self._mark_aborted(reply for reply in replies if reply.job.rid.startswith(rid))

    def abort_all(self, *, speculative: bool) -> None:
        """Ends every reply of one address."""
        with self._changed:
            self._mark_aborted(self._replies_of(speculative))

    def _replies_of(self, speculative: bool) -> list[Reply]:
        return [reply for reply in (*self._running, *self._waiting) if reply.job.speculative == speculative]

    def _mark_aborted(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            reply.aborted = True
        self._changed.notify()

    def flush_cache(self, timeout: float, *, speculative: bool = True) -> Future[bool]:
        """Forgets the cached prefixes once nothing runs or waits; False where that is not so within `timeout` s.

        The totals of the address that was asked start anew, those of the other stay.
        """
        flush = Flush(time.monotonic() + timeout, Future(), speculative)
        with self._changed:
            self._flushes.append(flush)
            self._changed.notify()
        return flush.done

    def load(self, *, speculative: bool) -> Load:
        """What one address has to do right now."""
        with self._changed:
            running = [reply for reply in self._running if reply.job.speculative == speculative]
            waiting = [reply for reply in self._waiting if reply.job.speculative == speculative]
            recent = list(self._recent[speculative])
            counters = self._counters[speculative]
        return Load(
            running=len(running),
            waiting=len(waiting),
            used_tokens=sum(reply.tokens for reply in running),
            waiting_tokens=sum(reply.tokens for reply in waiting),
            throughput=measure_throughput(recent),
            counters=counters,
        )

    @staticmethod
    def _is_same(job: Job, other: Job) -> bool:
        return job.rid == other.rid and job.speculative == other.speculative

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_turn()
        finally:
            self._fail_all()

    def _fail_all(self) -> None:
        with self._changed:
            self._closing = True
            unfinished = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            flushes, self._flushes = self._flushes, []
        for reply in unfinished:
            reply.close()
            reply.send(Failure("The server is shutting down.", status=503))
        for flush in flushes:
            flush.done.set_result(False)

    def _take_turn(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._running or self._waiting or self._flushes)
            if self._closing:
                return
            aborted = [reply for reply in (*self._running, *self._waiting) if reply.aborted]
            for reply in aborted:
                self._forget(reply)
            self._admit()
            current = self._running[0] if self._running else None
            self._running.rotate(-1)
        for reply in aborted:
            reply.close()
            reply.send(reply.take_abort())
        self._serve_flushes(is_idle=current is None)
        if current is not None:
            self._advance(current)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.limits.max_running:
            reply = self._waiting.popleft()
            if all(other.job.speculative != reply.job.speculative for other in self._running):
                self._recent[reply.job.speculative].clear()  # idle time is not decoding time
            self._running.append(reply)

    def _forget(self, reply: Reply) -> None:
        for replies in (self._running, self._waiting):
            if reply in replies:
                replies.remove(reply)

    def _advance(self, reply: Reply) -> None:
        try:
            step = reply.step(self._engine)
            output = reply.take_output(step)
        except Exception as error:  # an engine may raise anything; only this reply is lost
            log.exception("The engine failed on request %s", reply.job.rid)
            self._end(reply)
            reply.send(Failure(f"The engine failed on this request: {error}"))
            return
        self._count(reply, step)
        if output is None:
            return
        if output.finish is not None:
            self._end(reply)
        reply.send(output)

    def _end(self, reply: Reply) -> None:
        reply.close()
        with self._changed:
            self._forget(reply)

    def _count(self, reply: Reply, step: Step) -> None:
        lane = reply.job.speculative
        with self._changed:
            self._recent[lane].append((time.monotonic(), len(step.ids)))
            if step.proposed:
                self._counters[lane] = self._counters[lane].with_step(step)

    def _serve_flushes(self, *, is_idle: bool) -> None:
        now = time.monotonic()
        with self._changed:
            due = [flush for flush in self._flushes if is_idle or flush.deadline <= now]
            self._flushes = [flush for flush in self._flushes if flush not in due]
        if due and is_idle:
            self._engine.flush_cache()
            with self._changed:
                for flush in due:
                    self._counters[flush.speculative] = SpecCounters()
        for flush in due:
            flush.done.set_result(is_idle)


def measure_throughput(steps: list[tuple[float, int]]) -> float:
    """Tokens per second over steps given as (time it ended in seconds, its tokens).

    The first step only starts the clock: when it began is not known.
    """
    if len(steps) < 2 or steps[-1][0] <= steps[0][0]:
        return 0.0
    return sum(tokens for _, tokens in steps[1:]) / (steps[-1][0] - steps[0][0])
