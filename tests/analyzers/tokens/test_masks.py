"""Every planted mask mistake is found, and none in data sets without one; the cases are those of the benchmark."""

import pytest

pytest.importorskip("tokenizers")

from benchmarks.masks.__main__ import answer
from benchmarks.masks.cases import cases

CASES = list(cases())
QUICK = {"chatml", "vicuna", "plain"}
NO_ARROW = "parquet"


def is_quick(case):
    return case.family in QUICK or "own" in case.name.split()


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if is_quick(c) else pytest.mark.slow) for c in CASES]
)
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
