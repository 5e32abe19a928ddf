"""Write the title of each class of cause: what happened, on which rank, at which line."""

from collections.abc import Callable

from analyzers.case.facts import EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Basis, Cause
from analyzers.logs.answers.waits import MESSAGES, NEW_GROUP
from analyzers.logs.findings.wording import at_line, at_step, first_with, operation_name, place, quoted, who
from analyzers.words import agree, duration, exit_reason, rank_names, size


def startup(cause: Cause) -> str:
    """Return the title for a job that did not start."""
    describe = _STARTUPS.get(cause.reason) if cause.reason else None
    lead = first_with(cause, "name")
    what = describe(cause) if describe else f"NCCL reports {lead.facts.name or quoted(lead)}{place(lead)}"
    return f"the job did not start: {what}"


def port_in_use(cause: Cause) -> str:
    """Return a clause for the title that names the port which is already in use."""
    port = first_with(cause, "port").facts.port
    return f"port {port or 'unknown'} is in use by another process"


def unreachable_master(cause: Cause) -> str:
    """Return a clause for the title that names the address of rank 0's store, which does not answer."""
    facts = first_with(cause, "peer").facts
    where = f" at {facts.peer}:{facts.port}" if facts.peer else ""
    return f"the store of rank 0{where} does not answer"


def missing_ranks(cause: Cause) -> str:
    """Return a clause for the title: which ranks did not join at the start, or how many joined."""
    lead = first_with(cause, "expected")
    facts = lead.facts
    if facts.expected is None and facts.ranks:
        return f"{rank_names(facts.ranks)} never joined {facts.operation}{at_line(lead)}"
    return "ranks are missing" + (f": {facts.joined} of {facts.expected} ranks joined" if facts.expected else "")


def nccl_versions(cause: Cause) -> str:
    """Return a clause for the title that names ranks with different versions of NCCL."""
    facts = first_with(cause, "name").facts
    return f"{rank_names(facts.ranks)} have different versions of NCCL: {facts.name}"


def duplicate_gpu(cause: Cause) -> str:
    """Return a clause for the title that names the two ranks which use the same device."""
    pair = first_with(cause, "ranks").facts.ranks
    return f"{' and '.join(f'rank {rank}' for rank in pair) or 'two ranks'} use the same GPU"


def _wrong_driver(cause: Cause) -> str:
    """Return a clause for the title on an unsuitable NVIDIA driver: the CUDA version that it supports, or the error.

    PyTorch writes this version as one number: 11040 is CUDA 11.4.
    """
    lead = first_with(cause, "name")
    name = lead.facts.name or ""
    if name.isdigit():
        newest = f"{int(name) // 1000}.{int(name) % 1000 // 10}"
        return f"the NVIDIA driver is too old for this build of PyTorch: it supports CUDA up to {newest}"
    return f"the NVIDIA driver does not match this build of PyTorch: {quoted(lead)}"


def unsupported_device(cause: Cause) -> str:
    """Return a clause for the title on a device that the installed driver does not support."""
    facts = first_with(cause, "pci").facts
    which = f"the GPU at {facts.pci}" if facts.pci else "a GPU"
    return f"the installed NVIDIA driver does not support {which}: {quoted(cause.lead)}"


_STARTUPS: dict[Reason, Callable[[Cause], str]] = {
    Reason.PORT_IN_USE: port_in_use,
    Reason.RENDEZVOUS_TIMEOUT: lambda _: "not all nodes joined the rendezvous in time",
    Reason.UNREACHABLE_MASTER: unreachable_master,
    Reason.MISSING_RANKS: missing_ranks,
    Reason.NCCL_VERSIONS: nccl_versions,
    Reason.NO_INTERFACE: lambda _: "NCCL found no network interface of the given name",
    Reason.DUPLICATE_GPU: duplicate_gpu,
    Reason.DRIVER: _wrong_driver,
    Reason.UNSUPPORTED_DEVICE: unsupported_device,
    Reason.NO_GPU: lambda cause: f"no usable GPU: {quoted(cause.lead)}{place(cause.lead)}",
    Reason.BAD_ARGUMENTS: lambda cause: f"the script rejects its arguments: {cause.lead.facts.name}",
    Reason.NO_SCRIPT: lambda cause: f"the script {cause.lead.facts.name} does not exist",
}


# Write the titles of findings on ranks that issued different operations: the operation and line of each rank.


