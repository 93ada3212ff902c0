"""The recipes by which InferenceX ran its servers for prompts and for decodes, and what they say.

    python -m experiments.inferencex.recipes <clone of InferenceX> <clone of srt-slurm> <silicon_sample.csv>

(of SemiAnalysisAI and NVIDIA, the latter with all branches) writes recipes.csv beside this file. A row of
silicon_sample.csv tells the day of its run. `nvidia-master.yaml` of InferenceX tells, for each day, which recipe ran
which clients on which layout; the recipe is a file of srt-slurm, with the options of the servers. Rows with drafts
have none here, nor have those that no version of the list names.

How many frontends of Dynamo there were follows, too (`_frontends`); `experiments.inferencex.frontends` is how they
spread requests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from experiments.inferencex.apart import FILE, rows

_MASTER = ".github/configs/nvidia-master.yaml"
_DAYS = ("2025-11-15", "2026-05-01")  # between which the rows were measured
_RUNNERS = {"b200_sxm": "b200", "h200_sxm": "h200", "h100_sxm": "h100", "b300_sxm": "b300"}
_FRAMEWORKS = {"trtllm": "dynamo-trt", "vllm": "dynamo-vllm", "sglang": "dynamo-sglang"}
_PREFIXES = {"moonshotai/Kimi-K2.5": "kimik2.5", "deepseek-ai/DeepSeek-V3": "dsr1"}


class Listed(NamedTuple):
    """A line of the list: what it is found by, whether prompts and decodes have data-parallel ranks, and its recipe."""

    key: tuple[object, ...]
    ranks: tuple[bool, bool]
    recipe: str


def main(inferencex: str, srt_slurm: str, data: str) -> None:
    """Write the table."""
    days = _listed(inferencex)
    found: list[dict[str, Any]] = []
    table = rows(Path(data))
    for row in table[table["clients"].notna() & table["prefill_num_workers"].notna()].itertuples(index=False):
        measured = re.search(r"measured=(\d{4}-\d\d-\d\d)", str(row.silicon_data_source))
        if measured and (told := _told(srt_slurm, row, measured[1], days)):
            found.append({"id": row.id, **told})
    pd.DataFrame(found).convert_dtypes().to_csv(FILE, index=False)
    print(f"{len(found)} rows")


def _told(clone: str, row: Any, day: str, days: dict[Listed, tuple[str, str]]) -> dict[str, Any]:
    """What the recipe of a row says; empty where none is found, or several. For H200 the list counts the clients of one
    server for decodes, and the recipe those of all."""
    if len(recipes := _of_row(row, row.clients, day, days)) == 1:
        return _settings(clone, recipes[0], day)[0]
    if len(recipes := _of_row(row, row.clients / row.decode_num_workers, day, days)) == 1:
        told, clients = _settings(clone, recipes[0], day)
        return told if clients == [int(row.clients)] else {}
    return {}


def _of_row(row: Any, clients: float, day: str, days: dict[Listed, tuple[str, str]]) -> list[str]:
    """The recipes that the list has for a row on a day; the last that it had, where none was in force."""
    sides = [
        (getattr(row, f"{name}_tp_size"), getattr(row, f"{name}_attention_dp_size")) for name in ("prefill", "decode")
    ]
    key = (
        _FRAMEWORKS[row.backend], _PREFIXES.get(row.model_path), _RUNNERS.get(row.system, row.system), row.precision,
        row.isl, row.osl, clients, row.prefill_num_workers, row.decode_num_workers,
        *(tensor * ranks for tensor, ranks in sides),
    )  # fmt: skip
    fitting = [each for each in days if each.key == key]
    told = [each for each in fitting if each.ranks == tuple(ranks > 1 for _, ranks in sides)]
    fitting = told or fitting
    in_force = [each for each in fitting if days[each][0] <= day] or fitting
    last = max((days[each][1] for each in in_force), default="")
    return sorted({each.recipe for each in in_force if days[each][1] == last and each.recipe})


def _listed(clone: str) -> dict[Listed, tuple[str, str]]:
    """The lines of all versions of the list, and the first and the last day of each."""
    days: dict[Listed, tuple[str, str]] = {}
    log = _git(clone, "log", "--format=%H %cs", f"--since={_DAYS[0]}", f"--before={_DAYS[1]}", "--", _MASTER)
    for commit, day in sorted((line.split() for line in log.splitlines()), key=lambda each: each[1]):
        for line in _lines(yaml.load(_git(clone, "show", f"{commit}:{_MASTER}"), Loader=yaml.CSafeLoader)):
            days[line] = (days.get(line, (day, day))[0], day)
    return days


def _lines(master: dict[str, Any]) -> Iterator[Listed]:
    for entry in master.values():
        for lengths in entry.get("seq-len-configs") or [] if entry.get("multinode") else []:
            for each in lengths["search-space"]:
                if each.get("spec-decoding", "none") != "none" or "prefill" not in each:
                    continue
                sides = each["prefill"], each["decode"]
                more = [text for side in sides for text in side.get("additional-settings", [])]
                recipe = next(
                    (text.split("=")[1].split(":")[0] for text in map(str, more) if "CONFIG_FILE" in text), ""
                )
                for clients in each["conc-list"]:
                    key = (
                        entry["framework"], entry["model-prefix"], str(entry["runner"]).split("-")[0],
                        entry["precision"], lengths["isl"], lengths["osl"], clients,
                        *(side["num-worker"] for side in sides), *(side["tp"] for side in sides),
                    )  # fmt: skip
                    yield Listed(key, (bool(sides[0].get("dp-attn")), bool(sides[1].get("dp-attn"))), recipe)


def _settings(clone: str, recipe: str, day: str) -> tuple[dict[str, Any], list[int]]:
    """What the newest version of a recipe on a day says, or else its oldest; and with how many clients it is run."""
    log = [line.split() for line in _git(clone, "log", "--all", "--format=%H %cs", "--", recipe).splitlines()]
    texts = [(date, commit, text) for commit, date in log if (text := _git(clone, "show", f"{commit}:{recipe}"))]
    date, commit, text = max((each for each in texts if each[0] <= day), default=min(texts))
    document = yaml.safe_load(text)
    backend = document["backend"]
    config = next(value for name, value in backend.items() if name.endswith("_config") and isinstance(value, dict))
    told = {
        "recipe": recipe, "commit": commit[:8], "frontends": _frontends(document),
        **{f"{name}_{key}": value for name in ("prefill", "decode") for key, value in _side(config[name]).items()},
    }  # fmt: skip
    clients = re.findall(r"\d+", str(document["benchmark"]["concurrencies"]))
    return told, [int(each) for each in clients]


def _frontends(document: dict[str, Any]) -> int:
    """As srt-slurm has it (cli/mixins/frontend_stage.py, early 2026): one, or one on each node but the first, at most
    ten unless the recipe says otherwise."""
    frontend, resources = document.get("frontend") or {}, document["resources"]
    if not frontend.get("enable_multiple_frontends", True):
        return 1
    nodes = sum(resources.get(f"{name}_nodes") or 0 for name in ("prefill", "decode"))
    return max(1, min(int(frontend.get("num_additional_frontends", 9)) + 1, nodes - 1))


def _side(options: dict[str, Any]) -> dict[str, int | None]:
    """Data-parallel ranks of a server, and the sequences and tokens of a step of each."""
    if "max_batch_size" in options:  # TensorRT-LLM
        ranks = options["tensor_parallel_size"] if options.get("enable_attention_dp") else 1
        return {"ranks": ranks, "seats": options["max_batch_size"], "tokens": options.get("max_num_tokens")}
    ranks = options.get("data-parallel-size", 1)
    if "max-num-seqs" in options:  # vLLM
        return {"ranks": ranks, "seats": options["max-num-seqs"], "tokens": options["max-num-batched-tokens"]}
    named = {
        "seats": "max-running-requests",
        "tokens": "chunked-prefill-size",
    }  # SGLang's are of all ranks; -1: no limit
    limits = {key: int(options.get(name) or -1) for key, name in named.items()}
    return {"ranks": ranks, **{key: limit // ranks if limit > 0 else None for key, limit in limits.items()}}


def _git(clone: str, *words: str) -> str:
    return subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
