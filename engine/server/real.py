"""The real engine behind a server: `LLM` in a thread of its own, which runs the steps and hands out their tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import abc, deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from engine.api.calls import Stream
from engine.api.llm import LLM
from engine.api.outputs import RequestOutput
from engine.api.prompts import render
from engine.sampling_params import SamplingParams
from engine.server.backend import Channel, Delta, Opened, PromptInput, Sent
from engine.server.tally import Tally
from engine.switching import quick_wakes

Change = abc.Callable[[], None]


@dataclass(eq=False)
class _Call:
    """A stream of the engine, and how much of it the channel has got: characters and tokens of each sequence."""

    channel: Channel
    stream: Stream | None = None
    sent: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    num_cached: dict[int, int] = field(default_factory=dict)  # tokens, by prompt


class RealBackend:
    """Serves with `llm`; `start` is called in the event loop that the server runs in.

    Args:
        front: a tokenizer for the event loop, as one is for one thread at a time.

    Attributes:
        on_sent: told of a request of a stream when its first and last tokens were sent, in the engine's time.
    """

    def __init__(self, llm: LLM, model_name: str, tally: Tally, front: Any) -> None:
        self.model_name = model_name
        self.max_model_len = llm.engine.max_model_len
        self.default_params = llm.get_default_sampling_params()
        self.tally = tally
        tally.schedulers = lambda: [llm.engine.scheduler]
        tally.num_coming = lambda: self._num_coming
        self.on_sent: abc.Callable[[int, int, int], None] | None = None
        self._llm = llm
        self._front = front
        self._calls: dict[_Call, None] = {}
        self._inbox: deque[Change] = deque()
        self._wakes = threading.Condition()
        self._is_closing = False
        self._num_coming = 0  # prompts that the engine's thread has not taken
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    # -- in the event loop ----------------------------------------------------------------------------------------

    async def open(
        self,
        prompts: list[PromptInput],
        params: SamplingParams,
        channel: Channel,
        priority: int,
        session: int | None = None,
    ) -> Opened:
        opened: asyncio.Future[Opened] = self._loop.create_future()
        call = _Call(channel)
        arrival_ns = time.perf_counter_ns() - (time.monotonic_ns() - channel.received_ns)

        def change() -> None:
            try:
                priorities = [priority] * len(prompts)
                call.stream = self._llm.stream(prompts, params, priority=priorities, arrival_ns=arrival_ns)
            except Exception as error:
                self._tell(_settle, opened, None, error)
                return
            self._calls[call] = None
            self._tell(_settle, opened, Opened(call, call.stream.prompt_token_ids), None)

        self._change(change)
        self._num_coming += len(prompts)
        try:
            return await opened
        except asyncio.CancelledError:
            self.abort(call)
            raise
        finally:
            self._num_coming -= len(prompts)

    def abort(self, call: object) -> None:
        assert isinstance(call, _Call)

        def change() -> None:
            if self._calls.pop(call, call) is None and call.stream is not None:
                call.stream.close()

        self._change(change)

    def note_sent(self, call: object, times_ns: list[Sent]) -> None:
        assert isinstance(call, _Call) and call.stream is not None
        if self.on_sent is None:
            return
        later_ns = time.perf_counter_ns() - time.monotonic_ns()
        for number, (first_ns, last_ns) in zip(call.stream.request_ids, times_ns, strict=True):
            if first_ns:
                self.on_sent(number, first_ns + later_ns, last_ns + later_ns)

    def render(self, messages: list[abc.Mapping[str, object]], options: abc.Mapping[str, object]) -> list[int]:
        text = render(self._front, messages, 0, {"chat_template": None, **options})
        return self.encode(text, adds_special_tokens=False)

    def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        whole = text.encode(errors="replace").decode()  # no tokenizer takes half of a surrogate pair
        tokens: list[int] = self._front.encode(whole, add_special_tokens=adds_special_tokens)
        return tokens

    def decode(self, token_ids: list[int]) -> str:
        text: str = self._front.decode(token_ids)
        return text

    async def reset_cache(self) -> bool:
        done: asyncio.Future[bool] = self._loop.create_future()

        def change() -> None:
            idle = not self._calls
            if idle:
                self._llm.reset_prefix_cache()
            self._tell(_settle, done, idle, None)

        self._change(change)
        return await done

    def close(self) -> None:
        """End all calls and free the model."""
        with self._wakes:
            self._is_closing = True
            self._wakes.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._llm.close()

    # -- in the engine's thread -----------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        """Let the engine's thread do something between two steps."""
        with self._wakes:
            self._inbox.append(change)
            self._wakes.notify()

    def _run(self) -> None:
        is_beside_steps = self._llm.engine.config.async_scheduling  # which another thread runs meanwhile
        with quick_wakes() if is_beside_steps else nullcontext():
            self._serve()
        for call in self._calls:
            self._tell(call.channel.fail, RuntimeError("the server is shutting down"))

    def _serve(self) -> None:
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._inbox or self._calls or self._is_closing)
                if self._is_closing:
                    break
            while self._inbox:
                self._inbox.popleft()()
            if self._calls:
                self._step()

    def _step(self) -> None:
        """Run a step, and hand out what it brought to all calls."""
        streams = [(call, call.stream) for call in self._calls if call.stream is not None]
        try:
            streams[0][1].run_step()
        except Exception as error:  # of the step: the engine has dropped all requests, and goes on
            for call in [*self._calls]:
                self._tell(call.channel.fail, error)
            self._calls.clear()
            return
        begun = {call for call, _ in streams if call.sent}
        self._hand_out([each for each in streams if each[0] not in begun])  # first tokens wait for nobody else's text
        self._hand_out([each for each in streams if each[0] in begun])

    def _hand_out(self, streams: list[tuple[_Call, Stream]]) -> None:
        news: list[tuple[Channel, list[Delta], int]] = []
        for call, stream in streams:
            try:
                outputs = stream.take()
            except Exception as error:  # of the tokenizer, in this call
                del self._calls[call]
                self._tell(call.channel.fail, error)
                continue
            deltas = [delta for output in outputs for delta in self._deltas(call, output)]
            if deltas:
                call.num_cached |= {output.index: output.num_cached_tokens or 0 for output in outputs}
                news.append((call.channel, deltas, sum(call.num_cached.values())))
            if not stream.num_unfinished:
                del self._calls[call]
        if news:
            self._tell(_deliver, news)

    def _deltas(self, call: _Call, output: RequestOutput) -> abc.Iterator[Delta]:
        for each in output.outputs:
            place = (output.index, each.index)
            num_characters, num_tokens = call.sent.get(place, (0, 0))
            if len(each.token_ids) == num_tokens and each.finish_reason is None:
                continue
            if num_tokens < 0:
                continue
            is_over = each.finish_reason is not None
            call.sent[place] = (len(each.text), -1 if is_over else len(each.token_ids))
            logprobs = None if each.logprobs is None else each.logprobs[num_tokens:]
            new = each.text[num_characters:], each.token_ids[num_tokens:]
            yield Delta(*place, *new, logprobs, each.finish_reason, each.stop_reason)

    def _tell(self, function: abc.Callable[..., None], *arguments: Any) -> None:
        """Call a function in the event loop; it may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _deliver(news: list[tuple[Channel, list[Delta], int]]) -> None:
    for channel, deltas, num_cached in news:
        channel.num_cached_tokens = num_cached
        channel.put(deltas)
