"""A GPU that is not there: the code takes its CUDA path, no kernel runs, and what the host asks for is written down.

    with standing_in(monkeypatch) as gpu: ...     gpu.log: kernels, operators, copies, waits, events, graphs, in order

Tensors on the device are CPU tensors of type `OnDevice`, which say that they lie on cuda:0. Torch's operators compute
with them and Triton's kernels do not, so results mean nothing: what a kernel would write stays zero. As on a GPU,
tensors of host and device do not mix, a look at a value makes the host wait, and nothing waits while a graph is
captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.launch import Launcher
from tests.cuda_objects import Event, Gpu, Graph, Stream

CUDA = torch.device("cuda", 0)
GRAPH_BYTES = 1 << 20
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided"}
_FREE = {*_ALLOCATIONS, "detach", "alias", "lift_fresh", "_to_copy"}
_LOOKS = {"tolist", "numpy", "cpu", "_local_scalar_dense", "nonzero", "masked_select", "_unique2"}


class OnDevice(torch.Tensor):
    """A tensor on the device."""

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True


class DispatchMode(TorchDispatchMode):
    """A mode whose subclasses do not import `torch._dynamo`, which takes more than a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Operators(DispatchMode):
    """Writes down torch's operators that launch a kernel, which views and allocations do not."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu
        self.is_on_device = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if self.is_on_device and (name in _LOOKS or _indexes_by_mask(name, args)):
            self._gpu.wait(name)
        elif self.is_on_device and not func.is_view and name not in _FREE:
            self._gpu.say(name)
        return func(*args, **(kwargs or {}))


def _indexes_by_mask(name: str, args: Any) -> bool:
    indices = args[1] if name in ("index", "index_put_") else []
    return any(index is not None and index.dtype == torch.bool for index in indices)


class _Functions(TorchFunctionMode):
    """Puts tensors on the device, and tells host and device apart."""

    def __init__(self, gpu: Gpu, operators: _Operators) -> None:
        super().__init__()
        self._gpu = gpu
        self._operators = operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = any(isinstance(tensor, OnDevice) for tensor in tensors)
        if name == "__get__":
            return func(*args, **kwargs)
        if name == "copy_" and not all(isinstance(tensor, OnDevice) == on_device for tensor in tensors):
            return self._copy(*args, **kwargs)
        if name in ("to", "tensor", "as_tensor", "__setitem__") and (found := self._move(func, name, args, kwargs)):
            return found[0]
        if on_device:
            others = [each for each in tensors if not isinstance(each, OnDevice) and each.dim()]
            assert not others, f"{name}: tensors of the host and of the device"
        to_device = _is_cuda(kwargs.get("device"))
        if to_device:
            kwargs["device"] = "cpu"
        is_pinned = kwargs.pop("pin_memory", False)
        if on_device and name in _LOOKS:
            self._gpu.wait(name)
        made = self._call(func, args, kwargs, on_device or to_device)
        if is_pinned:
            self._gpu.pinned.add(made.untyped_storage().data_ptr())
        return _to_device(made, name) if to_device or on_device else made

    def _call(self, func: Any, args: Any, kwargs: Any, on_device: bool) -> Any:
        before, self._operators.is_on_device = self._operators.is_on_device, on_device
        try:
            return func(*args, **kwargs)
        finally:
            self._operators.is_on_device = before

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        to_device = isinstance(target, OnDevice)
        is_pinned = self._gpu.is_pinned(source if to_device else target)
        self._gpu.copy("device" if to_device else "host", non_blocking and is_pinned)
        self._call(torch.Tensor.copy_, (target, source), {}, False)
        return target

    def _move(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """The result, in a list, of what moves a tensor between host and device; [] if nothing moves."""
        if name == "__setitem__":
            if (
                isinstance(args[0], OnDevice)
                and isinstance(args[2], torch.Tensor)
                and not isinstance(args[2], OnDevice)
            ):
                self._gpu.copy("device", False)
                return [self._call(func, (*args[:2], args[2].as_subclass(OnDevice)), kwargs, False)]
            return []
        targets = [each for each in (*args[1:], kwargs.get("device")) if isinstance(each, str | torch.device)]
        if name != "to" or not targets or isinstance(args[0], OnDevice) == _is_cuda(targets[0]):
            if name != "to" and _is_cuda(kwargs.get("device")):
                self._gpu.copy("device", False)
            return []
        to_device = _is_cuda(targets[0])
        self._gpu.copy("device" if to_device else "host", kwargs.get("non_blocking", False) and not to_device)
        copied = self._call(torch.Tensor.clone, (args[0],), {}, False).as_subclass(
            OnDevice if to_device else torch.Tensor
        )
        dtypes = [each for each in (*args[1:], *kwargs.values()) if isinstance(each, torch.dtype)]
        return [copied.to(dtypes[0]) if dtypes else copied]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _to_device(made: Any, name: str) -> Any:
    """Results as tensors on the device; what is only allocated is zero, because no kernel will write it."""
    if isinstance(made, torch.Tensor):
        made = made if isinstance(made, OnDevice) else made.as_subclass(OnDevice)
        if name in _ALLOCATIONS:
            torch.Tensor.zero_(made)
    return made


class _Generator(torch.Generator):
    """Draws on the host."""

    def __new__(cls, _device: Any = None) -> _Generator:
        return super().__new__(cls)


def _cuda_functions(gpu: Gpu) -> dict[str, Any]:
    """What stands in for the functions and classes of `torch.cuda`."""
    total = 64 << 20

    def stream(_device: Any = None) -> Stream:
        gpu.num_streams += 1
        return Stream(gpu, f"side {gpu.num_streams}")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, gpu.stream = gpu.stream, stream.name
        yield
        gpu.stream = before

    @contextmanager
    def capture(graph: Graph, **_: Any) -> Iterator[None]:
        outside, gpu.log, gpu.is_capturing = gpu.log, [], True
        yield
        gpu.graphs.append(gpu.log)
        gpu.log, gpu.is_capturing, graph.number = outside, False, len(gpu.graphs) - 1
        gpu.say(f"capture {graph.number}")

    return {
        "Stream": stream,
        "current_stream": lambda _device=None: Stream(gpu, gpu.stream),
        "stream": on,
        "Event": lambda **_: Event(gpu),
        "CUDAGraph": lambda: Graph(gpu),
        "graph": capture,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda _device=None: gpu.wait("the device"),
        "device_count": lambda: 1,
        "get_device_capability": lambda _device=None: (9, 0),
        "get_device_properties": lambda _device=None: SimpleNamespace(multi_processor_count=132, total_memory=total),
        "mem_get_info": lambda _device=None: (total - len(gpu.live) * GRAPH_BYTES, total),
        "memory_stats": lambda _device=None: {f"allocated_bytes.all.{which}": 0 for which in ("peak", "current")},
        "reset_peak_memory_stats": lambda _device=None: None,
        "empty_cache": lambda: None,
    }


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A block with a GPU that is not there."""
    gpu = Gpu()

    def launch(self: Launcher, _grid: Any, *arguments: Any, **_: Any) -> None:
        strangers = [each for each in arguments if isinstance(each, torch.Tensor) and not isinstance(each, OnDevice)]
        assert not strangers, f"{self.name}: tensors of the host"
        gpu.say(self.name)

    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "__call__", launch)
        patch.setattr(torch, "Generator", _Generator)
        for name, stand_in in _cuda_functions(gpu).items():
            patch.setattr(torch.cuda, name, stand_in)
        operators = _Operators(gpu)
        with _Functions(gpu, operators), operators:
            yield gpu
