"""Is the engine right and fast on this GPU? Two calls of under nine minutes each; README.md beside this says how.

    python -m experiments.acceptance first             correctness, then the engine's speed, then its parts
    python -m experiments.acceptance second            configurations of kernels, profiles, fidelity
    python -m experiments.acceptance merge FILE ...    merge records from elsewhere into experiments/results

With --rehearse a call runs in tiny sizes on the CPU, and has sections that crash, hang and run out of memory. Every
section runs in a process of its own, which is killed after its limit. The record, acceptance_<device>.json, is merged
and written after each section.
"""

from __future__ import annotations

import argparse
import signal
import sys
import zipfile
from pathlib import Path
from types import FrameType
from typing import Any

from experiments import RESULTS, ROOT
from experiments.acceptance.processes import Entry, Section, run_sections
from experiments.acceptance.record import Record, environment, record_path
from experiments.acceptance.report import print_record
from experiments.acceptance.sections import CALLS, REHEARSED

LIMIT_S = 510.0  # installing packages before it and closing the last section come on top
NVIDIA_DRIVER = Path("/dev/nvidiactl")
_LARGEST_FILE = 16 << 20  # of what is packed: more may not come back from a borrowed machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=[*CALLS, "merge"])
    parser.add_argument("files", nargs="*", type=Path, help="merge: records")
    parser.add_argument("--sections", help="those to run, in the order given; by default all of the call")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds, in all")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS, help="folder of the record and of packed files")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU: whether it runs, not how fast")
    parser.add_argument("--revision", help="of this repository, where git cannot say it")
    args = parser.parse_args()
    if args.call == "merge":
        merge(args.files, args.out)
        return
    if not args.rehearse and not NVIDIA_DRIVER.exists():
        parser.error("this machine has no NVIDIA driver; --rehearse runs without a GPU")
    sections = _chosen(parser, args)
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run(args.call, sections, args.out, args.limit, args.rehearse, args.revision))


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[Section, ...]:
    sections = CALLS[args.call]
    if args.rehearse:
        sections = (sections[0], *REHEARSED, *sections[1:])
    if args.sections is None:
        return sections
    known = {section.name: section for each in (sections, *CALLS.values()) for section in each}
    names = args.sections.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"--sections: no such section: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return tuple(known[name] for name in names)


def run(
    call: str, sections: tuple[Section, ...], folder: Path, limit_s: float, rehearse: bool, revision: str | None = None
) -> int:
    """Run the sections of a call; returns 1 if one did not end well or missed a goal, else 0."""
    folder.mkdir(parents=True, exist_ok=True)
    found = environment(revision)
    path = record_path(folder, found, rehearse)
    record = Record(path)
    record.merge(Record(ROOT / RESULTS / path.name))

    def finished(section: Section, entry: Entry, output: str) -> None:
        record.add(section.name, {**entry, "call": call, "environment": found})
        record.save()
        with (folder / f"{call}.log").open("a") as log:
            log.write(f"=== {section.name}: {entry['status']}\n{output}\n")
        _pack(section, folder)
        print(f"{section.name}: {entry['status']}, {entry.get('seconds', 0):.0f} s", flush=True)

    run_sections(sections, limit_s, rehearse, finished)
    print_record(record, [section.name for section in sections])
    print(f"written to {path}")
    entries = [record.sections[section.name] for section in sections if section not in REHEARSED]
    is_well = all(entry["status"] in ("ok", "skipped") for entry in entries)
    return int(not is_well or any(check["passed"] is False for entry in entries for check in entry["checks"]))


def merge(files: list[Path], folder: Path) -> None:
    """Merge records into those of the same names in `folder`."""
    for path in files:
        record = Record(folder / path.name)
        record.merge(Record(path))
        record.save()
        print_record(record, list(record.sections))
        print(f"written to {record.path}")


def _pack(section: Section, folder: Path) -> None:
    """Pack the files that a section leaves; the largest are left out if they do not fit."""
    files = {path for pattern in section.keeps for path in ROOT.glob(pattern) if path.is_file()}
    if not files:
        return
    packed = folder / f"{section.name}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files, key=lambda each: each.stat().st_size):
            if packed.stat().st_size + path.stat().st_size // 4 < _LARGEST_FILE:
                archive.write(path, path.relative_to(ROOT))
            else:
                print(f"{section.name}: not packed, too large: {path.relative_to(ROOT)}", flush=True)


def _end(number: int, frame: FrameType | None) -> Any:
    """Leave by an exception, so that the processes of sections are ended."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
