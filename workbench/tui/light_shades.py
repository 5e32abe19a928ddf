"""Show the light theme: replace the colours of the dark theme in each line that the terminal app draws."""

from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as Background
from textual.filter import LineFilter

from workbench.colours import DARK, LIGHT, ON_LIGHT, text_colour

SHADES = (
    {DARK.hues[hue]: LIGHT.hues[hue] for hue in DARK.hues} | dict(zip(DARK.heat, LIGHT.heat, strict=True)) | ON_LIGHT
)
"""{colour of the dark theme: colour of the light theme with the same meaning}."""
ON_COLOUR = {"#000000", "#ffffff"}
"""The colours of text on a cell with a colour."""


class LightShades(LineFilter):
    """Replaces the colours of the dark theme by those of the light theme, for themes with a light background.

    Widgets always choose the colours of the dark theme. They are replaced when a line is drawn, so all widgets change
    at once when the user selects another theme.
    """

    def apply(self, segments: list[Segment], background: Background) -> list[Segment]:  # noqa: ARG002 - of the base
        return [segment if segment.style is None else _shaded(segment, segment.style) for segment in segments]


def _shaded(segment: Segment, style: Style) -> Segment:
    return Segment(segment.text, _light_style(style), segment.control)


@lru_cache(2048)
def _light_style(style: Style) -> Style:
    front, back = light(style.color), light(style.bgcolor)
    if back and style.color and hex_of(style.color) in ON_COLOUR:
        front = text_colour(back)
    return style + Style(color=front, bgcolor=back) if front or back else style


def light(colour: Color | None) -> str | None:
    return SHADES.get(hex_of(colour)) if colour else None


def hex_of(colour: Color) -> str:
    return colour.triplet.hex if colour.triplet else ""
