"""Test how findings of several ranks are combined."""

from analyzers.report import Evidence, Finding, Severity, merge


def finding(rank: int, text: str) -> Finding:
    return Finding(
        id="hang.waits", severity=Severity.ERROR, title="Waits", why="It waits.", next="Look.", ranks=[rank],
        evidence=[Evidence(text=text)], confidence=0.9,
    )  # fmt: skip


def test_each_fact_of_a_combined_finding_names_its_rank():
    combined = merge([finding(1, "rank 12 did not answer"), finding(3, "no dump")])
    assert [fact.rank for fact in combined.evidence] == [1, 3]
    assert [fact.sentence for fact in combined.evidence] == ["rank 1: rank 12 did not answer", "rank 3: no dump"]
