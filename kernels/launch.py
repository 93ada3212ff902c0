"""Launches Triton kernels with little work on the host.

Triton's own launch binds and classifies every argument, which takes longer than most kernels of a small step. A
`Launcher` keeps the compiled kernel for each combination of what Triton compiles a kernel by, and calls it directly.

The layers of a model launch the same kernels with the same arguments, but for the addresses of a few tensors. So what
the first layer launches can be noted (`noting_launches`) and launched again for the others (`Series`).
"""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from kernels.runtime import HAS_TRITON, INTERPRETED, triton


class Launch(NamedTuple):
    """A launch that was made: of a compiled kernel, with addresses in place of tensors.

    Attributes:
        places: places of the tensors among `arguments`, as the caller passed them, and of their addresses in `values`.
    """

    run: Any
    grid: tuple[int, int, int]
    function: Any
    metadata: Any
    values: list[Any]
    tail: list[Any]
    places: list[int]
    arguments: tuple[Any, ...]


class Series:
    """Launches that were made with `tensors` among their arguments, to be made with others in their place.

    The others must have the same dtypes, shapes and strides, and addresses that are multiples of 16. An argument may
    also begin inside of one of the tensors. All other arguments stay: so scratch memory is used again.
    """

    def __init__(self, launches: abc.Sequence[Launch], tensors: abc.Sequence[Tensor]) -> None:
        spans = [(each.data_ptr(), each.stride(0) * each.shape[0] * each.element_size()) for each in tensors]
        self._device = tensors[0].get_device()
        self._launches = []
        self._kept = []  # tensors of the other arguments: nobody else may hold them
        for run, grid, function, metadata, values, tail, places, arguments in launches:
            moves = []
            for place in places:
                offsets = [(which, values[place] - start) for which, (start, _) in enumerate(spans)]
                inside = [(which, offset) for which, offset in offsets if 0 <= offset < spans[which][1]]
                if inside:
                    moves.append((place, *inside[0]))
                else:
                    self._kept.append(arguments[place])
            self._launches.append((run, grid, function, metadata, values, tail, moves))

    def __call__(self, addresses: abc.Sequence[int]) -> None:
        """Launch again, with tensors at these `addresses`."""
        stream = triton.runtime.driver.active.get_current_stream(self._device)
        for run, grid, function, metadata, values, tail, moves in self._launches:
            for place, which, offset in moves:
                values[place] = addresses[which] + offset
            run(*grid, stream, function, metadata, None, None, None, *values, *tail)


@contextmanager
def noting_launches() -> Iterator[list[Launch | None]]:
    """The launches made in the block, in their order; None for one that cannot be made again in this way, because
    Triton compiled the kernel for it, an integer is wide, or an address is no multiple of 16."""
    noted: list[Launch | None] = []
    Launcher.noted = noted
    try:
        yield noted
    finally:
        Launcher.noted = None


class Launcher:
    """Launches one Triton kernel: `launch(grid, *arguments, **constants)` for `kernel[grid](*arguments, **constants)`.

    Run-time parameters are passed by position and come before compile-time parameters, which are passed by name, as are
    Triton's options. A parameter takes either tensors, or integers, or floats. Triton compiles a kernel by

        device; constants and options; dtypes of tensors; whether an address is a multiple of 16
        integers that it specialises: whether 1, whether a multiple of 16; all integers: whether they fit into 32 bits

    A combination that is new, or has an integer of more than 32 bits, is launched by Triton itself. Launch hooks, which
    only Triton's own profiler sets, are called for such launches only.
    """

    noted: ClassVar[list[Launch | None] | None] = None
    """Where launches are noted, if they are."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, tuple[Any, ...]] = {}
        self._places: tuple[list[int], list[int], list[int]] | None = None  # see `_find_places`

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self._kernel.fn.__name__)

    def __call__(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        if INTERPRETED or not HAS_TRITON:
            self._kernel[grid](*arguments, **constants)
            return
        tensors, specialized, integers = self._places or self._find_places(arguments)
        values = list(arguments)
        device = triton.runtime.driver.active.get_current_device()
        key = [device, *constants, *constants.values()]
        addresses = all_integers = 0
        for place in tensors:
            tensor = values[place]
            values[place] = address = tensor.data_ptr()
            addresses |= address
            key.append(tensor.dtype)
        for place in specialized:
            value = values[place]
            all_integers |= value
            key.append(value == 1 or (value & 15 == 0 and 16))
        for place in integers:
            all_integers |= values[place]
        if addresses & 15:
            key += [values[place] & 15 == 0 for place in tensors]
        found = self._compiled.get(tuple(key))
        if found is None or all_integers >> 31:
            if Launcher.noted is not None:
                Launcher.noted.append(None)
            self._launch_first(tuple(key), grid, arguments, constants, bool(all_integers >> 31))
            return
        run, function, metadata, tail = found
        stream = triton.runtime.driver.active.get_current_stream(device)
        x, y, z = (*grid, 1, 1)[:3]
        run(x, y, z, stream, function, metadata, None, None, None, *values, *tail)
        if Launcher.noted is not None:
            launch = Launch(run, (x, y, z), function, metadata, values, tail, tensors, arguments)
            Launcher.noted.append(None if addresses & 15 else launch)

    def _find_places(self, arguments: tuple[Any, ...]) -> tuple[list[int], list[int], list[int]]:
        """Places of the arguments that are tensors, integers that Triton specialises, and other integers."""
        params = self._kernel.params
        integers = [place for place, value in enumerate(arguments) if isinstance(value, int)]
        self._places = (
            [place for place, value in enumerate(arguments) if isinstance(value, Tensor)],
            [place for place in integers if not params[place].do_not_specialize],
            [place for place in integers if params[place].do_not_specialize],
        )
        return self._places

    def _launch_first(
        self, key: Hashable, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], is_wide: bool
    ) -> None:
        """Launch by Triton, which compiles the kernel, and keep the compiled kernel unless an integer is wide."""
        compiled = self._kernel[grid](*arguments, **constants)
        if not is_wide:
            tail = [constants[param.name] for param in self._kernel.params[len(arguments) :]]
            self._compiled[key] = compiled.run, compiled.function, compiled.packed_metadata, tail