def mismatch(cause: Cause) -> str:
    """Return the title for ranks that issued different operations, with the operation of each rank."""
    lead = first_with(cause, "operation")
    if cause.blame and cause.blame.basis in _BY_BASIS:
        return _BY_BASIS[cause.blame.basis](cause)
    if any(event.facts.operation == NEW_GROUP for event in cause.waited):
        return _different_groups(cause)
    if cause.reason is Reason.SIZES:
        return _different_sizes(cause)
    if cause.reason is Reason.MODELS:
        return f"{who(lead.facts.ranks)} have models with different parameters"
    return f"{' while '.join(_fingerprint_sides(cause))}{at_step(lead)}"


def _fingerprint_sides(cause: Cause) -> list[str]:
    """Return the call of each rank, such as `rank 1 called REDUCE [20, 10] (app/a.py:4, in main)`.

    The ranks to blame come first. Each rank's own error has its operation and line; if this error is missing in the
    logs, the operation comes from the errors of other ranks.
    """
    calls = {e.facts.ranks[0]: (e.facts.operation, at_line(e)) for e in fingerprints(cause)}
    for event in fingerprints(cause):
        calls.setdefault(event.facts.ranks[1], (event.facts.other_operation, ""))
    by_call: dict[tuple[str | None, str], list[int]] = {}
    for rank in sorted(calls, key=lambda rank: (rank not in cause.ranks, rank)):
        by_call.setdefault(calls[rank], []).append(rank)
    return [f"{rank_names(ranks)} called {operation}{where}" for (operation, where), ranks in by_call.items()]


def fingerprints(cause: Cause) -> list[LogEvent]:
    """Return the events in which PyTorch's debug mode compares the operation of one rank with that of another rank."""
    return [e for e in cause.failure.events if len(e.facts.ranks) == 2 and e.facts.operation]


def _different_sizes(cause: Cause) -> str:
    """Return the title for tensors of different sizes, with the lines at which the other ranks lost the connection."""
    lead = first_with(cause, "operation")
    known = {event.rank for event in cause.waited}
    are_others = len(cause.ranks) == 1 or (cause.ranks and known - {*cause.ranks})
    whom = f"{'one of ' if are_others and len(cause.ranks) > 1 else ''}{who(cause.ranks, 'ranks')}"
    whom += " and the others" if are_others else ""
    where = f"; {waiting_places(cause)}" if cause.waited else ""
    if cause.count:
        where = f"; it printed `{cause.count.text}`, the others `{cause.count.others}`{where}"
    return f"{whom} passed different sizes to one collective: {_sizes_of(cause)}{place(lead)}{at_step(lead)}{where}"


def _sizes_of(cause: Cause) -> str:
    """Return a clause on the number of bytes that arrived and the number that gloo expected."""
    facts = cause.lead.facts
    if facts.input_elements is None:
        return "a message does not fit its buffer"
    return f"{facts.input_elements} bytes arrived where {facts.output_elements} were expected"


def _different_timeouts(cause: Cause) -> str:
    """Return the title for ranks that wait in different operations, naming each operation with its ranks."""
    by_operation: dict[str, list[int]] = {}
    for event in cause.failure.events:
        if event.rank is not None and event.facts.operation:
            by_operation.setdefault(operation_name(event), []).append(event.rank)
    sides = ", ".join(f"{rank_names(ranks)} in {name}" for name, ranks in by_operation.items())
    return f"ranks wait for each other in different operations: {sides}"


def _different_lines(cause: Cause) -> str:
    """Return the title for ranks that waited at different lines, with the line of each rank."""
    if len(cause.ranks) == len(cause.waited):
        return f"{who(cause.ranks)} took different branches, or one left a loop earlier: {waiting_places(cause)}"
    return (
        f"{who(cause.ranks)} took a different branch than the others, or left a loop earlier: {waiting_places(cause)}"
    )


def _caught_and_went_on(cause: Cause) -> str:
    """Return the title for ranks that caught an error and skipped collectives, with where the other ranks wait."""
    error = cause.caught[0]
    left_out = (
        f"{who(cause.ranks)} caught an error{place(error)}{at_step(error)}, left out the collectives of that step"
    )
    return f"{left_out} and ended before the others ({waiting_places(cause)}): {quoted(error)}"


def left_alone(cause: Cause) -> str:
    """Return the title for ranks that waited in a collective when all other ranks had ended with exit code 0."""
    operation = first_with(cause, "operation").facts.operation or "a collective"
    return (
        f"{who(cause.ranks)} issued {operation}{at_line(cause.lead)} when all other ranks had ended, or were about to:"
        f" torchrun reports no other failure"
    )


