"""Profiles compiled from a database in aiconfigurator's layout, whose times follow known formulas."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engine.core.work import ChunkWork, StepWork
from simulator.costs.profiled import ProfiledCost
from simulator.importers.aiconfigurator import compile_profile
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts.kernels import DISTRIBUTION
from simulator.importers.aiconfigurator.gemms import Gemms
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import HOST, SUSTAINED
from simulator.models.experts import Experts
from simulator.models.grouped_query import GroupedQuery
from simulator.models.model import Counted
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile import archive
from simulator.profile.checks import differences, kv_dtype_of
from simulator.profile.profile import ProfileError
from tests.simulator.builders import H100, QWEN, resized

SIZES = (32, 1024, 4096, 16384)
TOKENS = (1, 8, 64, 512, 4096)
MODEL = resized(QWEN, num_layers=2)


def gemm_us(m: float, n: float, k: float) -> float:
    """Bilinear in n and k, linear in m."""
    return 2.0 + n * k * 1e-6 * (1 + m / 512)


def sustained_us(m: float, n: float, k: float) -> float:
    """The same where what more than one token takes runs at lower clocks."""
    one = gemm_us(1, n, k)
    return one + SUSTAINED * (gemm_us(m, n, k) - one)


def write(root: Path, system: str, family: str, source: str, version: str, table: str, rows: pd.DataFrame) -> None:
    folder = root / "data" / system / family / source / version
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows.assign(latency=rows["us"] / 1e3, device="NVIDIA Made Up").drop(columns="us")
    rows.to_parquet(folder / f"{table}.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of one system, `made_up`, with two versions of its GEMMs."""
    root = tmp_path_factory.mktemp("systems")
    gpu = {
        "mem_bw": 1e12, "mem_bw_empirical_scaling_factor": 0.5, "mem_empirical_constant_latency": 1e-6,
        "sm_version": 90,
    }  # fmt: skip
    (root / "made_up.yaml").write_text(yaml.safe_dump({"gpu": gpu, "node": {}}))
    grid = [(m, n, k) for m in TOKENS for n in SIZES for k in SIZES]
    for version, factor in (("0.9.0", 3.0), ("0.19.0", 1.0)):
        rows = pd.DataFrame(grid, columns=["m", "n", "k"]).assign(gemm_dtype="bfloat16")
        rows["us"] = [factor * gemm_us(*point) for point in grid]
        write(root, "made_up", "gemm", "vllm", version, "gemm_perf", rows)
    heads: dict[str, Any] = {
        "num_heads": MODEL.sizes["num_attention_heads"], "num_key_value_heads": MODEL.sizes["num_kv_heads"],
        "head_dim": MODEL.sizes["head_dim"], "kv_cache_dtype": "bfloat16", "window_size": 0,
    }  # fmt: skip
    decodes = [(b, c) for b in (1, 16, 256) for c in (1, 1024, 8192)]
    rows = pd.DataFrame(decodes, columns=["batch_size", "step"]).assign(
        isl=0, us=[1 + b * c * 1e-3 for b, c in decodes]
    )
    write(root, "made_up", "attention", "vllm", "0.9.0", "generation_attention_perf", rows.assign(**heads))
    prompts = pd.DataFrame({"isl": [1, 128, 1024, 4096]}).assign(batch_size=1, step=0)
    prompts["us"] = 1 + prompts["isl"] ** 2 * 1e-4
    write(root, "made_up", "attention", "vllm", "0.9.0", "context_attention_perf", prompts.assign(**heads))
    return root


