"""Several command lines of vLLM as the pools of a fleet, with the line of the router before them.

    vllm-router --policy cache_aware
    vllm serve M -tp 1 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'
    vllm serve M -tp 4 --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'  # NVIDIA H200

        ->   fleet=custom fleet.pools=[{role: prefill, ...}, {role: decode, device: h200, ...}] router=prefix_affinity

Each line is a server, and equal ones are a pool. A comment at its end tells what no flag does, as in the lines that a
run prints, its parts divided by commas or semicolons: `2 such servers behind a router: least_requests`, the device,
`for prefill` or `for decode`; it counts more than `kv_role`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.documents import errors_as, read_text, user_path
from harness.config.command_lines import KEYS
from harness.config.command_lines.option_names import with_options
from harness.config.command_lines.translation import Translation, refused_as, translation
from harness.config.command_lines.vllm import import_line
from harness.config.command_lines.vllm.line import read_line
from harness.config.command_lines.vllm.routers import router_keys
from harness.config.command_lines.vllm.servers import CONNECTORS, TRANSFER, side_of
from harness.config.composing import CONF
from harness.config.schema.fleet import PoolConfig
from harness.errors import ConfigError

_COMMENT = re.compile(r"\s#\s*([^'\"]*)$")
_SUCH = re.compile(r"(\d+) such servers(?: behind a router: ([\w.:]+))?")
_ROLE = re.compile(r"for (prefill|decode)")
_OF_TOOL = re.compile(r"not in \w+: .*|vLLM [\d.]+")  # is read with the flags, or is for readers
_IN_GROUPS = ("engine", "scheduler", "tiers")
_OF_POOLS = {*PoolConfig.model_fields} - {"role", "device", *_IN_GROUPS}


class _Server(NamedTuple):
    """What a line and its comment tell: `number` servers with these keys.

    Attributes:
        role: "serve" where they serve whole requests.
        device: an option, None where the comment names none.
        connector: by which KV is handed over, "" without one.
        router: "" where the comment names none.
    """

    role: str
    number: int
    device: str | None
    connector: str
    router: str
    keys: dict[str, Any]
    notes: list[str]


@refused_as(KEYS[0])
def translate(text: str, given: Iterable[str] = (), folders: Sequence[Path] = (CONF,)) -> Translation:
    """Overrides and notes for the command lines in a text, or in the file that it names; keys in `given`,
    which the user sets, are left out.

    Raises:
        ConfigError: as for one line; or the lines differ in what pools cannot differ in, or only some hand KV over.
    """
    given = set(given)
    lines = _lines(text)
    routers = [keys for keys in map(router_keys, lines) if keys is not None]
    commands = [line for line in lines if router_keys(line) is None]
    if not commands or len(routers) > 1:
        raise ConfigError("needs lines that start servers, and at most one that starts a router")
    servers = [_server(command, given, folders, is_alone=len(commands) == 1) for command in commands]
    notes = [*dict.fromkeys(note for server in servers for note in server.notes)]
    made = _alone(servers[0]) if len(servers) == 1 else _fleet(servers, notes)
    for key, decodes in (("router", False), ("fleet.decode_router.rule", True)):
        if named := [server.router for server in servers if server.router and (server.role == "decode") is decodes]:
            made[key] = named[0]
    return translation(made | (routers[0] if routers else {}), given, notes)


def _lines(text: str) -> list[str]:
    """The commands of a text, or of the file that it names, without empty lines and those of comments only."""
    if "\n" not in text and " " not in text and (path := Path(user_path(text))).is_file():
        with errors_as(ConfigError, text):
            text = read_text(path)
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _server(command: str, given: set[str], folders: Sequence[Path], *, is_alone: bool) -> _Server:
    line = read_line(command)
    connector, role = ("", "serve") if is_alone else side_of(line.values)
    number, device, router, unread = 1, None, "", []
    for part in _parts(command):
        if such := _SUCH.fullmatch(part):
            number, router = int(such[1]), such[2] or ""
        elif named := _ROLE.fullmatch(part):
            role = named[1] if connector else role
        elif found := _device(part, folders):
            device = found
        else:
            unread.append(part)
    if not role:
        raise ConfigError(f"{TRANSFER}: kv_role kv_both: end each line in a comment, # for prefill or # for decode")
    keys, notes = import_line.keys_of(line, given, folders)
    if not is_alone:
        notes = [note for note in notes if not note.startswith(TRANSFER)]
        if keys.pop("tiers", None):  # which pools cannot choose as a group
            keys |= {"tiers.offload": True} | ({} if connector else {"tiers.rule": "vllm"})
    if unread:
        known = "a device, 'for prefill', '3 such servers' are"
        notes = [*notes, f"the comment {'; '.join(unread)!r} is not read: {known}"]
    return _Server(role, number, device, connector, router, {k: v for k, v in keys.items() if k not in given}, notes)


def _parts(command: str) -> list[str]:
    """The parts of the comment at the end of a line, without those that are no business of a fleet."""
    comment = _COMMENT.search(command)
    whole = [part.strip() for part in (comment[1] if comment else "").split(";")]
    parts = [part.strip() for text in whole if not _OF_TOOL.fullmatch(text) for part in text.split(",")]
    return [part for part in parts if part]


def _device(name: str, folders: Sequence[Path]) -> str | None:
    """The option that a part of a comment names; None where it names none."""
    (found,) = with_options([f"device={name}"], folders) if re.fullmatch(r"[\w -]{2,40}", name) else [""]
    option = found.partition("=")[2]
    return option if any((folder / "device" / f"{option}.yaml").is_file() for folder in folders) else None


def _alone(server: _Server) -> dict[str, Any]:
    """Keys of ours for equal servers of one line."""
    made = dict(server.keys)
    if server.number > 1:
        made["replicas"] = server.number * made.get("replicas", 1)
    return made | ({"device": server.device} if server.device else {})


def _fleet(servers: list[_Server], notes: list[str]) -> dict[str, Any]:
    """Keys of ours for several servers: what they have in common is the run's, the rest their pools'."""
    connectors = {server.connector for server in servers}
    if len(connectors) > 1 or {server.role for server in servers} not in ({"serve"}, {"prefill", "decode"}):
        raise ConfigError(f"{TRANSFER}: servers for prompts and servers for decodes are needed, with one connector")
    made: dict[str, Any] = {"fleet": "custom"}
    if CONNECTORS[connectors.pop()]:
        made["fleet.kv_transfer"] = "by_layers"
    first, *others = (server.keys for server in servers)
    if any(server.keys.get("router") for server in servers):
        notes.append("the ranks of all servers are behind one router: router=vllm_balancer")
    common = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    common.pop("replicas", None)
    apart = {key for server in servers for key in server.keys if key not in common} - {"router"}
    made |= {"router": "vllm_balancer"} if "router" in first else {}
    for key in sorted(apart):
        group = key.partition(".")[0]
        if key not in _OF_POOLS and not (group in _IN_GROUPS and "." in key):
            raise ConfigError(f"the lines differ in {key}, in which pools are alike")
    pools: list[dict[str, Any]] = []
    for server in servers:
        pool = _pool(server, apart)
        for known in pools:
            if {**known, "replicas": 0} == {**pool, "replicas": 0}:
                known["replicas"] += pool["replicas"]
                break
        else:
            pools.append(pool)
    defaults = {
        key: value for server in servers for key, value in server.keys.items() if key in apart and _is_default(value)
    }
    return made | {"fleet.pools": pools} | common | defaults


def _pool(server: _Server, apart: set[str]) -> dict[str, Any]:
    pool: dict[str, Any] = {"replicas": server.number * server.keys.get("replicas", 1), "role": server.role}
    if server.device:
        pool["device"] = server.device
    for key in sorted(apart - {"replicas"}):
        value = server.keys.get(key)
        if value is None or _is_default(value):
            continue
        *groups, name = key.split(".")
        place = pool
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return pool


def _is_default(value: object) -> bool:
    """Whether a value is what the version of vLLM takes without the flag, which the run says for all pools."""
    return isinstance(value, str) and value.startswith("${")
