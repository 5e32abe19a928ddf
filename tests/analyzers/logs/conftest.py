"""The cases as files."""

from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def log_of(tmp_path):
    """A function from a case to the path of its log or log folder."""

    def path(case):
        if case.text:
            file = tmp_path / f"{case.name}.log"
            file.write_text(case.text)
            return file
        folder = RECORDED / case.name
        return folder if folder.is_dir() else RECORDED / f"{case.name}.log"

    return path
