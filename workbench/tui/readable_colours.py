"""Give the colours of signs and data enough contrast with the background of any theme.

A theme of Textual may have any background, and a fixed colour may be too faint on it. Such a colour is drawn lighter on
a dark background, and darker on a light background. Its hue stays, because the hue has a meaning.
"""

import math
from functools import lru_cache

from rich.color import Color as Colour
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from workbench.colours import (
    COLLECTIVE_STATES,
    DARK,
    LIGHT,
    LIVE_STATES,
    ON_LIGHT,
    SERVES,
    SEVERITIES,
    STATUSES,
    contrast,
    linear_rgb,
    text_colour,
)

_LIGHT_SHADES = (
    {DARK.hues[hue]: LIGHT.hues[hue] for hue in DARK.hues} | dict(zip(DARK.heat, LIGHT.heat, strict=True)) | ON_LIGHT
)
"""{colour of the dark theme: colour of the light theme with the same meaning}."""
_ON_COLOUR = {"#000000", "#ffffff"}
"""The colours of text on a cell with a colour."""


class LightShades(LineFilter):
    """Replaces the colours of the dark theme by those of the light theme, for themes with a light background.

    Widgets always choose the colours of the dark theme. They are replaced when a line is drawn, so all widgets change
    at once when the user selects another theme.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - of the base
        return [segment if segment.style is None else _shaded(segment, segment.style) for segment in segments]


def _shaded(segment: Segment, style: Style) -> Segment:
    return Segment(segment.text, _light_style(style), segment.control)


@lru_cache(2048)
def _light_style(style: Style) -> Style:
    front, back = light(style.color), light(style.bgcolor)
    if back and style.color and _hex_of(style.color) in _ON_COLOUR:
        front = text_colour(back)
    return style + Style(color=front, bgcolor=back) if front or back else style


def light(colour: Colour | None) -> str | None:
    return _LIGHT_SHADES.get(_hex_of(colour)) if colour else None


def _hex_of(colour: Colour) -> str:
    return colour.triplet.hex if colour.triplet else ""


TEXT, SWATCH = 4.5, 3.0
"""The lowest contrast of signs and text, and of coloured areas and lines (WCAG 2.2, 1.4.3 and 1.4.11)."""
_GREYS = {theme.hues["grey"]: 5.0 for theme in (LIGHT, DARK)}
"""The lowest contrast of areas of the hue `grey`; with less, they would look like those of the hue `pale`."""
_MEANINGS = (*SERVES, "pale", "empty", "error", "warning")
"""The hues that have a meaning; the others belong to the pages."""
SHADES = frozenset(
    {theme.hues[hue] for theme in (LIGHT, DARK) for hue in _MEANINGS}
    | {colour for table in (COLLECTIVE_STATES, LIVE_STATES, SEVERITIES, STATUSES) for colour in table.values()}
    | set(ON_LIGHT.values())
)
"""The colours of signs and data in both themes."""
_DRAWN = "\u2500", "\u259f"
"""The first and the last of the characters that draw lines and areas."""
_BRAILLE = "\u2800", "\u28ff"
STEPS = 100


class ReadableColours(LineFilter):
    """Changes the colours of signs and data so that they have enough contrast with their background."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._page = page

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        page = self._page if background.ansi is not None else background.hex6.lower()
        return [
            segment if segment.style is None else Segment(segment.text, readable(segment, page), segment.control)
            for segment in segments
        ]


def readable(segment: Segment, page: str) -> Style | None:
    """Return the style of a segment with colours that can be read on the background `page`."""
    style = segment.style
    front, back = style and style.color, style and style.bgcolor
    if style is None or not {_hex_of(colour) for colour in (front, back) if colour} & SHADES:
        return style
    return _readable_style(style, page, is_text(segment.text))


@lru_cache(4096)
def _readable_style(style: Style, page: str, with_text: bool) -> Style:
    """Return a style with enough contrast to its background; `with_text` asks for the contrast that text needs."""
    front, back = (_hex_of(colour) if colour else "" for colour in (style.color, style.bgcolor))
    if back in SHADES:
        area = _area_colour(back, page)
        other = _area_colour(front, page) if front in SHADES else front
        return style + Style(bgcolor=area, color=text_colour(area) if front in _ON_COLOUR else other or None)
    page = back or page
    return style + Style(color=_with_contrast(front, page, TEXT) if with_text else _area_colour(front, page))


def _area_colour(colour: str, page: str) -> str:
    return _with_contrast(colour, page, _GREYS.get(colour, SWATCH))


def is_text(text: str) -> bool:
    """Return whether a text has characters to read, and not only characters that draw areas and lines."""
    return any(
        not (character == " " or any(low <= character <= high for low, high in (_DRAWN, _BRAILLE)))
        for character in text
    )


@lru_cache(4096)
def _with_contrast(colour: str, page: str, least: float) -> str:
    """Return the shade of `colour` that has the contrast `least` with `page`, as close in lightness as possible.

    The hue stays the same.
    """
    if contrast(colour, page) >= least:
        return colour
    lightness, *chroma = oklab(colour)
    towards = 1.0 if text_colour(page) == "#ffffff" else 0.0
    shades = (
        _in_gamut(lightness + (towards - lightness) * step / STEPS, chroma[0], chroma[1]) for step in range(1, STEPS)
    )
    return next((shade for shade in shades if contrast(shade, page) >= least), text_colour(page))


def oklab(colour: str) -> tuple[float, float, float]:
    """Return (lightness, a, b) of a colour in OKLab (https://bottosson.github.io/posts/oklab/)."""
    red, green, blue = linear_rgb(colour)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _in_gamut(lightness: float, a: float, b: float) -> str:
    """Return as `#rrggbb` the colour with this lightness and hue, made less saturated if a screen cannot show it."""
    for share in range(20, -1, -1):
        linear = _linear_of_oklab(lightness, a * share / 20, b * share / 20)
        if all(-0.001 <= part <= 1.001 for part in linear):
            break
    return "#" + "".join(f"{round(255 * gamma(min(max(part, 0.0), 1.0))):02x}" for part in linear)


def _linear_of_oklab(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    """Return linear (red, green, blue) of an OKLab colour; a value outside 0 to 1 cannot be shown on a screen."""
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def gamma(intensity: float) -> float:
    return 12.92 * intensity if intensity <= 0.0031308 else 1.055 * intensity ** (1 / 2.4) - 0.055
