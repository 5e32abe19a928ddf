"""Define the types of table columns that all analyzers share: NumPy arrays, usually one-dimensional.

They are often memory-mapped from files of the cache.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
"""A column of any type; a reader chooses the width that its numbers need."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
"""A column of texts, with eight bytes of text in each number, so that the trace reader can compare texts fast."""


class UnsavedColumns(dict[str, Column]):
    """The columns of an artefact by name, in memory and not in the cache; they are used in place of `store.Columns`.

    `meta` holds everything else that a reader returns: texts, and facts about the file.
    """

    def __init__(self, columns: dict[str, Column], meta: dict[str, Any]) -> None:
        super().__init__(columns)
        self.meta = meta


NARROW = (np.int8, np.int16, np.int32)


def narrowed(column: Column) -> Column:
    low, high = column.min(initial=0), column.max(initial=0)
    fitting = (size for size in NARROW if np.iinfo(size).min <= low and high <= np.iinfo(size).max)
    return column.astype(next(fitting, column.dtype))
