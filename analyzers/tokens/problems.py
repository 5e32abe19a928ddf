"""Find the rows of a data set that have a mistake, and which one, from the numbers about each row (facts)."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.store import Columns
from analyzers.tokens.facts import FORMS
from analyzers.tokens.model import ROLE_NAMES, UNKNOWN_SHIFT, Form, Lengths, Role, Shifter, TokenStatistics

_ALL_TRAINED_SHARE = 0.9
"""The share of conversations that are trained as a whole from which on this is reported as one mistake, not by role."""
# Not 1: a data set whose rows are all cut to one length may end with a shorter one.
_SAME_LENGTH = 0.95
_PILE_ROWS, _PILE_RATIO, _NEAR_LONGEST = 3, 3.0, 0.9
"""The limits from which on rows with the largest length count as truncated.

At least PILE_ROWS rows have this length, and PILE_RATIO times as many as have any other length above NEAR_LONGEST of
it. Two long rows of one length may be chance.
"""
_LAST_ONLY_SHARE = 0.9
"""The share of conversations that train only their last turn from which on this counts as intended.

Only conversations of several turns count.
"""


class Problem(StrEnum):
    """A kind of mask mistake, or of another fault of a data set; the value is the last part of the finding's id."""

    SHIFT = "shift"
    LABEL_MISMATCH = "label_mismatch"
    LABEL_VALUES = "label_values"
    ALL_TRAINED = "all_trained"
    USER_TRAINED = "user_trained"
    ANSWER_MASKED = "answer_masked"
    END_NOT_TRAINED = "end_not_trained"
    NO_END_TOKEN = "no_end_token"  # noqa: S105  # no secret
    TEMPLATE_TRAINED = "template_trained"
    NOTHING_TRAINED = "nothing_trained"
    PADDING_TRAINED = "padding_trained"
    PADDING_ATTENDED = "padding_attended"
    ANSWER_CUT = "answer_cut"
    PACKING_POSITIONS = "packing_positions"
    NO_DOCUMENT_END = "no_document_end"
    DOUBLE_BOS = "double_bos"
    NO_ANSWER = "no_answer"
    EMPTY_ANSWER = "empty_answer"


@dataclass(frozen=True)
class Rows:
    """The facts of a data set as columns, with one value per row of the data set; `rows[name]` is one column.

    `shifter` is the part that moves the labels by one position (model or data). `seq_len` is the length to which the
    trainer truncates rows (None: not given).
    """

    facts: Columns
    has_tokenizer: bool
    has_eos: bool
    shifter: str
    seq_len: int | None = None

    def __getitem__(self, name: str) -> Column:
        return self.facts[name]

    @property
    def is_labelled(self) -> Mask:
        return np.asarray(self["form"] == FORMS.index(Form.LABELLED))

    @property
    def is_raw(self) -> Mask:
        return np.isin(self["form"], [FORMS.index(form) for form in (Form.MESSAGES, Form.COMPLETION, Form.TEXT)])

    @property
    def is_chat(self) -> Mask:
        return (self["user"] > 0) | (self["answer"] > 0)

    @property
    def limit(self) -> int | None:
        """The length to which rows are truncated: `seq_len`, or else the largest length if several rows have it.

        The value is None if neither is known.
        """
        if self.seq_len:
            return self.seq_len
        lengths = self["length"]
        longest = int(lengths.max(initial=0))
        return longest if np.count_nonzero(lengths == longest) > 1 else None

    @property
    def at_limit(self) -> Mask:
        """A mask of the rows that are at least as long as the limit, so that their end may be cut off."""
        return self["length"] >= self.limit if self.limit else np.zeros(len(self["length"]), dtype=bool)

    @property
    def is_one_length(self) -> bool:
        """Whether nearly all rows have the largest length: they are packed, made with one length, or all truncated."""
        lengths = self["length"]
        longest = np.count_nonzero(lengths == lengths.max(initial=0))
        return len(lengths) > 1 and bool(longest >= _SAME_LENGTH * len(lengths))

    @property
    def is_truncated(self) -> bool:
        """Whether rows were truncated to `limit`: the option gives a limit, or many rows have just the largest length.

        Example: of 200 rows 10 have 300 tokens, and 6 have 270 to 299, which is 0.2 for each of these lengths: rows
        were truncated to 300. If nearly all lengths are equal, rows are pieces of packed text or were made with this
        length, unless each of them begins where a conversation does.
        """
        if self.seq_len:
            return True
        if self.is_one_length:
            return bool(self["begins"].mean() >= _SAME_LENGTH)
        lengths = self["length"]
        longest = int(lengths.max(initial=0))
        count = np.count_nonzero(lengths == longest)
        near = np.count_nonzero((lengths >= _NEAR_LONGEST * longest) & (lengths < longest))
        usual = near / max(longest - int(_NEAR_LONGEST * longest), 1)
        return bool(count >= _PILE_ROWS and count >= _PILE_RATIO * usual)


