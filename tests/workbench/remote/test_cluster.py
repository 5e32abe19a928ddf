"""`--cluster`: the answer of a Dask cluster of real processes is that of this machine, whatever is killed."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import command_line
import pytest

from analyzers.hangs.reading.job import DUMPS_OF_A_CHILD
from analyzers.logs.loading import FILES_OF_A_CHILD
from workbench.commands.output import REPORT_FILE

FILES = 48
HERE = Path(__file__).parent


@contextmanager
def cluster(folder):
    """Yield the process of a new cluster and the address of its scheduler."""
    command = [sys.executable, str(HERE / "local_cluster.py")]
    with (folder / "cluster.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            yield process, process.stdout.readline().strip()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def scheduler(tmp_path):
    """Fixture: the process and the address of a cluster.

    Each test has its own: a worker that is killed while it starts is not always replaced.
    """
    with cluster(tmp_path) as started:
        yield started


@pytest.fixture
def run(fixtures, tmp_path):
    """Fixture: a run with many snapshots; one of them is damaged."""
    folder = tmp_path / "run" / "memory_snapshot" / "iteration_10"
    folder.mkdir(parents=True)
    whole = fixtures / "leak_2ranks/memory_snapshot/iteration_10/rank0_memory_snapshot.pickle.gz"
    for rank in range(FILES):
        shutil.copy(whole, folder / f"rank{rank}_memory_snapshot.pickle.gz")
    os.truncate(folder / "rank7_memory_snapshot.pickle.gz", 5000)
    return tmp_path / "run"


@pytest.fixture
def sets(fixtures, tmp_path):
    """Fixture: a run with so many dumps and logs that several processes read a part of them each; one is damaged."""
    dumps, logs = tmp_path / "sets/dumps", tmp_path / "sets/logs"
    for folder in (dumps, logs):
        folder.mkdir(parents=True)
    for rank in range(2 * DUMPS_OF_A_CHILD):
        shutil.copy(fixtures / f"skip_4ranks/dumps/rank_{rank % 4}", dumps / f"rank_{rank}")
    os.truncate(dumps / "rank_7", 500)
    for rank in range(FILES_OF_A_CHILD + 1):
        (logs / f"rank_{rank}.log").write_text(f"[rank{rank}]: RuntimeError: rank {rank} is broken\n")
    return tmp_path / "sets"


def workers_below(process):
    """Return the process IDs of the workers of a cluster: children of its resource-tracked starter."""
    children = Path(f"/proc/{process.pid}/task")
    below = [pid for task in children.iterdir() for pid in (task / "children").read_text().split()]
    return [int(pid) for pid in below if b"spawn_main" in (Path("/proc") / pid / "cmdline").read_bytes()]


def inspect(run, cache, *options):
    """Start `workbench inspect` with a cache of its own; what it prints is in a file `out` beside the cache."""
    # A job that a shell started in the background ignores Ctrl-C, and so would its children.
    # Its output is longer than a pipe holds: nobody may read it before the end.
    with output_of(cache).open("w") as out:
        return subprocess.Popen(
            ["env", "--default-signal=INT", sys.executable, "-m", "workbench", "inspect", str(run), "--json", *options],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"WORKBENCH_CACHE": str(cache)},
        )


def output_of(cache):
    return cache.parent / f"{cache.name}.out"


def answer(process, cache):
    """Return the output and the errors of a command at its end, without the progress that slow machines see."""
    _, err = process.communicate()
    lines = [line for line in err.splitlines() if not line.startswith(("reading ", "so far, "))]
    return output_of(cache).read_text(), lines


def entries(cache):
    """Return the files of all entries of a cache that hold what was read; answers are only kept here."""
    paths = [path for path in cache.rglob("*") if path.is_file() and len(path.parent.name) == 32]
    others = ("limit", REPORT_FILE)
    return {str(path.relative_to(cache)): path.read_bytes() for path in paths if path.name not in others}


def begun(process, cache):
    """Wait until a command has read some of its files."""
    while len(list(cache.glob("*/meta.json"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def is_connected(process, address):
    """Return whether a process has a connection to the address of a scheduler, such as tcp://127.0.0.1:8786."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(port) and row[3] == "01"}
    with contextlib.suppress(FileNotFoundError):  # a descriptor that was closed meanwhile
        return any(str(path.readlink()) in sockets for path in Path(f"/proc/{process.pid}/fd").iterdir())
    return False


