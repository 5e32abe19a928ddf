"""Define the patterns of log lines on data loading, checkpoints, losses that are not finite, and completed training."""

import re

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, pattern, plain

_TROUBLE = (
    r"\b(?:[Ww]arn\w*|WARN\w*|[Ee]rror|ERROR|[Ee]xception|[Ff]ail\w*|bad|broken|corrupt\w*|invalid|out of memory)\b"
)
SKIPPED = r"\b[Ss]kipp(?:ing|ed)\b"
_IS_DONE = (
    r"(?:is |has |was )?(?:completed?|finished|done)\b(?!.{0,30}\b(?:[Ee]poch|[Ss]tep|[Ss]tage|[Ff]old|[Rr]ound)\b)"
)
_WORDS_OF_AN_END = ("complete", "finished", "done", "is ", "has ", "was ")
_WORKER, _DISK, NAN = EventKind.DATALOADER_WORKER, EventKind.DISK_FULL, EventKind.NAN
LOSS = (
    r"(?:^|[\s|,:{'\"(\[])"
    r"((?:[A-Za-z]\w{0,40}[_/ .])?(?:[Ll]oss(?:_[a-z]\w{0,20})?|grad_norm|grad norm|gnorm|perplexity))['\"]?"
    r"\s{0,12}(?:[:=]\s{0,16}|is |became )?['\"]?(?:tensor\()?([-+]?(?:nan|inf(?:inity)?))\b"
)


_NUMBER_BESIDE = (
    r"(?:^|[\s|,:{'\"(\[])((?:rewards|logps|logits)/[a-z]\w{0,20}|kl|L)['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
    r"([-+]?(?:nan|inf(?:inity)?))\b"
)
"""Matches other numbers of a row that are not finite: those of preference training, and a loss called `L`."""


def _killed_worker(match: "re.Match[str]") -> Found:
    """Return the event for a data-loader worker that was ended by a signal, with its process id and the signal.

    The program's line in the traceback only shows where the main process noticed the death; it is not the cause.
    """
    return Found(_WORKER, Facts(reason=Reason.WORKER_SIGNAL, pid=number(match[1]), signal=match[2].strip()))


def _ended_worker(match: "re.Match[str]") -> Found:
    """Return the event that reports a data-loader worker that exited, with its process id."""
    return Found(_WORKER, Facts(reason=Reason.WORKER_EXIT, pid=number(match[1])))


def worker_signal(match: "re.Match[str]") -> Found:
    """Return the event that reports a signal which a data-loader worker received."""
    name = match[1]
    # PyTorch itself says that a bus error in a worker is probably caused by too little shared memory.
    reason = Reason.SHARED_MEMORY if "bus" in name else Reason.WORKER_SIGNAL
    return Found(_WORKER, Facts(reason=reason, signal=name))


def _lost_number(match: "re.Match[str]") -> Found:
    """Return the event that reports a loss or gradient norm that is not finite."""
    reason = Reason.GRADIENT if "norm" in match[1] else Reason.LOSS
    return Found(NAN, Facts(reason=reason, name=f"{match[1].strip()} {match[2]}"))


def _number_beside(match: "re.Match[str]") -> Found:
    reason = Reason.LOSS if match[1] == "L" else None
    return Found(NAN, Facts(reason=reason, name=f"{match[1]} {match[2]}"))


def _local_gradient(match: "re.Match[str]") -> Found:
    """Return the event that reports a NaN that Megatron-LM found on a rank before the ranks exchanged gradients."""
    return Found(NAN, Facts(reason=Reason.GRADIENT, ranks=[int(match[1])]), int(match[1]))


