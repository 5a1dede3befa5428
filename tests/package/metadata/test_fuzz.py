"""Documents with parts put out of place: read, or refused with a typed error, and soon."""

import contextlib
import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_metadata import SPEC, STATIC, legacy, scattered, static, workflow, write_metadata
from tokenmill.core.errors import TokenmillError
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.metadata.read import read_metadata

GOOD = {
    "legacy": (legacy, SPEC),
    "static": (static, STATIC),
    "workflow": (workflow, SPEC),
    "scattered": (scattered, STATIC),
}
JUNK = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**70, 1.5, -0.0, "", "x", "\0", "..", "/", "a" * 300),
        *([], {}, [[]], [{}], {"": 1}, {"kind": "loop"}, [1, "x"], {"x": {"y": []}}),
        *("int64", "logits", "input_ids", "kv", "k0", "dec", "active", "append", "key"),
    ]
)


def places(value, path=()):
    """Every place of a document, as the path to it."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, inner in items:
        yield (*path, name)
        yield from places(inner, (*path, name))


def at(document, path):
    for name in path:
        document = document[name]
    return document


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {
        name: write_metadata(tmp_path_factory.mktemp(name), make(), spec=spec)
        for name, (make, spec) in GOOD.items()
    }


@given(data=st.data())
@settings(max_examples=200, deadline=5000)
def test_only_typed_errors_escape_whatever_a_document_says(directories, data):
    name = data.draw(st.sampled_from(sorted(GOOD)))
    document = copy.deepcopy(GOOD[name][0]())
    for _ in range(data.draw(st.integers(1, 3))):
        all_places = list(places(document))
        path = data.draw(st.sampled_from(all_places))
        parent, last = at(document, path[:-1]), path[-1]
        match data.draw(st.sampled_from(["junk", "other", "remove", "add"])):
            case "junk":
                parent[last] = copy.deepcopy(data.draw(JUNK))
            case "other":
                parent[last] = copy.deepcopy(at(document, data.draw(st.sampled_from(all_places))))
            case "remove":
                del parent[last]
            case _ if isinstance(parent, dict):
                parent[data.draw(st.sampled_from(["x", "kind", "default", "cell"]))] = 1
            case _:
                parent.append(copy.deepcopy(data.draw(JUNK)))
    file = directories[name] / "inference_metadata.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    with contextlib.suppress(TokenmillError):
        read_metadata(directories[name], LoadOptions(lossy=data.draw(st.booleans())))
