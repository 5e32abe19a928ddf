"""Find distinct values, number them and compute sums by value, without sorting if the range of values is small.

`np.unique` sorts, which would take most of the time of reading a trace. But a column of a million names, stored as
numbers, has only a few hundred different values, all of them small. So a table with an entry for each possible value is
used instead.
"""

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
    """Return, for each code, the index of the first element that has it: [1, 0, 1] gives [1, 0].

    `code` is a column of whole numbers that count from 0 without gaps.
    """
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
