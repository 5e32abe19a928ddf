"""Analyse data sets of tokens: find mask mistakes, count, and show some rows token by token."""

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from analyzers import store
from analyzers.columns import Column
from analyzers.errors import NothingRecorded
from analyzers.report import Finding, Input, Report, Severity, Status, Verdict, ranked, status_of
from analyzers.store import Columns
from analyzers.tokens.files import DataFiles
from analyzers.tokens.model import IGNORE, ROLE_NAMES, Position, Role, TokensData, TokenStatistics
from analyzers.tokens.problems import Problem, Rows, findings_of, problem_rows, statistics_of, with_example
from analyzers.words import percent, quantity, uncapitalised

READER = "analyzers.tokens.reader"
_SCHEMA = "workbench.tokens/1"
_EXAMPLES = 8
"""The number of rows that are searched for tokens which show the mistakes of the findings."""
_NO_TOKENIZER = "a tokenizer (--tokenizer), to tell the text of users, assistants and chat templates apart"


def analyze(
    files: DataFiles,
    options: store.Options | None = None,
    *,
    shown: int = 1,
    row: int | None = None,
    seq_len: int | None = None,
    shifted_by: str | None = None,
) -> Report[TokensData]:
    """Return a report on the tokens and labels of a data set.

    `shown` rows are shown token by token: first those with the most serious findings, or, with `row`, the rows from
    this number on. `seq_len` is the length to which the trainer truncates. `shifted_by` is what moves the labels by one
    position: `model` or `data`.

    Raises:
        InputError: A file cannot be read, or has no rows of a known form.
    """
    columns = store.load([*files.data, *files.tokenizer], READER, options)
    meta = columns.meta
    rows = Rows(columns, meta["has_eos"], shifted_by or meta["shifter"], seq_len)
    if not len(rows["row"]):
        raise _no_rows(files, meta["damaged"])
    problems = problem_rows(rows)
    findings = ranked(findings_of(rows, problems, meta["damaged"], meta["damaged_rows"]))
    # The rows that are kept with their tokens have an example of each finding.
    kept = positions(columns, _chosen_rows(columns, findings, problems, _EXAMPLES, None))
    findings = [with_example(finding, kept) for finding in findings]
    statistics = statistics_of(rows, meta)
    data = TokensData(
        seq_len=statistics.length.largest,
        tokens=statistics.tokens,
        sequences=statistics.rows,
        left_over=0,
        rows=positions(columns, _chosen_rows(columns, findings, problems, shown, row)),
        statistics=statistics,
        template=meta["markup"],
        tokenizer=str(files.tokenizer[0]) if files.tokenizer else "",
        shifted_by=rows.shifter,
    )
    return Report(
        schema=_SCHEMA,
        inputs=inputs(files),
        verdict=verdict(statistics, findings, meta),
        findings=findings,
        data=data,
    )


def _no_rows(files: DataFiles, damaged: Sequence[str]) -> NothingRecorded:
    """Return the error for a data set without readable rows; `damaged` has the problems of its files."""
    reason = damaged[0] if damaged else "it is empty"
    return NothingRecorded(
        f"{files.data[0]}: no row can be read: {reason}", "see `workbench tokens --help` for what is read"
    )


def inputs(files: DataFiles) -> list[Input]:
    named = [*((path, "data_set") for path in files.data), *((path, "tokenizer") for path in files.tokenizer)]
    return [Input(str(path), kind, None, None, path.stat().st_size) for path, kind in named]


def verdict(statistics: TokenStatistics, findings: Sequence[Finding], meta: dict[str, Any]) -> Verdict:
    """Return the verdict: the most serious finding, no mistake, or unknown if no tokenizer distinguishes the roles."""
    missing = [] if meta["has_tokenizer"] else [_NO_TOKENIZER]
    if not meta["complete"]:
        missing.append(f"the rows after the first {statistics.rows}: the limit of processor time was reached")
    counted = f"{quantity(statistics.rows, 'row')}, {statistics.tokens:,} tokens"
    trained = percent(statistics.trained / statistics.tokens if statistics.tokens else 0.0)
    faults = [finding for finding in findings if finding.severity is not Severity.INFO]
    if faults:
        return Verdict(
            status=status_of(faults),
            kind=faults[0].id.removeprefix("tokens."),
            sentence=f"{faults[0].title} ({counted}, {trained} trained)",
            confidence=faults[0].confidence,
            missing=missing,
        )
    if not meta["has_tokenizer"]:
        sentence = f"no mistake in what can be checked without a tokenizer ({counted}, {trained} trained)"
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=sentence, confidence=0.3, missing=missing)
    first = "" if meta["complete"] else "the first "
    sentence = f"no mask mistake found in {first}{counted}: {trained} trained"
    form = f", format {meta['markup']}" if meta["markup"] else ""
    return Verdict(
        status=Status.OK, kind="no_mistake", sentence=sentence + uncapitalised(form), confidence=0.9, missing=missing
    )


def _chosen_rows(
    columns: Columns, findings: Sequence[Finding], problems: dict[Problem, Column], shown: int, first: int | None
) -> list[int]:
    """Return the indexes, among the kept rows, of at most `shown` rows to show token by token.

    The reader keeps the tokens of some rows only. Examples of the findings come first (by the masks in `problems`),
    then the other kept rows. If `first` is given, the result has the kept rows from this row number on instead.
    """
    numbers = columns["kept_row"]
    order = list(range(len(numbers)))
    if first is not None:
        return [index for index in order if numbers[index] >= first][:shown]
    examples = []
    place = {number: i for i, number in enumerate(columns["row"].tolist())}
    for finding in findings:
        mask = problems.get(next((p for p in Problem if finding.id == f"tokens.{p}"), Problem.SHIFT))
        if mask is not None and finding.severity is not Severity.INFO:
            examples += [i for i in order if mask[place[int(numbers[i])]]][:1]
    return list(dict.fromkeys([*examples, *order]))[:shown]


def positions(columns: Columns, chosen: Sequence[int]) -> list[Position]:
    """Return the tokens of the chosen kept rows, one `Position` each; `chosen` has indexes of kept rows."""
    ends = np.cumsum(columns["kept_length"])
    result: list[Position] = []
    for index in chosen:
        part = slice(int(ends[index] - columns["kept_length"][index]), int(ends[index]))
        result += _row_positions(columns, part, int(columns["kept_row"][index]))
    return result


def _row_positions(columns: Columns, part: slice, number: int) -> list[Position]:
    """Return the tokens of the kept row with this number, which are at `part` of the columns `kept_*`."""
    texts = columns.meta["texts"]
    names = ("kept_ids", "kept_labels", "kept_roles", "kept_trained", "kept_documents")
    values = list(zip(*(columns[name][part].tolist() for name in names), strict=True))
    shown = _token_texts([texts.get(str(token), f"<{token}>") for token, *_ in values])
    return [
        Position(
            sequence=number,
            position=i,
            token=token,
            text=shown[i],
            label=label,
            label_text="" if label == IGNORE else _token_texts([texts.get(str(label), f"<{label}>")])[0],
            trained=bool(trained),
            role=ROLE_NAMES[Role(role)],
            document=document,
        )
        for i, (token, label, role, trained, document) in enumerate(values)
    ]


def _token_texts(pieces: Sequence[str]) -> list[str]:
    """Return the text of tokens from their bytes; a character that several tokens share is in the last one's text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece.encode("latin-1", "replace")) for piece in pieces]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts
