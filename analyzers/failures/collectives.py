"""Failures of collectives: ranks that do not join, differ, or leave too early."""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from analyzers.case.facts import EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Basis, Case, Tier
from analyzers.case.wording import (
    BAR,
    MESSAGES,
    NEW_GROUP,
    at_line,
    at_step,
    first_with,
    operation_name,
    place,
    quoted,
    shortened,
    who,
)
from analyzers.failures.entry import Advice, Example, Failure, sign
from analyzers.words import (
    agree,
    duration,
    rank_names,
)

_FIRST_OPERATIONS = 5
"""Up to this sequence number nothing was trained yet, where no step was printed."""
_PREPARES = r"okeniz|Map\b|Grouping|Generating|Filter|Loading checkpoint|(?i:preprocess)"


_GENERATES = re.compile(r"Generating \w+ split: \d+ examples \[")
"""Matches a progress bar of datasets, which a rank draws while it prepares."""


def _is_preparing(case: Case) -> bool:
    """Return whether the last line on preparation that a rank printed does not show its end."""
    last = {
        event.rank: event.message
        for event in case.events
        if event.kind is EventKind.CLUE and re.search(_PREPARES, event.message)
    }
    return any((re.findall(r"(\d+)%", message) or ["0"])[-1] != "100" for message in last.values())


def _is_wait(case: Case) -> bool:
    """Return whether ranks gave up waiting, rather than that the start failed for a reason of its own."""
    return case.kind is LogClass.COLLECTIVE_TIMEOUT or case.reason is Reason.MISSING_RANKS


def mismatch(case: Case) -> str:
    """Return the title for ranks that issued different operations, with the operation of each rank."""
    lead = first_with(case, "operation")
    if case.blame and case.blame.basis in _BY_BASIS:
        return _BY_BASIS[case.blame.basis](case)
    if any(event.facts.operation == NEW_GROUP for event in case.waited):
        return _different_groups(case)
    if case.reason is Reason.SIZES:
        return _different_sizes(case)
    if case.reason is Reason.MODELS:
        return f"{who(lead.facts.ranks)} have models with different parameters"
    return f"{' while '.join(_fingerprint_sides(case))}{at_step(lead)}"


def _fingerprint_sides(case: Case) -> list[str]:
    """Return the call of each rank, such as `rank 1 called REDUCE [20, 10] (app/a.py:4, in main)`.

    The ranks to blame come first. Each rank's own error has its operation and line; if this error is missing in the
    logs, the operation comes from the errors of other ranks.
    """
    calls = {e.facts.ranks[0]: (e.facts.operation, at_line(e)) for e in fingerprints(case)}
    for event in fingerprints(case):
        calls.setdefault(event.facts.ranks[1], (event.facts.other_operation, ""))
    by_call: dict[tuple[str | None, str], list[int]] = {}
    for rank in sorted(calls, key=lambda rank: (rank not in case.ranks, rank)):
        by_call.setdefault(calls[rank], []).append(rank)
    return [f"{rank_names(ranks)} called {operation}{where}" for (operation, where), ranks in by_call.items()]


def fingerprints(case: Case) -> list[LogEvent]:
    """Return the events in which PyTorch's debug mode compares the operation of one rank with that of another rank."""
    return [e for e in case.failure.events if len(e.facts.ranks) == 2 and e.facts.operation]


def _different_sizes(case: Case) -> str:
    """Return the title for tensors of different sizes, with the lines at which the other ranks lost the connection."""
    lead = first_with(case, "operation")
    known = {event.rank for event in case.waited}
    are_others = len(case.ranks) == 1 or (case.ranks and known - {*case.ranks})
    whom = f"{'one of ' if are_others and len(case.ranks) > 1 else ''}{who(case.ranks, 'ranks')}"
    whom += " and the others" if are_others else ""
    where = f"; {waiting_places(case)}" if case.waited else ""
    if case.count:
        where = f"; it printed `{case.count.text}`, the others `{case.count.others}`{where}"
    return f"{whom} passed different sizes to one collective: {_sizes_of(case)}{place(lead)}{at_step(lead)}{where}"


def _sizes_of(case: Case) -> str:
    """Return a clause on the number of bytes that arrived and the number that gloo expected."""
    facts = case.lead.facts
    if facts.input_elements is None:
        return "a message does not fit its buffer"
    return f"{facts.input_elements} bytes arrived where {facts.output_elements} were expected"


