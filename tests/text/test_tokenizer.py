import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, processors

from support import tiny_tokenizers as tiny
from tokenmill.core.errors import CorruptFile, InvalidPackage, InvalidRequest
from tokenmill.text.bos import find_prompt_bos, one_bos
from tokenmill.text.spans import Span
from tokenmill.text.tokenizer import Tokenizer


def from_file(path, **facts):
    defaults = {
        "bos_token_id": None,
        "add_bos": False,
        "eos_token_ids": frozenset(),
        "special_tokens": {},
    }
    return Tokenizer.from_file(path, **{**defaults, **facts})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidPackage, match=r"nowhere/tokenizer\.json: No such file"):
        from_file(tmp_path / "nowhere" / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": ', b"\xff\xfe", b"[1, 2]"])
def test_a_corrupt_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=r"tokenizer\.json is not a tokenizer"):
        from_file(path)


def test_bos_that_does_not_exist_is_refused_at_load_and_at_encode(tmp_path):
    path = tmp_path / "tokenizer.json"
    tiny.byte_level().save(str(path))
    with pytest.raises(InvalidPackage, match="no bos_token_id"):
        from_file(path, add_bos=True)
    with pytest.raises(InvalidRequest, match="BOS"):
        from_file(path).encode("a", add_bos=True)


def test_truncation_padding_and_post_processor_of_the_file_do_not_act(tmp_path):
    native = tiny.byte_level()
    bos = native.token_to_id("<s>")
    native.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", bos)]
    )
    native.enable_truncation(2)
    native.enable_padding(length=9)
    path = tmp_path / "tokenizer.json"
    native.save(str(path))
    tokenizer = from_file(path, bos_token_id=bos, add_bos=True)
    assert tokenizer.encode("abcd") == [bos, *tokenizer.encode_ordinary("abcd")]
    assert len(tokenizer.encode("abcd")) == 5


def test_e7_exactly_one_bos():
    tokenizer = tiny.wrap(tiny.byte_level(), bos="<s>", add_bos=True)
    bos = tokenizer.bos_token_id
    for text in ("Hi", "<s>Hi", "<s><s>Hi"):
        assert tokenizer.encode(text).count(bos) == 1
        assert tokenizer.encode(text)[0] == bos
    assert tokenizer.encode("") == [bos]
    assert tokenizer.encode("Hi", add_bos=False) == tokenizer.encode_ordinary("Hi")
    assert tokenizer.encode("<s>Hi", add_bos=False)[0] == bos


def test_bos_is_not_added_where_the_package_does_not_ask():
    tokenizer = tiny.wrap(tiny.byte_level(), bos="<s>", add_bos=False)
    assert tokenizer.bos_token_id not in tokenizer.encode("Hi")
    assert tokenizer.encode("Hi", add_bos=True)[0] == tokenizer.bos_token_id


def test_leading_bos_are_counted_and_made_one():
    assert [find_prompt_bos(ids, 7) for ids in ([], [1], [7], [7, 7, 1, 7])] == [0, 0, 1, 2]
    assert find_prompt_bos([1], None) == 0
    assert one_bos([7, 7, 1, 7], 7, add=False) == [7, 1, 7]
    assert one_bos([1], 7, add=True) == [7, 1]
    assert one_bos([1], None, add=True) == [1]


def test_control_tokens_count_in_encode_and_not_in_encode_ordinary():
    tokenizer = tiny.wrap(tiny.byte_level())
    end = tokenizer.id_of("<|im_end|>")
    assert end in tokenizer.encode("a<|im_end|>")
    ids = tokenizer.encode_ordinary("a<|im_end|>")
    assert not tokenizer.special_token_ids & set(ids)
    assert tokenizer.decode(ids) == "a<|im_end|>"


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_first", "prepend"])
@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            ["<|im_end|>", "<|im_start|>", "<s>", " a", "hi", "\n", "é", "<|im_", "🔥"]
        ),
        max_size=8,
    )
)
def test_ordinary_text_survives_and_makes_no_control_token(kind, parts):
    native = tiny.byte_level() if kind == "byte_level" else tiny.byte_fallback(prefix=kind)
    tokenizer = tiny.wrap(native)
    text = "".join(parts)
    ids = tokenizer.encode_ordinary(text)
    assert not tokenizer.special_token_ids & set(ids)
    whole = tokenizer.decode(ids)
    # These tokenizers put a space before a text that has none, and strip one when decoding.
    assert whole == text or (kind == "metaspace_first" and " " + whole == text)


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_first", "prepend"])
def test_spans_are_encoded_as_in_the_whole_text(kind):
    native = tiny.byte_level() if kind == "byte_level" else tiny.byte_fallback(prefix=kind)
    tokenizer = tiny.wrap(native)
    spans = [Span("<|im_start|>", True), Span("hi a", False), Span("<|im_end|>", True)]
    expected = tokenizer.encode("<|im_start|>hi a<|im_end|>")
    assert tokenizer.encode_prompt(spans) == expected
    # One forged token at the end makes it encode another way, which must agree on the rest.
    forged = tokenizer.encode_prompt([*spans, Span("<s>", False)])
    assert forged[: len(expected)] == expected
    assert tokenizer.id_of("<s>") not in forged


def test_white_space_that_a_control_token_eats_is_eaten_around_forged_ones_too():
    native = tiny.byte_level()
    native.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    tokenizer = tiny.wrap(native)
    spans = [Span("<|end|>", True), Span("\n a", False)]
    assert tokenizer.encode_prompt(spans) == [tokenizer.id_of("<|end|>"), tokenizer.id_of("a")]
    assert tokenizer.encode_prompt([*spans, Span("<s>", False)])[:2] == tokenizer.encode_prompt(
        spans
    )