def _in_threads(cause: Cause) -> str:
    """Return the title for collectives of one process group that are issued by both a thread and the main thread.

    It says where each thread waits.
    """
    return (
        "a thread and the main thread issue collectives of one process group, whose order may differ between ranks:"
        f" {waiting_places(cause)}"
    )


def _different_groups(cause: Cause) -> str:
    """Return the title for ranks that created different process groups, or created them in a different order.

    It says where each rank waits.
    """
    return f"{who(cause.ranks)} did not make the same process groups as the others: {waiting_places(cause)}"


def waiting_places(cause: Cause) -> str:
    """Return the lines at which ranks waited for each other, as `rank 0 waits in barrier (a.py:9, in main), ...`."""
    by_line: dict[str, list[int]] = {}
    for event in cause.waited:
        if event.rank is not None:
            by_line.setdefault(f"{event.facts.operation or 'a collective'}{at_line(event)}", []).append(event.rank)
    return ", ".join(
        f"{rank_names(ranks)} {agree(ranks, 'waits', 'wait')} in {where}" for where, ranks in by_line.items()
    )


_BY_BASIS: dict[Basis, Callable[[Cause], str]] = {
    Basis.OTHER_OPERATION: _different_timeouts,
    Basis.OTHER_LINE: _different_lines,
    Basis.CAUGHT: _caught_and_went_on,
    Basis.LEFT_ALONE: left_alone,
    Basis.THREADS: _in_threads,
}


MS = 1000.0
_IB_STATUS = {
    4: "local protection error",
    5: "work request flushed",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "receiver-not-ready retry counter exceeded",
}
"""{code of `ibv_wc_status`: its meaning}; the code is the result of an InfiniBand request in libibverbs."""


def title(cause: Cause) -> str:
    """Return the title of a cause: what happened, in one sentence."""
    return TITLES[cause.kind](cause)


def crashed(cause: Cause) -> str:
    """Return the title for an exception, or for an error of a CUDA kernel."""
    lead = cause.lead
    if lead.kind is EventKind.CUDA_ERROR:
        return cuda_error(cause)
    return f"{who(cause.ranks)} failed with {quoted(lead)}{place(lead)}{at_step(lead)}"


def cuda_error(cause: Cause) -> str:
    """Return the title for a CUDA error; if a device-side assertion failed, it names the condition."""
    lead = cause.lead
    condition = next(
        (e.facts.name for e in cause.failure.events if e.facts.reason is Reason.DEVICE_ASSERT and ".cu:" in e.message),
        "",
    )
    what = f"a CUDA kernel's assertion failed: {condition}" if condition else f"CUDA error: {lead.facts.name}"
    if _is_caught(cause):
        whose = f" on {rank_names(cause.ranks)}" if cause.ranks else ""
        return f"{what}{whose}{at_step(lead)}; the program caught it, but the CUDA context is unusable afterwards"
    where = f", reported{place(lead)}" if lead.source else ""
    return f"{who(cause.ranks)} failed: {what}{where}{at_step(lead)}"


def _is_caught(cause: Cause) -> bool:
    """Return whether the program itself printed the CUDA errors of a cause, which means that it had caught them."""
    errors = [event for event in cause.failure.events if event.kind is EventKind.CUDA_ERROR]
    return bool(errors) and all(event.facts.caught and not event.source for event in errors)


def oom(cause: Cause) -> str:
    """Return the title for a device that ran out of memory, with the sizes that the allocator reported."""
    lead = first_with(cause, "requested_bytes")
    facts = lead.facts
    if cause.reason is Reason.NCCL_BUFFERS:
        wanted = f" ({size(facts.requested_bytes)})" if facts.requested_bytes else ""
        device = f"device {facts.device}" if facts.device is not None else "a device"
        return f"{device} has no memory left for NCCL's buffers{wanted}{at_step(lead)}"
    if cause.reason in (Reason.DRIVER_MEMORY, Reason.LIBRARY_MEMORY):
        return (
            f"a CUDA call outside PyTorch's caching allocator ran out of device memory{place(lead)} on"
            f" {who(cause.ranks)}: {quoted(lead)}"
        )
    wanted = f": tried to allocate {size(facts.requested_bytes)}" if facts.requested_bytes is not None else ""
    free = f", {size(facts.free_bytes)} free of {size(facts.total_bytes)}" if facts.free_bytes is not None else ""
    return f"{who(cause.ranks)} ran out of device memory{at_step(lead)}{place(lead)}{wanted}{free}"