def reading(process, cluster_process, address):
    """Wait until a worker of the cluster has begun to read for a command.

    Before the command is connected, the processor time of the workers is that of their start and their heartbeats.
    """
    while not is_connected(process, address):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    idle = {pid: processor_ticks(pid) for pid in workers_below(cluster_process)}
    while all(processor_ticks(pid) < before + 5 for pid, before in idle.items()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def processor_ticks(pid):
    """Return how many hundredths of a second of processor time a process has used, with its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def killed_at_random(process, cluster_process, chance):
    """Kill up to three workers of a cluster at random moments while a command runs; return how many it were."""
    killed = 0
    while process.poll() is None and killed < 3:
        if workers := workers_below(cluster_process):
            os.kill(chance.choice(workers), signal.SIGKILL)
            killed += 1
        time.sleep(chance.uniform(0, 1))
    return killed


def test_no_scheduler_at_an_address_is_an_error_with_a_hint(fixtures):
    ended = command_line.run("inspect", fixtures / "leak_2ranks", "--json", "--cluster", "nowhere")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "no scheduler answers there" in ended.stderr
    assert "hint: start one with `dask scheduler`" in ended.stderr


def test_slurm_is_refused_with_a_hint(fixtures):
    ended = command_line.run("trace", fixtures / "traces", "--json", "--cluster", "slurm")
    assert ended.returncode == 3
    assert "dask_jobqueue" in ended.stderr


@pytest.mark.slow
def test_answer_and_cache_are_byte_for_byte_those_of_this_machine(run, tmp_path, scheduler):
    near = answer(inspect(run, tmp_path / "near"), tmp_path / "near")
    far = answer(inspect(run, tmp_path / "far", "--cluster", scheduler[1]), tmp_path / "far")
    assert far == near
    assert len(entries(tmp_path / "far")) > FILES
    assert entries(tmp_path / "far") == entries(tmp_path / "near")


@pytest.mark.slow
def test_parts_of_large_sets_are_read_by_the_cluster(sets, tmp_path, scheduler):
    near = answer(inspect(sets, tmp_path / "near"), tmp_path / "near")
    far = answer(inspect(sets, tmp_path / "far", "--cluster", scheduler[1]), tmp_path / "far")
    assert far == near
    assert entries(tmp_path / "far") == entries(tmp_path / "near")


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.rare)])
def test_killed_workers_change_nothing_about_large_sets(sets, tmp_path, scheduler, number):
    near = answer(inspect(sets, tmp_path / "near"), tmp_path / "near")
    process = inspect(sets, tmp_path / "far", "--cluster", scheduler[1])
    chance = random.Random(number)
    reading(process, *scheduler)
    assert killed_at_random(process, scheduler[0], chance)
    out, errors = answer(process, tmp_path / "far")
    assert out == near[0]
    assert [line for line in errors if not line.startswith("note: --cluster: ")] == near[1]
    assert entries(tmp_path / "far") == entries(tmp_path / "near")


@pytest.mark.slow
def test_a_killed_scheduler_changes_nothing_about_large_sets(sets, tmp_path):
    near = answer(inspect(sets, tmp_path / "near"), tmp_path / "near")
    with cluster(tmp_path) as (process, address):
        far = inspect(sets, tmp_path / "far", "--cluster", address)
        reading(far, process, address)
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = answer(far, tmp_path / "far")
    assert out == near[0]
    assert [line for line in errors if not line.startswith("note: --cluster: ")] == near[1]


@pytest.mark.slow
def test_files_at_a_url_are_read_by_the_cluster(run, tmp_path, scheduler, serve):
    """The cache of both commands is one, as paths in the answer are those of the copies."""
    url = serve(run).url
    _, err = inspect(url, tmp_path / "cache", "--cluster", scheduler[1]).communicate()
    assert "downloaded" in err
    far = output_of(tmp_path / "cache").read_text()
    for entry in (tmp_path / "cache").iterdir():
        if entry.name != "remote":
            shutil.rmtree(entry)
    assert answer(inspect(url, tmp_path / "cache"), tmp_path / "cache")[0] == far


@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.slow), *(pytest.param(n, marks=pytest.mark.rare) for n in (1, 2))]
)
def test_killed_workers_are_replaced_and_change_nothing(run, tmp_path, scheduler, number):
    near = answer(inspect(run, tmp_path / "near"), tmp_path / "near")
    process = inspect(run, tmp_path / "far", "--cluster", scheduler[1])
    begun(process, tmp_path / "far")
    assert killed_at_random(process, scheduler[0], random.Random(number))
    out, errors = answer(process, tmp_path / "far")
    assert out == near[0]
    # A file during which four workers died is read here, and a note says so.
    assert [line for line in errors if not line.startswith("note: --cluster: ")] == near[1]


@pytest.mark.slow
def test_a_killed_scheduler_changes_nothing(run, tmp_path):
    near = answer(inspect(run, tmp_path / "near"), tmp_path / "near")
    with cluster(tmp_path) as (process, address):
        far = inspect(run, tmp_path / "far", "--cluster", address)
        begun(far, tmp_path / "far")
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = answer(far, tmp_path / "far")
    assert out == near[0]
    assert [line for line in errors if not line.startswith("note: --cluster: ")] == []


@pytest.mark.slow
def test_an_interrupt_ends_the_command_and_its_orders(run, tmp_path, scheduler):
    process = inspect(run, tmp_path / "far", "--cluster", scheduler[1])
    begun(process, tmp_path / "far")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(list((tmp_path / "far").glob("*/meta.json"))) < FILES - 1
    near = answer(inspect(run, tmp_path / "near"), tmp_path / "near")
    assert answer(inspect(run, tmp_path / "far", "--cluster", scheduler[1]), tmp_path / "far") == near
