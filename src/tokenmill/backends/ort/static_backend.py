"""`DecodeBackend` on ONNX Runtime, for graphs that write caches of a fixed size where told."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.backends.base import BackendLimits, MultiTokenRows, Numerics, Rewind
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.ort.buckets import bucket, next_capacity
from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.calls import Company, PlannedRow, plan_calls
from tokenmill.backends.ort.numerics import declared_numerics
from tokenmill.backends.ort.row_backend import FEATURES, RowBackend, state_fingerprint
from tokenmill.backends.ort.slot_call import compute_in_rows
from tokenmill.backends.ort.slot_sequences import SlotSequence, SlotSequences
from tokenmill.backends.ort.static_session import open_static_session
from tokenmill.package.model_package import ModelPackage

_NUMERICS = Numerics(
    # Measured on ONNX Runtime 1.32 with fp32, 4-bit and 8-bit weights; tests repeat it.
    batch_invariant=True,
    chunk_invariant_from=2,
    # Products with one row sum in another order than those with several.
    decode_equals_prefill=False,
    thread_invariant=True,
)


class StaticBackend(RowBackend[SlotSequence]):
    """One ONNX Runtime session over rows of caches. See `DecodeBackend`.

    Each open sequence owns a row, and the rows of a call lie side by side, as in `OrtBackend`.
    What attention costs follows the caches' capacity, not the lengths. So where the graph leaves
    it open, rows are laid out for 256 tokens, and for twice that whenever one outgrows it.

    Args:
        package: its decoder's state layout is STATIC_CACHE.
        config: see `BackendConfig`.
        rewritten: the decoder's graph; None rewrites it.

    Raises:
        UnsupportedModel: a graph without write indices or lengths, state of a type that is not
            supported, or one that the runtime computes wrongly.
        ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`.
    """

    def __init__(
        self, package: ModelPackage, config: BackendConfig, rewritten: Rewritten | None = None
    ) -> None:
        opened = open_static_session(package, config, rewritten)
        self._stepper, self._slots, self._fixed = opened.stepper, opened.slots, opened.fixed
        self._company = Company(
            alone=not opened.abilities.company, ragged=True, capacity=self._slots.max_context
        )
        self._rows = SlotSequences(self._slots)
        ragged = opened.abilities.company
        limits = BackendLimits(
            max_rows=config.max_rows,
            max_context=self._slots.max_context,
            bytes=self._slots.committed_bytes,
            multi_token_rows=MultiTokenRows.RAGGED if ragged else MultiTokenRows.SOLO,
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=FEATURES,
            numerics=declared_numerics(opened.session, _NUMERICS, package.decoder.file),
            fingerprint=state_fingerprint(
                package, opened.session, opened.ports, self._slots.geometry
            ),
        )
        super().__init__(package, opened.session, self._rows, limits, opened.notes)

    def _layout(self) -> str:
        rows, context = self.limits.max_rows, self.limits.max_context
        first = context if self._fixed else bucket(1, context)
        if first == context:
            return f"static caches, {rows} rows of {context:,} tokens"
        return f"static caches, {rows} rows of {first:,} tokens, growing up to {context:,}"

    def _plan(self, rows: Sequence[PlannedRow]) -> list[list[int]]:
        return plan_calls(rows, self._company)

    def _start(self, states: Sequence[SlotSequence], calls: Sequence[Sequence[CallRow]]) -> None:
        if not self._fixed:
            reached = [
                max(row.past for row in call) + max(len(row.tokens) for row in call)
                for call in calls
            ]
            longest = min(max([self._rows.longest(), *reached]), self.limits.max_context)
            capacity = next_capacity(self._slots.capacity, longest, self.limits.max_context)
            if capacity != self._slots.capacity:
                self._slots.lay_out(capacity)
        self._stepper.start(calls)

    def _compute(
        self, states: Sequence[SlotSequence], rows: Sequence[CallRow]
    ) -> CallResult | None:
        # First chunks can as well go one by one; others cannot, each call reads all weights.
        max_moved = 0 if all(len(row.tokens) > 1 and not row.past for row in rows) else None
        if not self._rows.side_by_side(states, max_moved):
            return None
        return compute_in_rows(self._stepper, states, rows)

    def _release(self) -> None:
        del self._stepper
