"""Traces of jobs as they are met in the field: what comes first, what is said and not said, and what it would save."""

import pytest
from trace_cases.cases import products
from trace_cases.field_cases import FIELD_CASES
from trace_cases.job import Job
from trace_cases.later_cases import LATER_CASES

from analyzers import traces

TOLERANCE = 0.2
ALL = FIELD_CASES | LATER_CASES


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_an_expert_would_advise_is_listed_and_nothing_else(maker, name):
    case = ALL[name]
    [account] = maker.accounts(case.build().text())
    found = {str(one.kind): one for one in account.opportunities}
    assert set(case.advised) <= set(found) <= set(case.advised) | case.tolerated | case.any_of
    assert not case.any_of or case.any_of & set(found)
    assert list(found)[:1] == list(case.advised)[:1] or not case.advised
    for kind, us in case.advised.items():
        if us is not None:
            assert found[kind].saved_ns == pytest.approx(us * 1000, rel=TOLERANCE)


@pytest.mark.parametrize("name", sorted(name for name, case in ALL.items() if case.said or case.unsaid))
def test_the_text_names_the_cause_and_no_remedy_that_does_not_fit(maker, name):
    case, report = ALL[name], traces.analyze([maker.save(ALL[name].build().text())])
    texts = [report.verdict.sentence]
    for finding in report.findings:
        texts += [finding.title, finding.why, finding.next, *(fact.text for fact in finding.evidence)]
    text = "\n".join(texts)
    assert [words for words in case.said if words.lower() not in text.lower()] == []
    assert [words for words in case.unsaid if words in text] == []


def test_idle_times_are_unknown_where_kernels_are_missing(maker):
    report = traces.analyze([maker.save(FIELD_CASES["kernels_lost_by_the_profiler"].build().text())])
    assert report.verdict.kind == "unknown"
    assert "268 of 402 launches are missing" in next(f.why for f in report.findings if f.id == "trace.lost_kernels")


def test_kernels_that_had_not_run_when_the_recording_ended_are_not_missing(maker):
    job = FIELD_CASES["training_on_mi300"].build()
    last = max(event["args"]["correlation"] for event in job.events if event["cat"] == "kernel")
    late = (event for event in job.events if event["cat"] == "kernel" and event["args"]["correlation"] > last - 20)
    gone = {id(event) for event in late}
    job.events = [event for event in job.events if id(event) not in gone]
    [account] = maker.accounts(job.text())
    assert (account.launches.lost, account.launches.expected) == (0, account.launches.count - 1)


def test_the_call_that_emptied_the_queue_is_named_with_its_line(maker):
    job = FIELD_CASES["loss_read_in_each_step"].build()
    reads = [event for event in job.events if event["name"] == "aten::item"]
    for number, event in enumerate(reads):
        where = {"pid": event["pid"], "tid": event["tid"], "args": {"Python id": number}}
        times = {"ts": event["ts"] - 1, "dur": event["dur"] + 2}
        job.events.append({"ph": "X", "name": "train.py(12): step", "cat": "python_function"} | times | where)
    [account] = maker.accounts(job.text())
    [wait] = account.opportunities
    assert [(call.name, call.count) for call in wait.after] == [("aten::item", 6), ("train.py(12): step", 6)]


def on_two_devices(copy_us, *, in_turn):
    """Return a job of one process: both devices compute 20 products in each step, after the other or at once."""
    job = Job()
    for _ in range(4):
        with job.step():
            for device in (0, 1):
                first = len(job.events)
                products(20)(job)
                job.copy("Memcpy PtoP (Device -> Device)", copy_us, 60_000_000)
                for event in job.events[first:]:
                    if event["cat"] in ("kernel", "gpu_memcpy"):
                        event["args"]["device"] = event["pid"] = device
                if not in_turn:
                    job.free.clear()
    job.end()
    return job


@pytest.mark.parametrize("in_turn", [True, False])
def test_devices_of_one_process_that_wait_for_each_other_are_no_healthy_job(maker, in_turn):
    report = traces.analyze([maker.save(on_two_devices(200.0, in_turn=in_turn).text())])
    assert report.verdict.kind == ("devices_in_turn" if in_turn else "healthy")


def test_no_rank_waits_for_another_in_its_own_copies(maker):
    traces_of_ranks = []
    for rank in range(2):
        job = FIELD_CASES["weights_gathered_by_copy_engines"].build()
        job.rank, job.world = rank, 2
        # Copies last as long as the links need, and differ without anyone being late.
        for event in job.events:
            if rank and "PtoP" in event["name"]:
                event["dur"] /= 2
        traces_of_ranks.append(maker.save(job.text(), f"rank{rank}.json"))
    report = traces.analyze(traces_of_ranks)
    names = {wait.name for wait in report.data.meetings}
    assert "trace.straggler" not in {finding.id for finding in report.findings}
    assert any("barrier_kernel" in name for name in names)
    assert not any("Memcpy" in name for name in names)
