"""Reading events by templates gives the same result as decoding each event; the docstrings' examples are right."""

import gzip
import io
import random
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analyzers.traces.reading import stream
from analyzers.traces.reading.digits import mask_digits, parse_numbers
from analyzers.traces.reading.event_kinds import FIELDS, EventKinds
from analyzers.traces.reading.event_table import EventTable, decoded_texts
from analyzers.traces.reading.templated_events import TemplateReader, split_block
from analyzers.traces.reading.templates import NumberField, Template, template_of, with_marks
from analyzers.traces.reading.text_numbers import FIRST_TEXT_ID

ROOT = Path(__file__).parents[3]
SIMULATED = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "traced_job.py")))
RECORDED = ROOT / "tests/fixtures/straggler_data_2ranks/profile_traces/iteration_10/rank0_trace.json.gz"
ALLOCATING = Path(__file__).parents[2] / "fixtures" / "traces" / "allocating"
ID_COLUMNS = ("pid", "tid", "stream", "memory_pid", "memory_tid")
TEXT_COLUMNS = ("name", "cat", "collective_name", "collective_group", "collective_dtype", "collective_splits")
ODDITIES = [
    b"0", b"1", b"9", b"-", b".", b"e", b'"', b"\\", b"{", b"}", b",", b"[", b"]", b" ", b"", b"null", b"\xff",
    b"\x01", b"00", b"1e5", b"-1", b"-7", b"NaN", b"99999999999999999999", b'"ts": 3', b"},\n  {", b"\\u0030",
]  # fmt: skip


def read(text, *, templated):
    """Return the columns with their texts, problems and metadata, thread names, and the number of templated blocks."""
    table, taken = EventTable(), []
    fast = TemplateReader(table)

    def take(buffer, state):
        fast.failures = 0
        end = fast.read_block(buffer, state)
        taken.append(end is not None)
        return end

    state = stream.ReadState(table.add, take) if templated else stream.ReadState(table.add)
    stream.read_events(io.BytesIO(text), state)
    columns, names = table.columns(), list(table.texts)
    shapes, occupancies = decoded_texts(table.shapes), decoded_texts(table.occupancies)

    def written(number):
        return number if number > FIRST_TEXT_ID else names[FIRST_TEXT_ID - number]

    columns |= {key: [names[i] for i in columns[key]] for key in TEXT_COLUMNS}
    columns |= {key: [written(i) for i in columns[key].tolist()] for key in ID_COLUMNS}
    columns["shape_text"] = [shapes[i] for i in columns["shape_text"]]
    columns["occupancy_text"] = [occupancies[i] for i in columns["occupancy_text"]]
    notes = (state.problems(), table.problems(), state.metadata, state.counters)
    threads = [(written(pid), written(tid), name) for pid, tid, name in table.threads]
    return {key: list(column) for key, column in columns.items()}, notes, threads, sum(taken)


def assert_same(text):
    *expected, _ = read(text, templated=False)
    *found, taken = read(text, templated=True)
    assert found == expected
    return taken


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    parts = [*SIMULATED.llama(layers=2, small=4), SIMULATED.Host("gc", 5_000_000)]
    SIMULATED.job(folder, 2, 6, parts)
    return gzip.decompress((folder / "rank0_trace.json.gz").read_bytes())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 30_000)


def compact(text):
    """Return the same trace in the other layout that PyTorch writes."""
    document = stream.msgspec.json.decode(text)
    events = b",\n".join(stream.msgspec.json.encode(event) for event in document.pop("traceEvents"))
    return stream.msgspec.json.encode(document)[:-1] + b',"traceEvents": [\n' + events + b"\n]}"


@pytest.mark.parametrize("name", ["rank0_trace.json.gz", "streamed.json.gz"])
def test_allocations_stay_in_order(name):
    text = gzip.decompress((ALLOCATING / name).read_bytes())
    assert assert_same(text) > 0
    assert len(read(text, templated=True)[0]["memory_at"]) == text.count(b'"[memory]"') > 100


