"""Define the types of table columns that all analyzers share; a column is a one-dimensional array, often
memory-mapped.
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
"""A column of text in the form in which the trace reader compares it: each number holds eight bytes."""


class UnsavedColumns(dict[str, Column]):
    """The columns of an artefact by name, kept in memory rather than in the cache; used in place of `store.Columns`.

    `meta` holds what a reader returns besides the columns: texts, and facts about the file.
    """

    def __init__(self, columns: dict[str, Column], meta: dict[str, Any]) -> None:
        super().__init__(columns)
        self.meta = meta
