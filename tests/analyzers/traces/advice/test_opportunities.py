"""The time that a step could save: labelled traces, each with the advice that an expert would and would not give."""

import pytest
from trace_cases.cases import CASES, REAL

from analyzers import traces
from analyzers.run import Artefact, Kind
from analyzers.traces import digest
from analyzers.traces.advice import ACTIVITIES, WAITS
from analyzers.words import share
from wild import recorded

TOLERANCE = 0.2


def opportunities(maker, case):
    [account] = maker.accounts(CASES[case].build().text())
    return {str(one.kind): one for one in account.opportunities}


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_an_expert_would_advise_is_listed_and_nothing_else(maker, name):
    case, found = CASES[name], opportunities(maker, name)
    assert set(case.advised) <= set(found) <= set(case.advised) | case.tolerated
    for kind, us in case.advised.items():
        if us is not None:
            assert found[kind].saved_ns == pytest.approx(us * 1000, rel=TOLERANCE)


@pytest.mark.parametrize("path", sorted(REAL))
def test_traces_of_other_peoples_jobs(path):
    advised, tolerated = REAL[path]
    _, meta = digest.read([recorded("traces") / path])
    found = {str(one["kind"]) for account in meta["accounts"] for one in account["opportunities"]}
    assert advised <= found <= advised | tolerated


@pytest.mark.parametrize(
    "path",
    [
        "hta/call_stack/backward_thread.json",
        "hta/triton_example/triton_example.json.gz",
        "hta/distributed_info_unavailable/distributed_info_not_found.json.gz",
    ],
)
def test_what_was_not_recorded_is_unknown_and_not_healthy(path):
    """The cases are a step of seconds with one kernel, and a GPU job without device events."""
    file = recorded("traces") / path
    report = traces.analyze([Artefact(file, Kind.TRACE, None, None, bytes=file.stat().st_size)])
    assert report.verdict.kind == "unknown"


def test_python_stacks_are_warned_of_where_the_host_is_late(maker):
    job = CASES["launch_bound_with_python_stacks"].build()
    findings = {finding.id: finding for finding in traces.analyze([maker.save(job.text())]).findings}
    assert "with_stack" in findings["trace.host_bound"].why
    assert findings["trace.host_bound"].next.startswith("First record again without with_stack=True, and")


@pytest.mark.parametrize("name", ["loader_in_the_main_process", "launch_bound_with_python_stacks"])
def test_every_activity_of_the_host_during_the_waiting_has_a_share(maker, name):
    report = traces.analyze([maker.save(CASES[name].build().text())])
    [account] = report.data.ranks
    finding = next(finding for finding in report.findings if finding.id == "trace.host_bound")
    [text] = [fact.text for fact in finding.evidence if fact.text.startswith("what the host did")]
    waits = [one for one in account.opportunities if one.kind in WAITS]
    total = sum(one.taken_ns for one in waits)
    assert text.count(" %") == len(waits)
    assert all(f"{ACTIVITIES[one.kind]} {share(one.taken_ns, total)}" in text for one in waits)
