"""Find the role of each token of a row: padding, marks of the chat format, the user's text, the assistant's, ..."""

import itertools
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.tokens.model import Role
from analyzers.tokens.reading.markup import Markup, Region
from analyzers.tokens.reading.samples import Sample
from analyzers.tokens.reading.vocabulary import SPECIAL, Vocabulary

_CONTENT = (Role.ANSWER, Role.USER, Role.SYSTEM, Role.TOOL)
_RUN_WITHOUT_TOKENIZER = 3
"""The number of equal tokens at the end of a row that count as padding if no tokenizer names the padding token."""


class Pieces(NamedTuple):
    """The text of a row, in which a character stands for a byte, and where each token starts and ends in it.

    `sizes` has the bytes of each token.
    """

    text: str
    starts: Column
    ends: Column
    sizes: Column


class Roles(NamedTuple):
    """The role of each token of a row, and the number of the answer that it belongs to (-1: none).

    `pieces` is None if there is no tokenizer.
    """

    roles: Column
    turns: Column
    pieces: Pieces | None = None


def pieces_of(ids: Column, vocabulary: Vocabulary) -> Pieces:
    """Return the text of some tokens, and where each of them is in it."""
    known = np.clip(ids, 0, len(vocabulary.lengths) - 1)
    lengths = np.where(known == ids, vocabulary.lengths[known], 1)
    ends = np.cumsum(lengths)
    specials = np.where(known == ids, vocabulary.is_special[known], False)
    return Pieces("".join(vocabulary.pieces_of(ids)), ends - lengths, ends, lengths - specials)


def padding_of(sample: Sample, vocabulary: Vocabulary | None) -> Mask:
    """Return a mask of the padding tokens of a row.

    They are the tokens that the attention mask leaves out. If it leaves out none, or is missing, they are the runs of
    the vocabulary's padding token at the two ends of the row. Without a vocabulary, they are a long run of one token at
    the end of the row.
    """
    ids = sample.ids
    if sample.attention is not None and not sample.attention.all():
        return np.asarray(sample.attention == 0)
    pad = vocabulary.pad if vocabulary else None
    result = np.zeros(len(ids), dtype=bool)
    if not len(ids) or (vocabulary and pad is None):
        return result
    same = ids == (ids[-1] if pad is None else pad)
    after = len(ids) - int(np.argmin(same[::-1])) if not same.all() else 0
    run = len(ids) - after
    if vocabulary is None:
        # The first may be the end of a document that is used as padding, too.
        result[after + 1 :] = run >= _RUN_WITHOUT_TOKENIZER
        return result
    # Where the end token is also the padding, the first one of the run ends the text.
    keep = int(pad == vocabulary.eos)
    result[after + keep :] = True
    before = int(np.argmin(same)) if not same.all() else 0
    # One such token at the begin may belong to the text: the end of the document before, or the begin of this one.
    may_be_text = pad in (vocabulary.eos, vocabulary.bos)
    result[: 0 if may_be_text and before == 1 else before] = True
    return result


def find_roles(sample: Sample, padding: Mask, vocabulary: Vocabulary | None, markup: Markup | None) -> Roles:
    """Return the role of each token of a row."""
    nothing = np.full(len(sample.ids), -1, dtype=np.int64)
    if vocabulary is None:
        return Roles(np.where(padding, Role.PADDING, Role.EITHER).astype(np.int64), nothing)
    pieces = pieces_of(sample.ids, vocabulary)
    regions = _prompt_regions(pieces.text, sample) or (markup.regions(pieces.text) if markup else [])
    if regions and regions[0].role is not Role.TEXT:
        roles, turns = _roles_by_region(pieces, regions)
    else:
        roles, turns = np.full(len(sample.ids), int(Role.TEXT)), nothing
    special = _special_tokens(sample.ids, vocabulary)
    # A begin or end token inside of a user's turn is no text of the user: to train it is no mistake.
    roles[special & np.isin(roles, (Role.TEXT, Role.USER, Role.SYSTEM))] = Role.EITHER
    # A chat format already says which end token ends an answer, and which ends a user's turn.
    if vocabulary.eos is not None and not (regions and markup and not sample.completion):
        _mark_ends(roles, turns, sample.ids == vocabulary.eos)
    # Last, because padding may be the same token as the end of an answer.
    roles[padding], turns[padding] = Role.PADDING, -1
    return Roles(roles, turns, pieces)


def _mark_ends(roles: Column, turns: Column, is_end: Mask) -> None:
    """Give the role END to the tokens in the mask `is_end`, and assign each of them to a turn.

    Tokens outside of turns are assigned to the last turn. In a row without turns, each of them ends a turn of its own.
    `roles` and `turns` are changed in place.
    """
    roles[is_end] = Role.END
    without = is_end & (turns < 0)
    turns[without] = np.arange(np.count_nonzero(without)) if not (turns >= 0).any() else turns.max()


def _special_tokens(ids: Column, vocabulary: Vocabulary) -> Mask:
    """Return a mask of the tokens that begin, end or pad a text."""
    return np.isin(ids, [token for token in (vocabulary.bos, vocabulary.eos, vocabulary.pad) if token is not None])


def _prompt_regions(text: str, sample: Sample) -> list[Region]:
    """Return the regions of a row whose prompt and completion are known; empty if its text does not contain them.

    The regions are the prompt (role USER), the completion (role ANSWER) and the rest.
    """
    if not sample.completion.strip():
        return []
    plain = text.replace(SPECIAL, "")
    where = plain.find(sample.completion.replace(SPECIAL, ""), plain.find(sample.prompt) + len(sample.prompt))
    if sample.prompt not in plain or where < 0:
        return []
    # The text has a character more for each special token before a place.
    offsets = list(itertools.accumulate((sign != SPECIAL for sign in text), initial=0))
    start = offsets.index(where) if where else 0
    end = offsets.index(where + len(sample.completion))
    parts = (Region(0, start, Role.USER), Region(start, end, Role.ANSWER, 0), Region(end, len(text), Role.EITHER))
    return [part for part in parts if part.end > part.start]


def _roles_by_region(pieces: Pieces, regions: list[Region]) -> tuple[Column, Column]:
    """Return the role of each token and the number of its answer; a token on both sides of a border gets `EITHER`."""
    borders = np.array([region.start for region in regions])
    kinds = np.array([region.role for region in regions])
    numbers = np.array([region.turn for region in regions])
    first = np.searchsorted(borders, pieces.starts, "right") - 1
    # A token without text ends where it starts; without the maximum it would end in the region before.
    last = np.searchsorted(borders, np.maximum(pieces.ends - 1, pieces.starts), "right") - 1
    roles = np.where(kinds[first] == kinds[last], kinds[first], Role.EITHER)
    _free_edges(roles, pieces, regions)
    return roles, numbers[first]


def _free_edges(roles: Column, pieces: Pieces, regions: list[Region]) -> None:
    """Give the role `EITHER` to blank tokens at the edges of a message, because they may belong to the marks around it.

    `roles` is changed in place.
    """
    for region in regions:
        if region.role not in _CONTENT:
            continue
        content = pieces.text[region.start : region.end]
        begin = region.start + len(content) - len(content.lstrip())
        stop = region.start + len(content.rstrip())
        before, after = np.searchsorted(pieces.starts, (region.start, stop))
        first = np.searchsorted(pieces.ends, begin, "right")
        roles[before:first] = Role.EITHER
        finish = np.searchsorted(pieces.ends, region.end, "right")
        roles[max(after, before) : finish] = Role.EITHER
