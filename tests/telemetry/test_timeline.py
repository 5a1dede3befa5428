import json

from tokenmill.telemetry.chrome_trace import to_chrome_trace, write_chrome_trace
from tokenmill.telemetry.memory import peak_resident_bytes, resident_bytes
from tokenmill.telemetry.timeline import Timeline


def finished():
    timeline = Timeline("r1")
    timeline.start = 10.0
    timeline.add("prefill", 10.1, 10.3, tokens=40, rows=1)
    timeline.add("decode", 10.3, 10.4, tokens=1, rows=1)
    timeline.add("decode", 10.4, 10.5, tokens=1, rows=1)
    timeline.first_token, timeline.end = 10.3, 10.5
    timeline.content = {"token_ids": [1, 2, 3]}
    return timeline


def test_speeds_follow_from_the_spans():
    timeline = finished()
    assert round(timeline.time_to_first_token, 6) == 0.3
    assert round(timeline.prefill_tokens_per_second, 3) == 200
    assert round(timeline.decode_tokens_per_second, 3) == 10


def test_what_did_not_happen_has_no_speed():
    timeline = Timeline("r2")
    assert timeline.time_to_first_token is None
    assert timeline.prefill_tokens_per_second is None
    assert timeline.decode_tokens_per_second is None


def test_a_span_is_recorded_also_when_its_body_fails():
    timeline = Timeline("r3")
    try:
        with timeline.span("prepare") as counts:
            counts["prompt_tokens"] = 3
            raise KeyError
    except KeyError:
        pass
    assert [(s.name, s.counts) for s in timeline.spans] == [("prepare", {"prompt_tokens": 3})]


def test_a_trace_has_one_event_a_span_in_microseconds():
    events = to_chrome_trace([finished()])["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == ["request", "prefill", "decode", "decode"]
    assert (spans[1]["ts"], spans[1]["dur"]) == (10_100_000.0, 200_000.0)
    assert spans[1]["args"] == {"tokens": 40, "rows": 1}


def test_content_is_in_the_trace_only_when_asked(tmp_path):
    assert "token_ids" not in json.dumps(to_chrome_trace([finished()]))
    file = tmp_path / "trace.json"
    write_chrome_trace(file, [finished()], content=True)
    request = json.loads(file.read_text())["traceEvents"][1]
    assert request["args"]["token_ids"] == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_the_peak_is_at_least_what_is_resident():
    assert peak_resident_bytes() >= resident_bytes() // 2 > 0
