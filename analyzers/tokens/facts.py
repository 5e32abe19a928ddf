"""Find where the documents packed into one row begin, from their text and from the other columns of the row."""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.tokens.markup import Markup, Roles, find_roles, padding_of
from analyzers.tokens.model import FACTS, IGNORE, UNKNOWN_SHIFT, Form, Role
from analyzers.tokens.samples import Sample
from analyzers.tokens.vocabulary import SPECIAL, Vocabulary

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


def _find_documents(sample: Sample, roles: Roles, vocabulary: Vocabulary | None) -> Documents:
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
    return bool(len(declared)) and int(np.abs(declared - start).min()) <= NEAR


def _has_end_before(start: int, roles: Roles) -> bool:
    """Return whether an end token, or a mark of the chat format, is shortly before the document at index `start`."""
    before = roles.roles[max(0, start - 1 - NEAR) : start + 1]
    return bool(np.isin(before, (Role.END, Role.EITHER, Role.TEMPLATE)).any())


# The likely shifts come first: of equally good ones the first is taken.
_SHIFTS = (0, 1, -1, 2, -2)
"""The shifts that are tried: with shift n, the label at a position is the token n positions later."""
_ENOUGH = 0.6
"""The share of the labels that must equal the tokens at a shift for that shift to be accepted."""
FEW = 3


class Targets(NamedTuple):
    """The meaning of a row's labels: a mask of the trained tokens, and the shift of the labels.

    `mismatched` is the number of labels that are not the tokens at this shift, `ignored_values` the number of negative
    labels other than -100.
    """

    trained: Mask
    shift: int
    mismatched: int
    ignored_values: int


def _find_targets(ids: Column, labels: Column, padding: Mask, usual: int) -> Targets:
    """Return which tokens of a row its labels train.

    `usual` is the shift of earlier rows, which is used if the labels of this row are too few to show it. `padding` is
    a mask of the padding tokens, whose labels are not compared.
    """
    is_label = labels >= 0
    shift, matched = best_shift(ids, labels, is_label & ~padding, usual)
    # Where the labels do not tell, the rows before are the best guess: the same code made all of them.
    by = usual if shift == UNKNOWN_SHIFT else shift
    trained = np.zeros(len(ids), dtype=bool)
    where = np.flatnonzero(is_label) + by
    trained[where[(where >= 0) & (where < len(ids))]] = True
    counted = int(np.count_nonzero(is_label & ~padding))
    bad = int(np.count_nonzero((labels < 0) & (labels != IGNORE)))
    return Targets(trained, shift, counted - matched, bad)


def best_shift(ids: Column, labels: Column, compared: Mask, usual: int) -> tuple[int, int]:
    """Return the shift at which most labels equal tokens, and the number of these; `UNKNOWN_SHIFT` if they are too few.

    Only the positions of the mask `compared` count. `usual` is preferred among shifts that are equally good.
    """
    where = np.flatnonzero(compared)
    if not len(where):
        return UNKNOWN_SHIFT, 0
    counts = {shift: matches(ids, labels, where, shift) for shift in (usual, *_SHIFTS)}
    # Of equal counts, `max` takes the first, which is that of `usual`.
    best = max(counts, key=lambda shift: counts[shift])
    if counts[best] < _ENOUGH * len(where):
        # A few labels may be those of tokens beyond the row's end.
        return UNKNOWN_SHIFT, len(where) if len(where) <= FEW else counts[best]
    # Shifted labels at the ends of a row belong to tokens beyond it, and are no mismatch.
    edge = sum(1 for i in where[-2:] if i + best >= len(ids)) + sum(1 for i in where[:2] if i + best < 0)
    return best, counts[best] + edge


def matches(ids: Column, labels: Column, where: Column, shift: int) -> int:
    """Return how many of the labels at the positions `where` equal the token `shift` positions later."""
    inside = where[(where + shift >= 0) & (where + shift < len(ids))]
    return int(np.count_nonzero(labels[inside] == ids[inside + shift]))


