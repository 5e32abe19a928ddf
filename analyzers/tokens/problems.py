"""Find the rows of a data set that have a mistake, and which one, from the numbers about each row (facts)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.report import Evidence, Finding, Severity
from analyzers.store import Columns
from analyzers.tokens.facts import FORMS
from analyzers.tokens.model import (
    FACTS,
    ROLE_NAMES,
    UNKNOWN_SHIFT,
    Form,
    Lengths,
    Position,
    Role,
    Shifter,
    TokenStatistics,
)
from analyzers.words import agree, percent, quantity, share

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
    if _trains_last_only(rows):
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


def _trains_last_only(rows: Rows) -> bool:
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
        shifts={_shift_name(shift): count for shift, count in shifts.most_common()},
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


def _shift_name(shift: int) -> str:
    return _SHIFT_NAMES.get(shift) or f"the token {abs(shift)} {'later' if shift > 0 else 'before'}"


def _by_role(counts: Column) -> dict[str, int]:
    """Return {name of a role: number of its tokens}, without roles that no token has.

    `counts[role]` is the number of tokens of each `Role`.
    """
    return {ROLE_NAMES[Role(role)]: count for role, count in enumerate(counts.tolist()) if count}


_ROWS_NAMED = 5
_MANY = 0.5
"""The share of the rows from which on a mistake that some trainers tolerate is an error and no longer a warning."""
_ALWAYS_ERROR = frozenset({
    Problem.SHIFT, Problem.LABEL_MISMATCH, Problem.LABEL_VALUES, Problem.ALL_TRAINED, Problem.USER_TRAINED,
    Problem.ANSWER_MASKED, Problem.PADDING_TRAINED,
})  # fmt: skip
_ERROR_IF_MANY = frozenset({Problem.END_NOT_TRAINED, Problem.NOTHING_TRAINED, Problem.ANSWER_CUT})
NEXT = {
    Problem.LABEL_MISMATCH: "Make labels from the same input_ids: labels = input_ids.clone(), then mask.",
    Problem.LABEL_VALUES: "Use -100 for tokens that the loss shall ignore, or pass the ignore_index of the data to"
    " cross_entropy.",
    Problem.ALL_TRAINED: "Set the labels of all tokens that the assistant does not write to -100 (TRL:"
    " assistant_only_loss or completion_only_loss; axolotl: train_on_inputs: false).",
    Problem.USER_TRAINED: "Set the labels of user, system and tool text to -100, also in later turns: mask by role, not"
    " by the length of the first prompt.",
    Problem.ANSWER_MASKED: "Check where the mask begins and ends: the text that marks the answer may be tokenised"
    " differently inside of a conversation, and each turn needs a span of its own.",
    Problem.END_NOT_TRAINED: "Train the token that ends the answer: include it in the unmasked span, and give padding a"
    " token of its own if it shares that one.",
    Problem.NO_END_TOKEN: "Append the end token to each answer before tokenising.",
    Problem.TEMPLATE_TRAINED: "Begin the unmasked span after the tokens of the template that open the answer, and end"
    " it with the end token of the answer.",
    Problem.NOTHING_TRAINED: "Drop these rows, or find out why the mask finds no answer in them.",
    Problem.PADDING_TRAINED: "Set the labels of padding to -100.",
    Problem.PADDING_ATTENDED: "Set attention_mask to 0 for padding.",
    Problem.ANSWER_CUT: "Raise the sequence length of the trainer (training.seq_len; TRL: max_length; axolotl:"
    " sequence_len), shorten or drop these rows, or truncate prompts from the left.",
    Problem.PACKING_POSITIONS: "Write position_ids that begin with 0 in each document, and an attention that ends at"
    " its border (for example flash attention with cu_seqlens, or a block mask).",
    Problem.NO_DOCUMENT_END: "Append the end token to each document before packing.",
    Problem.DOUBLE_BOS: "Tokenise text of a chat template with add_special_tokens=False: it already begins with that"
    " token.",
    Problem.NO_ANSWER: "Drop these rows, or end them with the assistant's answer.",
    Problem.EMPTY_ANSWER: "Drop these rows, or write the answer.",
}
TITLES = {
    Problem.LABEL_MISMATCH: "labels are not those of the tokens in {rows}",
    Problem.LABEL_VALUES: "labels below zero other than -100 in {rows}",
    Problem.ALL_TRAINED: "all text is trained, also the user's, in {rows}",
    Problem.USER_TRAINED: "text of users, system messages or tools has labels, so the model is trained to write it, in"
    " {rows}",
    Problem.ANSWER_MASKED: "text of the assistant is masked in {rows}",
    Problem.END_NOT_TRAINED: "the end of the answer is not trained in {rows}",
    Problem.NO_END_TOKEN: "answers have no end token in {rows}",
    Problem.TEMPLATE_TRAINED: "tokens of the chat template are trained in {rows}",
    Problem.NOTHING_TRAINED: "no token is trained in {rows}",
    Problem.PADDING_TRAINED: "padding is trained in {rows}",
    Problem.PADDING_ATTENDED: "padding is attended to in {rows}",
    Problem.ANSWER_CUT: "truncation cuts off the whole answer in {rows}",
    Problem.PACKING_POSITIONS: "packed documents are not separated in {rows}",
    Problem.NO_DOCUMENT_END: "documents are packed without an end token in {rows}",
    Problem.DOUBLE_BOS: "the token that begins a text stands twice in {rows}",
    Problem.NO_ANSWER: "the conversation does not end with an answer in {rows}",
    Problem.EMPTY_ANSWER: "an answer is empty in {rows}",
}
_DAMAGED_NEXT = (
    "Repair or drop these rows. A row of tokens needs flat lists of integers of one length (input_ids, labels,"
    " attention_mask); a conversation needs messages, each with a role and a content."
)


def findings_of(rows: Rows, problems: dict[Problem, Mask], damaged: list[str], damaged_rows: int) -> Iterator[Finding]:
    """Yield a finding for each kind of mistake that rows have.

    `damaged` has the reasons why the first of the `damaged_rows` unreadable rows cannot be read.
    """
    for problem, mask in problems.items():
        if mask.any():
            yield _problem_finding(rows, problem, mask)
    if damaged_rows:
        yield _damaged_finding(rows, damaged, damaged_rows)
    if _trains_last_only(rows):
        yield _last_only_finding(rows)


def _problem_finding(rows: Rows, problem: Problem, mask: Mask) -> Finding:
    """Return the finding on one kind of mistake (`problem`); `mask` marks the rows that have it."""
    count, total = int(np.count_nonzero(mask)), len(mask)
    where = f"{count} of {quantity(total, 'row')}"
    return Finding(
        id=f"tokens.{problem}",
        severity=severity(problem, count / total),
        title=_title_of(rows, problem, mask, where),
        why=why(rows, problem, mask),
        next=_shift_next(rows) if problem is Problem.SHIFT else NEXT[problem],
        evidence=[Evidence(text=_row_numbers(rows, mask) + _how_to_show(rows, mask))],
        confidence=0.95 if problem in _ALWAYS_ERROR else 0.85,
    )


def _title_of(rows: Rows, problem: Problem, mask: Mask, where: str) -> str:
    """Return the title of a finding; it names the tokens in the same way as the table of roles.

    `mask` marks the rows with the mistake; `where` says how many they are, such as `12 of 40 rows`.
    """
    if problem is Problem.SHIFT:
        return _shift_title(rows, mask, where)
    if problem is Problem.TEMPLATE_TRAINED and not rows["template_trained"][mask].any():
        return f"tokens that start an answer are trained in {where}"
    return TITLES[problem].format(rows=where)


def severity(problem: Problem, part: float) -> Severity:
    is_error = problem in _ALWAYS_ERROR or (problem in _ERROR_IF_MANY and part >= _MANY)
    return Severity.ERROR if is_error else Severity.WARNING


def _row_numbers(rows: Rows, mask: Mask) -> str:
    """Return the numbers of the first rows with a mistake: `rows 0, 4 (counted from 0)`."""
    # One more than is named shows whether further rows follow, without counting all of them.
    numbers = rows["row"][mask][: _ROWS_NAMED + 1].tolist()
    named = ", ".join(map(str, numbers[:_ROWS_NAMED])) + (", ..." if len(numbers) > _ROWS_NAMED else "")
    return f"{agree(numbers, 'row', 'rows')} {named} (counted from 0)"


def _how_to_show(rows: Rows, mask: Mask) -> str:
    first = int(rows["row"][mask][0])
    return f"; `workbench tokens` with `--row {first}` shows the tokens and labels of row {first}"


_SHOWN_BY: Mapping[Problem, tuple[Role, bool]] = {
    Problem.END_NOT_TRAINED: (Role.END, False),
    Problem.USER_TRAINED: (Role.USER, True),
    Problem.ANSWER_MASKED: (Role.ANSWER, False),
    Problem.PADDING_TRAINED: (Role.PADDING, True),
    Problem.TEMPLATE_TRAINED: (Role.OPENER, True),
}
"""{kind of mistake: (role of a token that shows it, whether this token is trained)}."""


def with_example(finding: Finding, positions: Sequence[Position]) -> Finding:
    """Return a finding with a token that shows its mistake as further evidence, if there is one at `positions`."""
    problem = next((one for one in _SHOWN_BY if finding.id == f"tokens.{one}"), None)
    if problem is None:
        return finding
    role, trained = _SHOWN_BY[problem]
    one = next((p for p in positions if p.role == ROLE_NAMES[role] and p.trained is trained), None)
    return msgspec.structs.replace(finding, evidence=[*finding.evidence, *([example(one)] if one else [])])


def example(one: Position) -> Evidence:
    fate = "is trained: its label is not -100" if one.trained else "is not trained: its label is -100"
    return Evidence(text=f"row {one.sequence}, position {one.position}: token {one.text!r} ({one.role}) {fate}")


def _shift_title(rows: Rows, mask: Mask, where: str) -> str:
    """Return the title for labels that are shifted wrongly; it names the token that the labels actually are.

    `mask` marks the rows with this mistake; the most frequent shift among them counts. `where` says how many they are,
    such as `12 of 40 rows`.
    """
    # The offset makes negative shifts valid indices of the counts.
    shift = int(np.bincount(rows["shift"][mask] + 128).argmax()) - 128
    if rows.shifter == Shifter.MODEL:
        moved = {1: "labels are shifted in the data, and the model shifts them again"}
    else:
        moved = {0: "labels are not shifted: the model learns to copy its input"}
    return f"{moved.get(shift) or f'each label is {_shift_name(shift)}'}, in {where}"


def _shift_next(rows: Rows) -> str:
    if rows.shifter == Shifter.MODEL:
        return (
            "Write labels at the position of their own token: models of Hugging Face shift them by one. If your loss"
            " does not shift, each label must be the token that follows: then say so with --shifted-by data."
        )
    return (
        "Write at each position the token that follows: labels = ids[1:]. If your model shifts the labels itself, say"
        " so with --shifted-by model."
    )


def why(rows: Rows, problem: Problem, mask: Mask) -> str:
    """Return the evidence for a finding as a sentence with numbers; `mask` marks the rows that have the mistake."""
    sums = {name: int(rows[name][mask].sum()) for name in FACTS}
    if problem in REASONS:
        return REASONS[problem](sums)
    if problem is Problem.END_NOT_TRAINED:
        return _end_text(sums, int(rows["ends"].sum()), int(rows["ends_trained"].sum()))
    part = percent(np.count_nonzero(mask) / len(mask))
    if problem is Problem.ANSWER_CUT:
        longest = f"to {rows.limit} tokens ({_limit_source(rows)})" if rows.limit else "at its length"
        return f"{part} of the rows, truncated {longest}, end before the first token of an answer: they train nothing"
    sentence = _SENTENCES[problem].format(part=part, **sums)
    return f"{sentence}{_one_length_text(rows, mask)}" if problem is Problem.NOTHING_TRAINED else sentence


def _one_length_text(rows: Rows, mask: Mask) -> str:
    """Return a text that rows without labels (`mask`) may be packed or truncated; empty if their lengths differ."""
    if not rows.is_one_length or rows["answer"][mask].any():
        return ""
    return (
        f". Nearly all rows are {rows.limit} tokens long, so that their lengths do not show whether these are pieces of"
        " packed text, or truncated before their answers"
    )


def _limit_source(rows: Rows) -> str:
    if rows.seq_len:
        return "given by --seq-len"
    return f"the largest length, which {np.count_nonzero(rows['length'] == rows.limit)} rows have"


def _user_text(sums: Mapping[str, int]) -> str:
    counts = {name: sums[f"{name}_trained"] for name in ("user", "system", "tool")}
    tokens = " and ".join(f"{quantity(count, 'token')} of {name} messages" for name, count in counts.items() if count)
    return f"{tokens} have labels other than -100; only tokens of the assistant should have them"


def _end_text(sums: Mapping[str, int], ends: int, learned: int) -> str:
    often = f"In all rows together, {learned} of {quantity(ends, 'answer')} have a label there"
    where = often if learned else "No end token of any row has a label, so the model does not learn to stop"
    return f"the end token of {quantity(sums['ends'] - sums['ends_trained'], 'answer')} has no label. {where}"


def _padding_text(sums: Mapping[str, int]) -> str:
    part = share(sums["padding_trained"], sums["padding_trained"] + sums["trained"])
    return f"{quantity(sums['padding_trained'], 'padding token')} have labels: {part} of what these rows train"


def _masked_text(sums: Mapping[str, int]) -> str:
    """Return how much of the assistant's text is masked, as a sentence: tokens, whole turns, and parts of turns."""
    whole, part = sums["turns_masked"], sums["turns_late"]
    turns = [f"{quantity(whole, 'whole turn')}" if whole else "", f"a part of {quantity(part, 'turn')}" if part else ""]
    tokens = f"{sums['answer_masked']} of {quantity(sums['answer'], 'token')} of the assistant have no label"
    return f"{tokens}, in {' and '.join(filter(None, turns))}"


