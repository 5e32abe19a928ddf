"""Write findings about the largest parts of the peak, and how much a remedy would free."""

from collections.abc import Callable, Iterator, Sequence

from analyzers.frames import Place
from analyzers.memory.evidence import FORWARD_ONLY, SHARD, STEPS_INFERRED, fact, innermost, ranks_of, saving_by
from analyzers.memory.leaks import late_frees_finding
from analyzers.memory.model import Device, Remedy, Saving, UnusualKind, UnusualUse
from analyzers.memory.unusual_use import LOSS_PIECES
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import quantity, share, size

_ACTIVATION_SHARE_AT_LEAST = 0.6
_FALLBACK_CPU = (
    "Look at its arguments and settings. On a CPU the fused kernel needs dropout_p=0, inputs of four dimensions with"
    " one head dimension, and a mask without a gradient; sdpa_kernel(SDPBackend.MATH) forbids it."
)
_DROPOUT_SEEN = " The stacks show a dropout inside of it, which is the reason on a CPU."
_FALLBACK_GPU = (
    "Call it once under sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]): PyTorch then warns"
    " why each kernel is not used. Usual reasons are float64, inputs without four dimensions, enable_gqa=True with a"
    " mask or in float32, a head dimension that is no multiple of 8, and a setting such as"
    " sdpa_kernel(SDPBackend.MATH)."
)


def peak_findings(device: Device) -> Iterator[Finding]:
    unused_graph = any(use.kind is UnusualKind.UNUSED_GRAPH for use in device.unusual)
    for use in device.unusual:
        # What grows in every step is a leak, which has its own finding.
        if use.kind is UnusualKind.KEPT and any(growth.frames == use.frames for growth in device.growing):
            continue
        # The graph that is not used is why this step needs more.
        if use.kind is UnusualKind.SPIKE and unused_graph:
            continue
        yield _FINDING_OF_KIND[use.kind](device, use)
    if unused_graph:
        return  # recomputation has nothing to do with activations that nothing needs
    saving = saving_by(device, Remedy.ACTIVATION_CHECKPOINTING)
    dominant = device.categories["activations"] >= _ACTIVATION_SHARE_AT_LEAST * device.peak_allocated_bytes
    if not device.oom and saving and dominant:
        yield _activation_finding(device, saving)


def _activation_finding(device: Device, saving: Saving) -> Finding:
    activations, peak = device.categories["activations"], device.peak_allocated_bytes
    return Finding(
        id="memory.activation_peak",
        severity=Severity.INFO,
        title=f"Activations are {share(activations, peak)} of peak allocated memory{_on_rank(device)}",
        why=f"At the peak, {size(activations)} of {size(peak)} was activations: results of the forward pass that are"
        " kept for the backward pass.",
        next="If you need this memory, turn on activation checkpointing (torch.utils.checkpoint; in torchtitan"
        f' activation_checkpoint.mode = "full"). It would free about {size(saving.frees_bytes)} of these'
        f" {size(saving.of_bytes)} ({saving.model}).",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"activations at the peak, which is after entry {device.peak_index} of the allocation history:"
                f" {size(activations)}",
            ),
            *_how_known(device),
        ],
        confidence=0.8,
    )


def _how_known(device: Device) -> list[Evidence]:
    bases = [basis for basis in device.categories_bases if basis.category in ("", "activations")]
    return [fact(device, f"why these blocks count as activations: {bases[0].because}")] if bases else []


def _late_state_finding(device: Device, use: UnusualUse) -> Finding:
    """Return the finding that the optimizer's state was only allocated in the first optimizer step."""
    return Finding(
        id="memory.late_state",
        severity=Severity.INFO,
        title=f"The first optimizer step allocated {size(use.bytes)} of optimizer state",
        why="Optimizer state does not exist before the first optimizer step. So a first forward and backward pass that"
        " fits in memory does not prove that later steps fit.",
        next=f"Plan for {size(use.bytes)} more than the first forward and backward pass needs. To need less, shard the"
        f" state over more ranks ({SHARD}), or use an optimizer with less state.",
        ranks=ranks_of(device),
        step=use.step,
        evidence=[
            fact(device, f"optimizer state, all allocated in that step: {size(use.bytes)}", innermost(use.frames))
        ],
        confidence=0.8,
    )


