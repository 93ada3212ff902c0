"""Drives a server through a trace: an open loop waits for no answer, a closed loop and sessions for those they must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from engine.core.sequence import Request
from harness.config import RunConfig
from harness.config.schema.endpoint import OpenAIEngine
from harness.engines.endpoint.answers import Answer
from harness.engines.endpoint.client import Client
from harness.engines.endpoint.seen import ClientRecord, ClientRecorder, notes_on
from harness.engines.endpoint.texts import make_tokenizer, text_of
from harness.engines.switching import quick_wakes
from harness.errors import EngineError
from harness.workload.token_ids import PromptSource
from harness.workload.trace import Trace
from simulator.arrivals import NEVER, Arrivals

_NAP_S = 0.5  # longest wait between two looks at whether to stop
_EARLY_S = 0.0012  # timers of an event loop are up to a millisecond late: from here on it looks at the clock


class EndpointEngine:
    """A server, and the client that sends it a trace; the record fills while `run` runs.

    Raises:
        ConfigError: nothing answers at the endpoint, or it does not say what it serves.
    """

    def __init__(self, config: RunConfig, trace: Trace, arrivals: Arrivals) -> None:
        assert isinstance(config.engine, OpenAIEngine)
        self._settings = config.engine
        self._trace = trace
        self._arrivals = arrivals
        self._prompts = PromptSource(trace, config.model.vocab_size, config.seed)
        self._texts: dict[int, str] = {}
        self._recorder = ClientRecorder()
        self.record = ClientRecord(self._recorder)
        self._stopping = False
        self._failure: BaseException | None = None
        self._start_ns = time.perf_counter_ns()
        self._client = Client(self._settings, self._now_ns)
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._client.start())
        except BaseException:
            self.close()
            raise

    @property
    def num_blocks(self) -> int | None:
        return self._recorder.readings.pool[0] if self._recorder.readings.pool else None

    @property
    def meta(self) -> dict[str, Any]:
        """Of scheduler, pool and formats the server tells little; `sampled_steps` marks its steps as readings."""
        unknown = ("quantization", "kv_cache_dtype", "policy", "allocator", "kv_block_bytes")
        pool = self._recorder.readings.pool
        return {
            "model": self._client.model,
            **dict.fromkeys(unknown),
            "block_size": pool[1] if pool else 1,
            "sampled_steps": True,
        }

    pool_blocks: Sequence[int] = ()
    block_bytes = 0

    @property
    def device_name(self) -> str:
        return f"the server at {self._client.root.partition('://')[2]}"

    def describe(self) -> str:
        """The server, for the log."""
        return f"{self._client.model} at {self._client.root}"

    def step_times_from(self) -> str:
        return "step times: not seen by a client"

    def cost_model_text(self, load: str) -> str:
        return "measured by a client"

    def run(self) -> None:
        """Send the trace in real time, to its end or until `stop` is called.

        Raises:
            ConfigError: the server makes no texts, and none can be made here.
            EngineError: no request reached the server, or its cache cannot be reset.
        """
        with quick_wakes():
            self._loop.run_until_complete(self._serve())
        answers = self._recorder.answers
        if answers and not any(each.status == "finished" for each in answers):
            raise EngineError(f"engine=openai: no request was answered; the first: {answers[0].error}")

    def stop(self) -> None:
        self._stopping = True

    def unfinished(self) -> list[list[Request]]:
        """None that the record does not know already."""
        return [[]]

    def notes(self) -> list[str]:
        return notes_on(self._recorder.answers, self._trace, self._recorder.readings)

    def close(self) -> None:
        """Close the connections."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._client.close())
            self._loop.close()

    def _now_ns(self) -> int:
        return time.perf_counter_ns() - self._start_ns

    # -- in the event loop ----------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        await self._prepare()
        reading = asyncio.create_task(self._read_metrics())
        self._changed = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()
        try:
            while not self._stopping and self._failure is None:
                now = self._now_ns()
                due = self._arrivals.pop_due(now) if self._arrivals.next_ns <= now else []
                for arrival, row in due:
                    task = asyncio.create_task(self._send(row, arrival))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    task.add_done_callback(self._note_failure)
                if not due and self._arrivals.next_ns == NEVER and not tasks:
                    break
                await self._wait_for_arrival()
        finally:
            for task in [*tasks, reading]:
                task.cancel()
            await asyncio.gather(*tasks, reading, return_exceptions=True)
        if self._failure is not None:
            raise self._failure
        await self._read_once()

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        """What kept a request from being sent, such as a server that makes no texts, ends the run."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._changed.set()

    async def _wait_for_arrival(self) -> None:
        self._changed.clear()
        wait_s = min((self._arrivals.next_ns - self._now_ns()) * 1e-9 - _EARLY_S, _NAP_S)
        if wait_s <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), wait_s)

    async def _send(self, row: int, arrival_ns: int) -> None:
        request = self._prompts.make(row, arrival_ns)
        message = self._client.message(request, await self._prompt(request))
        answer = Answer(row, arrival_ns, self._now_ns())
        self._recorder.on_sent(answer)
        await self._client.ask(message, answer)
        now = self._now_ns()
        self._recorder.on_end(answer, now)
        self._note_history(request, answer)
        self._arrivals.on_finish(row, now)
        self._changed.set()

    def _note_history(self, request: Request, answer: Answer) -> None:
        """The next turn of a session begins with what was answered, where the server says which tokens it was."""
        token_ids = request.sequences[0].token_ids
        if request.session is not None and token_ids is not None:
            token_ids += answer.token_ids
            self._prompts.on_finish(request)

    async def _prompt(self, request: Request) -> list[int] | str:
        token_ids = request.sequences[0].token_ids
        assert token_ids is not None
        if not self._settings.sends_text:
            return token_ids.copy()
        text = self._texts.pop(request.request_id, None)
        return text if text is not None else (await text_of(token_ids, self._tokenizer))[0]

    async def _prepare(self) -> None:
        """Make texts beforehand, warm up, and empty the cache."""
        if self._settings.sends_text:
            self._tokenizer = make_tokenizer(self._settings, self._client)
            if "session_id" not in self._trace.rows:  # what a turn begins with is known when it is sent
                for row in range(len(self._trace.rows)):
                    self._texts[row] = await self._prompt(self._prompts.make(row, 0))  # type: ignore[assignment]
        for row in range(min(self._settings.warm_up_requests, len(self._trace.rows))):
            request = self._prompts.make(row, 0)
            prompt = self._texts[row] if row in self._texts else await self._prompt(request)
            await self._client.ask(self._client.message(request, prompt), Answer(row, 0, 0))
        if self._settings.reset_cache:
            await self._client.reset_cache()
        text = await self._metrics_text()
        self._start_ns = time.perf_counter_ns()
        self._note_reading(text, 0)

    async def _read_metrics(self) -> None:
        while self._settings.metrics_interval_s:
            await asyncio.sleep(self._settings.metrics_interval_s)
            await self._read_once()

    async def _read_once(self) -> None:
        self._note_reading(await self._metrics_text(), self._now_ns())

    def _note_reading(self, text: str | None, now_ns: int) -> None:
        if text is not None:
            self._recorder.readings.add(text, now_ns)

    async def _metrics_text(self) -> str | None:
        """None where it is not wanted, or a server has none."""
        if not self._settings.metrics_interval_s:
            return None
        url = self._settings.metrics or f"{self._client.root}/metrics"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            return await self._client.text(url)
        return None
