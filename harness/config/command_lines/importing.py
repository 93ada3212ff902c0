"""Arguments of run.py with a command line of another tool in the place of overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.config.command_lines import KEYS
from harness.config.command_lines.option_names import with_options
from harness.config.command_lines.sglang import import_line as sglang_import
from harness.config.command_lines.translation import Translation
from harness.config.command_lines.trtllm import import_line as trtllm_import
from harness.config.command_lines.vllm import fleet_lines as vllm_import
from harness.config.composing import CONF
from harness.errors import ConfigError

_TRANSLATE = dict(zip(KEYS, (vllm_import.translate, sglang_import.translate, trtllm_import.translate), strict=True))


def expand(arguments: Sequence[str], folders: Sequence[Path] = (CONF,)) -> Translation:
    """The arguments of run.py with `import_vllm=...` or that of another tool replaced by overrides, which yield to all
    that is given beside it, and names of models and devices by the options they mean. `import_vllm` may be given
    several times, for several servers.

    Args:
        folders: configuration trees, whose models are known by their names on Hugging Face.

    Raises:
        ConfigError: there are several of them, or as of the translation.
    """
    arguments = with_options(arguments, folders)
    commands = [(key, text.partition("=")[2]) for text in arguments for key in KEYS if text.startswith(f"{key}=")]
    if not commands:
        return Translation(arguments, [])
    key = commands[0][0]
    if len(commands) > 1 and (key != KEYS[0] or any(other != key for other, _ in commands)):
        raise ConfigError(f"{key}: given {len(commands)} times; one run has one command line")
    others = [text for text in arguments if text.partition("=")[0] not in KEYS]
    given = {text.lstrip("+~").partition("=")[0] for text in others if "=" in text and not text.startswith("-")}
    imported, notes = _TRANSLATE[key]("\n".join(text for _, text in commands), given, folders)
    at = next((index for index, text in enumerate(others) if "=" in text and not text.startswith("-")), len(others))
    return Translation([*others[:at], *imported, *others[at:]], notes)
