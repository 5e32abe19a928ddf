"""Numbers as people read them."""

import pytest

from workbench.present.units import bar, duration, share, size


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.00 TiB")],
)
def test_size(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 ns"), (1.5e-6, "1.5 µs"), (0.0123, "12.3 ms"), (61.0, "61.00 s"), (600.0, "10.0 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_share_of_nothing_is_unknown():
    assert share(1, 0) == "-"


def test_bar_is_as_long_as_the_share():
    assert bar(1, 2, 10) == "█████"
    assert bar(0, 2, 10) == ""
    assert len(bar(1, 16, 10)) == 1
