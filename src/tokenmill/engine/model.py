"""A loaded model: package, tokenizer, backend and engine thread, ready for requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.backends.base import BackendLimits, DecodeBackend
from tokenmill.backends.config import BackendConfig
from tokenmill.backends.select import open_backend
from tokenmill.core.errors import InvalidOption
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.engine import ActiveRequest, Engine
from tokenmill.engine.prepare import Preparer
from tokenmill.engine.streams import RequestStream
from tokenmill.engine.thread import EngineThread
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import ModelPackage
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
        load_options: how the package is read.
    """

    backend: str = "auto"
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    prefill_tokens: int = 512
    prefill_stretch: float = 3.0
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
    """A model that answers requests. Thread-safe."""

    def __init__(
        self,
        package: ModelPackage,
        tokenizer: Tokenizer | None,
        backend: DecodeBackend,
        *,
        prefill_tokens: int = 512,
        prefill_stretch: float = 0,
    ) -> None:
        self.package = package
        self.tokenizer = tokenizer
        self.limits: BackendLimits = backend.limits
        self._preparer = Preparer(package, tokenizer, backend.limits.max_context)
        engine = Engine(
            backend,
            prefill_tokens=_prefill_tokens(package, prefill_tokens, self.limits),
            max_stretch=_max_stretch(package, prefill_stretch, self.limits),
        )
        self._thread = EngineThread(engine)

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
        return cls(
            package,
            tokenizer,
            backend,
            prefill_tokens=config.prefill_tokens,
            prefill_stretch=config.prefill_stretch,
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be asked."""
        return self._preparer.has_chat_template

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Prepares a request and hands it to the engine.

        Raises:
            InvalidRequest: it cannot run; nothing has been computed.
            Closed: the model was closed.
        """
        prepared = self._preparer.prepare(request)
        stream = RequestStream(request.id, prepared.timeline)
        detokenizer = self.tokenizer.detokenizer() if self.tokenizer else None
        self._thread.submit(ActiveRequest(prepared, detokenizer, stream))
        return stream

    def close(self) -> None:
        """Cancels what runs and releases the model. Idempotent."""
        self._thread.close()


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
