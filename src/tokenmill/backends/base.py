"""The backend contract: one model step for a ragged batch, and the state behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tokenmill.core.ids import Fingerprint, SequenceId
from tokenmill.core.pages import PageBlock, PageHandle, StateBlock
from tokenmill.core.rows import Array, Row, StepResult


class MultiTokenRows(Enum):
    """How rows of several tokens can share one call of the runtime.

    `run` takes any mix of rows; this tells the planner what that costs.
    """

    RAGGED = "ragged"
    """Any mix of lengths and pasts goes in one call."""
    SOLO = "solo"
    """Each row of several tokens is a call of its own."""
    FIRST_CHUNK_RAGGED = "first_chunk_ragged"
    """Rows without a past go together, right-padded; rows with a past are SOLO."""


class Rewind(Enum):
    """What `truncate` can reach."""

    ANY = "any"
    WINDOW = "window"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Numerics:
    """Which results are the same bits, declared by the backend and tested.

    Attributes:
        batch_invariant: a row's logits do not depend on the other rows of the step.
        chunk_invariant_from: cutting a prompt into chunks of at least this many tokens does not
            change its logits; None where any cut may.
        decode_equals_prefill: a token's logits are the same alone as inside a longer chunk.
        thread_invariant: the number of threads does not change results.
    """

    batch_invariant: bool
    chunk_invariant_from: int | None
    decode_equals_prefill: bool
    thread_invariant: bool


@dataclass(frozen=True, slots=True)
class BackendLimits:
    """What a loaded backend can do. The planner and the state store respect it.

    Attributes:
        max_rows: most sequences open at once.
        max_context: most tokens in one sequence.
        bytes: the state bytes that sequences of these lengths take together. A function, since
            layouts differ in what they pay for.
        multi_token_rows: see `MultiTokenRows`.
        rewind: see `Rewind`.
        shares_pages: `pin` and `attach` work, without a copy.
        partial_commit: `commit(n)` may be less than the row's tokens.
        features: of "embeds", "positions", "adapters", "hidden", "encoder_state", "snapshot",
            "fork", "logits_all", "reduce". Anything else asked for raises `Unsupported`.
        numerics: see `Numerics`.
        fingerprint: of all state that this backend makes.
    """

    max_rows: int
    max_context: int
    bytes: Callable[[Sequence[int]], int]
    multi_token_rows: MultiTokenRows
    rewind: Rewind
    shares_pages: bool
    partial_commit: bool
    features: frozenset[str]
    numerics: Numerics
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class EncoderState:
    """What an encoder hands to a decoder: (port name, array) pairs."""

    arrays: Sequence[tuple[str, Array]]


@dataclass(frozen=True, slots=True)
class BackendReport:
    """How a loaded backend runs its model, for people; `tokenmill show --load` prints it.

    Attributes:
        backend: its name, e.g. "ort".
        layout: how state is kept, in one phrase, e.g. "shared buffers, 8 rows of 8,192 tokens".
        rewrites: what was changed in the graph, and what was tried and refused, a phrase each.
        claims: provider, in order of preference, to the operators it runs, with their numbers.
    """

    backend: str
    layout: str
    rewrites: tuple[str, ...]
    claims: Mapping[str, Mapping[str, int]]


class DecodeBackend(Protocol):
    """Computes one step for a ragged batch and owns the tensors.

    One thread uses a backend at a time. A sequence is an append-only list of committed tokens
    with state for each. `run` computes and advances nothing, so that a step is a transaction and
    verification is `run` followed by `commit(accepted)`.

    An unknown or closed sequence raises `Closed`. A feature outside `limits.features` raises
    `Unsupported` and names the feature. Both leave everything as it was.
    """

    @property
    def limits(self) -> BackendLimits:
        """What this backend can do; the same for its whole life."""

    def report(self) -> BackendReport:
        """Returns how the model is run. May take as long as loading it again."""

    def open(self, encoder_state: EncoderState | None = None) -> SequenceId:
        """Starts an empty sequence.

        Raises:
            OutOfMemory: `limits.max_rows` sequences are open already.
        """

    def length(self, sequence: SequenceId) -> int:
        """Returns the number of committed tokens."""

    def reserve(self, sequence: SequenceId, length: int) -> None:
        """Makes room for `length` tokens in all, committed ones included.

        Raises:
            OutOfMemory: there is no such room; nothing was changed.
        """

    def run(self, rows: Sequence[Row]) -> StepResult:
        """Computes the rows' tokens on top of their sequences' committed tokens.

        A sequence stands in one row at most. A second `run` without a commit discards the first:
        its rows' uncommitted tokens are gone. A row's own fault (cancelled, past its context,
        too large for memory) is its `RowOutput.error`; the other rows are computed.
        Logits are float32 views, valid until the next `run`.

        Raises:
            BackendError: the runtime itself failed; no sequence has advanced.
        """

    def commit(self, sequence: SequenceId, n: int) -> None:
        """Makes the first `n` tokens of the sequence's last row its own; 0 is allowed."""

    def truncate(self, sequence: SequenceId, length: int) -> None:
        """Forgets all tokens from `length` on. A length past the end raises `InvalidRequest`."""

    def fork(self, sequence: SequenceId, length: int) -> SequenceId:
        """Opens a sequence that starts with the first `length` tokens of this one."""

    def pin(self, sequence: SequenceId, start: int, stop: int) -> PageHandle:
        """Keeps pages beyond their sequence (where `limits.shares_pages`)."""

    def attach(self, sequence: SequenceId, handle: PageHandle) -> None:
        """Appends pinned pages to a sequence without a copy (where `limits.shares_pages`)."""

    def export_pages(self, sequence: SequenceId, start: int, stop: int) -> PageBlock:
        """Copies the attention state of committed tokens `start` to `stop`."""

    def import_pages(self, sequence: SequenceId, block: PageBlock) -> None:
        """Appends a block. `block.start` must be the sequence's length, which becomes `stop`.

        Raises:
            InvalidRequest: another fingerprint, start or geometry; nothing was changed.
        """

    def snapshot(self, sequence: SequenceId) -> StateBlock:
        """Copies recurrent, convolution and cross-attention state."""

    def restore(self, sequence: SequenceId, block: StateBlock) -> None:
        """Puts a snapshot back; the sequence's length must be `block.length`."""

    def close(self, sequence: SequenceId) -> None:
        """Ends a sequence and gives its memory back. Closing twice raises `Closed`."""

    def shutdown(self) -> None:
        """Closes every sequence and releases the model. The backend is unusable afterwards."""

    def check_integrity(self) -> None:
        """Checks the backend's own accounts; raises AssertionError where they do not agree."""
