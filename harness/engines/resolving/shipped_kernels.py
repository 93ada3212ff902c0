"""Measured kernels that come with the project: of a model on its device, and else of what is most like them."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.models.hardware import Device
from simulator.models.model import Model
from simulator.profile.archive import find_profile
from simulator.profile.other_device import on_device
from simulator.profile.profile import LIKE_EXPERTS, Profile
from simulator.system import System

_LIKE_EXPERTS = "experts of these sizes were not timed: the times are of those most like them, scaled by their weights"


def profile_of(system: System, model: Model, max_graph_tokens: int | None) -> Profile | None:
    """The profile of `model` that comes with the project, or else is compiled from the operator times that do."""
    device, ranks, kernels = system.device, system.tensor_parallel_size, system.cost.kernels

    def timed_on(gpu: Device) -> Profile | None:
        if gpu.aiconfigurator_system is None:
            return None
        where, how = (gpu.aiconfigurator_system, model, ranks, system.max_num_seqs), (kernels, max_graph_tokens)
        if (found := find_profile(*where, *how)) is not None:
            return found
        from simulator.importers.aiconfigurator.shipped import compiled_profile  # imported late, as it brings pandas

        return compiled_profile(*where, gpu, *how)

    if found := timed_on(device):
        return found
    alike = device.kernels_like and timed_on(device.kernels_like)
    return on_device(alike, model, ranks, device.kernels_like, device) if alike else None


def as_of_device(system: System, profile: Profile) -> Profile:
    """A user's `profile`, scaled if it is of the GPU that stands in for that of the run in NVIDIA's database."""
    device, like = system.device, system.device.kernels_like
    measured_on = str(profile.meta.source.get("database", "")).partition("/")[0]
    if like is None or measured_on in ("", device.aiconfigurator_system) or measured_on != like.aiconfigurator_system:
        return profile
    return on_device(profile, system.model, system.tensor_parallel_size, like, device) or profile


def made_of(profile: Profile) -> Iterator[str]:
    """Notes on times that were measured of something else."""
    source = profile.meta.source
    if LIKE_EXPERTS in source.get("server", ()):
        yield _LIKE_EXPERTS
    if timed := source.get("scaled_from"):
        yield f"kernels were not timed on this device: the times are those of {timed}, scaled by the rates of both"
