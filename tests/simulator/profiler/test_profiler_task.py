"""task=profile from the configuration on: what is refused, where the profile goes, what is written down about it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("torch")

from harness.errors import ConfigError  # noqa: E402
from harness.studies import machine_profiling  # noqa: E402
from simulator.profile.meta import ProfileMeta  # noqa: E402
from simulator.profile.profile import META, Profile  # noqa: E402
from simulator.profile.profile_folder import save_profile  # noqa: E402
from simulator.profiler.profile_machine import PARTIAL, Job, ProfilingError  # noqa: E402
from tests.harness.builders import config  # noqa: E402
from tests.simulator.builders import OPERATORS  # noqa: E402

TINY = ("task=profile", "engine=cpu", "model=tiny", "progress=false")


def other_profile(folder: Path, num_layers: int = 1, **source: str) -> None:
    """A profile of a model with one layer, or another number."""
    tables = {
        "tokens": pd.DataFrame({"operator": list(OPERATORS), "num_tokens": 1, "time_us": 1.0}),
        "sequences": pd.DataFrame({"operator": ["lm_head", "sampler"], "num_sequences": 1, "time_us": 1.0}),
        "attention": pd.DataFrame(
            {
                "prefill_tokens": [0, 1], "prefill_context": 0, "num_decodes": [1, 0], "decode_context": [1, 0],
                "time_us": 1.0,
            }
        ),
    }  # fmt: skip
    calls = dict.fromkeys((*OPERATORS, "lm_head", "sampler"), 1)
    save_profile(Profile(ProfileMeta("cpu", "tiny", 1, num_layers, calls, source=source), tables), folder)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that would be measured; measuring them ends at once."""
    taken: list[Job] = []

    def refuse(job: Job, *_: object) -> None:
        taken.append(job)
        raise ProfilingError("measured nothing")

    monkeypatch.setattr(machine_profiling, "profile_machine", refuse)
    return taken


def test_the_simulation_cannot_be_profiled() -> None:
    with pytest.raises(ConfigError, match="^engine=sim: task=profile measures the real engine"):
        config("task=profile", "model=tiny")


def test_keys_of_the_profiler_belong_to_its_task() -> None:
    with pytest.raises(ConfigError, match="^profile.time_budget_s: task=run does not read it"):
        config("profile.time_budget_s=5")


def test_a_profile_is_named_after_device_model_and_ranks() -> None:
    wanted = config("task=profile", "engine=cpu", "model=qwen3-8b", "tensor_parallel_size=2")
    folder = machine_profiling.profile_folder(wanted, "Intel(R) Xeon(R) CPU @ 2.20GHz")
    assert folder.relative_to(machine_profiling.PROFILES).as_posix() == "intel-xeon-cpu-2.20ghz/qwen3-8b/tp2"
    wanted = config(*TINY, "profile.out=x/y")
    assert machine_profiling.profile_folder(wanted, "any") == Path("x/y")


def test_the_job_is_what_was_configured(tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run.py", "task=profile", "engine=cpu", "model=tiny", f"profile.out={tmp_path}", "hydra.run.dir=x"]
    monkeypatch.setattr("sys.argv", arguments)
    settings = ("engine.num_threads=1", "profile.time_budget_s=7", "profile.max_context=300", "max_model_len=512")
    wanted = config(*TINY, *settings, f"profile.out={tmp_path / 'p'}")
    with pytest.raises(ConfigError, match="^task=profile: measured nothing$"):
        machine_profiling.profile(wanted, tmp_path)
    (job,) = jobs
    assert (job.num_threads, job.time_budget_s, job.max_context, job.engine.max_model_len) == (1, 7, 300, 512)
    assert job.shape.num_layers == job.model_config.num_layers == 4
    assert job.source["command"] == "python run.py task=profile engine=cpu model=tiny"
    assert job.source["software"]["torch"]


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    wanted = config(*TINY, f"engine.weights={tmp_path / 'nowhere'}", f"profile.out={tmp_path / 'p'}")
    with pytest.raises(ConfigError, match="^engine=cpu: .*nowhere"):
        machine_profiling.profile(wanted, tmp_path)
    assert not (tmp_path / "p").exists()


def test_a_profile_that_could_price_another_kv_dtype_is_not_overwritten_by_it(tmp_path: Path, jobs: list[Job]) -> None:
    other_profile(tmp_path / "p", 4, kv_cache_dtype="fp8")
    wanted = config(*TINY, f"profile.out={tmp_path / 'p'}", "engine.kv_cache_dtype=int4")
    with pytest.raises(ConfigError, match="holds another profile .profiled with engine.kv_cache_dtype=fp8."):
        machine_profiling.profile(wanted, tmp_path)
    assert not jobs
    with pytest.raises(ConfigError, match="measured nothing"):
        machine_profiling.profile(config(*TINY, f"profile.out={tmp_path / 'p'}", "engine.kv_cache_dtype=fp8"), tmp_path)


def test_another_profile_is_not_overwritten_unasked(tmp_path: Path, jobs: list[Job]) -> None:
    folder = tmp_path / "p"
    other_profile(folder)
    wanted = config(*TINY, f"profile.out={folder}")
    with pytest.raises(ConfigError, match="holds another profile .profiled for 1 layers.*profile.overwrite=true"):
        machine_profiling.profile(wanted, tmp_path)
    (folder / META).write_text((folder / META).read_text().replace("format_version: 1", "format_version: 99"))
    with pytest.raises(ConfigError, match="holds another profile .meta.yaml: format_version 99"):
        machine_profiling.profile(wanted, tmp_path)
    assert not jobs
    with pytest.raises(ConfigError, match="measured nothing"):
        machine_profiling.profile(config(*TINY, f"profile.out={folder}", "profile.overwrite=true"), tmp_path)
    assert len(jobs) == 1


def test_what_an_interrupted_session_left_is_no_obstacle(tmp_path: Path, jobs: list[Job]) -> None:
    (tmp_path / "p").mkdir()
    for left in (PARTIAL, "partial.tmp"):  # the second while it was being written
        (tmp_path / "p" / left).write_text("{}")
    with pytest.raises(ConfigError, match="measured nothing"):
        machine_profiling.profile(config(*TINY, f"profile.out={tmp_path / 'p'}"), tmp_path)
    assert len(jobs) == 1
