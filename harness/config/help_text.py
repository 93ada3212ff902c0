"""The text of `--help`: every group, option and key with its comment line from the configuration tree itself."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from engine.core.policies import POLICIES
from harness.config.option_sets import OPTION_SETS, explained, explained_settings

_WIDTH = 118
_HEADER = """\
TwinServe replays an LLM request trace through a simulated or a real serving engine, which share one scheduler, and
records throughput, latencies, preemptions, cache hits and KV use in the same tables for both.

Usage: python run.py [group=option ...] [key=value ...]
       python run.py -m key=value1,value2 ...

Examples:
  python run.py                                              the default run: no data, GPU or torch needed
  python run.py experiment=conversations                     a whole setup; keys and groups can still be changed
  python run.py model=tiny device=laptop-cpu arrival.rate=2
  python run.py trace=mooncake trace.path=conversation_trace.jsonl arrival=trace
  python run.py arrival=closed_loop arrival.concurrency=64 scheduler=prefill_first
  python run.py import_vllm="vllm serve Qwen/Qwen3-8B --max-num-seqs 128"     predict a server of vLLM 0.19
  python run.py -m block_size=16,64,256 max_num_seqs=32,128,512
  python run.py -m block_size=16,64,256 hydra/launcher=joblib hydra.launcher.n_jobs=4
  python run.py -m block_size=16,64,256 hydra.sweep.dir=multirun/a      again: finished jobs are skipped
  python run.py task=report results=[outputs/a,multirun/b]
  python run.py task=profile engine=gpu model=qwen3-8b                  measure operators, for cost=profiled
  python run.py task=validate validation.measured=run:outputs/a         how far is the simulation from a real run?
  python run.py task=calibrate validation.measured=run:outputs/a        fit the constants of the cost model to it
  python run.py task=retime validation.measured=run:outputs/a           execute its steps again, to average noise out
"""
_FOOTER = """\
Results go to outputs/ (hydra.run.dir), those of a sweep to multirun/ (hydra.sweep.dir).
--cfg job prints the composed configuration, --hydra-help the flags of Hydra, HYDRA_FULL_ERROR=1 shows tracebacks.
"""


def register() -> None:
    """Makes the text available to conf/config.yaml as `${help_text:}`."""
    OmegaConf.register_new_resolver("help_text", _from_hydra, replace=True)


def build(conf: Path) -> str:
    """The help text of the configuration tree at `conf`."""
    defaults = dict(_defaults(conf / "config.yaml"))
    lines = [_HEADER, "Groups (group=option; * is the default), and when to choose each option:"]
    for group in defaults:
        for folder in [conf / group, *sorted(path for path in (conf / group).rglob("*") if path.is_dir())]:
            lines.append(f"\n  {folder.relative_to(conf).as_posix()}")
            for path in sorted(folder.glob("*.yaml")):
                option = path.name.removesuffix(".yaml")
                mark = "*" if folder == conf / group and option == defaults[group] else " "
                lines.append(_entry(f"  {mark} {option}", _comment(path)))
    lines.append("\nKeys (key=value; keys of a group as group.key=value):\n")
    lines += [_entry(f"    {key}={value}", comment) for key, value, comment in _keys(conf / "config.yaml")]
    for groups, model in OPTION_SETS.values():
        lines.append(f"\n  of {groups}")
        group = groups.partition("=")[0]
        lines += [_entry(f"    {group}.{key}={_show(value)}", text) for key, value, text in explained(model)]
    for policy in sorted(POLICIES):
        if settings := explained_settings(policy):
            lines.append(f"\n  of scheduler={policy}")
            lines += [_entry(f"    scheduler.options.{key}={_show(value)}", text) for key, value, text in settings]
    return "\n".join([*lines, "", _FOOTER])


def _show(default: Any) -> str:
    """A default as it is written on the command line."""
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _from_hydra() -> str:
    (main,) = (source for source in HydraConfig.get().runtime.config_sources if source.provider == "main")
    return build(Path(main.path)).replace("$", "$$")  # Hydra fills the text in as a string.Template


def _entry(name: str, comment: str) -> str:
    indent = 36
    return textwrap.fill(comment, _WIDTH, initial_indent=name.ljust(indent - 1) + " ", subsequent_indent=" " * indent)


def _comment(path: Path) -> str:
    """When to choose the option: the first line of its file, or the one after Hydra's own `# @package`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[lines[0].startswith("# @")].removeprefix("# Choose ")


def _defaults(path: Path) -> Iterator[tuple[str, str]]:
    """The groups and default options of the defaults list, in its order."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"  - (\w+): (\S+)", line):
            yield match[1], match[2]


def _keys(path: Path) -> Iterator[tuple[str, str, str]]:
    """Key, default and comment of every value that is not Hydra's; the comment is on the lines above."""
    group, comment = "", ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line == "hydra:":
            return
        if match := re.fullmatch(r"(\w+):", line):
            group = f"{match[1]}."
        elif match := re.fullmatch(r"(  )?(\w+): (\S+)", line):
            group = group if match[1] else ""
            yield f"{group}{match[2]}", match[3], comment
        text = line.strip()
        comment = f"{comment} {text.removeprefix('# ')}".strip() if text.startswith("# ") else ""
