"""The library's face."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast, overload

from tokenmill.backends.base import BackendLimits
from tokenmill.backends.config import BackendConfig
from tokenmill.core.errors import InvalidOption, InvalidRequest, Unsupported
from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.options import Scope, read_config_file, resolve
from tokenmill.core.provider import parse_provider
from tokenmill.core.request import (
    Chat,
    CustomSampler,
    GenerateRequest,
    Limits,
    LogitsProcessor,
    Message,
    Stop,
)
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.engine.batch import run_batch, window_of
from tokenmill.engine.model import EngineConfig, LoadedModel
from tokenmill.engine.streams import RequestStream, StreamEvents
from tokenmill.package.cache import Cache
from tokenmill.package.load_options import load_options
from tokenmill.package.model_package import GenerationDefaults, ModelPackage
from tokenmill.package.resolve import resolve_with_options
from tokenmill.scheduler.policy import PolicyName
from tokenmill.scheduler.scheduler import Preemption
from tokenmill.telemetry.metrics import Metrics
from tokenmill.telemetry.progress import prompt_progress, wants_progress
from tokenmill.text.tokenizer import Tokenizer


class ModelOptions(TypedDict, total=False):
    """How a model is found and loaded; see `tokenmill.core.options` for what each means."""

    backend: str
    ep: str | Sequence[str]
    ep_fallback: bool
    threads: int | None
    max_rows: int
    max_context: int | None
    memory_budget: str | int | None
    queue_policy: str
    max_queue: int
    preemption: str
    prefill_tokens: int
    prefill_stretch: float
    precision: str
    variant: str | None
    chat_template: str | None
    lossy: bool
    revision: str | None
    files: str | Sequence[str]
    offline: bool
    cache_dir: str | os.PathLike[str] | None
    state_dir: str | os.PathLike[str] | None


class RequestOptions(TypedDict, total=False):
    """What a generation may be asked for; see `tokenmill.core.options` for what each means.

    `logits_processors` and `sampler` are Python callables: see `tokenmill.core.request`.
    """

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop: bool
    ignore_eos: bool
    timeout: float | None
    priority: int | str
    client: str
    allow_control_tokens: bool
    logits_processors: Sequence[LogitsProcessor] | None
    sampler: CustomSampler | None


Prompt = str | Sequence[int]
"""Text, or token ids that are taken as they are."""

Conversation = Sequence[Message]


class LLM:
    """A loaded model.

    ```python
    with LLM("smollm2") as llm:
        print(llm.generate("The capital of France is", max_tokens=8, temperature=0).text)
    ```

    Args:
        model: a directory, a GGUF file, a catalogue name or a hub id ("org/name").
        **options: see `ModelOptions`. What is not given comes from the environment
            (TOKENMILL_...), then from the configuration file, then from the table's defaults.

    Raises:
        ModelNotFound: there is no such model.
        InvalidPackage: the model cannot work; the message names the place.
        InvalidOption: an option that cannot be met here.
        DownloadFailed: it had to be fetched, and that failed.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[ModelOptions]) -> None:
        values = resolve(Scope.MODEL, options, file=read_config_file(os.environ))
        if values["state_dir"] is not None:
            raise Unsupported(
                "state_dir is not supported", why="this version keeps no state beyond the process"
            )
        cache = Cache.at(values["cache_dir"])
        directory, loaded = resolve_with_options(os.fspath(model), cache, values)
        self._model = LoadedModel.load(directory, engine_config(loaded, cache))

    @property
    def package(self) -> ModelPackage:
        """What the model is."""
        return self._model.package

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, where it has one."""
        return self._model.tokenizer

    @property
    def limits(self) -> BackendLimits:
        """What the loaded backend can do."""
        return self._model.limits

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works."""
        return self._model.has_chat_template

    def metrics(self) -> Metrics:
        """Returns what the engine does at this moment, and what it has done so far."""
        return self._model.metrics.snapshot()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str], too
        self, prompts: str, *, progress: bool | None = None, **options: Unpack[RequestOptions]
    ) -> GenerateResult: ...
    @overload
    def generate(
        self,
        prompts: Sequence[int],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> GenerateResult: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[GenerateResult]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> GenerateResult | list[GenerateResult]:
        """Continues a prompt, without a chat template.

        Args:
            prompts: text or token ids; or a list of them, however long, which are computed
                together, a bounded number at a time.
            progress: whether to show a bar on stderr; by default for several prompts where that
                is a terminal.
            **options: see `RequestOptions`.

        Returns:
            The result, or a list of results in the order of the prompts.

        Raises:
            InvalidRequest: the request cannot run.
            Busy: the queue is full; only for a single prompt, several wait for their turns.
            TokenmillError: the first error of several prompts; the others were cancelled.
        """
        many, is_one = as_prompts(prompts)
        results = self._results([self._request(p, options) for p in many], is_one, progress)
        return results[0] if is_one else results

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Iterator[GenerateEvent]:
        """Continues a prompt and yields the text as it comes.

        Ending the iteration early cancels the request.
        """
        return StreamEvents(self.submit(self._request(prompt, options)))

    @overload
    def chat(
        self, messages: Sequence[Message], *, progress: bool | None = None, **options: Any
    ) -> GenerateResult: ...
    @overload
    def chat(
        self, messages: Sequence[Conversation], *, progress: bool | None = None, **options: Any
    ) -> list[GenerateResult]: ...
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Conversation],
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> GenerateResult | list[GenerateResult]:
        """Answers a conversation, through the package's chat template.

        Args:
            messages: turns such as {"role": "user", "content": "..."}; or a list of
                conversations, which are computed together, a bounded number at a time.
            progress: see `generate`.
            **options: see `RequestOptions`, and the fields of `core.request.Chat`: tools,
                documents, template, variables, add_generation_prompt, continue_final_message.

        Raises:
            NoChatTemplate: the package has none.
            InvalidRequest, Busy, TokenmillError: see `generate`.
        """
        many, is_one = as_conversations(messages)
        requests = [self._request(*as_chat(m, options)) for m in many]
        results = self._results(requests, is_one, progress)
        return results[0] if is_one else results

    def stream_chat(self, messages: Conversation, **options: Any) -> Iterator[GenerateEvent]:
        """Answers a conversation and yields the text as it comes. See `chat` and `stream`."""
        return StreamEvents(self.submit(self._request(*as_chat(messages, options))))

    def submit(self, request: GenerateRequest) -> RequestStream:
        """Hands over a complete request; the stream gives its events, result and timeline."""
        return self._model.submit(request)

    def close(self, *, drain_seconds: float = 0.0) -> None:
        """Takes no more requests, cancels what runs and gives the memory back. Idempotent.

        Args:
            drain_seconds: how long requests may go on before they are cancelled.
        """
        self._model.close(drain_seconds=drain_seconds)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _request(self, prompt: Prompt | Chat, options: Mapping[str, Any]) -> GenerateRequest:
        return build_request(prompt, options, self.package.defaults)

    def _results(
        self, requests: Sequence[GenerateRequest], is_one: bool, progress: bool | None
    ) -> list[GenerateResult]:
        shown = wants_progress(progress, len(requests))
        if is_one and not shown:
            return [self.submit(requests[0]).result()]
        window = window_of(self.limits.max_rows)
        with prompt_progress(len(requests), shown=shown) as report:
            return run_batch(self.submit, requests, window=window, report=report)


