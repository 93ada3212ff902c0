"""Profiles of other tools: small files of their formats, and the published ones where they are at hand."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from engine.core.work import StepWork
from simulator.costs.constants import profiled_constants as constants
from simulator.costs.profiled import ProfiledCost
from simulator.importers import open_profile
from simulator.importers.llmservingsim import read_bundle
from simulator.importers.vidur import read_profiling
from simulator.models.model import Model
from simulator.profile.graph_sizes import decode_graphs, graph_sizes
from simulator.profile.profile import Profile, ProfileError
from simulator.profile.profile_folder import save_profile
from tests.simulator.builders import MODEL, OPERATORS, SLOW_LINK, profile, resized, work
from tests.simulator.importers.builders import write_bundle, write_gains, write_profiling

DATA = Path(__file__).parents[3] / ".." / "shared" / "ground_truth" / "llmservingsim_vllm" / "RTXPRO6000"


def step_ns(measured: Profile, model: Model, step: StepWork, ranks: int = 1) -> int:
    values = {name: constant.default for name, constant in constants(SLOW_LINK, ranks).items()}
    return ProfiledCost(measured, model, ranks, values).step_ns(step)


# -- LLMServingSim ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that says what `builders.profile` says."""
    write_bundle(tmp_path)
    return tmp_path


def test_a_bundle_prices_like_the_same_profile_of_ours(bundle: Path) -> None:
    read = open_profile(f"llmservingsim:{bundle}", MODEL, 1, 256, SLOW_LINK)
    ours = profile(token_buckets=graph_sizes(256), padded_steps="all", round_up_tokens=True)
    for step in (work([], [100] * 10), work([(256, 100, True)], [300, 500]), work([(0, 33, True)], [])):
        assert step_ns(read, MODEL, step) == step_ns(ours, MODEL, step)


def test_layers_are_called_as_often_as_a_model_has_them(bundle: Path) -> None:
    path = bundle / "tp1" / "dense.csv"
    extra = pd.DataFrame({"layer": ["layernorm", "embedding"], "tokens": 1, "time_us": 1.0})
    pd.concat([pd.read_csv(path), extra]).to_csv(path, index=False)
    calls = read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).meta.calls
    assert calls == {**dict.fromkeys(OPERATORS, 3), "layernorm": 6, "embedding": 1, "lm_head": 1}


@pytest.mark.parametrize(
    ("engine", "block_size"), [({"block_size": 16}, 16), ({}, None), (None, None), ({"block_size": "auto"}, None)]
)
def test_the_block_size_of_a_bundle_is_that_of_its_engine(bundle: Path, engine: object, block_size: int | None) -> None:
    (bundle / "meta.yaml").write_text(yaml.safe_dump({"engine_effective": engine}))
    assert read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).meta.block_size == block_size


def test_a_bundle_without_part_of_the_mlp_is_refused(bundle: Path) -> None:
    path = bundle / "tp1" / "dense.csv"
    dense = pd.read_csv(path)
    dense[dense["layer"] != "gate_up_proj"].to_csv(path, index=False)
    with pytest.raises(ProfileError, match="tokens: no gate_up_proj .there: down_proj, o_proj, qkv_proj"):
        read_bundle(bundle, MODEL, 1, 256, SLOW_LINK)


