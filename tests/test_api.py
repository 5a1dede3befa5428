"""The blocking face, on a tiny model."""

import pytest

from support.tiny_genai import write_speaking
from tokenmill import LLM
from tokenmill.core.errors import InvalidRequest, NoChatTemplate
from tokenmill.core.events import FinishReason

GREEDY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    write_speaking(directory / "model", chat_template="{{ messages[0].content }}")
    with LLM(directory / "model", cache_dir=directory / "cache", threads=1, max_rows=3) as llm:
        yield llm


def test_many_prompts_give_the_results_of_each_alone_in_order(llm):
    prompts = [[4 + n % 80, 5, 6] for n in range(200)]
    alone = {n: llm.generate(prompts[n], **GREEDY).token_ids for n in range(80)}
    results = llm.generate(prompts, **GREEDY)
    assert [r.token_ids for r in results] == [alone[n % 80] for n in range(200)]


def test_many_conversations_give_many_results(llm):
    chats = [[{"role": "user", "content": text}] for text in ("a", "aa")]
    results = llm.chat(chats, **GREEDY)
    assert [r.token_ids for r in results] == [llm.chat(c, **GREEDY).token_ids for c in chats]


def test_a_bad_prompt_among_many_is_raised_and_the_model_goes_on(llm):
    prompts = [[4, 5]] * 20
    prompts[11] = [4, 10**6]
    with pytest.raises(InvalidRequest, match=r"prompt\[1\] is 1000000"):
        llm.generate(prompts, **GREEDY)
    assert llm.generate([4, 5], **GREEDY).usage.completion_tokens == 6


def test_a_bad_option_is_raised_before_anything_is_computed(llm):
    with pytest.raises(InvalidRequest, match="top_k"):
        llm.generate([[4, 5]] * 3, top_k=-1)


def test_progress_goes_to_stderr_where_it_is_asked_for(llm, capsys):
    assert len(llm.generate([[4, 5]] * 5, progress=True, **GREEDY)) == 5
    output = capsys.readouterr()
    assert (output.out, "5/5" in output.err) == ("", True)
    assert llm.generate([4, 5], progress=True, **GREEDY).reason is FinishReason.LENGTH
    assert "1/1" in capsys.readouterr().err
    llm.chat([[{"role": "user", "content": "a"}]] * 2, progress=True, **GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_progress_is_not_shown_where_stderr_is_no_terminal(llm, capsys):
    llm.generate([[4, 5]] * 3, **GREEDY)
    assert capsys.readouterr() == ("", "")


def test_leaving_a_stream_gives_its_row_to_the_next(llm):
    for _ in range(4):  # more than there are rows
        for _ in llm.stream([4, 5], max_tokens=250, ignore_eos=True):
            break
    assert llm.generate([4, 5], **GREEDY).usage.completion_tokens == 6


def test_a_stream_joins_to_the_result(llm):
    tokens = [token for event in llm.stream([4, 5], **GREEDY) for token in event.token_ids]
    assert tuple(tokens) == llm.generate([4, 5], **GREEDY).token_ids


def test_an_empty_list_is_an_empty_prompt(llm):
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate([])


def test_a_chat_needs_a_template(tmp_path):
    directory = write_speaking(tmp_path / "model")
    with (
        LLM(directory, cache_dir=tmp_path / "cache", threads=1) as llm,
        pytest.raises(NoChatTemplate),
    ):
        llm.chat([{"role": "user", "content": "a"}])


def test_metrics_tell_what_the_model_has_done(llm):
    before = llm.metrics()
    llm.generate([[4, 5]] * 3, **GREEDY)
    after = llm.metrics()
    assert after.generated_tokens - before.generated_tokens == 18
    assert after.as_dict()["running_requests"] == 0
