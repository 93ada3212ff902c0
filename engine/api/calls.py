"""Calls that share one engine: a call that waits for tokens runs the engine's next step, for all calls.

A step that fails, or is interrupted by Ctrl-C, leaves the engine in an unknown state. The engine then forgets all
requests, and its prefix cache too, which may name blocks whose KV was never computed.
"""

from __future__ import annotations

import time
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.api.llm_engine import LLMEngine
from engine.api.outputs import RequestOutput
from engine.api.request_state import RequestState
from engine.api.step_report import StepReport
from engine.api.turns import Turns
from engine.core.sequence import Request, RequestRefusedError
from engine.runner.executors.tensor_parallel import WorkerError


class RequestAbortedError(RuntimeError):
    """The engine has dropped the request, because a step failed in another call; the prompt can be given again."""


class EngineClosedError(RuntimeError):
    """The engine was closed, or a process that it needs has died; it generates nothing any more."""


@dataclass(eq=False)
class _Call:
    """The requests of one stream.

    Attributes:
        unfinished: those that the engine has.
        changed: those with tokens that the stream has not returned.
        failure: why the engine has none of them any more.
    """

    states: dict[Request, RequestState]
    unfinished: dict[Request, None] = field(default_factory=dict)
    changed: dict[Request, None] = field(default_factory=dict)
    failure: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.changed = {request: None for request in self.changed if request not in self.unfinished}
        self.unfinished.clear()


class Calls:
    """Runs the requests of all open streams, which may be those of several threads: each change of the engine, and each
    look at what it has brought, holds `turns`."""

    def __init__(self, engine: LLMEngine) -> None:
        self.turns = Turns()
        self.on_report: abc.Callable[[StepReport], None] = lambda report: None
        self._engine = engine
        self._open: dict[_Call, None] = {}  # those with unfinished requests
        self._call_of: dict[Request, _Call] = {}  # of their unfinished requests
        self._abandoned: list[_Call] = []
        self._is_changing = False  # also after a change that did not end
        self._closed: str | None = None

    def open(self, states: abc.Iterable[RequestState]) -> Stream:
        """Queue the requests of a call.

        Raises:
            RequestRefusedError: a request can never run; none of them is queued.
            EngineClosedError: the engine is closed.
        """
        call = _Call({state.request: state for state in states})
        stream = Stream(self, call)
        with self._change():
            refused = self._add(call)
        if refused is not None:
            raise refused
        return stream

    def step(self) -> None:
        """Run the engine's next step and hand out its tokens; raises what the step raises."""
        with self._change():
            if not self._open:
                return  # the last change had not ended, and all requests were aborted just now
            report = self._engine.step(time.perf_counter_ns())
            assert report is not None, "a call waits for requests that the engine does not have"
            self.on_report(report)
            self._hand_out(report)

    def abort(self, call: _Call) -> None:
        """Drop the requests of a call. Garbage collection may ask for it in the middle of a step: then at its end."""
        with self.turns:
            if self._is_changing:
                self._abandoned.append(call)
            elif call.unfinished:
                with self._change():
                    self._abort(call)

    def abandon(self, call: _Call) -> None:
        """Drop the requests of a call without waiting: at once, or, while another thread has its turn, at the end of
        the next change. Garbage collection asks for it, which may run in a thread that the other one waits for."""
        if not self.turns.take():
            self._abandoned.append(call)
            return
        try:
            self.abort(call)
        finally:
            self.turns.give_up()

    def close(self, reason: str) -> None:
        """End all calls; later ones raise EngineClosedError."""
        with self.turns:
            self._closed = self._closed or f"the engine is closed: {reason}"
            self._forget_all(EngineClosedError(self._closed))

    @contextmanager
    def _change(self) -> abc.Iterator[None]:
        """Wraps everything that changes the engine. If it does not end, all requests are aborted: at once, or, where
        that is interrupted too, before the next change."""
        with self.turns:
            if self._closed is not None:
                raise EngineClosedError(self._closed)
            if self._is_changing:
                self._recover(None)
            self._is_changing = True
            try:
                yield
                while self._abandoned:
                    self._abort(self._abandoned.pop())
            except BaseException as error:
                self._recover(error)
                raise
            self._is_changing = False

    def _recover(self, error: BaseException | None) -> None:
        if isinstance(error, WorkerError):
            self.close(str(error))
            return
        self._engine.reset()
        cause = "" if error is None else f" ({type(error).__name__}{f': {error}' if str(error) else ''})"
        self._forget_all(RequestAbortedError(f"a step of the engine failed{cause}: all requests were aborted"))

    def _forget_all(self, error: Exception) -> None:
        for call in self._open:
            call.fail(error)
        self._open.clear()
        self._call_of.clear()
        self._abandoned.clear()
        self._is_changing = False

    def _add(self, call: _Call) -> RequestRefusedError | None:
        """Queue all requests of a call, or, if one of them is refused, none."""
        for place, (request, state) in enumerate(call.states.items()):
            ends = state.find_stop_string if state.has_stop_strings else None
            self._open[call] = call.unfinished[request] = None
            self._call_of[request] = call
            try:
                self._engine.add(request, state.params, ends=ends, bad_words=state.bad_words)
            except RequestRefusedError as error:
                del self._call_of[request], call.unfinished[request]
                self._abort(call)
                return RequestRefusedError(f"prompts[{place}]: {error}")
        return None

    def _hand_out(self, report: StepReport) -> None:
        failures: dict[_Call, Exception] = {}
        for new in report.outputs:
            request = new.sequence.request
            call = self._call_of.get(request)
            if call is None or call in failures:
                continue
            try:
                call.states[request].receive(new)
                call.changed[request] = None
            except Exception as failure:
                failures[call] = failure
        for request in report.outcome.finished:
            owner = self._call_of.pop(request, None)
            if owner is not None:
                del owner.unfinished[request]
                if not owner.unfinished:
                    del self._open[owner]
        for call, error in failures.items():
            self._abort(call)
            call.fail(error)

    def _abort(self, call: _Call) -> None:
        for request in call.unfinished:
            self._engine.abort(request.request_id)
            del self._call_of[request]
            call.changed.pop(request, None)
        call.unfinished.clear()
        self._open.pop(call, None)


