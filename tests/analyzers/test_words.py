"""The shared formatter of numbers: each number has the same text everywhere."""

import pytest

from analyzers.words import (
    agree,
    bandwidth,
    duration,
    duration_change_ns,
    duration_ns,
    figures,
    flops,
    number,
    percent,
    percent_change,
    quantity,
    rank_names,
    rank_pattern,
    rank_ranges,
    ranks_beside,
    share,
    size,
    size_change,
    source_line,
    tick_durations,
    times,
    waiting_time,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * GIB, "3.0 GiB"),
        (GIB - 1, "1.0 GiB"), (1000 * GIB, "1000.0 GiB"), (-2048, "-2.0 KiB"), (5000 * 1024 * GIB, "5000.0 TiB"),
    ],
)  # fmt: skip
def test_sizes(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"), (0, "0 s"), (754.2, "12.6 min"), (119.9, "120 s"), (95, "95.0 s"), (1.846, "1.85 s"),
        (0.338, "338 ms"), (0.0123, "12.3 ms"), (0.00099996, "1.00 ms"), (2.5e-6, "2.50 µs"), (8.7e-7, "870 ns"),
        (12240, "3.4 h"), (-0.5, "-500 ms"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text
    if seconds is not None:
        assert duration_ns(seconds * 1e9) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0, "0 %"), (1, "100 %"), (0.99, "99 %"), (0.994, "99.4 %"), (0.99999, "99.9 %"), (0.4215, "42 %"),
        (0.032, "3.2 %"), (0.03, "3 %"), (0.0996, "10 %"), (1e-5, "< 0.1 %"), (-0.05, "-5 %"), (1.4, "140 %"),
        (None, "unknown"),
    ],
)  # fmt: skip
def test_shares(part, text):
    assert percent(part) == text


def test_a_large_change_is_a_multiple():
    """From ten times on, a percentage has more digits than anybody reads."""
    assert percent_change(489, 250_287) == "512 times as much"
    assert percent_change(1, 10) == "10 times as much"
    assert percent_change(1, 9.9) == "+890 %"
    assert percent_change(1, 2_268_340) == "2,268,340 times as much"
    assert percent_change(1, float("inf")) == "infinitely many times as much"


def test_long_counts_have_commas():
    assert (number(9999), number(12_345), number(-1_003_920)) == ("9999", "12,345", "-1,003,920")
    assert (quantity(273_942, "event"), quantity(10_000, "entry")) == ("273,942 events", "10,000 entries")
    assert times(20_000) == "20,000 times"


def test_no_difference_has_no_sign():
    assert (size_change(0), duration_change_ns(0)) == ("0 B", "0 s")
    assert (size_change(1), duration_change_ns(-2500)) == ("+1 B", "-2.50 µs")


def test_changes_carry_their_sign():
    assert percent_change(338, 811) == "+140 %"
    assert percent_change(100, 95) == "-5 %"
    assert percent_change(0, 95) == "unknown"
    assert percent_change(100_000, 100_001) == "0 %"
    assert (size_change(2 * GIB), size_change(-1536)) == ("+2.0 GiB", "-1.5 KiB")
    assert share(1, 0) == "0 %"


def test_other_numbers():
    assert [figures(x) for x in (0, 0.00123, 1.846, 95, 1234.4)] == ["0.00", "0.00123", "1.85", "95.0", "1234"]
    assert (flops(9.89e14), flops(2.5e12, "/s"), flops(12), flops(None)) == (
        "989 TFLOP", "2.50 TFLOP/s", "12 FLOP", "unknown",
    )  # fmt: skip
    assert (bandwidth(12.34e9), bandwidth(164_000), bandwidth(12), bandwidth(None)) == (
        "12.3 GB/s", "164 kB/s", "12 B/s", "unknown",
    )  # fmt: skip
    assert tick_durations([571e6, 571.5e6], 5e5, 2e6) == ["571.0 ms", "571.5 ms"]
    assert tick_durations([13.4e9, 13.5e9], 1e8, 7e8) == ["13.4 s", "13.5 s"]
    assert tick_durations([13.4505e9, 13.451e9], 5e5, 2e6) == ["13450.5 ms", "13451.0 ms"]
    assert (waiting_time(26.4), waiting_time(754), waiting_time(12240)) == ("26 s", "13 min", "3.4 h")


def test_ranks_and_lines():
    assert rank_ranges({0, 1, 2, 5, 7, 8}) == "0-2, 5, 7-8"
    assert (rank_names([3]), rank_names([1, 0])) == ("rank 3", "ranks 0-1")


def test_ranks_are_added_to_a_text_that_does_not_name_them():
    assert ranks_beside("A step is slow", [3]) == " (rank 3)"
    assert ranks_beside("Rank 30 waits, ranks 3-5 do not, nor ranks 3, 8", [3]) == " (rank 3)"
    assert ranks_beside("Ranks 0-12 and 14 wait", [0, 1]) == " (ranks 0-1)"
    assert ranks_beside("Rank 3 is late: it waits", [3]) == ranks_beside("The time of ranks 0-1", [0, 1]) == ""
    assert ranks_beside("Nothing", []) == ""
    assert (agree([3], "waits", "wait"), agree([3, 4], "waits", "wait")) == ("waits", "wait")
    assert (quantity(1, "piece"), quantity(3, "piece")) == ("1 piece", "3 pieces")
    assert (source_line("/job/data/text.py", 41), source_line("libc.so", 0)) == ("data/text.py:41", "libc.so")
    assert source_line("C:\\job\\data\\text.py", 41) == "data/text.py:41"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (range(0, 1024, 8), "0-1016, every 8th"),
        (range(1, 160, 32), "1-129, every 32nd"),
        (range(8), "0-7"),
        ([0, 512], "0, 512"),
        ([0, 8, 16, 24, 33], "0, 8, 16, 24, 33"),
    ],
)
def test_ranks_that_are_equally_far_apart_are_a_pattern(ranks, text):
    assert rank_pattern(list(ranks)) == text
