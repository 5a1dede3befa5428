import dataclasses
import json
import re
import threading
from pathlib import Path

import pytest

from tokenmill.core.events import FinishReason
from tokenmill.telemetry.distribution import Distribution
from tokenmill.telemetry.metrics import EngineMetrics, Gauges, Metrics

IDLE = Gauges(
    running=0, waiting={}, parked=0, reserved_bytes=0, budget_bytes=None, committed_bytes=None
)
FIELDS = [field.name for field in dataclasses.fields(Metrics)]


def metrics(gauges=IDLE, **options):
    return EngineMetrics(lambda: gauges, **options)


def step(counted, **figures):
    given = {"decode_rows": 1, "prefill_rows": 0, "prefill_tokens": 0} | figures
    counted.stepped(**{"seconds": 0.5, "run_seconds": 0.25} | given)


def test_what_is_the_case_now_comes_from_the_gauges():
    gauges = Gauges(2, {"memory": 3, "rows": 1}, 4, 5000, 9000, 4096)
    found = metrics(gauges).snapshot()
    assert (found.running_requests, found.parked_requests) == (2, 4)
    assert found.waiting_requests == {"memory": 3, "rows": 1}
    assert (found.reserved_bytes, found.budget_bytes, found.committed_bytes) == (5000, 9000, 4096)


def test_each_outcome_of_admission_is_counted_by_itself():
    counted = metrics()
    for _ in range(2):
        counted.admitted()
    for _ in range(3):
        counted.capped()
    for why in ("rows", "memory", "rows"):
        counted.queued(why)
    for _ in range(4):
        counted.rejected()
    for _ in range(5):
        counted.refused_busy()
    found = counted.snapshot()
    assert (found.admitted_requests, found.capped_requests) == (2, 3)
    assert found.queued_requests == {"rows": 2, "memory": 1}
    assert (found.rejected_requests, found.refused_busy_requests) == (4, 5)


def test_a_step_counts_its_time_its_rows_and_what_is_ours():
    counted = metrics(max_rows=8)
    step(counted, decode_rows=3)
    step(counted, decode_rows=2, prefill_rows=1, prefill_tokens=40, seconds=2.0, run_seconds=0.5)
    found = counted.snapshot()
    assert (found.step_seconds.total, found.step_seconds.sum) == (2, 2.5)
    assert (found.outside_run_seconds.minimum, found.outside_run_seconds.maximum) == (0.25, 1.5)
    assert (found.step_rows.total, found.step_rows.sum) == (2, 6)
    assert (found.step_prefill_rows.total, found.step_prefill_rows.sum) == (1, 1)
    assert (found.step_prefill_tokens.total, found.step_prefill_tokens.sum) == (1, 40)
    assert found.batch_occupancy == 3 / 8


def test_occupancy_is_absent_without_steps_and_without_a_number_of_rows():
    assert metrics(max_rows=8).snapshot().batch_occupancy is None
    counted = metrics()
    step(counted)
    assert counted.snapshot().batch_occupancy is None


def test_preemptions_are_counted_by_how_and_replayed_tokens_in_sum():
    counted = metrics()
    for how in ("swap", "replay", "swap"):
        counted.preempted(how)
    counted.replayed(30)
    counted.replayed(12)
    found = counted.snapshot()
    assert (found.preemptions, found.replayed_tokens) == ({"swap": 2, "replay": 1}, 42)


def test_latencies_are_told_apart_and_every_token_is_counted():
    counted = metrics()
    counted.started(0.125)
    counted.first_token(0.5)
    counted.next_tokens([0.25, 0.75])
    found = counted.snapshot()
    assert (found.queue_seconds.total, found.queue_seconds.sum) == (1, 0.125)
    assert (found.first_token_seconds.total, found.first_token_seconds.sum) == (1, 0.5)
    assert (found.inter_token_seconds.total, found.inter_token_seconds.sum) == (2, 1.0)
    assert found.generated_tokens == 3


