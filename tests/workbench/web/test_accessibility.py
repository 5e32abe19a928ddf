"""Test the dashboard for people who cannot see it or have no mouse: axe-core's rules, the keyboard, contrast."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from meshes import meshes
from recordings import recordings

from analyzers import compare, parity
from analyzers.run import discover
from analyzers.store import Options
from workbench.colours import CATEGORIES, text_colour
from workbench.web.served_run import ServedRun

pytestmark = pytest.mark.browser
FIXTURES = Path(__file__).parents[2] / "fixtures"
LINE = "source?at=trainer/models/llama3/model.py:61"
PAGES = [
    ("oom_2ranks", "", "#verdict"),
    ("oom_2ranks", "memory?find=layers&since=9000&tab=changes", "#since .waterfalllayer"),
    ("oom_2ranks", "memory?colour=rank&under=1&tab=segments", "#blocks .heatmaplayer"),
    ("oom_2ranks", "hang?rank=1", "#matrix .heatmaplayer"),
    ("oom_2ranks", "steps?steps=2-5", "#loss .scatterlayer"),
    ("oom_2ranks", "config?key=lr", "table"),
    ("oom_2ranks", "logs", "#excerpt"),
    ("oom_2ranks", LINE, "ol.source"),
    ("straggler_data_2ranks", "", "#verdict"),
    ("straggler_data_2ranks", "trace?event=40&colour=phase&tab=ranks", "#lateness .heatmaplayer"),
    ("both", "", "#verdict"),
    ("both", "compare", "#both-loss .scatterlayer"),
    ("meshes", "parity", "#parity-3 .scatterlayer"),
    ("recorded", "bisect", "#bisect-operations .scatterlayer"),
]
"""The addresses of every page, with everything that it can show."""
EVERY_RULE = {"resultTypes": ["violations"]}
CONTRAST = EVERY_RULE | {"runOnly": ["color-contrast"]}
"""The rule of axe-core that depends on the theme."""


@pytest.fixture(scope="module")
def sites(serving, tmp_path_factory):
    """Fixture: the addresses of dashboards of two runs, and of their comparison."""
    runs = {name: discover(FIXTURES / name) for name in ("oom_2ranks", "straggler_data_2ranks")}
    compared = compare.analyze(*runs.values())
    both = ServedRun(runs["oom_2ranks"], Options(), compared, runs["straggler_data_2ranks"])
    runs["meshes"] = discover(meshes(tmp_path_factory.mktemp("parity")))
    recorded = tuple(map(discover, recordings(tmp_path_factory.mktemp("recorded"))))
    bisected = ServedRun(recorded[0], Options(), parity.bisect(*recorded), recorded[1])
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(shown, tmp_path_factory.mktemp("dropped")))
            for name, shown in {**runs, "both": both, "recorded": bisected}.items()
        }


@pytest.mark.parametrize(("name", "address", "drawn"), PAGES)
def test_a_page_is_accessible_and_fits_a_telephone(sites, page_of, name, address, drawn):
    """Axe finds no fault in either theme; 390 pixels wide, only tables and sources scroll to the side."""
    from axe_playwright_python.sync_playwright import Axe

    page = page_of(sites[name])
    page.goto(f"{sites[name]}/{address}")
    page.wait_for_selector(drawn)
    page.wait_for_load_state("networkidle")
    for scheme, rules in (("light", EVERY_RULE), ("dark", CONTRAST)):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_load_state("networkidle")
        found = Axe().run(page, options=rules)
        assert found.violations_count == 0, f"{scheme}: {found.generate_report()}"
    unlabelled = page.locator("figure:not([aria-label])").count()
    assert unlabelled == 0
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector(drawn)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_keyboard_reaches_every_page(site, page):
    """Tab goes from the header to the links of the rail in order; Enter follows one."""
    page.goto(site)
    page.wait_for_selector("#verdict")
    page.focus("#show-keys")
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Memory"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#timeline .scatterlayer .trace")


def test_a_field_with_the_focus_has_an_outline(site, page):
    """Every field of every page has one, also those that Dash draws."""
    for address, fields in (("memory", ["#steps", "#entry", "#find"]), ("config", ["#key"])):
        page.goto(f"{site}/{address}")
        for field in fields:
            page.wait_for_selector(field)
            page.focus(field)
            outlines = page.evaluate(
                """() => [document.activeElement, document.activeElement.parentElement]
                    .map(one => getComputedStyle(one)).filter(style => style.outlineStyle === "solid").length"""
            )
            assert outlines, field


def test_a_question_mark_opens_and_closes_the_list_of_keys(site, page):
    """Escape closes it, too, and gives the focus back; in a field it is a letter like any other."""
    page.goto(f"{site}/memory")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    keys = page.locator("#keys")
    page.focus("#copy")
    page.keyboard.press("?")
    assert keys.is_visible()
    assert "show everything" in keys.inner_text()
    page.keyboard.press("?")
    assert not keys.is_visible()
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    assert not keys.is_visible()
    assert page.evaluate("document.activeElement.id") == "copy"
    page.click("#show-keys")
    assert keys.is_visible()
    page.click("#close-keys")
    assert not keys.is_visible()
    page.focus("#find")
    page.keyboard.press("?")
    assert not keys.is_visible()


def test_the_first_tab_leads_past_header_and_sidebar(site, page):
    page.goto(site)
    page.wait_for_selector("#verdict")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    assert page.locator("#skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page"


def test_the_list_of_keys_is_accessible(site, page):
    from axe_playwright_python.sync_playwright import Axe

    page.goto(site)
    page.wait_for_selector("#verdict")
    page.click("#show-keys")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_load_state("networkidle")
        found = Axe().run(page, options=EVERY_RULE)
        assert found.violations_count == 0, f"{scheme}: {found.generate_report()}"


def test_the_menu_of_documents_closes_by_key_and_by_click(site, page):
    page.goto(site)
    page.wait_for_selector("#verdict")
    menu = page.locator("details.save-report")
    page.focus("details.save-report summary")
    page.keyboard.press("Enter")
    assert menu.evaluate("one => one.open")
    page.keyboard.press("Escape")
    assert not menu.evaluate("one => one.open")
    assert page.evaluate("document.activeElement.textContent") == "Save report"
    page.click("details.save-report summary")
    page.click("#verdict .sentence")
    assert not menu.evaluate("one => one.open")


def test_themes_turn_and_stay(site, page):
    page.emulate_media(color_scheme="light")
    page.goto(site)
    page.wait_for_selector("#verdict")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    page.wait_for_function(f"light => {paper} !== light", arg=light)
    page.reload()
    page.wait_for_selector("#verdict")
    assert page.evaluate(paper) != light


@pytest.mark.parametrize("colour", CATEGORIES.values())
def test_letters_on_colours_can_be_read(colour):
    """The contrast is at least 4.5 to 1, which is the level AA of WCAG 2.2."""

    def luminance(text):
        parts = [v / 255 for v in bytes.fromhex(text[1:])]
        linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(colour), luminance(text_colour(colour))))
    assert (high + 0.05) / (low + 0.05) >= 4.5