def problem_rows(rows: Rows) -> dict[Problem, Mask]:
    whole = _trained_whole(rows)
    is_all = bool(whole.any()) and np.count_nonzero(whole) >= _ALL_TRAINED_SHARE * np.count_nonzero(rows.is_chat)
    # A mask that is missing altogether would otherwise be reported once for each role, too.
    as_parts = np.zeros_like(whole) if is_all else np.ones_like(whole)
    roles = {
        Problem.ALL_TRAINED: whole if is_all else np.zeros_like(whole),
        Problem.USER_TRAINED: as_parts & (rows["user_trained"] + rows["system_trained"] + rows["tool_trained"] > 0),
        Problem.TEMPLATE_TRAINED: as_parts
        & (rows["opener_trained"] + rows["template_trained"] > 0)
        & _supervised(rows),
    }
    return {
        **_label_problems(rows),
        **roles,
        **_answer_problems(rows),
        **_end_problems(rows),
        **_text_problems(rows),
        Problem.PADDING_TRAINED: rows["padding_trained"] > 0,
        Problem.PADDING_ATTENDED: rows["padding_attended"] > 0,
    }


def _supervised(rows: Rows) -> Mask:
    return rows.is_chat & ~np.isin(rows["form"], (FORMS.index(Form.UNLABELLED), FORMS.index(Form.TEXT)))


def _trained_whole(rows: Rows) -> Mask:
    # Nothing predicts the first token: labels that are shifted in the data do not train it.
    whole = (rows["trained"] >= rows["length"] - 1) & (rows["trained"] > 0)
    return np.asarray(_supervised(rows) & (rows["user"] > 0) & whole)


def _label_problems(rows: Rows) -> dict[Problem, Mask]:
    """Return masks of the rows whose labels are wrong, by kind of mistake.

    The labels are shifted wrongly, are not the row's own tokens, or are negative but not -100.
    """
    labelled, shift = rows.is_labelled, rows["shift"]
    # A model that shifts by itself needs each label at the position of its own token.
    right = 1 if rows.shifter == Shifter.DATA else 0
    known = shift != UNKNOWN_SHIFT
    return {
        Problem.SHIFT: labelled & known & (shift != right),
        Problem.LABEL_MISMATCH: labelled & (rows["mismatched"] > 0),
        Problem.LABEL_VALUES: labelled & (rows["ignored_values"] > 0),
    }


def _answer_problems(rows: Rows) -> dict[Problem, Mask]:
    """Return masks of the rows in which answers are masked, cut off or missing, by kind of mistake."""
    cut = is_cut(rows)
    nothing = (
        (rows["trained"] == 0) & (rows["width"] > 0) & ~cut & (rows["empty_answer"] == 0) & (rows["no_answer"] == 0)
    )
    masked = (rows["answer_masked"] > 0) & rows.is_labelled & ~cut & (rows["trained"] > 0)
    if trains_last_only(rows):
        # To train the last turn only is a choice: then whole earlier turns that are masked are no mistake.
        masked &= (rows["turns_late"] > 0) | (rows["last_masked"] > 0)
    return {
        Problem.ANSWER_MASKED: masked,
        Problem.NOTHING_TRAINED: nothing,
        Problem.ANSWER_CUT: cut,
        Problem.NO_ANSWER: rows["no_answer"] > 0,
        Problem.EMPTY_ANSWER: rows["empty_answer"] > 0,
    }


def is_cut(rows: Rows) -> Mask:
    """Return a mask of the rows that are truncated before the first token that would be trained."""
    # Raw text is not truncated yet, so here the cut is known exactly and need not be guessed.
    if rows.seq_len and rows.is_raw.any():
        return np.asarray(rows.is_raw & (rows["first_trained"] >= rows.seq_len))
    unanswered = (rows["trained"] == 0) & (rows["answer"] == 0) & (rows["unfinished"] > 0)
    if rows.is_one_length and not rows.seq_len:
        # A prompt of the length of all others that ends with its mark is whole.
        unanswered &= rows["ends_inside"] > 0
    return np.asarray(rows.at_limit & unanswered & rows.is_truncated)


