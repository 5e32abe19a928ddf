"""The breakdown table and the what-if of a memory report as small tables of text."""

from typing import Any

from analyzers.words import share, size
from workbench.present.table import Table, table


def further(data: Any) -> list[Table]:
    """What was asked for beside the usual report; of several files the breakdown of the fullest."""
    fullest = sorted(data.breakdown, key=lambda one: -one.peak_bytes)[:1]
    return [*what_if(data.what_if), *(part for one in fullest for part in breakdown(one))]


def what_if(answers: list[Any]) -> list[Table]:
    if not answers:
        return []
    first = max(answers, key=lambda one: one.new_peak_bytes)
    names = sorted(first.new_categories, key=lambda name: -max(first.categories[name], first.new_categories[name]))
    return [
        table(
            f"What if {', '.join(f'{change.name}={change.value}' for change in first.changes)}",
            "rank> | device> | step> | peak> | would be> | change>",
            (
                (w.rank, w.device, w.step, size(w.peak_bytes), size(w.new_peak_bytes), changed(w))
                for w in sorted(answers, key=lambda one: -one.new_peak_bytes)
            ),
        ),
        table(
            "Who holds the peak then",
            "category | now> | would be>",
            (
                (name, size(first.categories[name]), size(first.new_categories[name]))
                for name in names
                if first.categories[name] or first.new_categories[name]
            ),
        ),
        table("By these models", "change | model", ((f"{c.name}={c.value}", c.model) for c in first.changes)),
    ]


def changed(answer: Any) -> str:
    return f"{100 * (answer.new_peak_bytes / answer.peak_bytes - 1):+.1f} %" if answer.peak_bytes else "-"


def breakdown(one: Any) -> list[Table]:
    """The tables of one device of one file."""
    of = f", rank {one.rank}" if one.rank is not None else ""
    return [
        table(
            f"Allocator segments{of}",
            "kind | segments> | reserved> | allocated> | free>",
            (
                (s.kind, s.segments, size(s.reserved_bytes), size(s.allocated_bytes), size(s.free_bytes))
                for s in one.segments
            ),
        ),
        table(
            f"Memory by category at the peak of {size(one.peak_bytes)}{of}",
            "category | bytes> | share> | tensors> | largest",
            (
                (h.name, size(h.bytes), share(h.bytes, one.peak_bytes), h.tensors, ", ".join(h.largest))
                for h in one.holders
            ),
        ),
        table(
            "High-water marks of what comes and goes",
            "category | bytes> | after entry>",
            ((h.name, size(h.bytes), h.entry) for h in one.high_water),
        ),
        table(
            "Largest tensors",
            "tensor | bytes> | category",
            ((t.name, size(t.bytes), t.category) for t in one.tensors),
            20,
        ),
        *model(one.activations),
        *overhead(one),
    ]


def model(activations: Any) -> list[Table]:
    """The model's shape, and what each layer keeps beside what the formula says."""
    job, told = activations.job, activations.theoretical_bytes_per_layer
    shape = [
        ("model", job.name), ("hidden size", job.dim), ("intermediate size", job.hidden_dim), ("layers", job.layers),
        ("heads", job.heads), ("batch", job.batch), ("sequence", job.seq), ("recomputation", job.checkpointing),
        ("theoretical activations of a layer", size(told)),
        ("of all layers", size(told * job.layers if told else None)),
    ] if job else []  # fmt: skip
    rows = ((layer.layer, size(layer.bytes), share(layer.bytes, told or 0)) for layer in activations.layers)
    return [
        table("Model", "what | is", shape),
        table("Activations of each layer at the peak", "layer | measured> | of the theoretical>", rows, 8),
    ]


def overhead(one: Any) -> list[Table]:
    found = one.overhead
    if found is None:
        return []
    rows = [
        (f"used by the {found.of}", size(found.used_bytes), ""),
        ("tracked", size(found.tracked_bytes), share(found.tracked_bytes, found.used_bytes)),
        ("untracked", size(found.untracked_bytes), share(found.untracked_bytes, found.used_bytes)),
    ]
    return [table(f"Used against tracked at the end (untracked: {found.made_of})", "what | bytes> | share>", rows)]