def test_experts_are_priced_by_how_many_of_them_tokens_use(bundle: Path) -> None:
    """Router and experts of a layer take 10 us, 3 per expert used and 0.1 per token; 2 of 16 experts per token."""
    model = resized(MODEL, num_experts=16, num_experts_per_token=2, moe_intermediate_size=32)
    with pytest.raises(ProfileError, match="no moe.csv in '.*tp1' .there: attention.csv, dense.csv, per_sequence.csv"):
        read_bundle(bundle, model, 1, 256, SLOW_LINK)
    rows = [
        (n, used, 10 + 3 * used + 0.1 * n)
        for n, used in itertools.product((1, 2, 4, 8, 512), (2, 4, 8, 16))
        if used <= 2 * n
    ]
    moe = pd.DataFrame(rows, columns=["tokens", "activated_experts", "time_us"])
    moe.sample(frac=1, random_state=1).to_csv(bundle / "tp1" / "moe.csv", index=False)
    dense = pd.read_csv(bundle / "tp1" / "dense.csv")
    dense = dense[~dense["layer"].isin(["gate_up_proj", "down_proj"])]
    more = pd.DataFrame({"layer": "o_proj", "tokens": [3, 100, 1000], "time_us": 10.0})
    pd.concat([dense, more]).to_csv(bundle / "tp1" / "dense.csv", index=False)
    read = read_bundle(bundle, model, 1, 256, SLOW_LINK)
    table = read.tables["tokens"][read.tables["tokens"]["operator"] == "experts"]
    assert table["num_tokens"].tolist() == [1, 2, 3, 4, 8, 64, 100, 512]  # 1000 are beyond what was measured
    used = 16 * (1 - (1 - 2 / 16) ** table["num_tokens"])
    assert table["time_us"].to_list() == pytest.approx((10 + 3 * used + 0.1 * table["num_tokens"]).tolist())
    assert read.meta.calls["experts"] == 3
    (bundle / "tp1").rename(bundle / "tp2")
    (bundle / "tp2" / "moe.csv").unlink()
    with pytest.raises(ProfileError, match="no moe.csv in .*tp2': LLMServingSim measures experts on one rank only"):
        read_bundle(bundle, model, 2, 256, SLOW_LINK)


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("dense", "time_us", -1.0), ("dense", "tokens", 0), ("dense", "layer", 1), ("per_sequence", "sequences", 1.5),
        ("attention", "time_us", 0.0), ("attention", "n_decode", -4), ("attention", "kv_prefill", float("nan")),
        ("skew", "t_max_us", -1.0), ("skew", "n", 1e30),
    ],
)  # fmt: skip
def test_impossible_numbers_in_a_bundle_are_refused(bundle: Path, file: str, column: str, value: Any) -> None:
    write_gains(bundle, {8: 0.02})
    path = bundle / "tp1" / f"{file}.csv"
    pd.read_csv(path).assign(**{column: value}).to_csv(path, index=False)
    with pytest.raises(ProfileError, match=rf"^{file}.csv: {column}=.* in row 1: must be"):
        read_bundle(bundle, MODEL, 1, 256, SLOW_LINK)


def test_an_impossible_block_size_in_a_bundle_is_refused(bundle: Path) -> None:
    (bundle / "meta.yaml").write_text(yaml.safe_dump({"engine_effective": {"block_size": -16}}))
    with pytest.raises(ProfileError, match="meta.yaml: engine_effective.block_size=-16: must be an integer >= 1"):
        read_bundle(bundle, MODEL, 1, 256, SLOW_LINK)


def test_sizes_of_cuda_graphs() -> None:
    assert graph_sizes(2) == (1, 2, 4)
    assert graph_sizes(16) == (1, 2, 4, 8, 16, 24, 32)
    assert graph_sizes(140)[-3:] == (248, 256, 272)
    assert graph_sizes(10_000)[-1] == 512


def test_sizes_of_cuda_graphs_of_other_engines() -> None:
    assert decode_graphs("sglang", 30, None, is_padded=True) == (1, 2, 4, 8, 12, 16, 24, 30)
    assert decode_graphs("sglang", 600, 580, is_padded=True)[-5:] == (496, 512, 544, 576, 580)
    assert decode_graphs("trtllm", 300, None, is_padded=True)[-5:] == (120, 128, 192, 256, 300)
    assert decode_graphs("trtllm", 300, 3, is_padded=False) == (1, 2, 3)
    assert decode_graphs("sglang", 30, 0, is_padded=True) == ()


