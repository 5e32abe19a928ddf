"""A run whose loss became NaN is worse than one whose did not, whatever the times say."""

from pathlib import Path

import pytest

from analyzers.compare import analyze

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
