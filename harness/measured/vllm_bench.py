"""Reads the JSON that `vllm bench serve --save-result --save-detailed` writes, of any server.

The clock of a request starts when the client sends it, after any wait for the client's own `--max-concurrency`. TPOT is
(last - first token) / (n - 1), as in vLLM.

`itls` holds the gaps between the chunks of a streamed answer: fewer gaps than tokens where a chunk has several tokens.
An answer in a single chunk has no gaps and, as in vLLM, a TPOT of 0. If every answer came in a single chunk, the
backend did not stream, and the run is refused: nothing is known about decoding.
"""

from __future__ import annotations

import reprlib
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import MeasuredRunError
from harness.measured.engine_settings import check_parallelism, logged_pool
from harness.measured.measured_run import (
    MeasuredRun,
    check_order,
    requests_table,
    series_table,
    trace_of,
)
from harness.measured.records import as_number, check_lengths, number_columns, read_json
from harness.results.tables import Floats
from harness.workload.rows.sieve import MAX_BAD_SHARE

_FEWEST = 20  # requests of which one may have failed
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
_SETTINGS = (
    "model_id",
    "tokenizer_id",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_prompts",
    "tensor_parallel_size",
)


def read(path: Path) -> MeasuredRun:
    """Read the file `path`, which holds the workload, too.

    Raises:
        MeasuredRunError: the file cannot be read, lacks details, or holds more than a few failed requests.
    """
    document = read_document(path)
    check_parallelism(path, document)  # what --metadata key=value adds
    details, failures = _details(path, document)
    number_fields = ("input_lens", "output_lens", "ttfts", "start_times")
    records = [
        dict(zip(number_fields, row, strict=True))
        for row in zip(*(details[name] for name in number_fields), strict=True)
    ]
    fields = number_columns(path, records, number_fields)
    check_lengths(path, fields, number_fields[:2])
    first_tokens = fields["start_times"] + fields["ttfts"]
    requests = requests_table(
        {
            "arrival_time": fields["start_times"],
            "first_token_time": first_tokens,
            "finish_time": first_tokens + _decode_times(path, details["itls"]),
            "num_prompt_tokens": fields["input_lens"],
            "num_output_tokens": fields["output_lens"],
        }
    )
    check_order(path, requests)
    notes = [*failures, "prompts have no contents here: the simulated prefix cache finds nothing"]
    at_once = _count_at_once(path, fields["output_lens"], details["itls"])
    if at_once:
        notes.append(f"{at_once} requests with several output tokens came in one piece: their TPOT counts as 0")
    if "tensor_parallel_size" not in document:
        notes.append("the record does not tell which GPUs served it: data or expert parallelism would go unnoticed")
    if document.get("max_concurrency"):
        notes.append(f"the client held requests back (max_concurrency={document['max_concurrency']})")
    return MeasuredRun(
        kind="vllm_bench",
        source=str(path),
        engine=f"{document.get('backend', 'unknown server')}, by vllm bench serve",
        data_files=(path,),
        trace=trace_of(path.stem, str(path), requests),
        requests=requests,
        series=series_table({}),
        settings={key: document[key] for key in _SETTINGS if key in document},
        notes=tuple(notes),
        kv_tokens=logged_pool(document, [log] if (log := path.with_suffix(".log")).is_file() else []),
    )


def read_document(path: Path) -> dict[str, Any]:
    """The content of a file of `vllm bench serve`; raises MeasuredRunError."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise MeasuredRunError(f"{path}: not a JSON object, as `vllm bench serve` writes")
    return document


def has_aggregates_only(path: Path) -> bool:
    """Whether the file was written without --save-detailed; raises MeasuredRunError where it cannot be read."""
    document = read_document(path)
    return "mean_ttft_ms" in document and not any(name in document for name in _DETAILS)


def _details(path: Path, document: dict[str, Any]) -> tuple[dict[str, list[Any]], list[str]]:
    """The details of the requests that were served, and a note where a few others failed."""
    absent = [name for name in _DETAILS if not isinstance(document.get(name), list)]
    if absent:
        there = [name for name in _DETAILS if name not in absent]
        raise MeasuredRunError(
            f"{path}: no list {', '.join(absent)} (there: {', '.join(there) or 'none of the details'}); "
            "run `vllm bench serve` of a version that records them, with --save-result --save-detailed"
        )
    details = {name: document[name] for name in _DETAILS}
    if len({len(values) for values in details.values()}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in details.items())
        raise MeasuredRunError(f"{path}: the details are of different lengths: {lengths}")
    failed = [str(error) for error in details["errors"] if error]
    if not failed:
        return details, []
    total, first = len(details["errors"]), (failed[0].strip().splitlines() or ["no reason"])[-1]
    text = f"{len(failed)} of {total} requests failed, first with: {first}"
    if len(failed) > max(1, MAX_BAD_SHARE * total) or total < _FEWEST:
        raise MeasuredRunError(f"{path}: {text}")
    served = [not error for error in details["errors"]]
    kept = {name: list(compress(values, served)) for name, values in details.items()}
    return kept, [f"{text}; they are left out of the comparison, and the server had them beside the others"]


def _decode_times(path: Path, itls: list[Any]) -> Floats:
    """The time in s from the first to the last token of each request; raises MeasuredRunError for an invalid gap."""
    for number, gaps in enumerate(itls, 1):
        if not isinstance(gaps, list):
            raise MeasuredRunError(f"{path}: itls of request {number}: {reprlib.repr(gaps)} is not a list of gaps")
        for gap in gaps:
            if not as_number(gap) >= 0:
                raise MeasuredRunError(
                    f"{path}: itls of request {number}: {reprlib.repr(gap)} is not a gap in s, a finite number >= 0"
                )
    return np.array([float(np.sum(gaps)) for gaps in itls])


def _count_at_once(path: Path, num_output_tokens: Floats, itls: list[Any]) -> int:
    """How many answers of several tokens came in one chunk; raises MeasuredRunError where all of them did."""
    several = num_output_tokens > 1
    at_once = several & ~np.array([bool(gaps) for gaps in itls])
    if at_once.any() and (at_once == several).all():
        first = int(np.flatnonzero(at_once)[0])
        raise MeasuredRunError(
            f"{path}: itls of request {first + 1}: no gaps between {num_output_tokens[first]:.0f} output tokens, nor "
            "in any other request; the backend must stream its answers"
        )
    return int(at_once.sum())
