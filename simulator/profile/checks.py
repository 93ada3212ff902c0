"""Whether a profile can price a run, and in what the run differs from what was profiled."""

from __future__ import annotations

from typing import get_args

from engine.engine_config import KVDtype
from simulator.device import Device
from simulator.models.model import Model
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile, ProfileError

_HIGHEST, _LOWEST = 3.0, 1e-3  # plausible shares of the device's peak; outside, another device may have been profiled
_OTHER_UNIT = 30.0  # a higher share of the peak means times in another unit, which are wrong by a factor of 1000


def check_fits(profile: Profile, model: Model, tensor_parallel_size: int) -> None:
    """Check that `profile` can price this model on `tensor_parallel_size` ranks.

    Raises:
        ProfileError: it cannot; the message says what it was measured for.
    """
    check_measured_on(profile.meta, model, tensor_parallel_size)


def check_measured_on(meta: ProfileMeta, model: Model, tensor_parallel_size: int) -> None:
    """As `check_fits`, by what the profile says that it was measured on."""
    kv_dtype = _kv_dtype_of(meta)
    if kv_dtype not in model.priced_kv_dtypes:
        raise ProfileError(f"profiled with engine.kv_cache_dtype={kv_dtype}, this run has {model.kv_dtype}")
    quantization = meta.source.get("quantization", "none")
    if quantization != model.quantization.name:
        raise ProfileError(f"profiled with quantization={quantization}, this run has {model.quantization.name}")
    if meta.tensor_parallel_size != tensor_parallel_size:
        raise ProfileError(
            f"profiled with tensor_parallel_size={meta.tensor_parallel_size}, this run has {tensor_parallel_size}"
        )
    if meta.shape:
        sizes = model.sizes
        differing = {name: value for name, value in meta.shape.items() if sizes.get(name, value) != value}
        if differing:
            what = ", ".join(f"{name}={value}" for name, value in differing.items())
            here = ", ".join(f"{name}={sizes[name]}" for name in differing)
            raise ProfileError(f"profiled for {meta.model} with {what}; {model.name} has {here}")
    elif base_name(meta.model) != base_name(model.name):
        raise ProfileError(f"profiled for {meta.model}, this run is of {model.name}")
    if meta.num_layers != model.num_layers:
        raise ProfileError(f"profiled for {meta.num_layers} layers, {model.name} has {model.num_layers}")


def check_units(profile: Profile, model: Model, device: Device) -> None:
    """Check that the times can be microseconds, from the arithmetic that the device did in them.

    Raises:
        ProfileError: no device computes that fast.
    """
    share, what = _share_of_peak(profile, model, device)
    if share > _OTHER_UNIT:
        raise ProfileError(f"{what}, which is impossible: time_us must be in microseconds, and device the one profiled")


def kv_dtype_of(profile: Profile) -> KVDtype:
    """Dtype of the KV cache that the kernels ran with; that of the model where the profile names none."""
    return _kv_dtype_of(profile.meta)


def _kv_dtype_of(meta: ProfileMeta) -> KVDtype:
    told = meta.source.get("kv_cache_dtype")
    return next((dtype for dtype in get_args(KVDtype) if dtype == told), "auto")


def differences(profile: Profile, model: Model, device: Device, block_size: int) -> list[str]:
    """In what a run differs from what was profiled, a line each."""
    meta, found = profile.meta, []
    if meta.block_size not in (None, block_size):
        found.append(f"the profile's kernels ran with block_size={meta.block_size}, this run has {block_size}")
    kv_dtype = kv_dtype_of(profile)
    if kv_dtype != model.kv_dtype:
        found.append(
            f"attention over a KV cache in {model.kv_dtype} takes as long as measured with kv_cache_dtype={kv_dtype}: "
            "the profile has no times of its own for it"
        )
    share, what = _share_of_peak(profile, model, device)
    if _is_other_gpu(meta.device, device.name):
        found.append(f"step times are of {meta.device}, memory and links of {device.name}")
    elif not _LOWEST < share < _HIGHEST:
        found.append(f"{what}: are its times in microseconds, and was {device.name} profiled?")
    return found


def _share_of_peak(profile: Profile, model: Model, device: Device) -> tuple[float, str]:
    """The rate of the largest measured product of the first projection (2·tokens·parameters operations) as a share of
    the device's peak, and a sentence that says so."""
    table = profile.rows["tokens"]
    timed = set(table["operator"].tolist())
    weights = next(each for _, each in model.matrices(profile.meta.tensor_parallel_size) if each.name in timed)
    own = table[table["operator"] == weights.name]
    num_tokens, time_us = int(own["num_tokens"][-1]), float(own["time_us"][-1])
    rate = 2 * num_tokens * weights.rows * weights.columns / (time_us * 1e-6)
    share = rate / max(device.flops.values())
    what = f"{weights.name} of {num_tokens} tokens in {time_us:.6g} us is {rate:.2g} FLOP/s, {share:.3g} times"
    return share, f"{what} the peak of {device.name}"


def _is_other_gpu(profiled: str, configured: str) -> bool:
    """Whether two names of GPUs, as NVIDIA's driver spells them, are of different models."""
    names = profiled.lower(), configured.lower()
    return all(name.startswith("nvidia") for name in names) and names[0] not in names[1] and names[1] not in names[0]


def base_name(model: str) -> str:
    """A model's name without its owner or folder, in lower case."""
    return model.rstrip("/").rpartition("/")[2].lower()
