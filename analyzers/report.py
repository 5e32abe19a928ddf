"""Define `Report`, the result of every analyzer, which every user interface shows.

Text, JSON, Markdown, HTML, terminal and web show the same ids and numbers because all of them read this object.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr

from analyzers.files import json_bytes
from analyzers.words import capitalised, full_sentence, rank_names

if TYPE_CHECKING:
    import pandas as pd

Data_co = TypeVar("Data_co", covariant=True)
EVIDENCE_AT_MOST = 8


class Severity(StrEnum):
    """The importance of a finding.

    An error ends a run or makes its result useless. A warning costs time or memory. An info is only worth knowing.
    """

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def weight(self) -> int:
        return ("info", "warning", "error").index(self)


class Status(StrEnum):
    """The state of a run according to a verdict.

    `unknown` means that the evidence is not sufficient for a verdict. It does not mean that the run is healthy.
    """

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


class Input(msgspec.Struct, frozen=True):
    """A file that was read for a report.

    `kind` is what the file holds, such as `memory_snapshot`; `workbench capabilities --json` lists all kinds. `bytes`
    is the size of the file. `rank` and `step` are the rank and the training step that it belongs to; each is None if
    the file belongs to none in particular, or if it is not known.
    """

    path: str
    kind: str
    rank: int | None
    step: int | None
    bytes: int


LONGEST_HEADLINE = 90


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """A class of failure (`kind`, `class` in JSON) that is not the answer, and why not."""

    kind: str = msgspec.field(name="class")
    because: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an analysis in one sentence, with its class and the ranks that it is about.

    `kind` (`class` in JSON) is the class of the answer, such as `oom` or `healthy`. `ranks` is empty if the answer is
    about no rank in particular. `confidence` is from 0 to 1, and `missing` names the evidence that would have made the
    answer more certain. If the given `sentence` begins with a small letter, it is changed to a capital letter, except
    in a name such as `torch.compile`.

    `headline` is the answer in at most 90 characters, `finding` the id of the one finding that is the answer, `next`
    its next step, and `failure` its entry in the catalogue (`workbench explain ID`); each is empty if there is none.
    `tested` lists what a healthy run was tested for, `ruled_out` what else was considered, and what speaks against it.
    """

    status: Status
    kind: str = msgspec.field(name="class")
    ranks: list[int] = []
    sentence: str
    confidence: float
    missing: list[str] = []
    headline: str = ""
    finding: str = ""
    failure: str = ""
    next: str = ""
    tested: list[str] = []
    ruled_out: list[RuledOut] = []

    def __post_init__(self) -> None:
        force_setattr(self, "sentence", capitalised(self.sentence))
        force_setattr(self, "headline", capitalised(shortened_headline(self.headline or self.sentence)))


