"""Every planted mask mistake is found, and none in data sets without one; the cases are those of the benchmark."""

import pytest

pytest.importorskip("tokenizers")

from analyzers import tokens
from benchmarks.masks.__main__ import answer
from benchmarks.masks.cases import Maker, cases

CASES = list(cases())
QUICK = {"chatml", "vicuna", "plain"}
NO_ARROW = "parquet"


ONE_OF = 10


def marks_of(number, case):
    """Return no mark for a quick case; of the others one in ten is run with the slow tests."""
    if is_quick(case):
        return ()
    return pytest.mark.rare if number % ONE_OF else pytest.mark.slow


def is_quick(case):
    return case.family in QUICK or "own" in case.name.split()


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=marks_of(n, c)) for n, c in enumerate(CASES)])
def test_mistakes_are_found_and_only_they(case, tmp_path):
    if NO_ARROW in case.name:
        pytest.importorskip("pyarrow")
    if case.name.startswith("batch") or "tuple" in case.name:
        pytest.importorskip("torch")
    found, sentence = answer(case, tmp_path)
    if case.mistake is None:
        assert not found, sentence
    else:
        assert case.mistake in found, sentence


@pytest.mark.parametrize(
    ("name", "seq_len", "source"),
    [
        ("answers_cut chatml", None, "tokens (the largest length, which "),
        ("answers_cut_by_option chatml", 24, "truncated to 24 tokens (given by --seq-len)"),
    ],
)
def test_a_cut_answer_says_what_gave_the_length(name, seq_len, source, tmp_path):
    case = next(case for case in CASES if case.name == name)
    maker = Maker(case, tmp_path, tmp_path / "tokenizers")
    case.write(maker)
    report = tokens.analyze(tokens.find_files([maker.path], maker.tokenizer_folder), seq_len=seq_len)
    [finding] = [finding for finding in report.findings if finding.id == "tokens.answer_cut"]
    assert source in finding.why
