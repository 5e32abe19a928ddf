"""Turn rows of a data set, whatever their form, into the tokens and labels that a trainer would make of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.errors import InputError
from analyzers.tokens.model import IGNORE, Form, Shifter
from analyzers.tokens.vocabulary import CLOSE, OPEN, ChatTemplate, Vocabulary, latin

_IDS = {
    "input_ids": Shifter.MODEL,
    **dict.fromkeys(("tokens", "token_ids", "input", "inputs"), Shifter.DATA),
}
"""{name of a column of token ids: what shifts the labels in trainers that use this name}."""
_LABELS = ("labels", "label_ids", "targets", "target")
_TRAINED = ("completion_mask", "assistant_masks", "assistant_mask", "assistant_tokens_mask", "loss_mask", "train_mask")
_POSITIONS = ("position_ids", "input_pos", "positions")
SEGMENTS = ("seq_idx", "segment_ids", "document_ids", "doc_ids", "sequence_ids")
MESSAGES = ("messages", "conversations", "conversation", "chat")
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("question", "answer"),
    ("input", "output"),
)
_NAMES_OF_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
_KNOWN = "its rows need input_ids with labels, messages, prompt and completion, or text"
Raw = dict[str, Any]
Span = tuple[str, bool]
"""The text of a message, in which a character stands for a byte, and whether it is trained."""


@dataclass
class Sample:
    """One row of a data set as tokens; `labels` are the labels in its file, None if the file has none.

    `spans` are the messages of a rendered conversation, which decide what is trained. `marked` says for each byte of
    the text whether the chat template marks it as the assistant's. `attention`, `positions` and `segments` are columns
    of the file with one value per token. `blocks`: the file has borders of documents in a form that is not supported.
    `facts` are numbers about the messages.
    """

    form: Form
    ids: Column
    labels: Column | None = None
    attention: Column | None = None
    positions: Column | None = None
    segments: Column | None = None
    blocks: bool = False
    spans: list[Span] = field(default_factory=list)
    marked: Mask | None = None
    prompt: str = ""
    completion: str = ""
    shifter: Shifter = Shifter.MODEL
    facts: dict[str, int] = field(default_factory=dict)


class Sampler:
    """Converts rows of a data set to tokens and labels; rows of text need a tokenizer."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.vocabulary = vocabulary
        self.template: ChatTemplate | None = None

    def sample(self, row: Raw) -> Sample:
        """Return one row as tokens.

        Raises:
            ValueError: The row has none of the known columns, or columns of different lengths.
            InputError: A package, the tokenizer or its chat template is missing or damaged.
        """
        if name := next((name for name in _IDS if _is_list_of_numbers(row.get(name))), None):
            return tokenised(row, name)
        if name := next((name for name in MESSAGES if isinstance(row.get(name), list)), None):
            return self.conversation(_normal_messages(row[name]), row.get("tools"))
        if pair := next((pair for pair in PAIRS if all(name in row for name in pair)), None):
            return self.pair(
                row[pair[0]], row[pair[1]], str(row.get("input") or "") if pair[0] == "instruction" else ""
            )
        if isinstance(row.get("text"), str):
            return self.text(row["text"])
        raise ValueError(f"no known columns among {', '.join(map(str, list(row)[:6])) or 'none'}: {_KNOWN}")

    def conversation(self, messages: list[Raw], tools: Any, completion: int | None = None) -> Sample:
        """Return a conversation as tokens; with `completion`, only the messages from this index on may be trained.

        `tools` are the descriptions of tools for the chat template (None: no tools). Without a tokenizer the result has
        no tokens, only facts.
        """
        answers = [m for m in messages if m["role"] == "assistant"]
        # An answer without text is complete if it calls a tool.
        empty = sum(not (m["content"].strip() or m.get("tool_calls")) for m in answers)
        last = messages[-1]["role"] if messages else ""
        facts = {"messages": len(messages), "no_answer": int(last != "assistant"), "empty_answer": empty}
        if self.vocabulary is None:
            return Sample(Form.MESSAGES, np.empty(0, np.int64), facts=facts)
        self.template = self.template or ChatTemplate(self.vocabulary)
        rendered = self.template.render(messages, tools)
        text = rendered.replace(OPEN, "").replace(CLOSE, "")
        first = completion or 0
        spans = [(latin(m["content"].strip()), i >= first and _is_trained(m)) for i, m in enumerate(messages)]
        marked = _marked_characters(rendered) if self.template.has_generation else None
        return Sample(
            Form.MESSAGES, self.vocabulary.encode(text, specials=False), spans=spans, marked=marked, facts=facts
        )

    def pair(self, prompt: Any, completion: Any, more: str) -> Sample:
        """Return a prompt with its completion and an end-of-text token, as tokens.

        `more` is a further text for the prompt (such as the input of an instruction), which is added after an empty
        line. If prompt and completion are lists of messages, the result is that of `conversation`.
        """
        if isinstance(prompt, list) and isinstance(completion, list):
            return self.conversation(_normal_messages([*prompt, *completion]), None, len(prompt))
        if not (isinstance(prompt, str) and isinstance(completion, str)):
            # No TypeError: the reader counts rows that raise ValueError as damaged, and goes on.
            raise ValueError("prompt and completion are neither texts nor messages")  # noqa: TRY004
        prompt = "\n\n".join(filter(None, (prompt, more)))
        facts = {"messages": 2, "empty_answer": int(not completion.strip())}
        if self.vocabulary is None:
            return Sample(Form.COMPLETION, np.empty(0, np.int64), facts=facts)
        ids = self.vocabulary.encode(prompt + completion, specials=True)
        eos = self.vocabulary.eos
        # Some tokenizers add the end token by themselves, and a second one would be trained, too.
        ids = ids if eos is None or ids[-1:].tolist() == [eos] else np.append(ids, eos)
        return Sample(Form.COMPLETION, ids, prompt=latin(prompt), completion=latin(completion), facts=facts)

    def text(self, text: str) -> Sample:
        """Return a text as tokens, all of which are trained."""
        facts = {"messages": 1, "empty_answer": int(not text.strip())}
        if self.vocabulary is None:
            return Sample(Form.TEXT, np.empty(0, np.int64), facts=facts)
        return Sample(Form.TEXT, self.vocabulary.encode(text, specials=True), facts=facts)


