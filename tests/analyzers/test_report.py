"""Test how findings of several ranks are combined."""

from analyzers.report import Evidence, Finding, Severity, merge


def finding(rank: int, text: str) -> Finding:
    return Finding(
        id="hang.waits", severity=Severity.ERROR, title="Waits", why="It waits.", next="Look.", ranks=[rank],
        evidence=[Evidence(text=text)], confidence=0.9,
    )  # fmt: skip


def test_each_fact_of_a_combined_finding_names_its_rank():
    combined = merge([finding(1, "rank 12 did not answer"), finding(2, "rank 2 waits"), finding(3, "no dump")])
    texts = [fact.text for fact in combined.evidence]
    assert texts == ["rank 1: rank 12 did not answer", "rank 2 waits", "rank 3: no dump"]
