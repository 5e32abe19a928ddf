"""Conversations, and how they become token ids and labels: rightly, and with one planted mistake."""

import random
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from benchmarks.masks.families import Family, Messages

IGNORE = -100
SUBJECTS = [
    "the scheduler",
    "a gradient",
    "this cache",
    "the optimizer",
    "an allocator",
    "the checkpoint",
    "a process group",
    "die Größe",
    "数据",
]
VERBS = ["waits for", "copies", "frees", "shards", "reads", "overlaps with", "reports"]
ENDS = [
    "each step.",
    "the last rank.",
    "some memory?",
    "all parameters!",
    "the next batch.",
    "`x = 1`.",
    "User: text in a log.",
    "### a heading.",
]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(part) for part in (SUBJECTS, VERBS, SUBJECTS, ENDS))


def conversation(rng: random.Random, turns: int, *, system: bool, tool: bool = False) -> Messages:
    messages = [{"role": "system", "content": "Answer briefly. " + sentence(rng)}] if system else []
    for _ in range(turns):
        messages.append(
            {"role": "user", "content": "Why? " + " ".join(sentence(rng) for _ in range(rng.randint(1, 3)))}
        )
        if tool:
            messages.append({"role": "assistant", "content": '{"call": "search"}'})
            messages.append({"role": "tool", "content": "result: " + sentence(rng)})
        messages.append({"role": "assistant", "content": " ".join(sentence(rng) for _ in range(rng.randint(1, 4)))})
    return messages


@dataclass
class Row:
    """The tokens of a conversation; for each token its role, its part (open, content, end) and the number of its answer."""

    ids: list[int] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    attention: list[int] = field(default_factory=list)

    def columns(self) -> tuple[list, ...]:
        return self.ids, self.roles, self.parts, self.answers, self.mask, self.positions, self.attention

    def cut(self, length: int) -> "Row":
        return Row(*(column[:length] for column in self.columns()))

    def joined(self, other: "Row") -> "Row":
        return Row(*(a + b for a, b in zip(self.columns(), other.columns(), strict=True)))


def encoded(family: Family, tokenizer: Tokenizer, messages: Messages, *, whole: bool) -> Row:
    """Encode a conversation, all of its text at once or piece by piece, and train on the answers and their ends."""
    pieces = family.pieces(messages)
    row, number = Row(), -1
    if whole:
        text = "".join(piece for piece, _, _ in pieces)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        starts, where = [], 0
        for piece, _, _ in pieces:
            starts.append(where)
            where += len(piece)
        owners = [max(i for i, start in enumerate(starts) if start <= max(a, b - 1)) for a, b in encoding.offsets]
        pairs = list(zip(encoding.ids, owners, strict=True))
    else:
        pairs = [
            (token, i)
            for i, piece in enumerate(pieces)
            for token in tokenizer.encode(piece[0], add_special_tokens=False).ids
        ]
    answer_of, last = {}, -1
    for i, (_, role, part) in enumerate(pieces):
        if role == "assistant" and part == "open":
            number += 1
        if role == "assistant" and part == "content" and (i == 0 or pieces[i - 1][2] != "open"):
            number += 1
        answer_of[i] = number
        last = i
    assert last >= 0
    for position, (token, i) in enumerate(pairs):
        _, role, part = pieces[i]
        row.ids.append(token)
        row.roles.append(role)
        row.parts.append(part)
        row.answers.append(answer_of[i] if role == "assistant" else -1)
        row.mask.append(role == "assistant" and part in ("content", "end"))
        row.positions.append(position)
        row.attention.append(1)
    return row


def with_mask(row: Row, rule) -> Row:
    """Return the row with the mask that `rule(index, role, part, answer, trained)` gives to each token."""
    facts = zip(row.roles, row.parts, row.answers, row.mask, strict=True)
    mask = [bool(rule(i, *fact)) for i, fact in enumerate(facts)]
    return Row(row.ids, row.roles, row.parts, row.answers, mask, row.positions, row.attention)


def labels_of(row: Row, *, ignore: int = IGNORE) -> list[int]:
    return [token if trained else ignore for token, trained in zip(row.ids, row.mask, strict=True)]


def padded(
    row: Row, length: int, pad: int, *, left: bool = False, trained: bool = False, attended: bool = False
) -> Row:
    more = max(0, length - len(row.ids))
    padding = Row(
        [pad] * more, ["pad"] * more, ["pad"] * more, [-1] * more, [trained] * more, [0] * more, [int(attended)] * more
    )
    return padding.joined(row) if left else row.joined(padding)


def shifted(labels: list[int], by: int) -> list[int]:
    """Return labels moved by `by` positions to the front (negative: to the back)."""
    empty = [IGNORE] * abs(by)
    return labels[by:] + empty if by >= 0 else empty + labels[:by]
