"""Two hundred requests of all kinds on a real model: all end, and nothing is left behind."""

import random
import threading
import time

import pytest

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.core.errors import CallbackError
from tokenmill.core.events import FinishReason
from tokenmill.core.request import GenerateRequest, Limits, Stop
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.model import EngineConfig, LoadedModel
from tokenmill.package.load import load_package
from tokenmill.telemetry.memory import resident_bytes

pytestmark = [pytest.mark.model, pytest.mark.long]

MAX_ROWS = 6
REQUESTS = 200


def fails(tokens, logits):
    raise ValueError("this request is its own fault")


def a_request(choose):
    """Returns a request and seconds after which it is cancelled, or None."""
    kind = choose.choice(["plain", "plain", "open", "cancelled", "deadline", "failing"])
    prompt = [choose.randrange(1000, 40000) for _ in range(choose.choice((1, 7, 30, 90, 200)))]
    timeout = {"deadline": choose.uniform(0.05, 2.0), "open": 3.0}.get(kind)
    request = GenerateRequest(
        prompt,
        sampling=SamplingParams(temperature=choose.choice((0.0, 0.9)), seed=choose.randrange(99)),
        limits=Limits(None if kind == "open" else choose.randrange(1, 40), timeout),
        stop=Stop(ignore_eos=True),
        priority=choose.choice((-10, 0, 0, 10)),
        logits_processors=(fails,) if kind == "failing" else (),
    )
    return kind, request, choose.uniform(0.0, 1.5) if kind == "cancelled" else None


def run(model, choose, count):
    """Sends requests from several threads, and returns (kind, reason or error) of each."""
    jobs = [a_request(choose) for _ in range(count)]
    ends = []

    def client(share):
        timers, streams = [], []
        for kind, request, cancelled_after in share:
            streams.append((kind, model.submit(request)))
            if cancelled_after is not None:
                timers.append(threading.Timer(cancelled_after, streams[-1][1].cancel))
                timers[-1].start()
            time.sleep(0.15)
        for kind, stream in streams:
            try:
                ends.append((kind, stream.result().reason))
            except CallbackError as error:
                ends.append((kind, error))
        for timer in timers:
            timer.join()

    clients = [threading.Thread(target=client, args=(jobs[i::4],)) for i in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    return ends


def test_all_end_and_nothing_is_left_behind(smollm2):
    package = load_package(smollm2)
    backend = open_backend(package, BackendConfig(max_rows=MAX_ROWS, max_context=1024))
    # Room for about three requests of the longest kind, so that memory is short at times.
    budget = backend.limits.bytes([400] * 3)
    model = LoadedModel(package, None, backend, EngineConfig(memory_budget=budget))
    choose = random.Random(11)
    # The runtime keeps the memory of its largest call so far: begin with the largest there is.
    prompts = [[choose.randrange(1000, 40000) for _ in range(200)] for _ in range(MAX_ROWS)]
    for stream in [model.submit(GenerateRequest(p, limits=Limits(2))) for p in prompts * 2]:
        stream.result()
    run(model, choose, 100)
    warm = resident_bytes()
    ends = run(model, choose, REQUESTS)
    metrics = model.metrics.snapshot()
    assert len(ends) == REQUESTS
    allowed = {
        "plain": {FinishReason.LENGTH},
        "open": {FinishReason.DEADLINE, FinishReason.CONTEXT, FinishReason.LENGTH},
        "cancelled": {FinishReason.CANCELLED, FinishReason.LENGTH},
        "deadline": {FinishReason.DEADLINE, FinishReason.LENGTH},
    }
    for kind, end in ends:
        if kind == "failing":
            assert isinstance(end, CallbackError)
        else:
            assert end in allowed[kind], (kind, end)
    assert (metrics.running_requests, metrics.parked_requests, metrics.waiting_requests) == (
        0,
        0,
        {},
    )
    assert (metrics.reserved_bytes, metrics.committed_bytes) == (0, 0)
    assert sum(metrics.preemptions.values()) > 0, "nothing was preempted; this proves too little"
    backend.check_integrity()
    grown = resident_bytes() - warm
    assert grown < 0.02 * warm, f"{grown / 2**20:.1f} MiB more than after the warm-up"
    model.close()
