"""The requests that a scheduler holds, from when they are added until all of their sequences have ended."""

from __future__ import annotations

from collections import abc

from engine.core.admission.refusal import Refusal
from engine.core.sequence import FINISHED, Request, RequestRefusedError, Sequence


class UnfinishedRequests:
    """Those that wait or run, in the order they were added; `refusal` knows what can never run."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._by_id: dict[int, Request] = {}
        self._num_added = 0

    def __iter__(self) -> abc.Iterator[Request]:
        return iter(self._by_id.values())

    def check(self, request: Request) -> int:
        """As `Scheduler.check`."""
        if request.request_id in self._by_id:
            raise RequestRefusedError(f"request id {request.request_id!r} is in use")
        return self._refusal.limit(request)

    def add(self, request: Request) -> Sequence:
        """Hold a request; returns its sequence, which is to be queued.

        Raises:
            RequestRefusedError: as `Scheduler.add`.
        """
        limit = self.check(request)
        request.order = self._num_added
        self._num_added += 1
        self._by_id[request.request_id] = request
        (sequence,) = request.sequences
        if sequence.end_length > limit:
            sequence.end_length = limit
        return sequence

    def pop(self, request_id: int) -> Request:
        """Hold a request no longer; raises KeyError if it is not held."""
        return self._by_id.pop(request_id)

    def end(self, ended: abc.Iterable[Sequence], now: int) -> list[Request]:
        """Sequences have ended; returns the requests that have no others, which are held no longer."""
        finished: list[Request] = []
        for sequence in ended:
            request = sequence.request
            request.num_unfinished -= sequence.status is FINISHED
            if not request.num_unfinished:
                request.finish_time = now
                del self._by_id[request.request_id]
                finished.append(request)
        return finished
