"""The claims of the literature: what is derived, what is published, and that every claim is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from experiments.claims.__main__ import NAMES, STORE, claim_of
from experiments.claims.lab import Lab
from experiments.claims.memory import gqa
from experiments.claims.page import FIGURES, PAGE, page
from experiments.claims.scheduling import batching
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import WIDTHS_IN
from tests.harness.builders import ROOT


def test_the_multi_head_cache_of_the_claim_takes_134_gb_and_8_heads_a_quarter() -> None:
    assert gqa.kv_bytes(32) == 134_217_728_000
    assert gqa.kv_bytes(8) * 4 == gqa.kv_bytes(32)


def test_four_static_requests_use_41_percent_of_their_slots(tmp_path: Path) -> None:
    trace = batching._four_requests(tmp_path)
    settings = (f"trace.path={trace}", "trace=csv", "arrival=all_at_once", "max_num_seqs=4", "scheduler=static")
    steps = Lab(tmp_path).predict(*settings).steps
    assert len(steps) == 100 and steps["num_decode_seqs"].sum() + steps["num_prefill_seqs"].sum() == 165
    assert steps["num_padding_tokens"].sum() == 400 - 165, "finished sequences are padding rows until the batch ends"


def test_every_claim_is_listed_and_the_page_is_that_of_the_stored_figures() -> None:
    claims = {path.stem for path in (ROOT / "experiments/claims").glob("*/*.py")}
    assert claims == {*NAMES, "__init__", "kv_error"}
    stored = json.loads((ROOT / STORE).read_text())
    assert stored.keys() == {*NAMES}
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page({name: claim_of(name) for name in NAMES}, stored)
    assert all((ROOT / FIGURES / f"{name}.png").exists() for name in NAMES)


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("name", ["waste", "chunk_size", "offload"])
def test_stored_figures_are_drawn_as_wide_as_asked(name: str, width: Literal["page", "column"]) -> None:
    stored = json.loads((ROOT / STORE).read_text())
    figure = claim_of(name).draw(stored[name]["data"], PlotConfig(width=width))
    assert figure.get_figwidth() == WIDTHS_IN[width]
