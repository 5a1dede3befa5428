"""docs/configuration.md against the option table; what it shows is read as it stands there.

After a change of the table: `TOKENMILL_WRITE_DOCS=1 pytest tests/e2e/test_configuration_page.py`.
"""

import os
import re
from pathlib import Path

import pytest

from tokenmill.core.options import Kind, Scope, options_of, read_config_file, resolve

FILE = Path(__file__).parents[2] / "docs" / "configuration.md"
HEADINGS = {Scope.MODEL: "## Options of models", Scope.REQUEST: "## Options of requests"}
BAR = r"\|"
EXAMPLE = {
    "threads": 4,
    "memory_budget": 4 * 10**9,
    "ep": ("cuda|device_id=1", "cpu"),
    "offline": True,
}


def code(text):
    return f"`{text}`" if text else ""


def default(row):
    if row.default in (None, (), ""):
        return ""
    return code(str(row.default).lower() if row.kind is Kind.SWITCH else str(row.default))


def table(scope):
    """The options of one scope as a table."""
    has_env = scope is Scope.MODEL
    lines = [
        f"| option | flag |{' environment |' if has_env else ''} default | |",
        f"|---|---|{'---|' if has_env else ''}---|---|",
    ]
    for row in options_of(scope):
        text = row.help
        if row.choices:
            text += f" One of {', '.join(map(code, row.choices))}."
        cells = [
            code(row.name),
            code(row.flag),
            *([code(row.env)] if has_env else []),
            default(row),
        ]
        cells.append(text)
        lines.append(
            "".join(f"| {cell.replace('|', BAR)} " if cell else "| " for cell in cells) + "|"
        )
    return "\n".join(lines) + "\n"


def page():
    text = FILE.read_text()
    if os.environ.get("TOKENMILL_WRITE_DOCS"):
        for scope, heading in HEADINGS.items():
            head, rest = text.split(heading)
            rest = re.sub(r"(?:^\|.*\n)+", "", rest, count=1, flags=re.MULTILINE)
            introduction, mark, after = rest.partition("\n## ")
            text = f"{head}{heading}{introduction.rstrip()}\n\n{table(scope)}{mark}{after}"
        FILE.write_text(text)
    return text


PAGE = page()


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[1]


@pytest.mark.parametrize("scope", Scope)
def test_the_page_has_the_table_of_the_options(scope):
    assert table(scope) in PAGE.split(HEADINGS[scope])[1]


def test_the_configuration_file_is_read(tmp_path):
    (tmp_path / "config.toml").write_text(block("toml"))
    file = read_config_file({"TOKENMILL_CONFIG": str(tmp_path / "config.toml")})
    values = resolve(Scope.MODEL, {}, environ={}, file=file)
    assert {name: values[name] for name in EXAMPLE} == EXAMPLE


def test_the_environment_says_the_same():
    pairs = re.findall(r'^export (\w+)="?([^"\n]*)"?$', block("sh"), flags=re.MULTILINE)
    values = resolve(Scope.MODEL, {}, environ=dict(pairs))
    assert {name: values[name] for name in EXAMPLE} == EXAMPLE


def test_each_option_is_taken_from_the_first_place_that_says_it():
    values = resolve(
        Scope.MODEL,
        {"offline": False},
        environ={"TOKENMILL_THREADS": "2", "TOKENMILL_MAX_ROWS": ""},
        file={"threads": 4, "max_rows": 3, "offline": True},
    )
    assert (values["offline"], values["threads"], values["max_rows"]) == (False, 2, 3)
    assert values["max_queue"] == 1024


def test_flags_on_the_page_are_flags():
    shown = set(re.findall(r"(--[a-z][\w-]+)", PAGE.split("## Options of models")[0]))
    flags = {row.flag for row in options_of(Scope.MODEL)}
    assert len(shown) == 4
    assert {flag.replace("--no-", "--") for flag in shown} <= flags
