"""A run whose nodes sent their files to `nodes/` of one folder is answered as if all had been on one disk."""

import json
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from analyzers import hangs, incident
from analyzers.run import Node, discover, merged_manifest, rank_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
SPLIT = sorted(path.name for path in FIXTURES.glob("*_4ranks"))
FIRST_OF_SECOND_NODE = 2
SECOND_NS = 1_000_000_000


def split(run, target):
    """Put ranks 0 and 1 of a run into `target`, and the others into `nodes/n1`, as two nodes would leave them."""
    node = target / "nodes" / "n1"
    for path in (p for p in run.rglob("*") if p.is_file()):
        relative = path.relative_to(run)
        if path.name == "collection.json":
            split_collection(path, target / relative, node / relative)
            continue
        if path.name == "run.json":
            continue
        if relative.parts[0] == "logs":
            copy_log(path, relative, target, node)
            continue
        rank = rank_of(path)
        copy(path, (node if rank is not None and rank >= FIRST_OF_SECOND_NODE else target) / relative)
    split_manifest(run, target, node)
    return target


def copy(path, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)


def copy_log(path, relative, target, node):
    """Each node numbers its workers from 0, in a folder of its own launch."""
    local = int(relative.parts[-2])
    if local < FIRST_OF_SECOND_NODE:
        copy(path, target / relative)
    else:
        copy(path, node / "logs" / "workbench_n1" / "attempt_0" / str(local - FIRST_OF_SECOND_NODE) / path.name)


def split_collection(path, first, second):
    content = json.loads(path.read_bytes())
    for target, ranks in ((first, "01"), (second, "23")):
        rounds = [r | {"ranks": {k: v for k, v in r["ranks"].items() if k in ranks}} for r in content["rounds"]]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content | {"rounds": rounds}))


def split_manifest(run, target, node):
    manifest = json.loads((run / "run.json").read_bytes())
    codes = manifest.get("exit_codes", {})
    launch = next((p.name for p in (target / "logs").glob("workbench_*")), "workbench_n0")
    own = manifest | {"exit_codes": {r: c for r, c in codes.items() if int(r) < FIRST_OF_SECOND_NODE}}
    own |= {"launches": {launch: {"host": "n0", "first_rank": 0}}}
    others = {"schema": "workbench.run/1", "status": manifest["status"], "cause": manifest.get("cause")}
    others |= {"exit_codes": {r: c for r, c in codes.items() if int(r) >= FIRST_OF_SECOND_NODE}}
    others |= {"launches": {"workbench_n1": {"host": "n1", "first_rank": FIRST_OF_SECOND_NODE}}}
    for folder, content in ((target, own), (node, others)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(content))


def write_reports(folder, nodes, *, expected=0):
    now = time.time_ns()
    for name, (silent_s, ended) in nodes.items():
        report = Node(session=name, host=name, last_ns=now - silent_s * SECOND_NS, ended=ended, expected=expected)
        (folder / "nodes" / name).mkdir(parents=True, exist_ok=True)
        (folder / "nodes" / name / "node.json").write_bytes(msgspec.json.encode(report))


@pytest.mark.parametrize("name", SPLIT)
def test_a_run_of_two_nodes_gets_the_answer_of_one_disk(name, tmp_path):
    joined = split(FIXTURES / name, tmp_path / "home")
    write_reports(joined, {"n1": (1, True)}, expected=1)
    assert rank_of(next((joined / "nodes").rglob("groups_3.json"))) == 3
    one, two = incident.analyze(FIXTURES / name), incident.analyze(joined)
    assert two.verdict == one.verdict
    assert [(f.id, f.ranks, f.title, f.next) for f in two.findings] == [
        (f.id, f.ranks, f.title, f.next) for f in one.findings
    ]
    assert [link.text for link in two.data.chain] == [link.text for link in one.data.chain]
    assert (two.data.hang is None) == (one.data.hang is None)
    if one.data.hang and two.data.hang:
        assert two.data.hang.waits == one.data.hang.waits


