"""Bundles of LLMServingSim: what uneven contexts add, read from mixes of two lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from simulator.importers.llmservingsim import read_bundle
from tests.simulator.builders import MODEL, SLOW_LINK
from tests.simulator.importers.builders import write_bundle, write_gains


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that says what `builders.profile` says."""
    write_bundle(tmp_path)
    return tmp_path


def test_uneven_contexts_are_placed_between_mean_and_maximum(bundle: Path) -> None:
    # one context of four is 400 long, the others 100: mean 175, standard deviation 130
    rows = [(4, 1, chunk, 0, 100, 400, 175, 10.0, 28.0, 10.0 + extra) for chunk, extra in ((0, 2.6), (64, 10.4))]
    names = ["n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"]
    pd.DataFrame(rows, columns=names).to_csv(bundle / "tp1" / "skew.csv", index=False)
    uneven = read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).tables["uneven"]
    slope, deviation = 18.0 / 225, 129.9038
    assert uneven["prefill_tokens"].tolist() == [0, 64]
    assert uneven["gain"].tolist() == pytest.approx([2.6 / slope / deviation, 10.4 / slope / deviation], rel=1e-4)


def gains_of(
    bundle: Path, multiprocessors: int | None, max_num_seqs: int = 256, name: str = "device"
) -> dict[int, float]:
    device = replace(SLOW_LINK, name=name, multiprocessors=multiprocessors)
    uneven = read_bundle(bundle, MODEL, 1, max_num_seqs, device).tables["uneven"]
    return {int(n): round(float(gain), 6) for n, gain in zip(uneven["num_decodes"], uneven["gain"], strict=True)}


def test_gains_of_decodes_rise_where_attention_stops_splitting_contexts(bundle: Path) -> None:
    """MODEL has 2 KV heads: 38 multiprocessors are filled by 31 sequences, which is from 25 on when padded to 32."""
    measured = {8: 0.02, 16: 0.01, 64: 0.2, 128: 0.1}
    write_gains(bundle, measured)
    assert gains_of(bundle, None) == measured
    between = {25: 0.512, 32: 0.4, 40: 0.32, 48: 0.266667, 56: 0.228571}
    assert gains_of(bundle, 38) == {8: 0.02, 16: 0.01, 24: 0.01, **between, 64: 0.2, 128: 0.1}
    assert gains_of(bundle, 2) == gains_of(bundle, 4000) == measured  # before or beyond what was measured
    assert gains_of(bundle, 38, max_num_seqs=8) == measured  # such batches have no graph
    assert gains_of(bundle, 38, name="another") == measured
    write_gains(bundle, {8: 0.02, 16: 0.3, 64: 0.4, 128: 0.1})  # other kernels, that change at another batch
    assert len(gains_of(bundle, 38)) == 4


def test_a_bundle_switches_its_uneven_contexts_off(bundle: Path) -> None:
    write_gains(bundle, {2: 0.5, 4: 0.5})
    assert "uneven" in read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).tables
    meta = bundle / "meta.yaml"
    meta.write_text(meta.read_text() + "\nskew_profile:\n  enabled: false\n")
    assert "uneven" not in read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).tables


def test_a_skew_file_of_which_nothing_can_be_told_is_no_obstacle(bundle: Path) -> None:
    names = ["n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"]
    pd.DataFrame([(4, 1, 0, 0, 100, 400, 175, 10.0, 10.5, 10.2)], columns=names).to_csv(
        bundle / "tp1" / "skew.csv", index=False
    )
    assert "uneven" not in read_bundle(bundle, MODEL, 1, 256, SLOW_LINK).tables
