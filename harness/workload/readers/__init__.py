"""One reader per public trace format. `load_trace` gives the trace that a configuration asks for."""

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import hub
from harness.config import (
    AgenticTrace,
    CsvTrace,
    CustomTrace,
    JsonlTrace,
    MooncakeTrace,
    SharedPrefixTrace,
    ShareGptTrace,
    SyntheticTrace,
    TraceConfig,
)
from harness.config.schema.traffic.trace_files import FileTrace
from harness.errors import ConfigError
from harness.workload import sampling
from harness.workload.agents import agentic
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace, file_stamp

if TYPE_CHECKING:
    import pandas as pd

    from harness.workload.rows.layout import Layout


_ROOMS = {
    "csv": "own.plain",
    "jsonl": "own.plain",
    "frame": "own.frame",
    "custom": "own.custom",
    **{name: f"agents.{name}" for name in ("otel", "tracelab", "weka")},
}


def _reader(name: str) -> Any:
    """The module of a format; imported late, as a drawn trace needs no pyarrow."""
    return importlib.import_module(f"harness.workload.readers.{_ROOMS.get(name, name)}")


def load_trace(
    config: TraceConfig, *, seed: int, with_times: bool = True, table: "pd.DataFrame | None" = None
) -> Trace:
    """Reads or draws the trace of a configuration; a drawn trace depends on the configuration and the seed only.

    Args:
        with_times: whether the trace's own times are wanted. Without them no row of a file is bad for its time, and the
            rows stay in the order of the file.
        table: the rows of the file, where they are in memory; `config` is that of a file of the user's own.

    Raises:
        TraceError: the file cannot be read, is of another format, has no usable row, or more bad rows than allowed.
        ConfigError: a tokenizer cannot be loaded, or has nothing to count; drawn prompts have too many hash ids;
            trace.n is given beside a column n of the file.
    """
    if table is not None:
        assert isinstance(config, JsonlTrace), "its keys hold for tables"
        rules = _rules(config, with_times)
        return _with_sequences(_reader("frame").read(table, config.path, rules, _layout(config)), config)
    if (path := getattr(config, "path", None)) is not None:
        config = config.model_copy(update={"path": hub.fetched(path)})
    local = getattr(config, "path", None)
    trace = _load(config, seed, with_times)
    notes = (*trace.notes, *hub.revision_note(path, local)) if path is not None and local is not None else trace.notes
    return _with_sequences(replace(trace, stamp=file_stamp(local), notes=notes), config)


def _rules(config: FileTrace, with_times: bool) -> RowRules:
    return RowRules(config.limit, config.on_bad_row, with_times or config.window is not None, config.window)


def _layout(config: CsvTrace | JsonlTrace) -> "Layout":
    from harness.workload.rows.layout import Layout

    return Layout(config.columns, config.time_unit, getattr(config, "hash_block_size", None))


def _with_sequences(trace: Trace, config: TraceConfig) -> Trace:
    """The trace with `n` sequences for every request."""
    if config.n == 1:
        return trace
    if "n" in trace.rows:
        raise ConfigError(f"trace.n={config.n}: {trace.source} has a column n, which says it for each request")
    return replace(trace, rows=trace.rows.assign(n=config.n))


def _load(config: TraceConfig, seed: int, with_times: bool) -> Trace:
    # A random stream of its own: arrivals are drawn with the same seed and must not repeat these numbers.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(b"trace")))
    match config:
        case ShareGptTrace():
            return _load_sharegpt(config, rng)
        case SyntheticTrace():
            return sampling.synthetic(config, rng)
        case SharedPrefixTrace():
            return sampling.shared_prefix(config, rng)
        case AgenticTrace():
            return agentic(config, rng)
        case _:
            trace: Trace = _read(config, rng, with_times)
            return trace


def _read(config: TraceConfig, rng: np.random.Generator, with_times: bool) -> Any:
    """The trace of a file, or of a function of the user's own."""
    reader = _reader(config.kind)
    match config:
        case MooncakeTrace():
            rules = _rules(config, with_times)
            return reader.read(config.path, rules, config.output_tokens, config.tokenizer)
        case CsvTrace():
            return reader.read_csv(config.path, _rules(config, with_times), _layout(config), config.delimiter)
        case JsonlTrace():
            return reader.read_jsonl(config.path, _rules(config, with_times), _layout(config), config.tokenizer)
        case CustomTrace():
            return reader.read(config, rng, RowRules(config.limit, config.on_bad_row, with_times))
        case FileTrace():
            return reader.read(config.path, _rules(config, with_times))
    raise AssertionError(f"no reader of {config.kind}")


def _load_sharegpt(config: ShareGptTrace, rng: np.random.Generator) -> Trace:
    if config.path is None:
        num_requests = sampling.num_drawn(config)
        num_requests = min(num_requests, config.limit or num_requests)
        return sampling.sharegpt(num_requests, turns=config.turns, rng=rng)
    rules = RowRules(config.limit, config.on_bad_row)
    trace: Trace = _reader("sharegpt").read(config.path, turns=config.turns, tokenizer=config.tokenizer, rules=rules)
    return trace