def lose_second_node(folder):
    """Keep of the second node what it sends while it trains."""
    node = folder / "nodes" / "n1"
    for path in [*(node / "dumps").rglob("*"), *(node / "logs").rglob("*"), node / "run.json"]:
        if path.is_file() and not path.name.startswith("groups_"):
            path.unlink()
    return folder


def test_a_node_that_fell_silent_is_named(tmp_path):
    folder = lose_second_node(split(FIXTURES / "stuck_4ranks", tmp_path / "home"))
    write_reports(folder, {"n0": (0, True), "n1": (60, False)})
    verdict = hangs.analyze(folder).verdict
    assert (verdict.kind, verdict.ranks) == ("dead", [2, 3])
    assert verdict.sentence.startswith("Node n1 (ranks 2-3) was lost")
    assert verdict.missing[0].startswith("node n1 (ranks 2-3) is silent since")
    assert incident.analyze(folder).verdict.ranks == [2, 3]


def test_a_stuck_rank_is_to_blame_although_a_node_was_lost(tmp_path):
    folder = split(FIXTURES / "stuck_4ranks", tmp_path / "home")
    first, second = folder / "dumps", folder / "nodes" / "n1" / "dumps"
    (second / "rank_2").unlink()
    (second / "stacks_2.txt").unlink()
    write_reports(folder, {"n0": (0, True), "n1": (60, False)})
    verdict = hangs.analyze(folder).verdict
    assert (verdict.kind, verdict.ranks) == ("host_stuck", [3])
    assert "node n1 (ranks 2-3) is silent since" in verdict.missing[0]
    assert first.exists()


def test_a_node_that_never_sent_anything_is_missing(tmp_path):
    folder = split(FIXTURES / "stuck_4ranks", tmp_path / "home")
    shutil.rmtree(folder / "nodes" / "n1")
    write_reports(folder, {"n0": (0, True)}, expected=2)
    verdict = hangs.analyze(folder).verdict
    assert verdict.kind == "unknown"
    assert verdict.missing[0] == "1 node sent nothing: no file of ranks 2-3"


@pytest.mark.parametrize(
    ("ended", "missing"), [(True, ["node n1 (ranks 2-3) had not sent all of its files"]), (False, [])]
)
def test_a_node_that_still_sends_is_not_lost(tmp_path, ended, missing):
    folder = split(FIXTURES / "stuck_4ranks", tmp_path / "home")
    write_reports(folder, {"n0": (0, ended), "n1": (5, False)})
    verdict = hangs.analyze(folder).verdict
    assert (verdict.kind, verdict.ranks, verdict.missing) == ("host_stuck", [3], missing)


@pytest.mark.parametrize("content", ["", "[]", '{"last_ns": "x"}', "\x00" * 99])
def test_a_damaged_list_of_nodes_changes_no_answer(tmp_path, content):
    folder = split(FIXTURES / "stuck_4ranks", tmp_path / "home")
    (folder / "nodes" / "n1" / "node.json").write_text(content)
    verdict = hangs.analyze(folder).verdict
    assert (verdict.kind, verdict.ranks) == ("host_stuck", [3])


def test_manifests_are_merged(tmp_path):
    first = {"status": "completed", "world_size": 4, "exit_codes": {"0": 0}, "cause": None, "launches": {"a": {}}}
    second = {"status": "failed", "exit_codes": {"2": -9}, "cause": {"time_ns": 5, "rank": 2}, "launches": {"b": {}}}
    third = {"status": "failed", "exit_codes": [], "cause": {"time_ns": 4, "rank": 3}}
    merged = merged_manifest(first, [second, third])
    assert merged["status"] == "failed"
    assert merged["exit_codes"] == {"0": 0, "2": -9}
    assert merged["launches"] == {"a": {}, "b": {}}
    assert merged["cause"]["rank"] == 3
    assert merged["world_size"] == 4
    assert merged_manifest({}, []) == {}


def test_the_manifest_of_a_run_is_its_own_and_not_that_of_a_node(tmp_path):
    for path, argv in (("run.json", "own"), ("nodes/a/run.json", "a")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps({"schema": "workbench.run/1", "argv": argv}))
    assert discover(tmp_path).manifest()["argv"] == "own"
