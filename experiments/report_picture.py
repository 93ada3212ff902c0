"""The picture of a report at the top of the README: the page of the first sweep in a headless Chromium.

    python -m experiments.report_picture     needs Chromium on the path, or its path in CHROMIUM; a minute

Runs `experiment=limits_sweep` and writes docs/images/sweep_report.png.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from experiments import ROOT

PICTURE = ROOT / "docs/images/sweep_report.png"
_SIZE = (1100, 968)  # of the window: the question, the verdict and the first figures
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")


def chromium() -> str | None:
    """The path of a Chromium: that in CHROMIUM, or the first of the usual names on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def main() -> None:
    browser = chromium()
    if browser is None:
        sys.exit("No Chromium: set CHROMIUM to its path.")
    with tempfile.TemporaryDirectory() as folder:
        sweep = [sys.executable, "run.py", "experiment=limits_sweep", f"hydra.sweep.dir={folder}/sweep"]
        subprocess.run(sweep, cwd=ROOT, check=True)
        taken = Path(folder) / "taken.png"
        size = f"--window-size={_SIZE[0]},{_SIZE[1]}"
        page = f"file://{folder}/sweep/report.html"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=5000", size]
        subprocess.run([browser, *options, f"--screenshot={taken}", page], check=True, capture_output=True)
        Image.open(taken).convert("RGB").quantize(64).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