def _template_text(sums: Mapping[str, int]) -> str:
    """Return a sentence on how many tokens of the chat template are trained: those that start an answer, and others."""
    opening, others = sums["opener_trained"], sums["template_trained"]
    counts = [f"{quantity(opening, 'token')} that start an answer" if opening else ""]
    counts += [f"{quantity(others, 'other token')} of the chat template" if others else ""]
    return f"{' and '.join(filter(None, counts))} have labels, although the chat template always provides them"


REASONS: dict[Problem, Callable[[Mapping[str, int]], str]] = {
    Problem.USER_TRAINED: _user_text,
    Problem.ANSWER_MASKED: _masked_text,
    Problem.PADDING_TRAINED: _padding_text,
    Problem.TEMPLATE_TRAINED: _template_text,
}
_SENTENCES = {
    Problem.ALL_TRAINED: "{user} of the {length} tokens in these rows are the user's text, and no label is -100",
    Problem.SHIFT: "labels were compared with tokens at their own position and at one and two positions before and"
    " after; only this shift agrees",
    Problem.LABEL_MISMATCH: "{mismatched} labels differ from the token at their own position, and no shift by one or"
    " two positions makes them agree",
    Problem.LABEL_VALUES: "{ignored_values} labels are negative, but not -100: PyTorch's cross entropy ignores only"
    " -100, and fails on other negative labels",
    Problem.NOTHING_TRAINED: "every label is -100 in {part} of the rows: they cost time, and a batch of them makes the"
    " loss NaN",
    Problem.PADDING_ATTENDED: "attention_mask is 1 for {padding_attended} padding tokens",
    Problem.PACKING_POSITIONS: "{undeclared} documents begin in the middle of a row without a new position 0, so"
    " attention reads the document before them",
    Problem.NO_END_TOKEN: "an answer ends where its row ends, so the model does not learn to stop",
    Problem.NO_DOCUMENT_END: "text runs from one document into the next, so the model does not learn where a text ends",
    Problem.DOUBLE_BOS: "the chat template writes one such token, and the tokenizer adds another; the model never sees"
    " two when it is used",
    Problem.NO_ANSWER: "the last message is not the assistant's, so no answer to it can be learnt",
    Problem.EMPTY_ANSWER: "the model learns to end an answer without any text",
}


def _damaged_finding(rows: Rows, damaged: Iterable[str], count: int) -> Finding:
    """Return the finding that `count` rows cannot be read; `damaged` has the reasons for the first of them."""
    facts = list(damaged)
    return Finding(
        id="tokens.damaged_rows",
        severity=Severity.WARNING,
        title=f"{count} of {quantity(count + len(rows['row']), 'row')} cannot be read",
        why=f"the first of them is {facts[0]}",
        next=_DAMAGED_NEXT,
        evidence=[Evidence(text=fact) for fact in facts],
        confidence=1.0,
    )


def _last_only_finding(rows: Rows) -> Finding:
    """Return the finding that conversations train only their last turn, which may be intended."""
    conversations = quantity(int(np.count_nonzero(rows["turns"] > 1)), "conversation")
    return Finding(
        id="tokens.last_turn_only",
        severity=Severity.INFO,
        title=f"only the last answer is trained in {conversations} of several turns",
        why="all earlier answers of these conversations have no labels",
        next="Nothing, if that is intended. Otherwise give labels to all answers: a step costs the same.",
        confidence=0.8,
    )
