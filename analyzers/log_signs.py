"""Recognise lines of logs that are our own hints, errors that one process relays from another, and rows of steps."""

import re

# Read the hint at the end of this project's own errors; the hint is the next step to advise.
#
# For example:
#
#     CheckpointError: step-2 holds the weights of llama3 debugmodel, and this run trains llama3 8B
#     hint: choose that model, or another checkpoint

_HINT = re.compile(r"^[ \t]*hint: (\S[^\r\n]*)", re.MULTILINE)
_LONGEST_HINT = 1000


def split_hint(message: str) -> tuple[str, str]:
    # The last one: the text may quote another error.
    last = next(iter([*_HINT.finditer(message)][::-1]), None)
    return (message[: last.start()].rstrip(), last[1].strip()[:_LONGEST_HINT]) if last else (message, "")


def hint_in(line: str) -> str:
    match = _HINT.match(line)
    return match[1].strip()[:_LONGEST_HINT] if match else ""


# Read errors that PyTorch relays: they happened on some ranks, and are raised on all of them.
#
# A distributed checkpoint gathers the errors of all ranks, and then raises them everywhere:
#
#     CheckpointException: CheckpointException ranks:dict_keys([2])
#     Traceback (most recent call last): (RANK 2)
#       File "torch/serialization.py", line 1253, in _save
#     TypeError: cannot pickle '_thread.lock' object

_FAILED_RANKS = re.compile(r"\branks:dict_keys\(\[(\d{1,6}(?:, \d{1,6}){0,999})\]\)")
_RANK_OF_TRACEBACK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,6})\)")


def failed_ranks(message: str) -> list[int]:
    """Return the ranks on which a relayed error happened, ascending; empty if the message relays no error.

    `message` is the text of an exception by which PyTorch raises the errors of some ranks on all ranks.
    """
    match = _FAILED_RANKS.search(message)
    return sorted(map(int, match[1].split(", "))) if match else []


def first_error(message: str) -> str:
    """Return the first failed rank's own error from the message of an exception that relays it: `TypeError: ...`.

    The result is empty if the message relays no error, or has no complete traceback of one.
    """
    parts = _RANK_OF_TRACEBACK.split(message, maxsplit=2)
    if not failed_ranks(message) or len(parts) < 3:
        return ""
    lines = (line for line in parts[2].splitlines() if line and not line.startswith(" "))
    return next(lines, "")


# Recognise a file as a step log of any trainer: a table of metrics, or lines printed on a console.
#
# This only looks for signs in the first bytes; `analyzers.steps.columns` finds out the meaning of the columns.

_STEP_WORD = (
    rb"(?:global[_ ]?|num_|current_|train[/_]|trainer[/_])*_?(?:steps?|iter(?:ation)?s?|iter_num|updates|epochs?)"
)
_STEP_CELL = re.compile(rb"(?:[\w. -]*/)?" + _STEP_WORD, re.IGNORECASE)
_LOSS_CELL = re.compile(rb"[\w/. :-]*(?:loss|nll|perplexity)[\w/. -]*", re.IGNORECASE)
_NUMBER_CELL = re.compile(rb"[-+]?(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)?", re.IGNORECASE)
_JSON_STEP = re.compile(rb"\"(?:[\w.-]*/)?" + _STEP_WORD + rb"\"\s*:\s*\[?\s*\"?\d", re.IGNORECASE)
_JSON_LOSS = re.compile(rb"\"[\w/. -]{0,60}(?:loss|nll)[\w/. -]{0,40}\"\s*:\s*\[?\s*\"?(?:[-+]?\d|NaN)", re.IGNORECASE)
_SUMMARY = re.compile(
    r"(?:all|train|eval|predict|test)_results\.json|wandb-summary\.json|.*config.*\.json|package.*\.json"
)
"""Matches the names of JSON files that have a single row of totals, or no metrics at all."""
_SEPARATORS = (b",", b";", b"\t", b"|")
_COUNTER = rb"(?<![a-z])(?:step|iter(?:ation)?|batch|num_updates|current_steps)s?\b['\"]?[^\n{}a-z]{0,12}?\d"
_A_LOSS = rb"(?:loss|train)['\"]?\s*[:=]?\s*[\[\"']?[-+]?(?:\d|nan)"
_CONSOLE_LINES = re.compile(
    rb"\{'(?:loss|eval_loss|train_runtime)': "
    rb"|" + _COUNTER + rb"[^\n]{0,400}?" + _A_LOSS + rb"|" + _A_LOSS + rb"[^\n]{0,200}?" + _COUNTER +
    rb"|\bstep=\d+, skipped=\d+, lr="
    rb"|^\[(?:epoch=\d+\]\[)?batch=\d+(?:/\d+)?\]:?[ \t]*$|^\[metric\]\[batch=\d+\]"
    rb"|\[step=\d+/\d+,epoch=\d+\]"
    rb"|\bEpoch:? ?\[\d+\]\[\s*\d+/\d+\]|\bTrain Epoch: \d+ \[\d+/\d+"
    rb"|^[ \t]{0,20}\[\d{1,15},\s{1,20}\d{1,15}\] loss: \d"
    rb"|\(train\)\s*\[\s*\d+(?:\]\[\s*\d+)?/\d+\]"
    rb"|(?<!\d)\d{1,15}/\d{1,15} \[[\d:]{1,20}<[^\]\n]{0,200}loss|it/s[^\n]{0,80}loss",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
"""Matches the console lines in which trainers report a step.

Known are Hugging Face, nanoGPT and similar scripts, Megatron-LM, DeepSpeed, Composer, OLMo, the examples of PyTorch,
mmengine, and progress bars with a loss.
"""


def is_console(text: bytes) -> bool:
    # A progress bar ends its lines with \r.
    return b"\0" not in text and _CONSOLE_LINES.search(text.replace(b"\r", b"\n")) is not None


def is_metrics_json(text: bytes, name: str) -> bool:
    """Return whether a JSON text has rows with steps and losses, by the keys in its first bytes."""
    if b'"log_history"' in text:
        return True
    if _SUMMARY.fullmatch(name) or b'"workbench.' in text[:200]:
        return False
    return _JSON_STEP.search(text) is not None and _JSON_LOSS.search(text) is not None


def is_metrics_table(text: bytes, *, alone: bool) -> bool:
    """Return whether a text is a table with a column of steps or losses.

    `alone` means that the user named this very file; then any table of numbers is accepted.
    """
    # Some tables for Excel begin with a line such as `sep=;`, which names the separator.
    lines = [line for line in text[: 1 << 15].splitlines() if line.strip() and not line.startswith((b"#", b"sep="))]
    if len(lines) < 2:
        return False
    separator = max(_SEPARATORS, key=lines[0].count)
    names, cells = (_split_cells(line, separator) for line in lines[:2])
    if len(names) != len(cells) and len(names) < 2:
        return False
    numbers = [bool(_NUMBER_CELL.fullmatch(cell)) for cell in cells[: len(names)]]
    if alone and any(numbers) and not any(_NUMBER_CELL.fullmatch(name) for name in names if name):
        return True
    known = [bool(_STEP_CELL.fullmatch(name) or _LOSS_CELL.fullmatch(name)) for name in names]
    return len(numbers) == len(known) and any(a and b for a, b in zip(known, numbers, strict=True))


def _split_cells(line: bytes, separator: bytes) -> list[bytes]:
    return [cell.strip().strip(b'"').strip() for cell in line.split(separator)]
