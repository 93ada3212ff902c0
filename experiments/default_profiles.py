"""Compiles the profiles in simulator/profiles/gpu from NVIDIA's operator times.

    pip install -e '.[kernels-db]'
    python -m experiments.default_profiles                     all GPUs, all models of conf/model
    python -m experiments.default_profiles --systems h100_sxm --root <folder of aiconfigurator_core>

For every GPU, every model of conf/model that fits on up to eight of them, in 16 bits and in FP8 (with a KV cache in 16
or 8 bits), on 1, 2, 4 and 8 ranks. A combination that the database has no operators for is left out and named. The
times that make a profile, and the rules for those that the database lacks, are in simulator/importers/aiconfigurator.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from experiments import ROOT, composed
from harness.engines.resolving.shapes import device_rates, model_shape
from simulator.importers import open_profile
from simulator.models.hardware import Device, ModelShape
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.archive import FOLDER, entry_name, write_archive
from simulator.profile.profile import Profile, ProfileError

DEVICES = ("h100-80gb", "h200", "b200", "a100-80gb", "l40s", "rtx-pro-6000")
RANKS = (1, 2, 4, 8)
NOTICE = """Profiles compiled by TwinServe's experiments/default_profiles.py from the operator times of
aiconfigurator-core (https://github.com/ai-dynamo/aiconfigurator), Copyright (c) 2025-2026 NVIDIA CORPORATION &
AFFILIATES, Apache License 2.0. Changed: interpolated to the sizes of each model, outliers dropped, and combined with
times by rule for operators that the database lacks. meta.yaml of each profile names the tables and versions.
"""
_LARGEST = 0.9  # share of a device's memory that weights may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of aiconfigurator_core, if it is not installed")
    parser.add_argument("--systems", nargs="+")
    args = parser.parse_args()
    names = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))
    models = [composed(f"model={name}") for name in names if name != "hf"]  # hf stands for any config.json
    for name in DEVICES:
        config = composed(f"device={name}")
        system = config.device.aiconfigurator_system
        if system is None or (args.systems and system not in args.systems):
            continue
        source = ":".join(filter(None, ("aiconfigurator", args.root, system)))
        device = device_rates(config.device)
        profiles: dict[str, Profile] = {}
        lacking: dict[str, list[str]] = {}
        for model, ranks in _combinations(
            [model_shape(each.model, each.weight_format, "auto") for each in models], device
        ):
            entry = entry_name(model, ranks)
            try:
                profiles[entry] = open_profile(source, model, ranks, 256, device)
            except ProfileError as error:
                lacking.setdefault(str(error), []).append(entry)
        path = FOLDER / f"{system}.zip"
        write_archive(path, profiles, NOTICE)
        print(f"{path.name}: {len(profiles)} profiles, {path.stat().st_size / 1e6:.2f} MB")
        for reason, entries in lacking.items():
            print(f"  left out {', '.join(entries)}: {reason}")


def _combinations(models: list[ModelShape], device: Device) -> Iterator[tuple[ModelShape, int]]:
    for model in models:
        if model.dtype_bytes != 2:
            continue
        for variant in _variants(model):
            for ranks in RANKS:
                splits = variant.num_attention_heads % ranks == 0 and (
                    variant.num_kv_heads % ranks == 0 or ranks % variant.num_kv_heads == 0
                )
                if splits and variant.weight_bytes(ranks) < _LARGEST * device.memory_bytes:
                    yield variant, ranks


def _variants(model: ModelShape) -> Iterator[ModelShape]:
    """A model in its own format; where that is 16 bits also in FP8, and there with both dtypes of the KV cache."""
    yield model
    if model.quantization.name == "none":
        model = replace(model, quantization=QUANTIZATIONS["fp8"])
        yield model
    yield replace(model, kv_dtype="fp8")


if __name__ == "__main__":
    main()
