"""Find distinct values, number them and compute sums by value, without sorting if the range of values is small.

`np.unique` sorts, which would take most of the time of reading a trace. But a column of a million names, stored as
numbers, has only a few hundred different values, all of them small. So a table with an entry for each possible value is
used instead.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from analyzers.columns import Column, Integers, narrowed

_SPARE_ENTRIES = 1 << 16
"""A table with an entry for each possible value may have this many entries, and four more per element of the column.

If the range of the values is larger, they are sorted instead.
"""


def distinct_values(column: Column) -> Column:
    return factorize(column)[0]


def factorize(column: Column) -> tuple[Column, Column]:
    """Return the distinct values in ascending order, and for each element the index of its value among them.

    [7, 20, 7] gives [7, 20] and [0, 1, 0], as `np.unique(column, return_inverse=True)` does.
    """
    if not len(column):
        return column, column
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column) + _SPARE_ENTRIES:
        return factorize_by_sorting(column, low, high)
    entry = np.subtract(column, low, dtype=np.int64)
    occurs = np.zeros(high - low + 1, bool)
    occurs[entry] = True
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[entry]


def factorize_by_sorting(column: Column, low: int, high: int) -> tuple[Column, Column]:
    """Return the same as `factorize`, for a column whose smallest and largest values `low` and `high` are far apart."""
    distance = column.astype(np.uint64) - np.uint64(low % (1 << 64))
    order = np.arange(len(column))
    # A radix sort: NumPy's stable sort is one for 16 bits, and takes a quarter of the time of a sort for 64.
    for shift in range(0, (high - low).bit_length(), 16):
        digit = (distance >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    ascending = column[order]
    is_first = np.append(True, ascending[1:] != ascending[:-1])
    code = np.empty(len(column), np.int64)
    code[order] = np.cumsum(is_first) - 1
    return ascending[is_first], code


def combined_codes(*columns: Column) -> Column:
    """Return one number for each row of several columns; rows that are equal in all columns get the same number.

    The numbers are the ranks of the distinct rows in sorted order, from 0 without gaps. Example: the columns [5, 5, 3]
    and [9, 8, 9] have the rows (5, 9), (5, 8), (3, 9) and give [2, 1, 0].
    """
    combined = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = factorize(column)
        combined *= len(values)
        combined += code
        del code  # one column of a million rows less, where memory is at its highest
    return narrowed(factorize(combined)[1])


def rows_by_value(column: Column) -> list[tuple[int, Integers]]:
    """Return, for each distinct value in ascending order, the pair (value, indices of the elements that have it).

    [7, 20, 7] gives [(7, [0, 2]), (20, [1])].
    """
    values, code = factorize(column)
    order = np.argsort(narrowed(code), kind="stable")  # a radix sort where the numbers fit into 16 bits
    bounds = np.cumsum(np.bincount(code, minlength=len(values)))[:-1]
    return list(zip(values.tolist(), np.split(order, bounds), strict=False))


def first_rows(code: Column) -> Integers:
    """Return, for each code, the index of the first element that has it: [1, 0, 1] gives [1, 0]."""
    first = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    # Of several values written to one element numpy keeps the last, so the rows go backwards.
    first[code[::-1]] = np.arange(len(code))[::-1]
    return first


def sums_by_code(code: Column, values: Column, size: int) -> Integers:
    """Return, for each code from 0 to `size` - 1, the exact sum of the `values` whose element in `code` is this code.

    `np.bincount` sums as floats, which is not exact for large numbers of ns.
    """
    sums = np.zeros(size, np.int64)
    np.add.at(sums, code, values)
    return sums


# Number the texts of a trace in the order of their use, whatever the order in which a reader found them.
#
# Readers find texts in different orders: the reader in Python goes from column to column, the native reader from
# event to event. With this numbering both give the same columns, and a text that no row uses is left out.

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
