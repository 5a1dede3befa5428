import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from support import tiny_tokenizers as tiny
from tokenmill.text.detokenizer import StreamingDetokenizer, WholeDetokenizer

TOKENIZERS = {
    "byte_level": tiny.wrap(tiny.byte_level()),
    "spm_byte_fallback": tiny.wrap(tiny.byte_fallback()),
    "spm_no_strip": tiny.wrap(tiny.byte_fallback(strip=False)),
    "unigram": tiny.wrap(tiny.unigram()),
    "word_piece": tiny.wrap(tiny.word_piece()),
    **{
        f"decoder_{name}": tiny.wrap(tiny.with_decoder(decoder, tiny.PIECES))
        for name, decoder in tiny.DECODERS.items()
    },
}


def stream(tokenizer, ids, skip_special_tokens=True):
    detokenizer = tokenizer.detokenizer(skip_special_tokens)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    return [*deltas, detokenizer.flush()]


@pytest.mark.parametrize("skip", [True, False], ids=["skip_special", "show_special"])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_deltas_join_to_the_whole_decode(name, skip, data):
    tokenizer = TOKENIZERS[name]
    top = tokenizer.vocab_size + 1
    ids = data.draw(st.lists(st.integers(0, top), max_size=24))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    deltas = stream(tokenizer, ids, skip)
    assert "".join(deltas) == whole
    sent = ""
    for delta in deltas:
        sent += delta
        assert whole.startswith(sent)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_kind_of_decoder_streams(name):
    assert isinstance(TOKENIZERS[name].detokenizer(), StreamingDetokenizer)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_peek_is_what_flush_would_return_and_changes_nothing(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=12))
    detokenizer = tokenizer.detokenizer()
    sent = ""
    for count, token_id in enumerate(ids, 1):
        sent += detokenizer.push(token_id)
        assert sent + detokenizer.peek() == tokenizer.decode(ids[:count])
    assert sent + detokenizer.flush() == tokenizer.decode(ids)
    assert detokenizer.flush() == ""


def test_e3_bytes_of_one_character_join_to_it():
    for name in ("byte_level", "spm_byte_fallback"):
        tokenizer = TOKENIZERS[name]
        ids = tokenizer.encode_ordinary("🔥")[-4:]
        byte_values = [tokenizer.token_bytes(token_id) for token_id in ids]
        if name == "spm_byte_fallback":
            assert byte_values == [b"\xf0", b"\x9f", b"\x94", b"\xa5"]
        end = tokenizer.id_of("<|im_end|>")
        assert "".join(stream(tokenizer, [*ids, end])) == "🔥"
        assert "\ufffd" not in "".join(stream(tokenizer, [*ids, end]))


def test_e4_a_cut_character_decodes_as_the_whole_decode_does():
    spm = TOKENIZERS["spm_byte_fallback"]
    ids = [spm.id_of("<0xF0>"), spm.id_of("<0x9F>")]
    assert stream(spm, ids) == ["", "", "\ufffd\ufffd"]
    assert spm.decode(ids) == "\ufffd\ufffd"
    plain = tiny.wrap(tiny.byte_level(merges=()))
    ids = plain.encode_ordinary("🔥")[:2]
    assert stream(plain, ids) == ["", "", "\ufffd"]
    assert plain.decode(ids) == "\ufffd"


def test_only_the_outputs_first_space_is_stripped():
    spm = TOKENIZERS["spm_byte_fallback"]
    hi = spm.id_of("▁hi")
    assert stream(spm, [hi, hi]) == ["hi", " hi", ""]
    assert stream(TOKENIZERS["unigram"], [TOKENIZERS["unigram"].id_of("▁hi")] * 2) == [
        "hi",
        " hi",
        "",
    ]


def test_complete_characters_come_at_once():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode_ordinary("é!")
    assert stream(tokenizer, ids) == ["", "é", "!", ""]


def test_a_bad_byte_spoils_its_run_in_byte_fallback():
    spm = TOKENIZERS["spm_byte_fallback"]
    ids = [spm.id_of(token) for token in ("<0x41>", "<0xC3>", "a")]
    assert stream(spm, ids) == ["", "", "\ufffd\ufffda", ""]
    assert spm.decode(ids) == "\ufffd\ufffda"


def test_pieces_before_a_word_end_are_not_held_back():
    tokenizer = TOKENIZERS["decoder_bpe"]
    word, letter = tokenizer.id_of("e</w>"), tokenizer.id_of("a")
    assert stream(tokenizer, [letter, word, letter]) == ["a", "e", " a", ""]


def test_a_decoder_that_needs_the_whole_output_still_joins_to_it():
    decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "X")])
    tokenizer = tiny.wrap(tiny.with_decoder(decoder, ["a", "b", "c"]))
    assert isinstance(tokenizer.detokenizer(), WholeDetokenizer)
    ids = [2, 0, 1, 2, 2, 2, 2, 0, 1]
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids) == "cXccccX"
    assert deltas.index("c") < len(ids) - 1


def test_unknown_ids_show_nothing():
    assert stream(TOKENIZERS["byte_level"], [10**6, -1]) == ["", "", ""]
