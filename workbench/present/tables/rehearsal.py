"""Tables of an estimate of the memory that a job will need."""

from analyzers.words import share, size
from workbench.present.table import Table, table
from workbench.trainer_answers import EstimateData


def estimate_tables(data: EstimateData) -> list[Table]:
    """Return the tables of an estimate of the memory that a job will need.

    They are the peak by rank; for the rank with the highest peak, its categories and its windows (parts of the step);
    and settings that need less memory.
    """
    fullest = max(data.ranks, key=lambda r: r.peak_bytes)
    categories = sorted(fullest.categories.items(), key=lambda item: -item[1])
    return [
        table(
            "Peak by rank",
            "first rank> | ranks like it> | peak> | reached in" + (" | line" if data.device else ""),
            (
                (r.first_rank, r.count, size(r.peak_bytes), r.peak_window, *([r.peak_line] if data.device else []))
                for r in data.ranks
            ),
        ),
        table(
            "Memory by category at the peak",
            "category | bytes> | share>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in categories if count),
        ),
        table(
            "Peak of each part of a step"
            if data.device
            else "Peak of each window of the step (+0 is the first layer, -1 the last)",
            "window | bytes> | share of the peak>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in fullest.windows.items()),
            20,
        ),
        table(
            "Settings that need less memory",
            "setting | peak>",
            ((o.setting, size(o.peak_bytes)) for o in data.options),
        ),
    ]
