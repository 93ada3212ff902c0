"""--help: it lists every group, option and key with an explanation, and finds what is asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from harness.config.composing import help_text
from harness.config.composing.conf_tree import Group, read_tree
from harness.errors import ConfigError
from tests.harness.builders import CONF, composed

TREE = {group.name: group for group in read_tree([CONF])}
GROUPS = [group for group in TREE.values() if group.options]
OPTIONS = [(group, option) for group in GROUPS for option in group.options]
MAIN_KEYS = [str(name) for name in OmegaConf.load(CONF / "config.yaml") if name not in ("defaults", "hydra")]


def leaves(config: DictConfig, prefix: str) -> Iterator[str]:
    """Dotted names of all values in a composed group, groups of keys such as {} included."""
    for name in map(str, config):
        inner = None if OmegaConf.is_missing(config, name) else config[name]
        if isinstance(inner, DictConfig) and inner:
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def keys_shown(text: str) -> set[str]:
    return {
        line.split("=")[0].strip() for line in text.splitlines() if line.startswith("    ") and "=" in line.split()[0]
    }


def test_every_option_of_the_tree_is_listed() -> None:
    paths = {path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.parent != CONF}
    assert {Path(group.name) / f"{option.name}.yaml" for group, option in OPTIONS} == paths
    assert all(option.text for _, option in OPTIONS)


def test_every_key_is_explained() -> None:
    for group in TREE.values():
        assert not [key.name for key in group.keys if not key.text], group.name


@pytest.mark.parametrize("group", [group for group in GROUPS if group.name not in ("experiment", "trace/lengths")],
                         ids=lambda group: group.name)  # fmt: skip
@pytest.mark.sample(8)
def test_the_keys_of_a_group_are_those_that_hydra_composes(group: Group) -> None:
    """Those of its last option, as each takes a while to compose."""
    option = group.options[-1]
    config = composed(f"{group.name}={option.name}")
    expected = {name for name in leaves(config[group.name], f"{group.name}.") if not name.endswith(".kind")}
    shown = {key.name for key in option.keys if not key.name.startswith(("scheduler.options.", "router.options."))}
    opened = {name for name in shown if any(key.startswith(f"{name}.") for key in expected)}  # may be null, too
    assert shown - opened == expected, option.name
    assert shown <= {key.name for key in group.keys}


def test_every_key_of_the_main_file_is_listed() -> None:
    main = OmegaConf.masked_copy(OmegaConf.load(CONF / "config.yaml"), MAIN_KEYS)  # type: ignore[arg-type]
    expected = set(leaves(main, ""))
    assert {key.name for group in TREE.values() if not group.options for key in group.keys} == expected


def test_the_whole_text_holds_all_of_it_in_80_columns() -> None:
    text = help_text.build([CONF])
    assert max(map(len, text.splitlines())) <= 80
    assert keys_shown(text) >= {key.name for group in TREE.values() for key in group.keys}
    marked = {line.split()[1] for line in text.splitlines() if line.startswith("  * ")}
    defaults = {"sim", "sharegpt", "poisson", "qwen3-8b", "h100-80gb", "vllm", "paged", "none", "profiled", "default"}
    defaults |= {"round_robin", "replicas", "rdma_400g"}
    assert marked == defaults


def test_a_search_finds_the_keys_that_match_by_name_or_explanation_and_no_others() -> None:
    text = help_text.build([CONF], ["slo"])
    assert {"metrics.slo.ttft_ms", "metrics.slo.tpot_ms", "metrics.slo.e2el_ms"} <= keys_shown(text)
    assert "of metrics (default: metrics=default)" in text
    assert "block_size" not in text and "slower" not in text  # a word, not any three letters
    assert keys_shown(help_text.build([CONF], ["SLO", "e2el"])) == {"metrics.slo.e2el_ms"}
    assert "scheduler.preemption" in keys_shown(
        help_text.build([CONF], ["preempt"])
    )  # part of a word, without a whole one
    assert keys_shown(help_text.build([CONF], ["block_size"])) >= {"block_size"}


@pytest.mark.parametrize("group", TREE.values(), ids=lambda group: group.name or "top")
@pytest.mark.sample(14)
def test_every_key_is_found_by_its_name(group: Group) -> None:
    for key in group.keys:
        assert key.name in keys_shown(help_text.build_from(list(TREE.values()), [key.name]))


def test_the_name_of_a_group_shows_it_whole_and_nothing_else() -> None:
    text = help_text.build([CONF], ["arrival"])
    assert keys_shown(text) == {key.name for key in TREE["arrival"].keys}
    assert all(f" {option.name} " in text for option in TREE["arrival"].options)
    assert "requests in flight (arrival=closed_loop)" in " ".join(text.split())  # a key that not all options have


def test_an_option_is_shown_with_its_own_values_and_comments() -> None:
    text = help_text.build([CONF], ["scheduler=vllm"])
    assert "scheduler.victim=last preempt the sequence that was admitted last" in text
    assert "scheduler.options.order" not in text
    assert "trace" not in keys_shown(text)


def test_nothing_found_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^--help schedulr: nothing matches .*did you mean 'scheduler'\?$"):
        help_text.build([CONF], ["schedulr"])


def test_options_of_another_folder_are_listed(tmp_path: Path) -> None:
    (tmp_path / "arrival").mkdir()
    (tmp_path / "arrival" / "tides.yaml").write_text(
        "# Choose for traffic that comes and goes.\nkind: poisson\nrate: 3.0  # at noon\nperiod_s: 60  # tide\n"
    )
    text = help_text.build([CONF, tmp_path], ["arrival"])
    assert "tides                 for traffic that comes and goes." in text
    assert "arrival.period_s=60   tide (arrival=tides)" in text
    assert "at noon" in help_text.build([CONF, tmp_path], ["arrival=tides"])
    (tmp_path / "arrival" / "tides.yaml").write_text("a: [1\n")
    with pytest.raises(ConfigError, match=r"tides\.yaml: not YAML"):
        help_text.build([CONF, tmp_path])
