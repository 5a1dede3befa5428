"""One set of requests under every way of running them: what comes out must not differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.request import GenerateRequest, Limits, LogitsProcessor, Stop
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel
from tokenmill.engine.streams import RequestStream
from tokenmill.scheduler.scheduler import Preemption

Row = NDArray[np.float32]

PREEMPTED_AT = 4
"""After so many tokens of a request another one takes its row."""


class Setting(NamedTuple):
    """How a model is loaded."""

    batch: bool
    chunk: int
    preemption: str  # "none", "swap" or "replay"

    @property
    def config(self) -> EngineConfig:
        """Without the bound on a step's length, so that it is sure who runs with whom."""
        preempted = self.preemption != "none"
        return EngineConfig(
            prefill_tokens=self.chunk,
            prefill_stretch=0,
            preemption=Preemption(self.preemption) if preempted else Preemption.AUTO,
        )

    def max_rows(self, prompts: Sequence[object]) -> int:
        """Returns how many rows make intruders preempt."""
        if self.batch:
            return len(prompts)
        return 2 if self.preemption != "none" else 1


class Asking(NamedTuple):
    """How requests are made and read."""

    streamed: bool
    seeded: bool


SETTINGS = [
    Setting(*values) for values in product((False, True), (16, 512), ("none", "swap", "replay"))
]
ASKINGS = [Asking(*values) for values in product((False, True), (False, True))]


@dataclass
class Outcome:
    """What a request gave: its ids, and the logits from which each was drawn."""

    ids: tuple[int, ...] = ()
    logits: list[Row] = field(default_factory=list)


def check(
    load: Callable[[Setting], LoadedModel],
    settings: Iterable[Setting],
    askings: Iterable[Asking],
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    tolerance: float = 0.0,
) -> None:
    """Asserts that all settings and askings give the same ids and logits.

    Args:
        load: loads the model.
        settings: how.
        askings: how it is asked.
        prompts: token ids, no two alike.
        tokens: how many to generate; enough that all run when the last prompt is computed.
        tolerance: how far logits may differ; 0 compares bits.
    """
    askings, wanted = list(askings), {}
    for setting in settings:
        model = load(setting)
        try:
            for asking in askings:
                before = sum(model.metrics.snapshot().preemptions.values())
                found = _run(model, setting, asking, prompts, tokens)
                other = wanted.setdefault(asking.seeded, found)
                assert list(_differences(found, other, tolerance)) == [], (setting, asking)
                assert all(len(outcome.logits) == tokens for outcome in found), (setting, asking)
                preempted = model.metrics.snapshot().preemptions
                times = (
                    (1 if setting.batch else len(prompts)) if setting.preemption != "none" else 0
                )
                assert sum(preempted.values()) - before == times, (setting, asking)
                assert set(preempted) <= {setting.preemption}, (setting, asking)
        finally:
            model.close()


def _run(
    model: LoadedModel,
    setting: Setting,
    asking: Asking,
    prompts: Sequence[Sequence[int]],
    tokens: int,
) -> list[Outcome]:
    """Runs the prompts. A batch fills all rows of the model.

    Preemption takes a row from the latest request; alone, there is an older one beside, since
    the oldest keeps its row.
    """
    outcomes = [Outcome() for _ in prompts]
    everybody = range(len(prompts))
    groups = [everybody] if setting.batch else [range(i, i + 1) for i in everybody]
    preempted = setting.preemption != "none"
    for group in groups:
        others: list[RequestStream] = []
        if preempted and not setting.batch:
            others.append(model.submit(_request(prompts[0][:5], asking, 2 * tokens)))
        streams: list[RequestStream] = []
        for i in group:
            processors = [_recorder(outcomes[i])]
            if preempted and i == group[-1]:
                processors.append(_intruder(model, len(prompts[i]) + PREEMPTED_AT, others))
            streams.append(model.submit(_request(prompts[i], asking, tokens, i, processors)))
        for i, stream in zip(group, streams, strict=True):
            if asking.streamed:
                outcomes[i].ids = tuple(token for event in stream for token in event.token_ids)
            else:
                outcomes[i].ids = stream.result().token_ids
        for stream in others:
            stream.result()
    return outcomes


def _request(
    prompt: Sequence[int],
    asking: Asking,
    tokens: int,
    seed: int = 0,
    processors: Sequence[LogitsProcessor] = (),
) -> GenerateRequest:
    sampling = SamplingParams(temperature=0)
    if asking.seeded:
        sampling = SamplingParams(temperature=1.2, top_p=0.95, seed=1000 + seed)
    return GenerateRequest(
        list(prompt),
        sampling=sampling,
        limits=Limits(tokens),
        stop=Stop(ignore_eos=True),
        logits_processors=tuple(processors),
    )


def _intruder(model: LoadedModel, length: int, submitted: list[RequestStream]) -> LogitsProcessor:
    """Returns what hands in a more important request when its own has so many tokens."""

    def intrude(tokens: Sequence[int], logits: Row) -> Row:
        if len(tokens) == length:
            request = GenerateRequest(
                list(tokens[:3]),
                limits=Limits(2),
                stop=Stop(ignore_eos=True),
                sampling=SamplingParams(temperature=0),
                priority=5,
            )
            submitted.append(model.submit(request))
        return logits

    return intrude


def _recorder(outcome: Outcome) -> LogitsProcessor:
    def record(tokens: Sequence[int], logits: Row) -> Row:
        outcome.logits.append(logits.copy())
        return logits

    return record


def _differences(
    found: Sequence[Outcome], wanted: Sequence[Outcome], tolerance: float
) -> Iterator[str]:
    """Yields in words where outcomes differ; a tolerance of 0 compares bits."""
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.ids != other.ids:
            yield f"request {i}: ids {one.ids} instead of {other.ids}"
        elif len(one.logits) != len(other.logits):
            yield f"request {i}: {len(one.logits)} draws instead of {len(other.logits)}"
        else:
            worst = max(
                float(np.abs(a - b).max()) for a, b in zip(one.logits, other.logits, strict=True)
            )
            if worst > tolerance:
                yield f"request {i}: logits differ by {worst}"
