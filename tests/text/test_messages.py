import pytest

from tokenmill.core.errors import InvalidRequest
from tokenmill.text.messages import check_messages, check_objects

BAD_PART = {"type": "text", "text": 1}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ("hello", "messages is not a list"),
        ({"role": "user"}, "messages is not a list"),
        (None, "messages is not a list"),
        ([], "messages is empty"),
        (["hello"], r"messages\[0\] is not an object"),
        ([{"content": "a"}], r"messages\[0\]\.role is missing"),
        ([{"role": 1, "content": "a"}], r"messages\[0\]\.role is not a text"),
        ([{"role": "", "content": "a"}], r"messages\[0\]\.role is not a text"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "tool", "content": None}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content is neither"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\]\.content\[0\] is not an object"),
        ([{"role": "user", "content": [{}]}], r"messages\[0\]\.content\[0\]\.type is missing"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"messages\[0\]\.content\[0\]\.text is missing",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": [BAD_PART]}],
            r"messages\[1\]\.content\[0\]\.text is not a text",
        ),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\]\.tool_calls is not a list"),
        ([{"role": "assistant", "tool_calls": [1]}], r"messages\[0\]\.tool_calls\[0\] is not"),
        ([{"role": "user", "content": "a", "name": 1}], r"messages\[0\]\.name is not a text"),
        (
            [{"role": "tool", "content": "a", "tool_call_id": 1}],
            r"messages\[0\]\.tool_call_id is not a text",
        ),
    ],
)  # fmt: skip
def test_a_malformed_message_is_named_by_index_and_field(messages, where):
    with pytest.raises(InvalidRequest, match=where):
        check_messages(messages)


def test_messages_are_copied_and_lose_their_empty_fields():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}], "name": None}
    checked = check_messages([message])
    assert checked == [{"role": "assistant", "tool_calls": [{"id": "x"}]}]
    checked[0]["tool_calls"][0]["id"] = "y"
    assert message["tool_calls"] == [{"id": "x"}]


def test_values_become_plain():
    class Text(str):
        pass

    checked = check_messages([{"role": Text("user"), "content": "a", "n": (1, 2.5, True, {1})}])
    assert type(checked[0]["role"]) is str
    assert checked[0]["n"] == [1, 2.5, True, "<set>"]


def test_tools_and_documents_are_lists_of_objects():
    assert check_objects("tools", None) is None
    assert check_objects("tools", ({"a": 1},)) == [{"a": 1}]
    with pytest.raises(InvalidRequest, match="documents is not a list"):
        check_objects("documents", {"a": 1})
    with pytest.raises(InvalidRequest, match=r"tools\[1\] is not an object"):
        check_objects("tools", [{}, "a"])
