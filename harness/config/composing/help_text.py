"""The text of `--help`: every group, option and key with its explanation, or those that match what is asked for."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.config.composing.conf_tree import Group, Key, Option, read_tree
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError

_WIDTH = 80
_INDENT = 26
_HEADER = """\
TwinServe replays an LLM request trace through a simulated or a real serving
engine, which share one scheduler, and records throughput, latencies,
preemptions, cache hits and KV use in the same tables for both.

Usage: {program} [group=option ...] [key=value ...]
       {program} -m key=value1,value2 ...   all combinations, compared
       {program} --help [words]             what matches: a group, an option
            (scheduler=vllm), or names and explanations that hold all words

Examples:
  {program}
      the default run: no data, GPU or torch needed
  {program} experiment=conversations
      a whole setup; keys and groups can still be changed
  {program} trace=mooncake trace.path=conversation_trace.jsonl arrival=trace
  {program} experiment=limits_sweep
  {program} -m block_size=16,64 hydra/launcher=joblib
      in parallel, on all cores or hydra.launcher.n_jobs of them
  {program} -m block_size=16,64,256 hydra.sweep.dir=multirun/a
      again, with more values: finished jobs are skipped
  {program} import_vllm="vllm serve Qwen/Qwen3-8B --max-num-seqs 128"
      predict a server of vLLM from its command line; import_sglang= and
      import_trtllm= are alike
  {program} task=report 'results=[outputs/a,multirun/b*]'
      compare what is there; ~, * and ** work, names with = or , need quotes
  {program} task=profile engine=gpu model=qwen3-8b
      measure operators, for cost=profiled
  {program} task=validate validation.measured=run:outputs/a
      how far is the simulation from a real run?
"""
_FOOTER = """\
-v (or verbose=true) shows more: all of a run's account, every job of a sweep.
Results go to outputs/ (hydra.run.dir), those of a sweep to multirun/
(hydra.sweep.dir). --config-dir=<folder> adds options of your own to the groups.
--cfg job prints the composed configuration, --hydra-help the flags of Hydra,
HYDRA_FULL_ERROR=1 shows tracebacks.
"""


def build(folders: Sequence[Path], words: Sequence[str] = (), program: str = "python run.py") -> str:
    """The help text of the configuration trees in `folders`, whole or of what `words` ask for.

    Args:
        folders: the tree of this project, then those of `--config-dir`.
        words: nothing, the name of one group, one `group=option`, or words that an entry must all hold.

    Raises:
        ConfigError: nothing matches, or a file of the trees cannot be read.
    """
    groups = read_tree(folders)
    return build_from(groups, words) if words else "\n".join(_whole(groups, program))


def build_from(groups: Sequence[Group], words: Sequence[str]) -> str:
    """What of `groups` the words ask for.

    Raises:
        ConfigError: nothing matches.
    """
    word = words[0].rstrip(".=")
    for group in groups if len(words) == 1 else ():
        if group.name == word:
            return "\n".join([*_options(group, group.options), *_keys(group, group.keys)])
        for option in group.options:
            if f"{group.name}={option.name}" == word:
                return "\n".join(_option_page(group, option))
    lines = _matching(groups, words)
    if not lines:
        names = [name for group in groups for name in (group.name, *(key.name for key in group.keys))]
        raise ConfigError(f"--help {' '.join(words)}: nothing matches (--help lists all){nearest(word, names)}")
    return "\n".join(lines)


def _whole(groups: Sequence[Group], program: str) -> Iterator[str]:
    yield _HEADER.format(program=program)
    yield "Groups (group=option; * is the default), and when to choose each option:"
    for group in groups:
        yield from _options(group, group.options)
    yield "\nKeys (key=value), with their defaults:"
    for group in sorted(groups, key=lambda group: bool(group.name)):
        yield from _keys(group, group.keys)
    yield f"\n{_FOOTER}"


def _options(group: Group, options: Sequence[Option]) -> Iterator[str]:
    if options:
        yield f"\n  {group.name}"
        for option in options:
            yield _entry(f"  {'*' if option.name == group.default else ' '} {option.name}", option.text)


def _keys(group: Group, keys: Sequence[Key]) -> Iterator[str]:
    if keys and group.name:
        default = f" (default: {group.name}={group.default})" if group.default else ""
        yield f"\n  of {group.name}{default}"
    elif keys:
        yield ""
    for key in keys:
        yield _entry(f"    {key.name}={key.value}", f"{key.text} {_owners(group, key)}")


def _option_page(group: Group, option: Option) -> Iterator[str]:
    mark = ", the default" if option.name == group.default else ""
    yield f"\n  {group.name}={option.name}{mark}"
    yield textwrap.fill(f"Choose {option.text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    if option.keys:
        yield ""
    for key in option.keys:
        yield _entry(f"    {key.name}={key.value}", key.comment or key.text)


def _owners(group: Group, key: Key) -> str:
    """Which options have the key, in parentheses; empty when all have it."""
    others = [option.name for option in group.options if option.name not in key.options]
    if not key.options:
        return ""
    if len(others) < len(key.options):
        return f"(not in {group.name}={', '.join(others)})"
    return f"({group.name}={', '.join(key.options)})"


def _matching(groups: Sequence[Group], words: Sequence[str]) -> list[str]:
    """The options and keys whose name and explanation hold all words: as whole words, or else anywhere in the text."""
    for pattern in (r"(?<![a-z0-9]){}s?(?![a-z0-9])", "{}"):
        patterns = [pattern.format(re.escape(word.casefold())) for word in words]
        lines: list[str] = []
        for group in groups:
            options = [
                option for option in group.options if _holds(patterns, f"{group.name}={option.name} {option.text}")
            ]
            lines += _options(group, options)
            lines += _keys(group, [key for key in group.keys if _holds(patterns, f"{key.name} {key.text}")])
        if lines:
            return lines
    return []


def _holds(patterns: Sequence[str], text: str) -> bool:
    return all(re.search(pattern, text.casefold()) for pattern in patterns)


def _entry(name: str, text: str) -> str:
    """One entry: its name, and its explanation beside it, or below it where the name is long."""
    margin = " " * _INDENT
    if len(name) < _INDENT:
        return (
            textwrap.fill(text, _WIDTH, initial_indent=name.ljust(_INDENT), subsequent_indent=margin).rstrip() or name
        )
    return f"{name}\n{textwrap.fill(text, _WIDTH, initial_indent=margin, subsequent_indent=margin)}".rstrip()