def test_ended_requests_are_counted_by_reason_with_their_tokens():
    counted = metrics()
    counted.finished("eos", 10, 5)
    counted.finished("cancelled", 20, 0)
    counted.finished("eos", 1, 2)
    found = counted.snapshot()
    assert found.finished_requests == {"eos": 2, "cancelled": 1}
    assert (found.finished_prompt_tokens, found.finished_completion_tokens) == (31, 7)


def test_uptime_is_the_time_since_the_engine_was_made():
    times = iter([100.0, 103.5])
    assert metrics(clock=lambda: next(times)).snapshot().uptime_seconds == 3.5


def test_a_snapshot_stays_as_it_is():
    waiting = {"rows": 1}
    counted = metrics(IDLE._replace(waiting=waiting))
    counted.queued("rows")
    before = counted.snapshot()
    waiting["rows"] = 2
    counted.queued("rows")
    counted.preempted("swap")
    counted.finished("eos", 1, 1)
    step(counted)
    assert before.waiting_requests == before.queued_requests == {"rows": 1}
    assert before.preemptions == before.finished_requests == {}
    assert before.step_seconds.total == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.running_requests = 1


def test_the_gauges_may_count_themselves():
    def gauges():
        counted.replayed(7)
        return IDLE

    counted = EngineMetrics(gauges)
    assert counted.snapshot().replayed_tokens == 7


def test_nothing_is_lost_and_no_step_is_seen_half():
    counted = metrics()
    begin = threading.Barrier(5)

    def write():
        begin.wait()
        for _ in range(2000):
            step(counted, prefill_rows=1, prefill_tokens=3)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    begin.wait()
    while any(writer.is_alive() for writer in writers):
        seen = counted.snapshot()
        assert seen.step_rows.sum == 2 * seen.step_seconds.total
        assert seen.step_prefill_tokens.sum == 3 * seen.step_seconds.total
    for writer in writers:
        writer.join()
    assert counted.snapshot().step_seconds.total == 8000


def test_plain_data_is_json_in_the_order_of_the_fields():
    counted = metrics(Gauges(1, {"rows": 2}, 0, 10, 20, 5), max_rows=4)
    step(counted)
    counted.finished("stop", 3, 4)
    data = counted.snapshot().as_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert list(data) == FIELDS
    assert data["waiting_requests"] == {"rows": 2}
    assert data["finished_requests"] == {"stop": 1}
    assert data["step_rows"]["mean"] == 1.0


def test_plain_data_of_an_engine_that_did_nothing_is_json_too():
    data = metrics().snapshot().as_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["budget_bytes"] is None
    assert data["first_token_seconds"]["p99_estimate"] is None


PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def rows_of(section):
    """Name and kind of each table row below a heading."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, flags=re.MULTILINE)


KINDS = {
    "int": "number",
    "float": "number",
    "int | None": "number or null",
    "float | None": "number or null",
    "Mapping[str, int]": "numbers by name",
    "Distribution": "distribution",
}


def test_the_page_has_one_row_a_figure_in_order_with_its_kind():
    wanted = [(field.name, KINDS[field.type]) for field in dataclasses.fields(Metrics)]
    assert rows_of("Figures") == wanted


def test_the_page_has_one_row_a_part_of_a_distribution():
    empty = Distribution((), (), 0, None, None).as_dict()
    assert [name for name, _ in rows_of("A distribution")] == list(empty)


@pytest.mark.parametrize("name", FIELDS)
def test_a_name_says_its_unit(name):
    units = r"_(seconds|bytes|tokens|requests|rows)$"
    assert re.search(units, name) or name in ("preemptions", "batch_occupancy")


def test_the_page_names_every_reason_to_end():
    row = next(line for line in PAGE.splitlines() if line.startswith("| `finished_requests`"))
    assert re.findall(r"`(\w+)`", row)[1:] == [reason.value for reason in FinishReason]
