"""The space of task=search: values to choose from by key, and the configurations that they make."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from harness.config import RunConfig, parse
from harness.config.schema.tasks.capacity import SearchConfig
from harness.errors import ConfigError
from harness.studies.capacity.keys import searched_key, with_values

_NUMBER = r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*"
CAPACITY_PER_GPU = "capacity_per_gpu"
_QUESTION = ("task", "metrics", "capacity", "search", "plot", "report", "results")  # groups and keys
_MOST_DRAWS = 10_000
_LOG_FROM = 10.0  # a range whose ends differ by this factor is searched in logarithms


def space_of(settings: SearchConfig) -> dict[str, BaseDistribution]:
    """What to choose from, by key; raises ConfigError for a value that is neither a list nor a range."""
    return {key: _distribution(key, value) for key, value in (settings.space or {}).items()}


def check_keys(config: RunConfig) -> None:
    """Raises ConfigError where `search.space` has a key that changes the question and not the system, for which the
    best value would be the easiest question."""
    settings = config.search
    load = searched_key(config) if settings.objective == CAPACITY_PER_GPU else None
    for key in settings.space or {}:
        if key == "seed":
            raise ConfigError("search.space.seed: the best seed is the luckiest; leave it out")
        if key == load or key.partition("/")[0] == "arrival" and load is not None:
            raise ConfigError(f"search.space.{key}: the load is what each trial searches for; leave it out")
        if key.partition(".")[0] in _QUESTION:
            raise ConfigError(f"search.space.{key}: changes what is asked, not the system; leave it out")


def _distribution(key: str, value: str | tuple[Any, ...]) -> BaseDistribution:
    if isinstance(value, tuple):
        return CategoricalDistribution(list(dict.fromkeys(value)))
    match = re.fullmatch(rf"{_NUMBER}\.\.{_NUMBER}", value)
    if match is None:
        raise ConfigError(f"search.space.{key}={value!r}: must be a list of values or a range such as '128..1024'")
    low, high = float(match[1]), float(match[2])
    if not low < high < math.inf:
        raise ConfigError(f"search.space.{key}={value!r}: the first number must be below the second")
    log = low > 0 and high / low >= _LOG_FROM
    if match[1].isdigit() and match[2].isdigit():
        return IntDistribution(int(match[1]), int(match[2]), log=log)
    return FloatDistribution(low, high, log=log)


def draw_untried(
    space: Mapping[str, BaseDistribution], is_tried: Callable[[dict[str, Any]], bool], seed: int
) -> dict[str, Any] | None:
    """Values drawn at random, each as likely as the others, that were not tried; None where no draw finds any."""
    rng = np.random.default_rng(seed)
    for _ in range(_MOST_DRAWS):
        values = {key: _draw(each, rng) for key, each in space.items()}
        if not is_tried(values):
            return values
    return None


def _draw(distribution: BaseDistribution, rng: np.random.Generator) -> Any:
    match distribution:
        case CategoricalDistribution():
            return distribution.choices[rng.integers(len(distribution.choices))]
        case IntDistribution():
            return int(rng.integers(distribution.low, distribution.high + 1))
        case FloatDistribution():
            return float(rng.uniform(distribution.low, distribution.high))
    raise AssertionError(f"no such distribution: {distribution}")


def configuration(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The configuration of a trial. Under Hydra it is composed anew, so that values may be options of groups.

    Raises:
        ConfigError: a value is not allowed, or contradicts another.
    """
    if not HydraConfig.initialized():
        return with_values(config, values)
    given = [*HydraConfig.get().overrides.task, *(f"{key}={text(value)}" for key, value in values.items())]
    return parse(compose(HydraConfig.get().job.config_name, overrides=given))


def text(value: Any) -> str:
    """A value as on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
