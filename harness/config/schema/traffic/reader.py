"""Reads the configuration schema itself: which keys exist where, and in words what each accepts.

Error messages are derived from the models, so they cannot contradict what is accepted.
"""

import difflib
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_COMPARISONS = ((annotated_types.Ge, "ge", ">="), (annotated_types.Gt, "gt", ">"))
_UPPER_COMPARISONS = ((annotated_types.Le, "le", "<="), (annotated_types.Lt, "lt", "<"))
_MOST_SHOWN = 4  # names that a message proposes
_TELLING = 3  # letters of a key from which its place is guessed by its name alone
_NOUNS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def split_annotation(annotation: Any) -> tuple[Any, list[Any]]:
    """The bare type under (nested) Annotated, and all its metadata with pydantic's FieldInfo unpacked."""
    metadata: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        for item in extra:
            metadata.extend(item.metadata if isinstance(item, FieldInfo) else [item])
    return annotation, metadata


def union_members(annotation: Any) -> list[Any]:
    """Members of a union; a list of the annotation alone when it is none."""
    bare, _ = split_annotation(annotation)
    return list(get_args(bare)) if get_origin(bare) in (Union, UnionType) else [bare]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The configuration models a key can hold: one, or the variants of a group; empty for a plain value."""
    members = (split_annotation(member)[0] for member in union_members(annotation))
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def tag_of(model: type[BaseModel]) -> str | None:
    """The `kind` that selects this variant of a group, None for a model without variants."""
    field = model.model_fields.get("kind")
    return None if field is None else str(get_args(field.annotation)[0])


def item_type(annotation: Any) -> Any:
    """Type of the items of a list or dict, None for any other annotation."""
    arguments = {tuple: 0, dict: 1}
    for member in union_members(annotation):
        if get_origin(member) in arguments:
            return get_args(member)[arguments[get_origin(member)]]
    return None


def item_keys(annotation: Any) -> list[str]:
    """The keys a dict with a closed set of keys accepts; empty for anything else."""
    return list(get_args(get_args(annotation)[0])) if get_origin(annotation) is dict else []


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What a key accepts, worded to follow `must be` or to stand alone as `choose one of ...`."""
    bare, inner = split_annotation(annotation)
    constraints = [*metadata, *inner]
    members = union_members(bare)
    tags = [tag for tag in map(tag_of, models_in(bare)) if tag is not None]
    if tags:
        return f"choose one of {', '.join(tags)}"
    if NoneType in members:
        (value,) = (member for member in members if member is not NoneType)
        return f"{describe(value, constraints)}, or null"
    if get_origin(bare) is Literal:
        return f"choose one of {', '.join(map(str, get_args(bare)))}"
    if get_origin(bare) is tuple:
        item = describe(get_args(bare)[0])
        return f"must be a list, each item {item.removeprefix('must be ')}"
    if get_origin(bare) is dict or models_in(bare):
        return "must be a group of keys"
    return f"must be {_NOUNS[bare]}{_bounds(constraints)}"


def _bounds(constraints: Iterable[Any]) -> str:
    """The numeric limits among the constraints, as ` >= 1 and <= 10`; ` that is not empty` for required text."""
    constraints = list(constraints)
    parts = [
        f" {symbol} {_plain(getattr(item, attribute))}"
        for comparisons in (_COMPARISONS, _UPPER_COMPARISONS)
        for kind, attribute, symbol in comparisons
        for item in constraints
        if isinstance(item, kind)
    ]
    if parts:
        return " and".join(parts)
    return " that is not empty" if any(isinstance(item, annotated_types.MinLen) for item in constraints) else ""


def _plain(limit: float) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the names that begin alike, or else the closest one; empty when none is close."""
    names = list(allowed)
    longer = [each for each in names if len(name) >= _TELLING and each.lower().startswith(name.lower())]
    match = longer if 0 < len(longer) <= _MOST_SHOWN else difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {' or '.join(map(repr, match))}?" if match else ""


def unknown_name(key: str, allowed: Sequence[str], root: Sequence[type[BaseModel]] = ()) -> str:
    """One line about a dotted key whose last segment is none of those allowed at its level.

    `root` are the models of the first level, in which the segment is looked for.
    """
    name = key.rpartition(".")[2]
    if len(name) >= _TELLING and (elsewhere := _elsewhere(root, name)):
        return f"{key}: unknown key; did you mean {elsewhere!r}?"
    return f"{key}: unknown key{nearest(name, allowed)} (allowed here: {', '.join(allowed) or 'none'})"


def _elsewhere(root: Sequence[type[BaseModel]], name: str) -> str | None:
    """The dotted key with the fewest groups that ends in `name`, as `scheduler.watermark` does in `watermark`."""
    level = [("", model) for model in root]
    while level:
        for prefix, model in level:
            if name in model.model_fields and name != "kind":
                return prefix + name
        level = [
            (f"{prefix}{key}.", inner)
            for prefix, model in level
            for key, field in model.model_fields.items()
            for inner in models_in(field.annotation)
        ]
    return None


def unknown_key(
    models: Sequence[type[BaseModel]],
    path: Sequence[str],
    prefix: str = "",
    root: Sequence[type[BaseModel]] | None = None,
) -> str | None:
    """One line about the first segment of a dotted key that no model here has.

    `models` are the variants allowed at this level, `prefix` the dotted path of this level, `root` the models of the
    first one. A key that another variant has is told apart from one that does not exist. None when every segment of
    the path exists or may exist.
    """
    name, *rest = path
    fields = {key: field for model in models for key, field in model.model_fields.items()}
    full = prefix + name
    if name not in fields:
        return unknown_name(full, [key for key in fields if key != "kind"], root or models)
    owners = [tag for model in models if name in model.model_fields and (tag := tag_of(model))]
    if not rest:
        group = prefix.rstrip(".")
        return (
            f"{full}: belongs to {group}={' or '.join(owners)} only" if len(owners) < len(models) and owners else None
        )
    annotation = fields[name].annotation
    if any(get_origin(member) is dict for member in union_members(annotation)):
        keys = item_keys(annotation)
        return unknown_name(f"{full}.{rest[0]}", keys) if keys and rest[0] not in keys else None
    inner = models_in(annotation)
    return (
        unknown_key(inner, rest, f"{full}.", root or models) if inner else f"{full}: holds a value, not keys below it"
    )
