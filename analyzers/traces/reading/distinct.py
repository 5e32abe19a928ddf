"""The distinct values of columns of whole numbers, found without sorting where they lie close together."""

import numpy as np

from analyzers.columns import Column
from analyzers.traces.reading.event_table import downcast

SPARE = 1 << 16
"""Entries of a table that any column may have, however short."""


def distinct_values(column: Column) -> Column:
    """The values that occur, ascending."""
    return factorize(column)[0]


def factorize(column: Column) -> tuple[Column, Column]:
    """The values that occur, ascending, and for each element the number of its own."""
    if not len(column):
        return column, column
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column) + SPARE:
        values, code = np.unique(column, return_inverse=True)
        return values, code
    place = np.subtract(column, low, dtype=np.int64)
    occurs = np.zeros(high - low + 1, bool)
    occurs[place] = True
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[place]


def combined_codes(*columns: Column) -> Column:
    """A number from 0 for each combination of values that occurs, in their order."""
    combined = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = factorize(column)
        combined *= len(values)
        combined += code
        del code
    return downcast(factorize(combined)[1])


def rows_by_value(column: Column) -> list[tuple[int, Column]]:
    """Each value that occurs, ascending, with the places where it does."""
    values, code = factorize(column)
    order = np.argsort(downcast(code), kind="stable")  # by radix where 16 bits hold the numbers
    bounds = np.cumsum(np.bincount(code, minlength=len(values)))[:-1]
    return list(zip(values.tolist(), np.split(order, bounds), strict=False))


def first_rows(code: Column) -> Column:
    """Where each number from 0 occurs first."""
    first = np.zeros(int(code.max(initial=-1)) + 1, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]  # what is written last stays
    return first


def sums_by_code(group: Column, values: Column, size: int) -> Column:
    """The sums of the values that go with each number below `size`; exact, as those of floats are not."""
    found = np.zeros(size, np.int64)
    np.add.at(found, group, values)
    return found
