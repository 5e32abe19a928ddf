"""Files of other people's jobs through the real command line: analysed, or refused with two lines."""

import json
from pathlib import Path

import pytest
from command_line import run

from wild import DATA

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for room in ("memory", "traces")
    for path in DATA.glob(f"{room}/**/*")
    if path.is_file() and path.stat().st_size
)


@pytest.mark.real
@pytest.mark.skipif(not FILES, reason="no artefacts of other jobs here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_inspect_analyses_or_refuses(path, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    ended = run("inspect", path, "--json")
    assert "Traceback" not in ended.stderr
    if ended.returncode == 3:
        assert [line.split(":")[0] for line in ended.stderr.strip().splitlines()[-2:]] == ["error", "hint"]
        return
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["schema"] in ("workbench.memory/1", "workbench.trace/1")
    assert document["verdict"]["sentence"]
