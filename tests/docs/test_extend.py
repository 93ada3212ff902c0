"""docs/extend.md: a folder of the user's own, of the page's code blocks. tests/docs/test_docs.py runs its commands."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hydra.core.hydra_config import HydraConfig

from engine.core import policies
from harness import cli
from harness.config import CustomArrival, CustomCost, CustomTrace, load, targets
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError, TraceError
from harness.results.stored.files import read_results
from harness.workload.arrivals import make_arrivals
from harness.workload.readers import load_trace
from tests.docs.pages import write_files
from tests.harness.builders import config

Launch = Callable[[str], int]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """The command line in a folder with the files of the page; what it imports is forgotten afterwards."""
    write_files("extend.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(targets, "_imported", {})
    known = dict(policies.POLICIES)

    def call(command: str) -> int:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        return cli.main()

    yield call
    HydraConfig.instance().cfg = None
    for name in ("own", "broken", "missing"):
        sys.modules.pop(name, None)
    policies.POLICIES.clear()
    policies.POLICIES.update(known)


def result_folder(folder: Path) -> Path:
    (found,) = (folder / "outputs").iterdir()
    return found


def test_a_figure_of_ones_own(launch: Launch, tmp_path: Path) -> None:
    assert launch("twinserve 'figures=[own:prompts_and_ttft]' trace.num_requests=5 progress=false") == 0
    assert (result_folder(tmp_path) / "prompts_and_ttft.png").exists()


def test_a_policy_from_outside(launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Short prompts are served first; its settings are checked and stand in the help text."""
    few = "frontend=none max_num_seqs=1 arrival=all_at_once trace.num_requests=20 cost=roofline plots=false"
    assert launch(f"twinserve scheduler.policy=own:ShortFirst {few}") == 0
    result, summary = read_results(result_folder(tmp_path))
    requests = result.requests.sort_values("first_scheduled_time")
    assert summary["policy"] == "own:ShortFirst"
    assert (np.diff(requests["num_prompt_tokens"].to_numpy()) >= 0).all()
    assert launch(f"twinserve scheduler.policy=own:ShortFirst scheduler.options.ageing=1 {few}") == 2
    assert "scheduler.options.ageing: policy=own:ShortFirst has no such setting" in capsys.readouterr().err
    assert launch("twinserve --config-dir=conf --help scheduler=short_first") == 0
    assert "ageing_tokens_per_s=0.0" in capsys.readouterr().out


