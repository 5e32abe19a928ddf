"""Read a data set into numbers about each row (facts), and keep the tokens of some rows as examples.

The rows are read one after another: whatever the size of the files, only the facts of each row stay in memory.
"""

import resource
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from analyzers.columns import Column
from analyzers.errors import InputError
from analyzers.store import code_version
from analyzers.tokens.facts import Analysed, analyse_row
from analyzers.tokens.files import rows_of
from analyzers.tokens.markup import Markup, choose_markup, pieces_of
from analyzers.tokens.model import FACTS, UNKNOWN_SHIFT, Role
from analyzers.tokens.samples import Sample, Sampler
from analyzers.tokens.vocabulary import Vocabulary, load_vocabulary

Numbered = tuple[int, Sample]
VERSION = code_version(Path(__file__).parent)
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
BYTES_PER_S = 100_000
"""The speed of reading, in bytes per second, for which the time limit of this reader is sufficient.

Tokenising takes ten times as long as reading columns.
"""
_FIRST_ROWS = 256
"""The number of rows from which the chat format is recognised."""
_SHOWN_ROWS, _SHOWN_TOKENS = 100, 8192
_EXAMPLES = 2
"""The number of rows that are kept for each combination of facts, so that each finding has a row to show."""
_COMBINATIONS = 64
_DAMAGED_SHOWN = 8
_TIME_SHARE = 0.8
"""The share of the limit of processor time after which reading stops; the report covers the rows read so far."""
_EXAMPLE_FACTS = (
    *("trained", "ignored_values", "mismatched", "answer_masked", "turns_masked", "turns_late", "user_trained"),
    *("system_trained", "tool_trained", "opener_trained", "template_trained", "padding_trained", "undeclared"),
    *("double_bos", "no_answer", "empty_answer", "not_ended", "ends", "ends_trained", "unfinished"),
)


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns and the metadata of a data set: facts with one value per row, and the tokens of example rows.

    `paths` are the files of the data set, and those of the tokenizer.
    """
    is_tokenizer = [_is_tokenizer_file(path) for path in paths]
    vocabulary = load_vocabulary([path for path, one in zip(paths, is_tokenizer, strict=True) if one])
    data = [path for path, one in zip(paths, is_tokenizer, strict=True) if not one]
    collected = Collected(vocabulary)
    collected.read(_samples_of(data, collected, Sampler(vocabulary)))
    return collected.columns(), collected.meta()


def _is_tokenizer_file(path: Path) -> bool:
    if path.suffix == ".jinja" or path.name in (*_TOKENIZER_FILES, "tokenizer.json"):
        return True
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(4096)
    # A tokenizer may lie under any name; its keys are near the start, and a data set may be too large to parse.
    return b'"added_tokens"' in head or b'"pre_tokenizer"' in head


def _samples_of(paths: list[Path], collected: "Collected", sampler: Sampler) -> Iterator[Numbered]:
    """Yield (number, tokens) for the rows of all files; rows that cannot be read are counted in `collected`.

    Raises:
        InputError: A file cannot be read, or the first row needs a tokenizer or package that is missing.
    """
    for path in paths:
        for row in rows_of(path):
            number = collected.rows
            collected.rows += 1
            if isinstance(row, str):
                collected.reject(number, row)
                continue
            try:
                yield number, sampler.sample(row)
            except ValueError as error:
                collected.reject(number, str(error))
            except InputError as error:
                # If no row before could be read either, something is missing that all rows need: say that instead.
                if number == collected.damaged_rows and sampler.template is None:
                    raise
                collected.reject(number, error.message)


class Collected:
    """The facts of all rows read so far, and the rows that are kept as examples."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary
        self.markup: Markup | None = None
        self.facts = {name: array("q") for name in FACTS}
        self.kept: list[Analysed] = []
        self.combinations: Counter[frozenset[str]] = Counter()
        self.role_counts = np.zeros(len(Role), np.int64)
        self.trained_counts = np.zeros(len(Role), np.int64)
        self.shifts: Counter[int] = Counter()
        self.shifters: Counter[str] = Counter()
        self.damaged: list[str] = []
        self.rows = self.damaged_rows = 0
        self.complete = True

    def reject(self, number: int, reason: str) -> None:
        self.damaged_rows += 1
        if len(self.damaged) < _DAMAGED_SHOWN:
            self.damaged.append(f"row {number}: {reason}"[:300])

    def read(self, samples: Iterator[Numbered]) -> None:
        # The chat format must be known before the first row is analysed, so some rows wait here.
        first = list(islice(samples, _FIRST_ROWS))
        if self.vocabulary:
            vocabulary = self.vocabulary
            texts = [pieces_of(sample.ids, vocabulary).text for _, sample in first if len(sample.ids)]
            self.markup = choose_markup(texts, vocabulary) if texts else None
        # Beyond this limit the kernel kills the process, and all that was read would be lost.
        limit = resource.getrlimit(resource.RLIMIT_CPU)[0]
        for number, sample in chain(first, samples):
            self.add(number, sample)
            if 0 < limit < time.process_time() / _TIME_SHARE:
                self.complete = False
                return

    def add(self, number: int, sample: Sample) -> None:
        """Add the facts of a row, and keep the row if it is one of the first or has a new combination of facts."""
        usual = max(self.shifts, key=lambda shift: self.shifts[shift], default=0)
        row = analyse_row(number, sample, self.vocabulary, self.markup, usual)
        for name, column in self.facts.items():
            column.append(row.facts[name])
        if sample.labels is not None and row.facts["shift"] != UNKNOWN_SHIFT:
            self.shifts[row.facts["shift"]] += 1
        self.shifters[sample.shifter] += sample.labels is not None
        self.role_counts += np.bincount(row.roles.roles, minlength=len(Role))
        self.trained_counts += np.bincount(row.roles.roles[row.trained], minlength=len(Role))
        # Rows with the same facts show the same mistakes, so that a few of each combination are enough.
        combination = frozenset(name for name in _EXAMPLE_FACTS if row.facts[name] > 0)
        seen = self.combinations[combination]
        if len(self.kept) < _SHOWN_ROWS or (seen < _EXAMPLES and len(self.combinations) < _COMBINATIONS):
            self.kept.append(row)
        self.combinations[combination] += 1

    def columns(self) -> dict[str, Column]:
        """Return the facts as columns, and the tokens of the kept rows one after the other (columns `kept_*`)."""
        columns: dict[str, Column] = {name: np.array(column, dtype=np.int64) for name, column in self.facts.items()}
        kept = self.kept or []

        def joined(parts: list[Column]) -> Column:
            return np.concatenate([part[:_SHOWN_TOKENS] for part in parts]) if parts else np.empty(0, np.int64)

        columns["kept_row"] = np.array([row.facts["row"] for row in kept], dtype=np.int64)
        columns["kept_length"] = np.array([min(len(row.sample.ids), _SHOWN_TOKENS) for row in kept], dtype=np.int64)
        columns["kept_ids"] = joined([row.sample.ids for row in kept])
        columns["kept_labels"] = joined([_shown_labels(row) for row in kept])
        columns["kept_roles"] = joined([row.roles.roles for row in kept])
        columns["kept_trained"] = joined([row.trained.astype(np.int64) for row in kept])
        columns["kept_documents"] = joined([_document_numbers(row) for row in kept])
        columns["role_counts"], columns["trained_counts"] = self.role_counts, self.trained_counts
        return columns

    def meta(self) -> dict[str, Any]:
        """Return what is not a number: the chat format, the text of the kept tokens, and why rows cannot be read."""
        vocabulary = self.vocabulary
        tokens = {
            int(token)
            for row in self.kept
            for part in (row.sample.ids, _shown_labels(row))
            for token in part[:_SHOWN_TOKENS]
        }
        return {
            "markup": self.markup.name if self.markup else "",
            "has_tokenizer": vocabulary is not None,
            "has_eos": vocabulary is not None and vocabulary.eos is not None,
            "texts": {str(token): vocabulary.bytes_of(token) for token in sorted(tokens)} if vocabulary else {},
            "damaged": self.damaged,
            "damaged_rows": self.damaged_rows,
            "complete": self.complete,
            "shifter": self.shifters.most_common(1)[0][0] if self.shifters else "",
        }


def _shown_labels(row: Analysed) -> Column:
    if row.sample.labels is not None:
        return row.sample.labels
    return np.where(row.trained, row.sample.ids, -100)


def _document_numbers(row: Analysed) -> Column:
    starts = np.zeros(len(row.sample.ids), np.int64)
    starts[row.documents.starts] = 1
    return np.cumsum(starts)
