"""Find distinct values, number them and compute sums by value, without sorting if the range of values is small.

`np.unique` sorts, which would take most of the time of reading a trace: a column of a million names has a few hundred
different values, and they are small. So a table with an entry for each possible value is used instead.
"""

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.reading.event_table import downcast

SPARE_ENTRIES = 1 << 16
"""A table with an entry per possible value may have this many entries, plus four per element of the column.

If the values spread further, they are sorted instead.
"""


def distinct_values(column: Column) -> Column:
    """Return the distinct values of a column, in ascending order."""
    return factorize(column)[0]


def factorize(column: Column) -> tuple[Column, Column]:
    """Return the distinct values in ascending order, and for each element the index of its value among them.

    [7, 20, 7] gives [7, 20] and [0, 1, 0]; as `np.unique(column, return_inverse=True)`.
    """
    if not len(column):
        return column, column
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column) + SPARE_ENTRIES:
        values, code = np.unique(column, return_inverse=True)
        return values, code
    entry = np.subtract(column, low, dtype=np.int64)
    occurs = np.zeros(high - low + 1, bool)
    occurs[entry] = True
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[entry]


def combined_codes(*columns: Column) -> Column:
    """Return a number from 0 for each row of the columns; rows that are equal in all columns have the same number."""
    combined = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = factorize(column)
        combined *= len(values)
        combined += code
        del code  # one column of a million rows less, where memory is at its highest
    return downcast(factorize(combined)[1])


def rows_by_value(column: Column) -> list[tuple[int, Integers]]:
    """Return, for each distinct value in ascending order, the value and the numbers of the rows that have it."""
    values, code = factorize(column)
    order = np.argsort(downcast(code), kind="stable")  # a radix sort where the numbers fit into 16 bits
    bounds = np.cumsum(np.bincount(code, minlength=len(values)))[:-1]
    return list(zip(values.tolist(), np.split(order, bounds), strict=False))


def first_rows(code: Column) -> Integers:
    """Return, for each code, the index of the first row that has it; codes count from 0."""
    first = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    # Of several values written to one element numpy keeps the last, so the rows go backwards.
    first[code[::-1]] = np.arange(len(code))[::-1]
    return first


def sums_by_code(code: Column, values: Column, size: int) -> Integers:
    """Return, for each code below `size`, the exact sum of the values that have it (`np.bincount` would sum floats)."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, code, values)
    return sums