@pytest.mark.parametrize("layout", [bytes, compact])
def test_both_layouts_are_taken_and_read_the_same(simulated, layout):
    text = layout(simulated)
    assert assert_same(text) > 0.5 * len(text) / 60_000


def test_a_recorded_trace_is_read_the_same():
    assert assert_same(gzip.decompress(RECORDED.read_bytes())) > 5


def test_changed_digits_are_read_as_they_stand(simulated):
    """Templates do not compare digits, so a changed digit must change the value that is read, or be reported."""
    dice, text = random.Random(1), bytearray(simulated)
    digits = [i for i, character in enumerate(text) if 48 <= character < 58 and i > 2000]
    for i in dice.sample(digits, 3000):
        text[i] = dice.choice(b"123456789")
    assert assert_same(bytes(text)) > 0


@pytest.mark.parametrize("seed", range(60))
def test_damaged_text_is_read_the_same(simulated, seed):
    dice, text = random.Random(seed), simulated[:200_000]
    for _ in range(dice.randrange(1, 6)):
        at, cut = dice.randrange(1500, len(text)), dice.choice([0, 0, 1, 1, 2, 200])
        text = text[:at] + dice.choice(ODDITIES) + text[at + cut :]
    assert_same(text)


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
def test_odd_events_are_read_the_same(event):
    for wide in (1, 7):
        rows = [event % tuple(i * wide % 100 for _ in range(event.count("%d"))) for i in range(3000)]
        plain = [f'"ph": "X", "name": "b", "ts": {i}, "dur": 5' for i in range(3000)]
        mixed = [row for pair in zip(rows, plain, plain, strict=True) for row in pair]
        assert_same(('{"traceEvents": [{' + "},\n  {".join(mixed) + "}]}").encode())


@pytest.mark.real
def test_recorded_traces_of_others_are_read_the_same(real_traces, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 400_000)
    for artefact in real_traces:
        if artefact.bytes < 2_000_000:
            data = artefact.path.read_bytes()
            assert_same(gzip.decompress(data) if data.startswith(b"\x1f") else data)


EXAMPLE = b'"ph": "X", "name": "gemm_64", "pid": 0, "ts": 1023.125, "dur": 42.5'


def test_the_example_of_the_templates():
    assert with_marks(EXAMPLE) == (
        b'"ph": "X", "name": "gemm_10000", "pid": 10001, "ts": 10002.10003, "dur": 10004.10005'
    )
    assert template_of(EXAMPLE) == Template(
        target="events",
        numbers={
            "pid": NumberField(end=38, length=1, sign=1),
            "ts": NumberField(end=50, length=4, sign=1),
            "ts decimals": NumberField(end=54, length=3, sign=1),
            "dur": NumberField(end=65, length=2, sign=1),
            "dur decimals": NumberField(end=67, length=1, sign=1),
        },
        text_runs=[(25, 27)],
        leading=[46, 63],
    )


def test_the_example_of_the_kinds():
    text = b"{" + b"},\n{".join([EXAMPLE] * 9) + b"},\n{"
    block, kinds = split_block(text, b"},\n{"), EventKinds(EventTable())
    assert kinds.recognise(block).tolist() == [-1] + [0] * 8
    layout = {
        field: kinds.layout[FIELDS[field], :, 0].tolist() for field in ("pid", "ts", "ts decimals", "correlation")
    }
    assert layout == {
        "pid": [0, 38, 1, 1], "ts": [0, 50, 4, 1], "ts decimals": [0, 54, 3, 1], "correlation": [-1, 0, 0, 0],
    }  # fmt: skip


def test_the_examples_of_the_digits():
    for text in (b"gemm_64,", b"gemm_32,"):
        assert mask_digits(np.frombuffer(text, np.uint64)).tobytes() == b"WU]]o\t\t\x1c"
    text = b" " * 16 + b"00012345"
    assert parse_numbers(text, np.array([24, 24]), np.array([8, 5])).tolist() == [12345, 12345]