def compiled(root: Path, system: str = "made_up", **changes: Any) -> Any:
    return compile_profile(Path(f"{root}:{system}"), resized(MODEL, **changes), 1, 64, H100)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_attention_in_8_or_else_16_bits_prices_a_kv_cache_of_integers(root: Path, dtype: Any, tmp_path: Path) -> None:
    profile, plain = compiled(root, kv_dtype=dtype), compiled(root)
    assert kv_dtype_of(profile) == "auto"  # the database has no attention over fp8
    pd.testing.assert_frame_equal(profile.tables["attention"], plain.tables["attention"])
    narrow = replace(MODEL, kv_dtype=dtype)
    told = set(differences(profile, narrow, H100, 16)) - set(differences(plain, MODEL, H100, 16))
    assert len(told) == 1 and f"{dtype} takes as long as measured with kv_cache_dtype=auto" in told.pop()
    halved = replace(plain, meta=replace(plain.meta, source={**plain.meta.source, "kv_cache_dtype": "fp8"}))
    eight_bits = archive.entry_name(replace(MODEL, kv_dtype="fp8"), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FOLDER", tmp_path)
        entries = {archive.entry_name(MODEL, 1): archive.Entry(plain, {})}
        for kv_dtype, more in (("auto", {}), ("fp8", {eight_bits: archive.Entry(halved, {})})):
            archive.write_archive(tmp_path / "made_up.zip", entries | more, "from nowhere")
            found = archive.find_profile("made_up", narrow, 1, 8)
            assert found is not None and kv_dtype_of(found) == kv_dtype


@given(n=st.integers(32, 40_000), k=st.integers(32, 40_000), m=st.integers(1, 4096))
def test_gemms_between_measured_sizes_are_bilinear(root: Path, n: int, k: int, m: int) -> None:
    curve = Gemms(Database(root, "made_up")).curve("bfloat16", n, k)
    inside = min(n, SIZES[-1]), min(k, SIZES[-1])
    growth = max(1.0, n / SIZES[-1]) * max(1.0, k / SIZES[-1])  # beyond the grid in proportion
    assert float(curve.at(m)) == pytest.approx(growth * sustained_us(m, *inside), rel=1e-6)


def test_a_family_is_read_from_the_version_asked_for_or_the_newest_before_it(root: Path) -> None:
    newest, old = Database(root, "made_up"), Database(root, "made_up", version="0.9.0")
    assert newest.version == "0.19.0"  # not 0.9.0, which is larger as a text
    times = [base.rows("gemm", "gemm_perf", m=1, n=32, k=32)["time_us"].item() for base in (newest, old)]
    assert times == pytest.approx([gemm_us(1, 32, 32), 3 * gemm_us(1, 32, 32)])
    asked = newest.rows("gemm", "gemm_perf", version="0.9.0", m=1, n=32, k=32)["time_us"].item()
    assert asked == times[1] and newest.versions == {"gemm": "0.9.0"}
    newest.rows("gemm", "gemm_perf", m=1)
    newest.rows("attention", "context_attention_perf")
    assert newest.versions == {"gemm": "0.19.0", "attention": "0.9.0"}


def test_of_another_engine_the_newest_version_with_the_table_is_read(root: Path) -> None:
    rows = pd.DataFrame({"num_tokens": [1], "us": [5.0]})
    write(root, "made_up", "moe", "sglang", "0.5.9", "moe_perf", rows)
    write(root, "made_up", "moe", "sglang", "0.5.14.post1", "moe_perf", rows.assign(us=7.0))
    write(root, "made_up", "moe", "sglang", "0.5.16", "other_perf", rows)
    database = Database(root, "made_up")
    assert database.rows("moe", "moe_perf", source="sglang")["time_us"].item() == pytest.approx(7.0)
    assert database.versions == {"moe/sglang": "0.5.14.post1"}


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=30), st.lists(st.integers(0, 29), max_size=3, unique=True))
def test_times_that_fall_are_dropped_and_counted(times: list[float], outliers: list[int]) -> None:
    rising = np.maximum.accumulate(np.array(times))
    spoilt = rising.copy()
    for place in outliers:
        if place < len(spoilt):
            spoilt[place] *= 50  # above all that come behind it, by more than what may be noise
    rows = pd.DataFrame({"m": np.arange(1, len(times) + 1), "time_us": spoilt})
    curve, num_dropped = measured_curve(rows, "m")
    assert num_dropped <= len([place for place in outliers if place < len(times)])
    assert len(curve.sizes) + num_dropped == len(times)
    assert (np.diff(curve.times_us) >= -0.05 * curve.times_us[:-1] - 1e-9).all()


@given(st.lists(st.floats(0.5, 100), min_size=2, max_size=40))
def test_a_thinned_curve_is_the_same_within_half_a_percent(steps: list[float]) -> None:
    curve = MeasuredCurve(np.arange(1.0, len(steps) + 1), np.cumsum(steps))
    thin = curve.thinned()
    assert np.abs(thin.at(curve.sizes) / curve.times_us - 1).max() <= 0.005 + 1e-9
    assert {1.0, len(steps)} <= set(thin.sizes)