def test_a_reader_from_outside(launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = "--config-dir=conf trace=my_log arrival=trace plots=false progress=false"
    assert launch(f"twinserve {mine}") == 0
    folder = result_folder(tmp_path)
    result, summary = read_results(folder)
    assert result.requests["num_prompt_tokens"].tolist() == [812, 64, 240]  # the longest prompt is left out
    assert result.requests["arrival_time"].tolist() == pytest.approx([0, 0.36, 1.09])
    assert result.requests["tenant"].tolist() == [0, 1, 2] and summary["trace"] == "log"
    assert "trace.target=own:read_log" in (folder / "inputs.json").read_text(encoding="utf-8")
    assert launch(f"twinserve {mine} trace.options.shortest=1") == 2
    assert "TypeError: read_log() got an unexpected keyword argument 'shortest'" in capsys.readouterr().err


def test_a_model_from_outside(launch: Launch, tmp_path: Path) -> None:
    shape = {
        "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 7, "hidden_size": 1024, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 2048, "vocab_size": 50_000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(shape))
    few = "trace.num_requests=5 plots=false progress=false"
    assert launch(f"twinserve model=hf model.config=checkpoint {few} hydra.run.dir=a") == 0
    assert load(tmp_path / "a" / "config.yaml").model.num_layers == 7
    assert launch(f"twinserve --config-dir=conf model=my-model {few} hydra.run.dir=b") == 0
    assert load(tmp_path / "b" / "config.yaml").model.name == "our-3b"


def test_a_device_from_outside(launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = "trace.num_requests=5 plots=false progress=false"
    assert launch(f"twinserve --config-dir=conf device=my-gpu cost=roofline {few}") == 0
    _, summary = read_results(result_folder(tmp_path))
    assert summary["device"] == "Our GPU"
    assert launch("twinserve --config-dir=conf --help device") == 0
    assert "my-gpu" in capsys.readouterr().out


def test_arrivals_and_step_times_are_those_of_the_functions(launch: Launch, tmp_path: Path) -> None:
    own = "arrival=custom arrival.target=own:bursts arrival.options.size=5 cost=custom cost.target=own:linear"
    assert launch(f"twinserve {own} trace.num_requests=20 plots=false progress=false") == 0
    result, summary = read_results(result_folder(tmp_path))
    assert result.requests["arrival_time"].tolist() == [row // 5 for row in range(20)]
    steps = result.steps
    num_tokens = steps["num_decode_seqs"] + steps["num_prefill_tokens"]
    assert np.allclose(steps["duration"], 5e-3 + 20e-6 * num_tokens)
    assert summary["verdict"] != "closed" and "not validated" in summary["cost_model"]


def test_code_named_by_results_is_not_run(launch: Launch, tmp_path: Path) -> None:
    """Results of other people are compared without their code; a task that needs it says so."""
    few = "trace.num_requests=5 plots=false progress=false"
    own = "scheduler.policy=own:ShortFirst trace=custom trace.target=own:read_log trace.path=log.csv arrival=custom"
    assert launch(f"twinserve {own} arrival.target=own:bursts plots=false progress=false hydra.run.dir=a") == 0
    sys.modules.pop("own")
    targets._imported.clear()
    policies.POLICIES.pop("own:ShortFirst")
    (tmp_path / "own.py").write_text("raise SystemExit('this code was run')")
    assert load(tmp_path / "a" / "config.yaml").scheduler.policy == "own:ShortFirst"
    assert launch(f"twinserve {few} hydra.run.dir=b") == 0
    assert launch("twinserve task=report results=[a,b] plots=false") == 0
    with pytest.raises(ConfigError, match="named by a stored configuration, whose code is not run"):
        load_trace(load(tmp_path / "a" / "config.yaml").trace, seed=0)
    assert "own" not in sys.modules


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("scheduler.policy", "own:ShortFurst", "own has no function or class 'ShortFurst'; did you mean 'ShortFirst'?"),
        ("scheduler.policy", "own:read_log", "no policy, it has no options_type"),
        ("scheduler.policy", "nowhere.own:X", "no module 'nowhere' among Python's packages"),
        ("scheduler.policy", "own:", "must be package.module:name"),
        (
            "scheduler.policy",
            "broken:X",
            "importing it failed: ZeroDivisionError: division by zero (broken.py, line 2)",
        ),
        ("scheduler.policy", "missing:X", "importing it failed: ModuleNotFoundError: No module named 'not_there'"),
        ("trace.target", "own:no_trace", "returned NoneType; must be a DataFrame, or columns by name"),
        ("trace.target", "own:half_trace", "returned no column num_output_tokens"),
        ("trace.target", "own:read_log", "TypeError: read_log() got an unexpected keyword argument 'length'"),
        ("arrival.target", "own:wrong_times", "must return 5 times in s, ascending from 0 or later"),
        ("cost.target", "own:bursts", "TypeError: bursts() got an unexpected keyword argument 'model'"),
        ("cost.target", "own:no_cost", "what it returns has no method step_ns"),
        ("figures", "own:nope", "own has no function or class 'nope'; did you mean 'np'?"),
    ],
)
def test_errors_of_the_code_are_one_line(launch: Launch, tmp_path: Path, key: str, name: str, message: str) -> None:
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "missing.py").write_text("import not_there\n")
    with (tmp_path / "own.py").open("a") as file:
        file.write(WRONG)
    with pytest.raises(ConfigError) as caught:
        use(key, name)
    assert str(caught.value).startswith(f"{key}={name!r}: {message}")


def use(key: str, name: str) -> None:
    """Import what the key names, and call it as a run does."""
    group, rng, drawn = key.partition(".")[0], np.random.default_rng(0), config("trace.num_requests=5")
    values = {"figures": [name]} if key == "figures" else {group: {"kind": "custom", key.partition(".")[2]: name}}
    targets.import_targets(values)
    if group == "trace":
        load_trace(CustomTrace(target=name, options={"length": 1} if name == "own:read_log" else {}), seed=0)
    elif group == "arrival":
        make_arrivals(load_trace(drawn.trace, seed=0), CustomArrival(target=name), rng)
    elif group == "cost":
        resolve(drawn.model_copy(update={"cost": CustomCost(target=name)})).cost_model()


def test_rows_of_a_function_are_checked_as_those_of_a_file(launch: Launch, tmp_path: Path) -> None:
    with (tmp_path / "own.py").open("a") as file:
        file.write(WRONG)
    targets.import_targets({"trace": {"kind": "custom", "target": "own:bad_trace"}})
    settings = CustomTrace(target="own:bad_trace")
    with pytest.raises(TraceError, match="the first is row 2: num_prompt_tokens is 0"):
        load_trace(settings, seed=0)
    trace = load_trace(settings.model_copy(update={"on_bad_row": "drop"}), seed=0)
    assert trace.table["num_prompt_tokens"].tolist() == [32, 8] and trace.hash_block_size == 16
    assert [ids.tolist() for ids in trace.table["hash_ids"]] == [[1, 2], [3]]
    assert trace.table["arrival_time"].tolist() == [0, 2] and trace.bad_rows == {"num_prompt_tokens is 0": 1}


WRONG = """
def wrong_times(trace, rng):
    return -np.arange(len(trace.table))

def no_cost(**known):
    return 1

def no_trace(path, rng):
    return None

def half_trace(path, rng):
    return {"num_prompt_tokens": [1]}

def bad_trace(path, rng):
    return {
        "arrival_time": np.array([7.0, 6.0, 5.0]),
        "num_prompt_tokens": [8, 0, 32],
        "num_output_tokens": [1, 1, 1],
        "hash_ids": [[3], [], np.array([1, 2])],
        "hash_block_size": 16,
    }
"""
