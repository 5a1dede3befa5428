"""Tokenizers built from GGUF vocabularies, as Hugging Face's library reads them."""

import json

import pytest
from tokenizers import Tokenizer

from support.tiny_gguf import sentence_piece_vocabulary, vocabulary
from tokenmill.core.errors import InvalidPackage, UnsupportedModel
from tokenmill.package.gguf.metadata import Metadata
from tokenmill.package.gguf.tokenizer import build_tokenizer, merges_from_scores
from tokenmill.package.gguf.vocabulary import read_vocabulary

PREFIX = "tokenizer.ggml."


def byte_level(**fields):
    tokens, types = vocabulary()
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": ["t h"],
        "eos_token_id": 257,
        "bos_token_id": 258,
    }
    return Metadata({PREFIX + key: value for key, value in (values | fields).items()})


def sentence_piece(**fields):
    tokens, scores, types = sentence_piece_vocabulary()
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
    }
    return Metadata({PREFIX + key: value for key, value in (values | fields).items()})


def built(metadata):
    return build_tokenizer(metadata, read_vocabulary(metadata, 288))


def loaded(metadata):
    return Tokenizer.from_str(json.dumps(built(metadata).document))


TEXTS = ["the", " the  then\n\n\tx", "ünïcode 🔥 漢字", "12 345", "don't stop"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("metadata", [byte_level(), sentence_piece()], ids=["bytes", "pieces"])
def test_text_survives_a_round_trip(metadata, text):
    tokenizer = loaded(metadata)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", TEXTS[:2] + TEXTS[3:])
def test_text_survives_a_round_trip_however_it_is_split(pre, text):
    tokenizer = loaded(byte_level(pre=pre, add_bos_token=False))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'m", "Ġ12345", "ĠOK", "!"]),
        ("smollm", ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠOK", "!"]),
        ("llama-bpe", ["I", "'m", "Ġ", "123", "45", "ĠOK", "!"]),
        ("qwen2", ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠOK", "!"]),
    ],
)
def test_text_is_split_as_the_file_says(pre, pieces):
    pre_tokenizer = loaded(byte_level(pre=pre)).pre_tokenizer
    assert [piece for piece, _ in pre_tokenizer.pre_tokenize_str("I'm 12345 OK!")] == pieces


def test_an_unknown_way_to_split_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'newest-bpe'"):
        built(byte_level(pre="newest-bpe"))


def test_a_file_that_does_not_say_how_to_split_gets_a_warning():
    metadata = byte_level()
    del metadata._values[PREFIX + "pre"]
    (warning,) = built(metadata).warnings
    assert "tokenizer.ggml.pre" in warning


def test_merges_follow_the_scores():
    pieces = loaded(sentence_piece()).encode("the hello").tokens
    assert pieces == ["\u2581the", "\u2581", "he", "l", "lo"]


def test_the_best_score_merges_first():
    metadata = sentence_piece()
    _, scores, _ = sentence_piece_vocabulary()
    merges = merges_from_scores(read_vocabulary(metadata, 288), scores)
    assert merges == [["\u2581", "t"], ["h", "e"], ["\u2581t", "he"], ["l", "o"]]


def test_characters_without_a_token_become_bytes():
    pieces = loaded(sentence_piece()).encode("é").tokens
    assert pieces == ["\u2581", "<0xC3>", "<0xA9>"]


def test_no_space_is_prefixed_where_the_file_says_so():
    tokenizer = loaded(sentence_piece(add_space_prefix=False))
    assert tokenizer.encode("the").tokens == ["t", "he"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


@pytest.mark.parametrize(("metadata", "first"), [(byte_level, 258), (sentence_piece, 1)])
def test_bos_is_added_where_the_file_says_so(metadata, first):
    assert loaded(metadata(add_bos_token=True)).encode("h").ids[0] == first
    assert loaded(metadata(add_bos_token=False)).encode("h").ids[0] != first
    assert built(metadata(add_bos_token=True)).add_bos


def test_a_family_of_vocabularies_adds_bos_by_itself():
    assert built(byte_level(pre="llama-bpe")).add_bos
    assert not built(byte_level(pre="qwen2")).add_bos


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    tokens, types = vocabulary()
    types[258] = 4
    tokenizer = loaded(byte_level(tokens=tokens, token_type=types))
    ids = tokenizer.encode("h<|start|><|end|>").ids
    assert ids == [104, 258, 257]
    assert tokenizer.decode(ids) == "h<|start|>"


def test_end_of_text_is_the_union_of_what_the_file_names_and_marks():
    tokens, types = vocabulary()
    tokens[258], tokens[100] = "<|im_end|>", "<|eot_id|>"
    metadata = byte_level(tokens=tokens, token_type=types, eot_token_id=3, eos_token_id=257)
    assert list(read_vocabulary(metadata, 288).end_ids) == [257, 3, 258]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"eos_token_id": 288}, "eos_token_id"),
        ({"merges": ["q zz"]}, "'zz'"),
        ({"token_type": [1, 2]}, "token_type"),
        ({"token_type": [77] * 288}, "token_type"),
        ({"tokens": ["x"] * 289}, "289"),
        ({"tokens": [1]}, "tokens"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(fields, named):
    with pytest.raises(InvalidPackage, match=named):
        built(byte_level(**fields))


def test_an_absent_id_written_as_minus_one_is_absent():
    assert "pad_token" not in read_vocabulary(byte_level(padding_token_id=-1), 288).roles


def test_an_unknown_tokenizer_model_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'t5'"):
        built(byte_level(model="t5"))