def _loss_finding(device: Device, use: UnusualUse) -> Finding:
    return Finding(
        id="memory.loss",
        severity=Severity.INFO,
        title=f"The loss takes {share(use.bytes, device.peak_allocated_bytes)} of peak allocated"
        f" memory{_on_rank(device)}",
        why=f"The loss made copies of the logits{_in_line(use)}, {size(use.bytes)} in total. The size of each is batch"
        " x sequence x vocabulary.",
        next="Compute the loss in pieces (chunked cross-entropy): split the sequence, compute the loss of one piece"
        f" after the other, and recompute each piece in its backward pass. With {LOSS_PIECES} pieces the peak would be"
        f" about {size(use.frees_bytes)} lower, as only one piece is in memory at a time.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"allocated by the loss at the peak, after entry {device.peak_index} of the history: {size(use.bytes)}",
                innermost(use.frames),
            )
        ],
        confidence=0.7,
    )


def _scores_finding(device: Device, use: UnusualUse) -> Finding:
    return Finding(
        id="memory.attention_scores",
        severity=Severity.INFO,
        title=f"Attention scores take {share(use.bytes, device.peak_allocated_bytes)} of peak allocated"
        f" memory{_on_rank(device)}",
        why=f"The attention computes its softmax as a separate operation{_in_line(use)}, so the scores stay for the"
        f" backward pass, which makes gradients as large: {size(use.bytes)} at the peak. They grow with the square of"
        " the sequence length.",
        next="Use torch.nn.functional.scaled_dot_product_attention, with is_causal=True in place of a causal mask and"
        " with inputs in bfloat16 or float16: its fused kernels keep no scores. The peak would be about"
        f" {size(use.frees_bytes)} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"scores and their gradients alive at the peak, after entry {device.peak_index} of the allocation"
                f" history: {size(use.bytes)}",
                innermost(use.frames),
            )
        ],
        confidence=0.7,
    )


def _fallback_finding(device: Device, use: UnusualUse) -> Finding:
    """Return the finding that PyTorch's attention operator takes its math kernel, which keeps the scores."""
    on_cpu = device.fragmentation.made_up_segments
    seen = _DROPOUT_SEEN if on_cpu and use.with_dropout else ""
    return Finding(
        id="memory.attention_fallback",
        severity=Severity.INFO,
        title=f"scaled_dot_product_attention takes its math kernel: its tensors are"
        f" {share(use.bytes, device.peak_allocated_bytes)} of peak allocated memory{_on_rank(device)}",
        why=f"The operator is called{_in_line(use)}, but no fused kernel takes the call, so that the attention scores"
        f" stay for the backward pass: {size(use.bytes)} at the peak. They grow with the square of the sequence"
        f" length.{seen}",
        next=f"{_FALLBACK_CPU if on_cpu else _FALLBACK_GPU} With a fused kernel the peak would be about"
        f" {size(use.frees_bytes)} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                "allocated by the math kernel and alive at the peak, after entry"
                f" {device.peak_index} of the allocation history: {size(use.bytes)}",
                innermost(use.frames),
            )
        ],
        confidence=0.8,
    )


def _kept_finding(device: Device, use: UnusualUse) -> Finding:
    return Finding(
        id="memory.kept",
        severity=Severity.WARNING,
        title=f"{size(use.bytes)} of activations stay allocated long after their backward pass",
        why=f"They were allocated from step {use.step} on{_in_line(use)}, and are still allocated at the end of the"
        f" recording{',' if device.steps else ''}{_after_step(device)}.",
        next="Find what still refers to these tensors: an output or a loss stored without .detach(), a cache, or a"
        f" closure. Without these references {size(use.bytes)} is freed.",
        ranks=ranks_of(device),
        step=use.step,
        evidence=[
            fact(
                device,
                f"allocated from step {use.step} on, still allocated{_after_step(device)}: {size(use.bytes)}",
                innermost(use.frames),
            )
        ],
        confidence=0.7,
    )