FORMS = tuple(Form)
COUNTED = {
    "text_tokens": Role.TEXT,
    "answer": Role.ANSWER,
    "user": Role.USER,
    "ends": Role.END,
    "padding": Role.PADDING,
}
_TRAINED = {
    "user_trained": Role.USER,
    "system_trained": Role.SYSTEM,
    "tool_trained": Role.TOOL,
    "opener_trained": Role.OPENER,
    "template_trained": Role.TEMPLATE,
    "padding_trained": Role.PADDING,
}


class Analysed(NamedTuple):
    """A row with the role of each token, a mask of the trained tokens, where documents begin, and its facts by name."""

    sample: Sample
    roles: Roles
    trained: Mask
    documents: Documents
    facts: dict[str, int]


def analyse_row(
    number: int, sample: Sample, vocabulary: Vocabulary | None, markup: Markup | None, usual: int
) -> Analysed:
    """Return row `number` of a data set, whose tokens and labels are in `sample`, with its facts.

    `markup` is the chat format of the data set, None if it has none or if there is no tokenizer (`vocabulary`).
    `usual` is the shift of the labels in most earlier rows.
    """
    padding = padding_of(sample, vocabulary)
    roles = find_roles(sample, padding, vocabulary, markup)
    if sample.labels is None:
        targets = Targets(_chosen_targets(sample, roles), 0, 0, 0)
    else:
        targets = _find_targets(sample.ids, sample.labels, padding, usual)
    documents = _find_documents(sample, roles, vocabulary)
    facts = dict.fromkeys(FACTS, 0) | sample.facts | {"row": number, "form": FORMS.index(sample.form)}
    facts |= counts(sample, roles, targets, documents) | _turn_facts(roles, targets.trained)
    facts |= _border_facts(roles.roles)
    facts["double_bos"] = int(_begins_twice(sample.ids, roles, vocabulary))
    return Analysed(sample, roles, targets.trained, documents, facts)


def counts(sample: Sample, roles: Roles, targets: Targets, documents: Documents) -> dict[str, int]:
    """Return the facts of a row that count tokens or documents, by name.

    `roles` has the role of each token, `targets` which tokens are trained, and `documents` where documents begin.
    """
    kinds, trained = roles.roles, targets.trained
    where = np.flatnonzero(trained & (kinds != Role.PADDING))
    content = np.flatnonzero(kinds == Role.ANSWER)
    attended = sample.attention is not None and bool(sample.attention.all())
    padding = int(np.count_nonzero(kinds == Role.PADDING))
    return {
        "width": len(kinds),
        "length": len(kinds) - padding,
        "trained": len(where),
        "first_trained": int(where[0]) if len(where) else -1,
        "shift": targets.shift,
        "ignored_values": targets.ignored_values,
        "mismatched": targets.mismatched,
        "padding_attended": padding if attended else 0,
        "documents": 1 + len(documents.starts),
        "undeclared": documents.undeclared,
        "declares": int(documents.declares),
        "not_ended": documents.not_ended,
        "answer_start": int(content[0]) if len(content) else -1,
        **{name: int(np.count_nonzero(kinds == role)) for name, role in COUNTED.items()},
        **{name: int(np.count_nonzero(trained & (kinds == role))) for name, role in _TRAINED.items()},
    }


def _border_facts(kinds: Column) -> dict[str, int]:
    """Return the facts about the first and the last token of a row, by name; `kinds` has the role of each token.

    A conversation begins with a mark of its format or with system text; a piece of packed text seldom does.
    """
    # The token that begins a text is no part of the conversation.
    real = kinds[(kinds != Role.PADDING) & (kinds != Role.EITHER)]
    if not len(real):
        return {}
    inside = (Role.USER, Role.SYSTEM, Role.TOOL)
    return {"begins": int(real[0] in (Role.TEMPLATE, Role.SYSTEM)), "ends_inside": int(real[-1] in inside)}


