"""Is the engine right and fast on this GPU? README.md beside this says what the sections are.

    python -m experiments.acceptance [section ...] --out <folder>

By default all sections run, in the order of their value. Each has a process of its own, which is killed after its
limit; what it found until then is kept. The results, acceptance_<device>.json, are written after each section; those
of sections that do not run again stay. With --rehearse everything runs in tiny sizes on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import RESULTS, ROOT, provenance, write_result
from harness.results.stored.environment import slug

_HERE = "experiments.acceptance"
SECTIONS: dict[str, tuple[str, float]] = {  # what a process runs, and the seconds after which it is killed
    "device": (f"{_HERE}.attention:device", 60),
    "kernels": (f"{_HERE}.kernels:kernels", 180),
    "models": (f"{_HERE}.tokens:models", 120),
    "graphs": (f"{_HERE}.tokens:graphs", 90),
    "engine": (f"{_HERE}.serving:engine", 120),
    "attention": (f"{_HERE}.attention:attention", 90),
    "steps": (f"{_HERE}.steps:steps", 90),
    "linear": (f"{_HERE}.products:linear", 60),
    "experts": (f"{_HERE}.products:experts", 60),
    "latent": (f"{_HERE}.products:latent", 40),
    "transformers": (f"{_HERE}.serving:transformers", 240),
    "nano_vllm": (f"{_HERE}.serving:nano_vllm", 120),
    "vllm": (f"{_HERE}.serving:vllm", 180),
}
NANO_GOAL = 1.5  # times the output tokens/s of nano-vllm
_TAIL = 3000  # characters of the output of a section that is not ok, kept in its entry
_MARKS = {None: "", True: "ok", False: "MISSED"}

Entry = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"those to run: {', '.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS, help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU: whether it runs, not how fast")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    sections = {name: SECTIONS[name] for name in args.sections or SECTIONS}
    sys.exit(run(sections, args.out, args.rehearse))


def run(sections: dict[str, tuple[str, float]], folder: Path, rehearse: bool) -> int:
    """Run sections and print what they found; returns 1 if one did not end well or missed a goal, else 0."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "rehearsal" if rehearse else slug(gpu_name())
    path = folder / f"acceptance_{device}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    for name, (target, limit_s) in sections.items():
        record[name] = {**run_section(target, limit_s, rehearse), **provenance(_HERE)}
        write_result(path, record)
        print("\n".join(lines(name, record[name])), flush=True)
    print("\n".join(compared(record)))
    print(f"written to {path}")
    entries = [record[name] for name in sections]
    is_well = all(entry["status"] in ("ok", "skipped") for entry in entries)
    return int(not is_well or any(check["passed"] is False for entry in entries for check in entry["checks"]))


def run_section(target: str, limit_s: float, rehearse: bool) -> Entry:
    """Run a section in a process group of its own for at most `limit_s` seconds; returns its entry."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", f"{_HERE}.child", target, str(result), *(["--rehearse"] if rehearse else [])]
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, process_group=0)
        entry: Entry = {"checks": [], "record": {}}
        try:
            process.wait(limit_s)
            status = {"status": "failed", "error": f"the process ended with status {process.returncode}"}
        except subprocess.TimeoutExpired:
            status = {"status": "killed", "error": f"killed after its limit of {limit_s:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the process and all that it started
            process.wait()
        entry |= status
        with contextlib.suppress(OSError, ValueError):
            entry |= json.loads(result.read_text())
        if entry["status"] not in ("ok", "skipped"):
            entry["output_tail"] = log.read_text(errors="replace")[-_TAIL:]
    return {**entry, "seconds": round(time.monotonic() - started, 1)}


def gpu_name() -> str:
    """What the driver calls the GPU; no context is made on it."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        sys.exit(f"this machine has no NVIDIA GPU ({error}); --rehearse runs without one")


def lines(name: str, entry: Entry) -> list[str]:
    """A section's table: a line per check."""
    found = [f"{name}: {entry['status']}, {entry['seconds']:.0f} s"]
    if entry["status"] != "ok":
        found += [f"  ! {line[:150]}" for line in str(entry["error"]).strip().splitlines()[-1:]]
    for check in entry["checks"]:
        goal = f"  {check['goal']}  {_MARKS[check['passed']]}" if check["goal"] else ""
        found.append(f"  {check['name']:60}  {check['value']}{goal}")
    return found


def compared(record: dict[str, Entry]) -> Sequence[str]:
    """Output tokens/s of this engine over those of each other engine that was measured."""
    speeds = {
        name: statistics.median(speeds)
        for name in ("engine", "nano_vllm", "vllm", "transformers")
        if (speeds := record.get(name, {"record": {}})["record"].get("output_tokens_per_s"))
    }
    own = speeds.pop("engine", None)
    ratios = {name: own / speed for name, speed in speeds.items()} if own else {}
    return [
        f"this engine / {name}: {ratio:.2f}"
        + (f", goal {NANO_GOAL}: {_MARKS[ratio >= NANO_GOAL]}" if name == "nano_vllm" else "")
        for name, ratio in ratios.items()
    ]


if __name__ == "__main__":
    main()
