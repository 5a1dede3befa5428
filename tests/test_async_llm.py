"""The awaited face: on an engine that is stepped by hand, and on a tiny model."""

import asyncio
import gc
import threading

import pytest

from support.hand_engine import HandEngine
from support.tiny_genai import write_speaking
from tokenmill import LLM, AsyncLLM
from tokenmill.core.errors import (
    BackendError,
    Closed,
    InvalidPackage,
    InvalidRequest,
    ModelNotFound,
)
from tokenmill.core.events import FinishReason
from tokenmill.core.request import GenerateRequest, Limits
from tokenmill.core.sampling_params import SamplingParams

FOREVER = 10**9
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def engine(monkeypatch):
    """Stands where the model would be; `async with AsyncLLM("engine")` finds it."""
    engine = HandEngine()
    monkeypatch.setattr("tokenmill.async_llm.LLM", lambda model, **options: engine)
    return engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The arguments that load a tiny model with a chat template."""
    directory = tmp_path_factory.mktemp("tiny")
    options = {"cache_dir": directory / "cache", "threads": 1, "max_rows": 3}
    return write_speaking(directory / "model", chat_template=TEMPLATE), options


async def live(engine, count):
    """Waits until the engine has that many requests."""
    await asyncio.to_thread(engine.wait_for, lambda: len(engine.live) == count)


async def told(engine, cancelled):
    """Waits until the engine was told of these cancellations."""
    await asyncio.to_thread(engine.wait_for, lambda: sorted(engine.cancelled) == cancelled)


def test_leaving_a_stream_cancels_its_request_and_no_other(engine):
    async def main():
        async with AsyncLLM("engine") as llm:
            other = asyncio.create_task(llm.generate([2, 3]))
            await live(engine, 1)
            first = asyncio.ensure_future(anext(events := llm.stream([1, FOREVER])))
            await live(engine, 2)
            engine.step()
            assert (await first).token_ids == (1,)
            del events, first
            assert engine.cancelled == [1]
            engine.step()
            engine.step()
            assert (await other).token_ids == (2, 2, 2)

    asyncio.run(main())
    assert engine.ended == [1, 2]


def test_cancelling_a_task_in_the_middle_of_a_stream_cancels_the_request(engine):
    async def main():
        read = asyncio.Event()

        async def reader(llm):
            async for event in llm.stream([1, FOREVER]):
                assert event.token_ids == (1,)
                read.set()

        async with AsyncLLM("engine") as llm:
            task = asyncio.create_task(reader(llm))
            await live(engine, 1)
            engine.step()
            await read.wait()
            assert engine.cancelled == []
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.cancelled == [1]

    asyncio.run(main())


def test_cancelling_a_task_while_its_request_is_prepared_cancels_the_request(engine):
    async def main():
        entered, may_go_on, submit = threading.Event(), threading.Event(), engine.submit

        def slow(request):
            entered.set()
            may_go_on.wait()
            return submit(request)

        engine.submit = slow
        async with AsyncLLM("engine") as llm:
            task = asyncio.create_task(llm.generate([1, FOREVER]))
            await asyncio.to_thread(entered.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            may_go_on.set()
            await told(engine, [1])

    asyncio.run(main())


def test_an_error_of_a_request_is_raised_where_it_is_awaited(engine):
    error = BackendError("a step failed")
    engine.errors[1] = error

    async def main():
        async with AsyncLLM("engine") as llm:
            task = asyncio.create_task(llm.generate([1, 5]))
            await live(engine, 1)
            engine.step()
            with pytest.raises(BackendError) as raised:
                await task
            assert raised.value is error
            engine.errors[-2] = InvalidRequest("no")
            with pytest.raises(InvalidRequest):
                await anext(llm.stream([2, 5]))
            with pytest.raises(InvalidRequest, match="there is no option 'tempersture'"):
                await llm.generate([3, 5], tempersture=1)

    asyncio.run(main())


def test_two_thousand_prompts_keep_their_order_within_the_window(engine):
    async def main():
        async with AsyncLLM("engine") as llm:
            return await llm.generate([[n, 1 + n % 7] for n in range(2000)])

    with engine.running():
        results = asyncio.run(main())
    assert [r.token_ids for r in results] == [(n,) * (1 + n % 7) for n in range(2000)]
    assert engine.most <= 8


def test_the_first_error_of_many_ends_the_others(engine):
    engine.errors[3] = error = BackendError("the third fails")

    async def main():
        async with AsyncLLM("engine") as llm:
            with pytest.raises(BackendError) as raised:
                await llm.generate([[n, FOREVER] for n in range(2000)])
            assert raised.value is error

    with engine.running():
        asyncio.run(main())
    assert set(engine.cancelled) == {0, 1, 2, 4, 5, 6, 7}


def test_cancelling_a_task_of_many_ends_all_of_them(engine):
    async def main():
        async with AsyncLLM("engine") as llm:
            task = asyncio.create_task(llm.generate([[n, FOREVER] for n in range(2000)]))
            await live(engine, 8)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await told(engine, list(range(8)))

    asyncio.run(main())
    assert engine.most == 8


def test_loops_in_two_threads_share_a_model(engine):
    llm, answers = AsyncLLM("engine"), {}

    def run(number):
        async def main():
            asked = [llm.generate([number * 10 + n, 50]) for n in range(4)]
            answers[number] = [result.token_ids for result in await asyncio.gather(*asked)]

        asyncio.run(main())

    with engine.running():
        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    asyncio.run(llm.close())
    assert answers == {n: [(n * 10 + m,) * 50 for m in range(4)] for n in (1, 2)}


def test_closing_ends_what_runs_and_refuses_what_comes(engine):
    async def main():
        llm = AsyncLLM("engine")
        task = asyncio.create_task(llm.generate([1, FOREVER]))
        await live(engine, 1)
        await llm.close()
        await llm.close()
        assert engine.is_closed
        engine.step()
        assert (await task).reason is FinishReason.CANCELLED
        with pytest.raises(Closed):
            await llm.generate([2, 1])
        with pytest.raises(Closed):
            await llm.load()

    asyncio.run(main())


def test_closing_goes_on_where_the_task_that_began_it_is_cancelled(engine):
    async def main():
        may_go_on, submit = threading.Event(), engine.submit

        def slow(request):
            may_go_on.wait()
            return submit(request)

        engine.submit = slow
        llm = AsyncLLM("engine")
        busy = [asyncio.create_task(llm.generate([n, 1])) for n in range(4)]
        await llm.load()
        await asyncio.sleep(0)  # each takes one of the threads that close needs
        closing = asyncio.create_task(llm.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        may_go_on.set()
        await asyncio.to_thread(engine.wait_for, lambda: engine.is_closed)
        engine.step()
        await asyncio.gather(*busy, return_exceptions=True)

    asyncio.run(main())


def test_closing_what_was_never_used_loads_nothing(monkeypatch):
    monkeypatch.setattr("tokenmill.async_llm.LLM", lambda model, **options: pytest.fail("loaded"))
    asyncio.run(AsyncLLM("engine").close())


def test_loading_happens_once_and_does_not_block_the_loop(monkeypatch):
    engine, entered, may_go_on = HandEngine(), threading.Event(), threading.Event()
    loads = []

    def load(model, **options):
        loads.append((model, options))
        entered.set()
        may_go_on.wait()
        return engine

    monkeypatch.setattr("tokenmill.async_llm.LLM", load)

    async def main():
        llm = AsyncLLM("engine", threads=3)
        tasks = [asyncio.create_task(llm.load()) for _ in range(3)]
        await asyncio.to_thread(entered.wait)
        tasks[0].cancel()
        may_go_on.set()
        assert await asyncio.gather(*tasks[1:]) == [engine, engine]
        await llm.close()

    asyncio.run(main())
    assert loads == [("engine", {"threads": 3})]


def test_a_model_whose_entering_was_cancelled_is_closed_when_it_is_loaded(monkeypatch):
    engine, entered, may_go_on = HandEngine(), threading.Event(), threading.Event()

    def load(model, **options):
        entered.set()
        may_go_on.wait()
        return engine

    monkeypatch.setattr("tokenmill.async_llm.LLM", load)

    async def main():
        task = asyncio.create_task(AsyncLLM("engine").__aenter__())
        await asyncio.to_thread(entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await asyncio.to_thread(engine.wait_for, lambda: engine.is_closed)

    asyncio.run(main())


def test_what_cannot_be_loaded_says_why_to_everybody(tmp_path):
    async def main():
        llm = AsyncLLM(tmp_path / "nothing", cache_dir=tmp_path / "cache", offline=True)
        for _ in range(2):
            with pytest.raises((ModelNotFound, InvalidPackage)):
                await llm.generate("a")
        await llm.close()

    asyncio.run(main())


def test_a_tiny_model_says_the_same_as_to_the_blocking_face(tiny):
    directory, options = tiny
    asked = {"max_tokens": 12, "temperature": 0}
    chat = [{"role": "user", "content": "aa"}]
    prompts = [[4 + n, 7, 9] for n in range(40)]
    with LLM(directory, **options) as llm:
        expected = [r.token_ids for r in llm.generate(prompts, **asked)]
        expected_chat = llm.chat(chat, **asked).token_ids

    async def main():
        async with AsyncLLM(directory, **options) as llm:
            many = await llm.generate(prompts, **asked)
            assert [r.token_ids for r in many] == expected
            one = await asyncio.gather(*(llm.generate(p, **asked) for p in prompts))
            assert [r.token_ids for r in one] == expected
            streamed = [t async for e in llm.stream(prompts[0], **asked) for t in e.token_ids]
            assert tuple(streamed) == expected[0]
            assert (await llm.chat(chat, **asked)).token_ids == expected_chat
            assert [r.token_ids for r in await llm.chat([chat] * 3, **asked)] == [expected_chat] * 3
            streamed = [t async for e in llm.stream_chat(chat, **asked) for t in e.token_ids]
            assert tuple(streamed) == expected_chat
            request = GenerateRequest(prompts[1], SamplingParams(temperature=0), limits=Limits(12))
            stream = await llm.submit(request)
            assert (await stream.result()).token_ids == expected[1]
            assert stream.request_id == request.id
            assert stream.timeline.end is not None

    asyncio.run(main())


def test_a_cancelled_stream_frees_the_only_row_of_a_tiny_model(tiny):
    directory, options = tiny

    async def main():
        async with AsyncLLM(directory, **(options | {"max_rows": 1})) as llm:
            async for _ in llm.stream([4, 5], max_tokens=250, ignore_eos=True):
                break
            gc.collect()
            result = await llm.generate([4, 5], max_tokens=3, ignore_eos=True)
            assert result.usage.completion_tokens == 3

    asyncio.run(main())
