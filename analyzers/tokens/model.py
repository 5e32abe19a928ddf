"""Define the structs of the JSON document `workbench.tokens/1`, and the names of the columns about rows."""

from enum import IntEnum, StrEnum

import msgspec

IGNORE = -100
"""The label that PyTorch's cross entropy ignores."""
# Far outside of the shifts that are tried, so that it can stand in the same column of numbers.
UNKNOWN_SHIFT = -128


class Role(IntEnum):
    """The part of a conversation that a token belongs to, such as the user's text or the end of an answer.

    `TEMPLATE`: marks of the chat format that are not part of an answer. `OPENER`: marks that open an answer. `END`:
    the token that ends an answer. `EITHER`: tokens that a trainer may train or not, such as line ends between turns.
    `TEXT`: text outside of conversations.
    """

    PADDING = 0
    TEMPLATE = 1
    OPENER = 2
    ANSWER = 3
    END = 4
    USER = 5
    SYSTEM = 6
    TOOL = 7
    EITHER = 8
    TEXT = 9


ROLE_NAMES = {
    Role.PADDING: "padding",
    Role.TEMPLATE: "template",
    Role.OPENER: "start of the answer",
    Role.ANSWER: "assistant",
    Role.END: "end of the answer",
    Role.USER: "user",
    Role.SYSTEM: "system",
    Role.TOOL: "tool",
    Role.EITHER: "between",
    Role.TEXT: "text",
}


class Form(StrEnum):
    """The form of a data set's rows: token ids with or without labels, or text that is not yet tokenised."""

    LABELLED = "tokens and labels"
    UNLABELLED = "tokens"
    MESSAGES = "messages"
    COMPLETION = "prompt and completion"
    TEXT = "text"


class Shifter(StrEnum):
    """The part that moves the labels by one position: the model, as in Hugging Face, or the data, as in torchtitan."""

    MODEL = "model"
    DATA = "data"


FACTS = (
    *("row", "form", "width", "length", "trained", "first_trained", "shift", "ignored_values", "mismatched"),
    *("text_tokens", "answer", "answer_masked", "turns", "turns_trained", "turns_masked", "turns_late", "last_masked"),
    *("user", "user_trained", "system_trained", "tool_trained", "opener_trained", "template_trained"),
    *("ends", "ends_trained", "unfinished", "padding", "padding_trained", "padding_attended"),
    *("documents", "undeclared", "declares", "not_ended", "double_bos", "answer_start"),
    *("no_answer", "empty_answer", "messages", "begins", "ends_inside"),
)
"""The names of the numbers about each row of a data set, which `reading.facts` computes.

`begins` is 1 for a row that begins where a conversation does. `ends_inside` is 1 for a row that ends inside of a
message which the assistant does not write.
"""


class Position(msgspec.Struct, frozen=True):
    """A token of a sequence, with the label at its position.

    `sequence` is the number of the sequence or row, and `position` the position in it. `token` is the id of the token,
    and `text` its text; `label` and `label_text` are those of the label. `trained` says whether the model learns to
    predict this token. `role` is the part of a conversation that it belongs to. `document` is the number of its
    document, if several documents are packed into the sequence.
    """

    sequence: int
    position: int
    token: int
    text: str
    label: int
    label_text: str
    trained: bool = True
    role: str = ""
    document: int = 0


class Lengths(msgspec.Struct, frozen=True):
    """The distribution of a number over the rows of a data set: median, 90th percentile, and the largest value."""

    median: int
    p90: int
    largest: int


class TokenStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers about all rows of a data set that were read.

    `rows` is the number of rows, of which `damaged_rows` could not be read. `complete` is false if reading ended early
    because it took too long. `forms` counts the rows by form, such as `messages`. `tokens` is the number of tokens
    without padding, `trained` the number of those that count in the loss, and `padding` the number of padding tokens.

    `length` is the number of tokens of a row, `trained_of_row` the number of its trained tokens, and `first_trained`
    the position of the first one. `documents` and `turns` are the numbers of packed documents and of turns of
    conversations. `at_limit` is the number of rows that may be truncated: they have the length to which the trainer
    truncates, or share the largest length with other rows. `shifts` counts the rows with labels by how their labels are
    shifted against the tokens. `roles` and `trained_roles` count tokens and trained tokens by role.
    """

    rows: int
    damaged_rows: int
    complete: bool
    forms: dict[str, int]
    tokens: int
    trained: int
    padding: int
    length: Lengths
    trained_of_row: Lengths
    first_trained: Lengths
    documents: int
    turns: int
    at_limit: int
    shifts: dict[str, int]
    roles: dict[str, int]
    trained_roles: dict[str, int]


class TokensData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.tokens/1`: tokens with their labels, and statistics of the whole data set.

    `rows` has the shown tokens, one item per position. `seq_len` is the length of a sequence, or the largest length of
    a row. `tokens` and `sequences` count all tokens and sequences. `left_over` is the number of tokens at the end of a
    text that are too few for a sequence. `statistics` is None for text that is only cut into sequences.

    `template` is the name of the chat format, and `tokenizer` is the file of the tokenizer (empty: none). `shifted_by`
    says which part of the trainer moves the labels by one position: `model` or `data`.
    """

    seq_len: int
    tokens: int
    sequences: int
    left_over: int
    rows: list[Position]
    statistics: TokenStatistics | None = None
    template: str = ""
    tokenizer: str = ""
    shifted_by: str = ""
