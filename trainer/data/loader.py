"""Batches of packed tokens. Where the data stand is one number, so a run resumes on any mesh."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.data.tokenizer import encode
from trainer.errors import DataError


@dataclass(frozen=True)
class Share:
    """The part of the data that one rank reads: `rank` of `ranks` data-parallel ranks, `batch` sequences at a time."""

    batch: int
    rank: int = 0
    ranks: int = 1


class Loader:
    """Cuts the documents, laid end to end, into sequences and deals these to the ranks; begins again at the end."""

    def __init__(self, documents: Iterable[str], seq_len: int, share: Share) -> None:
        tokens = array("h")
        for document in documents:
            tokens.extend(encode(document))
        self.tokens = torch.frombuffer(tokens, dtype=torch.int16) if tokens else torch.empty(0, dtype=torch.int16)
        self.seq_len, self.share = seq_len, share
        self.sequences = (len(tokens) - 1) // seq_len
        self.consumed = 0
        if self.sequences < 1:
            raise DataError(f"{len(tokens)} tokens are less than one sequence", "give more text or a lower seq_len")

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless (inputs, labels), each (B, T) int64; labels are the inputs one token later."""
        while True:
            first = self.consumed + self.share.rank * self.share.batch
            rows = torch.stack([self.sequence(first + i) for i in range(self.share.batch)])
            self.consumed += self.share.batch * self.share.ranks
            yield rows[:, :-1], rows[:, 1:]

    def sequence(self, index: int) -> Tensor:
        """Sequence number `index` and the token after it: (T + 1) int64."""
        start = index % self.sequences * self.seq_len
        return self.tokens[start : start + self.seq_len + 1].long()

    def state_dict(self) -> dict[str, int]:
        """Sequences read by all ranks together."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state` was taken."""
        self.consumed = state["consumed"]
