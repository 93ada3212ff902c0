"""What is wrong with the values of a configuration, in one line."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.config.run import RunConfig
from harness.config.schema.traffic.reader import (
    describe,
    item_keys,
    item_type,
    models_in,
    tag_of,
    unknown_key,
    unknown_name,
)


def explain_override(key: str) -> str | None:
    """One line about a dotted key that the schema lacks; None when it has the key, or the key is Hydra's own."""
    if key == "model.config" or f"{key}.".startswith("model.hf_overrides."):
        return f"{key}: belongs to model=hf only"
    if re.match(r"sinks\.(mlflow|wandb|otel)\b", key):
        return f"{key}: give sinks=[{key.split('.')[1]}], too"
    return None if key.split(".")[0] == "hydra" else unknown_key([RunConfig], key.split("."))


def explain(error: ValidationError) -> str:
    """The first error in one line. Unknown keys come first: a misspelt key is also a missing one."""
    details = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _explain_one(details[0]) + more


def _explain_one(detail: ErrorDetails) -> str:
    path, allowed, annotation, metadata = _locate(detail["loc"])
    key = ".".join(path)
    if detail["type"] == "value_error":  # a check across keys, which names them relative to its group
        return ".".join([*path, str(detail["ctx"]["error"])])
    if annotation is None:
        return unknown_name(key, allowed, [RunConfig])
    match detail["type"]:
        case "missing":
            return f"{key}: missing; {describe(annotation, metadata)}"
        case "union_tag_not_found":
            return f"{key}.kind: missing; {describe(annotation)}"
        case "union_tag_invalid":
            return f"{key}={_show(detail['input'].get('kind'))}: {describe(annotation)}"
        case "finite_number":
            at_once = "; arrival=all_at_once sends all requests at once" if key == "arrival.rate" else ""
            return f"{key}={_show(detail['input'])}: {describe(annotation, metadata)}, and finite{at_once}"
        case _:
            return f"{key}={_show(detail['input'])}: {describe(annotation, metadata)}"


def _locate(loc: Sequence[int | str]) -> tuple[list[str], list[str], Any, Sequence[Any]]:
    """Walks the schema along a pydantic location.

    Returns the key's path (without the tags that pydantic puts in for group variants), the names allowed at the level
    of its last segment, and annotation and metadata of the key; an annotation of None where the key does not exist.
    """
    path: list[str] = []
    allowed: list[str] = []
    annotation: Any = RunConfig
    metadata: Sequence[Any] = ()
    for part in loc:
        models = models_in(annotation)
        if part == "[key]":  # the location of a dict's key rather than of its value
            annotation = None
        elif len(models) > 1:
            (annotation,) = (model for model in models if tag_of(model) == part)
        else:
            path.append(str(part))
            fields = models[0].model_fields if models else {}
            field = fields.get(str(part))
            allowed = [name for name in fields if name != "kind"] or item_keys(annotation)
            if field is None:
                annotation, metadata = item_type(annotation), ()
            else:
                annotation, metadata = field.annotation, field.metadata
    return path, allowed, annotation, metadata


def _show(value: Any) -> str:
    """The value as a user would recognise it on the command line; text in quotes, a group by its keys."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(map(str, value)) + "}"
    return repr(value)