def _different_timeouts(case: Case) -> str:
    """Return the title for ranks that wait in different operations, naming each operation with its ranks."""
    first: dict[int, LogEvent] = {}
    for event in case.failure.events:
        if event.rank is not None and event.facts.operation:
            known = first.setdefault(event.rank, event)
            # A rank has several operations under way, and waits in the earliest one.
            first[event.rank] = event if (event.seq or 0) < (known.seq or 0) else known
    by_operation: dict[str, list[int]] = {}
    for rank, event in first.items():
        by_operation.setdefault(operation_name(event), []).append(rank)
    if _differ_in_size(list(first.values())):
        sizes = {rank: event.facts.input_elements for rank, event in first.items()}
        sides = ", ".join(f"rank {rank} {elements} elements" for rank, elements in sizes.items())
        return f"ranks passed different sizes to {operation_name(next(iter(first.values())))}: {sides}"
    sides = ", ".join(f"{rank_names(ranks)} in {name}" for name, ranks in by_operation.items())
    return f"ranks timed out in different operations: {sides}"


def _differ_in_size(events: Sequence[LogEvent]) -> bool:
    """Return whether ranks are in one operation of one number, with different numbers of elements."""
    sizes = {event.facts.input_elements for event in events}
    return len({operation_name(event) for event in events}) == 1 and len(sizes) > 1 and None not in sizes


_WORDS = re.compile(r"[A-Za-z]{3}")
_NOT_SAID = re.compile(r"^\s*$|^\[[IWEF]|\[rank\d+\]:\s?\[[IWEF]|^\s{2,}File |Traceback|Error|frame #")
_GLUED = re.compile(r"(?:\[rank\d+\]:)?\[[EF] ?\w|\[rank\d+\]:\[")
_SAVES = re.compile(r"(?i)\b(?:sav(?:e|ing)|writing|dumping)\b.{0,60}(?:checkpoint|ckpt|model|state|weights)")
_EVALUATES = re.compile(r"(?i)\b(?:evaluat|validat|testing\b|generating samples)")


_STEP = re.compile(r"(?i)\b(?:step|iter(?:ation)?)\W{0,3}\d|\d+/\d+ \[.{0,40}(?:it/s|s/it)")
_SAID_AT_MOST = 8


def said_before(case: Case) -> list[str]:
    """Return the last lines before a wait that report no error, the last one first, back to the last line with a step."""
    event = min(case.failure.events, key=lambda event: (event.path, event.line), default=None)
    if event is None:
        return []
    before, found, _ = event.excerpt.partition(event.message[:60])
    if not found:
        return []
    # A progress bar has no line end: the report of the error stands behind it.
    glued = _GLUED.search(event.message)
    lines = [*before.splitlines(), event.message[: glued.start()] if glued else ""]
    said = [BAR.sub("", line.strip()) for line in reversed(lines) if _WORDS.search(line) and not _NOT_SAID.search(line)]
    return said[:1] + list(takewhile(lambda line: not _STEP.search(line), said[1:_SAID_AT_MOST]))


def last_said(case: Case) -> str:
    """Return the last line before a wait that reports no error, as it stands in the log; empty without one."""
    return next(iter(said_before(case)), "")


def _said(case: Case, what: re.Pattern[str]) -> str:
    """Return the last line before a wait that reports `what`, as a quotation, shortened."""
    line = next((line for line in said_before(case) if what.search(line)), "")
    return f"`{shortened(' '.join(line.split()))}`"


def _after_line(case: Case, what: re.Pattern[str]) -> str:
    """Return a clause that quotes the line before a wait that says what the job was doing; empty if a frame says it."""
    return f"; before it the log says {_said(case, what)}" if any(map(what.search, said_before(case))) else ""


def _saves_sharded_model(case: Case) -> bool:
    """Return whether the lines around the timeout name a sharded model, or code that only the main process runs."""
    return case.printed(r"is_main_process|is_local_main_process|rank\W{1,6}0\b|FSDP|FullyShard|[Zz]e[Rr][Oo]-?3")


def _finds_unused(case: Case) -> bool:
    """Return whether the message says that DDP looks for unused parameters already."""
    return case.printed(r"find_unused_parameters=True`? is enabled")


