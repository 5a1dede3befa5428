"""What all backends on ONNX Runtime share, whatever the layout of their state."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Generic

import onnxruntime

from tokenmill.backends.base import BackendLimits, BackendReport, EncoderState
from tokenmill.backends.graph.rewrite import REWRITER_VERSION
from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.calls import PlannedRow
from tokenmill.backends.ort.claims import read_claims
from tokenmill.backends.ort.huge_pages import HugePages
from tokenmill.backends.ort.numerics import provider_identity
from tokenmill.backends.ort.pages import PageGeometry, check_block, make_block
from tokenmill.backends.ort.sequences import Sequences, State
from tokenmill.backends.ort.step_ports import StepPorts
from tokenmill.backends.row_checks import refuse_unsupported, row_fault, wanted_offsets
from tokenmill.core.errors import Cancelled, Closed, InvalidRequest, OutOfMemory, Unsupported
from tokenmill.core.ids import Fingerprint, SequenceId
from tokenmill.core.pages import PageBlock, PageHandle, StateBlock
from tokenmill.core.rows import Row, RowOutput, StepResult, StepTimings
from tokenmill.package.model_package import ModelPackage

FEATURES = frozenset({"fork", "logits_all"})

_STEPS_BEFORE_HUGE_PAGES = 256
"""A model that answers one question is done by then."""


class RowBackend(ABC, Generic[State]):
    """`DecodeBackend` but for how rows are computed, which is the layout's affair.

    Rows are checked, cut into calls and computed; faults stay with their rows.

    Args:
        package: whose decoder runs.
        session: of the decoder.
        sequences: the open sequences with their state.
        limits: see `BackendLimits`.
        rewrites: see `BackendReport`.
    """

    def __init__(
        self,
        package: ModelPackage,
        session: onnxruntime.InferenceSession,
        sequences: Sequences[State],
        limits: BackendLimits,
        rewrites: Sequence[str],
    ) -> None:
        self.limits = limits
        self._session, self._sequences = session, sequences
        self._vocab_size, self._rewrites = package.vocab_size, tuple(rewrites)
        self._is_shut_down = False
        self._huge_pages = HugePages()
        self._steps_until_huge_pages = _STEPS_BEFORE_HUGE_PAGES

    @abstractmethod
    def _layout(self) -> str:
        """Returns how state is kept, in one phrase."""

    @abstractmethod
    def _plan(self, rows: Sequence[PlannedRow]) -> list[list[int]]:
        """Returns the row indices of each call."""

    @abstractmethod
    def _start(self, states: Sequence[State], calls: Sequence[Sequence[CallRow]]) -> None:
        """Begins a step of these sequences, of at most these calls; earlier logits are invalid."""

    @abstractmethod
    def _compute(self, states: Sequence[State], rows: Sequence[CallRow]) -> CallResult | None:
        """Computes one call; None where its rows had better be computed one by one."""

    @abstractmethod
    def _release(self) -> None:
        """Lets go of all that holds the session."""

    def report(self) -> BackendReport:
        """See `DecodeBackend.report`."""
        if self._is_shut_down:
            raise Closed("the backend is shut down")
        return BackendReport("ort", self._layout(), self._rewrites, read_claims(self._session))

    def open(self, encoder_state: EncoderState | None = None) -> SequenceId:
        """See `DecodeBackend.open`."""
        if encoder_state is not None:
            raise Unsupported("this backend does not support 'encoder_state'")
        if self._is_shut_down:
            raise Closed("the backend is shut down")
        return self._sequences.open()

    def length(self, sequence: SequenceId) -> int:
        """See `DecodeBackend.length`."""
        return self._sequences.find(sequence).length

    def reserve(self, sequence: SequenceId, length: int) -> None:
        """See `DecodeBackend.reserve`. There is room for the whole context in every sequence."""
        self._sequences.find(sequence)
        if length > self.limits.max_context:
            raise OutOfMemory(
                f"there is no room for {length} tokens in one sequence",
                why=f"a row holds {self.limits.max_context}",
                fix="Raise max_context, if the model allows it",
            )

    def run(self, rows: Sequence[Row]) -> StepResult:
        """See `DecodeBackend.run`."""
        began = perf_counter()
        states = [self._sequences.find(row.sequence) for row in rows]
        for row in rows:
            refuse_unsupported(row, FEATURES)
        if len({row.sequence for row in rows}) != len(rows):
            raise InvalidRequest("a sequence stands in more than one row of a step")
        self._sequences.discard_pending()
        outputs: dict[int, RowOutput] = {}
        work: dict[int, CallRow] = {}
        for i, (row, state) in enumerate(zip(rows, states, strict=True)):
            fault = row_fault(row, state.length, self.limits.max_context, self._vocab_size)
            if fault is None:
                work[i] = CallRow(row.tokens, state.length, wanted_offsets(row))
            else:
                outputs[i] = RowOutput(error=fault)
        calls = self._plan([PlannedRow(i, row.past, len(row.tokens)) for i, row in work.items()])
        self._start([states[i] for i in work], [[work[i] for i in members] for members in calls])
        compute, num_calls = 0.0, 0
        while calls:
            members = calls.pop(0)
            for i in members:
                if rows[i].cancelled():
                    outputs[i] = RowOutput(error=Cancelled("the row was cancelled"))
            members = [i for i in members if i not in outputs]
            if not members:
                continue
            result = self._compute([states[i] for i in members], [work[i] for i in members])
            if result is None:
                calls[:0] = [[i] for i in members]
                continue
            compute += result.seconds
            num_calls += 1
            for i, logits in zip(members, result.logits, strict=True):
                outputs[i] = RowOutput(logits=logits)
        self._steps_until_huge_pages -= 1
        if self._steps_until_huge_pages == 0:
            self._huge_pages.start()
        timings = StepTimings(perf_counter() - began, compute, num_calls)
        return StepResult([outputs[i] for i in range(len(rows))], timings)

    def commit(self, sequence: SequenceId, n: int) -> None:
        """See `DecodeBackend.commit`. More than the last run computed raises `InvalidRequest`."""
        state = self._sequences.find(sequence)
        if not 0 <= n <= state.pending:
            raise InvalidRequest(
                f"cannot commit {n} tokens", why=f"the last run computed {state.pending}"
            )
        self._sequences.commit(state, n)

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """See `DecodeBackend.truncate`."""
        state = self._sequences.find(sequence)
        state.check_range(0, length)
        self._sequences.truncate(state, length)

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """See `DecodeBackend.fork`."""
        state = self._sequences.find(sequence)
        state.check_range(0, length)
        return self._sequences.fork(state, length)

    def pin(self, sequence: SequenceId, start: int, stop: int) -> PageHandle:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'pin'", why="its rows share no pages")

    def attach(self, sequence: SequenceId, handle: PageHandle) -> None:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'attach'", why="its rows share no pages")

    def export_pages(self, sequence: SequenceId, start: int, stop: int) -> PageBlock:
        """See `DecodeBackend.export_pages`. Arrays are as `pages.PageGeometry` says."""
        state = self._sequences.find(sequence)
        state.check_range(start, stop)
        arrays = self._sequences.read(state, start, stop)
        return make_block(self._sequences.geometry, arrays, start, stop, self.limits.fingerprint)

    def import_pages(self, sequence: SequenceId, block: PageBlock) -> None:
        """See `DecodeBackend.import_pages`."""
        state = self._sequences.find(sequence)
        check_block(
            self._sequences.geometry,
            block,
            state.length,
            self.limits.max_context,
            self.limits.fingerprint,
        )
        arrays = [layer.array for layer in block.layers]
        self._sequences.append(state, arrays, block.stop - block.start)

    def snapshot(self, sequence: SequenceId) -> StateBlock:
        """Not supported: there is no state but keys and values."""
        raise Unsupported("this backend does not support 'snapshot'")

    def restore(self, sequence: SequenceId, block: StateBlock) -> None:
        """Not supported: there is no state but keys and values."""
        raise Unsupported("this backend does not support 'snapshot'")

    def close(self, sequence: SequenceId) -> None:
        """See `DecodeBackend.close`."""
        self._sequences.close(sequence)

    def shutdown(self) -> None:
        """See `DecodeBackend.shutdown`. A second call does nothing."""
        if not self._is_shut_down:
            self._huge_pages.stop()
            self._sequences.close_all()
            self._is_shut_down = True
            self._release()
            del self._session

    def check_integrity(self) -> None:
        """See `DecodeBackend.check_integrity`."""
        self._sequences.check_integrity()


def state_fingerprint(
    package: ModelPackage,
    session: onnxruntime.InferenceSession,
    ports: StepPorts,
    geometry: Sequence[PageGeometry],
) -> Fingerprint:
    """Returns the fingerprint of all state that such a session makes."""
    rewrites = ("rows", ports.chosen is not None, "lengths", ports.lengths is not None)
    arrays = [(like.kind, like.layer, like.layout, like.heads, like.dim) for like in geometry]
    parts = (
        package.fingerprint,
        package.state.layout.value,
        ("ort", onnxruntime.__version__, *provider_identity(session)),
        (REWRITER_VERSION, *rewrites),
        arrays,
        [str(like.dtype) for like in geometry],
    )
    return Fingerprint(hashlib.sha256(repr(parts).encode()).hexdigest())
