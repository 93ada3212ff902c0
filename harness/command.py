"""The console command `twinserve`."""

from harness import interrupts


def main() -> int:
    """Runs the command line, as run.py does in a checkout, and returns the exit code."""
    interrupts.end_at_once()  # the import below takes a second
    from harness import cli

    return cli.main()