def test_a_step_costs_what_the_tables_and_the_rules_say(root: Path) -> None:
    profile = compiled(root)
    nothing = dict.fromkeys(("step_overhead_us", "sequence_overhead_us", "prefill_layer_us"), 0.0)
    constants = {**nothing, "mixing_factor": 1.0, "kernel_factor": 1.0}
    cost = ProfiledCost(profile, MODEL, 1, constants)
    layers, hidden, width = MODEL.num_layers, MODEL.hidden_size, MODEL.sizes["intermediate_size"]
    heads = (MODEL.sizes["num_attention_heads"] + 2 * MODEL.sizes["num_kv_heads"]) * MODEL.sizes["head_dim"]
    shapes = [
        (heads, hidden),
        (hidden, MODEL.sizes["num_attention_heads"] * MODEL.sizes["head_dim"]),
        (2 * width, hidden),
        (hidden, width),
    ]
    for size, work in (
        (8, StepWork((), 8, 8 * 1024, 8 * 1024**2)),
        (512, StepWork((ChunkWork(0, 512, False),), 0, 0, 0)),  # no CUDA graph is so large
    ):
        products = sum(sustained_us(size, *shape) for shape in shapes)
        table = profile.tables["tokens"]
        moved = np.interp(size, *table[table["operator"] == "elementwise"][["num_tokens", "time_us"]].to_numpy().T)
        if work.num_decodes:
            attention = 1 + 8 * 1024e-3
            heads_us = profile.tables["sequences"].groupby("operator").apply(
                lambda rows: np.interp(8, rows["num_sequences"], rows["time_us"])
            ).sum()  # fmt: skip
        else:
            low, high = 1 + 128**2 * 1e-4, 1 + 1024**2 * 1e-4
            attention, heads_us = low + (512 - 128) / (1024 - 128) * (high - low), 0.0
        expected = layers * (products + moved + attention) + heads_us
        if work.chunks:
            expected = max(expected, layers * HOST.eager_layer_us)
        assert cost.step_ns(work) / 1e3 == pytest.approx(expected, rel=0.01)
        waiting = ProfiledCost(profile, MODEL, 1, constants, is_async=False)
        if work.num_decodes:
            waited_us = HOST.synchronous_step_us + HOST.synchronous_sequence_us * work.num_decodes
            assert (waiting.step_ns(work) - cost.step_ns(work)) / 1e3 == pytest.approx(waited_us, rel=0.01)


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        ("other", {}, "no system 'other' .there: made_up."),
        ("made_up/vllm", {}, "must be <system> or <system>/<backend>/<version>"),
        ("made_up/vllm/9.9.9", {}, "no made_up/vllm/9.9.9 .there: 0.9.0, 0.19.0."),
        ("made_up+marlin", {}, "no expert kernel 'marlin' for "),
        ("made_up", {"head_dim": 64}, "head_dim=64"),
        ("made_up", {"quantization": QUANTIZATIONS["nvfp4"]}, "no GEMMs in nvfp4"),
        ("made_up", {"quantization": QUANTIZATIONS["int8"]}, "no linear layers in int8"),
    ],
)
def test_what_the_database_lacks_is_refused_by_name(
    root: Path, system: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=message):
        compiled(root, system, **changes)


def test_no_database_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no folder systems/data"):
        compiled(tmp_path)


def test_a_float32_router_and_norms_over_all_heads_are_in_the_profile(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "systems")
    reduced = pd.DataFrame({"message_size": [128, 1 << 20], "num_gpus": 2, "backend": "vllm_graph", "us": [5.0, 50.0]})
    write(tmp_path / "systems", "made_up", "comm", "vllm", "0.19.0", "custom_allreduce_perf", reduced)
    sizes = {"hidden_size": MODEL.hidden_size, "inter_size": 512, "topk": 2, "num_experts": 16}
    timed = pd.DataFrame({"num_tokens": [1, 4096], "us": [10.0, 90.0]}).assign(
        moe_dtype="bfloat16", moe_tp_size=2, moe_ep_size=1, distribution=DISTRIBUTION, **sizes
    )
    write(tmp_path / "systems", "made_up", "moe", "vllm", "0.19.0", "moe_perf", timed)
    heads = MODEL.first(GroupedQuery)
    assert heads is not None
    attention = replace(heads, num_heads=2 * heads.num_heads, num_kv_heads=2 * heads.num_kv_heads)
    profiles = []
    for is_own in (False, True):
        blocks = (replace(attention, norm_spans_heads=is_own), Experts(16, 2, 512, float32_router=is_own))
        model = replace(MODEL, blocks=tuple(Counted(2, block) for block in blocks))
        profiles.append(compile_profile(Path(f"{tmp_path}:made_up"), model, 2, 64, H100))
    plain, own = ({name: rows for name, rows in each.tables["tokens"].groupby("operator")} for each in profiles)
    assert set(own) - set(plain) == {"qk_all_reduce"} and profiles[1].meta.calls["qk_all_reduce"] == 2
    assert own["qk_all_reduce"]["time_us"].iloc[0] == 5.0
    cast_us = 1.0 + 6 * MODEL.hidden_size / 0.5e6
    assert own["router"]["time_us"].iloc[0] == pytest.approx(plain["router"]["time_us"].iloc[0] + cast_us)
