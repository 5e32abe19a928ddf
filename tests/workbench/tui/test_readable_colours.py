"""Signs and data in the terminal are readable on the background of each theme, and their hues remain distinct."""

import math
from itertools import combinations

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from terminal import app_on, press, settle
from workbench.colours import (
    COLLECTIVE_STATES,
    DARK,
    LIVE_STATES,
    SERVES,
    SEVERITIES,
    STATUSES,
    TEXT_ERROR,
    TEXT_WARNING,
    contrast,
)
from workbench.tui.readable_colours import SHADES, SWATCH, TEXT, LightShades, is_text, oklab
from workbench.tui.terminal_app import ON_DARK, ON_LIGHT, THEMES

EVERY_THEME = [theme for theme in (*BUILTIN_THEMES.values(), *THEMES) if not theme.name.startswith("ansi")]
SIGNS = {colour for table in (COLLECTIVE_STATES, LIVE_STATES, SEVERITIES, STATUSES) for colour in table.values()}
SERIES = {DARK.hues[hue] for hue in SERVES}


def backgrounds(theme):
    """Return the backgrounds on which a theme draws signs: the page, and the surface of lists and tables."""
    variables = theme.to_color_system().generate()
    return {variables["background"], variables["surface"]}


def drawn(theme, page, text, **style):
    """Return the style of a text in the colours of the dark theme as the app draws it on `page`."""
    segments = [Segment(text, Style(**style))]
    for line_filter in ON_DARK if theme.dark else ON_LIGHT:
        segments = line_filter.apply(segments, Color.parse(page))
    return segments[0].style


@pytest.mark.parametrize("theme", EVERY_THEME, ids=lambda theme: theme.name)
def test_signs_and_data_have_enough_contrast(theme):
    for page in backgrounds(theme):
        for colour in SIGNS | SERIES:
            assert contrast(drawn(theme, page, "▲ ", color=colour).color.triplet.hex, page) >= TEXT
        for colour in SERIES | set(DARK.categories.values()) | set(DARK.kinds.values()):
            assert contrast(drawn(theme, page, "⣀█ ", color=colour).color.triplet.hex, page) >= SWATCH
            cell = drawn(theme, page, "A", color="#000000", bgcolor=colour)
            assert contrast(cell.bgcolor.triplet.hex, page) >= SWATCH
            assert contrast(cell.color.triplet.hex, cell.bgcolor.triplet.hex) >= TEXT


@pytest.mark.parametrize("theme", EVERY_THEME, ids=lambda theme: theme.name)
def test_hues_do_not_meet(theme):
    """Signs, which differ by their shapes as well, and the categories of memory as areas."""
    page = theme.to_color_system().generate()["background"]
    signs = {
        colour: drawn(theme, page, "▲", color=colour).color.triplet.hex
        for colour in SERIES | {TEXT_ERROR, TEXT_WARNING}
    }
    areas = {colour: drawn(theme, page, "█", color=colour).color.triplet.hex for colour in DARK.categories.values()}
    for shades, least in ((signs, 4.5), (areas, 6)):
        for one, other in combinations(shades.values(), 2):
            assert 100 * math.dist(oklab(one), oklab(other)) >= least


@pytest.mark.parametrize("theme", ["textual-light", "nord", "solarized-light", "high-contrast-light"])
async def test_whole_screens_are_readable(fixtures, theme):
    app = app_on(fixtures / "stuck_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        app.theme = theme
        for key in ("1", "3", "5"):
            await press(app, pilot, key)
            for segment in (part for strip in app.screen._compositor.render_strips() for part in strip):
                front, back = segment.style.color, segment.style.bgcolor
                if front and back and is_text(segment.text) and back.triplet.hex != front.triplet.hex:
                    original = front.triplet.hex in SHADES
                    assert not original or contrast(front.triplet.hex, back.triplet.hex) >= TEXT, segment


def test_colours_that_are_readable_stay():
    segment = Segment("▲", Style(color=DARK.hues["green"]))
    assert ON_DARK[0].apply([segment], Color.parse("#121212"))[0].style.color.triplet.hex == DARK.hues["green"]
    light = LightShades().apply([Segment("plain text")], Color.parse("#ffffff"))
    assert ON_LIGHT[1].apply(light, Color.parse("#ffffff")) == [Segment("plain text")]
