"""`DecodeBackend` on ONNX Runtime, for graphs whose past and present are one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenmill.backends.base import BackendLimits, MultiTokenRows, Numerics, Rewind
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.context import context_of
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.calls import EQUALS, PADDED, PlannedRow, plan_calls
from tokenmill.backends.ort.numerics import declared_numerics
from tokenmill.backends.ort.placement import check_state_is_shared
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.backends.ort.row_backend import FEATURES, RowBackend, state_fingerprint
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.ort.slot_call import compute_in_rows
from tokenmill.backends.ort.slot_sequences import SlotSequence, SlotSequences
from tokenmill.backends.ort.slots import Slots
from tokenmill.backends.ort.step_ports import refuse_ports, step_ports
from tokenmill.backends.ort.stepper import Stepper
from tokenmill.core.errors import UnsupportedModel
from tokenmill.package.model_package import ModelPackage, StateLayout

_NUMERICS = Numerics(
    # Measured on ONNX Runtime 1.31 and 1.32 with fp32, 4-bit and 8-bit weights; tests repeat it.
    batch_invariant=True,
    chunk_invariant_from=2,
    # Attention of one new token sums in another order than that of several.
    decode_equals_prefill=False,
    thread_invariant=True,
)


class OrtBackend(RowBackend[SlotSequence]):
    """One ONNX Runtime session over rows of key-value memory. See `DecodeBackend`.

    Each open sequence owns a row. The rows of a call must lie side by side; where they do not,
    the fewest tokens possible are moved first. Where rows depend on the longest one of a call, only
    those of equal length share one.

    Args:
        package: its decoder's state layout must be SHARED_BUFFER, or the rewritten graph's.
        config: see `BackendConfig`.
        rewritten: the decoder's graph; None rewrites it.

    Raises:
        UnsupportedModel: another layout, or state of a type that is not supported.
        ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`.
    """

    def __init__(
        self, package: ModelPackage, config: BackendConfig, rewritten: Rewritten | None = None
    ) -> None:
        layout, decoder = package.state.layout, package.decoder
        rewritten = rewritten or rewrite_decoder(package, config)
        if layout is not StateLayout.SHARED_BUFFER and not rewritten.shares_buffers:
            raise UnsupportedModel(
                f"shared buffers do not hold state of the layout {layout.value!r}",
                why="the graph does not write keys and values in place",
                fix="Leave the choice to open_ort_backend",
            )
        session = open_session(package, config, rewritten.graph)
        ports = step_ports(decoder, session)
        refuse_ports(
            decoder, "shared_buffer", ports.write_indices, ports.kv_lengths, ports.use_cache
        )
        check_state_is_shared(session, (*ports.past, *ports.present))
        max_context = context_of(package, config.max_context)
        self._slots = Slots(package.state.attention, config.max_rows, max_context)
        self._company, numerics, several = PADDED, _NUMERICS, MultiTokenRows.FIRST_CHUNK_RAGGED
        if rewritten.rows_depend:
            self._company, several = EQUALS, MultiTokenRows.SOLO
            # A chunk is computed by how long the text is at its end, not by how long it will be.
            numerics = replace(_NUMERICS, chunk_invariant_from=None)
        self._stepper = Stepper(
            session, ports, self._slots, package.vocab_size, widens=not rewritten.rows_depend
        )
        self._rows = SlotSequences(self._slots)
        limits = BackendLimits(
            max_rows=config.max_rows,
            max_context=max_context,
            bytes=self._slots.committed_bytes,
            multi_token_rows=several,
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=FEATURES,
            numerics=declared_numerics(session, numerics, package.decoder.file),
            fingerprint=state_fingerprint(package, session, ports, self._slots.geometry),
        )
        super().__init__(package, session, self._rows, limits, rewritten.notes)

    def _layout(self) -> str:
        rows, context = self.limits.max_rows, self.limits.max_context
        apart = ", those of equal length together" if self._company == EQUALS else ""
        return f"shared buffers, {rows} rows of {context:,} tokens{apart}"

    def _plan(self, rows: Sequence[PlannedRow]) -> list[list[int]]:
        return plan_calls(rows, self._company)

    def _start(self, states: Sequence[SlotSequence], calls: Sequence[Sequence[CallRow]]) -> None:
        self._stepper.start(calls)

    def _compute(
        self, states: Sequence[SlotSequence], rows: Sequence[CallRow]
    ) -> CallResult | None:
        # First chunks can as well go one by one; decoding rows cannot, each call reads all
        # weights.
        max_moved = 0 if len(rows[0].tokens) > 1 else None
        if not self._rows.side_by_side(states, max_moved):
            return None
        return compute_in_rows(self._stepper, states, rows)

    def _release(self) -> None:
        del self._stepper
