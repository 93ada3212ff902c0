"""task=validate: whole comparisons against runs whose outcome is known."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from harness.config.schema.tasks.plotting import PlotConfig
from harness.errors import ConfigError, MeasuredRunError, TwinServeError
from harness.figures import write_validation_charts
from harness.figures.charts.validation import stored_charts
from harness.results.stored.files import read_results
from harness.studies.comparison.drawing import draw
from harness.validation.validate import validate
from tests.harness.builders import SMALLEST, config, execute_in
from tests.harness.measured.builders import (
    STARVED,
    change_summary,
    compare,
    made_up,
    pretend_measured,
    write_distserve,
    write_llmservingsim,
)


@pytest.mark.parametrize(
    "overrides",
    [
        STARVED,
        pytest.param([*STARVED, "engine.compress=false"], marks=pytest.mark.slow),
        ["trace=shared_prefix", "trace.num_requests=40", "arrival.rate=60", "num_blocks=700"],
        pytest.param(
            ["trace=sharegpt_multiturn", "trace.num_requests=40", "arrival=sessions", "arrival.rate=5"],
            marks=pytest.mark.long,
        ),
        ["trace.num_requests=30", "arrival=closed_loop", "arrival.concurrency=6", "engine.max_lookahead_steps=6"],
        ["trace.num_requests=40", "arrival.rate=30", "max_model_len=300"],
        [*STARVED, "scheduler=vllm"],
    ],
    ids=[
        "starved",
        "starved, by step",
        "prefixes",
        "sessions",
        "closed loop, lookahead",
        "refused and cut short",
        "planned ahead",
    ],
)
@pytest.mark.sample(3)
def test_a_run_with_the_cost_model_itself_has_no_error(overrides: list[str], tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *overrides)
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "b")
    assert max(abs(row["error_pct"]) for row in found["errors"]) < 1e-6
    assert all(level["mean_abs_difference"] < 1e-6 for level in found["levels"].values())
    assert set(found["levels"]) == {"num_running", "num_waiting", "kv_cache_usage", "num_unfinished"}
    steps = found["steps"]
    assert steps["plans_identical"] and steps["preemptions_identical"] and steps["cache_hits_identical"]
    assert steps["errors"]["all"]["count"] == steps["num_steps"] > 50
    assert steps["errors"]["all"]["mape_pct"] < 1e-6
    values = {(row["metric"], row["statistic"]): row["measured"] for row in found["errors"]}
    assert values["preemptions", "total"] > 0 or "num_blocks=190" not in overrides
    assert values["cached_tokens", "total"] > 0 or "trace=shared_prefix" not in overrides
    refused = [note for note in found["warnings"] if "requests that were refused are left out" in note]
    assert bool(refused) == ("max_model_len=300" in overrides)
    assert len(pd.read_csv(tmp_path / "b" / "errors.csv")) == len(found["errors"])
    assert read_results(tmp_path / "b")[1]["simulated"] is True


def test_a_simulated_run_of_ours_gets_the_measured_pool(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", "trace.num_requests=20")
    change_summary(tmp_path / "a", num_blocks=777)
    compare(f"run:{tmp_path / 'a'}", tmp_path / "b", "device=h200")
    summary = read_results(tmp_path / "b")[1]
    assert summary["num_blocks"] == 777 and "H200" in summary["device"]


def test_another_cost_model_changes_latencies_but_not_the_replayed_plans(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *STARVED)
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "b", "device.step_overhead_s=0.02")
    steps = found["steps"]
    assert steps["plans_identical"] and steps["preemptions_identical"]
    errors = steps["errors"]
    assert errors["all"]["bias_pct"] == pytest.approx(errors["all"]["mape_pct"]) and errors["all"]["bias_pct"] > 10
    kinds = {kind: found["count"] for kind, found in errors.items() if kind != "all"}
    assert sum(kinds.values()) == errors["all"]["count"] and {"decode", "mixed"} <= set(kinds)
    latency = {(row["metric"], row["statistic"]): row["error_pct"] for row in found["errors"]}
    assert latency["tpot", "median"] > 10


def test_the_cost_model_is_named_that_priced_the_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No measured kernels of an MI300X come with the project."""
    pretend_measured(tmp_path / "a", "trace.num_requests=5")
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "b", "device=mi300x", "cost=profiled", "cost.profile=auto")
    assert "cost roofline" in found["subtitle"] and "cost roofline" in capsys.readouterr().out


