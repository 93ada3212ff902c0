"""A lock that threads get in turn."""

from __future__ import annotations

import threading
from types import TracebackType


class Turns:
    """A reentrant lock. A thread that releases it and wants it again comes after those that have waited meanwhile: one
    that runs step after step lets others give their requests to the engine.
    """

    def __init__(self) -> None:
        # Reentrant too: garbage collection may run between the two, and close a stream in the same thread.
        self._next = threading.RLock()
        self._held = threading.RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            self._held.acquire()
        else:
            with self._next:
                self._held.acquire()
        self._note_owner()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_up()

    def take(self) -> bool:
        """Take the lock if no other thread has it; returns whether it was taken."""
        is_taken = self._held.acquire(blocking=False)
        if is_taken:
            self._note_owner()
        return is_taken

    def _note_owner(self) -> None:
        self._owner = threading.get_ident()
        self._depth += 1

    def give_up(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
        self._held.release()
