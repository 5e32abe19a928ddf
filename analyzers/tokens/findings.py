"""Write the findings on mask mistakes: what is wrong, in how many rows, and what to change."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from analyzers.columns import Mask
from analyzers.report import Evidence, Finding, Severity
from analyzers.tokens.model import FACTS, ROLE_NAMES, Position, Role, Shifter
from analyzers.tokens.problems import Problem, Rows, shift_name, trains_last_only
from analyzers.words import agree, percent, quantity, share

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
    if trains_last_only(rows):
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
    """Return whether a mistake is an error or a warning if this part of the rows, from 0 to 1, has it."""
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
    return f"{moved.get(shift) or f'each label is {shift_name(shift)}'}, in {where}"


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
    """Return how many tokens of users, system messages and tools are trained, as a sentence.

    `sums` has each fact, added up over the rows with the mistake.
    """
    counts = {name: sums[f"{name}_trained"] for name in ("user", "system", "tool")}
    tokens = " and ".join(f"{quantity(count, 'token')} of {name} messages" for name, count in counts.items() if count)
    return f"{tokens} have labels other than -100; only tokens of the assistant should have them"


def _end_text(sums: Mapping[str, int], ends: int, learned: int) -> str:
    """Return sentences on how many answers end with a token that is masked.

    `sums` has each fact, added up over the rows with the mistake; `ends` is the number of end tokens in all rows,
    `learned` the number of trained ones.
    """
    often = f"In all rows together, {learned} of {quantity(ends, 'answer')} have a label there"
    where = often if learned else "No end token of any row has a label, so the model does not learn to stop"
    return f"the end token of {quantity(sums['ends'] - sums['ends_trained'], 'answer')} has no label. {where}"


def _padding_text(sums: Mapping[str, int]) -> str:
    """Return a sentence on how much of the trained tokens is padding.

    `sums` has each fact, added up over the rows with the mistake.
    """
    part = share(sums["padding_trained"], sums["padding_trained"] + sums["trained"])
    return f"{quantity(sums['padding_trained'], 'padding token')} have labels: {part} of what these rows train"


def _masked_text(sums: Mapping[str, int]) -> str:
    """Return how much of the assistant's text is masked, as a sentence: tokens, whole turns, and parts of turns.

    `sums` has each fact, added up over the rows with the mistake.
    """
    whole, part = sums["turns_masked"], sums["turns_late"]
    turns = [f"{quantity(whole, 'whole turn')}" if whole else "", f"a part of {quantity(part, 'turn')}" if part else ""]
    tokens = f"{sums['answer_masked']} of {quantity(sums['answer'], 'token')} of the assistant have no label"
    return f"{tokens}, in {' and '.join(filter(None, turns))}"


def _template_text(sums: Mapping[str, int]) -> str:
    """Return a sentence on how many tokens of the chat template are trained: those that start an answer, and others.

    `sums` has each fact, added up over the rows with the mistake.
    """
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
