"""The loop: each step computes one batch and carries every request in it further."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from tokenmill.backends.base import DecodeBackend
from tokenmill.core.errors import BackendError, Cancelled, OutOfMemory, TokenmillError
from tokenmill.core.events import Finish, FinishReason, GenerateEvent
from tokenmill.core.ids import SequenceId
from tokenmill.core.rows import Logits, Row, RowOutput, StepResult
from tokenmill.engine.active import ActiveRequest
from tokenmill.engine.streams import RequestStream, Sinks
from tokenmill.sampling.custom import draw
from tokenmill.scheduler.actions import Action, Drop, Grow, Park, Refuse, Start
from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import PlannedRow
from tokenmill.scheduler.scheduler import Scheduler
from tokenmill.scheduler.sequence import Sequence
from tokenmill.telemetry.metrics import EngineMetrics, Gauges
from tokenmill.telemetry.timeline import Span

Clock = Callable[[], float]

_SPARE_DEADLINES = 64
"""So many deadlines of ended requests may be left before they are looked through."""

_log = logging.getLogger(__name__)


class Engine:
    """Carries out what the scheduler decides. Used by one thread; see `EngineThread`.

    Args:
        backend: a loaded model's backend; the engine closes it.
        scheduler: decides who runs; used by this engine only.
        costs: the scheduler's, told here what copies take.
        max_rows: most requests that run at once.
        clock: seconds that never go back; deadlines are on it.
    """

    def __init__(
        self,
        backend: DecodeBackend,
        scheduler: Scheduler,
        costs: StepCosts,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._backend, self._scheduler, self._costs = backend, scheduler, costs
        self._clock = clock
        self._active: dict[Sequence, ActiveRequest] = {}
        self._by_stream: dict[RequestStream, ActiveRequest] = {}
        self._arrived: list[ActiveRequest] = []
        self._deadlines: list[tuple[float, int, ActiveRequest]] = []
        self._numbers = itertools.count()
        self._gaps: list[float] = []
        self._num_parked = 0
        self._last_finish: float | None = None
        self.seconds_per_finish = 1.0
        """How often a request ends, smoothed; 1 before that is known."""
        self.sinks = Sinks()
        """What steps write to; see `Sinks` for who flushes them."""
        self.metrics = EngineMetrics(self._gauges, max_rows=scheduler.max_rows, clock=self._clock)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._active)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._scheduler.num_waiting

    @property
    def num_free_rows(self) -> int:
        """Rows that nobody holds."""
        return self._scheduler.max_rows - len(self._scheduler.running)

    def add(self, request: ActiveRequest) -> None:
        """Takes a request; its events go to its stream from now on."""
        self._active[request.sequence] = request
        self._by_stream[request.stream] = request
        self._arrived.append(request)
        self._scheduler.add(request.sequence, request.submitted)
        if request.prepared.deadline is not None:
            entry = (request.prepared.deadline, next(self._numbers), request)
            heapq.heappush(self._deadlines, entry)
        if request.stream.cancelled:  # before the engine knew of it
            self.cancel(request.stream)

    def cancel(self, stream: RequestStream) -> None:
        """Ends the stream's request, waiting or running, if it has not ended."""
        request = self._by_stream.get(stream)
        if request is not None:
            self._finish(request, FinishReason.CANCELLED, note="cancelled by the caller")

    def step(self) -> bool:
        """Computes one batch: drop who has ended, decide, plan, run, and advance each row.

        Returns:
            False where nothing could be computed: nobody is here, or all wait for memory that
            other models hold.
        """
        now = self._clock()
        self._end_expired(now)
        for action in self._scheduler.decide(now):
            self._carry_out(action)
        self._count_outcomes()
        plan = self._scheduler.plan()
        if not plan:
            return False
        result, start, end = self._run(plan)
        if result is None:
            return True
        self._scheduler.observe(plan, end - start)
        spans = _step_spans(plan, start, end)
        for planned, output, span in zip(plan, result.rows, spans, strict=True):
            request = self._active[planned.sequence]
            request.timeline.spans.append(span)
            try:
                self._advance(request, planned, output)
            except Exception as error:  # one row's fault is its own
                self._finish(request, FinishReason.ERROR, error=as_typed(error))
        self._count_step(plan, self._clock() - now, result.timings.compute)
        return True

    def fail_all(self, error: TokenmillError) -> None:
        """Ends every request with the error; the engine can be used further."""
        for request in list(self._active.values()):
            self._finish(request, FinishReason.ERROR, error=error)

    def shutdown(self) -> None:
        """Cancels what runs and releases the model."""
        for request in list(self._active.values()):
            self._finish(request, FinishReason.CANCELLED, note="the engine was shut down")
        self._scheduler.close()
        self._backend.shutdown()

    def check_integrity(self) -> None:
        """Raises AssertionError where the accounts of engine, scheduler and backend differ."""
        self._scheduler.check_integrity()
        self._backend.check_integrity()
        running = set(self._scheduler.running)
        assert running <= set(self._active), "only live requests run"
        for sequence, request in self._active.items():
            assert (sequence.backend_id is not None) == (sequence in running), sequence.request_id
            if sequence in running:
                length = self._backend.length(_id(sequence))
                assert length == sequence.num_computed_tokens <= sequence.reserved
                assert request.copy is None, "a running request has no copy"
        copies = sum(request.copy is not None for request in self._active.values())
        assert copies == self._scheduler.num_copies, "the scheduler knows of every copy"

    def _end_expired(self, now: float) -> None:
        for sequence in list(self._scheduler.running):
            request = self._active[sequence]
            if request.stream.cancelled:
                self._finish(request, FinishReason.CANCELLED, note="cancelled by the caller")
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.sequence in self._active:
                self._finish(request, FinishReason.DEADLINE, note="the timeout was reached")

    def _carry_out(self, action: Action) -> None:
        request = self._active.get(action.sequence)
        if request is None:  # it ended with an earlier action
            return
        try:
            match action:
                case Start(length=length):
                    self._start(request, length)
                case Grow(sequence=sequence, length=length):
                    self._backend.reserve(_id(sequence), length)
                case Park(keeps=keeps):
                    self._park(request, keeps=keeps)
                case Drop():
                    request.copy = None
                case Refuse():
                    raise OutOfMemory(
                        "the request does not fit any more",
                        why="memory that states could have went to something else meanwhile, "
                        "such as another model's weights",
                        fix="Ask for less, or give this model a memory_budget",
                    )
        except Exception as error:
            self._finish(request, FinishReason.ERROR, error=as_typed(error))

    def _start(self, request: ActiveRequest, length: int) -> None:
        sequence, timeline, now = request.sequence, request.timeline, self._clock()
        if not request.has_started:
            request.has_started = True
            timeline.add("queue", request.submitted, now)
            self.metrics.started(now - request.submitted)
        elif request.parked_since is not None:
            kept = 0 if request.copy is None else request.copy.stop
            timeline.add("parked", request.parked_since, now, kept_tokens=kept)
            request.parked_since = None
            self._num_parked -= 1
        with timeline.span("admit", reserved_tokens=length):
            sequence.backend_id = self._backend.open()
            self._backend.reserve(sequence.backend_id, length)
        now = self._clock()
        copy, request.copy = request.copy, None
        if copy is not None:
            self._backend.import_pages(sequence.backend_id, copy)
            sequence.num_computed_tokens = copy.stop
            self._costs.observe_copy(copy.nbytes, self._clock() - now)
        timeline.add("recall", now, self._clock(), cached_tokens=0)

    def _park(self, request: ActiveRequest, *, keeps: bool) -> None:
        sequence, start = request.sequence, self._clock()
        backend_id = _id(sequence)
        if keeps:
            request.copy = self._backend.export_pages(backend_id, 0, sequence.num_computed_tokens)
            self._costs.observe_copy(request.copy.nbytes, self._clock() - start)
        self._backend.close(backend_id)
        sequence.backend_id, sequence.num_computed_tokens = None, 0
        request.parked_since = start
        self._num_parked += 1
        self.metrics.preempted("swap" if keeps else "replay")

    def _run(self, plan: SequenceOf[PlannedRow]) -> tuple[StepResult | None, float, float]:
        """Runs the step; where the backend fails as a whole, so do the requests of the step."""
        rows = [self._row(planned) for planned in plan]
        start = self._clock()
        try:
            result = self._backend.run(rows)
        except Exception as error:
            for planned in plan:
                request = self._active[planned.sequence]
                self._finish(request, FinishReason.ERROR, error=as_typed(error))
            return None, start, self._clock()
        return result, start, self._clock()

    def _row(self, planned: PlannedRow) -> Row:
        sequence = planned.sequence
        begin = sequence.num_computed_tokens
        return Row(
            sequence=_id(sequence),
            tokens=sequence.tokens[begin : begin + planned.num_tokens],
            logits=Logits.LAST if planned.samples else Logits.NONE,
            cancelled=self._active[sequence].stream.is_cancelled,
        )

    def _advance(self, request: ActiveRequest, planned: PlannedRow, output: RowOutput) -> None:
        sequence = planned.sequence
        if isinstance(output.error, Cancelled):
            self._finish(request, FinishReason.CANCELLED, note="cancelled by the caller")
            return
        if output.error is not None:
            raise output.error
        self._backend.commit(_id(sequence), planned.num_tokens)
        sequence.num_computed_tokens += planned.num_tokens
        self._count_computed(request, planned.num_tokens)
        if not planned.samples:
            return
        assert output.logits is not None, "a row that asks for logits and has no error has them"
        prepared = request.prepared
        token = draw(
            output.logits[-1],
            sequence.tokens,
            processors=prepared.request.logits_processors,
            sampler=prepared.request.sampler,
            params=prepared.sampling,
        )
        sequence.tokens.append(token)
        self._count_token(request)
        emission = request.output.push(token)
        if emission.reason is not None:
            self._finish(request, emission.reason, text=emission.text, ids=emission.token_ids)
        elif emission.text or emission.token_ids:
            request.stream.put(GenerateEvent(emission.text, emission.token_ids))

    def _finish(
        self,
        request: ActiveRequest,
        reason: FinishReason,
        *,
        text: str = "",
        ids: tuple[int, ...] = (),
        note: str = "",
        error: TokenmillError | None = None,
    ) -> None:
        """Stations 7 and 8: releases the state, then tells the reader."""
        sequence, timeline = request.sequence, request.timeline
        start = time.perf_counter()
        if reason in (FinishReason.CANCELLED, FinishReason.DEADLINE):
            text += request.output.flush()
        del self._active[sequence]
        del self._by_stream[request.stream]
        self._scheduler.remove(sequence)
        if request.parked_since is not None:
            self._num_parked -= 1
        request.copy = None
        timeline.add("finish", start, time.perf_counter(), reason=reason.value)
        if sequence.backend_id is not None:
            with timeline.span("keep", kept_tokens=0, released_tokens=sequence.num_computed_tokens):
                self._close(sequence)
        timeline.content = _content(request)
        timeline.end = time.perf_counter()
        usage = request.output.usage
        self.metrics.finished(reason.value, usage.prompt_tokens, usage.completion_tokens)
        self._count_finish()
        if len(self._deadlines) > 2 * len(self._active) + _SPARE_DEADLINES:
            self._deadlines = [
                entry for entry in self._deadlines if entry[2].sequence in self._active
            ]
            heapq.heapify(self._deadlines)
        finish = Finish(reason, usage, note or _cap_note(request, reason), error)
        request.stream.put(GenerateEvent(text, ids, finish=finish))

    def _close(self, sequence: Sequence) -> None:
        backend_id, sequence.backend_id = _id(sequence), None
        try:
            self._backend.close(backend_id)
        except Exception:
            # The reader must hear of the end all the same, and others must go on.
            _log.exception("the state of request %s was not released", sequence.request_id)

    def _count_outcomes(self) -> None:
        """Counts, once a request, how admission decided at its first look."""
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            if request.prepared.cap is not None:
                self.metrics.capped()
            elif request.has_started:
                self.metrics.admitted()
            elif request.sequence in self._active:  # else it ended before anything was decided
                self.metrics.queued(self._scheduler.waiting_for)

    def _count_computed(self, request: ActiveRequest, tokens: int) -> None:
        """Tells work that is done for the first time from work that is done again."""
        computed = request.sequence.num_computed_tokens
        new = max(0, computed - request.served_tokens)
        if new < tokens:
            self.metrics.replayed(tokens - new)
        if new:
            request.served_tokens = computed
            self._scheduler.served(request.sequence, new)

    def _count_token(self, request: ActiveRequest) -> None:
        now = self._clock()
        if request.last_token is None:
            request.timeline.first_token = time.perf_counter()
            self.metrics.first_token(now - request.submitted)
        else:
            self._gaps.append(now - request.last_token)
        request.last_token = now

    def _count_step(self, plan: SequenceOf[PlannedRow], seconds: float, run_seconds: float) -> None:
        prompts = [planned for planned in plan if planned.is_prefill]
        self.metrics.stepped(
            decode_rows=len(plan) - len(prompts),
            prefill_rows=len(prompts),
            prefill_tokens=sum(planned.num_tokens for planned in prompts),
            seconds=seconds,
            run_seconds=run_seconds,
        )
        self.metrics.next_tokens(self._gaps)
        self._gaps.clear()

    def _count_finish(self) -> None:
        now = self._clock()
        if self._last_finish is not None:
            latest = now - self._last_finish
            self.seconds_per_finish += 0.1 * (latest - self.seconds_per_finish)
        self._last_finish = now

    def _gauges(self) -> Gauges:
        """Returns figures of the moment; called by other threads, and exact between two steps."""
        scheduler, parked = self._scheduler, self._num_parked
        running = list(scheduler.running)
        waiting = max(0, scheduler.num_waiting - parked)
        reason = scheduler.waiting_for or "turn"
        return Gauges(
            running=len(running),
            waiting={reason: waiting} if waiting else {},
            parked=parked,
            reserved_bytes=scheduler.account.held,
            budget_bytes=scheduler.account.available,
            committed_bytes=scheduler.committed_bytes(),
        )