def _is_list_of_numbers(value: Any) -> bool:
    # Columns of .pt files are arrays, those of JSON are lists.
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    # The first few tell; `integers` checks all of them when the row is read.
    return isinstance(value, list) and all(isinstance(item, int) for item in value[:8])


def tokenised(row: Raw, name: str) -> Sample:
    """Return a row that has token ids in its column `name`.

    Raises:
        ValueError: Its columns have different lengths, or are not integers.
    """
    ids = integers(row, name)
    labels = _first_column(row, _LABELS)
    trained = _first_column(row, _TRAINED)
    # A mask says what is trained, and the labels that it stands for are the tokens themselves.
    if labels is None and trained is not None:
        labels = np.where(trained > 0, ids, IGNORE) if len(trained) == len(ids) else trained
    attention = row.get("attention_mask")
    blocks = isinstance(attention, np.ndarray) and attention.ndim > 1
    sample = Sample(
        Form.UNLABELLED if labels is None else Form.LABELLED,
        ids,
        labels,
        None if blocks or attention is None else integers(row, "attention_mask"),
        _first_column(row, _POSITIONS),
        _first_column(row, SEGMENTS),
        blocks or any(key in row for key in ("cu_seqlens", "cu_seq_lens_q", "seq_lens")),
        prompt=latin(row["prompt"]) if isinstance(row.get("prompt"), str) else "",
        completion=latin(row["completion"]) if isinstance(row.get("completion"), str) else "",
        shifter=_IDS[name],
    )
    for column, what in zip(
        _aligned_columns(sample), ("labels", "attention_mask", "positions", "segments"), strict=True
    ):
        if column is not None and len(column) != len(ids):
            raise ValueError(f"{len(ids)} token ids, but {len(column)} {what}")
    return sample


def _aligned_columns(sample: Sample) -> Iterator[Column | None]:
    yield from (sample.labels, sample.attention, sample.positions, sample.segments)


def _first_column(row: Raw, names: tuple[str, ...]) -> Column | None:
    return next((integers(row, name) for name in names if row.get(name) is not None), None)


def integers(row: Raw, name: str) -> Column:
    """Return a column as 64-bit integers.

    Raises:
        ValueError: It is not a sequence of integers.
    """
    try:
        values = np.asarray(row[name])
        if values.size and values.dtype.kind not in "iub":
            raise ValueError(f"{name} has values that are no integers")
        column = values.astype(np.int64)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{name} has values that are no integers") from error
    if column.ndim != 1:
        raise ValueError(f"{name} has {column.ndim} dimensions in one row")
    return column


def _normal_messages(messages: list[Any]) -> list[Raw]:
    """Return messages with the keys `role` and `content`, whatever the file calls them.

    Raises:
        ValueError: A message is not an object.
    """
    result = []
    for message in messages:
        if not isinstance(message, dict):
            raise ValueError("a message is no object")  # noqa: TRY004
        role = str(message.get("role", message.get("from", "")))
        content = message.get("content", message.get("value"))
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        result.append(
            {**message, "role": _NAMES_OF_ROLES.get(role, role), "content": "" if content is None else str(content)}
        )
    return result


def _is_trained(message: Raw) -> bool:
    """Return whether a message is trained: if it is the assistant's, unless its `weight` or `train` says otherwise."""
    for key in ("weight", "train", "training"):
        if isinstance(message.get(key), (int, float)):
            return bool(message[key])
    return bool(message["role"] == "assistant")


def _marked_characters(rendered: str) -> Mask:
    """Return a mask of the bytes of a rendered text that are inside a `{% generation %}` block."""
    parts, inside = [], False
    for part in rendered.replace(CLOSE, OPEN).split(OPEN):
        parts.append(np.full(len(part.encode("utf-8", "replace")), inside))
        inside = not inside
    return np.concatenate(parts)


__all__ = ["_IDS", "InputError", "Raw", "Sample", "Sampler"]
