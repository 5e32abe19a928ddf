"""Compute the numbers about one row of a data set (its facts), from which all findings follow."""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.tokens.model import FACTS, Form, Role
from analyzers.tokens.reading.documents import Documents, find_documents
from analyzers.tokens.reading.labels import Targets, find_targets
from analyzers.tokens.reading.markup import Markup
from analyzers.tokens.reading.roles import Roles, find_roles, padding_of
from analyzers.tokens.reading.samples import Sample
from analyzers.tokens.reading.vocabulary import SPECIAL, Vocabulary

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
        targets = find_targets(sample.ids, sample.labels, padding, usual)
    documents = find_documents(sample, roles, vocabulary)
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
    """Return whether a row begins with two begin-of-text tokens."""
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
