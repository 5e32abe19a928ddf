"""The dashboard for those who do not see it, or have no mouse: axe-core's rules, the keyboard, contrast."""

import pytest

from workbench.palette import CATEGORIES, ink

pytestmark = pytest.mark.browser
PAGES = {
    "": "#verdict",
    "memory": "#blocks .heatmaplayer",
    "hang": "#matrix .heatmaplayer",
    "steps": "#loss .scatterlayer",
}


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(site, page, name):
    from axe_playwright_python.sync_playwright import Axe

    page.goto(f"{site}/{name}")
    page.wait_for_selector(PAGES[name])
    page.wait_for_load_state("networkidle")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{scheme}: {found.generate_report()}"


def test_the_keyboard_reaches_every_page(site, page):
    """Tab comes to the links of the header in order; Enter follows one."""
    page.goto(site)
    page.wait_for_selector("#verdict")
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Memory"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#timeline .scatterlayer .trace")


def test_themes_turn_and_stay(site, page):
    page.emulate_media(color_scheme="light")
    page.goto(site)
    page.wait_for_selector("#verdict")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != light
    page.reload()
    page.wait_for_selector("#verdict")
    assert page.evaluate(paper) != light


@pytest.mark.parametrize("colour", CATEGORIES.values())
def test_letters_on_colours_can_be_read(colour):
    """At least 4.5 to 1, the AA level of WCAG 2.2."""

    def luminance(text):
        parts = [v / 255 for v in bytes.fromhex(text[1:])]
        linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(colour), luminance(ink(colour))))
    assert (high + 0.05) / (low + 0.05) >= 4.5
