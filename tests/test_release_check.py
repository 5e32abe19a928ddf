"""The check of a release finds what must not be in a wheel, and what is missing there."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.release.contents import NATIVE, PACKAGES, package_problems, same_contents, wheel_problems

ROOT = Path(__file__).parents[1]
WHOLE = {
    str(path.relative_to(ROOT))
    for package in (*PACKAGES, "share")
    for path in (ROOT / package).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".cpp", ".hpp", ".so")
}
METADATA = "Metadata-Version: 2.4\nVersion: {}\nLicense-Expression: Apache-2.0\nRequires-Python: >=3.11\n\n"


def wheel(folder, names=WHOLE, version="0.1.0", compiled=NATIVE):
    """Return the path of a wheel with empty files: those of `names`, the compiled one, and its metadata."""
    path = folder / f"torch_workbench-{version}.whl"
    info = "torch_workbench-0.1.0"
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted({*names, compiled}):
            archive.writestr(f"{info}.data/data/{name}" if name.startswith("share/") else name, "")
        archive.writestr(f"{info}.dist-info/METADATA", METADATA.format(version))
        archive.writestr(f"{info}.dist-info/entry_points.txt", "")
        archive.writestr(f"{info}.dist-info/licenses/LICENSE", "")
    return path


@pytest.fixture(autouse=True)
def _first_version(monkeypatch):
    """Keep these tests independent of the version of today."""
    monkeypatch.setattr("benchmarks.release.contents.project_of", lambda root: PROJECT)


PROJECT = {"name": "torch-workbench", "version": "0.1.0", "license": "Apache-2.0", "requires-python": ">=3.11"}


def test_a_whole_wheel_has_no_problem(tmp_path):
    assert list(wheel_problems(wheel(tmp_path), ROOT, WHOLE)) == []


@pytest.mark.parametrize(
    "name",
    ["workbench/native.so", "analyzers/tests/test_it.py", "trainer/dump.pickle", "workbench/__pycache__/cli.pyc"],
)
def test_what_users_do_not_need_is_named(name, tmp_path):
    found = list(wheel_problems(wheel(tmp_path, WHOLE | {name}), ROOT, WHOLE | {name}))
    assert found == [f"the wheel has {name}, which users do not need"]


@pytest.mark.parametrize("name", ["workbench/py.typed", "workbench/web/assets/plotly.js"])
def test_what_is_missing_is_named(name):
    assert next(package_problems(WHOLE - {name}, WHOLE - {name})) == f"the wheel has no {name}"


@pytest.mark.parametrize("name", ["share/man/man1/workbench.1", "analyzers/words.py"])
def test_each_tracked_file_is_in_the_wheel(name, tmp_path):
    [problem] = wheel_problems(wheel(tmp_path, WHOLE - {name}), ROOT, WHOLE)
    assert problem.endswith("is missing in the wheel")
    assert name.rpartition("/")[2] in problem


def test_a_wheel_without_the_native_readers_or_with_other_compiled_code_is_named(tmp_path):
    found = list(wheel_problems(wheel(tmp_path, compiled="analyzers/native/other.so"), ROOT, WHOLE))
    assert found[0] == f"the wheel has no {NATIVE}: was there a C++ compiler?"
    assert found[-1] == "the wheel has analyzers/native/other.so, which users do not need"


def test_strange_folders_and_another_version_are_named(tmp_path):
    found = list(wheel_problems(wheel(tmp_path, WHOLE | {"tests/conftest.py"}, "0.2.0"), ROOT, WHOLE))
    assert found == ["the wheel says Version: 0.2.0, pyproject.toml 0.1.0", "the wheel has a top-level tests"]


def test_two_wheels_that_differ_are_named(tmp_path):
    other = wheel(tmp_path, WHOLE - {"analyzers/words.py"}, "0.2.0")
    found = list(same_contents(wheel(tmp_path), other))
    assert found[0] == "the wheel of the source archive has another analyzers/words.py"
    assert len(found) == 2  # and METADATA, which has the version
