"""Entry point: Hydra composes the configuration and the harness runs it. `python run.py --help` explains it."""

import sys

from harness import interrupts

if __name__ == "__main__":
    interrupts.end_at_once()  # the imports below take a second

import hydra
from omegaconf import DictConfig

from harness import cli


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    cli.run_job(cfg)


if __name__ == "__main__":
    sys.exit(cli.launch(main))
