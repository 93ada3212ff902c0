"""A composer that keeps merged files composes what Hydra composes."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from harness.config.composing import composer, known_commands
from harness.config.composing.composer import Composer, plain_forms
from tests.harness.builders import CONF
from tests.selection import few

RUNS = [
    "block_size=32 hydra.run.dir=out +extra.key=3 trace.num_requests=7 scheduler.policy=decode_first",
    "scheduler=vllm trace=synthetic trace.prompt.mean=5 '+plot.labels.a=b'",
    "~trace.n ~experiment hydra.job.name=mine ++new=1 '+validation.select={a: 1}'",
    "++seed=5 seed=6 ++seed=7 '+plot.labels={}' +plot.labels.a=b plot.labels.a=c 'trace={num_requests: 9}'",
    "hydra.job.env_copy=[HOME] hydra.job.config.override_dirname.kv_sep=: seed=3 block_size=4 cost=roofline",
    "scheduler=mixed trace=synthetic scheduler=vllm scheduler.async_scheduling=false trace=azure seed=3",
    "hydra.searchpath=[file:///no/such] seed=1",
    "validation.select.system=h100_sxm 'validation.select={a: 1}' model=hf model.config=x model.hf_overrides.rope.a=3",
]
REFUSED = (
    "block_size=1,2  nothing=1  trace=nothing  ~nothing  trace@a=azure  +max_num_seqs=3  a=[  hydra.job.env_copy=3"
)
UNKNOWN = (
    "block_size=8", "trace=azure", "trace.num_requests=1_0", "trace.path='a b'", "trace.nothing=1", "trace.prompt=1",
    "seed=1", "seed=${block_size}", "+seed=2", "~seed", "-m", "hydra.job.name=a", "metrics.slo={ttft_ms: 3}",
    "plots=true,false", "experiment=vllm", "hydra.run.dir=${now:%Y}/a$b",
)  # fmt: skip
SWEEPS = ["block_size=16,32 scheduler=vllm,mixed seed=range(3) hydra.sweep.dir=out", "trace=azure,csv block_size=8"]


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def loaders() -> Iterator[tuple[ConfigLoader, Composer]]:
    """Hydra's own and ours, neither of which has loaded anything."""
    with initialize_config_dir(config_dir=str(CONF), version_base=None):
        loader = GlobalHydra.instance().config_loader()
    plain = loader._loader if isinstance(loader, Composer) else loader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composer, "_KEPT", defaultdict(composer._Kept))
        yield plain, Composer(plain)


def all_of(cfg: DictConfig) -> tuple[object, ...]:
    flags = [node._metadata.flags for node in (cfg, cfg.hydra, cfg.trace)]
    return repr(OmegaConf.to_container(cfg)), flags, [type(node) for node in cfg.hydra.values()]


@pytest.mark.parametrize("line", RUNS)
@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
def test_a_run_is_composed_as_by_hydra(line: str, loaders: tuple[ConfigLoader, Composer]) -> None:
    plain, ours = loaders
    expected = plain.load_configuration("config", shlex.split(line), RunMode.RUN)
    for _ in range(2):  # merged, and kept
        assert all_of(ours.load_configuration("config", shlex.split(line), RunMode.RUN)) == all_of(expected)


def rows() -> list[list[str]]:
    """Every option of every group that Hydra need not merge, in lines with an option of each group. After twelve lines
    only traces, devices and models differ."""
    groups = [folder for folder in sorted(CONF.iterdir()) if folder.is_dir() and folder.name != "experiment"]
    options = {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in groups}
    most = max(map(len, options.values()))
    return [[f"{group}={names[place % len(names)]}" for group, names in options.items()] for place in range(most)]


@pytest.mark.parametrize("line", few(rows(), 12), ids=lambda line: "-".join(line)[:40])
@pytest.mark.sample(3)
def test_options_that_are_read_from_their_files_are_those_that_hydra_merges(
    line: list[str], loaders: tuple[ConfigLoader, Composer]
) -> None:
    plain, ours = loaders
    assert len(ours._options(OverridesParser.create().parse_overrides(line))) > len(line) / 2
    given = [*line, "seed=2"]
    assert all_of(ours.load_configuration("config", given, RunMode.RUN)) == all_of(
        plain.load_configuration("config", given, RunMode.RUN)
    )


@pytest.mark.parametrize(
    "option", ["experiment=vllm", "trace/lengths@trace.prompt=constant", "model@speculation.drafter=tiny"]
)
def test_a_choice_that_sets_more_than_its_group_is_for_hydra(
    option: str, loaders: tuple[ConfigLoader, Composer]
) -> None:
    (override,) = OverridesParser.create().parse_overrides([option])
    assert not loaders[1]._is_option(override)


@pytest.mark.parametrize("line", SWEEPS)
def test_a_sweep_and_its_jobs_are_composed_as_by_hydra(line: str, loaders: tuple[ConfigLoader, Composer]) -> None:
    def jobs(loader: ConfigLoader) -> list[tuple[object, ...]]:
        sweep = loader.load_configuration("config", line.split(), RunMode.MULTIRUN)
        each = [loader.load_sweep_config(sweep, ["scheduler=vllm", f"seed={seed}"]) for seed in (1, 2)]
        return [all_of(cfg) for cfg in (sweep, *each)]

    plain, ours = loaders
    assert jobs(ours) == jobs(plain)


