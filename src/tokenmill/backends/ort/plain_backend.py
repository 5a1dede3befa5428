"""`DecodeBackend` on ONNX Runtime, for graphs whose present is their past with tokens appended."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.backends.base import BackendLimits, MultiTokenRows, Numerics, Rewind
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.context import context_of
from tokenmill.backends.graph.rewrite import Rewritten
from tokenmill.backends.ort.call_row import CallResult, CallRow
from tokenmill.backends.ort.calls import PlannedRow, plan_calls
from tokenmill.backends.ort.frame_sequences import FrameSequence, FrameSequences
from tokenmill.backends.ort.frames import FramePool
from tokenmill.backends.ort.numerics import declared_numerics
from tokenmill.backends.ort.plain_calls import PlainCalls
from tokenmill.backends.ort.plain_probe import probe_plain
from tokenmill.backends.ort.plain_stepper import PlainStepper
from tokenmill.backends.ort.rewriting import rewrite_decoder
from tokenmill.backends.ort.row_backend import FEATURES, RowBackend, state_fingerprint
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.ort.state_arrays import state_geometry
from tokenmill.backends.ort.step_ports import refuse_ports, step_ports
from tokenmill.core.errors import BackendError, UnsupportedModel
from tokenmill.package.model_package import Component, ModelPackage, Role

_NUMERICS = Numerics(
    # Padding changes the sums' order: 2e-7 on fp32 graphs.
    batch_invariant=False,
    chunk_invariant_from=None,
    decode_equals_prefill=False,
    thread_invariant=True,
)
_SIDES = 2
"""Past and present are two tensors."""


class PlainBackend(RowBackend[FrameSequence]):
    """One ONNX Runtime session whose state is never written, only made. See `DecodeBackend`.

    A call reads one frame, the past of all its rows, and gives another. While a batch stays the
    same nothing of ours is copied; where it changes, its rows are copied once, into a frame that
    is as long as the longest of them. The others have padding in front, hidden by the mask. Which
    rows may share a call is found out at load, see `plain_probe`.

    Args:
        package: its decoder's past and present are [batch, heads, tokens, dim].
        config: see `BackendConfig`.
        rewritten: the decoder's graph, which does not share buffers; None rewrites it.

    Raises:
        UnsupportedModel: another form of state, a type that is not supported, or a graph that
            fails on a few tokens.
        ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`.
    """

    def __init__(
        self, package: ModelPackage, config: BackendConfig, rewritten: Rewritten | None = None
    ) -> None:
        decoder = package.decoder
        rewritten = rewritten or rewrite_decoder(package, config, share_buffers=False)
        geometry = state_geometry(package.state.attention)
        _check_state(decoder)
        session = open_session(package, config, rewritten.graph)
        ports = step_ports(decoder, session)
        refuse_ports(decoder, "plain", ports.write_indices, ports.kv_lengths)
        max_context = context_of(package, config.max_context)
        self._pool = FramePool(geometry)
        stepper = PlainStepper(session, ports, geometry, package.vocab_size)
        try:
            found = probe_plain(stepper, ports, self._pool, config.max_rows, max_context)
        except BackendError as error:
            raise UnsupportedModel(
                f"{decoder.file} does not run: a few tokens without a past fail", why=error.why
            ) from error
        self._company = found.company
        if rewritten.rows_depend:
            self._company = found.company._replace(unequal_pasts=False, unequal_firsts=False)
        self._frames = FrameSequences(self._pool, config.max_rows, max_context)
        self._calls = PlainCalls(stepper, self._frames, self._pool)
        self._calls.several_with_past = found.several_with_past
        shares = self._company.unequal_firsts and not self._company.alone
        limits = BackendLimits(
            max_rows=config.max_rows,
            max_context=max_context,
            bytes=self._state_bytes,
            multi_token_rows=(MultiTokenRows.FIRST_CHUNK_RAGGED if shares else MultiTokenRows.SOLO),
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=FEATURES,
            numerics=declared_numerics(session, _NUMERICS, package.decoder.file),
            fingerprint=state_fingerprint(package, session, ports, geometry),
        )
        super().__init__(package, session, self._frames, limits, rewritten.notes)

    def _state_bytes(self, lengths: Sequence[int]) -> int:
        """What a batch of these lengths takes while it decodes."""
        return _SIDES * self._pool.frame_bytes(len(lengths), max(lengths, default=0))

    def _layout(self) -> str:
        company = self._company
        if company.alone:
            rows = "rows one by one"
        elif company.unequal_pasts:
            rows = f"{self.limits.max_rows} rows padded to the longest"
        else:
            rows = f"up to {self.limits.max_rows} rows of equal length"
        return f"past and present, {rows}, {self.limits.max_context:,} tokens"

    def _plan(self, rows: Sequence[PlannedRow]) -> list[list[int]]:
        return plan_calls(rows, self._company)

    def _start(self, states: Sequence[FrameSequence], calls: Sequence[Sequence[CallRow]]) -> None:
        self._frames.tidy(states)
        self._calls.stepper.start(calls)

    def _compute(self, states: Sequence[FrameSequence], rows: Sequence[CallRow]) -> CallResult:
        return self._calls.compute(states, rows)

    def _release(self) -> None:
        del self._calls


def _check_state(decoder: Component) -> None:
    for binding in decoder.bindings:
        if binding.role in (Role.PAST_KEY, Role.PAST_VALUE) and len(binding.port.shape) != 4:
            raise UnsupportedModel(
                f"the state port {binding.port.name!r} of {decoder.file.name} has "
                f"{len(binding.port.shape)} dimensions",
                why="plain state is [batch, heads, tokens, head dimension]",
            )
