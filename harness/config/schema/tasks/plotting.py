"""Configuration of figures and comparisons: formats and sizes, and what task=plot draws over what."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from harness.config.schema.base import ConfigModel, Text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Formats = Annotated[tuple[Literal["png", "svg", "pdf"], ...], Field(strict=False, min_length=1)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_as_list), Field(strict=False)]


class PlotConfig(ConfigModel):
    """Figures are written in all `formats`, as wide as a column or a page of a paper (`width`). Without formats figures
    of runs and comparisons are on their pages only, as drawing files takes longer than a short simulation; all others,
    and the comparison whose axes are chosen, are PNG files.

    task=plot draws `y` over `x`, with a colour for each value of `color` and a panel for each of `facet`; all are
    columns of comparison.csv. `log` names the logarithmic axes. `labels` replaces names in the figures by other text.
    """

    formats: Annotated[_Formats | None, BeforeValidator(_as_list)] = None
    width: Literal["column", "page"] = "page"
    x: Text | None = None
    y: Texts = ()
    color: Text | None = None
    facet: Text | None = None
    log: Literal["none", "x", "y", "xy"] | None = None
    labels: dict[str, str] | None = None

    @property
    def file_formats(self) -> Sequence[str]:
        """Formats of the files of a figure that is drawn."""
        return self.formats or ("png",)

    @property
    def has_axes(self) -> bool:
        """Whether it chooses what a comparison shows."""
        return bool(self.x or self.y or self.color or self.facet)

    def name(self, text: str) -> str:
        """The text that stands for `text` in figures."""
        return (self.labels or {}).get(text, text)


AS_USUAL = PlotConfig.model_construct()  # nothing to check, which takes time at each start


class ReportConfig(ConfigModel):
    """`baseline` is the configuration that comparisons take differences from: its label, the name of one of its runs,
    or its index; None takes the first that was given."""

    baseline: Text | int | None = None
