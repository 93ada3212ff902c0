"""How far is our KV pool from those of vLLM? Prints the table, writes experiments/results/kv_pool.json and a figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments import FIDELITY, RESULTS, provenance, write_result
from experiments.kv_pool.lines import read_lines, with_predictions
from harness.figures.style import COLORS, log_axis, panels, save
from harness.results.metrics import json_ready

_SHOWN = ("card", "gpus", "vllm", "model", "quantization", "kv_cache_dtype", "gpu_memory_utilization")


def main() -> None:
    """Compare, print, write."""
    lines = with_predictions(read_lines())
    Console(width=150).print(table(lines))
    summary = {name: scores(part) for name, part in parts(lines).items()}
    for name, found in summary.items():
        print(f"{name}: {found}")
    document = {**provenance("experiments.kv_pool"), "summary": summary, "lines": lines.to_dict("records")}
    write_result(RESULTS / "kv_pool.json", json_ready(document))
    draw(lines, FIDELITY / "kv_pool.png")


def parts(lines: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """All lines, those that constants were fitted to, and the others."""
    fitted = lines["fitted"] == "fit"
    return {"all": lines, "fitted": lines[fitted], "held out": lines[~fitted]}


def scores(lines: pd.DataFrame) -> dict[str, float]:
    """Number of lines, and median and largest absolute error in percent."""
    errors = lines["error_pct"].abs()
    return {
        "lines": len(lines),
        "within_3_pct": int((errors <= 3).sum()),
        "median_pct": round(float(errors.median()), 3),
        "largest_pct": round(float(errors.max()), 3),
    }


def table(lines: pd.DataFrame) -> Table:
    out = Table(box=None, padding=(0, 2, 0, 0))
    for name in (*_SHOWN, "measured GiB", "predicted GiB", "error %", "fitted"):
        out.add_column(name)
    for row in lines.to_dict("records"):
        found = f"{row['kv_gib']:.2f}", f"{row['predicted_gib']:.2f}", f"{row['error_pct']:+.2f}", row["fitted"]
        out.add_row(*(str(row[name]) for name in _SHOWN), *found)
    return out


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Signed error by size of the pool, a colour per card."""
    subtitle = "lines that vLLM 0.9 to 0.26 logged, all published; error of our formula in percent"
    figure, axes = panels("KV pool: formula against vLLM's logs", subtitle, 1, 1, (7.0, 3.2))
    for (name, group), color in zip(lines.groupby("card"), COLORS, strict=False):
        axes[0, 0].plot(group["kv_gib"], group["error_pct"], "o", color=color, label=name, markersize=4)
    axes[0, 0].axhspan(-3, 3, color="#F2F2F2", zorder=0)
    axes[0, 0].set(xlabel="KV pool of one GPU, GiB", ylabel="error, %")
    log_axis(axes[0, 0], "x", lines["kv_gib"].min(), lines["kv_gib"].max())
    axes[0, 0].legend(frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main()