@pytest.mark.parametrize("line", REFUSED.split("  "))
def test_what_hydra_refuses_is_refused_in_its_words(line: str, loaders: tuple[ConfigLoader, Composer]) -> None:
    words = []
    for loader in (*loaders, loaders[1]):
        with pytest.raises(HydraException) as caught:
            loader.load_configuration("config", ["seed=1", line], RunMode.RUN)
        words.append((type(caught.value), str(caught.value), repr(caught.value.__cause__)))
    assert len(set(words)) == 1


def test_files_are_read_once_and_a_composition_is_no_ones_but_its_own(
    loaders: tuple[ConfigLoader, Composer], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours = loaders
    first = ours.load_configuration("config", ["trace=synthetic", "seed=7"], RunMode.RUN)
    monkeypatch.setattr(plain, "load_configuration", None)
    first.trace.num_requests = 1
    second = ours.load_configuration("config", ["trace=synthetic", "block_size=8"], RunMode.RUN)
    assert (second.seed, second.block_size, second.trace.kind) == (0, 8, "synthetic")
    assert second.trace.num_requests != 1 and first.seed == 7


def test_another_process_takes_what_was_merged_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    with initialize_config_dir(config_dir=str(tmp_path), version_base=None, job_name="twinserve"):
        loader = GlobalHydra.instance().config_loader()
    plain = loader._loader if isinstance(loader, Composer) else loader

    def composed() -> object:
        monkeypatch.setattr(composer, "_KEPT", defaultdict(composer._Kept))  # as in another process
        return Composer(plain).load_configuration("config", [], RunMode.RUN).a

    for value in (1, 22):
        file.write_text(f"a: {value}")
        assert composed() == value
    for kept in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.pickle"):
        kept.write_bytes(kept.read_bytes()[:-9])
    assert composed() == 22, "a damaged file is merged again"
    monkeypatch.setattr(plain, "load_configuration", None)
    assert composed() == 22


def test_a_known_command_is_what_hydra_makes_of_it(loaders: tuple[ConfigLoader, Composer], tmp_path: Path) -> None:
    """The same values, and the same in the files of `.hydra`."""
    first = "scheduler=mixed trace=synthetic trace.prompt.mean=5 seed=3"
    again = "scheduler=mixed trace=synthetic hydra.run.dir=x/y trace.num_requests=70 plots=False arrival.rate=2.50"
    known_commands.keep(first.split(), partial(plain_forms, loader=loaders[1]))
    command = known_commands.find(again.split())
    assert command is not None and command.folder == "x/y"
    command.stored["hydra"]["hydra"]["job"]["name"] = "twinserve"  # as other tests in this process may have named it
    cfg = loaders[0].load_configuration("config", [*again.split(), "hydra.mode=RUN"], RunMode.RUN)
    cfg.hydra.runtime.output_dir, cfg.hydra.job.name = os.path.abspath("x/y"), "twinserve"
    parts = ([str(key) for key in cfg if (key == "hydra") == is_own] for is_own in (False, True))
    job, own = (OmegaConf.masked_copy(cfg, keys) for keys in parts)
    assert command.values == OmegaConf.to_container(job, resolve=True)
    command.store(tmp_path)
    for name, content in {"config": job, "hydra": own, "overrides": cfg.hydra.overrides.task}.items():
        stored = OmegaConf.to_container(OmegaConf.load(tmp_path / f"{name}.yaml"))
        assert stored == OmegaConf.to_container(content, enum_to_str=True)


@pytest.mark.parametrize("more", UNKNOWN)
def test_what_a_known_command_does_not_cover_is_for_hydra(more: str, loaders: tuple[ConfigLoader, Composer]) -> None:
    known_commands.keep(["seed=1"], partial(plain_forms, loader=loaders[1]))
    assert known_commands.find(["seed=1"]) is not None and known_commands.find(["seed=1", *shlex.split(more)]) is None


def test_a_command_is_unknown_once_a_file_that_composes_it_has_changed(
    loaders: tuple[ConfigLoader, Composer], monkeypatch: pytest.MonkeyPatch
) -> None:
    known_commands.keep([], partial(plain_forms, loader=loaders[1]))
    assert known_commands.find([]) is not None
    stamps = [*known_commands.stamps(str(CONF))]
    monkeypatch.setattr(
        known_commands, "stamps", lambda folder: [(path, size + 1, time) for path, size, time in stamps]
    )
    assert known_commands.find([]) is None


@pytest.mark.parametrize("choice", ["fleet=disaggregated fleet.prefill.device=h200", "hydra.job.env_copy=[HOME]"])
def test_what_depends_on_more_than_the_choices_is_not_kept(choice: str, loaders: tuple[ConfigLoader, Composer]) -> None:
    known_commands.keep(choice.split(), partial(plain_forms, loader=loaders[1]))
    assert known_commands.find(choice.split()) is None
