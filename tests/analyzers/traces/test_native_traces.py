"""The native reader of traces: the same columns as the reader in Python, byte for byte."""

import gzip
import json
import random

import pytest

from analyzers.traces.reading.event_table import decoded_texts, numbers_of
from benchmarks.core import trace_files
from benchmarks.fuzzing.mutations import mutated
from benchmarks.safety.native_readers import PAIRS, LeftToPython, difference, rare_events, result, trace_seeds

native = pytest.importorskip("analyzers.native._readers", reason="not built: there was no C++ compiler")

[TRACES] = [pair for pair in PAIRS if pair.kind == "traces"]
PLAIN = '"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 8, "ts": 1000.25, "dur": 3.5'
EVENT = f"{{{PLAIN}}}"


@pytest.fixture(scope="module")
def seeds():
    return trace_seeds()


def trace(*events, tail=""):
    return '{{"schemaVersion": 1, "traceEvents": [{}]{}}}'.format(",\n  ".join(events), tail)


def read(content, folder, name="rank0_trace.json"):
    """Return whether the native reader reads a trace, and where the readers differ."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        return True, difference(TRACES, path)
    except LeftToPython:
        return False, ""


def test_traces_of_all_kinds_are_read_and_equal(seeds, tmp_path):
    for name, body in seeds:
        assert read(body, tmp_path, f"trace{name[name.rindex('.') :]}") == (True, ""), name


def test_mutated_traces_are_equal(seeds, tmp_path):
    rng, equal = random.Random(2), 0
    for _ in range(300):
        name, body = rng.choice(seeds)
        done, differs = read(mutated(rng, name, body), tmp_path, f"trace{name[name.rindex('.') :]}")
        assert not differs
        equal += done
    assert equal > 60


@pytest.mark.parametrize("kind", trace_files.KINDS)
def test_a_trace_of_many_blocks_is_equal(kind, tmp_path):
    path = tmp_path / "rank0_trace.json.gz"
    trace_files.KINDS[kind](path, 3000)
    assert read(path.read_bytes(), tmp_path, path.name) == (True, "")


@pytest.mark.parametrize(
    "event",
    [
        EVENT.replace("1000.25", "01000.25"),
        EVENT.replace("1000.25", "1e3"),
        EVENT.replace("1000.25", '"1000.25"'),
        EVENT.replace("1000.25", "null"),
        EVENT.replace("1000.25", "99999999999999999999"),
        EVENT.replace("3.5", "-3.5"),
        EVENT.replace("3.5", "3."),
        EVENT.replace('"aten::add"', '"a\\u0041d\\ud83d\\ude00"'),
        EVENT.replace('"aten::add"', '"tab\tin a text"'),
        EVENT.replace('"aten::add"', "5"),
        EVENT.replace('"ph"', '"p\\u0068"'),
        f"{{{PLAIN}, {PLAIN}}}",
        f'{{{PLAIN}, "args": {{"correlation": 5, "correlation": 6}}}}',
        f'{{{PLAIN}, "args": {{"Input Dims": [[1, 2, {{"x": "]}}"}}]]}}}}',
        f'{{{PLAIN}, "args": {{"stream": "7"}}, "id": [[[[]]]]}}',
        '{"cat": "cpu_op", "name": "no phase", "ts": 5}',
        "{}",
    ],
    ids=lambda event: event[:60],
)
def test_an_event_that_the_native_reader_leaves_is_decoded_in_its_place(event, tmp_path):
    done, differs = read(trace(EVENT, event, EVENT), tmp_path)
    assert not differs
    assert done or "\\u" not in event


@pytest.mark.parametrize(
    "content",
    [
        trace(EVENT, f'{{{PLAIN}, "x": NaN}}'),
        trace(EVENT, EVENT[:-1]),
        trace(EVENT + "}", EVENT),
        trace("[" * 100 + "]" * 100),
        trace(EVENT, '{{{}, "x": {}}}'.format(PLAIN, "[" * 100 + "]" * 100)),
        trace(),
        trace(EVENT)[:-10],
        trace(EVENT) + "junk",
    ],
    ids=range(8),
)
def test_a_text_that_is_no_list_of_events_is_left_to_python(content, tmp_path):
    assert not read(content, tmp_path)[1]


@pytest.mark.parametrize(
    "event",
    [
        '"ph": "X", "name": "a%d", "ts": 01, "dur": 2',
        '"ph": "X", "name": "a", "ts": %d, "dur": 2, "args": {"Input Dims": [[%d, 3]], "Input type": ["f%d"]}',
        '"ph": "X", "name": "a", "ts": 9007199254740993.5%d, "dur": 2',
        '"ph": "X", "name": "a", "ts": 4503599627370496%d, "dur": 2',
        '"ph": "X", "name": "a", "ts": -%d.5, "dur": 2, "pid": -%d, "tid": "t%d"',
        '"ph": "X", "name": "a", "ts": %d, "dur": 2.0001, "args": {"correlation": "%d", "stream": "%d"}',
        '"ph": "X", "name": "a", "ts": %d, "dur": 2, "args": {"device": 99999999%d, "graph id": %d, "bytes": 0}',
        '"ph": "X", "name": "a", "ts": %d, "dur": null, "args": {"correlation": -%d, "stream": 1e%d}',
        '"ph": "X", "name": "a", "ts": %d, "args": {"Collective name": "b%d", "Process Group Name": %d, "Seq": 4}',
        '"ph": "X", "name": "\\u006%d", "ts": 1, "dur": 2, "args": {"finished": false, "x": [{}, {"y": 0%d}]}',
        '"ph": "X", "name": "a", "ts": 1, "dur": 2, "args": {"x": [{"a": %d},\n  {"ph": "X", "ts": %d},\n  {"a": 1}]}',
        '"ph": "M", "name": "thread_name", "pid": %d, "tid": %d, "args": {"name": "t%d"}',
        '"ph": "X", "cat": "cuda_profiler_range", "name": "a", "ts": %d, "args": {"c": %d, "d": %d}',
    ],
)
def test_odd_events_between_plain_ones_are_equal(event, tmp_path):
    for wide in (1, 7):
        odd = [event % tuple(i * wide % 100 for _ in range(event.count("%d"))) for i in range(300)]
        events = [row for i, other in enumerate(odd) for row in (other, f'"ph": "X", "name": "b", "ts": {i}, "dur": 5')]
        assert not read(trace(*(f"{{{one}}}" for one in events)), tmp_path)[1]


def test_only_the_events_of_the_first_list_are_read(tmp_path):
    other = ', "other": [{}, {}]'.format(EVENT.replace("aten::add", "other"), EVENT)
    assert read(trace(EVENT, EVENT, tail=other), tmp_path) == (True, "")
    names = dict(result_of(tmp_path / "rank0_trace.json"))["name"]
    assert len(names) == 2


def result_of(path):
    return [(part[0], part[3]) for part in result(TRACES, path, native)[:-1]]


def test_ids_that_are_written_as_texts_are_numbers_in_any_number_of_events(tmp_path):
    for count in (1, 50, 2000):
        events = [EVENT, *[EVENT.replace('"pid": 7', '"pid": "7"')] * count]
        for module in (native, None):
            path = tmp_path / "rank0_trace.json.gz"
            path.write_bytes(gzip.compress(trace(*events).encode()))
            columns = {part[0]: part[3] for part in result(TRACES, path, module)[:-1]}
            assert set(columns["pid"]) == {7}


def test_rare_events_are_told_apart(tmp_path):
    """Each rare value reaches the columns, so that their equality says something."""
    path = tmp_path / "rank0_trace.json"
    path.write_text(json.dumps({"traceEvents": rare_events()}))
    columns = {part[0]: part[2] for part in result(TRACES, path, native)[:-1]}
    for table in (
        "collective_row",
        "shape_row",
        "autograd_row",
        "copy_row",
        "graph_row",
        "unfinished_row",
        "memory_at",
    ):
        assert columns[table][0], table


def test_numbers_of_texts_that_are_new_known_and_mixed():
    known = {b"a": 0}
    assert numbers_of([b"b", b"c"], known).tolist() == [1, 2]
    assert numbers_of([b"d", b"a", b"e"], known).tolist() == [3, 0, 4]
    assert numbers_of([], known).tolist() == []
    assert known == {b"a": 0, b"b": 1, b"c": 2, b"d": 3, b"e": 4}


def test_texts_are_decoded_alone_or_together():
    for texts in ([], [b""], [b"", b"a\n", b"b\0c"], [b"a\x01b", b"c"], ["\u00e9".encode(), b"\xe2\x82", b"x"]):
        assert decoded_texts(texts) == [text.decode("utf-8", "replace") for text in texts]


@pytest.mark.parametrize("place", [5, 40, 89])
def test_a_list_that_is_closed_too_early_is_left_to_python(tmp_path, monkeypatch, place):
    monkeypatch.setattr(TRACES.settings[0][0], "BLOCK_BYTES", 2000)
    events = [json.dumps(event) for event in rare_events()[:30] * 3]
    content = f'{{"traceEvents": [{", ".join(events[:place])}, ]{", ".join(events[place:])}]}}'
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert result(TRACES, path, native) == result(TRACES, path, None)