def test_a_broken_bundle_is_named(bundle: Path) -> None:
    with pytest.raises(ProfileError, match="no tp2 .measured: tp1"):
        read_bundle(bundle, MODEL, 2, 256, SLOW_LINK)
    (bundle / "tp1" / "per_sequence.csv").write_text("layer,sequences,time_ms\n")
    with pytest.raises(ProfileError, match="no column time_us"):
        read_bundle(bundle, MODEL, 1, 256, SLOW_LINK)
    (bundle / "tp1" / "per_sequence.csv").unlink()
    with pytest.raises(ProfileError, match="no per_sequence.csv .*attention.csv, dense.csv"):
        read_bundle(bundle, MODEL, 1, 256, SLOW_LINK)
    with pytest.raises(ProfileError, match="no meta.yaml"):
        read_bundle(bundle / "tp1", MODEL, 1, 256, SLOW_LINK)


@pytest.mark.skipif(not DATA.exists(), reason="no published bundles at ../shared/ground_truth")
@pytest.mark.parametrize(("name", "ranks", "layers", "first"), [("Llama-3.1-8B", 1, 32, 33), ("Qwen3-32B", 2, 64, 73)])
def test_published_bundles(name: str, ranks: int, layers: int, first: int) -> None:
    """`first` is the least batch whose contexts are not split, with 8 KV heads on so many ranks."""
    model = resized(MODEL, name=f"owner/{name}", num_layers=layers, num_kv_heads=8)
    card = replace(SLOW_LINK, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", multiprocessors=188)
    measured = open_profile(f"llmservingsim:{DATA / name / 'profile'}", model, ranks, 128, card)
    uneven = measured.tables["uneven"]
    gain = uneven[uneven["prefill_tokens"] == 0].set_index("num_decodes")["gain"]
    assert gain[first - 1] < 0.01 and gain[first] > 0.4
    few, many = work([], [1000]), work([], [1000] * 128)
    assert 0 < step_ns(measured, model, few, ranks) < step_ns(measured, model, many, ranks)
    with pytest.raises(ProfileError, match="measured: tp"):
        open_profile(f"llmservingsim:{DATA / name / 'profile'}", model, 8, 128, SLOW_LINK)


# -- Vidur ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def profiling(tmp_path: Path) -> Path:
    return write_profiling(tmp_path)


def test_vidur_files_are_read_in_milliseconds(profiling: Path) -> None:
    found = step_ns(open_profile(f"vidur:{profiling}", MODEL, 1, 256, SLOW_LINK), MODEL, work([], [256] * 8))
    share = 1 + 8 / 64
    dense = 1 * share + 3 * (2 + 3 + 4 + 5) * share + 6 * 6 * share
    head = 4 * share * (MODEL.vocab_size * 64) / (2 * 64 * 128)
    assert found == pytest.approx(1e3 * (dense + 3 * 5 + head + 3 * 0.01 * 8 * 256), abs=2)


def test_vidur_all_reduces_come_from_the_network_folder(profiling: Path) -> None:
    ranks = open_profile(f"vidur:{profiling}", MODEL, 2, 256, SLOW_LINK)
    alone = open_profile(f"vidur:{profiling}", MODEL, 1, 256, SLOW_LINK)
    step = work([], [256] * 16)  # 2 KiB
    assert step_ns(ranks, MODEL, step, 2) - step_ns(alone, MODEL, step) == pytest.approx((2 * 3 + 1) * 20e3, abs=2)


def test_what_vidur_lacks_is_named(profiling: Path) -> None:
    with pytest.raises(ProfileError, match="n_embd 64, but test has hidden_size=128"):
        read_profiling(profiling, resized(MODEL, hidden_size=128), 1, 256, SLOW_LINK)
    with pytest.raises(ProfileError, match="no rows for 4 ranks .measured: 1, 2"):
        read_profiling(profiling, MODEL, 4, 256, SLOW_LINK)
    (profiling.parents[3] / "network" / "a100_dgx" / "all_reduce.csv").unlink()
    with pytest.raises(ProfileError, match="no all_reduce.csv"):
        read_profiling(profiling, MODEL, 2, 256, SLOW_LINK)
    (profiling / "attention.csv").unlink()
    with pytest.raises(ProfileError, match="no attention.csv .*mlp.csv"):
        read_profiling(profiling, MODEL, 1, 256, SLOW_LINK)


@pytest.mark.parametrize("operator", ["attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"])
@pytest.mark.parametrize("time_ms", [None, float("nan"), 0.0])
def test_vidur_projections_that_were_not_measured_are_named(
    profiling: Path, operator: str, time_ms: float | None
) -> None:
    column = f"time_stats.{operator}.median"
    dense = pd.read_csv(profiling / "mlp.csv").drop(columns=column)
    (dense if time_ms is None else dense.assign(**{column: time_ms})).to_csv(profiling / "mlp.csv", index=False)
    with pytest.raises(ProfileError, match=rf"mlp.csv.*{column}"):
        read_profiling(profiling, MODEL, 1, 256, SLOW_LINK)


@pytest.mark.parametrize("time_ms", [float("nan"), 0.0])
def test_other_vidur_operators_that_were_not_measured_are_left_out(profiling: Path, time_ms: float) -> None:
    for name, operator in (("mlp", "emb"), ("attention", "attn_kv_cache_save")):
        table = pd.read_csv(profiling / f"{name}.csv").assign(**{f"time_stats.{operator}.median": time_ms})
        table.to_csv(profiling / f"{name}.csv", index=False)
    read = read_profiling(profiling, MODEL, 1, 256, SLOW_LINK)
    assert not {"embedding", "kv_store"} & {*read.meta.calls, *read.tables["tokens"]["operator"]}


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [
        ("mlp", "time_stats.attn_pre_proj.median", -1.0), ("mlp", "time_stats.add.median", 1e30),
        ("mlp", "time_stats.emb.median", "slow"), ("mlp", "num_tokens", 0), ("mlp", "n_embd", "wide"),
        ("attention", "kv_cache_size", -1), ("attention", "time_stats.attn_decode.median", -1.0),
        ("attention", "batch_size", float("inf")), ("attention", "num_tensor_parallel_workers", "x"),
    ],
)  # fmt: skip
def test_impossible_numbers_in_vidur_files_are_refused(profiling: Path, file: str, column: str, value: Any) -> None:
    path = profiling / f"{file}.csv"
    pd.read_csv(path).assign(**{column: value}).to_csv(path, index=False)
    with pytest.raises(ProfileError, match=rf"^{file}.csv: {column}=.* in row 1: must be"):
        read_profiling(profiling, MODEL, 1, 256, SLOW_LINK)


