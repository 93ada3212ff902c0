"""Entry point of a checkout: what the console command `twinserve` does. `python run.py --help` explains it."""

import sys

from harness.command import main

if __name__ == "__main__":
    sys.exit(main())
