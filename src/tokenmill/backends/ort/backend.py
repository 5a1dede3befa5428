"""`DecodeBackend` on ONNX Runtime, for graphs whose past and present are one buffer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from time import perf_counter

import onnxruntime

from tokenmill.backends.base import (
    BackendLimits,
    EncoderState,
    MultiTokenRows,
    Numerics,
    Rewind,
)
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.graph.ports import DecoderPorts
from tokenmill.backends.graph.rewrite import REWRITER_VERSION, rewrite
from tokenmill.backends.ort.binding import StepPorts, step_ports
from tokenmill.backends.ort.calls import PlannedRow, plan_calls
from tokenmill.backends.ort.huge_pages import HugePages
from tokenmill.backends.ort.pages import LAYOUT, check_block, export_block
from tokenmill.backends.ort.sequences import SequenceTable
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.stepper import CallRow, Stepper
from tokenmill.backends.row_checks import refuse_unsupported, row_fault, wanted_offsets
from tokenmill.core.errors import (
    Cancelled,
    Closed,
    InvalidRequest,
    OutOfMemory,
    Unsupported,
    UnsupportedModel,
)
from tokenmill.core.ids import Fingerprint, SequenceId
from tokenmill.core.pages import PageBlock, PageHandle, StateBlock
from tokenmill.core.rows import Row, RowOutput, StepResult, StepTimings
from tokenmill.package.model_package import ModelPackage, Role, StateLayout

_STEPS_BEFORE_HUGE_PAGES = 256
"""A model that answers one question is done by then."""

_FEATURES = frozenset({"fork", "logits_all"})

_NUMERICS = Numerics(
    # Measured on ONNX Runtime 1.31 and 1.32 with fp32, 4-bit and 8-bit weights; tests repeat it.
    batch_invariant=True,
    chunk_invariant_from=2,
    # Attention of one new token sums in another order than that of several.
    decode_equals_prefill=False,
    thread_invariant=True,
)


class OrtBackend:
    """One ONNX Runtime session over rows of key-value memory. See `DecodeBackend`.

    Each open sequence owns a row. The rows of a call must lie side by side; where they do not,
    the fewest tokens possible are moved first.

    Args:
        package: its decoder's state layout must be SHARED_BUFFER.
        config: see `BackendConfig`.

    Raises:
        UnsupportedModel: another layout, or state of a type that is not supported.
        ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`.
    """

    def __init__(self, package: ModelPackage, config: BackendConfig) -> None:
        layout, decoder = package.state.layout, package.decoder
        if layout is not StateLayout.SHARED_BUFFER:
            raise UnsupportedModel(
                f"the ort backend does not run state of the layout {layout.value!r}",
                why="it writes keys and values in place",
                fix="Use the reference backend",
            )
        mask = decoder.find(Role.ATTENTION_MASK)
        names = DecoderPorts(decoder.port(Role.LOGITS).name, None if mask is None else mask.name)
        graph = rewrite(decoder.file, names, config.cache_dir)
        session = open_session(package, config, graph)
        ports = step_ports(decoder, session)
        max_context = min(package.context_length, config.max_context or package.context_length)
        self._slots = Slots(package.state.attention, config.max_rows, max_context)
        self._stepper = Stepper(session, ports, self._slots, package.vocab_size)
        self._sequences = SequenceTable(self._slots)
        self._vocab_size = package.vocab_size
        self._is_shut_down = False
        self._huge_pages = HugePages()
        self._steps_until_huge_pages = _STEPS_BEFORE_HUGE_PAGES
        self.limits = BackendLimits(
            max_rows=config.max_rows,
            max_context=max_context,
            bytes=self._slots.committed_bytes,
            multi_token_rows=MultiTokenRows.FIRST_CHUNK_RAGGED,
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=_FEATURES,
            numerics=_NUMERICS,
            fingerprint=_fingerprint(package, session.get_providers(), ports),
        )

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
        """See `DecodeBackend.reserve`. Every row has room for the whole context."""
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
            refuse_unsupported(row, _FEATURES)
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
        calls = plan_calls([PlannedRow(i, row.past, len(row.tokens)) for i, row in work.items()])
        self._stepper.start([[work[i] for i in members] for members in calls])
        compute, num_calls = 0.0, 0
        while calls:
            members = calls.pop(0)
            for i in members:
                if rows[i].cancelled():
                    outputs[i] = RowOutput(error=Cancelled("the row was cancelled"))
            members = [i for i in members if i not in outputs]
            if not members:
                continue
            # First chunks can as well go one by one; decoding rows cannot, each call reads all
            # weights.
            max_moved = 0 if len(work[members[0]].tokens) > 1 else None
            if not self._sequences.side_by_side([states[i] for i in members], max_moved):
                calls[:0] = [[i] for i in members]
                continue
            members.sort(key=lambda i: states[i].row)
            result = self._stepper.call(states[members[0]].row, [work[i] for i in members])
            compute += result.seconds
            num_calls += 1
            for i, logits in zip(members, result.logits, strict=True):
                outputs[i] = RowOutput(logits=logits)
                states[i].pending = len(rows[i].tokens)
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
        state.length += n
        state.pending = 0

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """See `DecodeBackend.truncate`. Whole pages behind `length` are given back."""
        state = self._sequences.find(sequence)
        state.check_range(0, length)
        state.length, state.pending = length, 0
        self._slots.shrink(state.row, length)

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """See `DecodeBackend.fork`. The state is copied."""
        state = self._sequences.find(sequence)
        state.check_range(0, length)
        forked = self._sequences.open()
        target = self._sequences.find(forked)
        self._slots.copy(state.row, target.row, length)
        target.length = length
        return forked

    def pin(self, sequence: SequenceId, start: int, stop: int) -> PageHandle:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'pin'", why="its rows share no pages")

    def attach(self, sequence: SequenceId, handle: PageHandle) -> None:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'attach'", why="its rows share no pages")

    def export_pages(self, sequence: SequenceId, start: int, stop: int) -> PageBlock:
        """See `DecodeBackend.export_pages`. Arrays are [heads, tokens, dim]."""
        state = self._sequences.find(sequence)
        state.check_range(start, stop)
        return export_block(self._slots, state.row, start, stop, self.limits.fingerprint)

    def import_pages(self, sequence: SequenceId, block: PageBlock) -> None:
        """See `DecodeBackend.import_pages`."""
        state = self._sequences.find(sequence)
        check_block(self._slots, block, state.length, self.limits.fingerprint)
        self._slots.write(state.row, block.start, [layer.array for layer in block.layers])
        state.length, state.pending = block.stop, 0

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
            del self._stepper

    def check_integrity(self) -> None:
        """See `DecodeBackend.check_integrity`."""
        self._sequences.check_integrity()


def _fingerprint(package: ModelPackage, providers: Sequence[str], ports: StepPorts) -> Fingerprint:
    rewrites = ("rows", ports.chosen is not None, "lengths", ports.lengths is not None)
    geometry = [(a.layer, a.num_kv_heads, a.head_dim, a.dtype) for a in package.state.attention]
    parts = (
        package.fingerprint,
        ("ort", onnxruntime.__version__, *providers),
        (REWRITER_VERSION, *rewrites),
        geometry,
        LAYOUT,
    )
    return Fingerprint(hashlib.sha256(repr(parts).encode()).hexdigest())
