"""The process of one section: imports it, waits for a line on its standard input, runs it and leaves its results.

    python -m experiments.acceptance.child <module>:<function> <result file> [--rehearse]

The line is the time limit in seconds. Results are in the file after every check. When the process ends, the file also
has a `status`: ok, failed, out of memory or skipped. Two seconds before the limit the stacks of all threads are written
to standard error, so that a section that hangs shows where.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.acceptance.common import Context, SkippedError

_WARNING_S = 2.0
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("result", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    module, _, function = args.target.partition(":")
    section: Callable[[Context], None] | None = None
    problem = ""
    try:
        section = getattr(importlib.import_module(module), function)
    except Exception:
        problem = traceback.format_exc()
    if not (line := sys.stdin.readline()):
        return  # the section is not wanted
    limit_s = float(line)
    device = torch.device("cpu" if args.rehearse or not torch.cuda.is_available() else "cuda")
    if args.rehearse:
        torch.set_num_threads(1)
    context = Context(device, args.rehearse, time.monotonic() + limit_s, args.result)
    if device.type == "cpu" and not args.rehearse:
        problem = "torch finds no CUDA device"
    if section is None or problem:
        context.save(status="failed", error=problem)
        return
    faulthandler.dump_traceback_later(max(0.5, limit_s - _WARNING_S), exit=False)
    status, error = _run(section, context)
    context.save(status=status, error=error)
    sys.stdout.flush()
    os._exit(0)  # engines of other projects leave threads and processes that keep an interpreter from ending


def _run(section: Callable[[Context], None], context: Context) -> tuple[str, str]:
    """(status, traceback) of running a section."""
    try:
        section(context)
    except SkippedError as error:
        return "skipped", str(error)
    except (MemoryError, torch.OutOfMemoryError):
        return "out of memory", traceback.format_exc()
    except Exception as error:
        is_memory = any(words in str(error).lower() for words in _OUT_OF_MEMORY)
        return "out of memory" if is_memory else "failed", traceback.format_exc()
    return "ok", ""


if __name__ == "__main__":
    main()
