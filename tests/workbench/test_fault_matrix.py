"""Several things wrong at once: locale, streams, permissions, cache and disk."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import privileges
import pytest

STUCK = Path(__file__).parents[1] / "fixtures" / "stuck_2ranks"
LOCALES = (
    {"PYTHONUTF8": "1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
)
STREAMS = ("", ">/dev/full", ">&-")
CACHES = ("writable", "not ours to write", "a file in its place")
CLOSED = {"": "host_stuck", "run.json": "host_stuck", "dumps/rank_1": "collective_timeout"}
"""The file of the run that may not be read, and what the others show."""
PAIRS = [(a, b, (a + b) % 3, (a + 2 * b) % 3) for a in range(3) for b in range(3)]
"""Each of the three values of a factor meets each of any other factor once (an orthogonal array, L9)."""
ROOM = 1 << 10
"""Less than an entry of the cache takes."""


def make_cache(kind, path):
    if kind == "a file in its place":
        path.write_text("of somebody else")
    else:
        path.mkdir(mode=0o755 if kind == "writable" else 0o555)
    return {"WORKBENCH_CACHE": str(path)}


def limit(room):
    privileges.drop()
    if room:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


def run(folder, stream, environment, room=None):
    line = f'"$0" -m workbench inspect "$1" --json {stream}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, str(folder)],
        capture_output=True, check=False, timeout=240, env=os.environ | environment, preexec_fn=lambda: limit(room),
    )  # fmt: skip


@pytest.mark.parametrize(("locale", "stream", "cache", "closed"), PAIRS)
def test_any_two_faults_together_cost_no_part_of_the_answer(tmp_path, locale, stream, cache, closed):
    folder = Path(shutil.copytree(STUCK, tmp_path / "run"))
    name, kind = list(CLOSED.items())[closed]
    if name:
        (folder / name).chmod(0)
    ended = run(folder, STREAMS[stream], LOCALES[locale] | make_cache(CACHES[cache], tmp_path / "cache"))
    assert ended.returncode == (3 if STREAMS[stream] else 0), ended.stderr
    assert (b"error: " in ended.stderr) is bool(STREAMS[stream])
    assert (b"hint: do not close stdout" in ended.stderr) is (STREAMS[stream] == ">&-")
    assert b"Traceback" not in ended.stderr
    assert (b"the cache cannot be written" in ended.stderr) is (CACHES[cache] != "writable")
    if not STREAMS[stream]:
        verdict = json.loads(ended.stdout)["verdict"]
        assert verdict["class"] == kind
        assert "no folder for the cache can be written to" not in verdict["missing"]
        assert not name or f"{folder / name}: Permission denied" in verdict["missing"]


@pytest.mark.parametrize(("locale", "cache"), list(zip(LOCALES, CACHES, strict=True)))
def test_without_room_on_any_disk_the_answer_names_what_it_lacks(tmp_path, locale, cache):
    """Stacks and exit files need no room: what they show is said, and that dumps and logs could not be read."""
    ended = run(STUCK, "", locale | make_cache(cache, tmp_path / "cache"), ROOM)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False), ended.stderr
    verdict = json.loads(ended.stdout)["verdict"]
    assert (verdict["class"], verdict["ranks"]) == ("host_stuck", [1])
    assert "no folder for the cache can be written to" in verdict["missing"]
    assert any("no log could be read" in text for text in verdict["missing"])
