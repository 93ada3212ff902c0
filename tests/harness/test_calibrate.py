"""task=calibrate: the minimiser, the file it leaves, and whether a fit finds the constants that made the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.runs import fitted as calibration
from harness.calibration.calibrate import misfit_of_requests, misfit_of_statistics
from harness.calibration.fit import Fit, minimise
from simulator.costs.constants import Constant
from harness.errors import ConfigError
from harness.measured import load_measured
from experiments.recovery import LogError
from harness.results.files import CALIBRATION, read_results
from harness.runs.profiling import PROFILES
from harness.runs.system import resolve
from simulator.costs.constants import Constant
from tests.harness.builders import config, execute_in
from tests.harness.measured_builders import made_up, pretend_measured, write_distserve, write_llmservingsim

WORK = ["trace.num_requests=40", "arrival.rate=25", "max_num_batched_tokens=512", "max_num_seqs=64"]
TRUTH = {"memory_efficiency": 0.61, "flops_efficiency": 0.43, "step_overhead_s": 0.0031}
TRUE = [f"device.{name}={value}" for name, value in TRUTH.items()]


# -- the minimiser ----------------------------------------------------------------------------------------------------


def fit(start: Mapping[str, float], target: Mapping[str, float], budget: int = 400) -> Fit:
    constants = {name: Constant(value, 0.0, 10.0) for name, value in start.items()}

    def objective(values: Mapping[str, float]) -> float:
        x = [values[name] - target[name] for name in target]
        return float(sum((i + 1) * each**2 for i, each in enumerate(x)) + 0.5 * x[0] * x[-1])

    return minimise(objective, constants, budget, lambda count, best: None)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_minimum_inside_is_found(count: int) -> None:
    target = {f"c{i}": 2.0 + i for i in range(count)}
    found = fit(dict.fromkeys(target, 5.0), target)
    assert found.values == pytest.approx(target, abs=0.01)
    assert found.objective < 1e-3 < found.start_objective and found.num_evaluations <= 400


def test_a_minimum_outside_is_sought_at_the_limits() -> None:
    found = fit({"a": 9.5, "b": 5.0}, {"a": 30.0, "b": 5.0})
    assert found.values["a"] == pytest.approx(10.0) and all(0 <= value <= 10 for value in found.values.values())


def test_points_beyond_a_limit_come_back_from_it() -> None:
    """Moved to the limit instead, simplices would go flat: they would look at the same point again and again."""
    seen: list[tuple[float, ...]] = []

    def objective(values: Mapping[str, float]) -> float:
        seen.append(tuple(values.values()))
        return (values["a"] + 1) ** 2 + (values["b"] - 5) ** 2  # falls towards the limit of a

    minimise(objective, {name: Constant(5.0, 0.0, 10.0) for name in "ab"}, 300, lambda count, best: None)
    assert sum(a == 0.0 for a, _ in seen) <= 2


def test_the_budget_is_kept_and_the_best_so_far_returned() -> None:
    target = {"a": 2.0, "b": 3.0}
    assert fit({"a": 2.0, "b": 3.0}, target, budget=1).values == target
    found = fit({"a": 9.0, "b": 9.0}, target, budget=12)
    assert found.num_evaluations == 12 and found.objective < found.start_objective


def test_equal_searches_take_equal_steps() -> None:
    assert fit({"a": 9.0, "b": 9.0}, {"a": 2.0, "b": 3.0}) == fit({"a": 9.0, "b": 9.0}, {"a": 2.0, "b": 3.0})


def test_a_default_below_its_limit_is_tried_first_and_left_for_the_limits() -> None:
    tried: list[float] = []

    def objective(values: Mapping[str, float]) -> float:
        tried.append(values["a"])
        return values["a"]

    found = minimise(objective, {"a": Constant(0.03, 0.05, 1.0)}, 60, lambda count, best: None)
    assert tried[0] == 0.03 and all(0.05 <= value <= 1 for value in tried[1:])
    assert found.values == {"a": 0.03} and min(tried[1:]) == pytest.approx(0.05)


# -- fits -------------------------------------------------------------------------------------------------------------


def calibrate(out: Path, measured: str, *overrides: str) -> calibration.Calibration:
    execute_in(out, config("progress=false", "task=calibrate", f"validation.measured={measured}", *overrides))
    return calibration.read(out / CALIBRATION)


def test_step_times_give_back_the_constants_they_were_made_with(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    settings = ["calibration.part=first_half", "calibration.max_evaluations=250"]
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *settings)
    assert found.constants == pytest.approx(TRUTH, rel=0.02)
    assert found.fitted_on["part"] == "first_half" and found.fitted_on["num_requests"] == 20


def test_latencies_give_back_the_constants_they_were_made_with(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    path = write_distserve(tmp_path / "m.exp", read_results(tmp_path / "a")[0].requests)
    found = calibrate(
        tmp_path / "out", f"distserve:{path}", *WORK, *TRUE[:2], "calibration.constants=[step_overhead_s]",
        "calibration.max_evaluations=60",
    )  # fmt: skip
    assert found.constants == pytest.approx({"step_overhead_s": TRUTH["step_overhead_s"]}, rel=0.01)
    objective = OmegaConf.load(found.path).objective
    assert objective.after < 0.01 < objective.before and objective.evaluations <= 60


def test_latencies_of_our_own_runs_can_be_fitted_to(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    only = ["calibration.constants=[step_overhead_s]", "calibration.max_evaluations=60", *TRUE[:2]]
    for objective in ("statistics", "requests"):
        found = calibrate(tmp_path / objective, f"run:{tmp_path / 'a'}", f"calibration.objective={objective}", *only)
        assert found.constants == pytest.approx({"step_overhead_s": TRUTH["step_overhead_s"]}, rel=0.01)
        assert "steps" not in OmegaConf.load(found.path).objective.minimised
    path = write_distserve(tmp_path / "m.exp", read_results(tmp_path / "a")[0].requests)
    with pytest.raises(LogError, match="steps are recovered by the rules of scheduler=vllm and scheduler=vllm_v0"):
        calibrate(tmp_path / "out", f"distserve:{path}", *WORK, "calibration.objective=steps")


def test_a_narrow_width_keeps_a_constant_near_its_default(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    only = ["calibration.constants=[step_overhead_s]", "calibration.max_evaluations=60", *TRUE[:2]]
    width = "calibration.widths={step_overhead_s:1e-7}"
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *only, width)
    default = config().device.step_overhead_s
    assert abs(found.constants["step_overhead_s"] - default) < 0.1 * (TRUTH["step_overhead_s"] - default)
    assert OmegaConf.load(found.path).objective.widths == {"step_overhead_s": 1e-7}
    with pytest.raises(ConfigError, match="calibration.widths: cost=roofline has no 'x' .*step_overhead_s"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *only, "calibration.widths={x:1}")


def test_a_host_that_asynchronous_scheduling_hides_may_well_take_less() -> None:
    profiled = ["cost=profiled", "cost.profile=x"]
    widths = [
        resolve(config(*profiled, f"scheduler={name}")).constants()["step_overhead_us"].width
        for name in ("mixed", "vllm")
    ]
    assert widths == [2000, 500]


def test_constants_without_effect_are_not_fitted(tmp_path: Path) -> None:
    cost = ["device=laptop-cpu", "cost=profiled", f"cost.profile={PROFILES / 'amd-epyc' / 'tiny'}"]
    pretend_measured(tmp_path / "a", *WORK, "model=tiny", *cost)
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *cost, "calibration.max_evaluations=10")
    assert set(found.constants) == {"step_overhead_us", "prefill_layer_us"}
    with pytest.raises(ConfigError, match="mixing_factor has no effect with this profile"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *cost, "calibration.constants=[mixing_factor]")


def test_the_misfit_of_requests_weighs_ttft_and_decode_time_alike() -> None:
    measured = pd.DataFrame({"ttft": [1.0, 3.0], "e2el": [11.0, 33.0]})  # decode times 10 and 30
    simulated = pd.DataFrame({"ttft": [2.0, 3.0], "e2el": [16.0, 31.0]})  # off by 1 and 0, and by 4 and -2
    assert misfit_of_requests(measured, simulated) == pytest.approx((0.5 / 2 + 3 / 20) / 2)
    simulated["e2el"] = [16.0, math.nan]
    assert math.isnan(misfit_of_requests(measured, simulated))


def test_what_was_measured_as_0_does_not_count() -> None:
    table = made_up()
    assert misfit_of_statistics(table.assign(tpot=0.0), table) == 0
    assert misfit_of_statistics(table, table.assign(tpot=0.1)) > 0
    assert misfit_of_requests(table.assign(e2el=table["ttft"]), table) == 0


def test_single_requests_give_back_the_constants_of_a_linear_model(tmp_path: Path) -> None:
    on = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 1}
    truth = {"step_s": 0.012, "context_token_s": 3e-7, "prefill_step_s": 0.015, "prompt_token_s": 9e-5}
    true, start = tmp_path / "true.yaml", tmp_path / "start.yaml"
    calibration.write(true, {"constants": truth, "cost": "linear", "fitted_on": on})
    far = {"step_s": 0.03, "prompt_token_s": 2e-5}
    calibration.write(start, {"constants": truth | far, "cost": "linear", "fitted_on": on})
    system = [*WORK, "cost=linear", "scheduler=vllm_v0"]
    pretend_measured(tmp_path / "a", *system, f"cost.calibration={true}")
    path = write_distserve(tmp_path / "m.exp", read_results(tmp_path / "a")[0].requests)
    found = calibrate(
        tmp_path / "out", f"distserve:{path}", *system, f"cost.calibration={start}", "calibration.objective=requests",
        f"calibration.constants=[{','.join(far)}]", "calibration.max_evaluations=150",
    )  # fmt: skip
    assert found.constants == pytest.approx(truth, rel=0.01)
    objective = OmegaConf.load(found.path).objective
    assert objective.after < 0.005 < objective.before and "requests" in objective.minimised


def test_a_fit_can_start_from_an_earlier_one_and_keeps_its_other_constants(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK, *TRUE)
    on = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 1}
    earlier = tmp_path / "earlier.yaml"
    calibration.write(earlier, {"constants": TRUTH | {"step_overhead_s": 0.01}, "cost": "roofline", "fitted_on": on})
    settings = [f"cost.calibration={earlier}", "calibration.constants=[step_overhead_s]"]
    settings.append("calibration.max_evaluations=40")
    found = calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", *settings)
    assert found.constants == pytest.approx(TRUTH, rel=1e-3)
    assert [data["data_sha256"] for data in found.kept] == ["0"] and found.fitted_on["data_sha256"] != "0"
    assert found.was_fitted_on("0", "first_half") and not found.was_fitted_on("1", "first_half")


@pytest.mark.parametrize("objective", ["statistics", "requests"])
def test_requests_that_the_simulation_does_not_serve_end_the_fit(objective: str, tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK)
    requests = read_results(tmp_path / "a")[0].requests
    path = write_distserve(tmp_path / "m.exp", requests)
    prompts, outputs = requests["num_prompt_tokens"], requests["num_output_tokens"]
    refusing, cutting = int(prompts.median()), int(prompts.max()) + 2
    assert cutting < (prompts + outputs).max()
    for limit in (refusing, cutting):
        settings = [f"max_model_len={limit}", f"calibration.objective={objective}"]
        unserved = int((prompts + outputs > limit).sum())
        with pytest.raises(ConfigError, match=f"{unserved} of 40 requests .* are refused or cut short"):
            calibrate(tmp_path / "out", f"distserve:{path}", *WORK, *settings)


def test_a_fit_says_to_how_many_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretend_measured(tmp_path / "a", "trace=shared_prefix", "trace.num_requests=60", "arrival.rate=60")
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
    calibrate(tmp_path / "again", f"llmservingsim:{folder}", *settings, f"cost.calibration={found.path}", "device=h200")
    (warning,) = found.other_systems(resolve(config("device=h200")).fitted_for())
    assert f"! {warning}" in capsys.readouterr().out


def test_an_unknown_constant_is_refused_with_those_there_are(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "a", *WORK)
    with pytest.raises(ConfigError, match="cost=roofline has no 'speed' .memory_efficiency, flops_efficiency"):
        calibrate(tmp_path / "out", f"run:{tmp_path / 'a'}", "calibration.constants=[speed]")


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_calibration_replaces_the_constants_of_the_device(tmp_path: Path) -> None:
    on = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 1}
    path = tmp_path / "calibration.yaml"
    calibration.write(path, {"constants": TRUTH, "cost": "roofline", "fitted_on": on})
    for name, overrides in (("a", TRUE), ("b", [f"cost.calibration={path}"])):
        execute_in(tmp_path / name, config("progress=false", *WORK, *overrides))
    one, other = (read_results(tmp_path / name)[0].requests for name in "ab")
    assert one.equals(other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constants: {a: 1}", "not a calibration.yaml of task=calibrate"),
        (
            "constants: {a: x}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "not a calibration",
        ),
        ("- 1", "not a calibration.yaml of task=calibrate"),
        ("a: [", "cannot be read: not YAML"),
        (
            "cost: roofline\nconstants: {a: 1}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "fitted for cost=roofline with a; cost=roofline has memory_efficiency",
        ),
        (
            "cost: profiled\nconstants: {}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "fitted for cost=profiled",
        ),
    ],
)
def test_files_that_are_no_calibration_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(config(f"cost.calibration={path}"))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        resolve(config(f"cost.calibration={path}x"))
