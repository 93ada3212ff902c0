"""Random values for a key of the configuration, as a command line gives them: allowed, at the limits, and hostile."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel

from harness.config.schema.traffic.reader import (
    item_keys,
    item_type,
    models_in,
    split_annotation,
    tag_of,
    union_members,
)

# What no key expects, or few do.
HOSTILE = (
    "null", "true", "''", "' '", "x", "nan", "-nan", "inf", "-inf", "-1", "0", "-0.5", "-0.0", "0.5", "1e30", "1e308",
    "1e-308", "5e-324", "1e400", "-1e30", str(10**30), str(-(10**30)), str(2**31), str(2**63 - 1), str(2**63),
    str(2**64), "1" + "0" * 400, "1.5", "1_000", "0x10", "1e3", "[]", "[1,2]", "[null]", "[nan]", "{}", "{a:1}",
    "{kind:x}", "{kind:sim}", "{1:2}", "[[[[[[1]]]]]]", "{a:{b:{c:{d:1}}}}", "'日本語'", "'\\n'", "'a\\nb'", "'\\x00'",
    "'" + "x" * 5000 + "'", "${seed}", "${model}", "${model.name}", "${no.such.key}", "'${oc.env:HOME}'",
    "'${oc.env:NO_SUCH_VARIABLE}'", "'${oc.decode:\"{\"}'", "'${'", "'${no_such_resolver:1}'", "???", "/", ".", "..",
    "/dev/null", "/dev/zero", "/proc/self/mem", "~", "'%s'", "'[/]'", "'[red]'", "'-'", "'--help'", "'a b'", "'a,b'",
)  # fmt: skip


@dataclass(frozen=True)
class Leaf:
    """A key of the schema with the annotation and the metadata of its value."""

    key: str
    annotation: Any
    metadata: tuple[Any, ...] = ()


def leaves(model: type[BaseModel], kinds: Mapping[str, str], prefix: str = "") -> Iterator[Leaf]:
    """All keys with a value below `model`; of a group with variants those of the variant that `kinds` names."""
    for name, field in model.model_fields.items():
        key = prefix + name
        inner = models_in(field.annotation)
        for variant in inner:
            if len(inner) == 1 or tag_of(variant) == kinds.get(key):
                yield from leaves(variant, kinds, f"{key}.")
        if not inner and name != "kind":
            yield Leaf(key, field.annotation, tuple(field.metadata))
            for item in item_keys(field.annotation):
                yield Leaf(f"{key}.{item}", item_type(field.annotation))


def draw(rng: random.Random, leaf: Leaf) -> str:
    """A value for `leaf`: mostly one that is allowed, sometimes one near a limit, sometimes a hostile one."""
    shape = rng.random()
    if shape < 0.15:
        return rng.choice(HOSTILE)
    return _draw(rng, leaf.annotation, leaf.metadata, at_limits=shape < 0.3)


def _draw(rng: random.Random, annotation: Any, metadata: Iterable[Any], *, at_limits: bool) -> str:
    bare, inner = split_annotation(annotation)
    constraints = [*metadata, *inner]
    members = union_members(bare)
    if NoneType in members:
        value = next(member for member in members if member is not NoneType)
        return "null" if rng.random() < 0.1 else _draw(rng, value, constraints, at_limits=at_limits)
    if get_origin(bare) is Literal:
        return str(rng.choice(get_args(bare)))
    if get_origin(bare) is tuple:
        return f"[{','.join(_items(rng, get_args(bare)[0], at_limits=at_limits))}]"
    if get_origin(bare) is dict:
        keys = item_keys(bare) or ["a", "step_overhead_s", "memory_efficiency"]
        values = _items(rng, item_type(bare), at_limits=at_limits)
        return "{" + ",".join(f"{rng.choice(keys)}:{value}" for value in values) + "}"
    if bare is bool:
        return rng.choice(["true", "false"])
    if bare is str:
        return rng.choice(["x", "a/b", "'Qwen/Qwen3-8B'", ".", "'é'", "'x y'", "12"])
    return _number(rng, constraints, at_limits=at_limits, whole=bare is int)


def _items(rng: random.Random, annotation: Any, *, at_limits: bool) -> list[str]:
    return [_draw(rng, annotation, (), at_limits=at_limits) for _ in range(rng.choice([0, 1, 1, 2, 3, 20]))]


def _number(rng: random.Random, constraints: list[Any], *, at_limits: bool, whole: bool) -> str:
    low = _bound(constraints, (annotated_types.Ge, "ge"), (annotated_types.Gt, "gt"))
    high = _bound(constraints, (annotated_types.Le, "le"), (annotated_types.Lt, "lt"))
    if at_limits:
        spread = [1] if whole else [1, 1e-9, 1e-300]
        known = [
            bound + sign * step for bound in (low, high) if bound is not None for step in spread for sign in (-1, 1)
        ]
        far = [10**12, 10**18, 2**31 - 1] if whole else [1e-12, 1e-30, 1e12, 1e18, 1e100]
        value = rng.choice([*known, *far])
    else:
        largest = min(high if high is not None else 1e9, 1e9)
        smallest = max(low or 0, 1 if whole else 1e-6)
        value = min(max(smallest * (largest / smallest) ** (rng.random() ** 2), smallest), largest)
    return str(int(value)) if whole else repr(float(value))


def _bound(constraints: list[Any], *kinds: tuple[type, str]) -> float | None:
    found = [getattr(item, name) for item in constraints for kind, name in kinds if isinstance(item, kind)]
    return found[0] if found else None
