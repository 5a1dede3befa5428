import threading

import numpy as np
import pytest

from support import tiny_tokenizers
from support.scripted import ScriptedBackend, byte_tokenizer, reply, scripted_package
from tokenmill.core.errors import (
    BackendError,
    Closed,
    ContextLengthExceeded,
    InvalidRequest,
    NoChatTemplate,
    Unsupported,
)
from tokenmill.core.events import FinishReason
from tokenmill.core.request import Chat, GenerateRequest, Limits, Stop
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def load(tmp_path):
    models = []

    def make(script, *, words=(), eos=(), prefill_tokens=512, tokenizer=True, **limits):
        context = limits.get("max_context", 64)
        backend = ScriptedBackend(script, **limits)
        package = scripted_package(tmp_path, eos=eos, context_length=context)
        text = byte_tokenizer(tmp_path, words) if tokenizer else None
        model = LoadedModel(package, text, backend, EngineConfig(prefill_tokens=prefill_tokens))
        models.append(model)
        return model, backend

    yield make
    for model in models:
        model.close()


def ask(model, prompt, **fields):
    fields.setdefault("sampling", GREEDY)
    return model.submit(GenerateRequest(prompt, **fields))


def deltas(stream):
    return [event.text for event in stream]


WORDS = (" L", " M", " N", " O", " P", " Q", " R")


def test_e1_a_stop_text_ends_with_the_token_that_completes_it(load):
    model, _ = load(reply(2, [256, 257, 258, 259, 260, 261, 262]), words=WORDS)
    result = ask(model, "ab", stop=Stop(texts=("O P Q",)), limits=Limits(20)).result()
    assert result.text == " L M N "
    assert (result.finish_reason, result.usage.completion_tokens) == ("stop", 6)
    assert result.token_ids == (256, 257, 258, 259, 260, 261)
    parts = deltas(ask(model, "ab", stop=Stop(texts=("O P Q",)), limits=Limits(20)))
    assert "".join(parts) == " L M N "
    assert not any("O" in part for part in parts)


def test_e3_a_character_of_four_byte_tokens_comes_whole(load):
    model, _ = load(reply(2, [0xF0, 0x9F, 0x94, 0xA5, 256]), words=("<end>",), eos=(256,))
    assert "".join(deltas(ask(model, "ab"))) == "🔥"


def test_e4_a_character_cut_by_the_limit_is_what_the_tokenizer_decodes(load):
    model, _ = load(reply(2, [0xF0, 0x9F, 0x94, 0xA5]))
    result = ask(model, "ab", limits=Limits(2)).result()
    assert result.text == model.tokenizer.decode([0xF0, 0x9F])
    assert result.finish_reason == "length"
    assert "".join(deltas(ask(model, "ab", limits=Limits(2)))) == result.text


def test_e5_an_end_token_is_counted_once_and_not_shown(load):
    model, _ = load(reply(2, [65, 66, 257, 67]), words=("<a>", "<b>"), eos=(256, 257))
    result = ask(model, "ab").result()
    assert result.token_ids == (65, 66)
    assert (result.finish_reason, result.reason) == ("stop", FinishReason.EOS)
    assert (result.text, result.usage.completion_tokens) == ("AB", 3)


def test_a_stop_on_a_byte_token_ends_with_that_token(tmp_path):
    tokenizer = tiny_tokenizers.wrap(tiny_tokenizers.byte_fallback())
    ids = [tokenizer.id_of(piece) for piece in ("a", "<0x0A>", "b")]
    backend = ScriptedBackend(reply(1, ids), vocab_size=tokenizer.vocab_size)
    package = scripted_package(tmp_path, vocab_size=tokenizer.vocab_size)
    model = LoadedModel(package, tokenizer, backend)
    result = ask(model, [ids[0]], stop=Stop(texts=("\n",)), limits=Limits(9)).result()
    model.close()
    assert (result.text, result.finish_reason) == ("a", "stop")
    assert result.token_ids == tuple(ids[:2])


def test_ignore_eos_goes_on(load):
    model, _ = load(reply(2, [65, 256, 66]), words=("<end>",), eos=(256,))
    result = ask(model, "ab", stop=Stop(ignore_eos=True), limits=Limits(3)).result()
    assert result.token_ids == (65, 256, 66)


def test_a_stop_id_counts_and_is_not_shown(load):
    model, _ = load(reply(2, [65, 66, 67]))
    result = ask(model, "ab", stop=Stop(token_ids=frozenset({66}))).result()
    assert (result.text, result.token_ids, result.reason) == ("A", (65, 66), FinishReason.STOP)


def test_max_tokens_beyond_the_room_left_is_lowered_to_it(load):
    model, _ = load(reply(2, [65]), max_context=10)
    result = ask(model, "ab", limits=Limits(100)).result()
    assert result.usage.completion_tokens == 8
    assert (result.reason, result.finish_reason) == (FinishReason.CONTEXT, "length")


def test_a_prompt_that_leaves_no_room_is_refused_with_both_counts(load):
    model, backend = load(reply(2, [65]), max_context=10)
    with pytest.raises(ContextLengthExceeded, match=r"12 tokens.*10 tokens"):
        ask(model, "x" * 12)
    assert backend.steps == []
    assert ask(model, "ab", limits=Limits(1)).result().text == "A"


def test_a_prompt_is_cut_into_chunks_that_leave_no_single_token(load):
    model, backend = load(reply(9, [65]), prefill_tokens=4)
    ask(model, "x" * 9, limits=Limits(2)).result()
    assert backend.steps == [[4], [3], [2], [1]]


