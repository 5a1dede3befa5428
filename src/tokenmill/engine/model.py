"""A loaded model: package, tokenizer, backend and engine thread, ready for requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenmill.backends.base import BackendLimits, DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.core.errors import InvalidOption, OutOfMemory
from tokenmill.core.events import FinishReason
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.active import ActiveRequest
from tokenmill.engine.engine import Engine
from tokenmill.engine.prepare import PreparedRequest, Preparer
from tokenmill.engine.shared_budget import measured_budget
from tokenmill.engine.streams import RequestStream
from tokenmill.engine.thread import EngineThread
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import ModelPackage
from tokenmill.scheduler.admission import Capacity, Capped, Rejected, judge
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.policy import PolicyName, new_policy
from tokenmill.scheduler.scheduler import Preemption, Scheduler
from tokenmill.telemetry.metrics import EngineMetrics
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is loaded.

    Attributes:
        backend: "auto", "ort" or "reference".
        backend_config: threads, providers, rows, context.
        prefill_tokens: most prompt tokens computed in one step, at least 2; fewer where the
            package asks for it, more where it does not let prompts be cut.
        prefill_stretch: how many times longer than without them prompt tokens may make a step
            in which others decode, by prediction, above 1; 0 for no such bound.
        queue_policy: who runs next.
        max_queue: most requests that wait while no row is free.
        memory_budget: bytes that the state of all requests may take; None shares what this
            process is measured to have left with its other models.
        preemption: what becomes of the state of requests that are parked.
        load_options: how the package is read.
    """

    backend: str = "auto"
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    prefill_tokens: int = 512
    prefill_stretch: float = 3.0
    queue_policy: PolicyName = PolicyName.PRIORITY
    max_queue: int = 1024
    memory_budget: int | None = None
    preemption: Preemption = Preemption.AUTO
    load_options: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        if self.prefill_tokens < 2:
            raise InvalidOption(
                f"prefill_tokens is {self.prefill_tokens}",
                why="a chunk of one token is computed in another numerical class",
                fix="Use 2 or more",
            )
        if self.prefill_stretch and self.prefill_stretch <= 1:
            raise InvalidOption(
                f"prefill_stretch is {self.prefill_stretch}",
                why="a step with prompt tokens takes longer than one without",
                fix="Use more than 1, or 0 for no bound",
            )


class LoadedModel:
    """A model that answers requests. Thread-safe.

    Args:
        package: what it is.
        tokenizer: None where the package has none.
        backend: runs it; closed with the model.
        config: how it is loaded.
    """

    def __init__(
        self,
        package: ModelPackage,
        tokenizer: Tokenizer | None,
        backend: DecodeBackend,
        config: EngineConfig | None = None,
    ) -> None:
        config = config or EngineConfig()
        self.package = package
        self.tokenizer = tokenizer
        self.limits: BackendLimits = backend.limits
        self.has_own_budget = config.memory_budget is not None
        self._preparer = Preparer(package, tokenizer, self.limits.max_context)
        if config.memory_budget is None:
            self._budget = measured_budget()
        else:
            self._budget = MemoryBudget(config.memory_budget)
        costs = StepCosts()
        scheduler = Scheduler(
            self.capacity,
            self._budget,
            new_policy(config.queue_policy),
            costs,
            prefill_tokens=_prefill_tokens(package, config.prefill_tokens, self.limits),
            max_stretch=_max_stretch(package, config.prefill_stretch, self.limits),
            preemption=config.preemption,
            replays_in_chunks=self.limits.numerics.decode_equals_prefill,
        )
        self._engine = Engine(backend, scheduler, costs)
        self._thread = EngineThread(self._engine, max_queue=config.max_queue)

    @classmethod
    def load(cls, directory: Path, config: EngineConfig) -> LoadedModel:
        """Reads a package and loads it.

        Raises:
            InvalidPackage: the package cannot work; the message names the place.
            InvalidOption: the configuration cannot be met here.
        """
        package = load_package(directory, config.load_options)
        tokenizer = _tokenizer_of(package)
        backend = open_backend(package, config.backend_config, config.backend)
        return cls(package, tokenizer, backend, config)

    @property
    def capacity(self) -> Capacity:
        """What the model's requests share, as it is now."""
        shares_steps = self.package.permissions.continuous_batching is not False
        max_rows = self.limits.max_rows if shares_steps else 1
        return Capacity(self.limits.bytes, self._budget.total, max_rows)

    @property
    def metrics(self) -> EngineMetrics:
        """What the engine does and has done."""
        return self._engine.metrics

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be asked."""
        return self._preparer.has_chat_template

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Prepares a request and hands it to the engine.

        Raises:
            InvalidRequest: it cannot run; nothing has been computed.
            OutOfMemory: its prompt could not run here even alone.
            Busy: the queue is full.
            Closed: the model was closed.
        """
        prepared = self._judged(self._preparer.prepare(request))
        stream = RequestStream(
            request.id,
            prepared.timeline,
            sinks=self._engine.sinks,
            on_cancel=self._thread.cancel,
        )
        detokenizer = self.tokenizer.detokenizer() if self.tokenizer else None
        self._thread.submit(ActiveRequest(prepared, detokenizer, stream, time.perf_counter()))
        return stream

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, cancels what runs and releases the model. Idempotent.

        Args:
            drain_seconds: how long requests may go on before they are cancelled.
        """
        self._thread.close(drain_seconds=drain_seconds)
        if not self.has_own_budget:
            measured_budget()

    def _judged(self, prepared: PreparedRequest) -> PreparedRequest:
        """Station 3, as far as it does not depend on what runs."""
        verdict = judge(prepared.demand, self.capacity)
        match verdict:
            case None:
                return prepared
            case Capped(max_tokens):
                cap = (
                    f"capped at {max_tokens:,} tokens: more state than memory_budget has room for "
                    f"would be needed for {prepared.max_tokens:,}"
                )
                return replace(
                    prepared, max_tokens=max_tokens, limited_by=FinishReason.LENGTH, cap=cap
                )
            case Rejected():
                self.metrics.rejected()
                raise OutOfMemory(
                    "the request can never fit",
                    why=verdict.why,
                    fix=f"Shorten the prompt, or raise {verdict.knob}",
                )


def _prefill_tokens(package: ModelPackage, asked: int, limits: BackendLimits) -> int:
    """Returns the most prompt tokens of a step that the caller and the package allow.

    A package whose prompts must not be cut gets room for all of them in one step.
    """
    chunk = package.permissions.prefill_chunk
    if chunk == 0:
        return limits.max_rows * limits.max_context
    return asked if chunk is None else max(2, min(asked, chunk))


def _max_stretch(package: ModelPackage, asked: float, limits: BackendLimits) -> float | None:
    """Returns the bound on a step's length, or None where measured times must not cut prompts.

    They must not where the package forbids cuts, and where the place of a cut shows in the
    logits: results would not be repeatable.
    """
    may_cut = package.permissions.prefill_chunk != 0
    if not asked or not may_cut or limits.numerics.chunk_invariant_from is None:
        return None
    return asked


def _tokenizer_of(package: ModelPackage) -> Tokenizer | None:
    text = package.text
    if text.tokenizer_file is None:
        return None
    return Tokenizer.from_file(
        text.tokenizer_file,
        bos_token_id=text.bos_token_id,
        add_bos=text.add_bos,
        eos_token_ids=text.eos_token_ids,
        special_tokens=text.special_tokens,
    )