def test_other_contents_show_as_other_plans(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", "trace=shared_prefix", "trace.num_requests=60", "arrival.rate=60")
    path = tmp_path / "a" / "config.yaml"
    path.write_text(path.read_text().replace("enable_prefix_caching: true", "enable_prefix_caching: false"))
    steps = compare(f"run:{tmp_path / 'a'}", tmp_path / "b")["steps"]
    assert not steps["plans_identical"] and not steps["cache_hits_identical"]
    assert steps["errors"]["all"]["count"] == steps["first_difference"] < steps["num_steps"]


def test_a_part_is_scored_on_its_own(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *STARVED)
    halves = [
        compare(f"run:{tmp_path / 'a'}", tmp_path / part, f"validation.score={part}")
        for part in ("first_half", "second_half")
    ]
    assert [half["num_scored"] for half in halves] == [20, 20]
    counts = [half["steps"]["errors"]["all"]["count"] for half in halves]
    assert sum(counts) == halves[0]["steps"]["num_steps"] and min(counts) > 0
    means = [next(row["measured"] for row in half["errors"] if row["metric"] == "ttft") for half in halves]
    assert means[0] < means[1]  # the queue grows
    levels = [half["levels"]["num_unfinished"]["mean_measured"] for half in halves]
    assert levels[0] < levels[1]  # each half counts the time in which it arrives


def test_repeats_give_a_noise_floor_and_must_be_of_the_same(tmp_path: Path) -> None:
    for name, overhead in (("a", 0.002), ("b", 0.003)):
        pretend_measured(tmp_path / name, *STARVED, f"device.step_overhead_s={overhead}")
    settings = [f"validation.repeats=[run:{tmp_path / 'b'}]"]
    with pytest.raises(ConfigError, match="has another configuration"):
        compare(f"run:{tmp_path / 'a'}", tmp_path / "out", *settings)
    (tmp_path / "b" / "config.yaml").write_text((tmp_path / "a" / "config.yaml").read_text())
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "out", *settings)
    floors = [row["noise_floor_pct"] for row in found["errors"]]
    assert floors[0] > 0 and None not in floors
    (repeat,) = found["steps_of_repeats"]
    biases = [steps["errors"]["decode"]["bias_pct"] for steps in (found["steps"], repeat)]
    assert repeat["plans_identical"] and biases[0] - biases[1] > 1
    pretend_measured(tmp_path / "c", *STARVED, "seed=1")
    with pytest.raises(ConfigError, match="did not serve the requests"):
        compare(f"run:{tmp_path / 'a'}", tmp_path / "out", f"validation.repeats=[run:{tmp_path / 'c'}]")


