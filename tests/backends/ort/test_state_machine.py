"""Any order of operations gives what the reference backend gives."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from support.layouts import Spec
from support.plain_package import make_plain_package
from support.tiny_onnx import TinySpec
from support.tiny_package import make_package
from support.tiny_plain import PlainSpec, PortNames
from support.tiny_static import StaticSpec, make_static_package
from tokenmill.backends.base import DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.ort import buckets
from tokenmill.backends.ort.backend import OrtBackend
from tokenmill.backends.ort.plain_backend import PlainBackend
from tokenmill.backends.ort.static_backend import StaticBackend
from tokenmill.backends.reference.backend import ReferenceBackend
from tokenmill.core.errors import OutOfMemory
from tokenmill.core.ids import SequenceId
from tokenmill.core.pages import PageBlock
from tokenmill.core.rows import Logits, Row
from tokenmill.package.model_package import ModelPackage

_SIZE = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn": 32, "vocab": 16}
_SPEC = TinySpec(**_SIZE, context=64)
_PLAIN = PlainSpec(**_SIZE, head_dim=16, context=64)
_UNMASKED = PlainSpec(
    **_SIZE, head_dim=16, context=64, names=PortNames(attention_mask=None, position_ids=None)
)
_STATIC = StaticSpec(**_SIZE, context=64, capacity=None)
_CONFIG = BackendConfig(threads=1, max_rows=4, max_context=48)

Pair = tuple[SequenceId, SequenceId]


@cache
def _package(spec: Spec) -> ModelPackage:
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    if isinstance(spec, PlainSpec):
        return make_plain_package(directory, spec)
    if isinstance(spec, StaticSpec):
        return make_static_package(directory, spec)
    return make_package(directory, spec)


class Backends(RuleBasedStateMachine):
    """One backend under test and the reference, told the same things."""

    sequences = Bundle("sequences")
    blocks = Bundle("blocks")

    kind: type[OrtBackend] | type[PlainBackend] | type[StaticBackend]
    spec: Spec

    def __init__(self) -> None:
        super().__init__()
        self.ort: DecodeBackend = self.kind(_package(self.spec), _CONFIG)
        self.reference = ReferenceBackend(_package(self.spec), _CONFIG)
        self.live: list[Pair] = []

    def _both(self, ort: SequenceId, reference: SequenceId) -> Pair:
        self.live.append((ort, reference))
        return ort, reference

    @rule(target=sequences)
    def open(self) -> object:
        try:
            return self._both(self.ort.open(), self.reference.open())
        except OutOfMemory:
            assert len(self.live) == 4
            return self.live[0]

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        if not self.live:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, unique=True))
        rows: list[tuple[Pair, list[int], bool]] = []
        for pair in chosen:
            tokens = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=20))
            rows.append((pair, tokens, data.draw(st.booleans())))
        outputs = [
            backend.run([Row(pair[i], tokens, logits=Logits.ALL) for pair, tokens, _ in rows])
            for i, backend in enumerate((self.ort, self.reference))
        ]
        for row, mine, expected in zip(rows, outputs[0].rows, outputs[1].rows, strict=True):
            assert type(mine.error) is type(expected.error)
            if mine.error is not None:
                continue
            assert np.abs(mine.logits - expected.logits).max() < 1e-5
            (a, b), tokens, commits = row
            if commits:
                n = data.draw(st.integers(0, len(tokens)))
                self.ort.commit(a, n)
                self.reference.commit(b, n)

    @rule(pair=sequences, share=st.floats(0, 1))
    def truncate(self, pair: Pair, share: float) -> None:
        if pair in self.live:
            length = int(self.reference.length(pair[1]) * share)
            self.ort.truncate(pair[0], length)
            self.reference.truncate(pair[1], length)

    @rule(target=sequences, pair=sequences, share=st.floats(0, 1))
    def fork(self, pair: Pair, share: float) -> object:
        if pair not in self.live or len(self.live) == 4:
            return pair
        length = int(self.reference.length(pair[1]) * share)
        return self._both(self.ort.fork(pair[0], length), self.reference.fork(pair[1], length))

    @rule(target=blocks, pair=sequences)
    def export(self, pair: Pair) -> object:
        if pair not in self.live:
            return None
        length = self.reference.length(pair[1])
        exports = self.ort.export_pages, self.reference.export_pages
        return tuple(export(s, 0, length) for export, s in zip(exports, pair, strict=True))

    @rule(target=sequences, block=blocks)
    def import_into_new(self, block: tuple[PageBlock, PageBlock] | None) -> object:
        if block is None or len(self.live) == 4:
            return self.live[0] if self.live else (SequenceId(-1), SequenceId(-1))
        pair = self._both(self.ort.open(), self.reference.open())
        self.ort.import_pages(pair[0], block[0])
        self.reference.import_pages(pair[1], block[1])
        return pair

    @rule(pair=consumes(sequences))
    def close(self, pair: Pair) -> None:
        if pair in self.live:
            self.live.remove(pair)
            self.ort.close(pair[0])
            self.reference.close(pair[1])

    @invariant()
    def accounts_agree(self) -> None:
        self.ort.check_integrity()
        self.reference.check_integrity()
        for a, b in self.live:
            assert self.ort.length(a) == self.reference.length(b)

    def teardown(self) -> None:
        self.ort.shutdown()
        self.reference.shutdown()


_SETTINGS = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


class SharedBuffers(Backends):
    kind, spec = OrtBackend, _SPEC


class Plain(Backends):
    kind, spec = PlainBackend, _PLAIN


class PlainWithoutMask(Backends):
    kind, spec = PlainBackend, _UNMASKED


class StaticCaches(Backends):
    """Rows are laid out for 16 tokens, so that they grow and shrink."""

    kind, spec = StaticBackend, _STATIC

    def __init__(self) -> None:
        self.first = mock.patch.object(buckets, "_FIRST", 16)
        self.first.start()
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.first.stop()


TestSharedBuffers = SharedBuffers.TestCase
TestPlain = Plain.TestCase
TestPlainWithoutMask = PlainWithoutMask.TestCase
TestStaticCaches = StaticCaches.TestCase
TestSharedBuffers.settings = _SETTINGS
TestPlain.settings = _SETTINGS
TestPlainWithoutMask.settings = _SETTINGS
TestStaticCaches.settings = _SETTINGS
