"""`workbench launch`: plan, start, watch, and when the job fails say why."""

import fcntl
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from analyzers.errors import Exit, WorkbenchError
from analyzers.report import Severity
from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import JOINED, ask
from workbench.clashes import clashes
from workbench.console import complain, note
from workbench.launch import scheduler
from workbench.launch.agent import Outcome, start
from workbench.launch.cause import earliest, first_error, first_rank_here
from workbench.launch.plan import Plan, Request, plan
from workbench.options import Format, Scheduler
from workbench.present import render
from workbench.watch.follow import Watcher


def run(request: Request) -> Exit:
    """Launch the job; its end as an exit status."""
    planned = plan(request)
    if request.scheduler != Scheduler.LOCAL:
        return left_to_scheduler(request, planned)
    if request.dry_run:
        print(planned.shell())
        return Exit.OK
    warn_of_clashes()
    outcome = launched(planned)
    if outcome.status == "interrupted":
        note(f"interrupted; what was recorded lies in {planned.folder}")
        return Exit.INTERRUPTED
    if outcome.status == "failed":
        diagnose(planned)
        return Exit.FINDINGS
    note(f"completed; look at it with: workbench inspect {planned.folder}")
    return Exit.OK


def warn_of_clashes() -> None:
    """Name modules that are imported in place of ours somewhere, before a job runs for hours."""
    for clash in clashes():
        if clash.severity is not Severity.INFO:
            note(f"warning: {clash.title}. {clash.why}\nnext: {clash.next}")


def left_to_scheduler(request: Request, planned: Plan) -> Exit:
    """Leave the job to a cluster's scheduler."""
    if request.dry_run:
        print(scheduler.shell(request, planned).rstrip())
    else:
        scheduler.submit(request, planned)
    return Exit.OK


def launched(planned: Plan) -> Outcome:
    """Run the job under its progress display and write down how it ended."""
    began = time.time()
    note(f"launching {planned.nproc * planned.nnodes} processes; logs in {planned.logs}")
    planned.logs.mkdir(parents=True, exist_ok=True)
    with Watcher(planned.folder, began):
        outcome = start(planned)
    settle(planned.folder, began, outcome)
    return outcome


def settle(folder: Path, began: float, outcome: Outcome) -> None:
    """Complete `run.json` by what only the launcher knows. One of an earlier run is not ours to touch."""
    with (folder / ".settling").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # launchers of several nodes end at the same time
        write_end(folder / "run.json", began, outcome)


def write_end(path: Path, began: float, outcome: Outcome) -> None:
    """Add how this launch ended to what the trainer and other launchers wrote."""
    manifest = read_manifest(path)
    # Not by when it was started: launchers of other nodes, begun before this one, may have written it already.
    if not manifest or path.stat().st_mtime < began:
        manifest = {"schema": "workbench.run/1", "started_ns": int(began * 1e9), "argv": sys.argv}
    manifest |= {
        "status": outcome.status,
        "ended_ns": manifest.get("ended_ns") or time.time_ns(),
        "exit_codes": exit_codes(manifest, outcome),
    }
    manifest |= of_this_node(path.parent, began, outcome, manifest)
    scratch = path.with_suffix(".json.tmp")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    scratch.rename(path)


def of_this_node(folder: Path, began: float, outcome: Outcome, manifest: dict[str, Any]) -> dict[str, Any]:
    """Which ranks this launch had, and the cause; each node's launcher adds its own, and the earliest error stays."""
    first = outcome.first_rank
    if first is None and outcome.logs:
        first = first_rank_here(folder / "dumps", outcome.logs)
    cause = first_error(outcome.logs or folder / "logs", began, first or 0)
    here = {"host": socket.gethostname(), "first_rank": first}
    launches = (manifest.get("launches") or {}) | ({outcome.logs.name: here} if outcome.logs else {})
    return {"launches": launches, "cause": earliest(cause, manifest.get("cause"))}


def exit_codes(manifest: dict[str, Any], outcome: Outcome) -> dict[str, int]:
    """Those of this node's ranks, beside what another node's launcher has written already."""
    known = manifest.get("exit_codes") or {}
    return known | {str(rank): code for rank, code in sorted(outcome.exit_codes.items())}


def read_manifest(path: Path) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, TypeError, ValueError):
        return {}


def diagnose(planned: Plan) -> None:
    """Print why the job failed; a diagnosis that cannot be made must not hide that the job did."""
    note(f"the job failed; logs in {planned.logs}")
    try:
        found = discover(planned.folder)
        report = ask(JOINED, found, Options())
    except WorkbenchError as error:
        complain(error.message, error.hint)
        return
    sys.stdout.write(render(report, Format.TEXT, found))
