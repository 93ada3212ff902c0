"""The console command `twinserve`."""

import gc

from harness import interrupts


def main() -> int:
    """Runs the command line, as run.py does in a checkout, and returns the exit code."""
    interrupts.end_at_once()  # the import below takes half a second
    gc.disable()  # imports leave little garbage, and looking for it takes a tenth of a start; `execute` enables it
    from harness import cli

    return cli.main()
