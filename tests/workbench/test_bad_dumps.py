"""Pass folders of dumps that are empty, wrong, damaged or hostile to the commands, like a user does."""

import os
import pickle

import pytest
from command_line import run

DUMP = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


BAD = {
    "nothing": ({}, "nothing of a known kind"),
    "something else": ({"notes.txt": b"hello"}, "nothing of a known kind"),
    "cut": ({"rank_0": pickle.dumps(DUMP)[:-9], "rank_1.json": b'{"pg_config": {"0"'}, "dump of rank 1 is unreadable"),
    "hostile": ({"rank_0": pickle.dumps(DUMP | {"entries": [Bomb()]})}, "the pickle asks to import"),
    "deep": ({"rank_0.json": b'{"pg_config":' + b"[" * 200_000}, "recursion"),
}


def hang(folder):
    return run("hang", folder)


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_read_is_said_in_two_lines(tmp_path, kind):
    """The exit status is 3, stderr has `error:` and `hint:`, stdout is empty, and no code of the file was run."""
    files, said = BAD[kind]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    ended = hang(tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    error, hint = ended.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert said in error
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_one_readable_dump_among_bad_ones_proves_nothing(tmp_path):
    (tmp_path / "rank_0").write_bytes(pickle.dumps(DUMP))
    (tmp_path / "rank_1").write_bytes(pickle.dumps(DUMP | {"entries": [Bomb()]}))
    said = " ".join(hang(tmp_path).stdout.split())
    assert "? unknown The dumps do not show who waits for whom" in said
    assert said.count("dump of rank 1 is unreadable: the pickle asks to import") == 1
