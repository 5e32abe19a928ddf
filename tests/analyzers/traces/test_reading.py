"""Unusual, damaged and hostile files are read as far as possible, or refused with a reason."""

import gzip
import json
import subprocess
import sys

import pytest

from analyzers import store, traces
from analyzers.errors import InputError
from analyzers.traces import views
from analyzers.traces.reading import stream
from analyzers.traces.reading.event_table import EventTable
from analyzers.traces.reading.trace import DAMAGE
from workbench.present.tables.trace import trace_tables as tables


def one(maker, data, name="rank0_trace.json"):
    [account] = traces.analyze([maker.save(data, name)]).data.ranks
    return account


@pytest.fixture
def made(maker):
    made = maker.Tracing()
    for i in range(200):
        made.kernel(f"gemm_{i % 3}", i * 10_000, 1_000 + i, launch=(i * 10_000, 100))
    return made


def total(account):
    return account.device_events, account.busy_ns


def test_small_blocks_read_the_same(maker, made, monkeypatch):
    expected = total(one(maker, made.text()))
    monkeypatch.setattr(stream, "BLOCK_BYTES", 5_000)
    found = []
    reading = stream.ReadState(found.extend)
    with maker.save(made.text()).path.open("rb") as file:
        stream.read_events(file, reading)
    assert sum(event.cat == "kernel" for event in found) == expected[0] == 200
    assert reading.metadata["distributedInfo"]["rank"] == 0
    assert reading.problems() == []


def test_seams_inside_strings_and_arguments_are_no_cuts(maker, made, monkeypatch):
    made.event('a "},{" b', "cpu_op", 5, 5, note="}, {", nested=[{"a": 1}, {"b": [{}]}])
    monkeypatch.setattr(stream, "BLOCK_BYTES", 700)
    found = []
    with maker.save(made.text(compact=True)).path.open("rb") as file:
        stream.read_events(file, stream.ReadState(found.extend))
    assert len(found) == 401
    assert found[-1].name == 'a "},{" b'


def test_a_bare_list_of_events_is_a_trace(maker, made):
    document = json.loads(made.text())
    account = one(maker, json.dumps(document["traceEvents"]).encode())
    assert account.device_events == 200
    assert account.rank == 0  # from the name


def test_a_list_without_events_is_told(maker):
    report = traces.analyze([maker.save(b'{"schemaVersion": 1, "traceEvents": [], "traceName": "x"}')])
    assert report.verdict.kind == "unknown"
    assert {finding.id for finding in report.findings} == {"trace.empty"}
    assert views.spans(report_artefact := maker.save(b'{"traceEvents": []}')).empty
    assert report_artefact.bytes


def test_events_of_odd_types_are_counted_not_fatal(maker, made):
    made.kernel("odd", 0, 50, correlation_of="x")
    document = json.loads(made.text())
    document["traceEvents"][-1]["args"]["correlation"] = {"not": "a number"}
    document["traceEvents"].append({"ph": 7})
    document["traceEvents"].append({"ph": "X", "name": "late", "cat": "kernel", "ts": 1e300, "dur": 1})
    data = json.dumps(document).encode()
    assert one(maker, data).device_events == 201
    [problems] = maker.problems(data)
    assert {"unknown_events", "odd_arguments", "impossible_times"} <= set(problems)
    assert (problems["unknown_events"]["count"], problems["odd_arguments"]["count"]) == (1, 1)


