"""Read columns of a table that have no number at all."""

import numpy as np
import pandas as pd
import pytest

from analyzers.steps.reading.tables import numbers_in


@pytest.mark.parametrize(("cells", "numbers"), [([None, None], [np.nan, np.nan]), (["1", None], [1, np.nan])])
def test_a_missing_cell_of_texts_is_no_number(cells, numbers):
    """Two damaged rows may leave a column of texts without any text, which once ended in an IndexError."""
    found, written_nan = numbers_in(pd.Series(cells, dtype="str"), decimal_commas=False)
    np.testing.assert_array_equal(found, numbers)
    assert not written_nan.any()
