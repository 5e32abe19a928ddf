"""Batches of sequences of equal length, read from the data as they are needed.

There is one position in the data for all ranks together, so that a run can resume on any mesh.
"""

import logging
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.data.rows import IGNORE, ChatTemplate, Tokenizers, TrainedRow, read_row
from trainer.data.tokenizer import ByteTokenizer
from trainer.errors import DataError
from trainer.local_data import Data, InMemory, Position, Record

logger = logging.getLogger("root")


@dataclass(frozen=True)
class Share:
    """The part of the data that a data-parallel rank reads: `batch` sequences of each global batch.

    `rank` is the index of the rank, and `ranks` the number of data-parallel ranks.
    """

    batch: int
    rank: int = 0
    ranks: int = 1
    positions: Sequence[int] | None = None
    """The token positions that the rank reads of each sequence (context parallelism); None: all."""


class Packed(NamedTuple):
    """A sequence of T tokens and the token after it, as a tensor (T + 1,).

    `following` is the position at which the next sequence begins: its file, record and token.
    """

    tokens: Tensor
    following: Position
    trained: Tensor | None = None
    """Whether the model learns to predict each token, as a tensor (T + 1,); None: it learns to predict all of them."""
    documents: Tensor | None = None
    """The number of the row that each token belongs to, within the sequence, as a tensor (T + 1,); -1 for padding.

    None: rows are not told apart, and each token attends to all earlier ones.
    """


class Totals(NamedTuple):
    """The number of tokens in the whole data, and the number of sequences that they make."""

    tokens: int
    sequences: int


class Piece(NamedTuple):
    """Consecutive tokens of one document: the position of the first token, and the number of tokens."""

    position: Position
    length: int


class Loader:
    """Cuts the concatenated documents into sequences, and yields this rank's share of them in batches.

    Every rank reads all data, and holds in memory only what the next step needs. After the last sequence the loader
    begins again with the first. Example with batch 1 and 2 ranks: rank 0 gets sequences 0, 2, 4, ..., rank 1 gets 1, 3,
    5, ...
    """

    documents: Tensor | None = None
    """The number of each token's row in the latest batch, as a tensor (B, T).

    None: each token attends to all earlier ones.
    """

    def __init__(
        self, data: Data | Iterable[str], seq_len: int, share: Share, tokenizer: Tokenizers | None = None
    ) -> None:
        self.data = InMemory({"text": text} for text in data) if isinstance(data, Iterable) else data
        self.seq_len, self.share, self.tokenizer = seq_len, share, tokenizer or ByteTokenizer()
        self.tokens_read = 0
        self.restart()
        # Data that are missing, damaged from the start or too little end the run here.
        self.upcoming(1)

    def restart(self) -> None:
        self.load_state_dict({"consumed": 0, **Position()._asdict()})

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, labels) of this rank without end, each (B, T) int64; a label is the token after its input."""
        share = self.share
        while True:
            of_all = self.upcoming(share.batch * share.ranks)
            for _ in of_all:
                self.ahead.popleft()
            self.consumed += len(of_all)
            self.following = of_all[-1].following
            yield self.batch(of_all[share.rank * share.batch :][: share.batch])

    def batch(self, sequences: list[Packed]) -> tuple[Tensor, Tensor]:
        """Return (inputs, labels) of `sequences`, each (B, T); with context parallelism, only the tokens of this rank.

        A subclass also sets `documents`.
        """
        rows = torch.stack([each.tokens for each in sequences]).long()
        inputs, labels = rows[:, :-1], rows[:, 1:]
        positions = self.share.positions
        return (inputs, labels) if positions is None else (inputs[:, positions], labels[:, positions])

    def upcoming(self, count: int) -> list[Packed]:
        """Return the next `count` sequences of all ranks together, without advancing the position."""
        self.ahead.extend(islice(self.stream, max(0, count - len(self.ahead))))
        return list(islice(self.ahead, count))

    def endless(self, start: Position) -> Iterator[Packed]:
        """Yield the sequences from `start` to the end of the data, then repeat all sequences without end.

        Raises:
            DataError: The data do not fill a single sequence.
        """
        while True:
            # With the first token behind the last full sequence begins the next pass.
            is_empty, whole = True, start == Position()
            for packed in self.pack(start):
                yield packed
                is_empty = False
            if whole and is_empty:
                raise self.too_little()
            start = Position()

    def pack(self, start: Position) -> Iterator[Packed]:
        """Yield the sequences from `start` to the end of the data; tokens that do not fill a sequence are left out."""
        tokens, pieces = array("i"), deque[Piece]()
        for record in self.data.records(start):
            encoded = self.tokenizer.encode(text) if (text := _text_of(record)) else []
            # Only the record at which the data are entered is read from its middle on.
            skip = start.token if record.position[:2] == start[:2] else 0
            pieces.append(Piece(record.position._replace(token=skip), len(encoded) - skip))
            tokens.extend(encoded[skip:])
            self.tokens_read += len(encoded) - skip
            begin = 0
            # Sequences overlap by one token: the last label of one is the first input of the next.
            while len(tokens) - begin > self.seq_len:
                # A copy, because Python cannot shorten an array whose memory a tensor shares.
                window = tokens[begin : begin + self.seq_len + 1]
                begin += self.seq_len
                yield Packed(torch.frombuffer(window, dtype=torch.int32), _next_position(pieces, self.seq_len))
            del tokens[:begin]

    def too_little(self) -> DataError:
        return DataError(
            f"{self.tokens_read:,} tokens are fewer than one sequence needs",
            "give more text, or lower training.seq_len",
        )

    def totals(self) -> Totals:
        """Read all data once, and return the numbers of tokens and sequences; the position does not change.

        Raises:
            DataError: A record cannot be read.
        """
        before, self.tokens_read = self.tokens_read, 0
        sequences = sum(1 for _ in self.pack(Position()))
        total, self.tokens_read = self.tokens_read, before
        return Totals(total, sequences)

    def checksum(self) -> int:
        """Return a checksum of data and tokenizer; a resumed run compares it to notice that one of them has changed."""
        return zlib.crc32(str(self.data.checksum()).encode(), self.tokenizer.checksum)

    def labels_ahead(self, batches: int) -> int | None:
        """Return the number of labels that are not -100 in the next `batches` batches of all ranks together.

        None means that no label is -100, which is the case for all sequences of this loader.
        """
        del batches
        return None

    def state_dict(self) -> dict[str, int]:
        """Return how many sequences all ranks together have read (`consumed`), and where the next sequence begins."""
        return {"consumed": self.consumed, **self.following._asdict()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the sequences that all ranks together had read when `state` was saved."""
        self.consumed = state["consumed"]
        self.following = Position(*(state.get(name, 0) for name in Position._fields))
        self.ahead: deque[Packed] = deque()
        self.stream = self.endless(self.following)
        # Older checkpoints have only the number of sequences.
        if "file" not in state:
            for packed in islice(self.stream, self.consumed):
                self.following = packed.following