def host_oom(cause: Cause) -> str:
    """Return the title for a host that ran out of memory."""
    lead = cause.lead
    if cause.reason is Reason.HOST_ALLOCATOR:
        wanted = f": tried to allocate {size(lead.facts.requested_bytes)}" if lead.facts.requested_bytes else ""
        return f"{who(cause.ranks)} ran out of host memory{wanted}{place(lead)}{at_step(lead)}"
    hosts = sorted({e.facts.host for e in cause.failure.events if e.facts.host})
    where = f" on {', '.join(hosts)}" if hosts else ""
    used = next((e.facts.process_bytes for e in cause.failure.events if e.facts.process_bytes), None)
    whom = f"{rank_names(cause.ranks)} (SIGKILL)" if cause.ranks else "a process of the job"
    held = f", which used {size(used)}" if used else ""
    return f"host memory ran out{where}: the OOM killer ended {whom}{held}{at_step(lead)}"


def signal(cause: Cause) -> str:
    """Return the title for a rank that a signal ended."""
    lead = cause.lead
    name = lead.facts.signal or "a signal"
    verb = "was killed by" if name == "SIGKILL" else "crashed with"
    return f"{who(cause.ranks)} {verb} {name}{place(lead)}{at_step(lead)}"


def exit_code(cause: Cause) -> str:
    """Return the title for a rank that failed if the logs show only its exit code."""
    lead = first_with(cause, "exit_code")
    code = lead.facts.exit_code
    return f"{who(cause.ranks)} ended with {exit_reason(code or 1)}{at_step(lead)}, and these logs do not show why"


def dataloader_worker(cause: Cause) -> str:
    """Return the title for the death of a data-loader worker."""
    lead = first_with(cause, "signal")
    if cause.reason is Reason.WORKER_TIMEOUT:
        return f"the data loader of {who(cause.ranks)} timed out{at_step(lead)}"
    if cause.reason is Reason.SHARED_MEMORY and not lead.facts.signal:
        return f"the data loader of {who(cause.ranks)} ran out of shared memory{at_step(lead)}"
    how = f"was killed by {_signal_text(lead.facts.signal)}" if lead.facts.signal else "exited unexpectedly"
    return f"a data-loader worker of {who(cause.ranks)} {how}{at_step(lead)}"


def _signal_text(described: str) -> str:
    """Return the name of a signal from PyTorch's description of it, such as `SIGKILL` for `Killed`.

    A description without a known name is returned after the word `signal`.
    """
    return {
        "killed": "SIGKILL",
        "segmentation fault": "SIGSEGV (segmentation fault)",
        "bus error": "SIGBUS (bus error)",
    }.get(described.strip(".").lower(), f"signal {described}")


def disk_full(cause: Cause) -> str:
    """Return the title for a file that could not be written."""
    lead = cause.lead
    why = "no space is left" if cause.reason is Reason.NO_SPACE else "the file system is probably full"
    return f"{who(cause.ranks)} could not write a file{place(lead)}{at_step(lead)}, as {why}: {quoted(lead)}"


def hardware(cause: Cause) -> str:
    """Return the title for a broken device, link or node."""
    lead, facts = cause.lead, cause.lead.facts
    device = (
        f"the GPU at {facts.pci}" if facts.pci else f"the GPU of {rank_names(cause.ranks)}" if cause.ranks else "a GPU"
    )
    match cause.reason:
        case Reason.NODE_FAILURE:
            return f"node {facts.host or ''} failed".replace("  ", " ")
        case Reason.FALLEN_OFF_BUS:
            return f"{device} has fallen off the bus{at_step(lead)}"
        case Reason.ECC:
            return f"{device} reported: {facts.name}{place(lead)}{at_step(lead)}"
        case Reason.LINK:
            return f"a network link failed: {quoted(lead)}"
        case Reason.XID_SOFTWARE:
            return f"{device} reported Xid {facts.xid}, which a program usually causes{at_step(lead)}"
    return f"{device} reported Xid {facts.xid}, a hardware error{at_step(lead)}"


