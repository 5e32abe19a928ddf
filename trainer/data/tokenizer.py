"""Two tokenizers: one for which each byte is a token and which needs no files, and one read from `tokenizer.json`."""

import importlib
import json
import zlib
from pathlib import Path
from typing import Any, Protocol

from trainer.config.hf_format import has_file
from trainer.errors import DataError
from workbench.recorders.files import read_regular

_BOS, _EOS = 256, 257
VOCAB_SIZE = 320
"""256 byte values and two special tokens, rounded up to a number that most parallel degrees divide evenly."""
FILE = "tokenizer.json"
INSTALL = "pip install 'torch-workbench[tokens]', or remove model.hf_assets_path: bytes are tokens then"
_EOS_NAMES = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>")
_BOS_NAMES = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>")


def encode(text: str) -> list[int]:
    """Return the tokens of one document (its UTF-8 bytes) between a begin and an end token."""
    return [_BOS, *text.encode(), _EOS]


class Tokenizer(Protocol):
    """The interface of a tokenizer for the training data; `eos` is the token that ends a document."""

    eos: int
    vocab_size: int
    checksum: int
    """A checksum of the tokenizer's files."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a document: a begin token if the tokenizer has one, the text, and an end token."""

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return (tokens of a text without special tokens, (begin, end) of each token as characters of the text)."""

    def name(self, token: int) -> str:
        """Return the text of a token id."""


class ByteTokenizer:
    eos, vocab_size, checksum = _EOS, VOCAB_SIZE, 0
    special = {_BOS: "<bos>", _EOS: "<eos>", ord(" "): "␣"}  # noqa: RUF012

    def encode(self, text: str) -> list[int]:
        return encode(text)

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # A character of several bytes is several tokens, each of which spans all of it.
        spans = [(i, i + 1) for i, sign in enumerate(text) for _ in sign.encode()]
        return list(text.encode()), spans

    def name(self, token: int) -> str:
        return self.special.get(token) or (chr(token) if 32 <= token < 127 else f"<{token:#04x}>")


class FileTokenizer:
    """The tokenizer in a folder with a `tokenizer.json`, as models of Hugging Face have it.

    Raises:
        DataError: The package tokenizers is not installed or refuses the file, or the tokenizer has no end token.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.encoder = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder / FILE))
        except ImportError as error:
            raise DataError(f"{folder / FILE}: the package tokenizers is not installed", INSTALL) from error
        except Exception as error:  # the package raises bare exceptions
            raise DataError(f"{folder / FILE}: {error}", "check that the file was copied whole") from error
        self.config = tokenizer_config(folder)
        self.checksum = zlib.crc32((folder / FILE).read_bytes(), zlib.crc32(json.dumps(self.config).encode()))
        # Not the number of tokens: ids may have gaps, and the largest one needs a row of the embedding.
        self.vocab_size = 1 + max(self.encoder.get_vocab(with_added_tokens=True).values())
        self.bos = self.special("bos_token", _BOS_NAMES)
        eos = self.special("eos_token", _EOS_NAMES)
        if eos is None:
            raise DataError(f"{folder}: no token ends a document", "name an eos_token in tokenizer_config.json")
        self.eos = eos

    def special(self, key: str, names: tuple[str, ...]) -> int | None:
        """Return the id of a special token; None if the tokenizer does not have it.

        The text of the token is the value of `key` in tokenizer_config.json, or else one of the usual `names`.
        """
        text = special_text(self.config, key)
        # An entry without a value says that there is no such token; the usual names must not replace it.
        candidates = (text,) if key in self.config else names
        return next((i for name in candidates if (i := self.encoder.token_to_id(name)) is not None), None)

    def encode(self, text: str) -> list[int]:
        ids, _ = self.pieces(text)
        return [*([] if self.bos is None else [self.bos]), *ids, self.eos]

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # Chat templates write the special tokens themselves, and `encode` adds those of a document.
        encoding = self.encoder.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def name(self, token: int) -> str:
        return str(self.encoder.decode([token], skip_special_tokens=False) or f"<{token}>")


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json` in a folder; empty if there is no such file.

    If the folder has a `chat_template.jinja`, its content is added under the key "chat_template".
    """
    result: dict[str, Any] = {}
    try:
        if (folder / "tokenizer_config.json").exists():
            result = dict(json.loads(read_regular(folder / "tokenizer_config.json", by_links=True)))
        if (folder / "chat_template.jinja").exists():
            result["chat_template"] = read_regular(folder / "chat_template.jinja", by_links=True).decode()
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{folder}: {error}", "check that its files were copied whole") from error
    return result


def special_text(config: dict[str, Any], key: str) -> str:
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def load_tokenizer(path: str | None, vocabulary: int) -> ByteTokenizer | FileTokenizer:
    """Return the tokenizer in the folder `path`; if there is none, the tokenizer for which each byte is a token.

    There is none if `path` is None, or if the folder describes a model but has no tokenizer. `vocabulary` is the number
    of tokens that the model has.

    Raises:
        DataError: The tokenizer cannot be loaded, or has more tokens than the model.
    """
    if path is None or (has_file(Path(path), "config.json") and not has_file(Path(path), FILE)):
        return ByteTokenizer()
    tokenizer = FileTokenizer(Path(path))
    if tokenizer.vocab_size > vocabulary:
        raise DataError(
            f"the tokenizer of {path} has {tokenizer.vocab_size:,} tokens, the model {vocabulary:,}",
            "choose the flavor that belongs to the tokenizer, or another tokenizer",
        )
    return tokenizer
