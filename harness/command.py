"""The console command `twinserve`."""

import gc

from harness import interrupts


def main() -> int:
    """Runs the command line, as run.py does in a checkout, and returns the exit code."""
    interrupts.end_at_once()  # the import below takes half a second
    gc.set_threshold(20_000)  # by default garbage is looked for every 700 objects, which takes a tenth of a start
    from harness import cli

    return cli.main()