def _is_wait_after(case: Case, what: re.Pattern[str]) -> bool:
    """Return whether ranks gave up waiting, and the last line before it reports what the job was doing."""
    is_open = case.blame is None or case.blame.basis not in (Basis.OTHER_OPERATION, Basis.OTHER_LINE, Basis.CAUGHT)
    if case.kind is not LogClass.COLLECTIVE_TIMEOUT or not is_open:
        return False
    return any(map(what.search, said_before(case))) or _is_called_in(case, what)


def _is_called_in(case: Case, what: re.Pattern[str]) -> bool:
    """Return whether a frame of the wait is a function whose name says what the job was doing, as `save_checkpoint`."""
    return any(what.search(call.rpartition(":")[2].replace("_", " ")) for call in case.lead.calls)


def _different_lines(case: Case) -> str:
    """Return the title for ranks that waited at different lines, with the line of each rank."""
    if len(case.ranks) == len(case.waited):
        return f"{who(case.ranks)} took different branches, or one left a loop earlier: {waiting_places(case)}"
    return f"{who(case.ranks)} took a different branch than the others, or left a loop earlier: {waiting_places(case)}"


def _caught_and_went_on(case: Case) -> str:
    """Return the title for ranks that caught an error and skipped collectives, with where the other ranks wait."""
    error = case.caught[0]
    left_out = f"{who(case.ranks)} caught an error{place(error)}{at_step(error)}, left out the collectives of that step"
    return f"{left_out} and ended before the others ({waiting_places(case)}): {quoted(error)}"


def left_alone(case: Case) -> str:
    """Return the title for ranks that waited in a collective when all other ranks had ended with exit code 0."""
    operation = first_with(case, "operation").facts.operation or "a collective"
    return (
        f"{who(case.ranks)} issued {operation}{at_line(case.lead)} when all other ranks had ended, or were about to:"
        f" torchrun reports no other failure"
    )


def _in_threads(case: Case) -> str:
    """Return the title for collectives of one process group that are issued by both a thread and the main thread.

    It says where each thread waits.
    """
    return (
        "a thread and the main thread issue collectives of one process group, whose order may differ between ranks:"
        f" {waiting_places(case)}"
    )


def _different_groups(case: Case) -> str:
    """Return the title for ranks that created different process groups, or created them in a different order.

    It says where each rank waits.
    """
    return f"{who(case.ranks)} did not make the same process groups as the others: {waiting_places(case)}"


def waiting_places(case: Case) -> str:
    """Return the lines at which ranks waited for each other, as `rank 0 waits in barrier (a.py:9, in main), ...`."""
    by_line: dict[str, list[int]] = {}
    for event in case.waited:
        if event.rank is not None:
            by_line.setdefault(f"{event.facts.operation or 'a collective'}{at_line(event)}", []).append(event.rank)
    return ", ".join(
        f"{rank_names(ranks)} {agree(ranks, 'waits', 'wait')} in {where}" for where, ranks in by_line.items()
    )


_BY_BASIS: dict[Basis, Callable[[Case], str]] = {
    Basis.OTHER_OPERATION: _different_timeouts,
    Basis.OTHER_LINE: _different_lines,
    Basis.CAUGHT: _caught_and_went_on,
    Basis.LEFT_ALONE: left_alone,
    Basis.THREADS: _in_threads,
}


def unmatched_p2p(case: Case) -> str:
    """Return the title for sends and receives that do not match.

    The title names the rank that did not issue one (if known), and where each rank waits.
    """
    sides, waiting = waiting_places(case), {e.rank for e in case.waited if e.facts.operation in MESSAGES}
    if not case.ranks:
        return f"sends and receives do not match: {sides}"
    if waiting.issuperset(case.ranks):
        return f"{rank_names(case.ranks)} wait for each other in sends and receives: {sides}"
    return f"{rank_names(case.ranks)} never issued the matching send or recv: {sides}"


_NUMBERS_AT_MOST = 8


