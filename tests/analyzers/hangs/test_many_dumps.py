"""Dumps of thousands of ranks are read in parts: the answer is the same, comes early, and survives an interruption."""

import pytest

from analyzers import hangs, run, store
from analyzers.hangs.reading import job
from analyzers.store import Progress


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(job, "DUMPS_OF_A_CHILD", 16)


class Watcher(Progress):
    """Keeps all first answers; the first of them may interrupt the reading."""

    def __init__(self, interrupted=False):
        super().__init__()
        self.interrupted, self.answers = interrupted, []

    def answer(self, files, sentence):
        self.answers.append((files, sentence))
        if self.interrupted:
            raise KeyboardInterrupt


@pytest.mark.parametrize("group", ["tp", "dp"])
@pytest.mark.parametrize("kind", ["missing", "shape", "type", None])
def test_parts_give_the_answer_of_the_whole(folder, world, group, kind, monkeypatch):
    mesh = world(8, 4, 4)
    folder.write(mesh.dumps(kind, 81, group) if kind else mesh.dumps())
    whole = folder.report().json()
    monkeypatch.setattr(job, "DUMPS_OF_A_CHILD", 16)
    assert folder.report().json() == whole


@pytest.mark.parametrize("culprit", [5, 100])
def test_first_answers_name_a_culprit_as_soon_as_its_dump_is_read(folder, world, parts, culprit):
    watcher, mesh = Watcher(), world(8, 4, 4)
    folder.write(mesh.dumps("missing", culprit, "dp"))
    hangs.analyze(run.discover(folder.path), store.Options(progress=watcher, cache=False))
    assert [files for files, _ in watcher.answers] == [16, 32, 64]
    for files, sentence in watcher.answers:
        known = "Rank {culprit} is" if culprit < files else "no culprit among them yet"
        assert sentence.startswith(known.format(culprit=culprit))
    assert (watcher.wanted, watcher.read, watcher.cached) == (128, 128, 0)


def test_an_interrupted_reading_goes_on_from_the_cache(folder, world, parts):
    mesh = world(8, 4, 4)
    folder.write(mesh.dumps("shape", 81, "tp"))
    with pytest.raises(KeyboardInterrupt):
        hangs.analyze(run.discover(folder.path), store.Options(progress=Watcher(interrupted=True), jobs=1))
    again = Watcher()
    report = hangs.analyze(run.discover(folder.path), store.Options(progress=again, jobs=1))
    assert report.verdict.ranks == [81]
    assert again.cached >= 16
    assert again.cached + again.read == 128
