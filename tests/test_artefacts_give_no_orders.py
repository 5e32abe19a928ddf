"""Test that nothing an artefact names is executed, signalled, connected to, deleted or imported, by any command.

The run folder of these tests is hostile: everything in it that can name a command, a process, an address, a path or a
module names something that leaves a trace if it is touched. Each command of `workbench` is tried on it.
"""

import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest
import torch
from typer.main import get_command

from trainer.checkpoint import PlainPlanner, PlainReader
from trainer.errors import CheckpointError
from workbench.cli import app
from workbench.recorders.hang.heartbeat import LAYOUT

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = Path(__file__).parents[1]
VICTIM = """
import os, signal, sys, time
touched = sys.argv[1]
def note(number, _):
    open(f"{touched}/the process received signal {number}", "w").close()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, note)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


class Traps:
    """What the hostile folder names: a process, two listeners, a folder, a module and a command; each shows a touch."""

    def __init__(self, folder):
        self.touched = folder / "touched"
        self.precious = folder / "precious"
        self.modules = folder / "cwd"
        self.socket_path = str(folder / "trap.sock")
        for path in (self.touched, self.precious, self.modules):
            path.mkdir()
        (self.precious / "thesis.txt").write_text("years of work")
        self.command = folder / "command.sh"
        self.command.write_text(f"#!/bin/sh\ntouch {self.touched}/executed\n")
        self.command.chmod(0o755)
        module = f"from pathlib import Path; Path({str(self.touched / 'imported')!r}).touch()\n"
        for name in ("trap_module", "torch", "sitecustomize", "numpy", "workbench", "analyzers", "trainer"):
            (self.modules / f"{name}.py").write_text(module)
        self.victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, self.touched], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.victim.stdout.readline() == "ready\n"
        tcp = socket.create_server(("127.0.0.1", 0))
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(self.socket_path)
        unix.listen()
        self.port = tcp.getsockname()[1]
        self.listeners = {"a TCP port": tcp, "a Unix socket": unix}
        for name, listener in self.listeners.items():
            threading.Thread(target=self.listen, args=(name, listener), daemon=True).start()

    def listen(self, name, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            (self.touched / f"connected to {name}").touch()
            connection.close()

    def remove(self):
        self.victim.kill()
        self.victim.wait()
        self.victim.stdout.close()
        for listener in self.listeners.values():
            listener.close()

    def sprung(self):
        """Return what was touched."""
        found = [path.name for path in self.touched.iterdir()]
        if self.victim.poll() is not None:
            found.append(f"the process was killed ({self.victim.returncode})")
        kept = self.precious / "thesis.txt"
        found += [] if kept.exists() and kept.read_text() == "years of work" else ["a file was deleted or changed"]
        found += [path.name for path in self.precious.iterdir() if path != kept]
        return found


class Order:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (str(self.command),)


@pytest.fixture
def traps(tmp_path):
    traps = Traps(tmp_path)
    yield traps
    traps.remove()


def hostile_run(folder, traps):
    """Make a run folder that looks like one of this machine that is in progress, and names all traps."""
    pid, host, module = traps.victim.pid, socket.gethostname(), "trap_module"
    shutil.copytree(FIXTURES / "oom_2ranks", folder)
    shutil.rmtree(folder / "dumps")
    shutil.copytree(FIXTURES / "stuck_2ranks" / "dumps", folder / "dumps")
    orders = ["sh", "-c", str(traps.command), "--batch-size", "64"]
    rewrite(
        folder / "run.json",
        command=orders,
        argv=["workbench", "launch", "--trainer", module, "--config", str(traps.command), "--", *orders],
        status="running",
        ended_ns=None,
        launcher={"host": host, "pid": pid, "started_ns": time.time_ns()},
        hosts={"0": host, "1": host},
        dump_folder=str(traps.precious),
        scratch=str(traps.precious),
        server=f"127.0.0.1:{traps.port}",
        collect=f"127.0.0.1:{traps.port}",
    )
    manifest = json.loads((folder / "run.json").read_text())
    manifest["config"]["job"] |= {"dump_folder": str(traps.precious), "custom_config_module": module}
    manifest["config"]["checkpoint"] |= {"enable": True, "initial_load_path": str(folder / "checkpoint" / "step-5")}
    manifest["config"]["experimental"] = {"custom_import": module}
    manifest["config"]["model"] |= {"name": module, "converters": [module], "hf_assets_path": str(traps.precious)}
    (folder / "run.json").write_text(json.dumps(manifest))
    for rank, server in enumerate((f"127.0.0.1:{traps.port}", traps.socket_path)):
        rewrite(folder / "dumps" / f"groups_{rank}.json", pid=pid, host=host, server=server, folder=str(traps.precious))
        (folder / "dumps" / f".stacks_{rank}.txt").touch()
        beat = LAYOUT.pack(time.time_ns(), 6, pid, 9, b"fwd")
        (folder / "steps" / f"heartbeat_{rank}.bin").write_bytes(beat)
        log = folder / "steps" / f"rank_{rank}.jsonl"
        header, *lines = log.read_text().splitlines()
        header = json.dumps(json.loads(header) | {"pid": pid, "host": host})
        log.write_text("\n".join([header, *lines]) + "\n")
    rewrite(folder / "dumps" / "collection.json", pid=pid, host=host, folder=str(traps.precious))
    checkpoint = folder / "checkpoint" / "step-5"
    checkpoint.mkdir(parents=True)
    for name in (".metadata", "batch.pt", "__0_0.distcp"):
        (checkpoint / name).write_bytes(pickle.dumps(Order(traps.command)))
    for name in ("rank2_memory_snapshot.pickle", "rank3_memory_snapshot.pickle"):
        (folder / "memory_snapshot" / "iteration_5" / name).write_bytes(pickle.dumps(Order(traps.command)))
    (folder / "dumps" / "rank_2").write_bytes(pickle.dumps(Order(traps.command)))
    # Files that tools load by themselves, and links out of the folder.
    for name in ("sitecustomize.py", "torch.py", "conftest.py", "config_registry.py", f"{module}.py"):
        shutil.copy(traps.modules / "trap_module.py", folder / name)
    for name in ("previous", "nodes", "tb"):
        (folder / name).symlink_to(traps.precious)
    (folder / "logs" / "stdout.log").write_text(
        f"http://127.0.0.1:{traps.port}/logs unix:{traps.socket_path} `{traps.command}` $({traps.command})\n"
        f"torchrun: [rank0]: RuntimeError: CUDA out of memory, see http://127.0.0.1:{traps.port}/\n"
    )
    (folder / "job.toml").write_text(
        f'[job]\ndump_folder = "{traps.precious}"\ncustom_config_module = "{module}"\n'
        f'[model]\nname = "{module}"\n[experimental]\ncustom_import = "{module}"\n'
    )
    (folder / "rows.jsonl").write_text(json.dumps({"input_ids": [1, 2], "labels": [1, 2]}) + "\n")
    return folder


def rewrite(path, **changed):
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


WALK = {
    "inspect": [
        ("inspect", "{run}"),
        ("inspect", "{run}", "--json", "--no-cache"),
        ("inspect", "{run}", "--breakdown"),
        ("inspect", "{run}", "--what-if", "batch=2x"),
        ("inspect", "{run}", "--prove"),
        ("inspect", "{run}/memory_snapshot", "--prove"),
    ],
    "hang": [("hang", "{run}"), ("hang", "{run}/dumps"), ("hang", "--run", "{run}")],
    "trace": [("trace", "{run}")],
    "steps": [("steps", "{run}")],
    "compare": [("compare", "{run}", "{run}")],
    "bisect": [("bisect", "{run}", "{run}")],
    "report": [(*("report", "{run}", "-o", "{out}.html"), *flags) for flags in ((), ("--anonymise",))],
    "tokens": [
        ("tokens", "{run}/checkpoint/step-5/batch.pt"),
        ("tokens", "{run}/rows.jsonl", "--tokenizer", "{run}"),
    ],
    "config": [("config", action, "{run}/job.toml") for action in ("show", "explain")] + [("config", "show", "{run}")],
    "estimate": [("estimate", "--config", "{run}/job.toml", "--nproc", "2")],
    "plan": [("plan", "--config", "{run}/job.toml", "--limit", "80GiB", "--nproc", "2")],
    "parity": [("parity", "--config", "{run}/job.toml", "--run", "dp_shard=2", "--folder", "{run}")],
    "launch": [
        ("launch", "--config", "{run}/job.toml", "--job.dump_folder", "{run}", "--dry-run"),
        ("launch", "--no-watch", "--no-recorders", "--job.dump_folder", "{run}", "--", "true"),
    ],
    "collect": [("collect", "{run}")],
    "doctor": [("doctor",)],
    "cache": [("cache",), ("cache", "--clear")],
    "demo": [("demo", "no_such_incident", "--folder", "{run}")],
    "capabilities": [("capabilities",)],
    "schema": [("schema", "hang")],
    "explain": [("explain", "memory.fragmented"), ("explain", "--list")],
}  # fmt: skip
"""{command: command lines to try}; `watch` and `serve`, which do not end, have tests of their own."""
LASTING = {"watch", "serve"}


def test_every_command_is_walked():
    assert set(WALK) | LASTING == set(get_command(app).commands)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for lines in WALK.values() for words in lines]
)
def test_a_command_does_nothing_that_an_artefact_says(traps, tmp_path, words):
    run = hostile_run(tmp_path / "run", traps)
    named = {"run": str(run), "out": str(tmp_path / "report")}
    ended = command_line.run(
        *(word.format(**named) for word in words),
        cwd=traps.modules,
        env=os.environ | {"WORKBENCH_CACHE": str(tmp_path / "cache")},
    )
    assert ended.returncode in range(4), ended.stderr
    assert traps.sprung() == []


@pytest.mark.parametrize("name", ["run.json", ".settling", "logs", "logs/stdout.log", "previous", "dumps", "nodes"])
@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_job_does_not_write_through_what_lies_in_its_folder(tmp_path, name, is_pipe):
    """A received folder may have a link to a file of the person, or a pipe that keeps a writer waiting."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    precious.mkdir()
    (precious / "stdout.log").write_text("years of work")
    if is_pipe:
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(precious if name in ("logs", "previous", "dumps", "nodes") else precious / "stdout.log")
    ended = command_line.run("launch", "--no-watch", "--job.dump_folder", run, "--", "echo", "hello", timeout=60)
    assert ended.returncode == 3, ended.stderr
    assert "hello" not in ended.stdout
    assert [(path.name, path.read_text()) for path in precious.iterdir()] == [("stdout.log", "years of work")]


