"""Command lines that start a server: finds the server's arguments in a shell command, and sorts its flags."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple, NoReturn

from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError

Values = Literal["none", "switch", "one", "optional", "many"]
Effect = Literal["none", "past", "times", "refused"]

# Of the shell: what starts a command, and what ends it or sends its output elsewhere.
_STARTERS = ("nohup", "sudo", "exec", "time", "env", "uv", "run")
_ENDS = re.compile(r"[|&;]{1,2}|\d?>.*|&>.*")
# Of docker: `-e NAME=value` before the image.
_VARIABLE_FLAGS = ("-e", "--env")
_NARGS: dict[str, str | None] = {"one": None, "optional": "?", "many": "*"}
_TEXTS = {"times": "not simulated; it may change the times of steps", "none": "left out"}


class Flag(NamedTuple):
    """A flag that has no key of ours.

    Attributes:
        values: how many values follow it: none, none but `--no-` turns it off (switch), one, one or none (optional), or
            many.
        effect: "none" changes no latency, "past" neither, in the earlier versions that had it; "times" changes how long
            steps take, which is not simulated; "refused" changes what is served or scheduled, so that a simulation
            without it would be of another server.
    """

    values: Values
    effect: Effect


def table(names: Mapping[tuple[Values, Effect], str]) -> dict[str, Flag]:
    """The flags by their names, of which each kind has a list."""
    return {f"--{name}": Flag(*kind) for kind, each in names.items() for name in each.split()}


def own_flags(names: Mapping[Values, str]) -> dict[str, Values]:
    """The flags that have a key of ours by their names, of which each kind has a list."""
    return {f"--{name}": values for values, each in names.items() for name in each.split()}


@dataclass(frozen=True, eq=False)
class Tool:
    """A server, and the flags of its command line.

    Attributes:
        name, release: of the tool, and the newest version whose flags are known.
        command, module: what starts it: words, or a module of Python.
        image: of docker, whose group is the version.
        own: flags that have a key of ours; the others are `others`.
        neutral: values with which a refused flag leaves all as it is.
        short: other names of flags.
    """

    name: str
    release: str
    command: tuple[str, ...]
    module: str
    image: re.Pattern[str]
    own: Mapping[str, Values]
    others: Mapping[str, Flag]
    neutral: Mapping[str, str]
    short: Mapping[str, str]


class Words(NamedTuple):
    """The environment variables before a command, the version that it or its comment names, and the arguments."""

    variables: list[str]
    version: str | None
    arguments: list[str]


class Line(NamedTuple):
    """The model, the values of the flags that have a key of ours, and a note on each kind of other flags.

    A switch is "true" or "false"; many values are one text.
    """

    model: str | None
    values: dict[str, str]
    notes: list[str]


class _Parser(argparse.ArgumentParser):
    @property
    def names(self) -> list[str]:
        return [*self._option_string_actions]

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def words_of(tool: Tool, command: str) -> Words:
    """The words of a shell command that starts `tool`; comments and line continuations are allowed.

    Raises:
        ConfigError: it is no command of the tool.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"not a command line ({error})") from None
    comment = re.search(rf"\s#[^\n]*?\b{tool.name} (\d+\.\d+(?:\.\d+)?)", command)
    version = comment[1] if comment else None
    words = list(takewhile(lambda word: not _ENDS.fullmatch(word), words))
    before = list(takewhile(lambda word: word in _STARTERS or re.fullmatch(r"\w+=.*", word, re.DOTALL), words))
    variables = [word for word in before if word not in _STARTERS]
    words = words[len(before) :]
    if (after := _after_start(tool, words)) is not None:
        return Words(variables, version, after)
    images = [at for at, word in enumerate(words) if tool.image.fullmatch(word)]
    if words[:1] == ["docker"] and images:
        own, image = words[: images[0]], tool.image.fullmatch(words[images[0]])
        variables += [after for flag, after in pairwise(own) if flag in _VARIABLE_FLAGS]
        rest = words[images[0] + 1 :]
        after = _after_start(tool, rest)
        return Words(variables, (image[1] if image else None) or version, rest if after is None else after)
    raise ConfigError(f"{command!r}: must be a command line that starts with {' '.join(tool.command)}")


def _after_start(tool: Tool, words: list[str]) -> list[str] | None:
    """What follows the words that start the tool, which may be a module of Python; None without them."""
    number = len(tool.command)
    if tuple(words[:number]) == tool.command:
        return words[number:]
    modules = [at for at, pair in enumerate(pairwise(words)) if list(pair) == ["-m", tool.module]]
    return words[modules[0] + 2 :] if modules and words[0].startswith("python") else None


def read_flags(tool: Tool, arguments: Sequence[str]) -> Line:
    """Reads the arguments as the tool does.

    Raises:
        ConfigError: an argument is none of the tool's, or changes what is served in a way that is not simulated.
    """
    found = _values(tool, arguments)
    model = found.pop("model_tag") or found.get("--model")
    found.pop("--model", None)
    others = {name: _text(value) for name, value in found.items() if name in tool.others}
    for name, value in others.items():
        if tool.others[name].effect == "refused" and value not in (tool.neutral.get(name), "false"):
            shown = name if value == "true" else f"{name} {value}"
            raise ConfigError(f"{shown}: not simulated, and it changes what is served; leave it out to go on")
    notes = []
    for effect, text in (_TEXTS | {"past": f"of earlier versions of {tool.name}, left out"}).items():
        if names := [name for name in others if tool.others[name].effect == effect]:
            notes.append(f"{', '.join(names)}: {text}")
    return Line(model, {name: _text(value) for name, value in found.items() if name in tool.own}, notes)


def variable_notes(variables: Sequence[str]) -> list[str]:
    """What is said of environment variables that are not read."""
    text = "environment variables are not simulated; they may change what is served"
    return [f"{', '.join(variables)}: {text}"] if variables else []


def _values(tool: Tool, arguments: Sequence[str]) -> dict[str, Any]:
    """The values of flags by their names, and of `model_tag`."""
    parser = _parser(tool)
    found, rest = parser.parse_known_args(list(arguments))
    for flag in (word.partition("=")[0] for word in rest if word.startswith("-")):
        raise ConfigError(f"{flag}: no flag of {tool.name} {tool.release}{nearest(flag, parser.names)}")
    if rest:
        raise ConfigError(f"unrecognized arguments: {shlex.join(rest)}")
    return vars(found)


@cache
def _parser(tool: Tool) -> _Parser:
    parser = _Parser(prog=tool.name, add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("model_tag", nargs="?", default=None)
    flags = {**tool.own, **{name: flag.values for name, flag in tool.others.items()}}
    for name, values in flags.items():
        names = [name, *(short for short, of in tool.short.items() if of == name)]
        match values:
            case "none":
                parser.add_argument(*names, dest=name, action="store_true")
            case "switch":
                parser.add_argument(*names, dest=name, action=argparse.BooleanOptionalAction)
            case _:
                parser.add_argument(*names, dest=name, nargs=_NARGS[values])
    return parser


def _text(value: object) -> str:
    """A value as it stands on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else str(value)
