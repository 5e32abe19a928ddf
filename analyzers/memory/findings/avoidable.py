"""Write what particular change of the code would have avoided a use of memory, where a request failed."""

from analyzers.memory.answers.stacks import call_site
from analyzers.memory.difference_model import Purpose
from analyzers.memory.findings.evidence import innermost
from analyzers.memory.findings.rank_difference import PURPOSE_ADVICE
from analyzers.memory.model import AvoidableKind, AvoidableUse
from analyzers.words import LOAD_ON_HOST, size

ADVICE = {
    AvoidableKind.OPTIMIZER_COPIES: "Construct the optimizer with fused=True, or with foreach=False: its multi-tensor"
    " step makes copies of all parameters or of their state at once, of which {bytes} existed or were asked for.",
    AvoidableKind.EVALUATION_GRAPH: "Run {line} under torch.no_grad() or torch.inference_mode(): its forward pass keeps"
    " {bytes} for a backward pass, which an evaluation does not run.",
    AvoidableKind.EVALUATION: "Evaluate with a smaller batch, or with shorter sequences: {line} took {bytes}. It needs"
    " no batch as large as that of training.",
    AvoidableKind.CHECKPOINT: "Do not gather or copy the state on the device in {line}, where it took {bytes}."
    f" {PURPOSE_ADVICE[Purpose.CHECKPOINT]}",
    AvoidableKind.LOADED: f"Load the checkpoint into host memory with {LOAD_ON_HOST}: on the device it took {{bytes}}"
    " beside the model in {line}.",
    AvoidableKind.AVERAGE: "Do not copy the weights on the device in {line}, where copies took {bytes}. "
    + PURPOSE_ADVICE[Purpose.AVERAGE],
    AvoidableKind.OFFLOADED: "Bring fewer layers back to the device ahead of their use (a shorter prefetch), and free"
    " each after it: {line} took {bytes}.",
    AvoidableKind.LOSS: "Compute the loss in pieces (chunked cross-entropy), or with a kernel that fuses it with the"
    " output layer: the logits, and what the loss makes of them, took {bytes} with the request{where}.",
    AvoidableKind.ATTENTION_SCORES: "Use torch.nn.functional.scaled_dot_product_attention, whose fused kernels keep no"
    " scores: those of the attention{where} took {bytes}, and grow with the square of the sequence length.",
    AvoidableKind.GATHERED: "Give gathered parameters back after each layer: reshard_after_forward=True in FSDP2"
    " (FULL_SHARD in FSDP1), and prefetch fewer layers. Gathered parameters took {bytes}.",
    AvoidableKind.BUCKETS: "Construct DistributedDataParallel with gradient_as_bucket_view=True: its buckets are a"
    " second copy of the gradients, {bytes}.",
    AvoidableKind.MODEL: "Check whether the model that {line} builds is trained: {bytes} of {of_bytes} of parameters"
    " are its. If it is frozen, load it in fewer bits (bfloat16, or quantised to 8 or 4 bits), shard it, or keep it on"
    " the CPU while it is not used.",
}
WITHOUT_MORE = (
    AvoidableKind.EVALUATION_GRAPH,
    AvoidableKind.EVALUATION,
    AvoidableKind.CHECKPOINT,
    AvoidableKind.LOADED,
    AvoidableKind.AVERAGE,
    AvoidableKind.OFFLOADED,
)
"""What the job does beside its training steps, which fitted: changing these is of no use."""
IF_NOT_ENOUGH = "If that is not enough:"


def avoidable_advice(use: AvoidableUse) -> str:
    """Return what to change in order to avoid a use of memory, as sentences."""
    line = call_site(use.line) if use.line else innermost(use.frames, "the failing line")
    where = f" in {innermost(use.frames)}" if use.frames else ""
    of_bytes = size(use.of_bytes) if isinstance(use.of_bytes, int) else ""
    return ADVICE[use.kind].format(bytes=size(use.bytes), line=line, where=where, of_bytes=of_bytes)
