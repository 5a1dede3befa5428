from datetime import datetime

import pytest

from tokenmill.core.errors import InvalidRequest, TemplateError
from tokenmill.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LOOP = (
    "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
    "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
)


def render(source, messages=HELLO, *, special_tokens=(), **options):
    return (
        ChatTemplate(source, special_tokens=dict(special_tokens)).render(messages, **options).text
    )


def test_e8_tojson_escapes_neither_for_ascii_nor_for_html():
    assert render('{{ {"a":"é<b>"} | tojson(ensure_ascii=False) }}') == '{"a": "é<b>"}'
    assert render('{{ {"a":"é<b>"} | tojson }}') == '{"a": "é<b>"}'
    assert render('{{ {"a":"é"} | tojson(ensure_ascii=True) }}') == '{"a": "\\u00e9"}'


def test_e9_strftime_now_reads_the_clock():
    text = render(
        '{{ strftime_now("%d %b %Y %H:%M:%S") }}', clock=lambda: datetime(2026, 1, 2, 3, 4, 5)
    )
    assert text == "02 Jan 2026 03:04:05"


def test_a_conversation_in_chatml():
    assert render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{{ {"b":1,"a":[2]} | tojson(indent=1) }}', '{\n "b": 1,\n "a": [\n  2\n ]\n}'),
        ('{{ {"b":1,"a":2} | tojson(separators=(",", ":"), sort_keys=True) }}', '{"a":2,"b":1}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        (LOOP, "02"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahellob"),
        ("{% set n = namespace(x=1) %}{% for i in [2, 3] %}{% set n.x = i %}{% endfor %}{{ n.x }}",
         "3"),
        ("{{ dict(a=1)['a'] }}{{ dict.fromkeys('x') }}", "1{'x': None}"),
        ("{{ tools is none }}{{ documents is none }}{{ nothing is defined }}", "TrueTrueFalse"),
        ("{{ '<b>' }}", "<b>"),
    ],
)  # fmt: skip
def test_what_templates_rely_on(source, expected):
    assert render(source) == expected


def test_special_tokens_and_variables_are_there_and_variables_win():
    source = "{{ bos_token }}{{ eos_token }}{{ flag }}"
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert render(source, special_tokens=tokens, variables={"flag": 1, "eos_token": "!"}) == "<s>!1"


def test_tools_and_documents_reach_the_template():
    text = render(
        "{{ tools | tojson }}{{ documents[0].title }}",
        tools=[{"type": "function"}],
        documents=[{"title": "T"}],
    )
    assert text == '[{"type": "function"}]T'


def test_absent_fields_are_undefined_not_none():
    message = {"role": "assistant", "content": None, "tool_calls": None}
    assert render("{{ messages[0].content is defined }}{{ messages[0] | length }}", [message]) == (
        "False1"
    )


def test_reasoning_has_the_names_that_templates_read():
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    for field in ("reasoning_content", "thinking", "reasoning"):
        assert render(source, [{"role": "assistant", "content": "", field: "r"}]) == "rr"


def test_a_template_is_compiled_at_its_first_use():
    template = ChatTemplate("{% if %}", special_tokens={}, name="broken")
    with pytest.raises(TemplateError, match="'broken' does not compile: line 1: "):
        template.render(HELLO)


def test_a_syntax_error_names_its_line():
    with pytest.raises(TemplateError, match=r"line 3: Encountered unknown tag 'endfor'"):
        render("a\nb\n{% endfor %}")


def test_a_fault_that_only_pythons_compiler_finds_is_a_template_error():
    with pytest.raises(TemplateError, match="does not compile"):
        render("{% for i in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}")


def test_a_refusal_shows_the_templates_own_words():
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateError, match="refuses this conversation: roles must alternate"):
        render(source)


def test_a_failure_names_its_line():
    with pytest.raises(TemplateError, match="line 2: 'nothing' is undefined"):
        render("\n{{ nothing.at.all }}")
    with pytest.raises(TemplateError, match="line 1: "):
        render("{{ 'a' + 1 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace(_x=1) %}",
        "{% set n = namespace() %}{% set n['_x'] = 1 %}{% set n._x = 1 %}",
        "{{ dict.__init__.__globals__ }}",
        "{{ dict.update(messages[0], {'a': 1}) }}",
        "{{ 'a' * 10000000 }}",
        "{{ 10 ** 100000 }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_the_sandbox_stops(source):
    with pytest.raises(TemplateError):
        render(source)


def test_a_template_cannot_write_without_end(monkeypatch):
    monkeypatch.setattr("tokenmill.text.chat_template.MAX_RENDERED", 1000)
    with pytest.raises(TemplateError, match="more than 1000 characters"):
        render("{% for i in range(900) %}{{ 'abcdefgh' }}{% endfor %}{{ raise_exception('late') }}")


def test_the_final_message_is_left_open_to_continue():
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    text = render(CHATML, messages, continue_final_message=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nWell, "


def test_what_is_continued_gets_no_generation_prompt():
    source = "{{ add_generation_prompt }}{{ messages[0].content }}"
    assert render(source, continue_final_message=True) == "Falsehello"


def test_continuing_where_the_template_trims():
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    messages = [{"role": "assistant", "content": "Well, "}]
    assert render(source, messages, continue_final_message=True) == "[Well,"


def test_continuing_the_last_text_part():
    source = "{% for p in messages[0].content %}{{ p.text }}|{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    message = {"role": "assistant", "content": parts}
    assert render(source, [message], continue_final_message=True) == "a|b"
    assert parts[1] == {"type": "text", "text": "b"}


def test_continuing_what_the_template_does_not_show_is_refused():
    messages = [{"role": "assistant", "content": "abc"}]
    with pytest.raises(TemplateError, match="cannot be continued"):
        render("{{ messages[0].content[:2] }}", messages, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="has no text"):
        render("", [{"role": "assistant"}], continue_final_message=True)


def test_own_variables_cannot_be_overridden():
    with pytest.raises(InvalidRequest, match="'messages'"):
        render("", variables={"messages": []})
    with pytest.raises(InvalidRequest, match="variables are not an object"):
        render("", variables=["x"])


def test_parts_become_text_for_a_template_that_knows_text_only():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert render(CHATML, messages, add_generation_prompt=False) == (
        "<|im_start|>user\na\nb<|im_end|>\n"
    )
    printing = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert render(printing, messages) == "a\nb"
    image = [{"role": "user", "content": [{"type": "image_url"}]}]
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]\.type is 'image_url'"):
        render(CHATML, image)


def test_text_becomes_a_part_for_a_template_that_knows_parts_only():
    source = "{% for p in messages[0].content %}{{ p.text if p.type == 'text' }}{% endfor %}"
    assert render(source) == "hello"


def test_a_template_that_knows_both_gets_what_was_sent():
    source = "{% set c = messages[0].content %}{{ c if c is string else c[0].text + '!' }}"
    assert render(source) == "hello"
    assert render(source, [{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == "a!"


def test_objects_do_not_reach_the_template():
    class Sneaky:
        def write(self):
            raise AssertionError("a template reached an object")

    content = [{"type": "image", "image": Sneaky()}]
    source = "{{ messages[0].content[0].image }}{{ messages[0].content[0].type }}"
    assert render(source, [{"role": "user", "content": content}]) == "<Sneaky>image"
