"""Findings about what the peak is made of, where nothing failed: each with what its remedy would free."""

from collections.abc import Iterator

from analyzers.memory.answers.stacks import place
from analyzers.memory.answers.unusual_use import LOSS_PIECES
from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.model import Device, Notable
from analyzers.report import Finding, Severity
from analyzers.words import share, size

ACTIVATION_SHARE = 0.6


def peak_findings(device: Device) -> Iterator[Finding]:
    made = {"late_state": late_finding, "loss": loss_finding, "kept": kept_finding}
    for found in device.notable:
        if found.what != "kept" or all(growth.frames != found.frames for growth in device.growing):  # else a leak
            yield made[found.what](device, found)
    estimate = next((one for one in device.estimates if one.what == "activation_checkpointing"), None)
    held = device.categories["activations"]
    if not device.oom and estimate and held >= ACTIVATION_SHARE * device.peak_allocated_bytes:
        yield Finding(
            id="memory.activation_peak",
            severity=Severity.INFO,
            title=f"Activations are {share(held, device.peak_allocated_bytes)} of the peak",
            why=f"{size(held)} of {size(device.peak_allocated_bytes)} wait for the backward pass.",
            next=f"If the memory is needed, checkpoint the layers: about {size(estimate.frees_bytes)} of"
            f" {size(estimate.of_bytes)} would be freed ({estimate.model}).",
            ranks=ranks_of(device),
            step=device.step,
            evidence=[fact(device, f"activations: {size(held)} at entry {device.peak_index}")],
            confidence=0.8,
        )


def late_finding(device: Device, found: Notable) -> Finding:
    return Finding(
        id="memory.late_state",
        severity=Severity.INFO,
        title=f"{size(found.bytes)} of optimizer state came only with the first optimizer step",
        why="Until the optimizer has stepped once its state does not exist, so a first forward and backward pass that"
        " fit do not prove that the next ones will.",
        next=f"Count on {size(found.bytes)} more than the first pass needs; shard the state over more ranks, or choose"
        " an optimizer with less of it.",
        ranks=ranks_of(device),
        step=found.step,
        evidence=[fact(device, f"optimizer state made in the trace: {size(found.bytes)}", where(found))],
        confidence=0.8,
    )


def loss_finding(device: Device, found: Notable) -> Finding:
    return Finding(
        id="memory.loss",
        severity=Severity.INFO,
        title=f"The loss holds {share(found.bytes, device.peak_allocated_bytes)} of the peak",
        why=f"{size(found.bytes)} are copies of the logits made for the loss{in_place(found)}: they grow with batch,"
        " sequence and vocabulary together.",
        next=f"Compute the loss in pieces of the sequence, each recomputed in its backward pass: with {LOSS_PIECES} the"
        f" peak would be about {size(found.frees_bytes)} lower (one piece at a time is alive).",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"made for the loss: {size(found.bytes)} at entry {device.peak_index}", where(found))],
        confidence=0.7,
    )


def kept_finding(device: Device, found: Notable) -> Finding:
    return Finding(
        id="memory.kept",
        severity=Severity.WARNING,
        title=f"{size(found.bytes)} of activations outlive their step",
        why=f"They were made from step {found.step} on{in_place(found)} and are still alive at the end, steps after the"
        " backward pass that they were for.",
        next="Find what refers to them: an output or a loss that is stored without .detach(), a cache, a closure."
        f" Letting go frees {size(found.bytes)}.",
        ranks=ranks_of(device),
        step=found.step,
        evidence=[fact(device, f"kept over steps: {size(found.bytes)}", where(found))],
        confidence=0.7,
    )


def where(found: Notable) -> str:
    return place(found.frames[0]) if found.frames else ""


def in_place(found: Notable) -> str:
    return f" in {where(found)}" if found.frames else ""
