"""Read the same run from its step logs, structured logs, TensorBoard files and console output."""

import contextlib
import gzip
import json
import random
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from analyzers import run, steps, store
from analyzers.errors import InputError
from analyzers.steps import views
from analyzers.steps.loading import load
from analyzers.steps.reading import log_lines, tensorboard
from analyzers.steps.reading.log_lines import LARGEST, content_of
from workbench.recorders.timing.structured_log import export

FIXTURE = Path(__file__).parents[2] / "fixtures" / "sources_2ranks"
GIB = 1 << 30


def series(path):
    return views.series(run.discover(path).artefacts).set_index(["rank", "step"])


@pytest.fixture(scope="module")
def truth():
    return series(FIXTURE / "steps")


@pytest.fixture(scope="module")
def titan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titan")
    shutil.copytree(FIXTURE / "steps", folder / "steps")
    export(folder)
    shutil.rmtree(folder / "steps")
    return folder


def test_structured_logs_tell_the_same(truth, titan):
    told = series(titan)
    assert told.index.equals(truth.index)
    np.testing.assert_allclose(told["dur_s"], truth["dur_s"], rtol=1e-9)
    np.testing.assert_allclose(told["loss"], truth["loss"])
    np.testing.assert_allclose(told["tokens_per_s"], truth["tokens_per_s"])
    assert [r.rank for r in steps.analyze(run.discover(titan).artefacts).data.ranks] == [0, 1]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_gantt_chart_that_torchtitan_made_of_its_logs_has_their_steps(tmp_path, zipped):
    """The chart in `torchtitan_gantt` was made of the logs in `torchtitan_2ranks` by torchtitan 0.3.0."""
    chart = FIXTURE.parent / "torchtitan_gantt" / "gantt.json.gz"
    if not zipped:
        plain = tmp_path / "gantt.json"
        plain.write_bytes(gzip.decompress(chart.read_bytes()))
        chart = plain
    (found,) = run.discover(chart).artefacts
    assert found.kind is run.Kind.GANTT
    of_chart, of_logs = (
        load(run.discover(path).artefacts, store.Options()) for path in (chart, TITAN / "structured_logs")
    )
    columns = ["rank", "step", "tokens", "tags"]
    assert of_chart.table[columns].equals(of_logs.table[columns])
    # The chart rounds to microseconds.
    assert (of_chart.table["dur_ns"] - of_logs.table["dur_ns"]).abs().max() <= 1000
    assert set(of_chart.phases) == set(of_logs.phases)
    for phase in of_logs.phases:
        assert (of_chart.phases[phase] - of_logs.phases[phase]).abs().max() <= 1e-6
    report = steps.analyze(chart)
    assert report.verdict.kind == steps.analyze(TITAN / "structured_logs").verdict.kind == "straggler"
    (said,) = [finding for finding in report.findings if finding.id == "steps.gantt"]
    assert "which is no profiler trace" in said.title
    assert "workbench trace" in said.next


@pytest.mark.parametrize("wrong", ["cut", "ts", "args", "list"])
def test_a_damaged_gantt_chart_is_refused(tmp_path, wrong):
    text = gzip.decompress((FIXTURE.parent / "torchtitan_gantt" / "gantt.json.gz").read_bytes()).decode()
    damaged = {
        "cut": text[:-100],
        "ts": text.replace('"ts": 1795292033416360', '"ts": "later"'),
        "args": text.replace('"step": 1,', '"step": [1],'),
        "list": text.replace('"args": {', '"args": [{'),
    }[wrong]
    (tmp_path / "gantt.json").write_text(damaged)
    if wrong == "args":  # a bar without a step is one outside of all steps
        assert steps.analyze(tmp_path / "gantt.json").data
        return
    with pytest.raises(InputError, match="damaged"):
        steps.analyze(tmp_path / "gantt.json")


