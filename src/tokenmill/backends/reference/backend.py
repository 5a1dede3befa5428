"""`DecodeBackend` that keeps tokens and recomputes the whole sequence every time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import onnxruntime

from tokenmill.backends.base import (
    BackendLimits,
    BackendReport,
    EncoderState,
    MultiTokenRows,
    Numerics,
    Rewind,
)
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.context import context_of
from tokenmill.backends.ort.claims import read_claims
from tokenmill.backends.ort.session import open_session
from tokenmill.backends.reference.forward import WholeForward
from tokenmill.backends.row_checks import refuse_unsupported, row_fault, wanted_offsets
from tokenmill.core.errors import Cancelled, Closed, InvalidRequest, OutOfMemory, Unsupported
from tokenmill.core.ids import Fingerprint, SequenceId
from tokenmill.core.pages import LayerPages, PageBlock, PageHandle, StateBlock
from tokenmill.core.rows import Row, RowOutput, StepResult, StepTimings
from tokenmill.package.model_package import ModelPackage

_FEATURES = frozenset({"fork", "logits_all"})
_TOKEN_BYTES = 8


@dataclass(slots=True)
class _Sequence:
    """Committed tokens, and those of the last run that a commit may still take."""

    tokens: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)

    def check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self.tokens):
            raise InvalidRequest(
                f"tokens {start} to {stop} are not there",
                why=f"the sequence has {len(self.tokens)} committed tokens",
            )


class ReferenceBackend:
    """What every other backend must agree with: no cache, no rewrite, one row at a time.

    Its state is the tokens themselves, so a page block holds them ("tokens", layout "T"), and a
    step costs as much as the whole sequence. See `DecodeBackend` for the contract.

    Args:
        package: any decoder that runs with an empty past.
        config: see `BackendConfig`; `cache_dir` is not used.

    Raises:
        UnsupportedModel, ProviderUnavailable, InvalidPackage, CorruptFile: see `open_session`
            and `WholeForward`.
    """

    def __init__(self, package: ModelPackage, config: BackendConfig) -> None:
        session = open_session(package, config)
        self._claims = read_claims(session)
        self._forward = WholeForward(package, session)
        self._vocab_size = package.vocab_size
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._next_id = 0
        self._is_shut_down = False
        parts = (package.fingerprint, "reference", onnxruntime.__version__)
        self.limits = BackendLimits(
            max_rows=config.max_rows,
            max_context=context_of(package, config.max_context),
            bytes=lambda lengths: _TOKEN_BYTES * sum(lengths),
            multi_token_rows=MultiTokenRows.SOLO,
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=_FEATURES,
            numerics=Numerics(
                batch_invariant=True,
                chunk_invariant_from=1,
                decode_equals_prefill=True,
                thread_invariant=True,
            ),
            fingerprint=Fingerprint(hashlib.sha256(repr(parts).encode()).hexdigest()),
        )

    def report(self) -> BackendReport:
        """See `DecodeBackend.report`."""
        layout = "none, every step computes the whole text"
        return BackendReport("reference", layout, (), self._claims)

    def open(self, encoder_state: EncoderState | None = None) -> SequenceId:
        """See `DecodeBackend.open`."""
        if encoder_state is not None:
            raise Unsupported("this backend does not support 'encoder_state'")
        return self._open([])

    def length(self, sequence: SequenceId) -> int:
        """See `DecodeBackend.length`."""
        return len(self._find(sequence).tokens)

    def reserve(self, sequence: SequenceId, length: int) -> None:
        """See `DecodeBackend.reserve`."""
        self._find(sequence)
        if length > self.limits.max_context:
            raise OutOfMemory(
                f"there is no room for {length} tokens in one sequence",
                why=f"the context holds {self.limits.max_context}",
                fix="Raise max_context, if the model allows it",
            )

    def run(self, rows: Sequence[Row]) -> StepResult:
        """See `DecodeBackend.run`."""
        began = perf_counter()
        states = [self._find(row.sequence) for row in rows]
        for row in rows:
            refuse_unsupported(row, _FEATURES)
        if len({row.sequence for row in rows}) != len(rows):
            raise InvalidRequest("a sequence stands in more than one row of a step")
        for state in self._sequences.values():
            state.pending = []
        outputs: list[RowOutput] = []
        compute, num_calls = 0.0, 0
        for row, state in zip(rows, states, strict=True):
            past = len(state.tokens)
            fault = row_fault(row, past, self.limits.max_context, self._vocab_size)
            if fault is None and row.cancelled():
                fault = Cancelled("the row was cancelled")
            if fault is not None:
                outputs.append(RowOutput(error=fault))
                continue
            started = perf_counter()
            logits = self._forward([*state.tokens, *row.tokens])
            compute += perf_counter() - started
            num_calls += 1
            wanted = [past + offset for offset in wanted_offsets(row)]
            outputs.append(RowOutput(logits=logits[wanted]))
            state.pending = list(row.tokens)
        return StepResult(outputs, StepTimings(perf_counter() - began, compute, num_calls))

    def commit(self, sequence: SequenceId, n: int) -> None:
        """See `DecodeBackend.commit`. More than the last run computed raises `InvalidRequest`."""
        state = self._find(sequence)
        if not 0 <= n <= len(state.pending):
            raise InvalidRequest(
                f"cannot commit {n} tokens", why=f"the last run computed {len(state.pending)}"
            )
        state.tokens += state.pending[:n]
        state.pending = []

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """See `DecodeBackend.truncate`."""
        state = self._find(sequence)
        state.check_range(0, length)
        del state.tokens[length:]
        state.pending = []

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """See `DecodeBackend.fork`."""
        state = self._find(sequence)
        state.check_range(0, length)
        return self._open(state.tokens[:length])

    def pin(self, sequence: SequenceId, start: int, stop: int) -> PageHandle:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'pin'", why="it keeps no pages")

    def attach(self, sequence: SequenceId, handle: PageHandle) -> None:
        """Not supported: `limits.shares_pages` is false."""
        raise Unsupported("this backend does not support 'attach'", why="it keeps no pages")

    def export_pages(self, sequence: SequenceId, start: int, stop: int) -> PageBlock:
        """See `DecodeBackend.export_pages`. One array: the tokens, int64 [n]."""
        state = self._find(sequence)
        state.check_range(start, stop)
        tokens = np.array(state.tokens[start:stop], np.int64)
        layers = [LayerPages("tokens", 0, "T", tokens)]
        return PageBlock(start, stop, layers, self.limits.fingerprint)

    def import_pages(self, sequence: SequenceId, block: PageBlock) -> None:
        """See `DecodeBackend.import_pages`."""
        state = self._find(sequence)
        fault = self._block_fault(block, len(state.tokens))
        if fault:
            raise InvalidRequest("the page block does not continue this sequence", why=fault)
        state.tokens += block.layers[0].array.tolist()
        state.pending = []

    def snapshot(self, sequence: SequenceId) -> StateBlock:
        """Not supported: there is no state but tokens."""
        raise Unsupported("this backend does not support 'snapshot'")

    def restore(self, sequence: SequenceId, block: StateBlock) -> None:
        """Not supported: there is no state but tokens."""
        raise Unsupported("this backend does not support 'snapshot'")

    def close(self, sequence: SequenceId) -> None:
        """See `DecodeBackend.close`."""
        self._find(sequence)
        del self._sequences[sequence]

    def shutdown(self) -> None:
        """See `DecodeBackend.shutdown`. A second call does nothing."""
        if not self._is_shut_down:
            self._sequences.clear()
            self._is_shut_down = True
            del self._forward

    def check_integrity(self) -> None:
        """See `DecodeBackend.check_integrity`."""
        assert len(self._sequences) <= self.limits.max_rows, "more sequences than rows"
        for sequence, state in self._sequences.items():
            assert len(state.tokens) <= self.limits.max_context, (sequence, state)

    def _open(self, tokens: list[int]) -> SequenceId:
        if self._is_shut_down:
            raise Closed("the backend is shut down")
        if len(self._sequences) >= self.limits.max_rows:
            raise OutOfMemory(
                "no more sequences can be open",
                why=f"all {self.limits.max_rows} rows are in use",
                fix="Close one or raise max_rows",
            )
        sequence = SequenceId(self._next_id)
        self._next_id += 1
        self._sequences[sequence] = _Sequence(tokens)
        return sequence

    def _find(self, sequence: SequenceId) -> _Sequence:
        state = self._sequences.get(sequence)
        if state is None:
            raise Closed(f"sequence {sequence} is not open")
        return state

    def _block_fault(self, block: PageBlock, length: int) -> str:
        if block.fingerprint != self.limits.fingerprint:
            return "another model, backend or setting made it"
        if block.start != length or block.stop < block.start:
            return f"it holds tokens {block.start} to {block.stop}, and the sequence has {length}"
        if block.stop > self.limits.max_context:
            return f"it ends at {block.stop}, and the context holds {self.limits.max_context}"
        shapes = [(pages.kind, pages.array.shape) for pages in block.layers]
        if shapes != [("tokens", (block.stop - block.start,))]:
            return f"it holds {shapes}, not {block.stop - block.start} tokens"
        return ""
