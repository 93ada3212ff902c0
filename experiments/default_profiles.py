"""Compiles the profiles in simulator/profiles/gpu from NVIDIA's operator times.

    pip install -e '.[kernels-db]'
    python -m experiments.default_profiles --history <folder>         all GPUs, all models of conf/model; 20 minutes
    python -m experiments.default_profiles --systems h100_sxm --root <folder of aiconfigurator_core> --history <folder>
    python -m experiments.default_profiles --models phi-4 --history <folder>     adds these to what the archives hold

For every GPU, every model of conf/model that fits on up to eight of them, which may share out whole experts: in its own
format, and where that is 16 bits also in FP8, block-scaled FP8 and NVFP4; with a KV cache in 16 and in 8 bits; on 1, 2,
4 and 8 ranks. A combination that the database has no operators for is left out and named. Beside the tables of vLLM's
newest choice stand those that other kernels change (`vllm_versions`). `--history` has the tables of vLLM
0.19.0, for NVFP4 products of CUTLASS: aic-core/src/aiconfigurator_core of ai-dynamo/aiconfigurator at commit
095f58a51c4c. The times that make a profile, and the rules for those that the database lacks, are in
simulator/importers/aiconfigurator.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from experiments import ROOT, composed
from harness.config import RunConfig
from harness.engines.resolving.system import device_rates, model_shape
from simulator.device import Device
from simulator.importers import open_profile
from simulator.importers.aiconfigurator.compile import steps_table
from simulator.importers.aiconfigurator.rules import HOST
from simulator.importers.aiconfigurator.server_kernels import kernels_of
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.archive import FOLDER, Entry, entry_name, read_archive, write_archive
from simulator.profile.profile import Profile, ProfileError

DEVICES = ("h100-80gb", "h200", "b200", "a100-80gb", "l40s", "rtx-pro-6000", "b300", "gb200", "gb300")
RANKS = (1, 2, 4, 8)
NOTICE = """Profiles compiled by TwinServe's experiments/default_profiles.py from the operator times of
aiconfigurator-core (https://github.com/ai-dynamo/aiconfigurator), Copyright (c) 2025-2026 NVIDIA CORPORATION &
AFFILIATES, Apache License 2.0. Changed: interpolated to the sizes of each model, outliers dropped, and combined with
times by rule for operators that the database lacks. meta.yaml of each profile names the tables and versions.
"""
_LARGEST = 0.9  # share of a device's memory that weights may take
_FORMATS = ("none", "fp8", "fp8_block", "nvfp4")
_OLD_PRODUCTS = {"b200_sxm": "/vllm/0.19.0"}  # tables of the kernel cutlass_fp4
_OLD = "cutlass_fp4"
_OF_OLD = (_OLD, "routing_kernels")  # of which a server has both, or none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of aiconfigurator_core, if it is not installed")
    parser.add_argument("--history", required=True, help="folder of aiconfigurator_core with old tables")
    parser.add_argument("--systems", nargs="+")
    parser.add_argument("--models", nargs="+")
    args = parser.parse_args()
    names = args.models or sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
    models = [composed(f"model={name}") for name in names if name != "hf"]  # hf stands for any config.json
    for name in DEVICES:
        config = composed(f"device={name}")
        system = config.device.aiconfigurator_system
        if system is None or (args.systems and system not in args.systems):
            continue
        sources = Sources(system, args.root, args.history)
        device = device_rates(config.device)
        path = FOLDER / f"{system}.zip"
        entries = read_archive(path) if args.models else {}
        lacking: dict[str, list[str]] = {}
        for model, ranks in _combinations(models, device):
            entry = entry_name(model, ranks)
            try:
                entries[entry] = _entry(sources, model, ranks, device)
            except ProfileError as error:
                lacking.setdefault(str(error), []).append(entry)
        write_archive(path, entries, NOTICE)
        print(f"{path.name}: {len(entries)} profiles, {path.stat().st_size / 1e6:.2f} MB", flush=True)
        for reason, names in lacking.items():
            print(f"  left out {', '.join(names)}: {reason}")


class Sources(NamedTuple):
    """The tables of one system: the installed ones or those in `root`, and old ones."""

    system: str
    root: str | None
    history: str

    def name(self, kernel: str = "", *, is_old: bool = False) -> str:
        """The name of the profile with another kernel; `is_old`: beside old products."""
        database = f"{self.history}:{self.system}{_OLD_PRODUCTS[self.system]}" if is_old else self.system
        named = f"{database}+{kernel}" if kernel and kernel != _OLD else database
        return ":".join(filter(None, ("aiconfigurator", None if is_old else self.root, named)))


def _entry(sources: Sources, model: Model, ranks: int, device: Device) -> Entry:
    """The profile of a model, with the tables that other kernels change."""
    profile = open_profile(sources.name(), model, ranks, 256, device)
    changed = {"piecewise_graphs": {"steps": steps_table(HOST)}}
    for kernel, table in kernels_of(sources.system, model, ranks):
        if kernel == _OLD and sources.system not in _OLD_PRODUCTS:
            continue
        with suppress(ProfileError):  # the system lacks its times
            other, known = (
                _of_any_model(sources, kernel, model, ranks, device).tables.get(table),
                profile.tables.get(table),
            )
            if other is not None and (known is None or not other.equals(known)):
                changed.setdefault(kernel, {})[table] = other
    return Entry(profile, changed)


_all_reduces: dict[tuple[Sources, int], Profile] = {}  # which are the same for all models


def _of_any_model(sources: Sources, kernel: str, model: Model, ranks: int, device: Device) -> Profile:
    """The profile of a model with another kernel; one of any model, where the kernel is of no model's."""
    if kernel != "separate_norms":
        is_old = sources.system in _OLD_PRODUCTS and kernel in _OF_OLD and model.quantization.name == "nvfp4"
        return open_profile(sources.name(kernel, is_old=is_old), model, ranks, 256, device)
    if (sources, ranks) not in _all_reduces:
        _all_reduces[sources, ranks] = open_profile(sources.name(kernel), model, ranks, 256, device)
    return _all_reduces[sources, ranks]


def _combinations(models: list[RunConfig], device: Device) -> Iterator[tuple[Model, int]]:
    for config in models:
        if config.model.dtype == "float32":
            continue
        for variant in _variants(model_shape(config.model, config.weight_format, "auto")):
            for ranks in RANKS:
                if not config.model.shares_out(ranks) and _least_bytes(variant, ranks) < _LARGEST * device.memory_bytes:
                    yield variant, ranks


def _least_bytes(model: Model, ranks: int) -> int:
    """Bytes of the weights on one of `ranks` ranks, alone or as one of eight GPUs that share out whole experts."""
    experts = model.first(Experts)
    if experts is None or experts.num_experts % max(RANKS):
        return model.weight_bytes(ranks)
    return min(model.weight_bytes(ranks), model.with_experts_on(max(RANKS)).weight_bytes(ranks))


def _variants(model: Model) -> Iterator[Model]:
    """A model in its own format or, where that is 16 bits, in each of `_FORMATS`, with both dtypes of the KV cache."""
    for name in _FORMATS if model.quantization.name == "none" else (model.quantization.name,):
        for kv_dtype in ("auto", "fp8"):
            yield replace(model, quantization=QUANTIZATIONS[name], kv_dtype=kv_dtype)


if __name__ == "__main__":
    main()
