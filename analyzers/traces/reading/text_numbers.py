"""Number the texts of a trace in the order of their use, whatever the order in which a reader found them.

Readers find texts in different orders: the reader in Python goes from column to column, the native reader from event
to event. With this numbering both give the same columns, and a text that no row uses is left out.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from analyzers.columns import Column, Integers, narrowed

FIRST_TEXT_ID = -2
"""The number for the first text among the pids, tids and streams.

The text with index n is stored as `FIRST_TEXT_ID - n`; -1 means none.
"""
_TEXT_COLUMNS = ("name", "cat", "collective_name", "collective_group", "collective_dtype", "collective_splits")
_ID_COLUMNS = ("pid", "tid", "stream", "memory_pid", "memory_tid")
Text = TypeVar("Text", str, bytes)
Threads = list[tuple[int, int, str]]
"""The names of threads, each as (pid, tid, name)."""


def renumber_texts(columns: dict[str, Column], texts: Sequence[str], threads: Threads) -> tuple[list[str], Threads]:
    """Give the texts of the columns new numbers, in the order of their use; the columns are changed in place.

    `columns` are those of the event table; `texts[i]` is the text with the current number i. Return the texts by their
    new numbers, and the `threads` with new numbers.
    """
    ids = [columns[name] for name in _ID_COLUMNS] + [np.array([row[:2] for row in threads], np.int64).reshape(-1)]
    used = [columns[name] for name in _TEXT_COLUMNS] + [
        FIRST_TEXT_ID - column[column <= FIRST_TEXT_ID] for column in ids
    ]
    kept, number = order_of_use(used, len(texts))
    columns |= {name: narrowed(number[columns[name]]) for name in _TEXT_COLUMNS}
    columns |= {name: with_new_texts(columns[name], number) for name in _ID_COLUMNS}
    renumbered = with_new_texts(ids[-1], number).reshape(-1, 2).tolist()
    names = [name for _, _, name in threads]
    return [texts[i] for i in kept], [(pid, tid, name) for (pid, tid), name in zip(renumbered, names, strict=True)]


def renumber(columns: dict[str, Column], name: str, texts: Sequence[Text]) -> list[Text]:
    kept, number = order_of_use([columns[name]], len(texts))
    columns[name] = narrowed(number[columns[name]])
    return [texts[i] for i in kept]


def order_of_use(columns: Sequence[Column], count: int) -> tuple[list[int], Integers]:
    """Return the used numbers below `count` in the order of their first use, and the position of each number in it.

    Numbers of the first column come before those of the second one, and so on. The position of an unused number is -1.
    Example: the columns [2, 0, 2] and [3, 0] and the count 5 give [2, 0, 3] and the positions [1, -1, 0, 2, -1].
    """
    never = sum(len(column) for column in columns)
    first, before = np.full(count, never), 0
    for column in columns:
        in_column = np.full(count, never)
        # Of a number that occurs several times, the assignment that comes last counts.
        in_column[column[::-1]] = np.arange(before + len(column) - 1, before - 1, -1)
        first, before = np.minimum(first, in_column), before + len(column)
    used = np.flatnonzero(first < never)
    kept = used[np.argsort(first[used])]
    place = np.full(count, -1)
    place[kept] = np.arange(len(kept))
    return kept.tolist(), place


def with_new_texts(ids: Column, number: Integers) -> Column:
    """Return a column of pids, tids or streams after the texts among them were numbered anew.

    A trace may name a thread by a text instead of a number; the column then has `FIRST_TEXT_ID - i` for text `i`. Such
    values are changed to `FIRST_TEXT_ID - number[i]`; all others stay as they are.
    """
    texts = ids <= FIRST_TEXT_ID
    if not texts.any():
        return ids
    made = ids.astype(np.int64)
    made[texts] = FIRST_TEXT_ID - number[FIRST_TEXT_ID - made[texts]]
    return narrowed(made)