def _id(sequence: Sequence) -> SequenceId:
    assert sequence.backend_id is not None, "only admitted sequences are in the backend"
    return sequence.backend_id


def _step_spans(plan: SequenceOf[PlannedRow], start: float, end: float) -> list[Span]:
    """Returns each row's span of a step; decoding rows share one, which never changes."""
    decode = Span("decode", start, end, {"tokens": 1, "rows": len(plan)})
    return [
        Span("prefill", start, end, {"tokens": planned.num_tokens, "rows": len(plan)})
        if planned.is_prefill
        else decode
        for planned in plan
    ]


def _cap_note(request: ActiveRequest, reason: FinishReason) -> str:
    """Tells that admission lowered the ceiling, where that can have made a difference."""
    cap = request.prepared.cap
    return cap if cap is not None and reason is FinishReason.LENGTH else ""


def _content(request: ActiveRequest) -> dict[str, object]:
    prepared = request.prepared
    sampling, stop = prepared.sampling, prepared.request.stop
    prompt = len(prepared.prompt_ids)
    return {
        "prompt_token_ids": list(prepared.prompt_ids),
        "token_ids": request.sequence.tokens[prompt:],
        "sampling": {name: getattr(sampling, name) for name in sampling.__slots__},
        "stop": list(stop.texts),
        "stop_token_ids": sorted(stop.token_ids),
        "ignore_eos": stop.ignore_eos,
        "max_tokens": prepared.max_tokens,
        "has_callables": bool(prepared.request.logits_processors or prepared.request.sampler),
    }


def as_typed(error: BaseException) -> TokenmillError:
    """Returns the error itself where it is typed, else a `BackendError` that tells of it."""
    if isinstance(error, TokenmillError):
        return error
    return BackendError(
        "a step failed", why=f"{type(error).__name__}: {error}", fix="The next request may work"
    )