@pytest.mark.parametrize(("folder", "digits"), [("tb", 1e-6), ("logs", 5e-5)])
def test_coarser_sources_tell_the_same_as_far_as_they_go(truth, folder, digits):
    told = series(FIXTURE / folder)
    assert told.index.equals(truth.index)
    np.testing.assert_allclose(told["loss"], truth["loss"], rtol=0, atol=digits)
    np.testing.assert_allclose(told["grad_norm"], truth["grad_norm"], rtol=0, atol=digits)
    np.testing.assert_allclose(told["memory_bytes"] / GIB, truth["memory_bytes"] / GIB, atol=0.005)


def stamps(folder):
    """Return when each step began and ended, in seconds; sources that log every few steps know only the end."""
    table = load(run.discover(FIXTURE / folder).artefacts, store.Options()).table.set_index(["rank", "step"])
    known = table["dur_s"].fillna(0) * table["covers"]
    return table["start_ns"] / 1e9, table["start_ns"] / 1e9 + known


def test_what_is_stamped_lies_in_its_step():
    began, ended = stamps("steps")
    _, logged = stamps("tb")
    assert ((began < logged) & (logged < ended)).all()
    _, printed = stamps("logs")
    assert (printed - logged).std() < 0.005
    assert series(FIXTURE / "tb")["dur_s"].isna().tolist() == [step == 1 for _, step in logged.index]


def test_a_coarser_source_fills_in_what_a_finer_one_lacks(truth, titan, tmp_path):
    log = next(titan.rglob("*rank_0*.jsonl"))
    (tmp_path / log.name).write_text(
        "\n".join(line for line in log.read_text().splitlines() if '"event_name": "loss"' not in line) + "\n"
    )
    assert series(tmp_path)["loss"].isna().all()
    shutil.copytree(FIXTURE / "tb", tmp_path / "tb")
    told = series(tmp_path)
    np.testing.assert_allclose(told["loss"], truth.loc[[0], "loss"], rtol=1e-6)
    np.testing.assert_allclose(told["dur_s"], truth.loc[[0], "dur_s"])


def coloured(text):
    """Return the text with colours, as torchtitan prints it on a terminal."""
    return re.sub(r"(\w+: +[^ ]+)", "\x1b[34m\\1\x1b[39m", text)


def test_colours_and_several_ranks_in_one_console(tmp_path):
    logs = {path.parent.name: path.read_text().splitlines() for path in FIXTURE.rglob("stdout.log")}
    lines = [
        f"[rank{rank}]:{coloured(line)}"
        for both in zip(logs["0"], logs["1"], strict=True)
        for rank, line in zip("01", both, strict=True)
    ]
    (tmp_path / "slurm-17.out").write_text("W1121 torch/distributed/run.py:774]\n" + "\n".join(lines))
    assert series(tmp_path).equals(series(FIXTURE / "logs"))


AGES = """\
[titan] 2024-06-01 10:00:00,000 - root - INFO - Training starts at step 1
[titan] 2024-06-01 10:00:02,500 - root - INFO - step:  1  loss: 10.9052  memory:  9.53GiB(10.0%)  wps: 1,228  mfu: 7.67%
[titan] 2024-06-01 10:00:20,500 - root - INFO - step: 10  loss: 9.1212  grad_norm: 1.5  memory: 9.60GiB(1%)  tps: 10,240
[titan] 2024-06-01 10:00:21,500 - root - INFO - validate step: 10  loss: 99.0  memory:  9.60GiB(10%)  tps: 10,240
[titan] 2024-06-01 10:00:40,500 - root - INFO - step: 20  loss: nan  grad_norm: nan  memory: 512.00MiB(1%)  tps: 2,048
"""


def test_titans_console_of_every_age(tmp_path):
    (tmp_path / "job.log").write_text(AGES)
    told = series(tmp_path).loc[0]
    assert told.index.tolist() == [1, 10, 20]
    assert told["loss"].tolist()[:2] == [10.9052, 9.1212]
    assert told["dur_s"].tolist()[1:] == [2.0, 2.0]
    assert told["tokens_per_s"].tolist()[1:] == [10_240, 2_048]
    assert told["memory_bytes"].iloc[2] == GIB // 2
    report = steps.analyze(run.discover(tmp_path / "job.log").artefacts)
    assert (report.verdict.kind, report.data.first_nonfinite_step) == ("nonfinite_loss", 20)


