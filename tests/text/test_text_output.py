from support import tiny_tokenizers as tiny
from tokenmill.text.stop_text import StopMatcher, StopOutcome
from tokenmill.text.text_output import TextOutput


def outputs(tokenizer, stops, ids):
    output = TextOutput(tokenizer.detokenizer(), StopMatcher(stops))
    shown = []
    for token_id in ids:
        outcome = output.push(token_id)
        shown.append(outcome.text)
        if outcome.stopped is not None:
            return shown, outcome.stopped
    end = output.finish()
    return [*shown, end.text], end.stopped


def words(*texts):
    """A tokenizer whose tokens are these texts, and a decoder that just joins them."""
    from tokenizers import decoders

    return tiny.wrap(tiny.with_decoder(decoders.Fuse(), ["a", *texts])), range(1, len(texts) + 1)


def test_e1_the_token_that_completes_the_stop_ends_the_output():
    tokenizer, ids = words(" L", " M", " N", " O", " P", " Q", " R")
    shown, stopped = outputs(tokenizer, ["O P Q"], ids)
    assert shown == [" L", " M", " N", " ", "", ""]
    assert stopped == "O P Q"


def test_e2_every_character_is_shown_once():
    tokenizer, ids = words(" Alice", "!", " Bye")
    assert outputs(tokenizer, ["\n", "Alice:"], ids) == ([" ", "Alice!", " Bye", ""], None)


def test_text_before_the_stop_in_the_same_token_is_shown():
    tokenizer, ids = words("one. END two", "x")
    assert outputs(tokenizer, ["END"], ids) == (["one. "], "END")


def test_a_stop_in_a_byte_token_ends_the_output_with_that_token():
    tokenizer = tiny.wrap(tiny.byte_fallback())
    ids = [tokenizer.id_of("▁hi"), tokenizer.id_of("<0x0A>"), tokenizer.id_of("▁hi")]
    assert outputs(tokenizer, ["\n"], ids) == (["hi", ""], "\n")


def test_an_unfinished_character_does_not_hide_a_stop():
    tokenizer = tiny.wrap(tiny.byte_level(merges=()))
    ids = tokenizer.encode_ordinary("aé")
    assert outputs(tokenizer, ["é"], ids) == (["a", "", ""], "é")
    assert outputs(tokenizer, ["é"], ids[:2]) == (["a", "", "\ufffd"], None)


def test_held_text_that_is_a_stop_at_the_finish_is_cut():
    tokenizer = tiny.wrap(tiny.byte_level(merges=()))
    output = TextOutput(tokenizer.detokenizer(), StopMatcher(["\ufffd"]))
    assert output.push(tokenizer.encode_ordinary("é")[0]) == StopOutcome("", None)
    assert output.finish() == StopOutcome("", "\ufffd")


class FixedDetokenizer:
    """Shows "a" for each token and holds the rest."""

    def __init__(self, held):
        self.held = held

    def push(self, token_id):
        return "a"

    def peek(self):
        return self.held

    def flush(self):
        held, self.held = self.held, ""
        return held


def test_text_of_the_token_is_shown_before_that_which_a_held_stop_cuts():
    output = TextOutput(FixedDetokenizer("b\nc\ufffd"), StopMatcher(["\n"]))
    assert output.push(0) == StopOutcome("ab", "\n")
