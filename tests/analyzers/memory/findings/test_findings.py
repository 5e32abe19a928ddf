"""Findings about failures with a known cause."""

from pathlib import Path

import msgspec
import pytest

from analyzers import incident, memory, run, store
from analyzers.errors import InputError
from analyzers.memory import views
from analyzers.memory.fragmentation import unused_memory_findings
from analyzers.memory.model import MissingEvidence
from analyzers.memory.oom import owner_words
from analyzers.memory.verdict import state_sentence, uncategorised_finding
from analyzers.report import Status
from analyzers.words import size
from tests.support.nccl_logs import CASES

MIB = 1 << 20
RECORDED = Path(__file__).parents[3] / "fixtures"
OURS = {
    "schema": "workbench.snapshot/1",
    "rank": 1,
    "step": 5,
    "exact": True,
    "made_up_segments": True,
    "lost_notes": 0,
}


def ids(report):
    return {finding.id for finding in report.findings}


@pytest.fixture
def failed(maker):
    """Return the snapshot of rank 1, out of memory in step 6: 40 MiB of older parameters, 160 MiB of activations."""
    inside = [
        maker.frame("aten::linear", "", 0),
        maker.frame("forward", "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134),
        maker.frame("feed_forward", "/home/me/job/trainer/models/llama3/model.py", 88),
        maker.frame("train_step", "/home/me/job/trainer/train.py", 201),
    ]
    made = maker.Recording()
    weight = made.older(40 * MIB)
    made.write("snapshot", 0, 0, [], category="unknown")
    made.note("step#5", "START")
    gone = made.alloc(8 * MIB, inside, category="temporary")
    made.free(gone)
    made.note("step#5", "END")
    made.note("step#6", "START")
    for _ in range(4):
        made.alloc(40 * MIB, inside, category="activations", user_metadata="layers.0")
    made.oom(64 * MIB, 12 * MIB, inside)
    made.ours = OURS | {"limit_bytes": 220 * MIB, "phase": "fwd", "blocks": {weight: ["parameters", "wq.weight"]}}
    return made.snapshot()


def test_out_of_memory_names_rank_step_line_and_what_fills_it(maker, failed):
    report = memory.analyze([maker.save(failed, "rank1_memory_snapshot.pickle", "iteration_5_exit")])
    assert report.verdict.sentence == (
        "Rank 1 ran out of memory at step 6 in feed_forward (trainer/models/llama3/model.py:88):"
        " it requested 64.0 MiB with 12.0 MiB free; 80 % of the 200.0 MiB allocated is activations"
    )
    assert (report.verdict.status, report.verdict.kind, report.verdict.ranks) == (Status.ERROR, "oom", [1])
    [device] = report.data.devices
    assert (device.oom.requested_bytes, device.oom.device_free_bytes) == (64 * MIB, 12 * MIB)
    assert (device.oom.allocated_bytes, device.oom.step, device.oom.index) == (200 * MIB, 6, 8)
    assert {k: v for k, v in device.categories.items() if v} == {"parameters": 40 * MIB, "activations": 160 * MIB}
    assert (device.categories_exact, device.categories_confidence, device.consistent) == (True, 1.0, True)
    top = device.top_stacks[0]
    assert (top.bytes, top.count, top.category) == (160 * MIB, 4, "activations")
    assert top.frames[0] == "/home/me/job/trainer/models/llama3/model.py:88 feed_forward"
    assert device.top_stacks[1].label == "wq.weight"
    assert "memory.oom.spike" in ids(report)


def test_the_report_is_the_contracts_document(maker, failed):
    report = memory.analyze([maker.save(failed, "rank1_memory_snapshot.pickle", "iteration_5_exit")])
    document = msgspec.json.decode(report.json())
    assert document["schema"] == "workbench.memory/1"
    assert document["verdict"]["class"] == "oom"
    promised = {"path", "rank", "device", "step", "entries", "start_allocated_bytes", "peak_allocated_bytes"}
    promised |= {"peak_index", "end_allocated_bytes", "reserved_bytes", "consistent", "oom", "categories"}
    promised |= {"fragmentation", "top_stacks"}
    assert promised <= set(document["data"]["devices"][0])
    assert all(finding["why"] and finding["next"] and finding["evidence"] for finding in document["findings"])
    assert len(report.table("devices")) == 1


def test_the_step_comes_from_the_folder_where_no_note_tells_it(maker, failed):
    failed["external_annotations"] = []
    del failed["workbench"]
    report = memory.analyze([maker.save(failed, step="iteration_5_exit")])
    assert report.data.devices[0].oom.step == 6
    assert memory.analyze([maker.save(failed, step="iteration_7")]).data.devices[0].oom.step == 7


def test_views_of_a_failure(maker, failed):
    artefact = maker.save(failed)
    table = views.timeline(artefact, buckets=3)
    assert table["oom"].tolist() == [0, 64 * MIB]
    assert table["activations"].max() == 160 * MIB
    assert views.categories(artefact).set_index("category").loc["activations", "blocks"] == 4
    assert views.top_stacks(artefact, limit=1)["bytes"].tolist() == [160 * MIB]
    blocks = views.blocks(artefact)
    assert blocks["size"].sum() == 1 << 30
    assert blocks.query("state == 'active'")["requested"].sum() == 200 * MIB
    assert blocks["frame"].iloc[1].endswith("model.py:88 feed_forward")


def leaking(maker, first, steps, leak):
    """Record steps that each keep `leak` bytes and free their other allocations."""
    made, site = maker.Recording(), [maker.frame("keep", "train/loop.py", 7)]
    made.older(MIB)
    for _ in range(first - 1):
        made.older(leak, site)
    for number in range(first, first + steps):
        made.note(f"step#{number}", "START")
        work = made.alloc(3 * MIB, [maker.frame("forward")], category="activations")
        if leak:
            made.alloc(leak, site, category="activations")
        made.free(work)
        made.note(f"step#{number}", "END")
    made.ours = OURS | {"step": first + steps - 1}
    return made.snapshot()


def test_a_leak_is_told_by_line_and_bytes_a_step(maker):
    report = memory.analyze([maker.save(leaking(maker, 1, 6, MIB), step="iteration_6")])
    assert (report.verdict.kind, report.verdict.ranks) == ("leak", [1])
    assert (
        report.verdict.sentence == "Rank 1: memory grows by 1.0 MiB per step from step 1 on in keep (train/loop.py:7)"
    )
    [growth] = report.data.devices[0].growing
    assert (growth.bytes_per_step, growth.steps, growth.category) == (MIB, 6, "activations")


def test_a_steady_run_is_healthy(maker):
    report = memory.analyze([maker.save(leaking(maker, 1, 6, 0), step="iteration_6")])
    assert (report.verdict.kind, report.verdict.status) == ("healthy", Status.OK)
    assert report.findings == []


@pytest.mark.parametrize(("made_up", "kind"), [(False, "leak"), (True, "healthy")])
def test_a_leak_that_only_several_snapshots_show(maker, made_up, kind):
    """On CPU the recorder misses the ends of some blocks, so there a trace must show the leak, too."""
    recordings = [leaking(maker, first, 2, MIB) for first in (1, 3, 5)]
    for made in recordings:
        made["workbench"] |= {"made_up_segments": made_up}
    report = memory.analyze([maker.save(made, step=f"iteration_{2 * n}") for n, made in enumerate(recordings, 1)])
    assert report.verdict.kind == kind
    titles = [f.title for f in report.findings if f.id == "memory.leak"]
    assert titles == (
        ["Memory grows by 1.0 MiB per step from step 3 on in keep (train/loop.py:7)"] if not made_up else []
    )


def test_growth_that_ended_is_no_leak(maker):
    grows, stays = leaking(maker, 1, 6, MIB), leaking(maker, 7, 6, 0)
    report = memory.analyze([maker.save(grows, step="iteration_6"), maker.save(stays, step="iteration_12")])
    assert report.verdict.kind == "healthy"


@pytest.mark.parametrize("sizes", [[100, 300, 200, 400, 500], [1, 1, 1, 1, 1, 1, 900, 1, 1, 800]])
def test_blocks_that_stay_now_and_then_are_no_leak(maker, sizes):
    made, site = maker.Recording(), [maker.frame("keep", "train/loop.py", 7)]
    for number, kept in enumerate(sizes, 1):
        made.note(f"step#{number}", "START")
        made.alloc(kept << 10, site, category="activations")
        made.note(f"step#{number}", "END")
    made.ours = OURS | {"step": len(sizes)}
    assert memory.analyze([maker.save(made.snapshot())]).verdict.kind == "healthy"


def test_free_memory_in_pieces_is_fragmentation(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    held = [made.alloc(20 * MIB) for _ in range(20)]
    for address in held[::2]:
        made.free(address)
    made.oom(100 * MIB, 1 * MIB, [])
    report = memory.analyze([maker.save(made.snapshot())])
    [device] = report.data.devices
    assert device.fragmentation.inactive_split_bytes == 200 * MIB
    assert device.fragmentation.largest_free_block_bytes == 20 * MIB
    assert {"memory.oom", "memory.fragmentation"} <= ids(report)
    assert report.verdict.kind == "oom"


def test_reserved_at_the_failure_is_walked_back_from_the_end(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    made.oom(100 * MIB, 1 * MIB, [])
    made.write("segment_free", 1 << 40, 30 * MIB, [])
    made.write("segment_map", 1 << 40, 7 * MIB, [])
    report = memory.analyze([maker.save(made.snapshot())])
    [device] = report.data.devices
    assert device.oom.reserved_bytes == (400 + 30 - 7) * MIB
    assert device.reserved_bytes == 400 * MIB
    # No tensor was allocated, so no category is to blame.
    finding = next(finding for finding in report.findings if finding.id == "memory.oom")
    assert finding.why.endswith("No tensor held any memory.")
    assert "Shard" not in finding.next
    assert "nvidia-smi" in finding.next


def test_a_peak_near_the_limit_is_told(maker):
    made = maker.Recording()
    made.alloc(95 * MIB, category="parameters")
    made.ours = OURS | {"limit_bytes": 100 * MIB}
    report = memory.analyze([maker.save(made.snapshot())])
    assert (report.verdict.kind, ids(report)) == ("near_limit", {"memory.near_limit"})


def test_one_bad_file_among_many_is_a_finding(maker):
    good, bad = maker.save(maker.wander(1).snapshot()), maker.save({"segments": 3}, "rank1_memory_snapshot.pickle")
    report = memory.analyze([bad, good])
    assert [device.rank for device in report.data.devices] == [0]
    [finding] = [f for f in report.findings if f.id == "memory.unreadable"]
    assert (finding.ranks, finding.evidence[0].source) == ([1], str(bad.path))
    with pytest.raises(InputError, match="not the structure"):
        memory.analyze([bad])


def test_ranks_with_the_same_trouble_share_a_finding(maker, failed):
    del failed["workbench"]["rank"]
    files = [maker.save(failed, f"rank{r}_memory_snapshot.pickle", "iteration_5_exit") for r in range(6)]
    report = memory.analyze(files)
    assert report.verdict.ranks == [0, 1, 2, 3, 4, 5]
    assert report.verdict.sentence.startswith("Ranks 0-5 ran out of memory at step 6")
    assert memory.analyze(files, store.Options(rank=2)).verdict.ranks == [2]
    assert memory.analyze(files[:2]).verdict.sentence.startswith("Ranks 0-1 ran")


def test_a_choice_that_leaves_nothing_is_told(maker):
    artefact = maker.save(maker.wander(1).snapshot())
    with pytest.raises(InputError, match="nothing of this rank"):
        memory.analyze([artefact], store.Options(rank=7))


def test_an_empty_history_is_unknown(maker):
    report = memory.analyze([maker.save({"segments": [], "device_traces": [[]]})])
    assert (report.verdict.kind, report.data.devices[0].peak_index) == ("unknown", -1)
    assert report.inputs[0].kind == run.Kind.SNAPSHOT


def test_the_door_takes_a_folder_a_file_or_several_of_either(maker, failed):
    artefact = maker.save(failed, "rank1_memory_snapshot.pickle", "iteration_5_exit")
    for snapshots in (str(maker.folder), artefact.path, [artefact.path], [artefact]):
        report = memory.analyze(snapshots)
        assert (report.verdict.kind, report.verdict.ranks) == (memory.MemoryClass.OOM, [1])
    (maker.folder / "empty").mkdir()
    with pytest.raises(InputError):
        memory.analyze(maker.folder / "empty")


def test_a_batch_far_larger_than_before_is_checked_first():
    [snapshot] = [
        one for one in run.discover(RECORDED / "oom_4ranks").of(run.Kind.SNAPSHOT) if (one.rank, one.step) == (3, 5)
    ]
    [finding] = [finding for finding in memory.analyze([snapshot]).findings if finding.id == "memory.oom"]
    assert finding.title.endswith("; the inputs were about 130 times as large as in earlier steps")
    assert finding.next.startswith("First check why the failing step's batch is so large")


def test_memory_outside_of_the_allocator_is_accounted_for(maker):
    """The driver says that 60 of 80 GiB are in use, but the allocator knows only one of them."""
    made = maker.Recording()
    made.alloc(512 * MIB, [maker.frame("forward", "/job/model.py")], category="activations")
    made.alloc(32 * MIB, [], category="workspace")
    made.ours = OURS | {
        "exact": False,
        "made_up_segments": False,
        "limit_bytes": 80 << 30,
        "device_used_bytes": 60 << 30,
    }
    report = memory.analyze(maker.save(made.snapshot()).path)
    parts = {part.holder.value: part.bytes for part in report.data.devices[0].account}
    assert sum(parts.values()) == 80 << 30
    assert (parts["tensors"], parts["workspaces"], parts["free"]) == (512 * MIB, 32 * MIB, 20 << 30)
    assert parts["context"] + parts["outside"] == (60 << 30) - (1 << 30)
    finding = next(finding for finding in report.findings if finding.id == "memory.untracked")
    assert "59.0 GiB of GPU memory" in finding.title


def test_what_the_driver_counts_for_the_process_separates_it_from_others(maker):
    """Of 60 GiB in use this process has 20: 1 GiB is reserved, the rest is the context, NCCL and other libraries."""
    made = maker.Recording()
    made.alloc(512 * MIB, [maker.frame("forward", "/job/model.py")], category="activations")
    made.ours = OURS | {
        "exact": False,
        "made_up_segments": False,
        "limit_bytes": 80 << 30,
        "device_used_bytes": 60 << 30,
        "device_process_bytes": 20 << 30,
        "nccl_groups": 4,
    }
    report = memory.analyze(maker.save(made.snapshot()).path)
    device = report.data.devices[0]
    parts = {part.holder.value: part.bytes for part in device.account}
    assert parts["other_processes"] == 40 << 30
    assert parts["context"] + parts["libraries"] == 19 << 30
    libraries = next(part for part in device.account if part.holder == "libraries")
    finding = next(finding for finding in report.findings if finding.id == "memory.untracked")
    groups = f"this rank is in 4 process groups of NCCL: on average at most {size(libraries.high_bytes // 4)} for each"
    assert groups in [fact.text for fact in finding.evidence]


def test_buffers_of_nccl_are_those_of_the_log_in_the_same_run(maker, tmp_path):
    """Of the 7 GiB outside of the allocator, NCCL's log explains 2112 MiB, of which 1536 are for NVLink SHARP."""
    made = maker.Recording()
    made.alloc(512 * MIB, [maker.frame("forward", "/job/model.py")], category="activations")
    made.ours = OURS | {
        "exact": False,
        "made_up_segments": False,
        "limit_bytes": 80 << 30,
        "device_used_bytes": 60 << 30,
        "device_process_bytes": 8 << 30,
        "nccl_groups": 4,
    }
    maker.save(made.snapshot(), "rank1_memory_snapshot.pickle")
    (tmp_path / "job.log").write_text(next(case.text for case in CASES if "NVLS" in case.name))
    report = incident.analyze(tmp_path)
    parts = {part.holder.value: part.bytes for part in report.data.memory.devices[0].account}
    assert parts["nccl"] == 2112 * MIB
    assert parts["nccl"] + parts["context"] + parts["libraries"] == 7 << 30
    finding = next(finding for finding in report.findings if finding.id == "memory.untracked")
    assert "NVLink SHARP" in "".join(fact.text for fact in finding.evidence)


@pytest.fixture
def one_device(maker, failed):
    """Return the device of a snapshot, to be changed."""
    return memory.analyze([maker.save(failed, "rank1_memory_snapshot.pickle")]).data.devices[0]


@pytest.mark.parametrize(("frames", "words"), [([], "have no stack"), (["job.py:3"], "have a stack, but")])
def test_unknown_memory_with_stacks_is_not_said_to_lack_them(one_device, frames, words):
    stack = msgspec.structs.replace(one_device.top_stacks[0], category="unknown", frames=frames)
    device = msgspec.structs.replace(one_device, top_stacks=[stack])
    finding = uncategorised_finding(device, device.peak_allocated_bytes)
    assert words in finding.why
    assert ("MemoryRecorder" in finding.next) is (not frames)
    texts = [fact.text for fact in finding.evidence]
    where = "none of them has a stack" if not frames else "of unknown category: 160.0 MiB in 4 blocks"
    assert where in texts[0]


@pytest.mark.parametrize(("on_cpu", "recorder"), [(True, "MemoryRecorder"), (False, "_record_memory_history")])
def test_unknown_memory_is_recorded_by_what_the_device_has(one_device, on_cpu, recorder):
    """PyTorch's own function raises an exception where there is no CUDA."""
    stack = msgspec.structs.replace(one_device.top_stacks[0], category="unknown", frames=[])
    fragmentation = msgspec.structs.replace(one_device.fragmentation, made_up_segments=on_cpu)
    device = msgspec.structs.replace(one_device, top_stacks=[stack], fragmentation=fragmentation)
    advice = uncategorised_finding(device, device.peak_allocated_bytes).next
    assert [name for name in ("MemoryRecorder", "_record_memory_history") if name in advice] == [recorder]


def test_blocks_without_a_stack_are_the_evidence_that_stacks_are_missing(one_device):
    """In a state without a history there is no peak, and the small part that has a stack explains nothing."""
    bare = msgspec.structs.replace(one_device.top_stacks[0], category="unknown", frames=[], bytes=159 * MIB)
    told = msgspec.structs.replace(bare, frames=["job.py:3"], bytes=MIB)
    missing = [*one_device.missing, MissingEvidence.HISTORY]
    device = msgspec.structs.replace(one_device, top_stacks=[bare, told], missing=missing)
    finding = uncategorised_finding(device, 160 * MIB)
    assert " of allocated memory is of unknown category: 160.0 MiB of " in finding.title
    assert [fact.text for fact in finding.evidence] == [
        "blocks of unknown category: 160.0 MiB; 159.0 MiB of it has no stack"
    ]


@pytest.mark.parametrize(
    ("bare", "clause"),
    [
        ([1], "rank 1 has no history of allocations, so what happened there is unknown"),
        ([1, 2], "2 of 3 snapshots (ranks 1-2) have no history of allocations, so what happened there is unknown"),
    ],
)
def test_a_job_of_which_one_rank_has_no_history_is_not_called_healthy(maker, bare, clause):
    snapshots = []
    for rank in range(3):
        made = maker.Recording(segment_bytes=MIB)
        made.alloc(MIB)
        made.entries = [] if rank in bare else made.entries
        snapshots.append(maker.save(made.snapshot(), f"rank{rank}_memory_snapshot.pickle"))
    found = memory.analyze(snapshots).verdict
    assert (found.status, found.kind) == ("unknown", "unknown")
    assert found.sentence.startswith("No failure is recorded: rank 0 peaked at 1.0 MiB")
    assert found.sentence.endswith(f"; {clause}")


@pytest.mark.parametrize(("split", "words"), [(300, "none of it: all of it is in segments"), (0, "300.0 MiB. If")])
def test_unused_memory_is_given_back_only_where_that_is_possible(one_device, split, words):
    state = msgspec.structs.replace(
        one_device.fragmentation, made_up_segments=False, allocated_bytes=0, inactive_split_bytes=split * MIB
    )
    device = msgspec.structs.replace(one_device, fragmentation=state, reserved_bytes=300 * MIB, pools=[], retries=[])
    [finding] = unused_memory_findings(device)
    assert f"would give back {words}" in finding.next


def test_one_of_several_devices_of_a_process_is_named(one_device):
    unranked = msgspec.structs.replace(one_device, rank=None)
    other = msgspec.structs.replace(unranked, device=1, end_allocated_bytes=1)
    assert state_sentence([unranked]).startswith("the process holds")
    assert state_sentence([unranked, other]).startswith("the process on device 0 (of 2) holds")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ({"limit_name": "RLIMIT_DATA"}, "(RLIMIT_DATA, `ulimit -d`, which limits its data: heap, stacks"),
        ({"limit_name": "RLIMIT_AS"}, "(RLIMIT_AS, `ulimit -v`, which limits its address space"),
        ({}, "(`ulimit -d` or `ulimit -v`: the recording does not say which)"),
    ],
)
def test_a_failed_allocation_on_a_cpu_names_the_limit_of_the_process(maker, failed, name, words):
    failed["workbench"] |= {"made_up_segments": True, **name}
    report = memory.analyze([maker.save(failed, "rank1_memory_snapshot.pickle", "iteration_5_exit")])
    [finding] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert f"The process is limited to 220.0 MiB {words}" in finding.why
    assert "only 12.0 MiB of this was free. Python, libraries and threads took 8.0 MiB." in finding.why
    assert finding.evidence[0].text == "requested: 64.0 MiB; free: 12.0 MiB of 220.0 MiB"
    assert report.data.devices[0].limit_name == name.get("limit_name", "")


@pytest.mark.parametrize(
    ("label", "owner"),
    [
        ("input 0", "argument 0 of the model's forward()"),
        ("loss", "operations outside of the model, such as the loss"),
        ("layers.0", "layers.0"),
    ],
)
def test_the_evidence_names_the_owner_of_memory(label, owner):
    assert owner_words(label) == owner
