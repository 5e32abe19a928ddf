"""What nodes say of processes and GPUs: NCCL's RAS names dead ranks, and errors of GPUs are evidence on their node."""

import json
import shutil
from pathlib import Path

import pytest

from analyzers import hangs, incident
from analyzers.node_health import Process, device_faults, driver_errors, processes_in, rank_of_process

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEXTS = Path(__file__).parent / "node_texts"


@pytest.fixture
def run(tmp_path):
    """A run whose rank 3 is stuck; ranks 2 and 3 ran on host n1, and n0 has what it can say."""
    folder = shutil.copytree(FIXTURES / "stuck_4ranks", tmp_path / "run")
    for rank in range(4):
        path = folder / "dumps" / f"groups_{rank}.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"host": f"n{rank // 2}"}))
    return folder


def without_dumps(folder, *ranks):
    """Remove all that the collector of a node would have brought."""
    for rank in ranks:
        for name in (f"rank_{rank}", f"stacks_{rank}.txt", f"exit_{rank}.json"):
            (folder / "dumps" / name).unlink(missing_ok=True)
    path = folder / "dumps" / "collection.json"
    content = json.loads(path.read_bytes())
    for number in content["rounds"]:
        number["ranks"] = {rank: answer for rank, answer in number["ranks"].items() if int(rank) not in ranks}
    path.write_text(json.dumps(content))
    manifest = folder / "run.json"
    codes = json.loads(manifest.read_bytes())
    codes["exit_codes"] = {rank: code for rank, code in codes.get("exit_codes", {}).items() if int(rank) not in ranks}
    manifest.write_text(json.dumps(codes))
    shutil.rmtree(folder / "logs", ignore_errors=True)
    return folder


def say(folder, name, to):
    pids = {
        f"pid{rank}": json.loads((folder / "dumps" / f"groups_{rank}.json").read_bytes())["pid"] for rank in range(4)
    }
    text = (TEXTS / name).read_text()
    for place, pid in pids.items():
        text = text.replace(f"{{{place}}}", str(pid))
    (folder / to).parent.mkdir(exist_ok=True)
    (folder / to).write_text(text)


def test_without_ras_nothing_shows_which_rank_died(run):
    assert hangs.analyze(without_dumps(run, 2, 3)).verdict.kind == "unknown"


@pytest.mark.parametrize(
    ("name", "ranks", "says"),
    [
        ("ras_dead.txt", [3], "NCCL's RAS calls its process dead"),
        ("ras_node_dead.txt", [2, 3], "NCCL's RAS calls its process dead"),
        ("ras_silent.txt", [3], "did not answer NCCL's RAS"),
    ],
)
def test_a_rank_that_ras_misses_is_dead(run, name, ranks, says):
    say(without_dumps(run, 2, 3), name, "dumps/nccl_ras_n0.txt")
    report = hangs.analyze(run)
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", ranks)
    assert says in report.verdict.sentence
    assert any(e.source.endswith("nccl_ras_n0.txt") for e in report.findings[0].evidence)


def test_ranks_that_answer_ras_are_not_blamed(run):
    say(without_dumps(run, 2, 3), "ras_ok.txt", "dumps/nccl_ras_n0.txt")
    assert hangs.analyze(run).verdict.kind == "unknown"


@pytest.mark.parametrize("name", ["ras_dead.txt", "ras_node_dead.txt", "ras_silent.txt", "ras_ok.txt"])
def test_a_dump_counts_more_than_ras(run, name):
    before = hangs.analyze(run).verdict
    say(run, name, "dumps/nccl_ras_n0.txt")
    assert hangs.analyze(run).verdict == before


def test_a_later_status_of_ras_says_nothing_of_these_dumps(run):
    say(without_dumps(run, 2, 3), "ras_node_dead.txt", "dumps/set_2/nccl_ras_n0.txt")
    assert hangs.analyze(run).verdict.kind == "unknown"


def test_an_error_of_a_gpu_is_evidence_on_the_node_of_the_culprit(run):
    say(run, "dmesg_fallen.txt", "health/dmesg_n1.txt")
    say(run, "nvidia_smi_ecc.txt", "health/nvidia_smi_n1.txt")
    report = hangs.analyze(run)
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [3])
    texts = [e.text for e in report.findings[0].evidence]
    assert any(text.startswith("host n1 reported Xid 79 of GPU 0000:b3:00") for text in texts)
    assert any("3 uncorrectable ECC errors (DRAM Uncorrectable)" in text for text in texts)
    assert not any("Xid 45" in text for text in texts)


def test_an_error_of_a_gpu_on_another_node_is_none(run):
    say(run, "dmesg_fallen.txt", "health/dmesg_n0.txt")
    assert not any("Xid" in e.text for e in hangs.analyze(run).findings[0].evidence)


def test_a_whole_run_names_the_gpu(run):
    say(run, "dmesg_fallen.txt", "health/dmesg_n1.txt")
    verdict = incident.analyze(run).verdict
    assert verdict.kind == "hardware"
    assert "Xid 79" in verdict.sentence


def test_a_healthy_node_adds_nothing(run):
    before = incident.analyze(run)
    (run / "health").mkdir()
    (run / "health" / "nvidia_smi_n1.txt").write_text("Attached GPUs : 1\nGPU 00000000:1B:00.0\n    ECC Errors\n")
    after = incident.analyze(run)
    assert after.verdict == before.verdict
    assert after.findings == before.findings


def test_devices_with_errors_since_their_reset_are_named():
    assert device_faults((TEXTS / "nvidia_smi_ecc.txt").read_text()) == [
        "GPU 00000000:B3:00.0 has 3 uncorrectable ECC errors (DRAM Uncorrectable)",
        "GPU 00000000:B3:00.0 could not remap a faulty row of its memory",
    ]
    assert driver_errors((TEXTS / "dmesg_fallen.txt").read_text())[-1] == "GPU 0000:b3:00.0 has fallen off the bus"


def test_a_process_id_of_two_nodes_names_no_rank_without_its_host():
    processes = {0: Process(10, "n0"), 2: Process(10, "n1"), 3: Process(11, "n1")}
    assert rank_of_process(processes, 10, "172.16.64.213") is None
    assert rank_of_process(processes, 10, "n1") == 2
    assert rank_of_process(processes, 11, "172.16.64.213") == 3
    assert rank_of_process(processes, 12, "n1") is None


@pytest.mark.parametrize(
    "text", ["", "\x00" * 1000, "DEAD\n" * 10_000, "Process 1 on node x\n" * 9, "#0-0 (1) DEAD\n  Rank 3"]
)
def test_any_text_is_read(text):
    assert processes_in(text) == []
    assert driver_errors(text) == device_faults(text) == []
