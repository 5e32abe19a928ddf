"""`workbench collect`: files of nodes come to one folder, whole, and nothing else is written there."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from receivers import PATIENCE_S, environment, free_port, wait_until

from analyzers.nodes.received import read_node_list
from workbench.collect import node_folder
from workbench.collect.link import Link, Rejected, Unreachable
from workbench.collect.node_dumps import last_incident, request_dumps
from workbench.collect.outgoing import artefacts_below
from workbench.collect.parcel import PARCEL_BYTES, Incident, Parcel, Part, Reply
from workbench.collect.receiver import Receiver
from workbench.collect.sender import Sender
from workbench.collect.service import Service, listening

TOKEN = "0123456789abcdef"
WORKBENCH = (sys.executable, "-P", "-m", "workbench", "collect")


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def receiving(home, port, *options, token=TOKEN):
    command = [*WORKBENCH, str(home), "--listen", f"127.0.0.1:{port}", *options]
    with subprocess.Popen(
        command, env=environment(WORKBENCH_TOKEN=token), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: is_open(port) or process.poll() is not None)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def send(folder, port, name="n1", token=TOKEN):
    command = [*WORKBENCH, str(folder), "--to", f"127.0.0.1:{port}"]
    settings = environment(WORKBENCH_TOKEN=token, WORKBENCH_NODE=name)
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def write(path, content, *, ended_ago_s=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if ended_ago_s:
        os.utime(path, (time.time() - ended_ago_s,) * 2)
    return path


def run_of_node(folder):
    """A run folder whose job has ended."""
    write(folder / "dumps" / "rank_2", b"\x80\x02" + os.urandom(3 << 20), ended_ago_s=60)
    write(folder / "dumps" / "groups_2.json", '{"rank": 2}', ended_ago_s=60)
    write(folder / "dumps" / "set_2" / "round_2" / "stacks_2.txt", "stack", ended_ago_s=60)
    write(folder / "steps" / "rank_2.jsonl", "line\n" * 300_000, ended_ago_s=60)
    write(folder / "steps" / "heartbeat_2.bin", os.urandom(64), ended_ago_s=60)
    write(folder / "logs" / "workbench_x" / "attempt_0" / "0" / "stderr.log", "", ended_ago_s=60)
    write(folder / "run.json", '{"schema": "workbench.run/1", "status": "failed"}', ended_ago_s=60)
    return folder


def files_of(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def test_a_node_sends_its_run_and_ends_with_its_job(tmp_path):
    node, port = run_of_node(tmp_path / "node"), free_port()
    sent = files_of(node)
    write(node / "checkpoint" / "step-5" / "a.distcp", "weights")
    write(node / "dumps" / "model.pt", "weights")
    write(node / "notes.md", "not an artefact")
    write(tmp_path / "secret", "not below the folder")
    (node / "logs" / "link.log").symlink_to(tmp_path / "secret")
    (node / "steps" / "elsewhere").symlink_to(tmp_path)
    with receiving(tmp_path / "home", port, "--nodes", "2"):
        ended = send(node, port)
    assert ended.returncode == 0, ended.stderr
    assert files_of(tmp_path / "home" / "nodes" / "n1") == sent
    nodes = read_node_list(tmp_path / "home")
    assert (nodes.expected, nodes.nodes["n1"].ended, nodes.nodes["n1"].files) == (2, True, len(sent))
    assert nodes.closed_ns


def test_another_token_sends_nothing_and_is_shown_nowhere(tmp_path):
    node, port = run_of_node(tmp_path / "node"), free_port()
    with receiving(tmp_path / "home", port) as receiver:
        assert TOKEN not in Path(f"/proc/{receiver.pid}/cmdline").read_text()
        ended = send(node, port, token="another token of a stranger")
        receiver.send_signal(signal.SIGTERM)
        said = receiver.stderr.read()
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-2].startswith(f"error: http://127.0.0.1:{port} does not accept this node")
    assert ended.stderr.splitlines()[-1].startswith("hint: give the same --token-file")
    assert "refused 1 request that the token does not sign, the last one from 127.0.0.1" in said
    assert TOKEN not in said
    assert "stranger" not in said + ended.stderr
    assert list((tmp_path / "home" / "nodes").iterdir()) == [tmp_path / "home" / "nodes" / "received.json"]


@pytest.mark.parametrize(
    ("options", "token", "status", "says"),
    [
        ([], "", 2, "give either --listen or --to"),
        (["--to", "h:1", "--listen", "h:2"], "", 2, "give either --listen or --to"),
        (["--to", "127.0.0.1:1"], "", 2, "no token"),
        (["--to", "127.0.0.1:1"], "short", 2, "fewer than 16 characters"),
        (["--to", "127.0.0.1"], TOKEN, 2, "is not the address of a receiver"),
        (["--to", "h:port"], TOKEN, 2, "h:port"),
        (["--listen", "192.0.2.1:29501"], TOKEN, 2, "cannot listen on 192.0.2.1"),
        (["--to", "127.0.0.1:1", "--token-file", "nowhere"], TOKEN, 3, "nowhere: No such file"),
    ],
)
def test_wrong_use_is_said_with_a_hint(tmp_path, options, token, status, says):
    settings = environment(WORKBENCH_TOKEN=token)
    ended = subprocess.run(
        [*WORKBENCH, "run", *options],
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    error, hint = ended.stderr.splitlines()[-2:]
    assert (ended.returncode, error[:7], hint[:6]) == (status, "error: ", "hint: ")
    assert says in error


@contextmanager
def served(home, **options):
    """A receiver in this process, and the link to it."""
    receiver = Receiver(home, options.pop("expected", 0))
    server = listening("127.0.0.1", 0, Service(receiver, TOKEN.encode()))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield Link(f"http://127.0.0.1:{server.effective_port}", TOKEN.encode()), receiver
    finally:
        server.close()
        receiver.close()


numbers = iter(range(1, 1 << 30))


def parcel(*parts, node="n1", session="", incident=None, number=None, ended=False):
    return Parcel(node, session or node, number or next(numbers), "host", ended, False, incident, list(parts))


def exchange(link, message):
    return msgspec.msgpack.decode(link.post(msgspec.msgpack.encode(message)), type=Reply)


def part(path, data=b"x", offset=0, size=None, version="1", before=""):
    return Part(path, offset, len(data) if size is None else size, 1_700_000_000_000_000_000, version, before, data)


HOSTILE = (
    *(
        "../outside",
        "dumps/../../outside",
        "/etc/passwd",
        "dumps//x",
        "dumps/.hidden",
        ".bashrc",
        "",
        "dumps/",
        "dumps",
    ),
    *("home.txt", "checkpoint/x", "dumps/model.pt", "dumps/a\nb", "dumps/\x1b[2J", "dumps/" + "x" * 300),
    *("dumps/" + "a/" * 20 + "x", "nodes/n2/dumps/x", "dumps\\x", "dumps/\u202eexe"),
)


@pytest.mark.parametrize("path", HOSTILE)
def test_only_names_of_artefacts_are_accepted(tmp_path, path):
    with served(tmp_path / "home") as (link, _):
        [result] = exchange(link, parcel(part(path))).results
    assert result.refused
    written = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"received.json"}


@pytest.mark.parametrize("name", ["../n2", "", ".n", "a/b", "x" * 300, "a\x00b"])
def test_only_plain_names_of_nodes_are_accepted(tmp_path, name):
    with served(tmp_path / "home") as (link, _), pytest.raises(Rejected):
        exchange(link, parcel(part("dumps/rank_0"), node=name))
    assert {p.name for p in tmp_path.rglob("*")} == {"home", "nodes", "received.json"}


@pytest.mark.parametrize(
    "wrong",
    [
        part("dumps/rank_0", offset=5, size=3),
        part("dumps/rank_0", offset=-1, size=3),
        part("dumps/rank_0", size=1 << 40),
        part("dumps/rank_0", version=""),
        part("dumps/rank_0", version="../x"),
        Part("dumps/rank_0", 0, 1, -5, "1", "", b"x"),
        Part("dumps/rank_0", 0, 1, 1 << 63, "1", "", b"x"),
    ],
)
def test_parts_outside_of_their_files_are_refused(tmp_path, wrong):
    with served(tmp_path / "home") as (link, _):
        assert exchange(link, parcel(wrong)).results[0].refused
    assert not (tmp_path / "home" / "nodes" / "n1" / "dumps").exists()


def test_links_that_someone_made_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = write(outside / "precious.log", "mine")
    node = tmp_path / "home" / "nodes" / "n1"
    (node / "logs").mkdir(parents=True)
    (node / "dumps").symlink_to(outside)
    (node / "logs" / "a.log").symlink_to(target)
    with served(tmp_path / "home") as (link, _):
        results = exchange(link, parcel(part("dumps/rank_0"), part("logs/a.log", version=""))).results
    assert all(result.refused for result in results)
    assert target.read_text() == "mine"
    assert list(outside.iterdir()) == [target]


def test_what_is_not_signed_or_no_parcel_is_refused(tmp_path):
    with served(tmp_path / "home") as (link, _):
        with pytest.raises(Rejected, match="token"):
            Link(link.url, b"another token of a stranger").post(msgspec.msgpack.encode(parcel(part("dumps/rank_0"))))
        for body in (b"", b"\x93", b"{}", msgspec.msgpack.encode(["n1"]), os.urandom(1000)):
            with pytest.raises(Rejected):
                link.post(body)
        with pytest.raises(Unreachable):
            link.post(bytes(PARCEL_BYTES + 1))
        again = parcel(part("dumps/rank_0"))
        exchange(link, again)
        with pytest.raises(Rejected, match="came before"):
            exchange(link, again)
        assert not exchange(link, parcel(part("dumps/rank_1"))).results[0].refused


def test_a_node_can_fill_only_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(node_folder, "NODE_BYTES", 100)
    monkeypatch.setattr(node_folder, "NODE_FILES", 3)
    with served(tmp_path / "home") as (link, _):
        few = exchange(link, parcel(part("dumps/a", b"x" * 60), part("dumps/b", b"x" * 60))).results
        many = exchange(link, parcel(*(part(f"dumps/{n}") for n in range(4)))).results
        exchange(link, parcel(ended=True))
    assert [result.refused for result in few] == ["", "a node may send 100 B"]
    assert [result.refused for result in many] == ["", "", "a node may send 3 files", "a node may send 3 files"]
    assert read_node_list(tmp_path / "home").nodes["n1"].refused["dumps/b"] == "a node may send 100 B"


def test_nodes_of_one_name_and_one_file_are_both_kept(tmp_path):
    with served(tmp_path / "home") as (link, _):
        exchange(link, parcel(part("dumps/rank_0", b"one"), session="a"))
        exchange(link, parcel(part("dumps/rank_0", b"two"), session="b"))
        exchange(link, parcel(part("dumps/rank_1", b"one"), session="a"))
    nodes = tmp_path / "home" / "nodes"
    assert (nodes / "n1" / "dumps" / "rank_0").read_bytes() == b"one"
    assert (nodes / "n1.2" / "dumps" / "rank_0").read_bytes() == b"two"
    assert (nodes / "n1" / "dumps" / "rank_1").exists()


def test_a_file_is_whole_or_absent(tmp_path):
    target = tmp_path / "home" / "nodes" / "n1" / "dumps" / "rank_0"
    with served(tmp_path / "home") as (link, _):
        [first] = exchange(link, parcel(part("dumps/rank_0", b"abc", size=6))).results
        assert (first.have, target.exists()) == (3, False)
    with served(tmp_path / "home") as (link, _):
        [repeated] = exchange(link, parcel(part("dumps/rank_0", b"abc", size=6))).results
        [last] = exchange(link, parcel(part("dumps/rank_0", b"def", offset=3, size=6))).results
        assert (repeated.have, last.have, target.read_bytes()) == (3, 6, b"abcdef")
        newer = part("dumps/rank_0", b"new", size=6, version="2")
        newer.mtime_ns += 1
        [other] = exchange(link, parcel(newer)).results
        assert (other.have, target.read_bytes()) == (3, b"abcdef")


def test_a_whole_draft_of_a_killed_receiver_becomes_the_file(tmp_path):
    target = tmp_path / "home" / "nodes" / "n1" / "dumps" / "rank_0"
    with served(tmp_path / "home") as (link, _):
        exchange(link, parcel(part("dumps/rank_0", b"abc", size=6)))
    [draft] = (tmp_path / "home" / "nodes" / "n1" / ".incoming").iterdir()
    draft.write_bytes(b"abcdef")
    with served(tmp_path / "home") as (link, _):
        [result] = exchange(link, parcel(part("dumps/rank_0", b"abc", size=6))).results
    assert (result.have, target.read_bytes(), draft.exists()) == (6, b"abcdef", False)


def test_logs_grow_and_a_replaced_log_is_sent_again(tmp_path):
    node, home = tmp_path / "node", tmp_path / "home"
    log = write(node / "logs" / "stdout.log", "one\n" * 5000)
    copy = home / "nodes" / "n1" / "logs" / "stdout.log"
    with served(home) as (link, _):
        sender = Sender(node, link, "n1")
        sender.send_all(ended=False)
        with log.open("a") as file:
            file.write("two\n")
        sender.send_all(ended=False)
        assert copy.read_text() == log.read_text()
    with served(home) as (link, _):
        # Another sender knows nothing of what came before.
        log.write_text("three\n" * 10_000)
        Sender(node, link, "n1").send_all(ended=False)
        assert copy.read_text() == log.read_text()
        log.write_text("four\n")
        last = Sender(node, link, "n1")
        last.send_all(ended=False)
        assert copy.read_text() == "four\n"
        with log.open("a") as file:
            file.write("five\n")
        last.send_all(ended=True)
        assert copy.read_text() == "four\nfive\n"


def test_a_heartbeat_is_sent_whenever_its_content_changes(tmp_path):
    node, home = tmp_path / "node", tmp_path / "home"
    beat = write(node / "steps" / "heartbeat_0.bin", b"a" * 64, ended_ago_s=10)
    times = (beat.stat().st_atime_ns, beat.stat().st_mtime_ns)
    with served(home) as (link, _):
        sender = Sender(node, link, "n1")
        sender.send_all(ended=False)
        with beat.open("r+b") as file:
            file.write(b"b" * 64)
        os.utime(beat, ns=times)  # as a file that is written through memory
        sender.send_all(ended=False)
        assert (home / "nodes" / "n1" / "steps" / "heartbeat_0.bin").read_bytes() == b"b" * 64


def test_a_receiver_that_is_killed_loses_nothing(tmp_path):
    node, port = tmp_path / "node", free_port()
    content = os.urandom(60 << 20)
    write(node / "dumps" / "rank_2", content, ended_ago_s=60)
    write(node / "run.json", '{"status": "failed"}', ended_ago_s=60)
    home = tmp_path / "home"
    settings = environment(WORKBENCH_TOKEN=TOKEN, WORKBENCH_NODE="n1")
    with receiving(home, port) as receiver:
        sender = subprocess.Popen([*WORKBENCH, str(node), "--to", f"127.0.0.1:{port}"], env=settings)
        wait_until(lambda: list(home.glob("nodes/n1/.incoming/*")))
        receiver.kill()
        receiver.wait()
    target = home / "nodes" / "n1" / "dumps" / "rank_2"
    begun = sum(path.stat().st_size for path in home.glob("nodes/n1/.incoming/*"))
    assert begun > 0
    assert not target.exists()
    with receiving(home, port):
        assert sender.wait(PATIENCE_S) == 0
    assert target.read_bytes() == content
    assert (home / "nodes" / "n1" / "run.json").read_bytes() == (node / "run.json").read_bytes()
    assert not list(home.glob("nodes/n1/.incoming/*"))


def test_a_sender_on_the_same_disk_sends_no_files(tmp_path):
    home = run_of_node(tmp_path / "home")
    with served(home) as (link, _):
        Sender(home, link, "n0").send_all(ended=True)
    assert list((home / "nodes" / "n0").iterdir()) == []
    node = read_node_list(home).nodes["n0"]
    assert (node.at_home, node.ended, node.files) == (True, True, 0)


def test_dumps_of_one_node_make_all_others_take_theirs(tmp_path):
    began = Incident("stalled", "rank 3 is in bwd of step 6", 1)
    with served(tmp_path / "home") as (link, _):
        assert exchange(link, parcel(node="n0")).ask is None
        assert exchange(link, parcel(node="n1", incident=began)).ask is None
        assert exchange(link, parcel(node="n0")).ask == began
        # The other nodes notice by themselves, a moment later: it is the same hang.
        assert exchange(link, parcel(node="n2", incident=Incident("stalled", "rank 4 waits", 2))).ask == began
        assert exchange(link, parcel(node="n1", incident=began)).ask is None


def test_the_collector_is_asked_through_its_files(tmp_path):
    dumps = tmp_path / "dumps"
    incident = Incident("stalled", "rank 3 is in bwd of step 6", 1)
    assert not request_dumps(dumps, incident)
    for rank, host in ((6, socket.gethostname()), (7, socket.gethostname()), (2, "another")):
        write(dumps / f"groups_{rank}.json", json.dumps({"rank": rank, "host": host}))
    assert request_dumps(dumps, incident)
    assert json.loads((dumps / ".ask_6.json").read_text())["elsewhere"] is True
    write(dumps / ".claimed", '{"reason": "stalled", "detail": "there", "asked_ns": 9, "elsewhere": true}')
    assert last_incident(dumps) is None
    write(dumps / "set_2" / ".claimed", '{"reason": "died", "detail": "here", "asked_ns": 8, "elsewhere": false}')
    assert last_incident(dumps) == Incident("died", "here", 8)


def test_names_of_the_recorders_are_artefacts(tmp_path):
    written = (
        *("run.json", "dumps/round_2/rank_0.json", "steps/rank_0.jsonl", "steps/heartbeat_0.bin", "train.log"),
        *("memory_snapshot/iteration_5_exit/rank0_memory_snapshot.pickle", "slurm-17.out", "health/ras_n1.txt"),
    )
    left = ("checkpoint/step-5/x.distcp", "dumps/.claimed", "previous/x/run.json", "nodes/n2/run.json", "train.py")
    for path in (*written, *left):
        write(tmp_path / path, "x")
    assert sorted(artefacts_below(tmp_path)) == sorted(written)
