"""Gathers the wheels that a machine without a network needs beside torch, triton, transformers, xxhash and numpy.

    python -m experiments.acceptance.wheels [--into .whl]

They are for Python 3.12 on Linux, x86-64, in the versions of constraints.txt. Says what they weigh together.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "3.12"
MOST_BYTES = 64 << 20
# What run.py and experiments.fidelity import, and what that imports, and that the machine need not have.
PACKAGES = (
    "annotated-types", "antlr4-python3-runtime", "bokeh", "hydra-core", "omegaconf", "pandas", "pydantic",
    "pydantic_core", "simpy", "tornado", "typing_extensions", "typing-inspection", "xyzservices",
)  # fmt: skip
FROM_SOURCE = ("antlr4-python3-runtime",)  # published without a wheel
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 17)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".whl"))
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        subprocess.run([*command(package, into), pinned(package)], check=True)
    sizes = {path.name: path.stat().st_size for path in sorted(into.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 2**20:6.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total / 2**20:6.2f} MiB  in all")
    if total > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES >> 20} MiB")


def command(package: str, into: Path) -> list[str]:
    """The command that fetches one package, or builds it where no wheel is published."""
    pip = [sys.executable, "-m", "pip", "-q"]
    if package in FROM_SOURCE:
        return [*pip, "wheel", "--no-deps", "--wheel-dir", str(into)]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    return [
        *pip, "download", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp",
        *platforms, "--dest", str(into),
    ]  # fmt: skip


def pinned(package: str) -> str:
    """The package with its version of constraints.txt."""
    wanted = re.sub(r"[-_.]+", "-", package).lower()
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, _ = line.partition("==")
        if re.sub(r"[-_.]+", "-", name).lower() == wanted:
            return line
    raise LookupError(f"constraints.txt has no version of {package}")


if __name__ == "__main__":
    main()
