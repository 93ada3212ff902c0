"""task=calibrate: whether a fit finds the constants that made the data, and what it reports."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.calibration.calibrate import at_limits
from harness.calibration.objective import errors_of_statistics, of_loads
from harness.engines.resolving import calibration_files as calibration
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.measured import load_measured
from harness.results.stored.files import read_results
from harness.studies.machine_profiling import PROFILES
from simulator.costs.constants import Constant
from tests.harness.builders import config
from tests.harness.measured.builders import calibrate, made_up, pretend_measured, write_distserve, write_llmservingsim

WORK = ["trace.num_requests=40", "arrival.rate=25", "max_num_batched_tokens=512", "max_num_seqs=64"]
SHORT = [*WORK, "trace.num_requests=6"]
TRUTH = {"memory_efficiency": 0.61, "flops_efficiency": 0.43, "step_overhead_s": 0.0031}
TRUE = [f"device.{name}={value}" for name, value in TRUTH.items()]


@pytest.mark.long
def test_step_times_give_back_the_constants_they_were_made_with(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE, "trace.num_requests=14")
    settings = ["calibration.part=first_half", "calibration.max_evaluations=110"]
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *settings)
    assert found.constants == pytest.approx(TRUTH, rel=0.05)
    assert found.fitted_on["part"] == "first_half" and found.fitted_on["num_requests"] == 7


def test_latencies_give_back_the_constants_they_were_made_with(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    path = write_distserve(tmp_path / "m.exp", read_results(tmp_path / "a")[0].requests)
    found = calibrate(
        tmp_path / "out", f"distserve:{path}", *WORK, *TRUE[:2], "calibration.constants=[step_overhead_s]",
        "calibration.max_evaluations=40",
    )  # fmt: skip
    assert found.constants == pytest.approx({"step_overhead_s": TRUTH["step_overhead_s"]}, rel=0.01)
    objective = OmegaConf.load(found.path).objective
    assert objective.after < 0.01 < objective.before and objective.evaluations <= 40


def test_only_runs_of_our_own_engine_have_step_times_to_fit_to(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    with pytest.raises(ConfigError, match="calibration.objective=steps: .*m.exp does not record step times"):
        calibrate(tmp_path / "out", f"distserve:{path}", "calibration.objective=steps")


@pytest.mark.long
def test_a_narrow_width_keeps_a_constant_near_its_default(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *SHORT, *TRUE)
    only = ["calibration.constants=[step_overhead_s]", "calibration.max_evaluations=10", *TRUE[:2]]
    width = "calibration.widths={step_overhead_s:1e-7}"
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *only, width)
    default = config().device.step_overhead_s
    assert abs(found.constants["step_overhead_s"] - default) < 0.1 * (TRUTH["step_overhead_s"] - default)
    assert OmegaConf.load(found.path).objective.widths == {"step_overhead_s": 1e-7}
    with pytest.raises(ConfigError, match="calibration.widths: cost=roofline has no 'x' .*step_overhead_s"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *only, "calibration.widths={x:1}")


def test_a_host_that_asynchronous_scheduling_hides_may_well_take_less() -> None:
    profiled = ["model=tiny", "cost=profiled", f"cost.profile={PROFILES / 'amd-epyc' / 'tiny'}"]
    widths = [
        resolve(config(*profiled, f"scheduler={name}")).constants()["step_overhead_us"].width
        for name in ("mixed", "vllm")
    ]
    assert widths == [2000, 500]


@pytest.mark.long
def test_constants_without_effect_are_not_fitted(tmp_path: Path) -> None:
    cost = ["device=laptop-cpu", "cost=profiled", f"cost.profile={PROFILES / 'amd-epyc' / 'tiny'}"]
    pretend_measured(tmp_path / "a", *SHORT, "model=tiny", *cost)
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *cost, "calibration.max_evaluations=10")
    assert set(found.constants) == {"step_overhead_us", "prefill_layer_us"}
    with pytest.raises(ConfigError, match="mixing_factor has no effect with this profile"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *cost, "calibration.constants=[mixing_factor]")


def test_what_was_measured_as_0_does_not_count() -> None:
    table = made_up()
    unmeasured = errors_of_statistics(table.assign(tpot=0.0), table)
    assert set(unmeasured.values()) == {0.0} and not any(name.startswith("tpot") for name in unmeasured)
    assert errors_of_statistics(table, table.assign(tpot=0.1))["tpot mean"] != 0


def test_each_load_is_compared_with_itself_in_statistics_that_it_has_requests_for() -> None:
    def table(*latencies: float) -> pd.DataFrame:
        rows = made_up().iloc[[0] * len(latencies)]
        return rows.assign(ttft=latencies, tpot=latencies, e2el=latencies)

    light, heavy = [1.0] * 100, [2.0] * 100
    measured, simulated = table(*light, *heavy), table(*heavy, *light)
    assert set(errors_of_statistics(measured, simulated).values()) == {0.0}
    turns = [row for pair in zip(range(100), range(100, 200), strict=True) for row in pair]
    measured, simulated = measured.iloc[turns].assign(load=[3.0, 5.0] * 100), simulated.iloc[turns]
    assert sorted(of_loads(measured, simulated)) == [-0.5] * 9 + [1.0] * 9  # mean, median and p90 of each
    assert len(of_loads(measured.iloc[:198:2], simulated.iloc[:198:2])) == 6


@pytest.mark.long
def test_a_fit_can_start_from_an_earlier_one_and_keeps_its_other_constants(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *SHORT, *TRUE)
    on = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 1}
    earlier = tmp_path / "earlier.yaml"
    calibration.write(earlier, {"constants": TRUTH | {"step_overhead_s": 0.01}, "cost": "roofline", "fitted_on": on})
    settings = [f"cost.calibration={earlier}", "calibration.constants=[step_overhead_s]"]
    settings.append("calibration.max_evaluations=40")
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *settings)
    assert found.constants == pytest.approx(TRUTH, rel=1e-3)
    assert [data["data_sha256"] for data in found.kept] == ["0"] and found.fitted_on["data_sha256"] != "0"
    assert found.was_fitted_on("0", "first_half") and not found.was_fitted_on("1", "first_half")


def test_requests_that_the_simulation_does_not_serve_end_the_fit(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK)
    requests = read_results(tmp_path / "a")[0].requests
    path = write_distserve(tmp_path / "m.exp", requests)
    prompts, outputs = requests["num_prompt_tokens"], requests["num_output_tokens"]
    refusing, cutting = int(prompts.median()), int(prompts.max()) + 2
    assert cutting < (prompts + outputs).max()
    for limit in (refusing, cutting):
        settings = [f"max_model_len={limit}", "calibration.objective=statistics"]
        unserved = int((prompts + outputs > limit).sum())
        with pytest.raises(ConfigError, match=f"{unserved} of 40 requests .* are refused or cut short"):
            calibrate(tmp_path / "out", f"distserve:{path}", *WORK, *settings)


def test_a_fit_says_to_how_many_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretend_measured(tmp_path / "a", "trace=shared_prefix", "trace.num_requests=40", "arrival.rate=60")
    total = len(read_results(tmp_path / "a")[0].steps)
    name, settings = f"run:{tmp_path / 'a'}", "calibration.max_evaluations=2"
    assert calibrate(tmp_path / "all", name, settings).fitted_on["num_steps"] == total
    assert "as measured up to" not in capsys.readouterr().out
    path = tmp_path / "a" / "config.yaml"
    path.write_text(path.read_text().replace("enable_prefix_caching: true", "enable_prefix_caching: false"))
    count = calibrate(tmp_path / "some", name, settings).fitted_on["num_steps"]
    assert 0 < count < total
    said = f"! plans are as measured up to step {count:,} of {total:,} only: fitted to the {count:,} steps"
    assert said in capsys.readouterr().out


def test_a_part_without_steps_is_refused(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", "trace.num_requests=40", "arrival=all_at_once")
    with pytest.raises(ConfigError, match="calibration.part=first_half: no steps to fit to"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", "calibration.part=first_half")


def test_a_fit_says_what_differs_from_the_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = write_llmservingsim(tmp_path / "vllm")
    settings = ["calibration.constants=[step_overhead_s]", "calibration.max_evaluations=2"]
    found = calibrate(tmp_path / "out", f"llmservingsim:{folder}", *settings)
    out = capsys.readouterr().out
    assert "! max_num_seqs=256 simulated, 128 measured" in out and "simulated prefix cache finds nothing" in out
    assert found.other_systems(resolve(config()).fitted_for()) == []
    run = load_measured(f"llmservingsim:{folder}")
    assert found.was_fitted_on_another_run(run.requests_sha256(), "another run's", "all")
    assert not found.was_fitted_on_another_run(run.requests_sha256(), run.data_sha256(), "all")
    again = [*settings, f"cost.calibration={found.path}", "device=h200"]
    with pytest.raises(ConfigError, match="fitted on NVIDIA H100 80GB HBM3, simulated is NVIDIA H200"):
        calibrate(tmp_path / "again", f"llmservingsim:{folder}", *again)
    calibrate(tmp_path / "again", f"llmservingsim:{folder}", *again, "cost.other_device=true")
    (warning,) = found.other_systems(resolve(config("device=h200")).fitted_for())
    assert f"! {warning}" in capsys.readouterr().out


def test_every_constant_at_a_limit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the file and on the terminal; one that began at its limit and stayed, too."""
    constants = {"fast": Constant(0.5, 0.0, 1.0), "still": Constant(0.0, 0.0, 1.0), "free": Constant(0.5, 0.0, 1.0)}
    found = at_limits(constants, {"fast": 0.9999, "still": 0.0, "free": 0.4})
    assert found == {"fast": "upper limit 1", "still": "lower limit 0, where the fit began"}
    pretend_measured(tmp_path / "a", *SHORT, "device.step_overhead_s=0.5")
    only = ["calibration.constants=[step_overhead_s]", "calibration.max_evaluations=25"]
    fit = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *only)
    assert OmegaConf.load(fit.path).objective.at_limit == {"step_overhead_s": "upper limit 0.02"}
    assert "! step_overhead_s is at its upper limit 0.02" in capsys.readouterr().out


def test_an_unknown_constant_is_refused_with_those_there_are(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK)
    with pytest.raises(ConfigError, match="cost=roofline has no 'speed' .memory_efficiency, flops_efficiency"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", "calibration.constants=[speed]")
