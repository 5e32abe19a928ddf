"""The documentation agrees with the program."""

import doctest
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """Fixture: {page: its text} of every generated page, generated again."""
    patch = pytest.MonkeyPatch()
    patch.setenv("WORKBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    patch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield dict(module.pages())
    patch.undo()


def test_commands_settings_and_examples_are_true(refreshed):
    """If a generated page is out of date, `python docs/refresh.py` writes it again."""
    assert {path.name for path, text in refreshed.items() if path.read_text() != text} == set()


def test_each_command_has_a_manual_page(refreshed):
    """There is no page of a command that no longer exists."""
    pages = set((ROOT / "share" / "man" / "man1").iterdir())
    assert pages == {path for path in refreshed if path.suffix == ".1"}
    assert len(pages) > 20


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_manual_pages_are_formatted_without_a_warning():
    for page in sorted((ROOT / "share" / "man" / "man1").iterdir()):
        shown = subprocess.run(
            ["groff", "-man", "-ww", "-Tascii", "-P-cbou", page], capture_output=True, text=True, check=True
        )
        assert (shown.stderr, "SYNOPSIS" in shown.stdout) == ("", True), page.name


def test_tutorials_show_what_is_printed(refreshed):
    """Each tutorial runs at least one command for real."""
    for path in (ROOT / "docs" / "tutorials").glob("*.md"):
        assert "```console\n$ workbench " in refreshed[path]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_bill_of_materials_is_what_the_constraints_pin():
    """All that users get is pinned, except pip and setuptools; `installs.py --sbom` writes the bill again."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    materials = json.loads((ROOT / "docs" / "reference" / "sbom.cdx.json").read_text())["components"]
    versions = {part["name"]: part["version"] for part in materials if part["name"] not in ("pip", "setuptools")}
    assert versions.items() <= pinned.items()
    assert {"dash", "numpy", "waitress"} <= versions.keys()


def test_the_library_page_is_true(tmp_path, monkeypatch):
    """Every example of the page on the library runs, and prints what the page says."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.chdir(ROOT)
    page = str(ROOT / "docs" / "reference" / "library.md")
    failed, tried = doctest.testfile(page, module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (failed, tried > 20) == (0, True)
