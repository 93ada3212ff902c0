"""From the files under conf/ to a configuration, and their explanations."""

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
