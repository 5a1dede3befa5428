"""A backend with fixed logits per step, and a small byte-level tokenizer, for exact values."""

import numpy as np

from tokenmill.backends.base import BackendLimits, BackendReport, MultiTokenRows, Numerics, Rewind
from tokenmill.core.errors import Cancelled, OutOfMemory
from tokenmill.core.pages import LayerPages, PageBlock
from tokenmill.core.rows import Logits, RowOutput, StepResult, StepTimings
from tokenmill.package.model_package import (
    AttentionState,
    GenerationDefaults,
    ModelPackage,
    PackageForm,
    StateContract,
    StateLayout,
    TextContract,
)


class ScriptedBackend:
    """Says `script(tokens so far) -> token id` at every position.

    A token is a byte of state, unless `bytes_of` says otherwise.

    Attributes:
        steps: the row lengths of each run, for asserting how work was cut.
        fail: when set, the next run raises it.
    """

    def __init__(
        self, script, *, vocab_size=300, max_rows=4, max_context=64, decode_equals_prefill=True,
        bytes_of=sum,
    ):  # fmt: skip
        self.script, self.vocab_size, self.max_rows = script, vocab_size, max_rows
        self.steps, self.fail, self.closed = [], None, False
        self.committed, self.pending, self.next_id = {}, {}, 0
        self.before_run = lambda: None
        self.limits = BackendLimits(
            max_rows=max_rows,
            max_context=max_context,
            bytes=bytes_of,
            multi_token_rows=MultiTokenRows.RAGGED,
            rewind=Rewind.ANY,
            shares_pages=False,
            partial_commit=True,
            features=frozenset(),
            numerics=Numerics(True, 1, decode_equals_prefill, True),
            fingerprint="scripted",
        )

    def report(self):
        return BackendReport("scripted", "a list of tokens", (), {})

    def open(self, encoder_state=None):
        if len(self.committed) >= self.max_rows:
            raise OutOfMemory("no row is free")
        self.next_id += 1
        self.committed[self.next_id] = []
        return self.next_id

    def length(self, sequence):
        return len(self.committed[sequence])

    def reserve(self, sequence, length):
        assert length <= self.limits.max_context

    def run(self, rows):
        self.before_run()
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        self.steps.append([len(row.tokens) for row in rows])
        self.pending = {row.sequence: list(row.tokens) for row in rows}
        return StepResult([self._row(row) for row in rows], StepTimings())

    def _row(self, row):
        if row.cancelled():
            return RowOutput(error=Cancelled("cancelled"))
        if row.logits is Logits.NONE:
            return RowOutput(logits=np.zeros((0, self.vocab_size), np.float32))
        logits = np.zeros((1, self.vocab_size), np.float32)
        wanted = self.script([*self.committed[row.sequence], *row.tokens])
        if isinstance(wanted, np.ndarray):
            logits[0] = wanted
        else:
            logits[0, wanted] = 1.0
        return RowOutput(logits=logits)

    def commit(self, sequence, n):
        self.committed[sequence] += self.pending[sequence][:n]

    def export_pages(self, sequence, start, stop):
        tokens = np.array(self.committed[sequence][start:stop])
        return PageBlock(start, stop, [LayerPages("key", 0, "T", tokens)], "scripted")

    def import_pages(self, sequence, block):
        assert self.length(sequence) == block.start
        self.committed[sequence] += block.layers[0].array.tolist()

    def close(self, sequence):
        del self.committed[sequence]

    def check_integrity(self):
        assert len(self.committed) <= self.max_rows

    def shutdown(self):
        self.closed = True


def scripted_package(tmp_path, *, eos=(), context_length=64, vocab_size=300):
    """A package with no graph; enough for `LoadedModel` around a `ScriptedBackend`."""
    return ModelPackage(
        root=tmp_path,
        form=PackageForm.GENAI,
        fingerprint="scripted",
        components={},
        state=StateContract(StateLayout.SHARED_BUFFER, (AttentionState(0, 1, 1, "float32"),)),
        text=TextContract(None, None, {}, "", {}, None, False, frozenset(eos), None),
        defaults=GenerationDefaults(),
        context_length=context_length,
        vocab_size=vocab_size,
    )


def reply(prompt_length, tokens):
    """A script that says these tokens after a prompt of that length, the last one forever."""

    def script(so_far):
        return tokens[min(len(so_far) - prompt_length, len(tokens) - 1)]

    return script


def byte_tokenizer(tmp_path, words=()):
    """A tokenizer whose ids 0 to 255 are the bytes, followed by `words`."""
    import json

    from tokenizers import pre_tokenizers

    from tokenmill.text.tokenizer import Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {b: chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    rest = iter(range(256, 512))
    table = {b: printable.get(b) or chr(next(rest)) for b in range(256)}
    assert sorted(table.values()) == alphabet
    vocab = {table[b]: b for b in range(256)}
    for word in words:
        vocab["".join(table[b] for b in word.encode())] = len(vocab)
    document = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document))
    return Tokenizer.from_file(
        file, bos_token_id=None, add_bos=False, eos_token_ids=frozenset(), special_tokens={}
    )
