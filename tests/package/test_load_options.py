import pytest

from tokenmill.core.options import Scope, resolve
from tokenmill.package.load_options import LoadOptions, load_options


def options(**given):
    return load_options(resolve(Scope.MODEL, given, environ={}))


def test_nothing_given_chooses_and_loses_nothing():
    assert options() == LoadOptions(variant=None, providers=(), lossy=False)


@pytest.mark.parametrize(
    ("ep", "name"),
    [
        ("cuda", "cuda"),
        ("CUDAExecutionProvider", "cuda"),
        ("cuda|device_id=1", "cuda"),
        ("plugin:/a/Lib.so|device=CPU", "plugin:/a/Lib.so"),
    ],
)
def test_providers_go_by_their_short_names(ep, name):
    assert options(ep=[ep, "cpu"]).providers == (name, "cpu")


def test_variant_lossy_and_template_are_passed_on():
    given = {"variant": "q4", "lossy": True, "chat_template": "tool_use"}
    assert options(**given) == LoadOptions(**given)