def engine_config(values: Mapping[str, Any], cache: Cache) -> EngineConfig:
    """Returns the engine's configuration from resolved options of the scope MODEL."""
    return EngineConfig(
        backend=values["backend"],
        backend_config=BackendConfig(
            threads=values["threads"],
            providers=tuple(parse_provider(text) for text in values["ep"]),
            provider_fallback=values["ep_fallback"],
            max_rows=values["max_rows"],
            max_context=values["max_context"],
            cache_dir=cache.graphs,
        ),
        prefill_tokens=values["prefill_tokens"],
        prefill_stretch=values["prefill_stretch"],
        queue_policy=PolicyName(values["queue_policy"]),
        max_queue=values["max_queue"],
        memory_budget=values["memory_budget"],
        preemption=Preemption(values["preemption"]),
        load_options=load_options(values),
    )


def build_request(
    prompt: Prompt | Chat, options: Mapping[str, Any], defaults: GenerationDefaults
) -> GenerateRequest:
    """Returns the complete request: what was given, then the package's defaults, then ours.

    Raises:
        InvalidRequest: an unknown option, or a value that cannot be used.
    """
    texts = {name: value for name, value in options.items() if name not in CALLABLES}
    processors = _first(options.get("logits_processors"), ())
    try:
        values = resolve(Scope.REQUEST, texts, environ={})
    except InvalidOption as error:
        raise InvalidRequest(error.what, why=error.why, fix=error.fix) from None
    return GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(
            temperature=_first(values["temperature"], defaults.temperature, 1.0),
            top_k=_first(values["top_k"], defaults.top_k, 0),
            top_p=_first(values["top_p"], defaults.top_p, 1.0),
            min_p=_first(values["min_p"], defaults.min_p, 0.0),
            seed=values["seed"],
        ),
        stop=Stop(
            texts=values["stop"],
            token_ids=frozenset(values["stop_token_ids"]),
            include=values["include_stop"],
            ignore_eos=values["ignore_eos"],
        ),
        limits=Limits(max_tokens=values["max_tokens"], timeout=values["timeout"]),
        priority=values["priority"],
        client=values["client"],
        logits_processors=tuple(processors) if isinstance(processors, list) else processors,
        sampler=options.get("sampler"),
    )


CALLABLES = ("logits_processors", "sampler")
"""Options that are no text, so that they have no row in the table."""


_CHAT_FIELDS = (
    "tools",
    "documents",
    "template",
    "variables",
    "add_generation_prompt",
    "continue_final_message",
    "allow_control_tokens",
)


def as_chat(messages: Conversation, options: Mapping[str, Any]) -> tuple[Chat, dict[str, Any]]:
    """Returns the conversation with those options that are its own, and the other options."""
    fields = {name: options[name] for name in _CHAT_FIELDS if options.get(name) is not None}
    rest = {name: value for name, value in options.items() if name not in _CHAT_FIELDS}
    return Chat(messages, **fields), rest


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> tuple[Sequence[Prompt], bool]:
    """Returns the prompts, and whether it was a single one that had no list around it."""
    is_one = isinstance(prompts, str) or not prompts or isinstance(prompts[0], int)
    return [cast("Prompt", prompts)] if is_one else cast("Sequence[Prompt]", prompts), is_one


def as_conversations(
    messages: Conversation | Sequence[Conversation],
) -> tuple[Sequence[Conversation], bool]:
    """Returns the conversations, and whether it was a single one that had no list around it."""
    is_one = not messages or isinstance(messages[0], Mapping)
    conversation = cast("Conversation", messages)
    return [conversation] if is_one else cast("Sequence[Conversation]", messages), is_one


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
