"""Which option of the group `device` people mean by the name of a GPU."""

import re
from collections.abc import Collection, Mapping

# Names without "NVIDIA" and the like, in small letters and digits only.
_COMMON = {
    "h100": "h100-80gb", "h100sxm": "h100-80gb", "h100sxm5": "h100-80gb", "h100sxm580gb": "h100-80gb",
    "h10080gbsxm": "h100-80gb", "h100hbm3": "h100-80gb", "h100pcie80gb": "h100-pcie", "h200sxm": "h200",
    "h200141gb": "h200", "b200sxm": "b200", "b300sxm": "b300", "a100": "a100-80gb", "a100sxm": "a100-80gb",
    "a100sxm4": "a100-80gb", "a100sxm80gb": "a100-80gb", "a100sxm40gb": "a100-40gb", "pro6000": "rtx-pro-6000",
    "rtx6000pro": "rtx-pro-6000", "rtxpro6000blackwell": "rtx-pro-6000", "3090": "rtx-3090", "4090": "rtx-4090",
    "5090": "rtx-5090", "a6000": "rtx-a6000", "h20sxm": "h20", "h2096gb": "h20",
}  # fmt: skip
_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|instinct|\bgpu\b", re.IGNORECASE)


def device_option(text: str, names: Mapping[str, str] | Collection[str]) -> str | None:
    """The option that a name means; None if it is none of them.

    Args:
        text: such as `H100`, `a100-80gb`, `RTX 4090` or `NVIDIA H100 80GB HBM3`.
        names: the options, with the names of their devices where these are known.
    """
    known = {_key(option): option for option in names}
    if isinstance(names, Mapping):
        known |= {_key(name): option for option, name in names.items()}
    key = _key(text)
    option = known.get(key) or _COMMON.get(key)
    return option if option in names else None


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text).lower())