def _unused_graph_finding(device: Device, use: UnusualUse) -> Finding:
    """Return the finding that a forward pass keeps activations for a backward pass that never comes."""
    line = _caller_of_model(use.frames)
    return Finding(
        id="memory.unused_graph",
        severity=Severity.WARNING,
        title=f"A forward pass without a backward pass keeps {size(use.bytes)} of activations{_on_rank(device)}",
        why=f"At the peak, {size(use.bytes)} of {size(device.peak_allocated_bytes)} was saved for a backward pass in"
        f" {line}, and freed before any backward pass ran.",
        next=f"Run the forward pass in {line} under torch.no_grad() or torch.inference_mode(), as for an evaluation:"
        f" then it keeps none of this. The peak would be up to {size(use.frees_bytes)} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"saved for a backward pass at the peak, after entry {device.peak_index} of the allocation history,"
                f" and freed without one: {size(use.bytes)}",
                innermost(use.frames),
            )
        ],
        confidence=0.8,
    )


def _caller_of_model(frames: Sequence[str]) -> str:
    outside = [frame for frame in frames if Place.read(frame).function not in ("forward", "__call__")]
    return innermost(outside or frames, "an unknown line")


def _spike_finding(device: Device, use: UnusualUse) -> Finding:
    highest, usual = device.peak_allocated_bytes, device.peak_allocated_bytes - use.bytes
    larger, compared = use.larger_steps or 1, use.compared_steps or 1
    others = quantity(compared - larger, "other step")
    one = f"Step {use.step}" if use.step is not None else f"One of {compared} steps"
    which, these = (one, "this step") if larger == 1 else (f"{larger} of {compared} steps", "these steps")
    how = "" if use.step is not None else f" {STEPS_INFERRED}"
    how += FORWARD_ONLY if use.forward_only else ""
    most = "" if larger == 1 else " at most"
    return Finding(
        id="memory.spike",
        severity=Severity.INFO,
        title=f"{which}{_on_rank(device)} needed{most} {size(highest)}, the {others} at most {size(usual)}",
        why=f"Without {these} the job would need {size(use.bytes)} less memory."
        + (f" The largest difference is in {innermost(use.frames)}." if use.frames else "")
        + how,
        next=f"Find out what {these} did: a long sequence or a large batch, an evaluation or a checkpoint. Limit the"
        " tokens in a batch, not its samples, or evaluate with a smaller batch; then the peak is"
        f" {size(usual)}.",
        ranks=ranks_of(device),
        step=use.step,
        evidence=[
            fact(
                device,
                f"the highest peak, after entry {device.peak_index} of the allocation history: {size(highest)};"
                f" of the {others}: {size(usual)}",
                innermost(use.frames),
            )
        ],
        confidence=0.8 if use.step is not None else 0.7,
    )


def _after_step(device: Device) -> str:
    return f" after step {device.steps[-1].step}" if device.steps else ""


def _on_rank(device: Device) -> str:
    return "" if device.rank is None else f" on rank {device.rank}"


def _in_line(use: UnusualUse) -> str:
    return f" in {innermost(use.frames)}" if use.frames else ""


_FINDING_OF_KIND: dict[UnusualKind, Callable[[Device, UnusualUse], Finding]] = {
    UnusualKind.LATE_STATE: _late_state_finding,
    UnusualKind.LOSS: _loss_finding,
    UnusualKind.ATTENTION_SCORES: _scores_finding,
    UnusualKind.ATTENTION_FALLBACK: _fallback_finding,
    UnusualKind.KEPT: _kept_finding,
    UnusualKind.SPIKE: _spike_finding,
    UnusualKind.LATE_FREES: late_frees_finding,
    UnusualKind.UNUSED_GRAPH: _unused_graph_finding,
}
"""The function that writes the finding about each kind of unusual use."""
