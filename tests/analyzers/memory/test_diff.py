"""Two snapshots, many ranks, and trees at an instant, compared with sums from a plain loop over the entries."""

import random
from collections import Counter
from pathlib import Path

import pytest

from analyzers import compare, memory, run
from analyzers.errors import InputError
from analyzers.memory import diff, views

MIB = 1 << 20
FIXTURES = Path(__file__).parents[2] / "fixtures"


def held_at(snapshot, entry):
    """Return {(file, name:line): bytes} live after an entry, computed by a plain loop."""
    live = {}
    trace = snapshot["device_traces"][0]
    born = {e["addr"] for e in trace if e["action"] == "alloc"}
    freed = [e for e in trace if e["action"] == "free_completed"]
    for one in snapshot["segments"][0]["blocks"]:
        if one["state"] != "inactive" and one["address"] not in born:
            live[one["address"]] = (one["requested_size"], one["frames"])
    for event in reversed(freed):  # an older block's first event is its free, and its stack is not known
        first = next(e for e in trace if e.get("addr") == event["addr"] and e["action"] in {"alloc", "free_completed"})
        if first is event:
            live[event["addr"]] = (event["size"], [])
    for event in trace[: entry + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], event["frames"])
        elif event["action"] == "free_completed":
            del live[event["addr"]]
    sums = Counter()
    for size, frames in live.values():
        path = (frames[0]["filename"], f"{frames[0]['name']}:{frames[0]['line']}") if frames else ("(no stack)",)
        sums[path] += size
    return sums


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_by_line_holds_what_stepping_through_the_entries_finds(maker, seed):
    snapshot = maker.wander(seed, 200).snapshot()
    artefact = maker.save(snapshot)
    for entry in random.Random(seed).sample(range(len(snapshot["device_traces"][0])), 5):
        table = views.tree(artefact, by="line", entry=entry)
        children = set(table["parent"])
        leaves = {row.path: row.bytes for row in table.itertuples() if row.node not in children}
        expected = held_at(snapshot, entry)
        assert leaves == expected
        assert table.loc[table["depth"] == 1, "bytes"].sum() == sum(expected.values())


def test_trees_of_all_kinds_add_up_and_stay_small(maker):
    made = maker.Recording()
    for number in range(900):
        made.alloc(MIB, [maker.frame(f"f{number}")], category="activations", user_metadata=f"layers.{number}.wq")
    artefact = maker.save(made.snapshot())
    for by in ("category", "module", "line", "stack", "whole_stack"):
        table = views.tree(artefact, by=by)
        assert len(table) <= 500
        assert (table["parent"] < table["node"]).all()
    top = views.tree(artefact, by="module", depth=1)
    assert top[["name", "bytes", "blocks"]].to_numpy().tolist() == [["layers", 900 * MIB, 900]]
    with pytest.raises(InputError, match="cannot group by colour"):
        views.tree(artefact, by="colour")


def recording(maker, sizes, line=5, root="/home/a/job"):
    """Return a recording with a block for each label: `sizes` gives its category and size; all have the same source
    line.
    """
    made = maker.Recording()
    for label, (category, size) in sizes.items():
        made.alloc(size, [maker.frame("run", f"{root}/train/model.py", line)], category=category, user_metadata=label)
    return made.snapshot()


