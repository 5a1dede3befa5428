"""Imports point downwards only."""

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "tokenmill"

FLOORS = [
    {"core"},
    {"package", "text"},
    {"backends"},
    {"scheduler", "sampling"},
    {"engine"},
    {"api"},
    {"async_llm"},
    {"cli"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def ours(path):
    return {name for name in imports_of(path) if name.split(".")[0] == "tokenmill"}


def module_of(path):
    return ".".join(["tokenmill", *path.relative_to(SRC).with_suffix("").parts])


FILES = [p for p in SRC.rglob("*.py") if p not in {SRC / "__init__.py", SRC / "__main__.py"}]
"""All but the package's own two doors, `__init__.py` and `__main__.py`."""


def test_every_room_has_a_floor():
    rooms = {room_of(module_of(path)) for path in FILES}
    assert rooms <= {*FLOOR, "telemetry"}


def test_no_import_points_upwards_or_to_a_sibling():
    wrong = []
    for path in FILES:
        here = room_of(module_of(path))
        for name in ours(path):
            there = room_of(name)
            if there in ("", here, "telemetry"):
                continue
            if here == "telemetry" or FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{module_of(path)} imports {name}")
    assert wrong == []


def test_no_module_imports_itself_in_a_circle():
    graph = {module_of(path): ours(path) for path in FILES}
    done, trail = set(), []

    def visit(module):
        assert module not in trail, " -> ".join([*trail, module])
        if module in done or module not in graph:
            return
        trail.append(module)
        for name in graph[module]:
            visit(name)
        trail.pop()
        done.add(module)

    for module in graph:
        visit(module)
