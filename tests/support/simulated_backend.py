"""A scripted backend whose steps take time on a clock of its own, and which can fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.scripted import ScriptedBackend
from tokenmill.core.errors import Cancelled, OutOfMemory
from tokenmill.core.pages import LayerPages, PageBlock
from tokenmill.core.rows import Logits, RowOutput, StepResult, StepTimings

EOS = 0
_MASK = (1 << 64) - 1


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def fold(digest, token, is_chunked):
    """The state of a sequence after one token more, computed alone or in a chunk."""
    return (digest * 6364136223846793005 + 2 * token + is_chunked + 1442695040888963407) & _MASK


def follows(digest, vocab_size):
    """The token that a state leads to; it depends on all tokens and how they were computed."""
    return (digest >> 33) % vocab_size


def expected_reply(prompt, most, *, vocab_size, eos=EOS, decode_equals_prefill=True):
    """The ids of a reply, up to and without the end-of-text token."""
    digest = 0
    for token in prompt:
        digest = fold(digest, token, not decode_equals_prefill and len(prompt) > 1)
    ids = []
    while len(ids) < most and (token := follows(digest, vocab_size)) != eos:
        ids.append(token)
        digest = fold(digest, token, False)
    return ids


@dataclass(frozen=True)
class StepSeconds:
    """What steps take: a constant, then for each row, each prompt token, each token looked at."""

    fixed: float = 0.010
    row: float = 0.001
    chunk_token: float = 0.0005
    past_token: float = 0.0
    copied_byte: float = 1e-6

    def of(self, rows, pasts):
        lengths = [len(row.tokens) for row in rows]
        chunks = sum(n for n in lengths if n > 1)
        return (
            self.fixed
            + self.row * sum(n == 1 for n in lengths)
            + self.chunk_token * chunks
            + self.past_token * sum(n * past for n, past in zip(lengths, pasts, strict=True))
        )


class SimulatedBackend(ScriptedBackend):
    """A scripted backend whose steps take time, whose memory is watched, and which can fail.

    A sequence is told by the first token of its prompt, its tag.

    Attributes:
        row_faults: the row that reaches so many tokens fails, by tag.
        backend_faults: numbers of the runs that fail as a whole.
        export_faults, import_faults: tags of sequences whose copies cannot be made, or not be
            brought back.
        failed: tags of sequences that saw a fault.
        rows_run: rows of all runs.
        during_run: called when the time of a step has passed, before its rows are computed.
    """

    def __init__(self, clock, *, seconds, **fields):
        super().__init__(None, **fields)
        self.clock, self.seconds = clock, seconds
        self.tells_apart = not self.limits.numerics.decode_equals_prefill
        self.digests, self.reserved, self.runs = {}, {}, 0
        self.row_faults, self.backend_faults = {}, set()
        self.export_faults, self.import_faults = set(), set()
        self.failed = set()
        self.rows_run, self.during_run = 0, lambda: None

    def open(self, encoder_state=None):
        sequence = super().open(encoder_state)
        self.digests[sequence], self.reserved[sequence] = 0, 0
        return sequence

    def reserve(self, sequence, length):
        super().reserve(sequence, length)
        self.reserved[sequence] = max(self.reserved[sequence], length)

    def run(self, rows):
        self.runs += 1
        self.rows_run += len(rows)
        assert len({row.sequence for row in rows}) == len(rows), "one row a sequence"
        start = self.clock.now
        self.clock.now += self.seconds.of(rows, [self.length(row.sequence) for row in rows])
        self.during_run()
        self.pending = {row.sequence: row.tokens for row in rows}
        if self.runs in self.backend_faults:
            self.failed |= {self._tag(row) for row in rows}
            raise RuntimeError("the device is gone")
        timings = StepTimings(compute=self.clock.now - start)
        return StepResult([self._row(row) for row in rows], timings)

    def _row(self, row):
        length = self.length(row.sequence) + len(row.tokens)
        assert length <= self.reserved[row.sequence], "nothing is computed without room for it"
        if row.cancelled():
            return RowOutput(error=Cancelled("cancelled"))
        tag = self._tag(row)
        if length >= self.row_faults.get(tag, length + 1):
            self.failed.add(tag)
            return RowOutput(error=OutOfMemory("this row cannot be computed"))
        if row.logits is Logits.NONE:
            return RowOutput(logits=np.zeros((0, self.vocab_size), np.float32))
        logits = np.zeros((1, self.vocab_size), np.float32)
        logits[0, follows(self._folded(row.sequence, row.tokens), self.vocab_size)] = 1.0
        return RowOutput(logits=logits)

    def _tag(self, row):
        return (self.committed[row.sequence] or row.tokens)[0]

    def _folded(self, sequence, tokens):
        digest, is_chunked = self.digests[sequence], self.tells_apart and len(tokens) > 1
        for token in tokens:
            digest = fold(digest, token, is_chunked)
        return digest

    def commit(self, sequence, n):
        assert n == len(self.pending[sequence])
        self.digests[sequence] = self._folded(sequence, self.pending[sequence])
        super().commit(sequence, n)

    def export_pages(self, sequence, start, stop):
        assert (start, stop) == (0, self.length(sequence))
        tag = self.committed[sequence][0]
        if tag in self.export_faults:
            self.failed.add(tag)
            raise OutOfMemory("no copy can be made")
        self._take_time(sequence)
        state = np.array([self.digests[sequence], *self.committed[sequence]], np.uint64)
        return PageBlock(start, stop, [LayerPages("key", 0, "T", state)], "scripted")

    def import_pages(self, sequence, block):
        digest, *tokens = block.layers[0].array.tolist()
        assert self.length(sequence) == block.start == 0
        assert block.stop == len(tokens) <= self.reserved[sequence]
        if tokens[0] in self.import_faults:
            self.failed.add(tokens[0])
            raise OutOfMemory("the copy cannot be read")
        self.digests[sequence], self.committed[sequence] = digest, tokens
        self._take_time(sequence)

    def _take_time(self, sequence):
        size = self.limits.bytes([self.length(sequence)])
        self.clock.now += size * self.seconds.copied_byte

    def close(self, sequence):
        super().close(sequence)
        del self.digests[sequence], self.reserved[sequence]
