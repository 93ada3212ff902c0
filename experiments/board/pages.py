"""The board's tables in docs/fidelity.md and README.md, written from points.csv and left_out.csv.

What to expect, the last column, stays as the page has it, by the name of the row; a new row has nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from experiments.board.classes import errors
from experiments.board.point import FLEETS
from harness.engines.resolving.known_error import SCALED

_FIDELITY, _README, _MODELS = Path("docs/fidelity.md"), Path("README.md"), Path("docs/scheduler_and_cost_model.md")
_SHOWN = ("tpot", "ttft", "throughput")
_LEAST = 4  # points of a class that gets a row of its own
_FEW = f"fewer than {_LEAST} points each"


def _served(engine: str, cost: str = "kernels", kind: str = "") -> Callable[[pd.DataFrame], pd.Series[bool]]:
    """Which points are of single servers of `engine`, priced by `cost`, of models whose kind starts with `kind`."""

    def mask(table: pd.DataFrame) -> pd.Series[bool]:
        chosen = table["engine"].eq(engine) & table["cost"].eq(cost) & ~table["load"].isin(FLEETS)
        return chosen & table["kind"].str.startswith(kind)

    return mask


def _apart(engine: str) -> Callable[[pd.DataFrame], pd.Series[bool]]:
    """Which points are of fleets of `engine` by InferenceX and NVIDIA."""
    return lambda table: table["load"].isin(FLEETS) & table["engine"].eq(engine) & table["source"].ne("llm-d")


def _tensorrt_llm(table: pd.DataFrame) -> pd.Series[bool]:
    """Which points are of TensorRT-LLM simulated as itself: command lines of gpustack's users are entered as vLLM's."""
    return _served("TensorRT-LLM")(table) & table["source"].ne("gpustack")


def _scaled(*numbers: int) -> Callable[[pd.DataFrame], pd.Series[bool]]:
    """Which points are priced by kernels of another GPU, on so many."""
    return lambda table: _served("vLLM", SCALED)(table) & table["num_gpus"].isin(numbers)


_BY_KERNELS, _BY_ROOFLINE = _served("vLLM"), _served("vLLM", "roofline")
# Rows of several classes: their name in fidelity.md, that in README.md, and which of the points that count.
_MANY: list[tuple[str, str, Callable[[pd.DataFrame], pd.Series[bool]]]] = [
    ("all of vLLM by kernels", "vLLM by measured kernels, all models and GPUs", _BY_KERNELS),
    ("dense models", "of them dense models", _served("vLLM", kind="dense")),
    ("models with experts", "with experts", _served("vLLM", kind="expert")),
    ("latent attention", "", _served("vLLM", kind="latent")),
    (
        "vLLM by kernels of a GPU that is like it: one RTX 4090, RTX 5090 or H100 PCIe",
        "vLLM by kernels of a GPU that is like it (RTX 4090, 5090, H100 PCIe)",
        _scaled(1),
    ),
    ("2 to 8 RTX 4090, by kernels of a GPU that is like it", "2 to 8 RTX 4090", _scaled(2, 4, 8)),
    (
        "vLLM by the roofline: every fifth row, and servers without kernel times",
        "vLLM by the roofline",
        _BY_ROOFLINE,
    ),
    (
        "early vLLM, OPT-13B, A100: constants fitted to one of four runs",
        "",
        lambda table: table["source"].eq("DistServe"),
    ),
    (
        "fleets of llm-d: 8 servers behind routers; prompts and decodes apart",
        "fleets of vLLM by llm-d",
        lambda table: table["load"].isin(FLEETS) & table["source"].eq("llm-d"),
    ),
    ("fleets of InferenceX, prompts and decodes apart: vLLM", "", _apart("vLLM")),
    ("fleets of InferenceX: TensorRT-LLM, simulated as vLLM by its own kernels", "", _apart("TensorRT-LLM")),
    ("fleets of InferenceX: SGLang, simulated as vLLM", "", _apart("SGLang")),
    ("SGLang, by its scheduler and kernels", "SGLang, by its scheduler and kernels", _served("SGLang")),
    (
        "TensorRT-LLM, by its scheduler and kernels",
        "TensorRT-LLM, by its scheduler and kernels",
        _tensorrt_llm,
    ),
    (
        "TensorRT-LLM of gpustack's users, simulated as the newest vLLM",
        "",
        lambda table: _served("TensorRT-LLM")(table) & ~_tensorrt_llm(table),
    ),
]


def write_pages(folder: Path) -> None:
    """Bring the tables of both pages up to date with the results in `folder`."""
    table = pd.read_csv(folder / "points.csv", keep_default_na=True)
    counted = table[table["excluded"].isna()]
    text = _FIDELITY.read_text(encoding="utf-8")
    text = re.sub(r"[\d,]+ points of InferenceX", f"{len(counted):,} points of InferenceX", text)
    expected = {_name(row[0]): row[-1] for row in _table(text, "| simulated, by kernels")}
    rows = [
        *_classes(counted[_BY_KERNELS(counted)], "", set(expected)),
        *((name, part) for name, _, mask in _MANY if len(part := counted[mask(counted)])),
        *_classes(counted[_served("SGLang")(counted)], "SGLang: ", set(expected)),
        *_classes(counted[_tensorrt_llm(counted)], "TensorRT-LLM: ", set(expected)),
    ]
    lines = [[_marked(name, part), f"{len(part):,}", *_cells(part), expected.get(name, "")] for name, part in rows]
    text = _with_table(text, "| simulated, by kernels", lines)
    reasons = pd.read_csv(folder / "left_out.csv").groupby("reason")["measurements"].sum().sort_values(ascending=False)
    text = _with_table(text, "| reason |", [[str(reason), f"{count:,}"] for reason, count in reasons.items()])
    _FIDELITY.write_text(text, encoding="utf-8")
    parts = [(name, counted[mask(counted)]) for _, name, mask in _MANY if name]
    short = [[name, f"{len(part):,}", *_without_signs(part)] for name, part in parts]
    _README.write_text(_with_table(_README.read_text(encoding="utf-8"), "| simulated against", short), encoding="utf-8")
    found = errors(roofline := counted[_BY_ROOFLINE(counted)])
    said = f"TPOT off by {found['tpot']:.0f} %, throughput by {found['throughput']:.0f} %, at the median of "
    text = _MODELS.read_text(encoding="utf-8")
    text = re.sub(r"TPOT off by \d+ %, throughput by \d+ %, at the median of \d+", f"{said}{len(roofline)}", text)
    _MODELS.write_text(text, encoding="utf-8")


def _classes(chosen: pd.DataFrame, prefix: str, known: set[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """A row for each model, weights and GPU with enough points or a row already, the worst TPOT first; then others."""
    model = chosen["model"].str.removesuffix("-nvfp4")
    device = chosen["device"].str.extract(r"^NVIDIA (RTX PRO 6000|H100 PCIe|\w+)")[0]
    layout = chosen["kind"].str.endswith("expert-parallel").map({True: ", expert parallel", False: ""})
    named = prefix + model + ", " + chosen["precision"].replace("none", "16 bits") + ", " + device + layout
    parts = {str(name): part for name, part in chosen.groupby(named)}
    few = [name for name, part in parts.items() if len(part) < _LEAST and name not in known]
    yield from sorted(
        ((name, part) for name, part in parts.items() if name not in few), key=lambda row: -errors(row[1])["tpot"]
    )
    if few:
        yield prefix + _FEW, pd.concat([parts[name] for name in few])


def _marked(name: str, part: pd.DataFrame) -> str:
    """The name of a row as the page shows it."""
    if name == _MANY[0][0]:
        return f"**{name}**"
    is_class = not name.endswith(_FEW) and all(name != each for each, *_ in _MANY)
    fitted = (
        "" if not is_class or not part["fitted"].any() else "fitted on" if part["fitted"].all() else "partly fitted on"
    )
    return f"{name} ({fitted})" if fitted else name


def _name(shown: str) -> str:
    return re.sub(r" \((partly )?fitted on\)$", "", shown.strip("*"))


def _cells(part: pd.DataFrame) -> list[str]:
    found = errors(part)
    cells = [
        f"{found[name]:.1f} / {found[f'{name}_p90']:.1f} ({found[f'{name}_signed']:+.1f})" if name in found else "–"
        for name in _SHOWN
    ]
    peers = [f"{found[f'peer_{name}']:.1f}" for name in ("tpot", "ttft") if f"peer_{name}" in found]
    return [cell.replace("-", "−") for cell in (*cells, ", ".join(peers) or "–")]


def _without_signs(part: pd.DataFrame) -> list[str]:
    found = errors(part)
    return [f"{found[name]:.1f} / {found[f'{name}_p90']:.1f} %" if name in found else "–" for name in _SHOWN]


def _table(text: str, head: str) -> list[list[str]]:
    """The cells of the rows of the table whose first line starts with `head`."""
    lines = text[text.index(f"\n{head}") + 1 :].splitlines()
    rows = lines[2 : next(n for n, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def _with_table(text: str, head: str, rows: list[list[str]]) -> str:
    """`text` with `rows` in place of those of the table whose first line starts with `head`."""
    start = text.index(f"\n{head}") + 1
    lines = text[start:].splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if not line.startswith("|"))
    return text[:start] + "".join([*lines[:2], *(f"| {' | '.join(row)} |\n" for row in rows), *lines[end:]])
