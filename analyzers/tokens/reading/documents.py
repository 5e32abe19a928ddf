"""Find where the documents packed into one row begin, from their text and from the other columns of the row."""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.tokens.model import Role
from analyzers.tokens.reading.roles import Roles
from analyzers.tokens.reading.samples import Sample
from analyzers.tokens.reading.vocabulary import Vocabulary

NEAR = 2
"""The most tokens between a declared border and the one in the text: a line end may follow the last turn."""


class Documents(NamedTuple):
    """The beginnings of the documents in one row; `starts` has the first token's index of each document but the first.

    `declares`: columns of the row (positions, document numbers, attention mask) show where documents begin.
    `undeclared` is the number of documents that begin in the text but not in these columns, `not_ended` the number of
    documents without an end token before them.
    """

    starts: Column
    declares: bool
    undeclared: int
    not_ended: int


def find_documents(sample: Sample, roles: Roles, vocabulary: Vocabulary | None) -> Documents:
    """Return where the documents in a row begin, by its columns or else by its text."""
    real = roles.roles != Role.PADDING
    declared = _declared_starts(sample, real)
    declares = sample.positions is not None or sample.segments is not None or sample.blocks or _has_segments(sample)
    in_text = _text_starts(sample.ids, roles, vocabulary) if vocabulary else np.empty(0, np.int64)
    # A block mask or cu_seqlens declares borders that are not read here, so that no border is undeclared.
    undeclared = 0 if sample.blocks else sum(not _is_near(start, declared) for start in in_text.tolist())
    not_ended = sum(not _has_end_before(start, roles) for start in declared.tolist()) if vocabulary else 0
    starts = declared if len(declared) else in_text
    return Documents(starts, declares, undeclared, not_ended)


def _has_segments(sample: Sample) -> bool:
    """Return whether the attention mask numbers the documents: 1, 2, 3 and so on."""
    return sample.attention is not None and bool((sample.attention > 1).any())


def _declared_starts(sample: Sample, real: Mask) -> Column:
    """Return the indexes at which documents begin by the row's columns: positions restart, or document numbers change.

    `real` is a mask of the tokens that are not padding.
    """
    result = np.zeros(len(sample.ids), dtype=bool)
    if sample.positions is not None:
        result[1:] |= (sample.positions[1:] == 0) & (sample.positions[:-1] != 0)
        # A document of a single token has position 0, and so has the first token after it.
        result[1:] |= (sample.positions[1:] == 0) & (sample.positions[:-1] == 0) & real[:-1]
    for column in (sample.segments, sample.attention if _has_segments(sample) else None):
        if column is not None:
            result[1:] |= np.diff(column) != 0
    result[1:] &= real[1:] & real[:-1]
    return np.flatnonzero(result)


def _text_starts(ids: Column, roles: Roles, vocabulary: Vocabulary) -> Column:
    """Return the indexes at which documents begin in the text.

    A document begins at a token that begins a text, after a token that ends one, and where system text follows an
    answer.
    """
    kinds = roles.roles
    result = np.zeros(len(ids), dtype=bool)
    real = kinds != Role.PADDING
    if vocabulary.bos is not None:
        result[1:] = (ids[1:] == vocabulary.bos) & (ids[:-1] != vocabulary.bos)
    # In conversations the same token often ends each turn, so that there it says nothing about documents.
    if vocabulary.eos is not None and not np.isin(kinds, (Role.USER, Role.ANSWER)).any():
        result[1:] |= (ids[:-1] == vocabulary.eos) & (ids[1:] != vocabulary.eos)
    answered = np.maximum.accumulate(np.where(kinds == Role.ANSWER, np.arange(len(ids)), -1))
    is_system = kinds == Role.SYSTEM
    begins = is_system & ~np.concatenate(([False], is_system[:-1]))
    for start in np.flatnonzero(begins & (answered >= 0)).tolist():
        # The marks before the system text belong to the new document as well.
        opener = start
        while opener and kinds[opener - 1] == Role.TEMPLATE:
            opener -= 1
        # A begin token just before the marks has already started this document.
        if not result[max(0, opener - NEAR) : opener + 1].any():
            result[opener] = True
    result[1:] &= real[1:] & real[:-1]
    return np.flatnonzero(result)


def _is_near(start: int, declared: Column) -> bool:
    """Return whether one of the declared document starts is at most `NEAR` tokens away from `start`."""
    return bool(len(declared)) and int(np.abs(declared - start).min()) <= NEAR


def _has_end_before(start: int, roles: Roles) -> bool:
    """Return whether an end token, or a mark of the chat format, is shortly before the document at index `start`.

    `start` is the index of the document's first token; `roles` has the role of each token of the row.
    """
    before = roles.roles[max(0, start - 1 - NEAR) : start + 1]
    return bool(np.isin(before, (Role.END, Role.EITHER, Role.TEMPLATE)).any())