def unused_parameters(case: Case) -> str:
    """Return the title for parameters that got no gradient."""
    lead = first_with(case, "name")
    name = lead.facts.name or ""
    place_of = next((place(e) for e in case.failure.events if e.source), "")
    listed = name.split() if name[:1].isdigit() else []
    is_long = len(listed) > _NUMBERS_AT_MOST
    numbers = ", ".join(listed[:_NUMBERS_AT_MOST] if is_long else listed) + (" and more" if is_long else "")
    which = f" {numbers} (counted from 0 among those that require a gradient)" if numbers else ""
    named = f": {name}" if name and not numbers else ""
    return f"parameters{which} got no gradient on {who(case.ranks)}{place_of}{at_step(lead)}{named}"


def collective_timeout(case: Case) -> str:
    """Return the title for a collective that timed out: which ranks were missing, and which ranks waited."""
    after = _duration_of(case)
    if case.lead.kind is EventKind.HEARTBEAT:
        ranks = who(case.failure.ranks)
        return f"NCCL's watchdog on {ranks} was stuck{after}: a call of CUDA or NCCL does not return"
    name = operation_name(first_with(case, "operation"))
    waiting = who(case.blame.waiting if case.blame else [], "the other ranks")
    where, ranks = at_line(case.lead), who(case.ranks)
    without_culprit = {
        Basis.NAMED: f"{waiting} timed out in {name}{where}, which the other rank never joined",
        Basis.FIRST_OPERATION: f"the first collective, {name}, did not finish{after.replace(' after ', ' within ')}:"
        f" {waiting} may be unable to communicate",
        Basis.ALL_WAIT: f"{waiting} all timed out in {name}{where}{after}: the operation does not complete",
        Basis.MOST_SILENT: f"{waiting} timed out in {name}{where}{after}; what the other ranks did is not shown",
        Basis.LATE: f"{waiting} timed out in {name}{where}{after}; then all other ranks lost the connection",
        Basis.ONE_SIDE: f"{waiting} timed out in {name}{where}{after}; which rank did not join is not shown",
    }
    alone = {
        Basis.ALONE: f"{ranks} alone issued {name}{where}, after the end of the training; it timed out{after}",
        Basis.EXTRA_OPERATION: f"{ranks} issued {name}{where}, which no other rank joined{after}",
    }
    basis = case.blame.basis if case.blame else Basis.ONE_SIDE
    if basis is Basis.STACKS:
        return stuck(case)
    usual = f"{ranks} never joined {name}{where}{at_step(case.lead)}; {waiting} timed out{after}"
    if case.ranks and basis is Basis.SILENT and not _has_own_logs(case):
        # A text that several ranks share may be cut, or lack the lines of some of them.
        verb = agree(case.ranks, "reports", "report")
        usual = (
            f"{waiting} timed out{after} in {name}{where}{at_step(case.lead)}; {ranks} {verb} no timeout in this text"
        )
    return (alone if case.ranks else without_culprit).get(basis, usual)


def _has_own_logs(case: Case) -> bool:
    """Return whether each rank to blame has a log that no other rank writes to: it would show a timeout."""
    others = {log.path for rank, log in case.logs.items() if rank not in case.ranks}
    others |= {event.path for event in case.failure.events}
    theirs = [case.logs.get(rank) for rank in case.ranks]
    return all(log and log.last_line and log.path not in others for log in theirs)


def stuck(case: Case) -> str:
    """Return the title for ranks whose stacks are outside of the collective in which the others wait."""
    inside = next(event for event in case.failure.events if event.facts.operation)
    whom = who(case.blame.waiting if case.blame else [])
    return (
        f"{who(case.ranks)} {agree(case.ranks, 'was', 'were')}{place(case.lead)}{at_step(case.lead)}, while {whom}"
        f" waited in {inside.facts.operation}{at_line(inside)}; a timer of faulthandler printed the"
        f" stacks{_duration_of(case)}"
    )


MS = 1000.0


def _duration_of(case: Case) -> str:
    """Return how long the ranks waited, as ` after 10.0 min`, or as ` for 60 s` if the watchdog was stuck.

    The text is empty if the duration was not logged.
    """
    event = first_with(case, "waited_ms")
    waited = event.facts.waited_ms or first_with(case, "timeout_ms").facts.timeout_ms
    if not waited:
        return ""
    # The heartbeat monitor gives the duration of a stuck watchdog in whole seconds.
    return f" for {waited // 1000} s" if event.kind is EventKind.HEARTBEAT else f" after {duration(waited / MS)}"


