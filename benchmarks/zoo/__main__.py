"""Small plain PyTorch scripts with one fault each, or none, and the answers that the workbench gives about them.

    python -m benchmarks.zoo                           every case, with recorders and without
    python -m benchmarks.zoo --only killed crashes     some cases, by name or cause
    python -m benchmarks.zoo --part first second       two collections, without what was kept back of them
    python -m benchmarks.zoo --keep /tmp/zoo           leaves the run folders there
    python -m benchmarks.zoo --again --keep /tmp/zoo   asks once more about the folders that were left

The scripts use nothing of this project but the two lines of the recorders. In the form `recorders` a script runs
unchanged, in the form `bare` without these lines, so that only torchrun's logs exist. In the form `launch` it runs
without them under `workbench launch --`. In the form `stacks` nothing is recorded and `workbench hang --pid` reads the
processes, which is useful only for jobs that hang. The processes of a case are real ranks under gloo.

A folder has the scripts of one cause; each script says in its header which answer is right, from which of ten
collections it is, and whether it was kept back. Rules must never be tuned on what is kept back of the seventh and the
eighth; answers about these scripts are not printed.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.zoo import agent
from benchmarks.zoo.answers import Answer, Hit, answer
from benchmarks.zoo.cases import PARTS, UNSEEN, Case, cases
from benchmarks.zoo.live import answer_by_stacks

ROOT = Path(__file__).parents[2]
LONGEST_S = {"launch": 240.0}
"""{form: seconds after which a job is ended}; under `launch` each rank imports torch, perhaps on a busy machine."""
LONGEST_OTHERWISE_S = 90.0
COLLECTOR_S = 15.0


def scripts_of(folder: Path) -> Path:
    """Return the folder for the script of a run: next to the run's folder, as users' scripts are."""
    return folder.with_name(f"{folder.name}.script")


def with_agent(case: Case, folder: Path, *, recorded: bool) -> int:
    """Start a case under an agent like torchrun, and return the agent's process id."""
    script = scripts_of(folder) / f"{case.name}.py"
    script.parent.mkdir(parents=True)
    script.write_text(case.text(recorded=recorded))
    os.environ["OUTPUTS"] = str(folder)
    return agent.launch(script, case.ranks, folder, restarts=case.restarts)


def with_recorders(case: Case, folder: Path) -> int:
    return with_agent(case, folder, recorded=True)


def bare(case: Case, folder: Path) -> int:
    return with_agent(case, folder, recorded=False)


def under_launch(case: Case, folder: Path) -> int:
    """Start a case without recorder lines under `workbench launch --`, and return the launcher's process id."""
    script = scripts_of(folder) / f"{case.name}.py"
    script.parent.mkdir(parents=True)
    script.write_text(case.text(recorded=False))
    command = [sys.executable, "-m", "workbench", "launch", "--nproc", str(case.ranks)]
    command += ["--max-restarts", str(case.restarts), "--job.dump_folder", str(folder)]
    command += ["--", "python", str(script)]
    # What the launcher says must not be read as what the job says.
    with script.with_name("launch.log").open("wb") as log:
        search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OUTPUTS": str(folder)}
        environment["PATH"] = search
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        ).pid


BARE = "bare"
"""The form in which a script runs without recorders, so that only logs exist."""
FORMS: dict[str, Callable[[Case, Path], int]] = {"recorders": with_recorders, BARE: bare, "launch": under_launch}


STACKS = "stacks"
"""The form in which nothing is recorded and `workbench hang --pid` reads the processes; `FORMS` does not have it."""


def wait_for(pid: int, longest_s: float) -> None:
    """Wait until process `pid` ends, at most `longest_s` seconds."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline and not os.waitpid(pid, os.WNOHANG)[0]:
        time.sleep(0.1)


def await_collector(folder: Path) -> None:
    """Wait until the collector of dumps, which runs longer than the ranks, has written its files."""
    deadline = time.monotonic() + COLLECTOR_S
    while time.monotonic() < deadline and any(str(folder).encode() in line for line in command_lines()):
        time.sleep(0.2)


def command_lines() -> Iterator[bytes]:
    """Yield the command lines of the running collectors."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if b"recorders.hang.collector" in line:
                yield line


