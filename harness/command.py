"""The console command `twinserve`."""

import gc
import os

from harness import interrupts


def main() -> int:
    """Runs the command line, as run.py does in a checkout, and returns the exit code."""
    interrupts.end_at_once()  # the import below takes a third of a second
    gc.disable()  # looking for garbage takes a tenth of a start, which makes none; `harness.jobs` goes on with it
    gc.set_threshold(20_000)  # objects, for which it is looked for every 700 by default
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # they are looked for in the metadata of all packages
    os.environ.setdefault(
        "OPENBLAS_THREAD_TIMEOUT", "16"
    )  # numpy's idle threads spin for 2^16 cycles; of 2^26 by default
    from harness import cli

    try:
        return cli.main()
    finally:
        gc.freeze()  # what is left ends with the process
