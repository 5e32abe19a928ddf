"""The table of a run's files: the paths that it shows."""

from pathlib import Path

from analyzers.run import discover
from workbench.present.tables.run import file_list, shared_folder

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_files_of_two_runs_are_named_from_the_folder_that_the_runs_share():
    """A whole path says less, and does not fit."""
    runs = [discover(FIXTURES / name) for name in ("healthy_2ranks", "leak_2ranks")]
    names = [row[-1] for row in file_list(runs).rows]
    assert "healthy_2ranks/run.json" in names
    assert all(not name.startswith("/") for name in names)


def test_files_of_one_run_are_named_from_the_run():
    assert "run.json" in [row[-1] for row in file_list([discover(FIXTURES / "healthy_2ranks")]).rows]


def test_runs_without_a_common_folder_share_the_root():
    assert shared_folder([Path("/a/b"), Path("/a/c/d")]) == Path("/a")
    assert shared_folder([Path("a"), Path("/a")]) == shared_folder([]) == Path("/")
