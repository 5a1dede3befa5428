"""The library's face for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from tokenmill.api import (
    LLM,
    Conversation,
    ModelOptions,
    Prompt,
    RequestOptions,
    as_chat,
    as_conversations,
    as_prompts,
    build_request,
)
from tokenmill.core.errors import Closed
from tokenmill.core.events import GenerateEvent, GenerateResult
from tokenmill.core.request import Chat, GenerateRequest, Message
from tokenmill.engine.async_streams import AsyncRequestStream, AsyncStreamEvents
from tokenmill.engine.batch import Batch, window_of
from tokenmill.engine.signals import LoopSignal
from tokenmill.engine.streams import RequestStream
from tokenmill.telemetry.progress import prompt_progress, wants_progress

T = TypeVar("T")

_WORKERS = 4
"""Threads that load the model and prepare prompts, so that a long prompt holds up no short one."""


class AsyncLLM:
    """A loaded model whose verbs are awaited. The same as `LLM`, and for several loops at once.

    ```python
    async with AsyncLLM("smollm2") as llm:
        async for event in llm.stream("The capital of France is", max_tokens=8):
            print(event.text, end="")
    ```

    Nothing here blocks the event loop: the model is loaded and prompts are tokenized by threads.
    Leaving an iteration, or cancelling the task that waits, cancels the request at once.

    Args:
        model: see `LLM`.
        **options: see `LLM`.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Unpack[ModelOptions]) -> None:
        self._open = lambda: LLM(model, **options)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="tokenmill-prepare")
        self._changing = threading.Lock()
        self._loading: Future[LLM] | None = None
        self._closing: Future[None] | None = None

    async def load(self) -> LLM:
        """Loads the model unless that was done; every verb does so by itself.

        Returns:
            The same model with blocking verbs, and with what it is: package, tokenizer, limits.
            `close` closes it, too.

        Raises:
            Closed: it was closed.
            ModelNotFound, InvalidPackage, InvalidOption, DownloadFailed: see `LLM`.
        """
        with self._changing:
            self._refuse_if_closed()
            if self._loading is None:
                self._loading = self._workers.submit(self._open)
            loading = self._loading
        # Others wait for it, too: it goes on where the task that began it is cancelled.
        return await asyncio.shield(asyncio.wrap_future(loading))

    @overload
    async def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str], too
        self, prompts: str, *, progress: bool | None = None, **options: Unpack[RequestOptions]
    ) -> GenerateResult: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[int],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> GenerateResult: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[GenerateResult]: ...
    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> GenerateResult | list[GenerateResult]:
        """Continues a prompt, or several. See `LLM.generate`."""
        many, is_one = as_prompts(prompts)
        results = await self._results([(p, options) for p in many], is_one, progress)
        return results[0] if is_one else results

    def stream(
        self, prompt: Prompt, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[GenerateEvent]:
        """Continues a prompt and yields the text as it comes.

        The request is handed over when the first event is asked for, and what is wrong with it is
        raised then. Ending the iteration early cancels it.
        """
        return AsyncStreamEvents(lambda: self._submit(prompt, options))

    @overload
    async def chat(
        self, messages: Sequence[Message], *, progress: bool | None = None, **options: Any
    ) -> GenerateResult: ...
    @overload
    async def chat(
        self, messages: Sequence[Conversation], *, progress: bool | None = None, **options: Any
    ) -> list[GenerateResult]: ...
    async def chat(
        self,
        messages: Sequence[Message] | Sequence[Conversation],
        *,
        progress: bool | None = None,
        **options: Any,
    ) -> GenerateResult | list[GenerateResult]:
        """Answers a conversation, or several. See `LLM.chat`."""
        many, is_one = as_conversations(messages)
        results = await self._results([as_chat(m, options) for m in many], is_one, progress)
        return results[0] if is_one else results

    def stream_chat(self, messages: Conversation, **options: Any) -> AsyncIterator[GenerateEvent]:
        """Answers a conversation and yields the text as it comes. See `chat` and `stream`."""
        chat, rest = as_chat(messages, options)
        return AsyncStreamEvents(lambda: self._submit(chat, rest))

    async def submit(self, request: GenerateRequest) -> AsyncRequestStream:
        """Hands over a complete request; the stream gives its events, result and timeline.

        Raises:
            InvalidRequest: it cannot run; nothing has been computed.
            Busy: the queue is full.
            Closed: the model was closed.
        """
        llm = await self.load()
        return await self._started(lambda: llm.submit(request))

    async def close(self) -> None:
        """Cancels what runs and gives the memory back, after loading where that goes on.

        Idempotent.
        """
        await asyncio.shield(asyncio.wrap_future(self._begin_to_close()))

    async def __aenter__(self) -> AsyncLLM:
        try:
            await self.load()
        except BaseException:
            self._begin_to_close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _submit(
        self, prompt: Prompt | Chat, options: Mapping[str, Any]
    ) -> AsyncRequestStream:
        llm = await self.load()
        return await self._started(
            lambda: llm.submit(build_request(prompt, options, llm.package.defaults))
        )

    async def _started(self, submit: Callable[[], RequestStream]) -> AsyncRequestStream:
        return AsyncRequestStream(await self._in_worker(submit, RequestStream.cancel))

    async def _results(
        self,
        asked: Sequence[tuple[Prompt | Chat, Mapping[str, Any]]],
        is_one: bool,
        progress: bool | None,
    ) -> list[GenerateResult]:
        shown = wants_progress(progress, len(asked))
        if is_one and not shown:
            return [await (await self._submit(*asked[0])).result()]
        llm = await self.load()
        defaults = llm.package.defaults
        signal = LoopSignal(asyncio.get_running_loop())
        requests = await self._in_worker(
            lambda: [build_request(prompt, options, defaults) for prompt, options in asked]
        )
        window = window_of(llm.limits.max_rows)
        batch = Batch(llm.submit, requests, window=window, signal=signal)
        with prompt_progress(len(asked), shown=shown) as report:
            try:
                while not batch.is_done:
                    pause = 0.0
                    if batch.wants_more:
                        pause = await self._in_worker(batch.fill)
                    if batch.collect():
                        report(batch.num_done, batch.num_tokens)
                    elif pause:
                        await asyncio.sleep(pause)
                    else:
                        await signal.wait()
            except BaseException:
                batch.cancel()
                raise
        return batch.results

    async def _in_worker(
        self, work: Callable[[], T], undo: Callable[[T], object] = lambda done: None
    ) -> T:
        """Runs work off the loop; undoes what it did where nobody waits for it any more."""
        with self._changing:
            self._refuse_if_closed()
            future = self._workers.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: _undo(done, undo))
            raise

    def _begin_to_close(self) -> Future[None]:
        with self._changing:
            if self._closing is None:
                self._closing = self._workers.submit(_close, self._loading)
                self._workers.shutdown(wait=False)
            return self._closing

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise Closed("the model was closed", fix="Load it again")


def _close(loading: Future[LLM] | None) -> None:
    if loading is not None and loading.exception() is None:
        loading.result().close()


def _undo(done: Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
