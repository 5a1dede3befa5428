"""`tokenmill plan`: what it prints of a plan."""

import json
from pathlib import Path

import pytest

from tokenmill.cli.main import app, run_command
from tokenmill.cli.plan import Loading, plan_section, plan_text
from tokenmill.engine.memory_plan import plan_memory
from tokenmill.scheduler.admission import Capacity

KIB, MIB, GIB = 2**10, 2**20, 2**30
ROOT = Path("/models/tiny")
MODEL = Path(__file__).parents[1] / "fixtures" / "llama" / "genai-int4"
HEAD = "   tokens    a request      a token   at once  bound by"


UNKNOWN = Loading(None, None)


def section(total, *, loading=UNKNOWN, bound="the machine", rows=4, **facts):
    """The section of a plan for 2,048 tokens with 45 KiB each."""
    facts = {"weights": 100 * MIB, "available": 10 * GIB, "is_measured": False} | facts
    capacity = Capacity(lambda lengths: 45 * KIB * sum(lengths), total, rows)
    return plan_section(plan_memory(capacity, 2048, **facts), loading, root=ROOT, bound=bound)


def test_a_plan_as_text():
    loading = Loading(grown_bytes=190 * MIB, peak_bytes=220 * MIB)
    took = "loading took 190.0 MiB, at most 220.0 MiB on the way"
    assert plan_text(section(200 * MIB, loading=loading)).splitlines() == [
        "/models/tiny",
        f"  weights        100.0 MiB  in their files; {took}",
        "  available       10.0 GiB  left to this process by the machine, the model being loaded",
        "  for requests   200.0 MiB  as configured; see --memory-budget",
        "  kept free        9.8 GiB  for steps, texts and other processes",
        "",
        HEAD,
        "      512     22.5 MiB     45.0 KiB         4  rows (memory: 8)",
        "    2,048     90.0 MiB     45.0 KiB         2  memory",
        "",
        "to fit more:",
        "  --max-rows 8               memory has room for 8 requests of 512 tokens",
        "  --memory-budget 270MiB     70.0 MiB more for 3 requests of 2,048 tokens at once",
        "  --max-context 1137         4 requests of at most 1,137 tokens fit at once",
    ]


def test_where_counting_ended_there_are_more():
    text = plan_text(section(90 * GIB, available=None))
    assert "         4  rows (memory: 1,024 and more)" in text


def test_a_small_budget_is_written_in_kib():
    capacity = Capacity(sum, 100, 4)
    plan = plan_memory(capacity, 2000, weights=0, available=None, is_measured=False)
    text = plan_text(plan_section(plan, UNKNOWN, root=ROOT, bound=None))
    assert "  --memory-budget 2KiB " in text


def test_what_is_not_known_is_not_said():
    text = plan_text(section(200 * MIB, available=None, bound=None))
    assert text.splitlines()[:4] == [
        "/models/tiny",
        "  weights        100.0 MiB  in their files",
        "  for requests   200.0 MiB  as configured; see --memory-budget",
        "",
    ]


def test_a_system_without_figures_sets_no_bound():
    made = section(2**63 - 1, available=None, bound=None, is_measured=True)
    assert made["budget"] == {
        "bytes": None,
        "is_measured": True,
        "spare_bytes": None,
        "margin_bytes": None,
    }
    assert "  for requests  no bound: this system does not say what is free" in plan_text(made)


def test_a_measured_budget_and_its_margin():
    text = plan_text(section(9 * GIB, is_measured=True, bound="the cgroup /job"))
    assert "left to this process by the cgroup /job, the model being loaded" in text
    assert "  for requests     9.0 GiB  measured, less a margin; see --memory-budget" in text
    assert "  kept free        1.0 GiB  for steps, texts and other processes" in text


def test_a_budget_that_leaves_less_than_the_margin():
    text = plan_text(section(9 * GIB + 900 * MIB))
    assert (
        "  kept free      124.0 MiB  1.0 GiB are advised for steps, texts and other processes"
        in text
    )


def test_a_budget_that_is_not_there():
    text = plan_text(section(12 * GIB))
    assert "  too much         2.0 GiB  more than there is" in text
    assert text.endswith("to fit more:\n  nothing: more is promised than there is")


def test_a_package_that_lets_one_request_run():
    text = plan_text(section(GIB, rows=1, can_add_rows=False))
    assert text.endswith("to fit more:\n  nothing: the package allows no more at once")


def test_a_context_that_no_request_can_fill():
    text = plan_text(section(45 * MIB, available=45 * MIB, is_measured=True))
    lacking = "45.0 MiB more than this process can take for 1 request of 2,048 tokens at once"
    smaller = "half of the weights' 100.0 MiB would be room enough for that"
    assert text.splitlines()[-8:] == [
        "      512     22.5 MiB     45.0 KiB         2  memory",
        "    2,048     90.0 MiB     45.0 KiB         0  memory",
        "one request alone can have 1,024 tokens of the context's 2,048",
        "",
        "to fit more:",
        f"  more memory                {lacking}",
        "  --max-context 256          4 requests of at most 256 tokens fit at once",
        f"  --precision or --variant   {smaller}",
    ]


def test_state_before_the_first_token_is_told():
    capacity = Capacity(lambda lengths: sum(3 * MIB + KIB * n for n in lengths), GIB, 4)
    plan = plan_memory(capacity, 64, weights=1, available=None, is_measured=False)
    made = plan_section(plan, UNKNOWN, root=ROOT, bound=None)
    assert "a request has 3.0 MiB of state before its first token" in plan_text(made)


@pytest.fixture
def plan(monkeypatch, capsys):
    """Runs `tokenmill plan` on a tiny model and returns its JSON."""
    monkeypatch.delenv("TOKENMILL_MEMORY_BUDGET", raising=False)

    def run(*arguments):
        words = ["plan", str(MODEL), "--json", *arguments]
        assert run_command(lambda: app(words, prog_name="tokenmill")) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_the_command_plans_what_the_engine_will_do(plan):
    found = plan("--max-rows", "3", "--max-context", "64", "--memory-budget", "1MiB")
    assert found["budget"]["bytes"] == MIB
    assert found["budget"]["is_measured"] is False
    assert found["requests"]["max_rows"] == 3
    assert found["requests"]["can_add_rows"] is True
    assert [fit["tokens"] for fit in found["fits"]] == [64]
    assert found["weights"]["bytes"] > 0


def test_without_a_budget_it_is_measured(plan):
    found = plan("--max-context", "64")
    assert found["budget"]["is_measured"] is True
    assert 0 < found["budget"]["bytes"] < found["available"]["bytes"] + 64 * MIB
