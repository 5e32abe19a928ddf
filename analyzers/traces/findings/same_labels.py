"""Make recordings with the same rank, device and steps distinguishable in evidence, for example those of two jobs."""

from collections.abc import Sequence
from os.path import commonpath
from pathlib import PurePath

import msgspec

from analyzers.report import Evidence, Finding


def with_folders(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; where several files have one label, the folder of the file is added to the first fact.

    The label is the text of the fact up to the first colon. Example: `rank 0, CPU, step 10: 1.62 s recorded` becomes
    `rank 0, CPU, step 10, in job_a: 1.62 s recorded`.
    """
    files: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        for fact in finding.evidence[:1]:
            files.setdefault((finding.id, label_of(fact)), set()).add(fact.source)
    return [_with_folder(finding, files) for finding in findings]


def _with_folder(finding: Finding, files: dict[tuple[str, str], set[str]]) -> Finding:
    """Return a finding; if several files have the label of its first fact, the file's folder is added to the label.

    `files` is {(id of a finding, label): paths of the files}.
    """
    if not finding.evidence:
        return finding
    first, *others = finding.evidence
    label = label_of(first)
    same = files[finding.id, label]
    if len(same) < 2 or "" in same:
        return finding
    folder = PurePath(first.source).relative_to(commonpath(sorted(same))).parts[0]
    text = f"{label}, in {folder}{first.text.removeprefix(label)}"
    return msgspec.structs.replace(finding, evidence=[msgspec.structs.replace(first, text=text), *others])


def label_of(fact: Evidence) -> str:
    """Return the label of a fact: its text up to the first colon, such as `rank 0, CPU, step 10`."""
    return fact.text.partition(":")[0]
