"""What a GPU that is not there is asked for, written down, and its streams, events and graphs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Gpu:
    """What the host has asked of the device.

    Attributes:
        log: kernels and operators by name, the rest in words; behind it the stream, if it is not the main one.
        graphs: the log of each graph that was captured.
        passed: the events that have passed when they are asked.
        live: the graphs that exist; each takes `GRAPH_BYTES`.
    """

    log: list[str] = field(default_factory=list)
    graphs: list[list[str]] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    is_capturing: bool = False
    stream: str = "main"
    num_streams: int = 0
    num_events: int = 0
    pinned: set[int] = field(default_factory=set)
    live: weakref.WeakSet[Graph] = field(default_factory=weakref.WeakSet)

    def take(self) -> list[str]:
        """The log, which begins anew."""
        log, self.log = self.log, []
        return log

    def say(self, text: str) -> None:
        self.log.append(text if self.stream == "main" or self.is_capturing else f"{text} [{self.stream}]")

    def wait(self, what: str) -> None:
        """The host waits."""
        assert not self.is_capturing, f"the host waits for {what} while a graph is captured"
        self.say(f"host waits for {what}")

    def copy(self, target: str, is_asynchronous: bool) -> None:
        """Between host and device."""
        assert not self.is_capturing, f"a copy to the {target} while a graph is captured"
        if is_asynchronous:
            self.say(f"copy to {target}")
        else:
            self.wait(f"a copy to the {target}")

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned


class Stream:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, other: Any) -> None:
        self.gpu.say(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.gpu.say(f"{self.name} waits for {event.name}")


class Event:
    def __init__(self, gpu: Gpu) -> None:
        gpu.num_events += 1
        self.gpu, self.name = gpu, f"event {gpu.num_events}"

    def record(self, stream: Any = None) -> None:
        self.gpu.log.append(f"{self.name} on {self.gpu.stream if stream is None else stream.name}")

    def query(self) -> bool:
        return self.name in self.gpu.passed

    def synchronize(self) -> None:
        self.gpu.wait(self.name)

    def elapsed_time(self, other: Any) -> float:
        return 0.25


class Graph:
    def __init__(self, gpu: Gpu) -> None:
        gpu.live.add(self)
        self.gpu, self.number = gpu, 0

    def replay(self) -> None:
        self.gpu.say(f"replay {self.number}")
