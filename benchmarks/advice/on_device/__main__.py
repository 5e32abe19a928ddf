"""Check the first advice on snapshots of a simulated allocator and on printed messages.

`python -m benchmarks.advice.on_device [--kept-back | --all | --later] [--only PART] [--show]`: each case is written as
a file, and `workbench inspect` reads it as a user would. A third of the cases, chosen by a hash of the name, was kept
back while the rules were made; `--later` has those that were written afterwards.
"""

import argparse
import json
import pickle
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.advice.on_device.cases import CASES, Case
from benchmarks.advice.on_device.later_cases import LATER
from benchmarks.advice.on_device.messages import MESSAGES, Message
from benchmarks.blocks.planted_cases import is_kept_back

Finding = dict[str, Any]


def findings_of(case: Case | Message) -> tuple[str, list[Finding]]:
    """Return the verdict's status and the findings of `workbench inspect` on a case."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(case, Case):
            path = Path(folder) / "rank0_memory_snapshot.pickle"
            path.write_bytes(pickle.dumps(case.build(), protocol=4))
        else:
            path = Path(folder) / "train.log"
            path.write_text(case.text)
        command = [sys.executable, "-m", "workbench", "inspect", str(path), "--json", "--no-cache"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise SystemExit(f"{case.name}: {answer.stderr}")
        document = json.loads(answer.stdout)
    return document["verdict"]["status"], document["findings"]


def said(finding: Finding) -> str:
    return f"{finding['title']} {finding['next']}"


def beginning(text: str) -> str:
    """Return the first two sentences of an advice."""
    return " ".join(re.split(r"(?<=[.;]) (?=[A-Z])", text)[:2])


def faults(case: Case | Message, status: str, findings: list[Finding]) -> list[str]:
    """Return what is wrong with an answer."""
    wrong = []
    title, first = (findings[0]["title"], beginning(findings[0]["next"])) if findings else ("", "")
    if case.healthy:
        wrong += [f"{f['severity']}: {f['title']}" for f in findings if f["severity"] != "info"]
        wrong += [f"status {status}"] if status in ("warning", "error") else []
    elif not (re.search(case.title, title) and re.search(case.first, first)):
        wrong.append(f"first advice: {title} | {first}")
    if case.never:
        wrong += [f"says: {said(f)}" for f in findings if re.search(case.never, said(f))]
    if case.somewhere and not any(re.search(case.somewhere, f"{said(f)} {f['why']}") for f in findings):
        wrong.append(f"nowhere: {case.somewhere}")
    return wrong


def main() -> int:
    """Print each wrong answer, and how many are right."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kept-back", action="store_true", help="run only the third that no rule was tuned on")
    options.add_argument("--all", action="store_true", help="run both parts")
    options.add_argument("--later", action="store_true", help="run the cases that were written after the rules")
    options.add_argument("--only", default="", help="run the cases with this text in their names")
    options.add_argument("--show", action="store_true", help="print all findings")
    given = options.parse_args()
    every: list[Case | Message] = [*LATER] if given.later else [*CASES, *MESSAGES]
    chosen = [
        c
        for c in every
        if given.only in c.name and (given.all or given.later or is_kept_back(c.name) == given.kept_back)
    ]
    right = 0
    with ThreadPoolExecutor(2) as pool:
        for case, (status, findings) in zip(chosen, pool.map(findings_of, chosen), strict=True):
            wrong = faults(case, status, findings)
            right += not wrong
            if wrong:
                print(f"wrong: {case.name}\n  " + "\n  ".join(wrong))
            if given.show:
                for finding in findings:
                    print(f"- {case.name}: {finding['id']} {said(finding)}\n  why: {finding['why']}")
    print(f"{right} of {len(chosen)} right")
    return int(right != len(chosen))


if __name__ == "__main__":
    sys.exit(main())
