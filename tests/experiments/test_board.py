"""The board's table: signed errors by class, what counts, and the known errors of runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import RESULTS, ROOT
from experiments.board.classes import classes, known_errors, without_repeated
from experiments.board.figures import board_chart
from experiments.board.pages import write_pages
from experiments.board.point import APART, FLEET, Point, flat, loop_throughput, table_of
from harness.engines.resolving.known_error import RunClass

KIND = RunClass("kernels", "H100", "dense", "llama", "fp8", "closed loop")
POINT = Point(
    id="a", source="s", link="l", engine="vLLM", version="0.11", kind=KIND, num_gpus=1, clients=4, prompt=100.0,
    output=50.0, assumed="", measured={"tpot": 10.0, "ttft": 100.0}, predicted={"tpot": 9.0, "ttft": 150.0},
)  # fmt: skip


def test_classes_count_sound_points_once_and_the_worst_comes_first() -> None:
    slow = replace(POINT, id="b", kind=KIND._replace(device="H200"), predicted={"tpot": 20.0, "ttft": 100.0})
    points = [POINT, slow, replace(POINT, id="c"), replace(POINT, id="d", prompt=7.0, excluded="broken")]
    table = without_repeated(table_of(map(flat, points)))
    found = classes(table)
    assert found["device"].tolist() == ["H200", "H100"] and found["points"].tolist() == [1, 1]
    assert found["tpot_signed"].tolist() == pytest.approx([100, -10]) and found["ttft"].tolist() == pytest.approx(
        [0, 50]
    )


def test_known_errors_are_of_single_servers_of_vllm() -> None:
    others = [
        replace(POINT, id="b", engine="SGLang"),
        replace(POINT, id="c", kind=KIND._replace(load=FLEET)),
        replace(POINT, id="d", clients=8, predicted={"tpot": 12.0, "ttft": 150.0}),
    ]
    found = known_errors(table_of(map(flat, [POINT, *others])))
    whole = found[(found["load"] == "closed loop") & (found["model"] == "llama")].iloc[0]
    assert whole["runs"] == 2 and whole["tpot_signed"] == pytest.approx(5) and whole["tpot_median"] == pytest.approx(15)
    assert len(found) == 5  # a row for each level


def test_known_errors_of_fleets_with_prompts_apart_are_their_own() -> None:
    apart = replace(POINT, id="b", kind=KIND._replace(load=APART), predicted={"tpot": 11.0, "ttft": 40.0})
    found = known_errors(table_of(map(flat, [POINT, apart])))
    whole = found[found["load"] == APART]
    assert set(whole["runs"]) == {1} and (whole["ttft_signed"] < 0).all() and len(whole) == 4  # a level less
    assert (found[found["load"] != APART]["ttft_signed"] > 0).all()


def test_throughput_of_a_loop_is_what_its_latencies_leave() -> None:
    assert loop_throughput(10, 101, 500.0, 5.0) == pytest.approx(1010)


def test_the_figure_shows_each_point() -> None:
    points = [replace(POINT, id=str(n), clients=n, prompt=float(n)) for n in (1, 5, 17, 65)]
    panels = board_chart(table_of(map(flat, points))).panels
    assert [len(panels[0].series[-1].x), panels[2].y.names, len(panels)] == [4, ("llama fp8 (4)",), 6]


PAGES = ("docs/fidelity.md", "docs/scheduler_and_cost_model.md", "README.md")


def test_pages_show_the_stored_results_and_what_was_said_of_each_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {}
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        texts[name] = (tmp_path / name).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write_pages(ROOT / RESULTS / "board")
    assert {name: Path(name).read_text(encoding="utf-8") for name in PAGES} == texts, (
        "python -m experiments.board --docs"
    )
    rows = texts[PAGES[0]].splitlines()
    kept = [row for row in rows if not row.startswith("| dense models |")]
    told = next(row for row in rows if row.startswith("| dense models |"))
    Path(PAGES[0]).write_text("\n".join(kept) + "\n", encoding="utf-8")
    write_pages(ROOT / RESULTS / "board")
    assert f"{told.rpartition(' | ')[0]} |  |" in Path(PAGES[0]).read_text(encoding="utf-8").splitlines()