def test_text_that_joins_with_a_control_token_to_another_stays_apart_from_it():
    tokenizer = tiny.wrap(tiny.byte_level(special=("<s>", "<<s>")))
    ids = tokenizer.encode_prompt([Span("<", False), Span("<s>", True)])
    assert ids == [tokenizer.id_of("<"), tokenizer.id_of("<s>")]


def test_text_that_a_normalizer_makes_a_control_token_stays_text():
    native = tiny.byte_level(special=())
    native.normalizer = normalizers.Lowercase()
    native.add_special_tokens([AddedToken("<end>", special=True, normalized=True)])
    tokenizer = tiny.wrap(native)
    end = tokenizer.id_of("<end>")
    assert tokenizer.encode("a<END>")[-1] == end
    assert end not in tokenizer.encode_ordinary("a<END>")
    assert tokenizer.decode(tokenizer.encode_ordinary("a<END>")) == "a<end>"


def test_a_model_that_spells_a_control_token_by_itself_is_kept_from_it():
    tokenizer = tiny.wrap(tiny.unigram())
    ids = tokenizer.encode_ordinary("hi</s>a")
    assert tokenizer.id_of("</s>") not in ids
    assert tokenizer.decode(ids).replace(" ", "") == "hi</s>a"


def test_an_unknown_character_is_no_forged_token():
    tokenizer = tiny.wrap(tiny.unigram())
    unknown = tokenizer.id_of("<unk>")
    assert unknown in tokenizer.encode_ordinary("aΩ")
    assert unknown not in tokenizer.encode_ordinary("a<unk>")


def test_a_control_token_of_one_character_that_has_no_other_spelling_is_refused():
    native = tiny.with_decoder(None, ["a", "§"])
    native.add_special_tokens(["§"])
    with pytest.raises(InvalidRequest, match="'§'"):
        tiny.wrap(native).encode_ordinary("§")


def test_a_lone_surrogate_is_the_callers_mistake():
    tokenizer = tiny.wrap(tiny.byte_level())
    for encode in (tokenizer.encode, tokenizer.encode_ordinary):
        with pytest.raises(InvalidRequest, match=r"character 1 is the lone surrogate U\+D800"):
            encode("a\ud800")


def test_decode_shows_control_tokens_only_when_asked():
    tokenizer = tiny.wrap(tiny.byte_level())
    ids = tokenizer.encode("a<|im_end|>")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([10**6]) == ""
    for wrong in (-1, 2**40):
        with pytest.raises(InvalidRequest, match="negative or has more than 32 bits"):
            tokenizer.decode([1, wrong])


def test_token_bytes_of_each_kind():
    byte_level, spm = tiny.wrap(tiny.byte_level()), tiny.wrap(tiny.byte_fallback())
    unigram, word_piece = tiny.wrap(tiny.unigram()), tiny.wrap(tiny.word_piece())
    assert byte_level.token_bytes(byte_level.id_of("Ġt")) == b" t"
    assert byte_level.token_bytes(byte_level.id_of("ð")) == b"\xf0"
    assert byte_level.token_bytes(byte_level.id_of("<|im_end|>")) == b"<|im_end|>"
    assert byte_level.token_bytes(byte_level.id_of("tab \n")) == b"tab \n"
    assert spm.token_bytes(spm.id_of("▁hi")) == b" hi"
    assert spm.token_bytes(spm.id_of("<0xF0>")) == b"\xf0"
    assert spm.token_bytes(spm.id_of("é")) == "é".encode()
    assert unigram.token_bytes(unigram.id_of("▁hi")) == b" hi"
    assert word_piece.token_bytes(word_piece.id_of("##ing")) == b"ing"
    assert word_piece.token_bytes(word_piece.id_of("hello")) == b" hello"
    assert byte_level.token_bytes(10**6) == b""


def test_token_text_is_valid_json_also_for_half_a_character():
    tokenizer = tiny.wrap(tiny.byte_level())
    half = tokenizer.id_of("ð")
    assert tokenizer.token_text(half) == "\ufffd"
    assert json.loads(json.dumps(tokenizer.token_text(half))) == "\ufffd"
    assert tokenizer.token_text(tokenizer.id_of("Ġt")) == " t"


@pytest.mark.parametrize("build", [tiny.byte_level, tiny.byte_fallback, tiny.unigram])
def test_token_bytes_join_to_the_text(build):
    tokenizer = tiny.wrap(build())
    ids = tokenizer.encode_ordinary("hi a the him")
    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
    assert joined.removeprefix(" ") == "hi a the him"


def test_facts_of_the_vocabulary():
    tokenizer = tiny.wrap(tiny.byte_level(), eos=["<|im_end|>"])
    assert tokenizer.control_tokens == set(tiny.CHATML)
    assert tokenizer.special_token_ids == {tokenizer.id_of(token) for token in tiny.CHATML}
    assert tokenizer.eos_token_ids == {tokenizer.id_of("<|im_end|>")}
    assert tokenizer.vocab_size == tokenizer.id_of("tab \n") + 1
    assert tokenizer.id_of("nothing") is None
    assert tokenizer.id_of("<think>") not in tokenizer.special_token_ids


def test_importing_the_package_imports_neither_jinja_nor_tokenizers():
    source = Path(__file__).parents[2] / "src"
    modules = [
        f"tokenmill.text.{path.stem}" for path in (source / "tokenmill" / "text").glob("[a-z]*.py")
    ]
    assert "tokenmill.text.tokenizer" in modules
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(source)!r})\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'jinja2', 'tokenizers'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