def no_space(match: "re.Match[str]") -> Found | None:
    """Return the event for a file that could not be written because its disk is full.

    If the file is in shared memory (`/dev/shm`), the event reports a failed data-loader worker instead, because workers
    pass batches to the main process through shared memory.
    """
    if "NCCL" in match.string:
        return None
    # The last of these are the names that PyTorch gives to its files in shared memory.
    if re.search(r"\bshm\b|shared memory|torch_\d+_\d+", match.string):
        return Found(_WORKER, Facts(reason=Reason.SHARED_MEMORY))
    named = re.search(r"(?:device|exceeded|system): '([^']{1,300})'", match.string)
    return Found(_DISK, Facts(reason=Reason.NO_SPACE, name=named[1] if named else match[0]))


PATTERNS = (
    pattern(
        "is killed by signal", r"DataLoader worker \(pid (\d+)\) is killed by signal: ([^.]{1,60})", _killed_worker
    ),
    pattern("exited unexpectedly", r"worker \(pid\(?s?\)? ([\d]+)[^)]{0,200}\) exited unexpectedly", _ended_worker),
    pattern("encountered in worker", r"Unexpected ([a-z -]{1,40}) encountered in worker", worker_signal),
    plain("DataLoader timed out", _WORKER, Reason.WORKER_TIMEOUT),
    plain("Pin memory thread exited", _WORKER, Reason.WORKER_EXIT),
    plain("unable to open shared memory object", _WORKER, Reason.SHARED_MEMORY),
    plain(
        "unable to mmap", _WORKER, Reason.SHARED_MEMORY, r"unable to mmap \d+ bytes from file <(?:/torch_|filename not)"
    ),
    pattern(
        "Errno", r"\[Errno (?:28|122|30|116|5)\] (?:No space left on device|Disk quota exceeded|Read-only file system"
        r"|Stale file handle|Input/output error)", no_space,
    ),
    pattern("No space left on device", r"No space left on device", no_space),
    plain("failed writing file", _DISK, Reason.WRITE_FAILED, r"PytorchStreamWriter failed writing"),
    plain("iostream error", _DISK, Reason.WRITE_FAILED, r"Error: basic_ios::clear: iostream error"),
    plain("iostream stream error", _DISK, Reason.WRITE_FAILED, r"Error: ios_base::badbit set: iostream stream error"),
    plain("unexpected pos", _DISK, Reason.WRITE_FAILED, r"unexpected pos \d+ vs \d+"),
    plain("OVERFLOW", EventKind.OVERFLOW_SKIP, None, r"OVERFLOW! .*[Ss]kipping step"),
    plain("kipp", EventKind.SKIPPED_WORK, None, rf"{_TROUBLE}.{{0,200}}{SKIPPED}|{SKIPPED}.{{0,200}}{_TROUBLE}"),
    plain("cannot decrease scale anymore", NAN, Reason.SCALE_EXHAUSTED),
    pattern("found NaN in local grad norm", r"Rank (\d{1,9})\b.*found NaN in local grad norm", _local_gradient),
    plain("nan values in its", NAN, Reason.GRADIENT, r"Function '\w+' returned nan values in its"),
    plain("is nan or inf", NAN, Reason.LOSS, r"The loss returned in `\w+` is nan or inf"),
    plain("Train loss contains a NaN", NAN, Reason.LOSS),
    plain("infinite or NaN at iteration", NAN, Reason.LOSS),
    pattern("nan", LOSS, _lost_number),
    pattern("NaN", LOSS.replace("nan", "NaN"), _lost_number),
    pattern("inf", LOSS, _lost_number),
    pattern("nan", _NUMBER_BESIDE, _number_beside),
    *(plain(f"raining {word}", EventKind.COMPLETED, None, rf"\b[Tt]raining {_IS_DONE}") for word in _WORDS_OF_AN_END),
    plain("inished training", EventKind.COMPLETED, None, r"\b[Ff]inished training\W*$"),
    plain("inished Training", EventKind.COMPLETED, None, r"\b[Ff]inished Training\W*$"),
    plain("train_runtime", EventKind.COMPLETED, None, r"'train_runtime': "),
    plain("` stopped: `max_", EventKind.COMPLETED, None, r"`Trainer\.fit` stopped: `max_\w+=\d+` reached"),
)  # fmt: skip
