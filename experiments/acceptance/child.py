"""The process of one section.

    python -m experiments.acceptance.child <module>:<function> <result file> [--rehearse]

Results are in the file after every check. When the section ends, the file also has a `status`: ok, failed or skipped.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

import torch

from experiments.acceptance.context import Context, SkippedError


def main(target: str, result: str, *flags: str) -> None:
    rehearse = "--rehearse" in flags
    context = Context(torch.device("cpu" if rehearse else "cuda"), rehearse, Path(result))
    if rehearse:
        torch.set_num_threads(1)
    module, _, function = target.partition(":")
    status, error = "ok", ""
    try:
        getattr(importlib.import_module(module), function)(context)
    except SkippedError as reason:
        status, error = "skipped", str(reason)
    except Exception:
        status, error = "failed", traceback.format_exc()
    context.save(status=status, error=error)
    sys.stdout.flush()
    os._exit(0)  # engines of other projects leave threads and processes that keep an interpreter from ending


if __name__ == "__main__":
    main(*sys.argv[1:])
