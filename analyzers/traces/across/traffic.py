"""Compute how many bytes each rank sends to each other rank in the all-to-alls of all groups."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.traces.model import RankTrace
from analyzers.words import rank_ranges

RANKS_AT_MOST = 256


def traffic(accounts: Sequence[RankTrace], at_most: int = RANKS_AT_MOST) -> pd.DataFrame:
    """Return a table of the bytes that each rank (row) sends to each rank (column) in all-to-alls.

    `accounts` are the results of all devices and hosts (`RankTrace`). The value is NaN if two ranks share no group.
    With more than `at_most` ranks, neighbours share a row and a column ("0-3"). A value is then the largest amount that
    one rank of the row sends to one rank of the column. Calls whose group members are not recorded are left out.
    """
    known = [account for account in accounts if account.rank is not None and any(e.ranks for e in account.exchanges)]
    senders = sorted({account.rank for account in known if account.rank is not None})
    receivers = sorted({rank for account in known for exchange in account.exchanges for rank in exchange.ranks})
    joined = -(-max(len(senders), len(receivers)) // at_most) or 1
    rows, columns = (np.arange(0, len(ranks), joined) for ranks in (senders, receivers))
    sent = _bytes_between(known, senders, receivers)
    if len(sent):
        # The maximum, as in every chart: a pair that exchanges much must stay visible among quiet neighbours.
        sent = np.fmax.reduceat(np.fmax.reduceat(sent, rows, axis=0), columns, axis=1)
    return pd.DataFrame(
        sent,
        index=[rank_ranges(senders[row : row + joined]) for row in rows],
        columns=[rank_ranges(receivers[column : column + joined]) for column in columns],
    )


def _bytes_between(accounts: Sequence[RankTrace], senders: Sequence[int], receivers: Sequence[int]) -> Floats:
    """Return float64[sender, receiver] of bytes sent in all-to-alls, summed over all process groups and traces.

    The value is NaN where two ranks share no group.
    """
    row_of, column_of = ({rank: i for i, rank in enumerate(ranks)} for ranks in (senders, receivers))
    sent = np.full((len(senders), len(receivers)), np.nan)
    for account in accounts:
        row = sent[row_of[account.rank or 0]]
        for exchange in (e for e in account.exchanges if e.ranks):
            columns = [column_of[rank] for rank in exchange.ranks]
            row[columns] = np.nan_to_num(row[columns]) + exchange.sent_bytes
    return sent
