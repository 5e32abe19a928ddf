"""All-to-alls of all ranks together: how much each sends to each other."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzers.columns import Column
from analyzers.traces.structs import RankTrace
from analyzers.words import rank_ranges

RANKS_AT_MOST = 256


def traffic(accounts: Sequence[RankTrace], at_most: int = RANKS_AT_MOST) -> pd.DataFrame:
    """Bytes from a rank (index) to a rank (columns) in the all-to-alls of all groups; NaN where they share none.

    Of more than `at_most` ranks neighbours share a row ("0-3"); it tells the most that one of them sends to one other.
    Calls that do not tell who is in their group are left out.
    """
    telling = [one for one in accounts if one.rank is not None and any(e.ranks for e in one.exchanges)]
    senders = sorted({one.rank for one in telling if one.rank is not None})
    peers = sorted({rank for one in telling for e in one.exchanges for rank in e.ranks})
    every = -(-max(len(senders), len(peers)) // at_most) or 1
    rows, columns = (np.arange(0, len(ranks), every) for ranks in (senders, peers))
    sent = added_up(telling, senders, peers)
    if len(sent):
        sent = np.fmax.reduceat(np.fmax.reduceat(sent, rows, axis=0), columns, axis=1)
    return pd.DataFrame(
        sent,
        index=[rank_ranges(senders[at : at + every]) for at in rows],
        columns=[rank_ranges(peers[at : at + every]) for at in columns],
    )


def added_up(telling: Sequence[RankTrace], senders: Sequence[int], peers: Sequence[int]) -> Column:
    """[sender, peer] bytes in all groups and recordings."""
    row_of, column_of = ({rank: i for i, rank in enumerate(ranks)} for ranks in (senders, peers))
    sent = np.full((len(senders), len(peers)), np.nan)
    for one in telling:
        row = sent[row_of[one.rank or 0]]
        for exchange in (e for e in one.exchanges if e.ranks):
            columns = [column_of[rank] for rank in exchange.ranks]
            row[columns] = np.nan_to_num(row[columns]) + exchange.sent_bytes
    return sent
