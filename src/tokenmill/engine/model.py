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
from tokenmill.package.model_package import ModelPackage
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is loaded.

    Attributes:
        backend: "auto", "ort" or "reference".
        backend_config: threads, providers, rows, context.
        prefill_tokens: most prompt tokens computed in one step, at least 2.
    """

    backend: str = "auto"
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    prefill_tokens: int = 512

    def __post_init__(self) -> None:
        if self.prefill_tokens < 2:
            raise InvalidOption(
                f"prefill_tokens is {self.prefill_tokens}",
                why="a chunk of one token is computed in another numerical class",
                fix="Use 2 or more",
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
    ) -> None:
        self.package = package
        self.tokenizer = tokenizer
        self.limits: BackendLimits = backend.limits
        self._preparer = Preparer(package, tokenizer, backend.limits.max_context)
        self._thread = EngineThread(Engine(backend, prefill_tokens=prefill_tokens))

    @classmethod
    def load(cls, directory: Path, config: EngineConfig) -> LoadedModel:
        """Reads a package and loads it.

        Raises:
            InvalidPackage: the package cannot work; the message names the place.
            InvalidOption: the configuration cannot be met here.
        """
        package = load_package(directory)
        tokenizer = _tokenizer_of(package)
        backend = open_backend(package, config.backend_config, config.backend)
        return cls(package, tokenizer, backend, prefill_tokens=config.prefill_tokens)

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
