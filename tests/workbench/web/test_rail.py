"""What the sidebar says about the ranks of a run."""

from dataclasses import replace

from msgspec import structs

from analyzers import compare
from analyzers.report import Severity
from analyzers.rooms import room_for
from analyzers.store import Options
from workbench.web.rail import about_ranks, ranks, ranks_by_finding
from workbench.web.served_run import ServedRun, served_run


def test_the_sidebar_calls_no_rank_healthy_that_a_finding_names(oom):
    """A finding about a thousand ranks is one line, and the rank with a finding of its own keeps its line."""
    served = served_run(oom, room_for(oom), Options())
    late = structs.replace(served.report.findings[0], id="trace.straggler", severity=Severity.WARNING, ranks=[643])
    waiting = structs.replace(late, id="trace.exposed_communication", ranks=[*range(1024)])
    report = structs.replace(served.report, findings=[late, waiting])
    said = str([*ranks(replace(served, report=report))])
    assert "rank 643: straggler" in said
    assert "ranks 0-642, 644-1023: exposed communication" in said
    assert "no finding" not in said


def test_a_rank_is_listed_with_its_most_severe_finding(oom):
    served = served_run(oom, room_for(oom), Options())
    warning = structs.replace(served.report.findings[0], id="memory.oom.spike", severity=Severity.WARNING, ranks=[0, 1])
    error = structs.replace(warning, id="hang.host_stuck", severity=Severity.ERROR, ranks=[1])
    listed = ranks_by_finding([warning, error])
    assert listed == [([1], error), ([0], warning)]
    assert [about_ranks(*line) for line in listed] == ["rank 1: host stuck", "rank 0: oom spike"]


def test_a_comparison_lists_no_ranks(oom, stuck):
    """Its report says nothing about single ranks, so that none may be called healthy."""
    assert not [*ranks(ServedRun(oom, Options(), compare.analyze(oom, stuck), stuck))]