def test_a_diff_tells_what_appeared_grew_shrank_and_went(maker):
    a = {"one": ("parameters", 4 * MIB), "two": ("activations", 8 * MIB), "three": ("activations", 2 * MIB)}
    b = {"one": ("parameters", 4 * MIB), "two": ("activations", 20 * MIB), "four": ("gradients", MIB)}
    first = maker.save(recording(maker, a), step="iteration_5")
    second = maker.save(recording(maker, b, line=9, root="/srv/b"), step="iteration_6")
    found = diff.between(diff.Instant(artefact=first), diff.Instant(artefact=second))
    assert (found.a_bytes, found.b_bytes) == (14 * MIB, 25 * MIB)
    assert {c.what: (c.state, c.bytes // MIB) for c in found.modules} == {
        "one.parameters": ("same", 0),
        "two.activations": ("grew", 12),
        "three.activations": ("went", -2),
        "four.gradients": ("appeared", 1),
    }
    assert {c.what: c.bytes // MIB for c in found.categories} == {"activations": 10, "gradients": 1, "parameters": 0}
    [line] = found.lines  # the file moved and the line has another number, but it is the same line
    assert (line.state, line.what, line.bytes) == ("grew", "train/model.py run:9", 11 * MIB)
    assert found.table("modules")["change"].sum() == 11 * MIB
    told, [finding] = memory.compare([first], [second])
    assert told == found
    assert compare.analyze(run.discover(first.path), run.discover(second.path)).data.memory == found
    assert finding.title == "Peak allocated memory grew by 11.0 MiB, mostly activations"
    assert memory.compare([first], [first])[1] == []
    back, [shrank] = memory.compare([second], [first])
    assert shrank.id == "compare.memory.shrank"
    assert [change.bytes for change in back.categories] == [-change.bytes for change in found.categories]


def test_a_diff_of_two_instants_of_one_file(maker):
    made = maker.Recording()
    kept = made.alloc(MIB, [maker.frame("a")])
    made.alloc(3 * MIB, [maker.frame("b")])
    made.free(kept)
    artefact = maker.save(made.snapshot())
    found = diff.between(diff.Instant(artefact=artefact, entry=0), diff.Instant(artefact=artefact, entry=3))
    assert {c.what.split()[-1]: c.state for c in found.lines} == {"a:1": "went", "b:1": "appeared"}


def test_the_rank_that_runs_out_first_is_named_with_the_reason(maker):
    usual = {"w": ("parameters", 40 * MIB), "x": ("activations", 20 * MIB)}
    files = [
        maker.save(recording(maker, usual | ({"y": ("activations", 30 * MIB)} if rank == 2 else {})), name)
        for rank, name in enumerate(f"rank{rank}_memory_snapshot.pickle" for rank in range(4))
    ]
    report = memory.analyze(files)
    [finding] = [f for f in report.findings if f.id == "memory.uneven"]
    assert finding.ranks == [2]
    assert finding.title.startswith("Rank 2 peaks 30.0 MiB above the median of the other ranks, so it would run out")
    assert (
        "activations: 50.0 MiB on rank 2, 20.0 MiB in the median of the other ranks (100 %" in finding.evidence[0].text
    )
    table = memory.matrix(report.data.devices)
    assert table["rank"].tolist()[0] == 2
    assert table.set_index("rank").loc[1, "activations"] == 20 * MIB
    assert "memory.uneven" not in {f.id for f in memory.analyze(files[:2]).findings}


def test_memory_of_two_runs_is_of_one_kind():
    """The peak of a snapshot is compared only with that of another snapshot, not with a step log's resident set."""
    leak, oom, healthy = (run.discover(FIXTURES / name) for name in ("leak_4ranks", "oom_4ranks", "healthy_4ranks"))
    report = compare.analyze(leak, healthy)
    assert min(report.data.a.memory_bytes, report.data.b.memory_bytes) > 100 * MIB
    exact = compare.analyze(leak, oom)
    assert exact.data.a.memory_bytes == max(
        d.peak_allocated_bytes for d in memory.analyze(leak.of(run.Kind.SNAPSHOT)).data.devices
    )
    [grown] = [finding for finding in exact.findings if finding.id == "compare.memory"]
    assert "95 %" not in grown.why
    # The snapshots were compared already: no advice to do so.
    assert "workbench compare" not in grown.next
    assert "tables of this report" in grown.next
    assert not [row for row in exact.data.rows if row.what == "peak memory" and row.interval]
