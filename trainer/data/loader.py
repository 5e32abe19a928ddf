"""Batches of packed tokens. A single counter stores the position in the data, so a run can resume on any mesh."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.data.tokenizer import encode
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

    def __init__(self, documents: Iterable[str], seq_len: int, share: Share) -> None:
        # Two bytes per token: the whole text stays in memory, and 320 tokens fit.
        tokens = array("h")
        for document in documents:
            tokens.extend(encode(document))
        self.tokens = torch.frombuffer(tokens, dtype=torch.int16) if tokens else torch.empty(0, dtype=torch.int16)
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

    def state_dict(self) -> dict[str, int]:
        """Return how many sequences all ranks together have read."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the sequences that all ranks together had read when `state` was saved."""
        self.consumed = state["consumed"]
