"""Batches of packed tokens. A single counter stores the position in the data, so a run can resume on any mesh."""

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.data.rows import IGNORE, TrainedRow
from trainer.data.tokenizer import VOCAB_SIZE, ByteTokenizer, Tokenizer
from trainer.errors import DataError


@dataclass(frozen=True)
class Share:
    """The part of the data that data-parallel rank `rank` of `ranks` reads, in batches of `batch` sequences."""

    batch: int
    rank: int = 0
    ranks: int = 1
    positions: Sequence[int] | None = None
    """The positions of each sequence that the rank reads; None: all."""


class Loader:
    """Cuts the concatenated documents into sequences and gives each rank its share.

    After the last sequence of the documents it starts again with the first one. Example with batch 1 and 2 ranks: rank
    0 reads sequences 0, 2, 4, ..., rank 1 reads 1, 3, 5, ...
    """

    documents: Tensor | None = None
    """The number of each token's document in the latest batch, (B, T); None: attention crosses borders of documents."""

    def __init__(
        self, documents: Iterable[str], seq_len: int, share: Share, tokenizer: Tokenizer | None = None
    ) -> None:
        tokenizer = tokenizer or ByteTokenizer()
        # Two bytes per token where that is enough: the whole text stays in memory.
        is_small = tokenizer.vocab_size <= VOCAB_SIZE
        tokens, dtype = array("h" if is_small else "i"), torch.int16 if is_small else torch.int32
        for document in documents:
            tokens.extend(tokenizer.encode(document))
        self.tokens = torch.frombuffer(tokens, dtype=dtype) if tokens else torch.empty(0, dtype=dtype)
        self.seq_len, self.share = seq_len, share
        self.sequences = (len(tokens) - 1) // seq_len
        self.consumed = 0
        if self.sequences < 1:
            raise DataError(
                f"{len(tokens)} tokens are fewer than one sequence needs", "give more text, or lower training.seq_len"
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, labels) of this rank without end, each (B, T) int64; labels are the inputs shifted by one
        token.
        """
        while True:
            first = self.consumed + self.share.rank * self.share.batch
            rows = torch.stack([self.sequence(first + i) for i in range(self.share.batch)])
            self.consumed += self.share.batch * self.share.ranks
            inputs, labels = rows[:, :-1], rows[:, 1:]
            positions = self.share.positions
            yield (inputs, labels) if positions is None else (inputs[:, positions], labels[:, positions])

    def sequence(self, index: int) -> Tensor:
        """Return sequence number `index` of the text and the token that follows it, as one tensor (T + 1,) int64."""
        # Sequences overlap by one token: the last label of one is the first input of the next.
        start = index % self.sequences * self.seq_len
        return self.tokens[start : start + self.seq_len + 1].long()

    def checksum(self) -> int:
        """Return a checksum of the data, by which a resumed run notices other data."""
        return zlib.crc32(self.tokens.numpy().tobytes())

    def labels_ahead(self, batches: int) -> int | None:
        """Return how many labels count in the next `batches` batches of all ranks together; None: all of them."""
        del batches
        return None

    def state_dict(self) -> dict[str, int]:
        """Return how many sequences all ranks together have read."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the sequences that all ranks together had read when `state` was saved."""
        self.consumed = state["consumed"]


class RowLoader(Loader):
    """Packs rows for fine-tuning into sequences: whole rows, one behind the other, and padding where no row fits.

    Tokens that are not to be learned have the label -100. `documents` numbers the rows of each sequence, so that no row
    attends to another. A row that is longer than a sequence is cut at its end, which `cut` counts.
    """

    def __init__(self, rows: Iterable[TrainedRow], seq_len: int, share: Share, end: int) -> None:
        self.seq_len, self.share, self.consumed, self.cut = seq_len, share, 0, 0
        # One token more than a sequence has, because labels are the inputs shifted by one.
        packed = [*self.packed(rows, seq_len + 1)]
        if not packed:
            raise DataError("there are no rows with tokens to learn", "give rows in which the assistant answers")
        self.sequences = len(packed)
        self.tokens = torch.full((len(packed), seq_len + 1), end, dtype=torch.int32)
        self.trained = torch.zeros(len(packed), seq_len + 1, dtype=torch.bool)
        self.numbers = torch.full((len(packed), seq_len + 1), -1, dtype=torch.int32)
        for i, rows_of_one in enumerate(packed):
            self.fill(i, rows_of_one)

    def packed(self, rows: Iterable[TrainedRow], room: int) -> Iterator[list[TrainedRow]]:
        """Yield the rows of each sequence, in order; rows that would train nothing are left out."""
        current: list[TrainedRow] = []
        free = room
        for row in rows:
            whole = TrainedRow(row.tokens[:room], row.trained[:room])
            self.cut += len(row.tokens) > room
            # Nothing predicts the first token of a row, so that it alone trains nothing.
            if not any(whole.trained[1:]):
                continue
            if len(whole.tokens) > free:
                yield current
                current, free = [], room
            current.append(whole)
            free -= len(whole.tokens)
        if current:
            yield current

    def fill(self, index: int, rows: list[TrainedRow]) -> None:
        """Write the rows of one sequence into the tensors."""
        start = 0
        for number, row in enumerate(rows):
            part = slice(start, start + len(row.tokens))
            self.tokens[index, part] = torch.tensor(row.tokens, dtype=torch.int32)
            # The first token of a row does not follow from the row before.
            self.trained[index, part] = torch.tensor([False, *row.trained[1:]])
            self.numbers[index, part] = number
            start = part.stop

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (inputs, labels) of this rank without end, each (B, T) int64."""
        while True:
            first = self.consumed + self.share.rank * self.share.batch
            chosen = [(first + i) % self.sequences for i in range(self.share.batch)]
            tokens = self.tokens[chosen].long()
            self.consumed += self.share.batch * self.share.ranks
            self.documents = self.numbers[chosen][:, :-1]
            yield tokens[:, :-1], torch.where(self.trained[chosen][:, 1:], tokens[:, 1:], IGNORE)

    def checksum(self) -> int:
        """Return a checksum of the data and of what is trained of them."""
        return zlib.crc32(self.trained.numpy().tobytes(), super().checksum())

    def labels_ahead(self, batches: int) -> int | None:
        """Return how many labels count in the next `batches` batches of all ranks together."""
        ahead = range(self.consumed, self.consumed + batches * self.share.batch * self.share.ranks)
        counts = self.trained[:, 1:].sum(1)
        return int(sum(int(counts[number % self.sequences]) for number in ahead))
