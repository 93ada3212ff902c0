"""The cases of the speed of simulations."""

import subprocess
import sys

import pytest

from tests.harness.builders import ROOT

COMPOSE = """
from pathlib import Path
from experiments import composed
from experiments.simulation_speed import COMMON, cases
composed(*COMMON, *cases(Path("traces"), Path("lengthened.jsonl"))["mooncake twice, 8 servers"])
"""


@pytest.mark.long
def test_a_case_is_a_configuration_in_a_process_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", COMPOSE], cwd=ROOT, check=True)
