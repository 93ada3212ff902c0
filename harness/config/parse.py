"""Turns a composed Hydra configuration into a checked RunConfig, or into one line that says what is wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engine.documents import DocumentError, read_yaml, yaml_text
from harness.config.huggingface import resolve_model
from harness.config.run import RunConfig
from harness.config.schema.reader import describe, item_keys, item_type, models_in, tag_of, unknown_key, unknown_name
from harness.config.targets import import_targets
from harness.errors import ConfigError
from simulator.vllm_versions import vllm_version

_TASK_GROUPS = ("profile", "validation", "calibration", "plot", "report", "capacity", "search")


def parse(cfg: DictConfig) -> RunConfig:
    """Checks a composed configuration, and imports the code of the user's own that it names.

    Raises:
        ConfigError: one line naming the first wrong key, its value and what is allowed, and how many more are wrong.
    """
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: missing; give it as {error.full_key}=...") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from None
    if isinstance(values, dict) and isinstance(model := values.get("model"), dict) and "config" in model:
        values = {**values, "model": resolve_model(model)}
    import_targets({str(key): value for key, value in values.items()} if isinstance(values, dict) else {})
    return validated(values)


def _of_version(name: str, _root_: DictConfig) -> Any:
    """A default of the configured version of vLLM; of the newest where none is configured, or one that is refused."""
    configured = OmegaConf.select(_root_, "engine.vllm_version")
    try:
        return getattr(vllm_version(None if configured is None else str(configured)), name)
    except ValueError:
        return getattr(vllm_version(None), name)


OmegaConf.register_new_resolver("vllm_version", _of_version, replace=True)


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML, for `load` to read.

    Groups that belong to one task, and are not used here, are left out: a later default must not look like a setting.
    """
    fields = RunConfig.model_fields
    unused = {name for name in _TASK_GROUPS if getattr(config, name) == fields[name].get_default()}
    return yaml_text(config.model_dump(mode="json", exclude=unused))


def load(path: Path) -> RunConfig:
    """Reads a file of `to_yaml`. Text such as `${oc.env:HOME}` stays text: the file may be of another person.

    Raises:
        ConfigError: the file cannot be read, or does not hold a configuration of this version.
    """
    try:
        values = read_yaml(path)
    except DocumentError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no configuration")
    try:
        return validated(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def validated(values: Any) -> RunConfig:
    """Checks the values of a whole configuration; raises ConfigError as `parse` does."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def explain_override(key: str) -> str | None:
    """One line about a dotted key that the schema lacks; None when it has the key, or the key is Hydra's own."""
    if key == "model.config":
        return "model.config: belongs to model=hf only"
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
        return unknown_name(key, allowed)
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
