"""`show --json` of every fixture: stable, and every field of it documented.

After a deliberate change: `TOKENMILL_WRITE_SHOWN=1 pytest tests/e2e/test_show.py`, and look at the
difference before it is committed.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tokenmill.package.describe import describe
from tokenmill.package.load import load_package

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHOWN = FIXTURES / "shown"
DIRECTORIES = sorted(
    path.relative_to(FIXTURES).as_posix()
    for path in FIXTURES.glob("*/*")
    if path.is_dir() and path.parent.name not in ("making", "shown", "__pycache__")
    and path.name != "__pycache__"
)  # fmt: skip
DOCUMENTED = set(
    re.findall(
        r"`([\w.*]+)(?:\[\])?`", (Path(__file__).parents[2] / "docs" / "show.md").read_text()
    )
)


def shown(directory):
    """The description without what depends on where the package lies."""
    description = describe(load_package(directory))
    assert description.pop("root") == str(directory)
    return description


def compact(description):
    """JSON with one line for each port, layer and other small object."""
    text = json.dumps(description, indent=1, ensure_ascii=False)
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda m: re.sub(r"\s*\n\s*", " ", m[0]), text) + "\n"


def test_there_are_fixtures():
    assert len(DIRECTORIES) >= 30


@pytest.mark.parametrize("name", DIRECTORIES)
def test_what_is_shown_of_a_fixture_stays_as_it_is(name):
    file = SHOWN / f"{name.replace('/', '-')}.json"
    found = shown(FIXTURES / name)
    if os.environ.get("TOKENMILL_WRITE_SHOWN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(compact(found), encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))
    assert list(found) == list(json.loads(file.read_text(encoding="utf-8")))


def test_what_is_shown_does_not_depend_on_where_the_package_lies(tmp_path):
    copy = shutil.copytree(FIXTURES / "qwen2" / "model-package", tmp_path / "elsewhere")
    assert shown(copy) == shown(FIXTURES / "qwen2" / "model-package")


def fields(value, path=""):
    """Names of all fields, also of objects in lists; what is keyed by names of its own is not."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item, path)
    elif isinstance(value, dict):
        for name, item in value.items():
            if path not in ("components", "operators", "special_tokens", "options", "others"):
                yield name
            if name not in ("operators", "special_tokens", "provenance", "others", "options"):
                yield from fields(item, name)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_every_field_is_documented(name):
    undocumented = {field for field in fields(shown(FIXTURES / name)) if field not in DOCUMENTED}
    assert undocumented == set()
