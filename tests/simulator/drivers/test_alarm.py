"""An alarm in an event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from simulator.drivers import alarm
from simulator.drivers.alarm import Alarm


@pytest.mark.parametrize("has_files", sorted({alarm._HAS_FILES, False}))
def test_what_was_set_last_is_called_once_and_not_early(has_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "_HAS_FILES", has_files)
    rung: list[tuple[str, int]] = []

    async def run() -> None:
        made = Alarm(asyncio.get_running_loop())
        now = time.monotonic_ns()
        for name, after_ms in (("replaced by an earlier one", 9), ("replaced by a later one", 1), ("last", 4)):
            made.set(now + after_ms * 10**6, lambda name=name: rung.append((name, time.monotonic_ns() - now)))  # type: ignore[misc]
        await asyncio.sleep(0.02)
        made.set(time.monotonic_ns() + 10**6, lambda: rung.append(("closed before", 0)))
        made.close()
        await asyncio.sleep(0.005)

    asyncio.run(run())
    ((name, passed_ns),) = rung
    assert name == "last" and passed_ns >= 4 * 10**6
