"""Print the tables of memory and time that our trainer has logged on rank 0, if the configuration asks for them."""

from pathlib import Path

from workbench.console import clean
from workbench.launch.plan import Plan, loaded, trainer_arguments

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
