"""The themes of the terminal app: a neutral selection, and themes of high contrast."""

import os
import subprocess
import sys

import pytest
from textual.color import Color

from terminal import app_on, press, settle
from workbench.tui.terminal_app import THEMES

START = """
from pathlib import Path
from workbench.watch.app import WatchApp
print(WatchApp(Path("x")).stylesheet._variables)
"""


def styles_of(app, word):
    """Return the styles in which the first word on the screen that equals `word` is drawn."""
    strips = app.screen._compositor.render_strips()
    return [segment.style for strip in strips[: app.size.height] for segment in strip if word in segment.text]


async def test_the_selected_finding_has_no_colour_of_its_own(oom):
    """Red on the colour of the selection could not be read; the line below keeps its red sign."""
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        before = [style.color.triplet for style in styles_of(app, "✗ ")]
        await press(app, pilot, "down")
        findings = app.query_one("#findings")
        first, second = (findings.get_option_at_index(i).prompt for i in (0, 1))
        assert first.spans
        assert not second.spans
        assert before


@pytest.mark.parametrize("theme", ["textual-dark", "nord", "solarized-light", *(theme.name for theme in THEMES)])
async def test_the_selection_is_neutral_in_every_theme(oom, theme):
    """It is drawn in the colours of the text, exchanged: their contrast is that of the text itself."""
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await settle(app, pilot)
        variables = app.get_css_variables()
        assert variables["block-cursor-background"] == variables["foreground"]
        assert variables["block-cursor-foreground"] == variables["background"]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "nord"])
async def test_the_border_of_the_focused_chart_is_neutral(oom, theme):
    """Many themes have an accent colour near that of warnings."""
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await press(app, pilot, "", "3")
        matrix = app.query_one("#matrix")
        matrix.focus()
        await settle(app, pilot)
        assert matrix.styles.border_left[1].hex == Color.parse(app.get_css_variables()["foreground"]).hex


async def test_high_contrast_has_no_faint_text(oom):
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        app.theme = "high-contrast"
        await settle(app, pilot)
        strips = app.screen._compositor.render_strips()
        texts = [
            segment
            for strip in strips
            for segment in app_lines(app, strip)
            if segment.text.strip() == "confidence 100 %"
        ]
        assert [Color.from_rich_color(segment.style.color).hex for segment in texts] == ["#FFFFFF"]
        assert {tab.styles.color.hex for tab in app.query("Tab")} == {"#FFFFFF"}


def app_lines(app, strip):
    """Return the segments of a line as the terminal gets them."""
    return list(strip.apply_filter(app.get_line_filters()[0], Color.parse("black")))


def test_the_environment_can_select_it():
    told = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True,
        env={**os.environ, "TEXTUAL_THEME": "high-contrast"},
    )  # fmt: skip
    assert "'background': '#000000'" in told.stdout


def luminance(colour):
    """Return the relative luminance of a colour, as the guidelines for web accessibility define it."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


async def test_signs_of_warnings_are_readable_in_the_light_theme(fixtures):
    """Amber on the grey of the list of findings had a contrast of 1.8 to 1."""
    app = app_on(fixtures / "straggler_data_4ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        app.theme = "textual-light"
        await settle(app, pilot)
        signs = [style for style in styles_of(app, "! ") if not style.reverse]
        assert len(signs) >= 3
        for style in signs:
            front, back = (luminance(Color(*shade.triplet)) for shade in (style.color, style.bgcolor))
            assert (max(front, back) + 0.05) / (min(front, back) + 0.05) >= 4.5
