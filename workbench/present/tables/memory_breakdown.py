"""Tables of a memory report that are made only on request: the breakdown of the peak, and what-if estimates."""

from collections.abc import Sequence

from analyzers.memory.breakdown_model import Activations, Breakdown
from analyzers.memory.model import MemoryData, WhatIf
from analyzers.words import percent_change, share, size
from workbench.present.table import Table, table


def requested_tables(data: MemoryData) -> list[Table]:
    """Return the what-if tables, and the breakdown tables of the device with the highest peak."""
    # The fullest rank is the one that runs out first; the others follow in --json.
    fullest = sorted(data.breakdown, key=lambda device: -device.peak_bytes)[:1]
    return [*what_if(data.what_if), *(part for device in fullest for part in breakdown(device))]


def what_if(answers: Sequence[WhatIf]) -> list[Table]:
    """Return tables of the peaks estimated for changed settings, and of the model behind each estimate."""
    if not answers:
        return []
    fullest = max(answers, key=lambda answer: answer.new_peak_bytes)
    return [
        _new_peaks(answers, ", ".join(f"{change.name}={change.value}" for change in fullest.changes)),
        new_categories(fullest),
        table(
            "Models behind the estimates",
            "change | model",
            ((f"{c.name}={c.value}", c.model) for c in fullest.changes),
        ),
    ]


def _new_peaks(answers: Sequence[WhatIf], settings: str) -> Table:
    """Return a table of each device's current peak and its estimated peak with `settings`, highest estimate first."""
    rows = (
        (
            answer.rank,
            answer.device,
            answer.step,
            size(answer.peak_bytes),
            size(answer.new_peak_bytes),
            percent_change(answer.peak_bytes, answer.new_peak_bytes),
        )
        for answer in sorted(answers, key=lambda answer: -answer.new_peak_bytes)
    )
    return table(f"What if {settings}", "rank> | device> | step> | peak now> | estimated peak> | change>", rows)


def new_categories(answer: WhatIf) -> Table:
    """Return a table of bytes by category at the peak, current and estimated, largest first."""
    now, later = answer.categories, answer.new_categories
    names = sorted(later, key=lambda name: -max(now[name], later[name]))
    rows = ((name, size(now[name]), size(later[name])) for name in names if now[name] or later[name])
    return table("Memory by category at the estimated peak", "category | now> | estimated>", rows)


def breakdown(device: Breakdown) -> list[Table]:
    """Return the breakdown tables of one device of a snapshot."""
    suffix = f", rank {device.rank}" if device.rank is not None else ""
    return [
        table(
            f"Allocator segments{suffix}",
            "kind | segments> | reserved> | allocated> | free>",
            (
                (s.kind, s.segments, size(s.reserved_bytes), size(s.allocated_bytes), size(s.free_bytes))
                for s in device.segments
            ),
        ),
        table(
            f"Memory by category at the peak of {size(device.peak_bytes)}{suffix}",
            "category | bytes> | share> | tensors> | largest tensors",
            (
                (h.name, size(h.bytes), share(h.bytes, device.peak_bytes), h.tensors, ", ".join(h.largest))
                for h in device.categories
            ),
        ),
        table(
            "Highest use of short-lived categories",
            "category | bytes> | after entry>",
            ((h.name, size(h.bytes), h.entry) for h in device.high_water),
        ),
        table(
            "Largest tensors",
            "tensor | bytes> | category",
            ((t.name, size(t.bytes), t.category) for t in device.tensors),
            20,
        ),
        *model(device.activations),
        *overhead(device),
    ]


def model(activations: Activations) -> list[Table]:
    """Return tables of the model's shape and of each layer's activations, compared with a formula."""
    job, formula = activations.job, activations.theoretical_bytes_per_layer
    # The formula needs the number of layers, which a run of another trainer may not record.
    whole = formula * job.layers if job and job.layers and formula else None
    shape = [
        ("model", job.name), ("hidden size", job.dim), ("intermediate size", job.hidden_dim), ("layers", job.layers),
        ("heads", job.heads), ("batch", job.batch), ("sequence length", job.seq),
        ("activation checkpointing", job.checkpointing),
        ("activations of one layer by the formula", size(formula)),
        ("activations of all layers by the formula", size(whole)),
    ] if job else []  # fmt: skip
    rows = (
        (layer.layer, size(layer.bytes), share(layer.bytes, formula) if formula else None)
        for layer in activations.layers
    )
    return [
        table("Model", "setting | value", shape),
        table("Activations of each layer at the peak", "layer | measured> | share of the formula>", rows, 8),
    ]


def overhead(device: Breakdown) -> list[Table]:
    """Return a table of used device memory inside and outside the allocator; empty if it was not recorded."""
    account = device.overhead
    if account is None:
        return []
    rows = [
        (f"used by the {account.of}", size(account.used_bytes), ""),
        ("tracked", size(account.tracked_bytes), share(account.tracked_bytes, account.used_bytes)),
        ("untracked", size(account.untracked_bytes), share(account.untracked_bytes, account.used_bytes)),
    ]
    return [table(f"Memory in use at the end (untracked: {account.made_of})", "what | bytes> | share>", rows)]