@pytest.mark.parametrize("name", [".settling", "logs/stdout.log", "logs/stderr.log", "run.json"])
def test_a_job_does_not_write_into_a_file_that_has_another_name(tmp_path, name):
    """A received folder may have a hard link to a file of the person, which is a regular file like any other."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    (run / name).parent.mkdir(parents=True)
    precious.write_text('{"schema": "workbench.run/1", "status": "completed"}')
    (run / name).hardlink_to(precious)
    ended = command_line.run("launch", "--no-watch", "--job.dump_folder", run, "--", "echo", "hello", timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "hello\n"), ended.stderr
    assert precious.read_text() == '{"schema": "workbench.run/1", "status": "completed"}'


@pytest.mark.parametrize("started_ns", [10**30, -(10**30), 10**39, "x", None])
def test_any_start_time_of_an_earlier_run_is_endured(tmp_path, started_ns):
    manifest = {"schema": "workbench.run/1", "status": "completed", "started_ns": started_ns}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    ended = command_line.run("launch", "--no-watch", "--job.dump_folder", tmp_path, "--", "echo", "hello", timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "hello\n")
    assert len(list((tmp_path / "previous").iterdir())) == 1


def test_parity_deletes_nothing_through_a_link(tmp_path):
    kept = tmp_path / "victim" / "checkpoint" / "step-1000" / "weights"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    (tmp_path / "parity").mkdir()
    (tmp_path / "parity" / "seed").symlink_to(tmp_path / "victim")
    words = ("--config", ROOT / "configs" / "debug_model.toml", "--run", "dp_shard=1", "--run", "dp_shard=2")
    ended = command_line.run("parity", *words, "--folder", tmp_path / "parity", timeout=120)
    assert ended.returncode == 3, ended.stderr
    assert kept.read_text() == "years of work"


def test_a_checkpoint_is_read_as_data(tmp_path):
    """PyTorch loads its metadata by `pickle`, when a run resumes from the newest checkpoint in its folder."""
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Order(f"touch {tmp_path}/executed")))
    with pytest.raises(CheckpointError, match=r"names posix\.system"):
        PlainReader(tmp_path).read_metadata()
    value = io.BytesIO()
    torch.save(Order(f"touch {tmp_path}/executed"), value)
    value.seek(0)
    item = SimpleNamespace(dest_index=SimpleNamespace(fqn="train_state.step"))
    with pytest.raises(CheckpointError, match="no plain value"):
        PlainPlanner().load_bytes(item, value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("words", [("watch", "{run}", "--no-tui"), ("serve", "{run}", "--port", "0", "--live")])
def test_a_command_that_lasts_does_nothing_that_an_artefact_says(traps, tmp_path, words):
    run = hostile_run(tmp_path / "run", traps)
    command = [sys.executable, "-P", "-m", "workbench", *(word.format(run=run) for word in words)]
    environment = os.environ | {"WORKBENCH_CACHE": str(tmp_path / "cache")}
    with (tmp_path / "printed").open("wb") as printed:
        process = subprocess.Popen(command, cwd=traps.modules, env=environment, stdout=printed, stderr=printed)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            text = (tmp_path / "printed").read_text()
            if words[0] == "watch" and "step" in text:
                break
            address = next((word for word in text.split() if word.startswith("http://")), None)
            if address:
                opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
                base = opener.open(address, timeout=60).url.partition("?")[0].rstrip("/")
                for page in ("", "/memory", "/hang", "/steps", "/logs", "/config", "/report.html"):
                    opener.open(base + page, timeout=60).read()
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"nothing was shown: {(tmp_path / 'printed').read_text()}")
        time.sleep(3)
    finally:
        # An interrupt is ignored where a shell started the tests in the background.
        process.terminate()
        process.wait(60)
    assert traps.sprung() == []