def trains_last_only(rows: Rows) -> bool:
    """Return whether nearly all conversations of several turns train only the last turn."""
    several = rows["turns"] > 1
    last = several & (rows["turns_trained"] == 1) & (rows["last_masked"] == 0)
    return bool(several.any()) and bool(np.count_nonzero(last) >= _LAST_ONLY_SHARE * np.count_nonzero(several))


def _end_problems(rows: Rows) -> dict[Problem, Mask]:
    """Return masks of the rows whose answers have no end token, or one that is not trained, by kind of mistake."""
    finished = ~rows.at_limit & (rows["width"] > 0)
    masked_part = rows["trained"] < rows["length"] - 1
    asked = _supervised(rows) | (rows.is_labelled & masked_part)
    ended = rows["ends"] > 0
    # The fault is a data set that never writes end tokens; a single answer without one may be unfinished.
    none = not (ended & asked).any() and rows.has_eos
    return {
        Problem.END_NOT_TRAINED: asked & ended & (rows["ends_trained"] < rows["ends"]) & (rows["trained"] > 0),
        Problem.NO_END_TOKEN: asked & finished & (rows["unfinished"] > 0) & (rows["trained"] > 0) & bool(none),
    }


def _text_problems(rows: Rows) -> dict[Problem, Mask]:
    """Return, for each kind of mistake in how documents are packed or begin, a mask of the rows that have it."""
    texts = rows["text_tokens"] > 0
    # Rows of one length were cut out of joined documents, so that some of them should have an end token inside.
    endless = rows.is_one_length and rows.has_eos and not rows["ends"].any()
    separate = rows["undeclared"] > 0
    return {
        Problem.PACKING_POSITIONS: separate & ((rows["declares"] > 0) | _supervised(rows)),
        Problem.NO_DOCUMENT_END: (texts & endless & ~rows.is_raw) | (rows["not_ended"] > 0),
        Problem.DOUBLE_BOS: rows["double_bos"] > 0,
    }


_SHIFT_NAMES = {0: "the token itself", 1: "the next token", UNKNOWN_SHIFT: "unknown"}


def statistics_of(rows: Rows, meta: dict[str, Any]) -> TokenStatistics:
    """Return the statistics of all rows of a data set; `meta` is the metadata that the reader returned."""
    forms = Counter(rows["form"].tolist())
    shifts = Counter(rows["shift"][rows.is_labelled].tolist())
    return TokenStatistics(
        rows=len(rows["row"]) + meta["damaged_rows"],
        damaged_rows=meta["damaged_rows"],
        complete=meta["complete"],
        forms={str(FORMS[form]): count for form, count in forms.most_common()},
        tokens=int(rows["length"].sum()),
        trained=int(rows["trained"].sum()),
        padding=int(rows["padding"].sum()),
        length=lengths(rows["length"]),
        trained_of_row=lengths(rows["trained"]),
        first_trained=lengths(rows["first_trained"][rows["first_trained"] >= 0]),
        documents=int(rows["documents"].sum()),
        turns=int(rows["turns"].sum()),
        at_limit=int(np.count_nonzero(rows.at_limit)),
        shifts={shift_name(shift): count for shift, count in shifts.most_common()},
        roles=_by_role(rows.facts["role_counts"]),
        trained_roles=_by_role(rows.facts["trained_counts"]),
    )


def lengths(values: Column) -> Lengths:
    """Return the median, the 90th percentile and the largest of some numbers; zeros if there are none."""
    if not len(values):
        return Lengths(0, 0, 0)
    # Lengths that rows really have, not values between two of them.
    median, p90 = np.percentile(values, (50, 90), method="lower").tolist()
    return Lengths(int(median), int(p90), int(values.max()))


def shift_name(shift: int) -> str:
    return _SHIFT_NAMES.get(shift) or f"the token {abs(shift)} {'later' if shift > 0 else 'before'}"


def _by_role(counts: Column) -> dict[str, int]:
    """Return {name of a role: number of its tokens}, without roles that no token has.

    `counts[role]` is the number of tokens of each `Role`.
    """
    return {ROLE_NAMES[Role(role)]: count for role, count in enumerate(counts.tolist()) if count}