def test_ranks_without_a_loss_print_minus_one(tmp_path):
    (tmp_path / "job.log").write_text(
        "[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - step:  1  loss: -1.00000  grad_norm:  1.0\n"
        "[rank3]:[titan] 2026-01-01 10:00:00,000 - root - INFO - step:  1  loss:  7.25000  grad_norm:  1.0\n"
    )
    told = series(tmp_path)["loss"]
    assert np.isnan(told.loc[0, 1])
    assert told.loc[3, 1] == 7.25


def test_a_console_without_steps(tmp_path):
    (tmp_path / "stdout.log").write_text("hello\n")
    with pytest.raises(InputError, match="no step"):
        steps.analyze(run.discover(tmp_path).artefacts)


EVENTS = next(FIXTURE.rglob("*tfevents*"))


def slow_crc(data):
    """Return the CRC-32C, computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def framed(content):
    def check(data):
        return struct.pack("<I", tensorboard.masked(slow_crc(data)))

    length = struct.pack("<Q", len(content))
    return length + check(length) + content + check(content)


def test_the_check_is_crc32c():
    messages = [b"123456789", b"", b"\0" * 32, b"123456780"]
    assert tensorboard.crc32c(messages).tolist() == [0xE3069283, 0, 0x8A9136AA, slow_crc(b"123456780")]


def test_event_files_against_protobuf():
    """Every scalar is the one that protobuf's own parser reads."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, at, expected = EVENTS.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        assert data[at : at + 16 + length] == framed(event.SerializeToString())
        expected += [
            tensorboard.Scalar(event.step, v.tag, v.simple_value, event.wall_time) for v in event.summary.value
        ]
        at += 16 + length
    found = tensorboard.read(EVENTS)
    assert len(expected) > 100
    assert (found.scalars, found.torn, found.damaged) == (expected, False, 0)


def test_newer_scalars_are_tensors(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    tensors = [
        TensorProto(dtype=1, float_val=[1.5]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 2.5)),
        TensorProto(dtype=2, double_val=[3.5]),
        TensorProto(dtype=7, string_val=[b"no number"]),
    ]
    values = [Summary.Value(tag=f"t{i}", tensor=tensor) for i, tensor in enumerate(tensors)]
    event = Event(step=-3, wall_time=9.25, summary=Summary(value=values))
    (tmp_path / "e").write_bytes(framed(event.SerializeToString()))
    assert [(s.step, s.tag, s.value) for s in tensorboard.read(tmp_path / "e").scalars] == [
        (-3, "t0", 1.5), (-3, "t1", 2.5), (-3, "t2", 3.5)
    ]  # fmt: skip


def test_a_cut_event_file_is_read_as_far_as_it_goes(tmp_path):
    data, whole = EVENTS.read_bytes(), tensorboard.read(EVENTS).scalars
    file = tmp_path / "events.out.tfevents.1"
    for end in range(len(data) - 400, len(data), 7):
        file.write_bytes(data[:end])
        found = tensorboard.read(file)
        assert found.scalars == whole[: len(found.scalars)]
        assert found.damaged == 0
        assert len(whole) - 8 <= len(found.scalars) < len(whole)


def test_a_flipped_bit_costs_its_record(tmp_path):
    data, whole = bytearray(EVENTS.read_bytes()), tensorboard.read(EVENTS).scalars
    at = data.index(b"grad_norm")
    data[at] ^= 1
    (tmp_path / "e").write_bytes(data)
    found = tensorboard.read(tmp_path / "e")
    assert (len(found.scalars), found.damaged) == (len(whole) - 1, 1)


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 1 << 20])
def test_hostile_lengths(tmp_path, length):
    head = struct.pack("<Q", length)
    data = EVENTS.read_bytes() + head + struct.pack("<I", tensorboard.masked(slow_crc(head))) + b"rest"
    (tmp_path / "e").write_bytes(data)
    found = tensorboard.read(tmp_path / "e")
    assert found.torn
    assert found.scalars == tensorboard.read(EVENTS).scalars


