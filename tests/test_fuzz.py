"""Run mutated files through the whole program: some new ones, and all that ever failed (`tests/corpus`)."""

from pathlib import Path

import pytest

from workbench.command_options.options import Format

ROOT = Path(__file__).parents[1]
CORPUS = sorted(path for path in (ROOT / "tests" / "corpus").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def fuzz(script):
    return script("safety/fuzz")


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(1, 5), pytest.param(2, 15, marks=pytest.mark.slow), pytest.param(3, 60, marks=pytest.mark.rare)],
)
def test_new_inputs_are_answered_or_refused(fuzz, seed, seconds):
    """New inputs are tried for 20 s of processor time, and for a minute before a release."""
    tally = fuzz.run(seed=seed, seconds=seconds, inputs=10_000)
    assert not tally.failures
    assert tally.runs > 5
    assert tally.ends["refused"] < tally.runs / 2


@pytest.mark.parametrize("replay", ["replay", pytest.param("replay_in_terminal", marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder", CORPUS, ids=lambda folder: folder.name)
def test_what_failed_once_is_answered_or_refused(fuzz, folder, replay, tmp_path, monkeypatch):
    """Documents and pages, and among the slow tests the terminal app, show each input that made a run fail before."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    with fuzz.prepared():
        end, place = fuzz.outcome(lambda: getattr(fuzz, replay)(folder))
    assert end != "failed", place


def test_the_harness_notices_what_it_looks_for(fuzz):
    """The harness reports control characters, markup, constants that JSON does not have, and slow inputs."""
    from benchmarks.fuzzing.invariants import check_components, check_document
    from benchmarks.fuzzing.mutations import MARKUP

    for form, text in (
        (Format.TEXT, "a\x1b[31m"),
        (Format.MARKDOWN, f"| {MARKUP} |"),
        (Format.HTML, "\u202e"),
        (Format.JSON, "[NaN]"),
    ):
        end, place = fuzz.outcome(lambda form=form, text=text: check_document(form, text) or "answered")
        assert (end, place != "") == ("failed", True), form
    page = {"props": {"children": [{"props": {"children": "a\x1b[2J"}}]}}
    assert fuzz.outcome(lambda: check_components(page) or "answered")[0] == "failed"


@pytest.mark.parametrize("kind", ["snapshots", "dumps", "traces"])
def test_native_readers_agree_with_those_in_python(kind, tmp_path):
    pytest.importorskip("analyzers.native._readers", reason="not built: there was no C++ compiler")
    from benchmarks.safety.native_readers import PAIRS, compare

    [pair] = [pair for pair in PAIRS if pair.kind == kind]
    ends = compare(pair, 60, 2026, tmp_path)
    assert ends["differ"] == 0
    assert ends["equal"] > 10


def test_a_difference_of_a_native_reader_is_noticed(tmp_path, monkeypatch, capsys):
    native = pytest.importorskip("analyzers.native._readers", reason="not built: there was no C++ compiler")
    from benchmarks.safety import native_readers

    class Wrong:
        def read_dump(self, file, tail):
            return self.changed(native.read_dump(file, tail))

        def read_json_dump(self, text, tail):
            return self.changed(native.read_json_dump(text, tail))

        def changed(self, made):
            return made and (made[0], (made[1][0] + 1, made[1][1]))

    monkeypatch.setattr(native_readers.native, "installed_module", Wrong)
    [dumps] = [pair for pair in native_readers.PAIRS if pair.kind == "dumps"]
    ends = native_readers.compare(dumps, 20, 7, tmp_path)
    assert ends["differ"] > 5
    assert ends["equal"] < ends["differ"]  # files without entries, or with errors
    assert len(list(tmp_path.glob("dumps_7_*"))) == ends["differ"]
    assert "dumps 0: " in capsys.readouterr().out