def early_exit(case: Case) -> str:
    """Return the title for a rank that left without an error, and where the others waited for it."""
    others = who(case.failure.ranks, "the other ranks")
    is_certain = case.blame is not None and case.blame.basis is Basis.NOT_LISTED
    # Its exit code may be that of the launcher's SIGTERM, if the process was still there when the others failed.
    left = f"left {agree(case.ranks, 'its', 'their')} training loop without an error"
    how = "ended with exit code 0" if is_certain else left
    operation = first_with(case, "operation").facts.operation
    where = f" in {operation}{at_line(case.lead)}" if operation else place(case.lead)
    return f"{who(case.ranks)} {how}; {others} lost the connection{where}"


_DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=2000"


_TIMEOUTS = {
    Basis.FIRST_OPERATION: "run once with NCCL_DEBUG=INFO and read which transport and interface NCCL chose; then try"
    " NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, one at a time, and set NCCL_SOCKET_IFNAME if the interface is wrong",
    Basis.ALONE: "look for a collective that only this rank reaches: in `if rank == 0:`, in saving, logging or metrics",
    Basis.EXTRA_OPERATION: "look for a collective that only this rank reaches: in `if rank == 0:`, in a branch",
    Basis.ALL_WAIT: "check devices and network of these ranks. Start the next run with `workbench launch`, which"
    f" records what each rank waits for, or set {_DUMPS} (for NCCL)",
}


def _for_mismatch(case: Case) -> str:
    """Return how to find the branch of the program in which ranks differ."""
    called = {(e.source, (e.facts.operation or "").partition(" [")[0]) for e in case.failure.events}
    if case.reason is Reason.FINGERPRINTS and len(called) == 1 and case.lead.source:
        return (
            "all ranks are in the same line, and what they pass differs: find out why, for example a last batch that is"
            " smaller, or sequences that are not padded to one length"
        )
    if case.reason is Reason.FINGERPRINTS:
        return (
            f"compare the code that leads {who(case.ranks, 'each rank')} to its call with that of the others: a"
            " branch, a loop that ends earlier, or a batch of a different shape; every rank must issue the same"
            " operations with the same shapes"
        )
    if case.blame and case.blame.basis is Basis.LEFT_ALONE:
        return _TIMEOUTS[Basis.ALONE]
    if case.blame and case.blame.basis is Basis.THREADS:
        return (
            "give the thread a process group of its own (`dist.new_group()`), or issue its collectives in the main"
            " thread"
        )
    if case.blame and case.blame.basis is Basis.OTHER_LINE:
        lines = " with ".join(dict.fromkeys(place(event).removeprefix(" in ") for event in case.waited))
        return (
            f"compare {lines}: look for a branch that only some ranks take, or a loop that ends earlier on one of them"
        )
    waits = [event for event in case.failure.events if event.rank is not None and event.facts.operation]
    if case.blame and case.blame.basis is Basis.OTHER_OPERATION and _differ_in_size(waits):
        return (
            "pad what is gathered to one size on all ranks (or exchange the sizes first). Ranks that share one model (tensor,"
            " sequence or expert parallel) must get the same sample: check the sampler's rank and number of replicas"
        )
    if case.blame and case.blame.basis is Basis.OTHER_OPERATION and not case.ranks:
        return (
            "see whether these operations are of one process group (newer versions print `PG GUID`, and dumps of Flight Recorder"
            f" name it: {_DUMPS}). If they are, the rank with the lower number is behind: read its log from the first line that"
            " differs. Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares the calls of the ranks"
        )
    return (
        "run once with TORCH_DISTRIBUTED_DEBUG=DETAIL, which names the rank and both shapes before the collective"
        " starts"
    )


def _for_timeout(case: Case) -> str:
    """Return where to look for the rank that did not join."""
    if case.lead.kind is EventKind.HEARTBEAT:
        return f"look at the host's stacks (`py-spy dump --native --pid PID`), the driver's log for Xid, and {_DUMPS}"
    if case.blame and case.blame.basis in _TIMEOUTS:
        return _TIMEOUTS[case.blame.basis]
    if case.ranks:
        return (
            f"read the log of {rank_names(case.ranks)} up to its last line. To see its stack next time, start the job"
            " with `workbench launch`, or run `py-spy dump --pid PID` while it hangs"
        )
    return (
        "look in the logs of the other ranks for one that failed before, printed no timeout, or timed out in a"
        " different operation: that rank did not join. Start the next run with `workbench launch`, which records"
        f" what each rank waits for, or set {_DUMPS} (for NCCL) and give the dumps to `workbench hang`"
    )


