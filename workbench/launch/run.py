"""Implement `workbench launch`: plan the job, run it, show its progress, and explain a failure."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from analyzers.errors import Exit, WorkbenchError
from analyzers.report import Severity
from analyzers.rooms import JOINED, ask
from analyzers.run import NODE_FILE, NODES, Node, discover
from analyzers.store import Options
from analyzers.words import quantity
from workbench.collect import DONE, ENDED, URL, Store
from workbench.command_options.options import Format, Scheduler
from workbench.console import clean, complain, note
from workbench.errors import UsageProblem
from workbench.launch import scheduler
from workbench.launch.agent import Outcome, start
from workbench.launch.environment import from_environment
from workbench.launch.own_folder import refuse_links, usable_folder
from workbench.launch.plan import Plan, Request, loaded, plan, refuse_missing_checkpoint, trainer_arguments
from workbench.launch.recording import recording_config
from workbench.launch.run_manifest import read_manifest, record_outcome, record_start, set_aside_earlier_run
from workbench.package_clashes import clashes
from workbench.present import render
from workbench.python_path import command, environment
from workbench.remote.local_paths import local_path
from workbench.remote.urls import without_credentials
from workbench.watch.follow import LiveDisplay

WAIT_S = 60.0
"""The seconds for which the launcher of rank 0 waits for the files of other nodes at the end of the job."""
_SENDER_S = 90.0
_OF_THE_TRAINER = ("tb", "values", "not_finite")
"""Folders that our trainer writes beside those of every job."""
_LOOK_S = 1.0


class Collection:
    """The files of a job's nodes at the URL of `--collect`, and the process that writes those of this node there."""

    def __init__(self, job: Plan, url: str) -> None:
        self.url, self._job = url, job
        # An error of the URL is one of the launch, before the job starts.
        self._store = Store(url)
        self._sender: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start to write this node's files; those of an earlier run must have been moved away."""
        job = self._job
        # Our trainer moves them itself, but only on the node of rank 0, and after this.
        if job.earlier_files is None and read_manifest(job.folder / "run.json").get("status") in ENDED:
            set_aside_earlier_run(job.folder, _OF_THE_TRAINER)
        self._sender = subprocess.Popen(
            command("workbench.collect", str(job.folder), str(job.request.nnodes)),
            env=environment() | {URL: self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the launcher must not end it before the last files are written
        )

    def finish(self) -> None:
        """Write the remaining files of this node, and end the process that does so."""
        if self._sender is None or self._sender.poll() is not None:
            return
        try:
            self._sender.communicate(DONE, _SENDER_S)
        except (OSError, subprocess.TimeoutExpired):
            self._sender.kill()
            self._sender.wait()

    def of_all_nodes(self) -> Path:
        """Return a local folder with the files of all nodes, after all have written theirs, or `WAIT_S` seconds.

        Raises:
            WorkbenchError: The URL cannot be read.
        """
        deadline, is_said = time.monotonic() + WAIT_S, False
        while (late := self._late()) and time.monotonic() < deadline:
            if not is_said:
                note(f"waiting for the files of {late}")
                is_said = True
            time.sleep(_LOOK_S)
        return local_path(self.url)

    def _late(self) -> str:
        """Return the nodes that have not yet written all of their files as text; empty if there is none."""
        nodes: dict[str, Node] = self._store.read(NODES, Node, NODE_FILE)
        late = [name for name, node in nodes.items() if not node.ended]
        if not late and len(nodes) < self._job.request.nnodes:
            return quantity(self._job.request.nnodes - len(nodes), "more node")
        return ", ".join(late)


@contextlib.contextmanager
def collecting(job: Plan) -> Iterator[Collection | None]:
    """Yield the `Collection` of a job that starts now; None without `--collect`.

    Raises:
        WorkbenchError: The URL cannot be used.
    """
    collection = Collection(job, job.request.collect) if job.request.collect else None
    try:
        yield collection
    finally:
        if collection:
            collection.finish()


def _folder_to_explain(job: Plan, collection: Collection | None, first_rank: int | None) -> Path:
    """Return the folder whose files explain a failed job.

    On the node of rank 0 it has the files of all nodes. `first_rank` is the lowest rank of this node, None if unknown.
    """
    if collection is None:
        return job.folder
    note(f"the files of all nodes: workbench inspect {without_credentials(collection.url)}")
    if first_rank:
        return job.folder
    try:
        return collection.of_all_nodes()
    except WorkbenchError as error:
        note(f"{error.message}: this is the answer of this node alone")
        return job.folder


TITLES = {"timing_breakdown": "Timing breakdown of ", "memory_breakdown": "Memory by category "}
"""{key of the section `debug`: the beginning of the table that it asks for}."""
LONGEST = 1 << 24
"""The most characters of a log that are read."""
RECORD = "[trainer] "


def breakdowns(job: Plan) -> list[str]:
    """Return the last table of each kind that the configuration asks for; empty if the job is another program."""
    if job.module != "trainer":
        return []
    debug = loaded(trainer_arguments(job.request)).debug
    titles = [title for key, title in TITLES.items() if getattr(debug, key)]
    logs = sorted(job.logs.glob("*/attempt_*/0/stdout.log"), key=lambda log: log.stat().st_mtime)
    return _tables_of(logs[-1], titles) if titles and logs else []


def _tables_of(log: Path, titles: list[str]) -> list[str]:
    """Return the last message in a log that begins with each of `titles`, with all lines of the message."""
    with log.open(encoding="utf-8", errors="replace") as file:
        records = file.read(LONGEST).split(RECORD)
    messages = [record.partition(" - INFO - ")[2].rstrip() for record in records]
    last = {title: message for message in messages for title in titles if message.startswith(title)}
    return [clean(message) for message in last.values()]


MOST_RANKS = 4
"""The number of ranks whose exit status is printed."""


def run(request: Request) -> Exit:
    """Launch the requested job and return the exit status of `workbench launch`."""
    request, notes = from_environment(request)
    if request.command is not None and request.scheduler == Scheduler.LOCAL and not request.dry_run:
        request = _with_usable_folder(request)
    job = plan(request)
    for text in (*notes, *job.notes):
        note(text)
    if request.scheduler != Scheduler.LOCAL:
        if job.is_dry_run:
            raise UsageProblem("a dry run in one process needs no scheduler", "leave out --scheduler")
        return _give_to_scheduler(job)
    if request.dry_run:
        print(job.shell())
        return Exit.OK
    if job.is_dry_run:
        return dry_run(job)
    refuse_missing_checkpoint(job)
    _warn_of_clashes()
    with collecting(job) as collection:
        outcome = launch(job, collection)
    if outcome.status == "interrupted":
        note(f"interrupted; what was recorded is in {job.folder}")
        return Exit.INTERRUPTED
    if outcome.status == "failed":
        diagnose(job, outcome, _folder_to_explain(job, collection, outcome.first_rank))
        return Exit.FINDINGS
    for table in breakdowns(job):
        print(table)
    note(f"completed; look at it with: workbench inspect {job.folder}")
    if outcome.lost:
        # As with the answer of any command; the files below `logs` have all of the output.
        raise outcome.lost[0]
    return Exit.OK


def _with_usable_folder(request: Request) -> Request:
    """Return the request of a command; where its folder cannot be written, with a temporary one, which a note names."""
    folder, why = usable_folder(Path(recording_config(request).job.dump_folder), "the run is recorded", "workbench_")
    if why:
        note(why)
    overrides = ("--job.dump_folder", str(folder)) if why and folder else ()
    return replace(request, overrides=(*request.overrides, *overrides))


def dry_run(job: Plan) -> Exit:
    """Run one step in a single process that simulates all ranks, and show the output; nothing is recorded."""
    # torchtitan does all steps that its configuration asks for.
    steps = "" if job.module else "one step in "
    note(f"{steps}one process, in place of {quantity(int(job.environment['NGPU']), 'rank')}")
    ended = subprocess.run(job.words, env=os.environ | job.environment, check=False)
    return Exit.FINDINGS if ended.returncode else Exit.OK


def _warn_of_clashes() -> None:
    """Warn, before the job starts, if Python would import a module of the user instead of one of our packages."""
    for clash in clashes():
        if clash.severity is not Severity.INFO:
            note(f"warning: {clash.title}. {clash.why}\nnext: {clash.next}")


def _give_to_scheduler(job: Plan) -> Exit:
    """Submit the job to a cluster's scheduler; in a dry run, only print what would be submitted."""
    if job.request.dry_run:
        print(scheduler.shell(job).rstrip())
    else:
        scheduler.submit(job)
    return Exit.OK


def launch(job: Plan, collection: Collection | None = None) -> Outcome:
    """Run the job, show its progress, record its outcome in `run.json`, and return the outcome.

    `collection` brings the files of the job's nodes together; None if they are not collected.
    """
    refuse_links(job.folder)
    began = time.time()
    is_command = job.request.command is not None
    with _in_spite_of_disk("the start of the job"):
        if job.earlier_files is not None:
            set_aside_earlier_run(job.folder, job.earlier_files)
            words = job.command if is_command else job.words
            record_start(job.folder, words, job.nproc * job.request.nnodes if job.starts_ranks else None)
        job.logs.mkdir(parents=True, exist_ok=True)
    if collection:
        collection.begin()
    note(_announcement(job))
    # A user's program prints its own steps, and a display that redraws the screen would be mixed with them.
    display = LiveDisplay(job.folder, began, trouble_only=is_command) if job.request.watch else nullcontext()
    with display:
        outcome = start(job)
    # Before the last files are written to the URL, among which is run.json.
    with _in_spite_of_disk("the end of the job"):
        record_outcome(job.folder, began, outcome)
    if collection:
        collection.finish()
    return outcome


@contextmanager
def _in_spite_of_disk(what: str) -> Iterator[None]:
    """Return a context for what is recorded about a job: if it cannot be written, a note says so."""
    try:
        yield
    except OSError as error:
        note(f"{what} is not recorded: {error}")


def _announcement(job: Plan) -> str:
    """Return the line that is printed before the job starts: what is started, and the folder of its logs."""
    if not job.starts_ranks:
        return f"running {Path(job.words[0]).name} as it is; its output is also in {job.logs}"
    count = job.nproc * job.request.nnodes
    why = "" if job.request.nproc or job.request.command is None else " (--nproc N for another number)"
    return f"launching {quantity(count, 'process')}{why}; logs in {job.logs}"


def ends(outcome: Outcome) -> str:
    """Return how the ranks of a failed job ended; it may not have been possible to record this."""
    codes = {f"rank {rank}": code for rank, code in sorted(outcome.exit_codes.items())}
    codes |= {"the command": outcome.exit_code} if outcome.exit_code is not None else {}
    texts = [
        f", {who} with " + (f"signal {-code}" if code < 0 else f"exit status {code}") for who, code in codes.items()
    ]
    return "".join(texts[:MOST_RANKS])


def diagnose(job: Plan, outcome: Outcome | None = None, folder: Path | None = None) -> None:
    """Analyse the files of a failed job, and print why it failed; if the analysis itself fails, print its error.

    `folder` has the files; None means the folder of the job.
    """
    # Where the folder of the run cannot be written, the logs are elsewhere.
    logs = outcome.logs if outcome and outcome.logs and not outcome.logs.is_relative_to(job.logs) else job.logs
    note(f"the job failed{ends(outcome) if outcome else ''}; logs in {logs}")
    try:
        recorded = discover(folder or job.folder)
        report = ask(JOINED, recorded, Options())
    except WorkbenchError as error:
        complain(error.message, error.hint)
        return
    except OSError as error:  # of this machine: no more processes, descriptors, or no /proc
        elsewhere = f"try it elsewhere: workbench inspect {folder or job.folder}"
        complain(f"the files of the job cannot be analysed here: {error}", elsewhere)
        return
    sys.stdout.write(render(report, Format.TEXT, recorded))