@pytest.mark.parametrize(
    "content", [b"\x2a\xff\xff\xff\xff\x0f", b"\x2a\x04\x0a\x7fab", b"\xff" * 30, b"\x0b", b"\x12", b"\x08\x01"]
)
def test_hostile_protobuf(tmp_path, content):
    (tmp_path / "events.out.tfevents.1").write_bytes(framed(content))
    assert tensorboard.read(tmp_path / "events.out.tfevents.1").scalars == []
    with pytest.raises(InputError, match="no step"):
        series(tmp_path)


ODD = (None, -1, 0, 3, 1 << 62, 1 << 80, 1e308, -2.5, "nan", "7", [], {}, True)
EVENTS_OF_A_STEP = (
    "step_end",
    "fetching_batch_end",
    "fwd_bwd_end",
    "optim_end",
    "metric_value",
    "step_start",
    "eval_end",
)


def answered(path):
    """Analyse a file without a crash; an error that it has no steps is accepted."""
    with contextlib.suppress(InputError):
        assert steps.analyze(run.discover(path).artefacts).json()


@pytest.mark.parametrize("seed", range(15))
def test_no_structured_record_is_a_crash(tmp_path, here, seed):
    rng = random.Random(seed)

    def record():
        good = {
            "global_rank": 0, "step": rng.randrange(1, 30), "time_us": rng.randrange(10**15), "value": rng.random(),
            "log_type_name": rng.choice(EVENTS_OF_A_STEP), "event_name": "loss", "step_tags": ["gc"],
        }  # fmt: skip
        return good | {key: rng.choice(ODD) for key in rng.sample(sorted(good), rng.randrange(3))}

    lines = [json.dumps(record()) for _ in range(400)]
    (tmp_path / "a.global_rank_0.x.jsonl").write_text("\n".join(lines))
    answered(tmp_path)


@pytest.mark.parametrize("seed", range(15))
def test_no_line_of_a_console_is_a_crash(tmp_path, here, seed):
    rng = random.Random(seed)
    odd = ["nan", "-inf", "1e999", "-", "9" * 14, "1,2,3", "0", "-1", "5GiB", "7.5"]
    head = ["[rank{}]:[titan] 2026-01-01 10:{:02}:00,000", "2026-99-99 10:{}:{:02},123", "[rank99999]: {} {}"]
    lines = [
        f"{rng.choice(head).format(rng.randrange(3), rng.randrange(60))} step: {rng.choice([*odd, '3', '17'])}  "
        + "  ".join(f"{name}: {rng.choice(odd)}" for name in ("loss", "grad_norm", "memory", "tps"))
        for _ in range(60)
    ]
    (tmp_path / "job.log").write_text("\n".join(lines))
    answered(tmp_path)


@pytest.mark.parametrize("seed", range(15))
def test_no_scalar_is_a_crash(tmp_path, here, seed):
    """The event files have correct checksums and any content."""
    rng = random.Random(seed)

    def event():
        value = struct.pack("<f", rng.choice([0.5, 1e38, float("nan"), float("inf"), -1.0]))
        tag = rng.choice(["loss_metrics/global_avg_loss", "grad_norm", "memory/max_reserved(GiB)", "throughput(tps)",
                          "time_metrics/data_loading(s)"]).encode()  # fmt: skip
        scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + value
        step = rng.choice([b"\x01", b"\x05", b"\x7f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x80\x80\x80\x40"])
        wall = struct.pack("<d", rng.choice([1.8e9 + rng.random(), float("nan"), 1e300, -5.0]))
        inner = b"\x0a" + bytes([len(scalar)]) + scalar
        return framed(b"\x09" + wall + b"\x10" + step + b"\x2a" + bytes([len(inner)]) + inner)

    (tmp_path / "events.out.tfevents.1").write_bytes(b"".join(event() for _ in range(80)))
    answered(tmp_path)


TITAN = FIXTURE.parent / "torchtitan_2ranks"
"""The folder of logs that torchtitan 0.3.0 itself wrote; see `torchtitan_job.py` next to it."""