def shortened_headline(text: str) -> str:
    """Return a text of at most 90 characters: whole clauses of it if there are some, else its beginning."""
    text = " ".join(text.split())
    if len(text) <= LONGEST_HEADLINE:
        return text
    ends = [match.start() for match in re.finditer(r"; |: | \(|, (?:and|which|as|because) ", text)]
    fitting = [end for end in ends if LONGEST_HEADLINE // 3 <= end <= LONGEST_HEADLINE]
    if fitting:
        return text[: fitting[-1]]
    return text[: LONGEST_HEADLINE - 1].rpartition(" ")[0].rstrip(",;:") + "…"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One fact behind a finding.

    `text` states the fact. `rank` is the rank that it is about, unless the text or the finding says so, and `where`
    what it is about besides, such as `device 0, steps 2-4`. `source` is the file from which it was read, and `line` is
    the line of the user's code that it is about. Each of these is empty if there is none.
    """

    text: str
    rank: int | None = None
    where: str = ""
    source: str = ""
    line: str = ""

    @property
    def sentence(self) -> str:
        """The fact with what it is about: `rank 1, device 0: 12 ms idle`."""
        about = ["" if self.rank is None else f"rank {self.rank}", self.where]
        return ": ".join(filter(None, [", ".join(filter(None, about)), self.text]))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of an analysis: what happened (`title`), the evidence in words (`why`) and what to do (`next`).

    `id` names the kind of finding, such as `memory.oom`; it is the same in all runs and versions. `ranks` and `step`
    are the ranks and the training step that the finding is about (empty and None: none in particular). `evidence` has
    the single facts. `confidence` is from 0 to 1.

    A title begins with a capital letter and has no full stop; `why` and `next` are full sentences. Missing capital
    letters and full stops are added automatically.
    """

    id: str
    severity: Severity
    title: str
    why: str
    next: str
    ranks: list[int] = []
    step: int | None = None
    evidence: list[Evidence] = []
    confidence: float

    def __post_init__(self) -> None:
        force_setattr(self, "title", capitalised(self.title))
        force_setattr(self, "why", full_sentence(self.why))
        force_setattr(self, "next", full_sentence(self.next))


class Report(msgspec.Struct, Generic[Data_co], frozen=True, kw_only=True):
    """The result of an analysis, which is printed as one JSON document.

    `schema` is the name and version of the document, such as `workbench.memory/1`. `tool` and `version` name the
    program that wrote it. `inputs` are the files that were read. `verdict` is the answer in one sentence, and
    `findings` are the results behind it, the most important first. `data` has the numbers and tables, which differ from
    analysis to analysis. `json_schema` returns the JSON Schema of a report type.
    """

    schema: str
    tool: str = "workbench"
    version: str = ""
    inputs: list[Input]
    verdict: Verdict
    findings: list[Finding]
    data: Data_co

    def __post_init__(self) -> None:
        if not self.version:
            force_setattr(self, "version", tool_version())
        verdict, answer = self.verdict, self._answer()
        if answer and not verdict.finding:
            chosen = {"finding": answer.id, "next": verdict.next or answer.next}
            force_setattr(self, "verdict", msgspec.structs.replace(verdict, **chosen))

    def _answer(self) -> Finding | None:
        """Return the finding that a verdict on a problem is based on: of its class if there is one, else the first."""
        if self.verdict.status is Status.OK:
            return None
        bad = [finding for finding in self.findings if finding.severity is not Severity.INFO]
        own = [f for f in bad if f.id.rpartition(".")[2] == self.verdict.kind or f.id.endswith(f".{self.verdict.kind}")]
        return next(iter([*own, *bad]), None)

    def table(self, name: str) -> "pd.DataFrame":
        """Return the list `data.<name>` as a table, one row per item."""
        import pandas as pd

        return pd.DataFrame(msgspec.to_builtins(getattr(self.data, name)))

    def json(self) -> bytes:
        """Return the report as UTF-8 JSON, indented and in a stable order."""
        # Indented: the documents are read by people and diffed by git.
        return msgspec.json.format(json_bytes(self), indent=2)

    def lead(self) -> Finding | None:
        """Return the finding that is the answer, or else the first one unless it is only worth knowing (INFO)."""
        answer = next((f for f in self.findings if self.verdict.finding and f.id == self.verdict.finding), None)
        first = answer or (self.findings[0] if self.findings else None)
        return first if first and first.severity is not Severity.INFO else None

    def worst(self) -> Severity | None:
        return max((f.severity for f in self.findings), key=lambda s: s.weight, default=None)


def tool_version() -> str:
    """Return the installed version of the tool; `0` in a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-workbench")
    except PackageNotFoundError:
        return "0"


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    # The id comes last, so that equally important findings have the same order in every run.
    return sorted(findings, key=lambda f: (-f.severity.weight, -f.confidence, f.id))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding per id: findings that have the same id are combined by `merge`."""
    by_id: dict[str, list[Finding]] = {}
    for finding in findings:
        by_id.setdefault(finding.id, []).append(finding)
    return [merge(same) for same in by_id.values()]


def merge(same: Sequence[Finding]) -> Finding:
    """Return one finding for several findings that have the same id.

    It is the latest of the most severe ones, with the ranks of all of them, and with a sentence on the ranks that it
    did not name. Evidence of the others is added if it differs in more than the rank.
    """
    first = max(same, key=lambda finding: (finding.severity.weight, finding.step or 0))
    others = [finding for finding in same if finding is not first]
    ranks = sorted({rank for finding in same for rank in finding.ranks})
    is_equal = all(_texts(one) == _texts(first) for one in others)
    with_evidence = [first] if is_equal else [first, *others]
    several = len(with_evidence) > 1
    evidence = [
        fact for finding in with_evidence for fact in (_facts_of_rank(finding) if several else finding.evidence)
    ]
    also = [rank for rank in ranks if rank not in first.ranks]
    own = rank_names(first.ranks) if first.ranks else "a recording that names no rank"
    numbers = "" if is_equal else " (numbers in the evidence)"
    text = f"these numbers are from {own}; the same was found on {rank_names(also)}{numbers}"
    others_too = f" {capitalised(text)}." if also else ""
    why = first.why + others_too
    return msgspec.structs.replace(first, ranks=ranks, evidence=evidence[:EVIDENCE_AT_MOST], why=why)


def _texts(finding: Finding) -> list[tuple[str, str]]:
    return [(fact.where, fact.text) for fact in finding.evidence]


def _facts_of_rank(finding: Finding) -> list[Evidence]:
    """Return the evidence of a finding, each fact with its rank if the finding has one."""
    if len(finding.ranks) != 1:
        return finding.evidence
    rank = finding.ranks[0]
    return [fact if fact.rank is not None else msgspec.structs.replace(fact, rank=rank) for fact in finding.evidence]


def status_of(findings: Sequence[Finding]) -> Status:
    """Return the status of a verdict that is based on these findings: the highest severity decides (INFO: OK)."""
    worst = max((f.severity.weight for f in findings), default=0)
    return (Status.OK, Status.WARNING, Status.ERROR)[worst]


def json_schema(report: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a report type such as `Report[MemoryData]`."""
    from inspect import cleandoc

    schema = msgspec.json.schema(report)
    for definition in schema.get("$defs", {}).values():
        if "description" in definition:
            # A docstring, whose lines are indented as in the source.
            definition["description"] = cleandoc(definition["description"])
    return schema
