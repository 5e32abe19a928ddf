"""Lay the answers of `workbench inspect` beside what public threads found out, for a reader who scores them.

    python -m benchmarks.threads                        every open thread; answers and table go to outputs/threads
    python -m benchmarks.threads --only p001 p042       some threads
    python -m benchmarks.threads --folder /tmp/answers  writes there
    python -m benchmarks.threads --scores FILE          counts these scores, not those of the repository
    python -m benchmarks.threads --threads /tmp/aside   another collection, e.g. the unpacked one that was kept aside

No answer is judged by its words: a reader does that, and README.md says how.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
Score = dict[str, str]


class Thread(NamedTuple):
    """What is known of a thread; the names are those of labels.jsonl."""

    id: str
    source: str
    kind: str
    input: str
    fidelity: str
    confirmed: str
    truth: str
    cure: str
    must_not_say: list[str]

    @property
    def group(self) -> str:
        """The kind without its details: `OOM` of `OOM: another process`."""
        return re.split(r"[:(]", self.kind)[0].strip()

    @property
    def certainty(self) -> str:
        return self.confirmed.split()[0]


class Answer(NamedTuple):
    """What the command prints of a thread, and the head of the same as data."""

    printed: str
    head: dict[str, str]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def inspect(log: Path, *options: str) -> str:
    """Return what the command prints, on either stream, about one log."""
    command = [sys.executable, "-m", "workbench", "inspect", str(log), *options]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False)
    return done.stdout or done.stderr


def answer(log: Path) -> Answer:
    printed, data = inspect(log), inspect(log, "--json")
    if not data.startswith("{"):
        return Answer(printed, {"status": "refused", "class": "-", "headline": data.strip()})
    document = json.loads(data)
    verdict, findings = document["verdict"], document["findings"]
    leads = [finding for finding in findings if finding["id"] == verdict.get("finding")] or findings
    lead = leads[0] if leads else {"why": "-", "next": "-"}
    head = {"headline": verdict.get("headline") or verdict["sentence"], "why": lead["why"]}
    head["next"] = verdict.get("next") or lead["next"]
    return Answer(printed, {"status": verdict["status"], "class": verdict["class"], **head})


def side_by_side(thread: Thread, said: Answer, score: Score | None) -> str:
    """Return the text that a reader scores a thread by."""
    facts = {
        "source": f"{thread.source}, {thread.confirmed}",
        "input": thread.fidelity,
        "truth": thread.truth,
        "cure": thread.cure,
        "must not say": "; ".join(thread.must_not_say),
    }
    rows = [f"# {thread.id} {thread.kind}", ""]
    rows += [f"- {name}: {value}" for name, value in facts.items()]
    rows += ["", "## Answer", "", *(f"- {name}: {value}" for name, value in said.head.items())]
    rows += ["", "```text", said.printed.rstrip(), "```", ""]
    return "\n".join([*rows, f"Score: {json.dumps(score, ensure_ascii=False)}" if score else "Not scored yet.", ""])


# The columns of the table: a field of a score and its value; None: anything.
COLUMNS: dict[str, tuple[str, str | None]] = {
    "right": ("verdict", "right"),
    "wrong": ("verdict", "wrong"),
    "unknown": ("verdict", "none"),
    "wrong rank": ("rank", "wrong"),
    "wrong line": ("line", "wrong"),
    "cure": ("next", "cure"),
    "misleading": ("next", "misleading"),
    "false": ("false_statement", None),
    "helped": ("helped", "yes"),
    "partly": ("helped", "partly"),
    "not": ("helped", "no"),
}


def table(threads: Iterable[Thread], scores: dict[str, Score]) -> str:
    """Return the counts by kind, by how sure the truth is, and of all scored threads."""
    groups: dict[tuple[int, str], list[Score]] = defaultdict(list)
    for thread in threads:
        if score := scores.get(thread.id):
            for key in ((0, thread.group), (1, thread.certainty), (2, "all")):
                groups[key].append(score)
    rows = [["kind", "threads", *COLUMNS], ["---", *("---:" for _ in range(len(COLUMNS) + 1))]]
    for (order, name), group in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])):
        counts = [sum(bool(score[f]) if v is None else score[f] == v for score in group) for f, v in COLUMNS.values()]
        rows.append([f"**{name}**" if order else name, str(len(group)), *(str(count or "") for count in counts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Lay the answers about public threads beside the truth.")
    parser.add_argument("--only", nargs="+", metavar="ID", help="ids of threads")
    parser.add_argument("--folder", type=Path, default=Path("outputs/threads"), help="where the answers are written")
    parser.add_argument("--scores", type=Path, help="scores to count; default: scores.jsonl beside the labels")
    parser.add_argument("--threads", type=Path, default=HERE, help="folder with labels.jsonl and in/")
    asked = parser.parse_args()
    threads = [Thread(**label) for label in read_lines(asked.threads / "labels.jsonl")]
    if unknown := set(asked.only or ()) - {thread.id for thread in threads}:
        parser.error(f"no such thread: {', '.join(sorted(unknown))}")
    path = asked.scores or asked.threads / "scores.jsonl"
    scores = {score["id"]: score for score in read_lines(path)} if path.exists() else {}
    threads = [thread for thread in threads if not asked.only or thread.id in asked.only]
    asked.folder.mkdir(parents=True, exist_ok=True)
    for thread in threads:
        said = answer(asked.threads / thread.input)
        (asked.folder / f"{thread.id}.md").write_text(
            side_by_side(thread, said, scores.get(thread.id)), encoding="utf-8"
        )
        print(f"{thread.id}  {thread.kind[:36]:36}  {said.head['class']:20}{said.head['headline'][:120]}", flush=True)
    counted = table(threads, scores)
    (asked.folder / "table.md").write_text(counted + "\n", encoding="utf-8")
    print(f"\n{counted}\n\nAnswers: {asked.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