def _turn_facts(roles: Roles, trained: Mask) -> dict[str, int]:
    """Return the facts about the assistant's turns of a row, by name: how many are trained, and their end tokens."""
    kinds, turns = roles.roles, roles.turns
    if not (turns >= 0).any():
        return {"unfinished": 1}
    count = int(turns.max()) + 1

    def by_turn(mask: Mask) -> Column:
        return np.bincount(turns[mask & (turns >= 0)], minlength=count)

    is_answer, is_end = kinds == Role.ANSWER, kinds == Role.END
    content, learned = by_turn(is_answer), by_turn(is_answer & trained)
    ends, learned_ends = by_turn(is_end), by_turn(is_end & trained)
    spoken = content > 0
    masked = spoken & (learned == 0)
    return {
        "turns": int(np.count_nonzero(spoken)),
        "turns_trained": int(np.count_nonzero(learned)),
        "turns_masked": int(np.count_nonzero(masked)),
        # Turns that are masked as a whole have a fact of their own, and are not counted twice.
        "turns_late": int(np.count_nonzero(learned[spoken] < content[spoken])) - int(np.count_nonzero(masked)),
        "last_masked": int(bool(masked[spoken][-1:].any())),
        "answer_masked": int(content.sum() - learned.sum()),
        # A turn that is masked as a whole needs no trained end.
        "ends": int(np.count_nonzero(ends[(learned > 0) | ~spoken])),
        "ends_trained": int(np.count_nonzero((learned_ends >= ends) & (ends > 0) & ((learned > 0) | ~spoken))),
        "unfinished": int(ends[-1] == 0),
    }


def _begins_twice(ids: Column, roles: Roles, vocabulary: Vocabulary | None) -> bool:
    if vocabulary is None or vocabulary.bos is None:
        return False
    # Rows may be padded at the left, so that the text does not begin at position 0.
    real = ids[roles.roles != Role.PADDING][:2].tolist()
    return bool(real == [vocabulary.bos, vocabulary.bos])


def _chosen_targets(sample: Sample, roles: Roles) -> Mask:
    """Return a mask of the tokens that a trainer would train in a row without labels.

    In a conversation these are the answers with their ends; in other texts they are all tokens.
    """
    kinds = roles.roles
    if sample.form is Form.MESSAGES:
        return _message_targets(sample, roles)
    if sample.form is Form.COMPLETION:
        return np.asarray(np.isin(kinds, (Role.ANSWER, Role.END)))
    return np.asarray(kinds != Role.PADDING)


def _message_targets(sample: Sample, roles: Roles) -> Mask:
    """Return a mask of the trained tokens of a rendered conversation.

    These are the tokens that the template marks as the assistant's. Without marks, they are the trained messages with
    the ends of their answers.
    """
    pieces, kinds = roles.pieces, roles.roles
    if pieces is None:
        return np.zeros(len(kinds), dtype=bool)
    if sample.marked is not None:
        ends = np.cumsum(pieces.sizes)
        starts = np.minimum(ends - pieces.sizes, len(sample.marked) - 1)
        return np.asarray(sample.marked[starts])
    # One character more, because an empty token behind the text starts at its length.
    plain, cursor = np.zeros(len(pieces.text) + 1, dtype=bool), 0
    text = pieces.text.replace(SPECIAL, "\0")
    for content, trained in sample.spans:
        # The search goes on behind the message before, as the same words may occur in several messages.
        where = text.find(content, cursor)
        if content and where >= 0:
            cursor = where + len(content)
            plain[where:cursor] = trained
    result = plain[pieces.starts] | plain[np.maximum(pieces.ends - 1, 0)]
    learned = roles.turns[result & (kinds == Role.ANSWER)]
    return np.asarray(result | ((kinds == Role.END) & np.isin(roles.turns, learned)))
