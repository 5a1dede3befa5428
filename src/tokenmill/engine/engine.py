"""The loop: each step computes one batch and carries every request in it one token further."""

from __future__ import annotations

import time

from tokenmill.backends.base import DecodeBackend
from tokenmill.core.errors import BackendError, Cancelled, TokenmillError
from tokenmill.core.events import Finish, FinishReason, GenerateEvent
from tokenmill.core.rows import Logits, Row, RowOutput
from tokenmill.engine.output import Output
from tokenmill.engine.prepare import PreparedRequest
from tokenmill.engine.streams import RequestStream
from tokenmill.sampling.sampler import sample
from tokenmill.scheduler.planner import PlannedRow
from tokenmill.scheduler.scheduler import Scheduler
from tokenmill.scheduler.sequence import Sequence
from tokenmill.telemetry.timeline import Timeline
from tokenmill.text.detokenizer import Detokenizer


class ActiveRequest:
    """A request inside the engine: its sequence, its output and its reader."""

    __slots__ = ("output", "prepared", "sequence", "stream", "submitted")

    def __init__(
        self, prepared: PreparedRequest, detokenizer: Detokenizer | None, stream: RequestStream
    ) -> None:
        self.prepared = prepared
        self.sequence = Sequence(prepared.request.id, prepared.prompt_ids)
        self.output = Output(prepared, detokenizer)
        self.stream = stream
        self.submitted = time.perf_counter()

    @property
    def timeline(self) -> Timeline:
        """The request's timeline."""
        return self.prepared.timeline


class Engine:
    """Owns the scheduler and the backend. Used by one thread; see `EngineThread`.

    Args:
        backend: a loaded model's backend; the engine closes it.
        prefill_tokens: most prompt tokens in a step, at least 2.
        max_stretch: see `Scheduler`.
    """

    def __init__(
        self,
        backend: DecodeBackend,
        *,
        prefill_tokens: int = 512,
        max_stretch: float | None = None,
    ) -> None:
        self._backend = backend
        self._scheduler = Scheduler(backend.limits.max_rows, prefill_tokens, max_stretch)
        self._active: dict[Sequence, ActiveRequest] = {}

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._active)

    def add(self, request: ActiveRequest) -> None:
        """Takes a request; its events go to its stream from now on."""
        self._active[request.sequence] = request
        self._scheduler.add(request.sequence)

    def step(self) -> None:
        """Computes one batch: drop who has ended, admit, plan, run, and advance each row."""
        self._drop_ended()
        self._admit()
        plan = self._scheduler.plan()
        if not plan:
            return
        start = time.perf_counter()
        result = self._backend.run([self._row(planned) for planned in plan])
        end = time.perf_counter()
        self._scheduler.observe(plan, end - start)
        for planned, output in zip(plan, result.rows, strict=True):
            request = self._active[planned.sequence]
            self._record(request, planned, start, end, rows=len(plan))
            try:
                self._advance(request, planned, output)
            except TokenmillError as error:
                self._finish(request, FinishReason.ERROR, error=error)

    def fail_all(self, error: TokenmillError) -> None:
        """Ends every request with the error; the engine can be used further."""
        for request in list(self._active.values()):
            self._finish(request, FinishReason.ERROR, error=error)

    def shutdown(self) -> None:
        """Cancels what runs and releases the model."""
        for request in list(self._active.values()):
            self._finish(request, FinishReason.CANCELLED, note="the engine was shut down")
        self._backend.shutdown()

    def _drop_ended(self) -> None:
        now = time.perf_counter()
        for request in list(self._active.values()):
            deadline = request.prepared.deadline
            if request.stream.cancelled:
                self._finish(request, FinishReason.CANCELLED, note="cancelled by the caller")
            elif deadline is not None and now >= deadline:
                self._finish(request, FinishReason.DEADLINE, note="the timeout was reached")

    def _admit(self) -> None:
        while (sequence := self._scheduler.admit()) is not None:
            request, timeline = self._active[sequence], self._active[sequence].timeline
            timeline.add("queue", request.submitted, time.perf_counter())
            whole = sequence.num_prompt_tokens + request.prepared.max_tokens
            try:
                with timeline.span("admit", reserved_tokens=whole):
                    sequence.backend_id = self._backend.open()
                    self._backend.reserve(sequence.backend_id, whole)
            except TokenmillError as error:
                self._finish(request, FinishReason.ERROR, error=error)
                continue
            now = time.perf_counter()
            timeline.add("recall", now, now, cached_tokens=0)

    def _row(self, planned: PlannedRow) -> Row:
        sequence = planned.sequence
        assert sequence.backend_id is not None, "only admitted sequences are planned"
        begin = sequence.num_computed_tokens
        return Row(
            sequence=sequence.backend_id,
            tokens=sequence.tokens[begin : begin + planned.num_tokens],
            logits=Logits.LAST if planned.samples else Logits.NONE,
            cancelled=self._active[sequence].stream.is_cancelled,
        )

    def _record(
        self, request: ActiveRequest, planned: PlannedRow, start: float, end: float, *, rows: int
    ) -> None:
        name = "prefill" if planned.sequence.is_prefilling else "decode"
        request.timeline.add(name, start, end, tokens=planned.num_tokens, rows=rows)

    def _advance(self, request: ActiveRequest, planned: PlannedRow, output: RowOutput) -> None:
        sequence = planned.sequence
        assert sequence.backend_id is not None, "only admitted sequences are planned"
        if isinstance(output.error, Cancelled):
            self._finish(request, FinishReason.CANCELLED, note="cancelled by the caller")
            return
        if output.error is not None:
            raise output.error
        self._backend.commit(sequence.backend_id, planned.num_tokens)
        sequence.num_computed_tokens += planned.num_tokens
        if not planned.samples:
            return
        assert output.logits is not None, "a row that asks for logits and has no error has them"
        position = len(sequence.tokens)
        token = sample(output.logits[-1], request.prepared.sampling, position=position)
        sequence.tokens.append(token)
        if request.timeline.first_token is None:
            request.timeline.first_token = time.perf_counter()
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
        self._scheduler.remove(sequence)
        timeline.add("finish", start, time.perf_counter(), reason=reason.value)
        if sequence.backend_id is not None:
            with timeline.span("keep", kept_tokens=0, released_tokens=sequence.num_computed_tokens):
                self._backend.close(sequence.backend_id)
                sequence.backend_id = None
        timeline.content = _content(request)
        timeline.end = time.perf_counter()
        finish = Finish(reason, request.output.usage, note, error)
        request.stream.put(GenerateEvent(text, ids, finish=finish))


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
    }


def as_typed(error: BaseException) -> TokenmillError:
    """Returns the error itself where it is typed, else a `BackendError` that tells of it."""
    if isinstance(error, TokenmillError):
        return error
    return BackendError(
        "a step failed", why=f"{type(error).__name__}: {error}", fix="The next request may work"
    )
