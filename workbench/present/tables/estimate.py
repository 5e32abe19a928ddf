"""Tables of an estimate of the memory that a job will need."""

from collections.abc import Mapping

from analyzers.words import share, size
from workbench.present.step_windows import window_words
from workbench.present.table import Table, table
from workbench.trainer_answers import EstimateData, RankMemory


def estimate_tables(data: EstimateData) -> list[Table]:
    """Return the tables of an estimate of the memory that a job will need.

    The first table has the peak of each rank. For the rank with the highest peak, tables follow of its categories,
    modules and windows (parts of the step). The last table has settings that need less memory.
    """
    fullest = max(data.ranks, key=lambda r: r.peak_bytes)
    categories = sorted(fullest.categories.items(), key=lambda item: -item[1])
    return [
        table(
            "Peak by rank",
            "first rank> | ranks like it> | peak> | reached in" + (" | line" if data.device else ""),
            (
                (
                    r.first_rank,
                    r.count,
                    size(r.peak_bytes),
                    window_words(r.peak_window),
                    *([r.peak_line] if data.device else []),
                )
                for r in data.ranks
            ),
        ),
        table(
            "Memory by category at the peak",
            "category | bytes> | share>",
            ((name, size(count), share(count, fullest.peak_bytes)) for name, count in categories if count),
        ),
        _modules_table(fullest),
        table(
            "Peak of each part of the step",
            "part of the step | bytes> | share of the peak>",
            (
                (window_words(name), size(count), share(count, fullest.peak_bytes))
                for name, count in fullest.windows.items()
            ),
            20,
        ),
        table(
            "Settings that need less memory",
            "setting | peak>",
            ((o.setting, size(o.peak_bytes)) for o in data.options),
        ),
    ]


def _modules_table(rank: RankMemory) -> Table:
    """Return the table of the modules that use the most memory at a rank's peak, with their largest categories."""
    return table(
        f"Memory by module at the peak of rank {rank.first_rank} (* stands for all layers)",
        "module | bytes> | share> | of it",
        (
            (name, size(sum(held.values())), share(sum(held.values()), rank.peak_bytes), parts_of(held))
            for name, held in rank.modules.items()
        ),
    )


def parts_of(held: Mapping[str, int]) -> str:
    """Return the categories of a module's memory, largest first: `parameters 3.0 GiB, gradients 1.5 GiB`."""
    largest = sorted(held.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {size(count)}" for name, count in largest)