def test_other_engines_are_compared_by_what_they_tell(tmp_path: Path) -> None:
    folder, workload = write_llmservingsim(tmp_path / "vllm")
    queued = ["validation.latency_from=queued", f"validation.workload={workload}"]
    found = compare(f"llmservingsim:{folder}", tmp_path / "out", "plots=true", *queued)
    assert {"num_running", "num_waiting", "num_unfinished"} == set(found["levels"]) and found["steps"] is None
    other = {"max_num_seqs=256 simulated, 128 measured", "model=Qwen/Qwen3-8B simulated, m measured"}
    assert other <= set(found["warnings"])
    measured = {(row["metric"], row["statistic"]): row["measured"] for row in found["errors"]}
    assert measured["ttft", "mean"] == pytest.approx(300) and ("preemptions", "total") not in measured
    for name in ("validation_latency.png", "validation_levels.png", "errors.csv", "summary.json", "requests.parquet"):
        assert (tmp_path / "out" / name).stat().st_size > 0, name
    assert not (tmp_path / "out" / "validation_steps.png").exists()
    draw(config("task=plot", f"results=[{tmp_path / 'out'}]"), tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert len(list((tmp_path / "again").iterdir())) == 2


def test_a_validation_is_drawn_again_with_other_panels_axes_and_names(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *STARVED, "trace.num_requests=12")
    compare(f"run:{tmp_path / 'a'}", tmp_path / "out", "plots=false")
    plain = stored_charts(tmp_path / "out", PlotConfig())
    assert set(plain) == {"validation_latency", "validation_levels", "validation_steps"} and None not in plain.values()
    few = stored_charts(tmp_path / "out", PlotConfig(y=("ttft", "num_waiting"), log="x"))
    latency, levels = few["validation_latency"], few["validation_levels"]
    assert latency is not None and levels is not None
    assert [panel.title for panel in (*latency.panels, *levels.panels)] == ["TTFT", "Waiting"] and latency.panels[
        0
    ].x.log
    paths = write_validation_charts(tmp_path / "out", tmp_path / "drawn", PlotConfig(y=("ttft",)), "_2")
    assert [path.name for path in paths] == ["validation_latency_2.png", "validation_steps_2.png"]
    assert stored_charts(tmp_path / "out", PlotConfig(y=("tpot",)))["validation_levels"] is None
    with pytest.raises(ConfigError, match="plot.y=tpott: no latency or level of this validation; did you mean 'tpot'"):
        stored_charts(tmp_path / "out", PlotConfig(y=("tpott",)))
    (tmp_path / "out" / "validation_latencies.parquet").unlink()
    with pytest.raises(TwinServeError, match="validation_latencies.parquet"):
        stored_charts(tmp_path / "out", PlotConfig())


def test_latencies_from_the_queue_need_its_times(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    with pytest.raises(MeasuredRunError, match="does not tell when requests were queued"):
        compare(f"distserve:{path}", tmp_path / "out", "validation.latency_from=queued")
    found = compare(f"distserve:{path}", tmp_path / "out")
    assert set(found["levels"]) == {"num_unfinished"}


def test_a_simulation_that_refuses_everything_says_so(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    found = compare(f"distserve:{path}", tmp_path / "out", "max_model_len=2", "plots=true")
    assert any(warning.startswith("4 requests that were served in the measured run") for warning in found["warnings"])
    assert all(row["simulated"] is None for row in found["errors"] if row["metric"] in ("ttft", "tpot", "e2el"))


def test_results_of_an_earlier_task_in_the_folder_are_gone(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    compare(f"distserve:{path}", tmp_path / "out")
    with pytest.raises(MeasuredRunError):
        compare(f"distserve:{tmp_path / 'n.exp'}", tmp_path / "out")
    left = {entry.name for entry in (tmp_path / "out").iterdir()}
    assert "config.yaml" in left and not left & {"validation.json", "errors.csv", "summary.json"}


def test_the_table_fits_a_terminal_and_says_what_was_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_measured(tmp_path / "a", *STARVED)
    out = io.StringIO()
    monkeypatch.setattr("harness.validation.validate.Console", lambda: Console(file=out, width=80))
    overrides = [f"validation.measured=run:{tmp_path / 'a'}", f"validation.repeats=[run:{tmp_path / 'a'}]"]
    (tmp_path / "b").mkdir()
    validate(config("progress=false", "task=validate", *overrides), tmp_path / "b")
    lines = out.getvalue().splitlines()
    heads = [line for line in lines if "measured" in line and "error %" in line and "noise %" in line]
    assert len(heads) == 1
    assert all(len(line) == len(heads[0]) for line in lines if line.split()[:1] == ["p90"])
    assert sum(line.split()[:1] == ["p90"] for line in lines) == 4
    assert any(line.startswith("replayed with measured step times: plans all as measured") for line in lines)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=validate"], "validation.measured: task=validate needs a measured run"),
        (["task=calibrate"], "validation.measured: task=calibrate needs a measured run"),
        (["task=validate", "validation.measured=run:a", "engine=cpu"], "engine=cpu: task=validate simulates"),
        (["validation.measured=run:a"], "validation.measured: task=run does not read it, task=validate does"),
        (["calibration.part=first_half"], "calibration.part: read by task=calibrate and task=observe only"),
        (["task=validate", "validation.measured=run:a", "calibration.part=first_half"], "calibration.part: read by"),
        (["observe.time_s=5"], "observe.time_s: read by task=observe only"),
        (["task=observe"], "engine=sim: task=observe drives a server; use engine=openai"),
        (["task=observe", "calibration.objective=steps"], "calibration.objective: task=observe fits latencies of"),
        (["task=validate", "validation.measured=csv:a", "validation.columns={a: ttf}"], "choose one of arrival_time, "),
        (["task=validate", "validation.score=half"], "choose one of all, first_half, second_half"),
    ],
)
def test_settings_that_make_no_sense_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


@pytest.mark.parametrize("lookahead", [pytest.param(1, marks=pytest.mark.slow), 6])
@pytest.mark.long
def test_a_run_of_the_real_engine_is_replayed_exactly(lookahead: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    overrides = [f"engine.max_lookahead_steps={lookahead}"]
    overrides += [*SMALLEST, "engine.warm_up=false", "num_blocks=30", "max_num_batched_tokens=64"]
    overrides += ["trace=shared_prefix", "trace.num_requests=16", "trace.num_prefixes=2", "trace.prefix_tokens=64"]
    overrides += ["trace.suffix.low=4", "trace.suffix.high=40", "arrival=all_at_once", "max_num_seqs=8"]
    overrides += ["trace/lengths@trace.output=uniform", "trace.output.low=1", "trace.output.high=60"]
    execute_in(tmp_path / "real", config("progress=false", *overrides))
    found = compare(f"run:{tmp_path / 'real'}", tmp_path / "out", "device=laptop-cpu", "plots=true")
    steps = found["steps"]
    assert steps["plans_identical"] and steps["preemptions_identical"] and steps["cache_hits_identical"]
    measured = {(row["metric"], row["statistic"]): row["measured"] for row in found["errors"]}
    assert measured["preemptions", "total"] > 0 and measured["cached_tokens", "total"] > 0
    assert (tmp_path / "out" / "validation_steps.png").stat().st_size > 0