@pytest.fixture(scope="module")
def happened():
    """Return the true steps of the job that wrote these logs, by rank and step, as the job recorded them."""
    return {
        (rank, row["step"]): row for rank in (0, 1) for row in json.loads((TITAN / f"truth_{rank}.json").read_text())
    }


def test_structured_logs_that_torchtitan_wrote(happened):
    told = series(TITAN / "structured_logs")
    assert set(told.index) == set(happened)
    for key, row in told.iterrows():
        assert row["dur_s"] == pytest.approx(happened[key]["dur_ns"] / 1e9, abs=2e-3)
        assert row["tokens_per_s"] == pytest.approx(512 / row["dur_s"])
    assert {step: tags for (rank, step), tags in told["tags"].items() if tags and rank == 0} == {
        10: "gc", 12: "eval", 20: "gc"
    }  # fmt: skip
    table = load(run.discover(TITAN / "structured_logs").artefacts, store.Options())
    assert set(table.phases) == {"gc", "data_wait", "fwd_bwd", "optim", "loss_sync", "eval"}
    assert table.phases["data_wait"].between(0.002, 0.02).all()


@pytest.mark.parametrize(("folder", "digits"), [("tb", 1e-6), ("logs", 5e-5)])
def test_scalars_and_console_that_torchtitan_wrote(happened, folder, digits):
    told = series(TITAN / folder)
    assert [step for rank, step in told.index if rank == 0] == [1, 4, 8, 12, 16, 20, 24]
    for key, row in told.iterrows():
        assert row["loss"] == pytest.approx(happened[key]["loss"], abs=digits)
        assert row["grad_norm"] == pytest.approx(happened[key]["grad_norm"], abs=digits)
    assert (told["memory_bytes"] / GIB).unique().tolist() == [1.5 if folder == "tb" else 2.25]


def test_all_that_torchtitan_wrote_together(happened):
    """The most detailed source counts; what it lacks is taken from the others."""
    told = series(TITAN)
    assert set(told.index) == set(happened)
    known = told[told["loss"].notna()]
    assert [key[1] for key in known.index if key[0] == 0] == [1, 4, 8, 12, 16, 20, 24]
    assert known["loss"].tolist() == pytest.approx([happened[key]["loss"] for key in known.index], abs=1e-6)
    assert (known["memory_bytes"] == 1.5 * GIB).all()


LINE = {
    "start_ns": 5,
    "dur_ns": 7,
    "phases": {"fwd": 3},
    "cpu_ns": {},
    "loss": 1.5,
    "tags": ["first"],
    "seqs": {"0": 4},
}
ODD = [
    {"phases": {"fwd": 1, "eval": 2}, "seqs": {"pp": 9}},
    {"loss": "nan", "local_loss": None, "grad_norm": 2},
    {"limit_bytes": 1 << 40, "tokens": 1 << 70},
    {"dur_ns": True},
    {"phases": 7},
]


def test_lines_may_have_names_and_values_of_their_own(tmp_path):
    rows = [{"step": i} | LINE | extra for i, extra in enumerate([{}, *ODD], 1)]
    log = tmp_path / "rank_0.jsonl"
    log.write_text("\n".join(json.dumps(row) for row in [{"schema": "workbench.steps/1", "rank": 0}, *rows]) + "\n")
    found = content_of(log_lines.read(log).lines)
    named = {field: {name: column.tolist() for name, column in of.items()} for field, of in found.named.items()}
    assert named["phases"] == {"fwd": [3, 1, 3, 3, 3, 0], "eval": [0, 2, 0, 0, 0, 0]}
    assert named["seqs"] == {"0": [4, -1, 4, 4, 4, 4], "pp": [-1, 9, -1, -1, -1, -1]}
    assert found.fixed["loss_state"].tolist() == [1, 1, 2, 1, 1, 1]
    assert found.fixed["tokens"].tolist() == [0, 0, 0, LARGEST, 0, 0]
    assert found.fixed["dur_ns"].tolist() == [7, 7, 7, 7, -1, 7]
    assert found.tags == [["first"]] * 6