ENTRIES = (
    Failure(
        id="collectives.preparation",
        kind=LogClass.COLLECTIVE_TIMEOUT,
        what="A rank was still preparing data or downloading when the timeout of the others ended the job.",
        clues=(
            sign("Running tokenizer"),
            sign("okeniz", r"(?i)\btokeniz(?:ing|e)\b.{0,60}\d%"),
            sign("Map", r"(?:^|[\]:]) ?Map\b.{0,40}\d%"),
            sign("Grouping texts"),
            sign("Generating ", r"Generating \w+ split"),
            sign("Filter", r"\bFilter\b.{0,40}\d%"),
            sign("Loading checkpoint shards"),
            sign("reprocess", r"(?i)preprocess\w* .{0,60}\d%"),
        ),
        when=lambda case: (
            case.kind in (LogClass.COLLECTIVE_TIMEOUT, LogClass.STARTUP)
            and case.lead.step is None
            and not any(log.last_step for log in case.logs.values())
            and ((case.lead.seq or 0) <= _FIRST_OPERATIONS or bool(_GENERATES.search(last_said(case))))
            and _is_wait(case)
            and (
                _is_preparing(case)
                or re.search(rf"(?:{_PREPARES}).{{0,80}}?\b(?!100%)\d{{1,3}}%", last_said(case)) is not None
            )
        ),
        headline=lambda case: (
            f"{who(case.ranks)} {agree(case.ranks, 'was', 'were')} still preparing data when the timeout ended the job"
            if case.ranks
            else "A rank was still preparing data when the timeout of the others ended the job"
        ),
        sentence=lambda case: (
            f"a rank was still preparing data when the others gave up waiting: {collective_timeout(case)}"
            if case.kind is LogClass.COLLECTIVE_TIMEOUT
            else "a rank was still preparing data when the others gave up waiting"
        ),
        why="ranks that wait in a barrier or in the first collective for one that tokenizes, maps or loads reach the timeout"
        " of the process group",
        next=(
            "prepare the data once before the training (tokenize, cache, save_to_disk), and let the job only load it",
            "or give the preparation more time: init_process_group(timeout=datetime.timedelta(hours=2)), in transformers"
            " ddp_timeout=7200",
        ),
        rules_out="steps were trained before",
        near_misses=(
            "Loading checkpoint shards: 100%|##########| 4/4 [00:09<00:00,  2.3s/it]\n"
            "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029"
            " milliseconds before timing out.\n",
        ),
    ),
    Failure(
        id="collectives.no_parameters_arrived",
        kind=LogClass.MISMATCH,
        what="DDP compares the models of the ranks at its start, and a rank reads 0 parameters from another one.",
        signs=(sign("has inconsistent", r"while rank \d+ has inconsistent 0 params"),),
        headline="DDP reads 0 parameters from another rank: its model is empty, or nothing arrived",
        why="all ranks must have the same model; a count of 0 is also what a rank reads where the communication itself"
        " does not work (peer-to-peer access of the GPUs, the wrong network interface)",
        next=(
            "print len(list(model.parameters())) on every rank before DDP, and read the other rank's own output: a"
            " model that is built, loaded or moved on one rank only has none on the other",
            "check that all ranks call the same collectives before DDP (DDP reads the data of one that only some ranks call as"
            " the count), and that the number of running ranks equals the world size",
            "if the numbers are equal, the communication is broken: run once with NCCL_P2P_DISABLE=1; with"
            " NCCL_DEBUG=INFO see which interface is used; set NCCL_SOCKET_IFNAME to the one that connects the nodes,"
            " and try NCCL_IB_DISABLE=1 (or the right NCCL_IB_GID_INDEX for RoCE)",
        ),
        examples=(
            Example(
                "[rank2]: RuntimeError: DDP expects same model across all ranks, but Rank 2 has 362 params, while rank 0 has"
                " inconsistent 0 params.",
                source="SWivid/F5-TTS#775",
                says=("NCCL_SOCKET_IFNAME",),
            ),
        ),
        near_misses=(
            "[rank1]: RuntimeError: DDP expects same model across all ranks, but Rank 1 has 362 params, while rank 0 has"
            " inconsistent 360 params.",
        ),
        knowledge="torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes",
    ),
    Failure(
        id="collectives.fingerprints_cut",
        kind=LogClass.MISMATCH,
        what="PyTorch's check found that ranks issued different collectives; the other rank's call is cut off in the text.",
        signs=(
            sign(
                "Detected mismatch between collectives",
                r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running collective:"
                r" CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+), )?OpType=(?P<operation>\w+)",
            ),
        ),
        when=lambda case: case.reason is not Reason.FINGERPRINTS,
        headline="Rank {rank} called {operation}, and another rank's call differs from it",
        why="all ranks of a process group must call the same collective with the same shapes; the message names the other call"
        " behind `but Rank`",
        next=(
            "compare what leads each rank to this line: a branch that only some ranks take, a loop that ends earlier, a batch of"
            " another size",
            "with Lightning: log the same names on every rank (self.log(..., sync_dist=True) is a collective), or sync_dist=False",
        ),
        examples=(
            Example(
                "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective:"
                " CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long",
                says=("Rank 1", "BROADCAST"),
            ),
        ),
        knowledge="torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
    ),
    Failure(
        id="collectives.different_models",
        kind=LogClass.MISMATCH,
        what="DDP compares the models of the ranks at its start, and they have different numbers of parameters.",
        signs=(
            sign(
                "has inconsistent",
                r"Rank (?P<one>\d+) has (?P<count>\d+) params, while rank (?P<other>\d+) has inconsistent (?P<others>[1-9]\d*) params",
            ),
        ),
        headline="Rank {one} built a model of {count} parameters, rank {other} one of {others}",
        why="DistributedDataParallel needs the same model on all ranks; the numbers count tensors, not elements",
        next=(
            "compare what each rank builds its model from: arguments, configuration and code (git rev-parse HEAD on each node), a"
            " branch on the rank or on its GPU, a checkpoint or file that only some ranks find",
            "print [name for name, _ in model.named_parameters()] on both ranks just before DDP wraps the model, and compare",
        ),
        examples=(
            Example(
                "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 87 params, while rank 1 has inconsistent"
                " 31 params.",
                says=("87 parameters", "31", "named_parameters"),
            ),
        ),
        near_misses=(
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 212 params, while rank 0 has inconsistent"
            " 0 params.",
        ),
        knowledge="torch.distributed: _verify_params_across_processes",
    ),
    Failure(
        id="collectives.different_calls",
        kind=LogClass.MISMATCH,
        what="The ranks of a process group issued different operations, shapes, sizes or groups.",
        when=lambda case: case.kind is LogClass.MISMATCH,
        headline=mismatch,
        sentence=mismatch,
        why="all ranks of a process group must call the same collective with the same shapes",
        next=(_for_mismatch,),
    ),
    Failure(
        id="collectives.unmatched_p2p",
        kind=LogClass.UNMATCHED_P2P,
        what="A send has no recv, or a recv no send.",
        when=lambda case: case.kind is LogClass.UNMATCHED_P2P,
        headline=unmatched_p2p,
        sentence=unmatched_p2p,
        why="",
        next=("give each send a recv on its peer with the same tag, and issue both in the same order on both ranks",),
    ),
    Failure(
        id="collectives.unused_parameters",
        kind=LogClass.UNUSED_PARAMETERS,
        what="DistributedDataParallel waits for the gradient of a parameter that took no part in the loss.",
        when=lambda case: case.kind is LogClass.UNUSED_PARAMETERS,
        headline=unused_parameters,
        sentence=unused_parameters,
        why=lambda case: (
            "with find_unused_parameters=True parameters that forward() does not use are left out; one that it uses, and whose"
            " result is not in the loss, is still waited for"
            if _finds_unused(case)
            else "DDP waits in each step for a gradient of every parameter, and a parameter that takes no part in the loss gets none"
        ),
        next=(
            Advice(
                "let all outputs of forward() take part in the loss (find_unused_parameters=True is on already, and does not help"
                " here)",
                _finds_unused,
            ),
            Advice(
                "make every parameter take part in the loss on each rank, also where forward() branches, or pass"
                " `find_unused_parameters=True` to DistributedDataParallel",
                lambda case: not _finds_unused(case),
            ),
            "parameters that are not meant to learn: param.requires_grad_(False) before the model is wrapped in"
            " DistributedDataParallel, which then does not wait for them",
            Advice(
                "TORCH_DISTRIBUTED_DEBUG=DETAIL prints the names of the parameters",
                lambda case: not case.printed(r"[Pp]arameters which did not receive grad[^\n]{0,40}: [A-Za-z]"),
            ),
        ),
    ),
    Failure(
        id="collectives.while_saving",
        kind=LogClass.COLLECTIVE_TIMEOUT,
        what="Ranks waited in a collective until its timeout while a checkpoint was being saved.",
        when=lambda case: _is_wait_after(case, _SAVES),
        headline=lambda case: f"Ranks gave up waiting{_duration_of(case)} while a checkpoint was being saved",
        sentence=lambda case: collective_timeout(case) + _after_line(case, _SAVES),
        why="the ranks that do not save wait in the next collective for the one that does, and give up if its write takes longer"
        " than the timeout",
        next=(
            Advice(
                "if it runs below `if rank == 0:`, let all ranks run the saving code of a sharded model (FSDP, ZeRO-3):"
                " gathering its state needs each of them",
                _saves_sharded_model,
            ),
            "look how long the save took before, and at the storage that it writes to (full, slow or hanging file system; `dmesg"
            " -T`, a stack of that rank by py-spy)",
            "give it more time (init_process_group(timeout=datetime.timedelta(hours=1)); transformers: ddp_timeout), or save faster:"
            " sharded or asynchronous (torch.distributed.checkpoint.async_save), first to a local disk",
            Advice(
                "if only rank 0 runs the saving code: a sharded model (FSDP, ZeRO-3) needs all ranks in it, not `if rank == 0:`",
                lambda case: not _saves_sharded_model(case),
            ),
        ),
        rules_out="a step was printed between the save and the timeout",
    ),
    Failure(
        id="collectives.while_evaluating",
        kind=LogClass.COLLECTIVE_TIMEOUT,
        what="Ranks waited in a collective until its timeout while an evaluation was running.",
        when=lambda case: _is_wait_after(case, _EVALUATES),
        headline=lambda case: f"Ranks gave up waiting{_duration_of(case)} while an evaluation was running",
        sentence=lambda case: collective_timeout(case) + _after_line(case, _EVALUATES),
        why="an evaluation that only one rank runs, or in which ranks have different numbers of batches, lets the others wait",
        next=(
            "run the evaluation on all ranks with the same number of batches, or on one rank with the unwrapped model (model.module)"
            " and no collective in it, and give the others more time: init_process_group(timeout=...), ddp_timeout",
            "see where each rank was: `workbench launch -- COMMAND`, or py-spy dump --pid PID on each rank while it waits",
        ),
        rules_out="a step of the training was printed between the evaluation and the timeout",
    ),
    Failure(
        id="collectives.timeout",
        kind=LogClass.COLLECTIVE_TIMEOUT,
        what="Ranks waited in a collective until its timeout, most often because another rank did not join it.",
        when=lambda case: case.kind is LogClass.COLLECTIVE_TIMEOUT,
        headline=lambda case: collective_timeout(case).partition("; the logs")[0],
        sentence=collective_timeout,
        why="",
        next=(_for_timeout,),
        explains=("processes.*", "network.*", "collectives.early_exit"),
        tier=Tier.TIMEOUT,
    ),
    Failure(
        id="collectives.early_exit",
        kind=LogClass.EARLY_EXIT,
        what="A rank left its training loop before the others, which then lost their connection to it.",
        when=lambda case: case.kind is LogClass.EARLY_EXIT,
        headline=early_exit,
        sentence=early_exit,
        why="",
        next=(
            lambda case: (
                f"find out why {who(case.ranks, 'the failed rank')} left the training before the others: uneven"
                " data (`drop_last`, DistributedSampler), an early `return`, `sys.exit()`, or an `except` that goes on"
                " after an error and so leaves out collectives. To see which collectives were left out, run the job"
                " again under `workbench launch -- COMMAND`"
            ),
        ),
        tier=Tier.LOST_CONNECTION,
    ),
)
