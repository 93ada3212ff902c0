"""Compiles what takes most of a simulation's time into C, where it is asked to; the Python files stay the only source.

    TWINSERVE_COMPILE=1 pip install .                        in an installation
    TWINSERVE_COMPILE=1 python setup.py build_ext --inplace  in a checkout, for tests and measurements

It takes mypyc, which comes with mypy, a C compiler and some minutes; half a minute with MYPYC_OPT_LEVEL=0, for tests.
Without the variable nothing is compiled.
"""

import os
from pathlib import Path
from typing import Any

from setuptools import setup

# Nobody inherits from a compiled class, and configurations, users' policies and tests do from these.
PYTHON = (
    "policies",
    "routing",
    "planning/policy",
    "scheduler_options",
    "kv/reserved/reservation",
    "trtllm/options",
    "sglang/options",
)
COMPILED = [
    *sorted(path for path in Path("engine/core").rglob("[!_]*.py") if not path.as_posix()[12:].startswith(PYTHON)),
    *(Path(f"engine/core/routing/{name}.py") for name in ("views/prefix_estimate", "draws", "views/loads")),
    *sorted(Path("simulator/costs").rglob("[!_]*.py")),
    *(
        Path(f"simulator/{name}.py")
        for name in (
            "arrivals",
            "decode_run",
            "nanoseconds",
            "fleets/desk",
            "fleets/gateway",
            "replica",
            "versions/front_end",
        )
    ),
    *(Path(f"simulator/drivers/{name}.py") for name in ("alone", "independent", "phases", "shared", "timetable")),
    *(Path(f"harness/record/{name}.py") for name in ("plan_log", "recorder", "request_row", "rows", "transfer_log")),
    Path("harness/workload/content.py"),
]


def compilation() -> dict[str, Any]:
    if os.environ.get("TWINSERVE_COMPILE") != "1":
        return {}
    try:
        from mypyc.build import mypycify
    except ModuleNotFoundError:  # pip asks for what is required first, and comes again
        return {"setup_requires": ["mypy>=1.15"]}
    checks = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", "--explicit-package-bases"]
    opt_level = os.environ.get("MYPYC_OPT_LEVEL", "3")
    modules = mypycify([*checks, *(str(path) for path in COMPILED)], opt_level=opt_level)
    if os.name == "posix":
        # Functions of the core call one another directly, and small ones are inlined. Without the other flags gcc looks
        # for odd indentation for two minutes, and at level 0 compiles the assertions of CPython's headers, too.
        options = ["-fno-semantic-interposition", "-Wno-misleading-indentation", "-DNDEBUG"]
        for module in modules:
            module.extra_compile_args = [*module.extra_compile_args, *options]
    return {"ext_modules": modules}


setup(**compilation())
