"""Turn rows for fine-tuning into tokens, and mark the tokens that the model is to learn.

A row is a conversation, a prompt with its completion, or token ids with labels.
"""

import importlib
import json
from os.path import commonprefix
from typing import Any, NamedTuple

from trainer.data.tokenizer import ByteTokenizer, FileTokenizer, special_text
from trainer.errors import DataError
from trainer.local_data import Fields, Record

IGNORE = -100
FORMS = (("messages",), ("prompt", "completion"), ("input_ids", "labels"))
_KNOWN = 'each row needs "messages", "prompt" and "completion", or "input_ids" and "labels", like the first'
_NO_TEMPLATE = "give --model.hf_assets_path a folder whose tokenizer_config.json has a chat_template"
Tokenizers = ByteTokenizer | FileTokenizer
Messages = list[dict[str, Any]]


class TrainedRow(NamedTuple):
    tokens: list[int]
    trained: list[bool]


def is_row(fields: Fields) -> bool:
    return any(all(name in fields for name in form) for form in FORMS)


def read_row(record: Record, tokenizer: Tokenizers, template: "ChatTemplate") -> TrainedRow:
    """Return the tokens of a record, and which of them the model is to learn.

    Raises:
        DataError: The record is not a row for fine-tuning, or needs a chat template that is missing.
    """
    row = record.fields
    try:
        if "input_ids" in row:
            return _labelled_row(row["input_ids"], row["labels"])
        if "messages" in row:
            return conversation(row["messages"], tokenizer, template)
        return completion(row["prompt"], row["completion"], tokenizer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{record.where}: {type(error).__name__}: {error}", _KNOWN) from error


def _labelled_row(ids: list[int], labels: list[int]) -> TrainedRow:
    """Return a row from token ids and labels; a label is the token at the same position (not shifted), or IGNORE.

    Raises:
        ValueError: The numbers of ids and labels differ, or a label is another token.
    """
    if len(ids) != len(labels):
        raise ValueError(f"{len(ids)} token ids, but {len(labels)} labels")
    if any(label not in (IGNORE, token) for token, label in zip(ids, labels, strict=True)):
        raise ValueError(f"a label is neither {IGNORE} nor its token: are labels shifted already?")
    return TrainedRow(list(map(int, ids)), [label != IGNORE for label in labels])


def completion(prompt: str, answer: str, tokenizer: Tokenizers) -> TrainedRow:
    text = prompt + answer
    tokens, spans = tokenizer.pieces(text)
    # A token across the border is trained, as it holds the first characters of the answer.
    trained = [end > len(prompt) for _, end in spans]
    return TrainedRow([*tokens, tokenizer.eos], [*trained, True])


def conversation(messages: Messages, tokenizer: Tokenizers, template: "ChatTemplate") -> TrainedRow:
    text, spans = template.render(messages)
    tokens, pieces = tokenizer.pieces(text)
    trained = [any(start < end and begin < stop for begin, end in spans) for start, stop in pieces]
    return TrainedRow(tokens, trained)


class ChatTemplate:
    """The chat template of a tokenizer, a jinja2 program that writes a conversation as text.

    Without a template, conversations cannot be read; the other kinds of rows can.
    """

    def __init__(self, tokenizer: Tokenizers) -> None:
        config = tokenizer.config if isinstance(tokenizer, FileTokenizer) else {}
        self.source = config.get("chat_template")
        self.names = {key: special_text(config, key) for key in ("bos_token", "eos_token")}
        self.template: Any = None

    def render(self, messages: Messages) -> tuple[str, list[tuple[int, int]]]:
        """Return (a conversation as text, spans (begin, end) in characters of what the assistant writes).

        A span begins after the template's prompt for the answer, and includes the mark that ends the answer. Messages
        with weight 0 have no span.

        Raises:
            DataError: There is no template, or it refuses the conversation.
        """
        text, spans = self.text(messages), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or not message.get("weight", 1):
                continue
            before, after = self.text(messages[:i], prompt=True), self.text(messages[: i + 1]).rstrip()
            # Some templates drop the thoughts of an answer once a further question follows it.
            if not text.startswith(after):
                raise DataError(
                    "the chat template writes a conversation otherwise once it goes on",
                    "write each answer as a row of its own, with the messages before it",
                )
            # The prompt may end with marks that a finished answer lacks, such as an opened thought.
            spans.append((len(commonprefix([before, after])), len(after)))  # noqa: RUF071
        return text, spans

    def text(self, messages: Messages, *, prompt: bool = False) -> str:
        """Return messages as text; with `prompt`, the text ends with the beginning of an answer by the assistant."""
        if not messages:
            return ""
        # Compiled with the first conversation: other rows need neither a template nor jinja2.
        self.template = self.template or compiled(self.source)
        try:
            rendered = self.template.render(messages=messages, add_generation_prompt=prompt, **self.names)
        except Exception as error:  # a template may raise anything
            raise DataError(f"the chat template refuses a conversation: {error}", _NO_TEMPLATE) from error
        return str(rendered)


def compiled(source: object) -> Any:
    """Return the chat template `source`, compiled in the sandbox of jinja2.

    Raises:
        DataError: There is no template, or the template has an error.
    """
    if not isinstance(source, str):
        raise DataError("conversations need a chat template, and there is none", _NO_TEMPLATE)
    jinja = importlib.import_module("jinja2")
    sandbox = importlib.import_module("jinja2.sandbox")
    # transformers renders templates with these options, and those of models rely on them.
    extensions = [_generation_blocks(), "jinja2.ext.loopcontrols"]
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    # A fixed date, so that a run that is resumed on another day reads the same tokens.
    environment.globals.update(raise_exception=refuse, strftime_now=lambda _: "2026-01-01")
    try:
        return environment.from_string(source)
    except jinja.TemplateError as error:
        raise DataError(f"the chat template has an error: {error}", _NO_TEMPLATE) from error


def _generation_blocks() -> Any:
    """Return the jinja2 extension for `{% generation %}` blocks, with which a template may mark an answer.

    The extension only writes the content of a block. Which tokens are learned is found in the same way for all
    templates, by comparing texts.
    """
    extension = importlib.import_module("jinja2.ext")

    def parse(_: Any, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    return type("GenerationBlocks", (extension.Extension,), {"tags": {"generation"}, "parse": parse})


def refuse(message: str) -> None:
    """Raise ValueError; templates call this as `raise_exception` for a conversation that they do not support."""
    raise ValueError(message)