def test_requests_of_several_lengths_run_together(load):
    script = lambda so_far: so_far[0]  # noqa: E731 - each repeats its own first byte
    model, backend = load(script)
    hold = threading.Event()
    backend.before_run = lambda: hold.wait(5)
    streams = [ask(model, text, limits=Limits(3)) for text in ("a", "bcd", "efghi")]
    hold.set()
    assert [stream.result().text for stream in streams] == ["aaa", "bbb", "eee"]
    assert [1, 1, 1] in backend.steps
    assert backend.committed == {}


def test_more_requests_than_rows_wait_for_their_turn(load):
    model, _ = load(lambda so_far: so_far[0], max_rows=2)
    streams = [ask(model, chr(97 + i), limits=Limits(2)) for i in range(7)]
    assert [s.result().text for s in streams] == [chr(97 + i) * 2 for i in range(7)]


def test_cancelling_frees_the_row_and_leaves_the_others(load):
    model, backend = load(lambda so_far: so_far[0], max_context=2000, max_rows=2)
    endless, other = ask(model, "x"), ask(model, "y", limits=Limits(5))
    next(iter(endless))
    endless.cancel()
    result = endless.result()
    assert (result.reason, result.finish_reason) == (FinishReason.CANCELLED, "length")
    assert other.result().text == "yyyyy"
    assert backend.committed == {}


def test_a_timeout_returns_what_there_is(load):
    model, _ = load(lambda so_far: 65, max_context=1_000_000)
    result = ask(model, "x", limits=Limits(timeout=0.05)).result()
    assert result.reason is FinishReason.DEADLINE
    assert set(result.text) == {"A"}
    assert "timeout" in result.note


def test_one_row_with_broken_logits_fails_alone(load):
    def script(so_far):
        if so_far[0] == ord("n"):
            return np.full(300, np.nan, np.float32)
        return 65

    model, backend = load(script)
    good, bad = ask(model, "g", limits=Limits(4)), ask(model, "n", limits=Limits(4))
    with pytest.raises(BackendError, match="not finite"):
        bad.result()
    assert good.result().text == "AAAA"
    assert backend.committed == {}


def test_a_backend_that_fails_ends_the_requests_in_flight_and_serves_the_next(load):
    model, backend = load(reply(1, [65]))
    backend.fail = RuntimeError("the sky fell")
    with pytest.raises(BackendError, match="the sky fell"):
        ask(model, "x").result()
    assert ask(model, "x", limits=Limits(2)).result().text == "AA"
    assert backend.committed == {}


def test_closing_ends_what_runs_and_refuses_what_comes(load):
    model, backend = load(lambda so_far: 65, max_context=1_000_000)
    stream = ask(model, "x")
    next(iter(stream))
    model.close()
    assert stream.result().reason is FinishReason.CANCELLED
    assert backend.closed
    with pytest.raises(Closed):
        ask(model, "x")


def test_a_chat_without_a_template_is_refused(load):
    model, _ = load(reply(1, [65]))
    with pytest.raises(NoChatTemplate, match="--raw"):
        ask(model, Chat([{"role": "user", "content": "hi"}]))


def test_text_without_a_tokenizer_is_refused_and_ids_work(load):
    model, _ = load(reply(2, [65]), tokenizer=False)
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        ask(model, "ab")
    result = ask(model, [1, 2], limits=Limits(3)).result()
    assert (result.text, result.token_ids) == ("", (65, 65, 65))


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([1, 300], {}, r"prompt\[1\] is 300"),
        ([1, -1], {}, r"prompt\[1\] is -1"),
        ([1, "a"], {}, r"prompt\[1\]"),
        ("a", {"limits": Limits(0)}, "max_tokens is 0"),
        ("a", {"limits": Limits(True)}, "max_tokens is True"),
        ("a", {"limits": Limits(timeout=-1)}, "timeout is -1"),
    ],
)
def test_bad_requests_are_refused_by_name(load, prompt, fields, message):
    model, backend = load(reply(1, [65]))
    with pytest.raises(InvalidRequest, match=message):
        ask(model, prompt, **fields)
    assert backend.steps == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("media", [b""]), ("constraint", "json"), ("session", "s"), ("adapter", "a")],
)
def test_what_is_not_built_is_refused_by_name(load, name, value):
    model, _ = load(reply(1, [65]))
    with pytest.raises(Unsupported, match=name):
        ask(model, "a", **{name: value})


def test_a_seed_gives_the_same_text_alone_and_in_company(load):
    flat = np.zeros(300, np.float32)
    flat[97:123] = 5.0
    model, _ = load(lambda so_far: flat)
    seeded = {"sampling": SamplingParams(temperature=1.0, seed=42), "limits": Limits(8)}
    alone = ask(model, "ab", **seeded).result().token_ids
    for _ in range(4):
        company = ask(model, "xyz", sampling=SamplingParams(), limits=Limits(9))
        assert ask(model, "ab", **seeded).result().token_ids == alone
        company.result()


def test_the_timeline_tells_every_station(load):
    model, _ = load(reply(5, [65]), prefill_tokens=3)
    result = ask(model, "abcde", limits=Limits(3)).result()
    names = [span.name for span in result.timeline.spans]
    assert names == [
        "prepare", "queue", "admit", "recall", "prefill", "prefill", "decode", "decode", "finish",
        "keep",
    ]  # fmt: skip
    assert result.timeline.count("prefill", "tokens") == 5
    assert result.timeline.content["token_ids"] == [65, 65, 65]
    starts = [span.start for span in result.timeline.spans]
    assert starts == sorted(starts)
