"""A run whose loss became NaN is worse than a run whose loss did not; losses of other trainers are found by name."""

from pathlib import Path

import pytest

from analyzers import store
from analyzers.compare import analyze
from analyzers.errors import InputError

FIXTURES = Path(__file__).parents[1] / "fixtures"


def compared(a, b):
    return analyze(FIXTURES / f"{a}_2ranks", FIXTURES / f"{b}_2ranks")


def test_a_lost_loss_is_an_error_of_the_second_run():
    report = compared("healthy", "nan")
    assert (report.verdict.status, report.verdict.kind) == ("error", "regression")
    [finding] = [finding for finding in report.findings if finding.id == "compare.nonfinite_loss"]
    assert (finding.step, finding.ranks) == (6, [1])


@pytest.mark.parametrize(("a", "b"), [("nan", "healthy"), ("nan", "nan"), ("healthy", "healthy")])
def test_it_is_no_finding_where_the_second_run_is_no_worse(a, b):
    assert "compare.nonfinite_loss" not in {finding.id for finding in compared(a, b).findings}


@pytest.fixture
def tables(tmp_path):
    """Fixture: two tables of steps whose loss columns have different names."""
    paths = []
    for name, heads in (("a", "step,train/nll,took"), ("b", "step,loss,took")):
        rows = [f"{step},{3 / step:.4f},{0.2 if name == 'a' else 0.3}" for step in range(1, 40)]
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("\n".join([heads, *rows]) + "\n")
    return paths


def test_a_column_that_only_one_run_has_may_be_named(tables):
    report = analyze(*tables, store.Options(columns=(("loss", "train/nll"), ("step_time_s", "took"))))
    assert report.data.a.loss == report.data.b.loss
    assert (report.data.a.step_s, report.data.b.step_s) == (0.2, 0.3)


def test_a_column_that_neither_run_has_is_an_error(tables):
    with pytest.raises(InputError, match="no column nothing"):
        analyze(*tables, store.Options(columns=(("loss", "nothing"),)))