# -- ours -------------------------------------------------------------------------------------------------------------


def test_a_folder_of_ours_is_named_with_or_without_its_ranks(tmp_path: Path) -> None:
    save_profile(profile(), tmp_path / "tp1")
    for name in (tmp_path, tmp_path / "tp1"):
        assert open_profile(str(name), MODEL, 1, 256, SLOW_LINK).meta.model == "test"
    with pytest.raises(ProfileError, match="no tp4 .measured: tp1"):
        open_profile(str(tmp_path), MODEL, 4, 256, SLOW_LINK)
    for nowhere in (str(tmp_path / "nowhere"), "vidur:nowhere", "llmservingsim:nowhere", "a\0b"):
        with pytest.raises(ProfileError, match="no folder"):
            open_profile(nowhere, MODEL, 1, 256, SLOW_LINK)
    with pytest.raises(
        ProfileError, match="neither a folder nor <tool>:<folder> .tools: aiconfigurator, llmservingsim, vidur"
    ):
        open_profile("vidurr:somewhere", MODEL, 1, 256, SLOW_LINK)


def test_a_profile_that_was_edited_is_read_again(tmp_path: Path) -> None:
    """Also where size and time of the file are as before."""
    save_profile(profile(), tmp_path / "tp1")
    step, path = work([], [100]), tmp_path / "tp1" / "sequences.csv"
    before, status, text = (
        step_ns(open_profile(str(tmp_path), MODEL, 1, 256, SLOW_LINK), MODEL, step),
        path.stat(),
        path.read_text(),
    )
    path.write_text(text.replace("lm_head,1,20.0", "lm_head,1,90.0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert step_ns(open_profile(str(tmp_path), MODEL, 1, 256, SLOW_LINK), MODEL, step) == before + 70_000