def network(cause: Cause) -> str:
    """Return the title for a connection that failed."""
    lead = first_with(cause, "peer")
    peer = lead.facts.peer
    if cause.reason is Reason.REFUSED:
        return f"a connection to {peer} failed: {(lead.facts.name or '').strip()}"
    if cause.reason is Reason.INFINIBAND:
        code = lead.facts.status
        status = "" if code is None else f" (error {code}{f', {_IB_STATUS[code]}' if code in _IB_STATUS else ''})"
        local = f"{lead.facts.host} lost its InfiniBand" if lead.facts.host else "InfiniBand lost the"
        return f"{local} connection to {peer or 'a peer'}{status}"
    return f"NCCL failed: {lead.facts.name or quoted(lead)}{at_step(lead)}"


def unmatched_p2p(cause: Cause) -> str:
    """Return the title for sends and receives that do not match.

    The title names the rank that did not issue one (if known), and where each rank waits.
    """
    sides, waiting = waiting_places(cause), {e.rank for e in cause.waited if e.facts.operation in MESSAGES}
    if not cause.ranks:
        return f"sends and receives do not match: {sides}"
    if waiting.issuperset(cause.ranks):
        return f"{rank_names(cause.ranks)} wait for each other in sends and receives: {sides}"
    return f"{rank_names(cause.ranks)} never issued the matching send or recv: {sides}"


def unused_parameters(cause: Cause) -> str:
    """Return the title for parameters that got no gradient."""
    lead = first_with(cause, "name")
    name = lead.facts.name or ""
    place_of = next((place(e) for e in cause.failure.events if e.source), "")
    numbers = ", ".join(name.split()) if name[:1].isdigit() else ""
    which = f" {numbers} (counted from 0 among those that require a gradient)" if numbers else ""
    named = f": {name}" if name and not numbers else ""
    return f"parameters{which} got no gradient on {who(cause.ranks)}{place_of}{at_step(lead)}{named}"


def collective_timeout(cause: Cause) -> str:
    """Return the title for a collective that timed out: which ranks were missing, and which ranks waited."""
    after = _duration_of(cause)
    if cause.lead.kind is EventKind.HEARTBEAT:
        ranks = who(cause.failure.ranks)
        return f"NCCL's watchdog on {ranks} was stuck{after}: a call of CUDA or NCCL does not return"
    name = operation_name(first_with(cause, "operation"))
    waiting = who(cause.blame.waiting if cause.blame else [], "the other ranks")
    where, ranks = at_line(cause.lead), who(cause.ranks)
    without_culprit = {
        Basis.NAMED: f"{waiting} timed out in {name}{where}, which the other rank never joined",
        Basis.FIRST_OPERATION: f"the first collective, {name}, did not finish{after.replace(' after ', ' within ')}:"
        f" {waiting} may be unable to communicate",
        Basis.ALL_WAIT: f"{waiting} all timed out in {name}{where}{after}: the operation does not complete",
        Basis.MOST_SILENT: f"{waiting} timed out in {name}{where}{after}; the other ranks printed no error",
        Basis.LATE: f"{waiting} timed out in {name}{where}{after}; then all other ranks lost the connection",
        Basis.ONE_SIDE: f"{waiting} timed out in {name}{where}{after}; the logs of the other ranks, which would"
        " show the rank that did not join, are missing",
    }
    alone = {
        Basis.ALONE: f"{ranks} alone issued {name}{where}, after the end of the training; it timed out{after}",
        Basis.EXTRA_OPERATION: f"{ranks} issued {name}{where}, which no other rank joined{after}",
    }
    basis = cause.blame.basis if cause.blame else Basis.ONE_SIDE
    if basis is Basis.STACKS:
        return stuck(cause)
    usual = f"{ranks} never joined {name}{where}{at_step(cause.lead)}; {waiting} timed out{after}"
    return (alone if cause.ranks else without_culprit).get(basis, usual)


def stuck(cause: Cause) -> str:
    """Return the title for ranks whose stacks are outside of the collective in which the others wait."""
    inside = next(event for event in cause.failure.events if event.facts.operation)
    whom = who(cause.blame.waiting if cause.blame else [])
    return (
        f"{who(cause.ranks)} {agree(cause.ranks, 'was', 'were')}{place(cause.lead)}{at_step(cause.lead)}, while {whom}"
        f" waited in {inside.facts.operation}{at_line(inside)}; a timer of faulthandler printed the"
        f" stacks{_duration_of(cause)}"
    )


def _duration_of(cause: Cause) -> str:
    """Return how long the ranks waited, as ` after 10.0 min`, or as ` for 60 s` if the watchdog was stuck.

    The text is empty if the duration was not logged.
    """
    event = first_with(cause, "waited_ms")
    waited = event.facts.waited_ms or first_with(cause, "timeout_ms").facts.timeout_ms
    if not waited:
        return ""
    # The heartbeat monitor gives the duration of a stuck watchdog in whole seconds.
    return f" for {waited // 1000} s" if event.kind is EventKind.HEARTBEAT else f" after {duration(waited / MS)}"


