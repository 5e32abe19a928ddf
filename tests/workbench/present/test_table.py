"""A table without the columns that say nothing."""

import numpy as np

from workbench.present.table import table, without_empty

HEADS = "rank> | step> | last line | size>"


def test_columns_in_which_no_row_has_a_text_are_left_out():
    """A column stays if one row has a text, also a row that documents leave out; numbers stay numbers."""
    full = table("Logs", HEADS, [(0, "", "", ""), (1, "", " ", "3 B")], limit=1)
    shown = without_empty(full)
    assert shown.columns == ("rank", "size")
    assert shown.numeric == {0, 1}
    assert (*shown.rows, *shown.more) == (("0", ""), ("1", "3 B"))
    assert shown.left_out == 1


def test_a_table_without_rows_keeps_its_columns():
    empty = table("Logs", HEADS, [])
    assert without_empty(empty) is empty


def test_counts_have_commas_and_identities_have_none():
    shown = table("Events", "name | count> | step>", [("kernel", 273_942, 273_942), ("other", np.int64(12_345), None)])
    assert shown.rows == (("kernel", "273,942", "273942"), ("other", "12,345", "unknown"))