class Stream:
    """Outputs of the requests of one call, as an iterator: that of a request each time it has grown.

    Each step of the engine runs when an iterator waits for it. The requests of a stream are aborted when it is closed,
    when it raises an error, or when nobody refers to it any more.
    """

    def __init__(self, calls: Calls, call: _Call) -> None:
        self._calls = calls
        self._call = call

    @property
    def num_unfinished(self) -> int:
        """Requests that the engine is still working on."""
        return len(self._call.unfinished)

    @property
    def request_ids(self) -> list[int]:
        """The engine's numbers of the requests, in the order of their prompts."""
        return [request.request_id for request in self._call.states]

    @property
    def prompt_token_ids(self) -> list[list[int]]:
        """The prompts in tokens, in their order."""
        return [state.prompt_token_ids for state in self._call.states.values()]

    def take(self) -> list[RequestOutput]:
        """The outputs of the requests that have grown since they were last returned, without running a step.

        Raises:
            Exception: as `__next__`, where the requests were dropped.
        """
        with self._calls.turns:
            if not self._call.changed and self._call.failure is not None:
                raise self._call.failure
            return [self._changed_output() for _ in range(len(self._call.changed))]

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> RequestOutput:
        """The output of a request that has grown.

        Raises:
            RequestAbortedError: a step failed while another call waited, and the requests were dropped.
            EngineClosedError: the engine was closed.
            Exception: whatever a step raises.
        """
        while True:
            with self._calls.turns:  # given up after each step, in which other threads wait for tokens too
                if self._call.changed or not self.num_unfinished:
                    return self._changed_output()
                self.run_step()

    def _changed_output(self) -> RequestOutput:
        call = self._call
        if not call.changed and call.failure is not None:
            raise call.failure
        if not call.changed:
            raise StopIteration
        request = next(iter(call.changed))
        del call.changed[request]
        return self._output(request)

    def run_step(self) -> None:
        """Run one step of the engine, unless another thread has just finished the requests."""
        with self._calls.turns:
            if not self.num_unfinished:
                return  # a step of another thread has finished them
            try:
                self._calls.step()
            except BaseException:
                self.close()
                raise

    def finish(self) -> list[RequestOutput]:
        """The final outputs in the order of the prompts; `num_unfinished` must be 0. Raises as `__next__` does."""
        call = self._call
        with self._calls.turns:
            if call.failure is not None:
                raise call.failure
            call.changed.clear()
            return [self._output(request) for request in call.states]

    def close(self) -> None:
        """Abort the requests that have not finished; the stream then ends."""
        with self._calls.turns:
            self._call.changed.clear()
            self._calls.abort(self._call)

    def __del__(self) -> None:
        self._calls.abandon(self._call)

    def _output(self, request: Request) -> RequestOutput:
        try:
            return self._call.states[request].output(finished=request not in self._call.unfinished)
        except BaseException:
            self.close()
            raise