def _text_of(record: Record) -> str:
    """Return the text of a record; empty if the text is null, which is possible in a table.

    Raises:
        DataError: The record has no field with a text.
    """
    text = record.fields.get("text", 0)
    if text is None or isinstance(text, str):
        return text or ""
    names = ", ".join(record.fields) or "nothing"
    raise DataError(f"{record.where}: no text, but {names}", 'give each record a "text", or a row for fine-tuning')


def _next_position(pieces: deque[Piece], count: int) -> Position:
    """Remove the first `count` tokens from `pieces`, and return the position of the next token in the data."""
    while count >= pieces[0].length:
        count -= pieces.popleft().length
    position, length = pieces[0]
    pieces[0] = Piece(position._replace(token=position.token + count), length - count)
    return pieces[0].position


class RowLoader(Loader):
    """Packs rows for fine-tuning into sequences: as many whole rows as fit, then padding.

    Tokens that the model must not learn have the label -100. `documents` has the number of each token's row in its
    sequence, so that no row attends to another. A row that is longer than a sequence is truncated.
    """

    cut = 0
    """The number of rows that have been truncated so far."""

    def pack(self, start: Position) -> Iterator[Packed]:
        """Yield the sequences from `start` to the last row; rows without a token to learn are left out."""
        template = ChatTemplate(self.tokenizer)
        # One token more than a sequence has, because labels are the inputs shifted by one.
        current, room = list[TrainedRow](), self.seq_len + 1
        for record in self.data.records(start):
            row = self.shortened(read_row(record, self.tokenizer, template), record.where)
            # Nothing predicts the first token of a row, so that it alone trains nothing.
            if not any(row.trained[1:]):
                continue
            if sum(len(each.tokens) for each in current) + len(row.tokens) > room:
                yield self.filled(current, record.position)
                current = []
            current.append(row)
            self.tokens_read += len(row.tokens)
        if current:
            yield self.filled(current, Position())

    def shortened(self, row: TrainedRow, where: str) -> TrainedRow:
        """Return a row truncated to the length of a sequence; the first time, log a warning.

        `where` names the row in the warning.
        """
        room = self.seq_len + 1
        if len(row.tokens) > room:
            # Every rank reads all rows, so that one warning is enough.
            if not self.cut and not self.share.rank:
                logger.warning("%s is longer than %d tokens, and is cut, like all such rows", where, room)
            self.cut += 1
        return TrainedRow(row.tokens[:room], row.trained[:room])

    def filled(self, rows: list[TrainedRow], following: Position) -> Packed:
        """Return a sequence that consists of `rows`, one after the other, and padding after the last.

        `following` is the position of the next sequence. The first token of a row is not learned, because the row
        before says nothing about it.
        """
        room, start = self.seq_len + 1, 0
        tokens = torch.full((room,), self.tokenizer.eos, dtype=torch.int32)
        trained, documents = torch.zeros(room, dtype=torch.bool), torch.full((room,), -1, dtype=torch.int32)
        for number, row in enumerate(rows):
            part = slice(start, start + len(row.tokens))
            tokens[part] = torch.tensor(row.tokens, dtype=torch.int32)
            # The first token of a row does not follow from the row before.
            trained[part] = torch.tensor([False, *row.trained[1:]])
            documents[part] = number
            start = part.stop
        return Packed(tokens, following, trained, documents)

    def batch(self, sequences: list[Packed]) -> tuple[Tensor, Tensor]:
        """Return (inputs, labels) of `sequences`, each (B, T), and set `documents`.

        Tokens that the model must not learn have the label -100.
        """
        inputs, labels = super().batch(sequences)
        self.documents = torch.stack([each.documents for each in sequences if each.documents is not None])[:, :-1]
        trained = torch.stack([each.trained for each in sequences if each.trained is not None])[:, 1:]
        return inputs, torch.where(trained, labels, IGNORE)

    def too_little(self) -> DataError:
        return DataError("there are no rows with tokens to learn", "give rows in which the assistant answers")

    def labels_ahead(self, batches: int) -> int | None:
        ahead = self.upcoming(batches * self.share.batch * self.share.ranks)
        return sum(int(each.trained[1:].sum()) for each in ahead if each.trained is not None)
