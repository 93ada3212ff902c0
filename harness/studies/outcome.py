"""What a run leaves: its tables and its summary, which can be written to a folder as the command line does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from engine.documents import yaml_text
from harness.config import RunConfig, to_yaml
from harness.errors import EngineError
from harness.results.measures.unserved import unserved_text
from harness.results.stored.files import INPUTS, REPORT, SPANS, write_results, write_table, write_whole
from harness.results.stored.perfetto import write_trace
from harness.results.summary import number, print_summary
from harness.results.tables import RunResult

if TYPE_CHECKING:
    import pandas as pd


class Given(NamedTuple):
    """What a configuration was composed from: the overrides, and the option of each group, as Hydra names them."""

    overrides: Sequence[str] = ()
    choices: Mapping[str, Any] = {}

    def write(self, folder: Path) -> None:
        """Leave both where Hydra leaves them, for comparisons and pages to read."""
        stored = folder / ".hydra"
        stored.mkdir(parents=True, exist_ok=True)
        choices = {"hydra": {"runtime": {"choices": dict(self.choices)}}}
        for name, content in (("overrides", list(self.overrides)), ("hydra", choices)):
            (stored / f"{name}.yaml").write_text(yaml_text(content), encoding="utf-8")


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A run that has ended.

    Attributes:
        config: what was asked for.
        result: what was recorded, whichever engine served.
        summary: the metrics by name, as summary.json has them.
        failure: what ended the run before all was served: KeyboardInterrupt for a signal; None for a complete run.
        given: what the configuration was composed from; nothing where Hydra stores that itself.
        inputs: digests of the input files at the start, by key.
        table: the rows of the trace, where they came from memory.
    """

    config: RunConfig
    result: RunResult
    summary: dict[str, Any]
    failure: BaseException | None
    given: Given = Given()
    inputs: Mapping[str, str] = field(default_factory=dict)
    table: pd.DataFrame | None = None

    @property
    def requests(self) -> pd.DataFrame:
        """A row per request; docs/outputs.md explains the columns."""
        return self.result.requests

    @property
    def steps(self) -> pd.DataFrame:
        """A row per step of the engine; docs/outputs.md explains the columns."""
        return self.result.steps

    def report(self, path: str | Path | None = None) -> str:
        """The page on the run as HTML, one self-contained text; written to `path` if one is given.

        Raises:
            OSError: it cannot be written.
        """
        from harness.figures.pages.text import page_text  # imported late, as a run does without it

        with TemporaryDirectory(prefix="twinserve-") as folder:
            self.store(Path(folder))
            return page_text(Path(folder), path)

    def save(self, folder: str | Path) -> Path:
        """Leave in `folder` what the command line leaves there, report.html included; returns the folder.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(folder)
        self._write_settings(folder)
        self.write(folder)
        if self.config.plots:
            self.report(folder / REPORT)
        return folder

    def write(self, folder: Path) -> None:
        """Write the tables, the summary and, of a complete run, the figures that are asked for as files."""
        write_results(self.result, self.summary, folder, self.config.exports)
        if self.result.spans is not None and self.config.sinks.otel:
            write_table(folder / SPANS, self.result.spans)
        if self.result.spans is not None and self.config.perfetto:
            write_trace(self.result, self.result.spans, folder, self.config.perfetto_window)
        if not (self.config.plots and self.result.complete):
            return
        if self.config.plot.formats:
            from harness.figures import write_run_charts  # imported late, as it brings matplotlib

            write_run_charts(self.result, self.summary, folder, self.config.plot)
        if self.config.figures:
            from harness.figures.own import write_own_figures  # imported late, as it brings matplotlib

            write_own_figures(self.config.figures, self.result, self.summary, folder)

    def store(self, folder: Path) -> None:
        """Write what pages and comparisons read: all but the figures."""
        self._write_settings(folder)
        write_results(self.result, self.summary, folder)

    def _write_settings(self, folder: Path) -> None:
        config = self.config if self.table is None else with_table(self.config, self.table, folder)
        write_settings(config, self.inputs, self.given, folder)

    def check(self, output_dir: Path | None = None) -> None:
        """Raises what kept the run from being complete; `output_dir` is where it was written."""
        if isinstance(self.failure, EngineError):
            where = f"; what was recorded until then is in {output_dir}, marked incomplete" if output_dir else ""
            error = EngineError(f"{self.failure}{where}")
            error.partial = self
            raise error from self.failure
        if self.failure is not None:
            raise self.failure

    def __repr__(self) -> str:
        from harness.figures.drawn_metrics import tail_percentile  # imported late, as a run does without it

        summary = self.summary
        kind = "SIMULATED" if summary["simulated"] else "MEASURED"
        done = f"{summary['completed']:,} of {summary['num_prompts']:,} requests finished"
        state = summary["verdict"] if summary["complete"] else f"INCOMPLETE, {summary['ended_early']}"
        if unserved := unserved_text(summary):
            state += f", {unserved}"
        tail = tail_percentile(list(summary))
        latencies = [f"{name.upper()} {tail} {number(summary[f'{tail}_{name}_ms'])} ms" for name in ("ttft", "tpot")]
        figures = " · ".join([*latencies, f"{number(summary['output_throughput'])} output tok/s"])
        return f"{kind} {summary['model']} on {summary['device']}: {done}, {state}\n{figures}"

    def _repr_html_(self) -> str:
        """What the terminal shows of a run."""
        console = Console(record=True, file=StringIO(), width=100)
        print_summary(self.summary, console)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def with_table(config: RunConfig, table: pd.DataFrame, folder: Path) -> RunConfig:
    """`config` with the rows of its trace in a file, trace.jsonl in `folder`."""
    path = folder / "trace.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda path: table.to_json(path, orient="records", lines=True, double_precision=15))
    return config.model_copy(update={"trace": config.trace.model_copy(update={"path": str(path)})})


def write_settings(config: RunConfig, inputs: Mapping[str, str], given: Given, folder: Path) -> None:
    """Write what was asked for: config.yaml, inputs.json, and what the configuration was composed from."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"config.yaml": to_yaml(config), INPUTS: json.dumps(dict(inputs), indent=2)}
    for name, text in texts.items():
        write_whole(folder / name, partial(_write_text, text))
    given.write(folder)


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
