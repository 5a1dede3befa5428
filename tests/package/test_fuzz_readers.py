"""Files of good packages, damaged at random: read, or refused with a typed error, and soon.

TOKENMILL_FUZZ_EXAMPLES sets how many are tried for each file; without it a few, the same each time.
"""

import contextlib
import copy
import json
import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.breaking import copy_of
from support.tiny_gguf import write_tiny_gguf
from tokenmill.core.errors import TokenmillError
from tokenmill.package.gguf.importer import import_gguf
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.onnx_file import read_onnx

ASKED = os.environ.get("TOKENMILL_FUZZ_EXAMPLES")
fuzz = settings(
    max_examples=int(ASKED or 60),
    deadline=None,
    derandomize=ASKED is None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

DOCUMENTS = {
    "genai_config.json": "llama/genai-fp32",
    "tokenizer_config.json": "llama/genai-fp32",
    "tokenizer.json": "llama/genai-fp32",
    "config.json": "llama/optimum",
    "generation_config.json": "llama/optimum",
    "special_tokens_map.json": "llama/optimum",
    "inference_metadata.yaml": "llama/mobius-static",
    "manifest.json": "qwen2/model-package",
}
GRAPHS = {
    "llama/genai-fp32": "model.onnx",
    "llama/optimum-merged": "decoder_model_merged.onnx",
    "llama/mobius-static": "model.onnx",
    "qwen2/bare": "model.onnx",
}
JUNK = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**31, 2**70, 10**9, 1.5, -0.0, 1e308, "", "x", "\0", ".."),
        *("/", "/etc", "a" * 5000, "\ud800", "%d", "%s", "é", "..\\", "model.onnx", "logits", "."),
        *([], {}, [[]], [{}], [None], {"": 1}, {"content": 5}, [1, "x"], {"x": {"y": []}}),
        *([{"name": "default", "template": "x"}], {"ids": []}, [2**70], "2", "input_ids", [-1]),
        *("past_key_values.%d.key", "variants", "manifest.json", "variants/cpu-int4", "cuda"),
    ]
)
PIECES = st.binary(max_size=12) | st.sampled_from(
    [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x00", b"\x08", b"\x12", b"\x80", b"\x0a\x00"]
)
TEXTS = st.sampled_from(
    [
        *("{", "}", "[", "]", '"', ",", ":", "\\", "\n", "\t", "\0", "\x7f", "é", "-", "&a ", "*a"),
        *("!!python/object:x ", "<<: ", "? ", "---\n", "%YAML 9\n", "\\ud800", "1e999", "NaN"),
        *("null", "[" * 3000, "{" * 3000, "\ufeff", "|", ">", "#", "- ", "9" * 5000, "0x", "~"),
    ]
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A copy of each package to damage; each test puts its file back in order."""
    home = tmp_path_factory.mktemp("fuzz")
    names = {*DOCUMENTS.values(), *GRAPHS}
    return {name: copy_of(name, home / name.replace("/", "-")) for name in sorted(names)}


@contextlib.contextmanager
def damaged(file):
    """Gives back the file as it was."""
    good = file.read_bytes()
    try:
        yield good
    finally:
        file.write_bytes(good)


STRICT = LoadOptions()


def check(root, options=STRICT):
    """Reads a package that may be broken; only typed errors may escape, and no ids beyond it."""
    try:
        package = load_package(root, options)
    except TokenmillError as error:
        str(error).encode()
        return
    vocab, text = package.vocab_size, package.text
    assert package.context_length > 0
    assert package.state.attention
    for token_id in (*text.eos_token_ids, text.bos_token_id, text.pad_token_id):
        assert token_id is None or 0 <= token_id < vocab
    for item in (*package.ignored, *package.losses):
        f"{item.field} {item.value} {item.why}".encode()


def places(value, path=()):
    """Every place of a document, as the path to it; long lists by their first entries."""
    items = value.items() if isinstance(value, dict) else ()
    items = list(enumerate(value))[:8] if isinstance(value, list) else items
    for name, inner in list(items)[:40]:
        yield (*path, name)
        yield from places(inner, (*path, name))


def at(document, path):
    for name in path:
        document = document[name]
    return document


def change(document, data):
    """Changes one place of a document."""
    every = list(places(document))
    if not every:
        return
    path = data.draw(st.sampled_from(every))
    parent, last = at(document, path[:-1]), path[-1]
    match data.draw(st.sampled_from(["junk", "junk", "other", "remove", "add", "rename"])):
        case "junk":
            parent[last] = copy.deepcopy(data.draw(JUNK))
        case "other":
            parent[last] = copy.deepcopy(at(document, data.draw(st.sampled_from(every))))
        case "remove":
            del parent[last]
        case "rename" if isinstance(parent, dict):
            parent[data.draw(st.sampled_from(["x", "", "io", "encoder"]))] = parent.pop(last)
        case _ if isinstance(parent, dict):
            names = ["x", "pipeline", "sliding_window", "layer_types", "head_dim", "text_config"]
            parent[data.draw(st.sampled_from(names))] = copy.deepcopy(data.draw(JUNK))
        case _:
            parent.append(copy.deepcopy(data.draw(JUNK)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_typed_errors_escape_whatever_a_document_says(packages, name):
    root = packages[DOCUMENTS[name]]
    file = root / name
    is_json = file.suffix == ".json"

    with damaged(file) as good:
        document = json.loads(good) if is_json else yaml.safe_load(good)

        @fuzz
        @given(st.data())
        def run(data):
            changed = copy.deepcopy(document)
            for _ in range(data.draw(st.integers(1, 3))):
                change(changed, data)
            dump = json.dumps if is_json else yaml.safe_dump
            file.write_text(dump(changed), errors="surrogatepass")
            check(root, LoadOptions(lossy=data.draw(st.booleans())))

        run()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_typed_errors_escape_whatever_is_done_to_a_document_s_text(packages, name):
    root = packages[DOCUMENTS[name]]
    file = root / name

    with damaged(file) as good:

        @fuzz
        @given(st.data())
        def run(data):
            changed = good
            for _ in range(data.draw(st.integers(1, 3))):
                start = data.draw(st.integers(0, len(changed)))
                stop = start + data.draw(st.sampled_from([0, 0, 1, 5, 100, len(changed)]))
                piece = data.draw(PIECES | TEXTS.map(lambda text: text.encode("utf-8")))
                changed = changed[:start] + piece + changed[stop:]
            file.write_bytes(changed)
            check(root)

        run()


@pytest.mark.parametrize("name", GRAPHS)
def test_only_typed_errors_escape_whatever_bytes_a_graph_has(packages, name):
    root = packages[name]
    file = root / GRAPHS[name]

    with damaged(file) as good:

        @fuzz
        @given(st.data())
        def run(data):
            changed = bytearray(good)
            for _ in range(data.draw(st.integers(1, 6))):
                at_byte = data.draw(st.integers(0, len(changed) - 1) | st.integers(0, 200))
                match data.draw(st.sampled_from(["flip", "byte", "cut", "put", "number"])):
                    case "flip":
                        changed[at_byte] ^= 1 << data.draw(st.integers(0, 7))
                    case "byte":
                        changed[at_byte] = data.draw(st.integers(0, 255))
                    case "number":
                        changed[at_byte] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
                    case "put":
                        changed[at_byte:at_byte] = data.draw(PIECES)
                    case _ if len(changed) > 1000:
                        del changed[data.draw(st.integers(len(changed) // 2, len(changed))) :]
                    case _:
                        pass
            file.write_bytes(changed)
            with contextlib.suppress(TokenmillError):
                read_onnx(file)
            check(root)

        run()


def test_only_typed_errors_escape_whatever_bytes_a_gguf_file_has(tmp_path):
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file)
    good = file.read_bytes()

    @fuzz
    @given(st.data())
    def run(data):
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            at_byte = data.draw(st.integers(0, 20_000) | st.integers(0, 400))
            piece = data.draw(PIECES)
            changed[at_byte : at_byte + len(piece) * data.draw(st.integers(0, 1))] = piece
        if data.draw(st.booleans()):
            del changed[data.draw(st.integers(0, len(changed))) :]
        file.write_bytes(changed)
        try:
            import_gguf(file, tmp_path / "out")
        except TokenmillError as error:
            str(error).encode()
        else:
            check(tmp_path / "out")

    run()