def early_exit(cause: Cause) -> str:
    """Return the title for a rank that left without an error, and where the others waited for it."""
    others = who(cause.failure.ranks, "the other ranks")
    is_certain = cause.blame is not None and cause.blame.basis is Basis.NOT_LISTED
    # Its exit code may be that of the launcher's SIGTERM, if the process was still there when the others failed.
    left = f"left {agree(cause.ranks, 'its', 'their')} training loop without an error"
    how = "ended with exit code 0" if is_certain else left
    operation = first_with(cause, "operation").facts.operation
    where = f" in {operation}{at_line(cause.lead)}" if operation else place(cause.lead)
    return f"{who(cause.ranks)} {how}; {others} lost the connection{where}"


def nonfinite_loss(cause: Cause) -> str:
    """Return the title for a loss or gradient that is not finite."""
    lead = cause.lead
    if cause.reason is Reason.SCALE_EXHAUSTED:
        return f"fp16 gradients overflowed at every loss scale{at_step(lead)}: the training diverged"
    if cause.ranks and cause.reason is Reason.LOSS:
        return f"the loss of {rank_names(cause.ranks)} is not finite{at_step(lead)}{place(lead)}: {quoted(lead)}"
    if cause.ranks:
        return f"gradients of {rank_names(cause.ranks)} became NaN{at_step(lead)}{place(lead)}"
    step = f" at step {lead.step}" if lead.step is not None else ""
    return f"{_what_is_nonfinite(lead)} is NaN or infinite{step}{place(lead)}: {quoted(lead)}"


def _what_is_nonfinite(lead: LogEvent) -> str:
    """Return what is not finite according to an event: `the loss`, `the gradient`, or both if it does not say which."""
    text = lead.headline.lower()
    named = [f"the {name}" for name in ("loss", "gradient") if name[:4] in text]
    return " or ".join(named or ("the loss", "the gradient"))


def time_limit(cause: Cause) -> str:
    """Return the title for a job that reached its time limit."""
    return f"the scheduler ended the job at its time limit{at_step(cause.lead)}"


def terminated(cause: Cause) -> str:
    """Return the title for a job that was ended from outside."""
    how = {
        Reason.PREEMPTION: "the scheduler preempted the job",
        Reason.CANCELLED: "the job was cancelled from outside",
    }.get(cause.reason or Reason.LAUNCHER_SIGNAL, "the launcher received a signal to stop")
    name = cause.lead.facts.signal
    return f"{how}{f' ({name})' if name else ''}{at_step(cause.lead)}"


def unknown(cause: Cause) -> str:
    """Return the title for a cause of unknown class.

    There are two cases: nothing shows whether the program caught an exception or ended with it; or ranks lost their
    connection to a rank that the logs do not name.
    """
    if cause.lead.kind is EventKind.EXCEPTION:
        return (
            f"{who(cause.failure.ranks)} printed {quoted(cause.lead)}{place(cause.lead)}, and nothing shows whether the"
            " program caught this exception or ended with it"
        )
    lost = cause.failure.events[0]
    ranks = who(cause.failure.ranks, "ranks")
    return f"{ranks} lost the connection to a rank that these logs do not name: {quoted(lost)}"


TITLES: dict[LogClass, Callable[[Cause], str]] = {
    LogClass.CRASHED: crashed,
    LogClass.OOM: oom,
    LogClass.HOST_OOM: host_oom,
    LogClass.SIGNAL: signal,
    LogClass.EXIT_CODE: exit_code,
    LogClass.DATALOADER_WORKER: dataloader_worker,
    LogClass.DISK_FULL: disk_full,
    LogClass.HARDWARE: hardware,
    LogClass.NETWORK: network,
    LogClass.MISMATCH: mismatch,
    LogClass.UNUSED_PARAMETERS: unused_parameters,
    LogClass.UNMATCHED_P2P: unmatched_p2p,
    LogClass.COLLECTIVE_TIMEOUT: collective_timeout,
    LogClass.EARLY_EXIT: early_exit,
    LogClass.NONFINITE_LOSS: nonfinite_loss,
    LogClass.STARTUP: startup,
    LogClass.TIME_LIMIT: time_limit,
    LogClass.TERMINATED: terminated,
    LogClass.UNKNOWN: unknown,
}