def run(case: Case, form: str, folder: Path) -> Answer:
    """Run a case in an empty folder, and return the workbench's answer, after the end of the job or while it runs."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(scripts_of(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    if form == STACKS:
        return answer_by_stacks(case, scripts_of(folder) / f"{case.name}.py")
    pid = FORMS[form](case, folder)
    try:
        wait_for(pid, case.looked_at_after_s or LONGEST_S.get(form, LONGEST_OTHERWISE_S))
        if case.looked_at_after_s is None:
            await_collector(folder)
        return answer(folder, f"{case.name}.py")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def all_answers(
    asked: Sequence[tuple[Case, str]], home: Path, jobs: int, *, again: bool
) -> Iterator[tuple[Case, str, Answer]]:
    """Run the cases, `jobs` at a time, and yield each answer when it is ready."""
    waiting, running = list(asked), dict[int, tuple[Case, str]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            case, form = waiting.pop(0)
            running[in_child(case, form, home, again=again)] = case, form
        pid, _status = os.wait()
        if pid in running:
            case, form = running.pop(pid)
            yield case, form, msgspec.json.decode(path_of(case, form, home).read_bytes(), type=Answer)


def path_of(case: Case, form: str, home: Path) -> Path:
    return home / f"{case.name}.{form}.json"


def in_child(case: Case, form: str, home: Path, *, again: bool) -> int:
    """Run and analyse a case in a forked process, which writes the answer to a file; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    folder = home / f"{case.name}.{form}"
    try:
        said = answer(folder, f"{case.name}.py") if again else run(case, form, folder)
    except BaseException as error:  # noqa: BLE001
        said = Answer("unknown", "failed", [], f"{type(error).__name__}: {error}", [])
    path_of(case, form, home).write_bytes(msgspec.json.encode(said))
    os._exit(0)


def table(rows: Sequence[tuple[Case, str, Answer]]) -> str:
    """Return the score of each form and part as Markdown."""
    columns = ["form", "part", "cases", *Hit, "false alarms", "line named"]
    lines = [f"| {' | '.join(columns)} |", f"|---|---|{'--:|' * (len(columns) - 2)}"]
    for form in (*FORMS, STACKS):
        for part in PARTS:
            some = [(case, said) for case, where, said in rows if where == form and case.part == part]
            if some:
                lines.append(score(form, part, some))
    return "\n".join(lines)


def score(form: str, part: str, some: Sequence[tuple[Case, Answer]]) -> str:
    """Return a row of the table: the results of the cases `some` in a form and part."""
    hits = Counter(said.hit(case, by_logs=form == BARE) for case, said in some)
    named = [named for case, said in some if (named := said.names_line(case)) is not None]
    sound = [(case, said) for case, said in some if case.is_healthy]
    alarms = sum(said.status == "error" or said.has_errors for _, said in sound)
    counts = " | ".join(str(hits[hit]) for hit in Hit)
    return f"| {form} | {part} | {len(some)} | {counts} | {alarms} of {len(sound)} | {sum(named)} of {len(named)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of cases or causes")
    parser.add_argument("--form", nargs="*", choices=(*FORMS, STACKS), default=["recorders", "bare"])
    parser.add_argument("--part", nargs="*", choices=PARTS, default=PARTS, help="by default all")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time; most of them only wait")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which is left")
    parser.add_argument("--again", action="store_true", help="run nothing: ask about the folders in --keep")
    asked = parser.parse_args()
    home = asked.keep or Path(tempfile.mkdtemp(prefix="zoo_"))
    home.mkdir(parents=True, exist_ok=True)
    if not asked.again:
        agent.warm_up()
    chosen = [
        (case, form)
        for case in cases()
        for form in asked.form
        if (not asked.only or {case.name, case.script.parent.name} & set(asked.only)) and case.part in asked.part
    ]
    rows = []
    for case, form, said in all_answers(chosen, home.absolute(), asked.jobs, again=asked.again):
        rows.append((case, form, said))
        show(case, form, said)
    print(table(rows))
    if not asked.keep:
        shutil.rmtree(home, ignore_errors=True)


def show(case: Case, form: str, said: Answer) -> None:
    """Print the answer to a case; for a kept-back case only whether it is right."""
    hit, line = said.hit(case, by_logs=form == BARE), said.names_line(case)
    detail = "" if case.part in UNSEEN else f"{said.kind} {said.ranks}: {said.sentence[:200]}"
    where = {None: "", True: "line named", False: "line not named"}[line]
    print(f"{hit:10} {form:9} {case.script.parent.name}/{case.name} {where}  {detail}", flush=True)


if __name__ == "__main__":
    main()