def test_advice_on_a_damaged_file_fits_what_is_damaged(maker, made):
    """A complete file with an event that cannot be right was not stopped while it was written."""
    data = made.text()
    odd, cut = (
        next(f for f in traces.analyze([maker.save(text)]).findings if f.id == "trace.truncated")
        for text in (data.replace(b'"ts":', b'"ts": "x", "was":', 1), data[: len(data) * 2 // 3])
    )
    assert odd.next.startswith("Nothing to do for a few events")
    assert "let the job finish writing" in cut.next
    for finding in (odd, cut):
        [evidence] = finding.evidence
        assert evidence.text.startswith("read: ")


def test_control_characters_and_bad_text_are_mended(maker, made):
    data = made.text().replace(b'"gemm_1"', b'"gemm\x01\xff"').replace(b'"stream": 7', b'"stream": NaN', 1)
    assert one(maker, data).device_events == 200
    assert "replaced_text" in maker.problems(data)[0]


def test_damage_in_the_middle_costs_little(maker, made):
    data = made.text()
    middle = data.index(b"gemm_2", len(data) // 2)
    damaged = data[:middle] + b'"}}}{{' + data[middle + 6 :]
    assert 195 <= one(maker, damaged).device_events <= 200
    assert set(maker.problems(damaged)[0]) & {str(kind) for kind in DAMAGE}


def test_a_cut_gzip_is_read_as_far_as_it_goes(maker, made):
    packed = gzip.compress(made.text())
    report = traces.analyze(
        [maker.save(gzip.compress(packed)[:10] + b"rubbish", "rank1_trace.json.gz"), report_of(maker, packed)]
    )
    assert {"trace.unreadable", "trace.truncated"} <= {finding.id for finding in report.findings}
    assert 0 < report.data.ranks[0].device_events < 200


def report_of(maker, packed):
    path = maker.save(b"", "rank0_trace.json.gz").path
    path.write_bytes(packed[: len(packed) * 2 // 3])
    return maker.artefact(path)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"traceEvents": 5}', b"\x1f\x8brubbish", b"\x80\x04]."])
def test_no_trace_is_refused_with_a_hint(maker, data):
    with pytest.raises(InputError) as caught:
        one(maker, data)
    assert caught.value.hint


def test_endless_nesting_is_no_event(maker):
    assert one(maker, b"[" * 100_000).device_events == 0
    assert "cut_off" in maker.problems(b"[" * 100_000)[0]


def test_unlinked_and_early_kernels_are_told(maker):
    made = maker.Tracing()
    made.kernel("gemm", 100, 50)
    made.kernel("gemm", 500, 50, launch=(700, 10))
    report = traces.analyze([maker.save(made.text())])
    [account] = report.data.ranks
    assert account.unlinked_events == 1
    [problems] = maker.problems(made.text())
    assert (problems["early_kernels"]["count"], problems["early_kernels"]["most_ns"]) == (1, 200)
    assert any("1 kernel started before the launch, by up to 200 ns" in line for line in account.problems)
    assert "trace.unlinked" in {finding.id for finding in report.findings}
    [odd] = [table for table in tables(report.data) if table.title == "Problems with the recordings"]
    assert [row[2] for row in odd.rows] == account.problems


def test_a_step_cut_by_the_window_is_told(maker):
    made = maker.Tracing()
    made.event("ProfilerStep#3", "user_annotation", 0, 100, finished=False)
    made.kernel("gemm", 10, 50, launch=(5, 1))
    assert maker.problems(made.text())[0]["cut_steps"]["names"] == ["ProfilerStep#3"]


def test_the_device_waiting_for_the_host_is_told(maker):
    made = maker.Tracing()
    for i in range(5):
        made.kernel("gemm", i * 1000 + 900, 100, launch=(i * 1000 + 800, 50))
    report = traces.analyze([maker.save(made.text())])
    assert report.verdict.kind == "host_bound"
    [finding] = [finding for finding in report.findings if finding.id == "trace.host_bound"]
    texts = [fact.text for fact in finding.evidence]
    assert any("of the idle time, " in text and "waits for the host's next launch" in text for text in texts)


def test_compiling_and_asking_the_driver_for_memory_are_told(maker):
    made = maker.Tracing()
    made.kernel("gemm", 100, 9_000, launch=(50, 10))
    made.event("_compile.compile_inner (dynamo_timed)", "cpu_op", 0, 5_000)
    made.event("cudaMalloc", "cuda_runtime", 60, 500, correlation=900)
    found = {finding.id: finding for finding in traces.analyze([maker.save(made.text())]).findings}
    assert {"trace.compiled_meanwhile", "trace.driver_allocations"} <= set(found)
    assert any("cudaMalloc: 1 call," in fact.text for fact in found["trace.driver_allocations"].evidence)


def test_frees_of_the_driver_are_not_counted_as_allocations(maker):
    made = maker.Tracing()
    made.kernel("gemm", 100, 9_000, launch=(50, 10))
    made.event("cudaFree", "cuda_runtime", 60, 5_000, correlation=900)
    made.event("cudaMalloc", "cuda_runtime", 6_000, 500, correlation=901)
    made.event("cudaMalloc", "cuda_runtime", 7_000, 500, correlation=902)
    found = {finding.id: finding for finding in traces.analyze([maker.save(made.text())]).findings}
    finding = found["trace.driver_allocations"]
    assert finding.title == (
        "The allocator called the driver 3 times during the recording (cudaFree and cudaMalloc), which took 6.00 µs"
    )
    assert [fact.text.partition(", the longest")[0] for fact in finding.evidence[1:]] == [
        "cudaFree: 1 call, 5.00 µs in total",
        "cudaMalloc: 2 calls, 1.00 µs in total",
    ]
    assert finding.next.startswith("This is most likely the start of the program")


def test_spans_nest_and_keep_the_longest(maker):
    made = maker.Tracing()
    made.step(1, 0, 1000)
    made.event("outer", "cpu_op", 100, 500, tid="main")
    made.event("inner", "cpu_op", 200, 100, tid="main")
    made.kernel("gemm", 300, 50, launch=(250, 10))
    table = views.spans(maker.save(made.text()))
    shown = table.set_index("name")
    assert shown.loc["inner", "depth"] == 1
    assert shown.loc["gemm", ["lane", "on_device", "kind", "start_ns"]].tolist() == ["stream 7", True, "compute", 300]
    assert shown.loc["outer", "lane"] == "thread main"
    assert views.spans(maker.save(made.text()), window=(900, 1000), limit=1)["name"].tolist() == ["ProfilerStep#1"]


def test_a_choice_that_leaves_nothing_is_told(maker, made):
    with pytest.raises(InputError, match="nothing of this rank"):
        traces.analyze([maker.save(made.text())], store.Options(rank=9))


def test_reading_does_without_pandas(maker, made):
    path = maker.save(made.text()).path
    code = f"import sys, pathlib; from analyzers.traces import digest; digest.read([pathlib.Path({str(path)!r})])"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('pandas' in sys.modules)"], check=True)


def test_what_the_cache_holds_is_found_without_the_parser():
    code = "import sys; from analyzers import store, traces; store.cache_key([], 'analyzers.traces.digest')"
    subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('analyzers.traces.reading.reader' in sys.modules)"], check=True
    )


def test_columns_stay_narrow_beside_blocks_without_events(maker, made):
    table = EventTable()
    for text in (made.text(), maker.Tracing().text()):
        with maker.save(text).path.open("rb") as file:
            stream.read_events(file, stream.ReadState(table.add))
    table.add([])
    columns = table.columns()
    assert columns["name"].dtype == columns["stream"].dtype == "int8"
