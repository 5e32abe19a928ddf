"""Say in words what each kind of opportunity is, why it takes time, what to change, and how to check the effect."""

from typing import NamedTuple

from analyzers.traces.model import OpportunityKind


class Words(NamedTuple):
    """The texts about one kind of opportunity: a title, its meaning, what to change, and how to check the effect."""

    title: str
    why: str
    next: str
    check: str


WORDS = {
    OpportunityKind.DATA_LOADER: Words(
        "The step waits for the data loader",
        "Nothing was computed while the program waited in the data loader for the next batch.",
        "Raise num_workers and prefetch_factor of the DataLoader, set persistent_workers=True, and move work on the"
        " samples into the workers.",
        "Use the same batch in every step. If the loader is the cause, each step gets shorter by about that time.",
    ),
    OpportunityKind.ALLOCATION: Words(
        "The device waits for allocations by the driver",
        "The device had no work while the host was in calls into the driver that allocate and free memory.",
        "Leave more memory free, or keep shapes the same in all steps.",
        "It helped if torch.cuda.memory_stats()['num_alloc_retries'] no longer grows from step to step. If it never"
        " grew, this is the start of CUDA: record some steps later.",
    ),
    OpportunityKind.COMPILATION: Words(
        "The device waits while code is compiled or loaded",
        "The device had no work while the host compiled code, or launched a kernel for the first time, which loads it.",
        "Begin the recording after some warm-up steps. If code is still compiled then, set TORCH_LOGS=recompiles to see"
        " why, and mark sizes that vary with torch._dynamo.mark_dynamic.",
        "Record some steps later. If nothing is compiled then, it was only the warm-up.",
    ),
    OpportunityKind.PYTHON: Words(
        "The device waits while the host does other work",
        "The device had no work while the host ran Python code, garbage collection, logging or checkpoints, or stayed"
        " in one operator for long.",
        "If it is garbage collection, call gc.disable() once before the loop, and gc.collect() every n steps. Move"
        " other work out of the training loop, do it only every n steps, or do it in a thread.",
        "Leave the work out for a few steps, and compare their times.",
    ),
    OpportunityKind.BUFFER_BROADCAST: Words(
        "The device waits while DistributedDataParallel broadcasts buffers",
        "Before each forward pass, DistributedDataParallel copies the model's buffers (such as the running means of"
        " BatchNorm) into one tensor, broadcasts it from rank 0 and copies each buffer back. The device had no work"
        " while the host launched these small copies.",
        "Pass broadcast_buffers=False to DistributedDataParallel. BatchNorm's running statistics then differ between"
        " ranks: evaluate with those of rank 0, and save those.",
        "It helped if the next trace has no c10d::broadcast_ inside DistributedDataParallel.forward.",
    ),
    OpportunityKind.SYNCHRONISING_CALL: Words(
        "Calls that wait for the device leave it without work",
        "In such a call the host waits until all launched kernels have ended. After it the device has nothing to do"
        " until the host launches the next kernel.",
        "Remove .item(), .cpu(), print(tensor) and boolean masks from the step, or use them only every n steps. Copy"
        " with non_blocking=True.",
        "It helped if torch.cuda.set_sync_debug_mode('warn') prints no more lines in the step.",
    ),
    OpportunityKind.LAUNCH: Words(
        "The device waits for the host to launch kernels",
        "The host needs longer to launch each kernel than the device needs to run it.",
        "Launch fewer and larger kernels: use torch.compile",
        "Double the batch. If a step takes as long as before, launching was the limit.",
    ),
    OpportunityKind.UNFUSED_ATTENTION: Words(
        "Attention runs as separate matrix products and softmax",
        "Each of these kernels writes the attention scores to memory, and the next one reads them again. Their size is"
        " the square of the sequence length.",
        "Call torch.nn.functional.scaled_dot_product_attention with 16-bit inputs, is_causal=True instead of a dense"
        " mask, a head dimension of at most 256, and without need_weights.",
        "It helped if the next trace has kernels with flash, fmha or sdpa in their names.",
    ),
    OpportunityKind.RECOMPUTATION: Words(
        "Activation checkpointing computes the forward pass again",
        "Operators of the forward pass run a second time inside the backward pass.",
        "If memory allows it, checkpoint fewer layers, or checkpoint selectively: keep the results of matrix products"
        " and attention.",
        "To see whether memory allows it: record a memory snapshot and run `workbench inspect --what-if ac=selective`"
        " on it.",
    ),
    OpportunityKind.FLOAT64: Words(
        "Matrix products and convolutions run in float64",
        "The names of these kernels say that they compute in float64, which is at least 7 times slower than TF32 or 16"
        " bits. This is mostly by accident: arrays of NumPy are float64, and torch.from_numpy keeps their type.",
        "Cast the inputs to float32 where they become tensors (.float()), and leave the default type at float32. If the"
        " job needs float64, there is nothing to do.",
        "It helped if the next trace has no kernels with dgemm or d884gemm in their names.",
    ),
    OpportunityKind.FLOAT32: Words(
        "Matrix products and convolutions run in float32 without tensor cores",
        "The names of these kernels say that they compute in float32 on the ordinary cores of the GPU. Its tensor cores"
        " are some 8 times faster.",
        "Use torch.autocast",
        "It helped if the next trace has matrix kernels that name the new type ({types}). Check that"
        " the loss curve stays about the same.",
    ),
    OpportunityKind.MISALIGNED: Words(
        "Matrix products have sizes that do not suit tensor cores",
        "One of their sizes is not a multiple of 8 elements, and they run less than half as fast as the other"
        " products.",
        "Pad the vocabulary, the hidden sizes and the heads to multiples of 64, or at least of 8.",
        "Multiply padded matrices of these sizes in a loop, and compare the rates.",
    ),
    OpportunityKind.LAYOUT_COPIES: Words(
        "Kernels only change the layout of tensors",
        "They convert tensors between channels first and channels last, before and after convolutions.",
        "Convert the model and its inputs once, with .to(memory_format=torch.channels_last).",
        "It helped if the next trace has no kernels named nchwToNhwc or nhwcToNchw.",
    ),
    OpportunityKind.PAGEABLE_COPIES: Words(
        "Copies from pageable memory hold up the device",
        "While such a copy runs, nothing is computed, and the host waits.",
        "Set pin_memory=True in the DataLoader, and copy with .to(device, non_blocking=True).",
        "It helped if the copies in the next trace are named Pinned instead of Pageable, and run beside kernels.",
    ),
    OpportunityKind.EXPOSED_COPIES: Words(
        "Copies between host and device run while nothing is computed",
        "No kernel runs beside these copies, although the copy engines could work at the same time.",
        "Copy the next batch while the model computes: on a stream of its own, from pinned memory and with"
        " non_blocking=True. Where parameters or optimizer states are offloaded, start their copies earlier.",
        "It helped if the copies in the next trace run beside kernels.",
    ),
    OpportunityKind.CROSS_ENTROPY: Words(
        "The loss passes several times over all logits",
        "Casts of the logits, log-softmax and their backward pass each read and write a tensor of the size tokens times"
        " vocabulary. A fused kernel reads it once, and reads and writes it once more in the backward pass.",
        "Compile the loss function with torch.compile, or use a fused linear cross entropy (such as that of Liger"
        " Kernel), which takes the last layer and the loss in parts and never stores all logits.",
        "It helped if the next trace has no aten::_log_softmax on tensors of that size.",
    ),
    OpportunityKind.ELEMENTWISE: Words(
        "Consecutive elementwise kernels could be fused",
        "Elementwise kernels (add, multiply, clamp, ...) run one after the other, and each reads and writes its whole"
        " tensor in device memory. One fused kernel would do so once for all of them, and is estimated to take as long"
        " as the longest of them.",
        "Use torch.compile for the modules that launch these kernels. If the optimizer launches them, pass fused=True"
        " to it."
        " A trace recorded with with_stack=True shows the modules in `workbench trace`.",
        "Compile one layer, and compare its time on the device.",
    ),
    OpportunityKind.SMALL_COLLECTIVES: Words(
        "Many small collectives run one after the other",
        "However small a collective is, it takes at least the latency of the network.",
        "Join them: use larger buckets (bucket_cap_mb), pass a list of tensors to one call, and log fewer metrics.",
        "It helped if the next trace has fewer collectives per step, with the same number of bytes.",
    ),
    OpportunityKind.BUS_BANDWIDTH: Words(
        "Collectives are far slower than the links between the devices",
        "Even the fastest collective of each size is that slow. The trace of one rank does not show whether the network"
        " is slow, or this rank waits in its collectives for a late rank.",
        "Run with NCCL_DEBUG=INFO to see which transport NCCL uses, and compare the traces of all ranks.",
        "Run nccl-tests with messages of {size} between the same devices.",
    ),
    OpportunityKind.EXPOSED_COMMUNICATION: Words(
        "The step waits for communication",
        "Nothing is computed during this communication, although the next kernels were launched already.",
        "Prefetch the next layer (FSDP2: set_modules_to_forward_prefetch), or reduce gradients in buckets during the"
        " backward pass (DDP: bucket_cap_mb).",
        "Run one rank alone without communication. Its step is the shortest that overlap can reach.",
    ),
    OpportunityKind.IMBALANCE: Words(
        "The other ranks wait for one",
        "Its own work between collectives takes longer than theirs.",
        "Find what this rank does more than the others: the finding trace.straggler names the part.",
        "Give its data or its host to another rank, and see whether the delay moves with it.",
    ),
}  # fmt: skip

ZERO_GRAD = Words(
    "Gradients are filled with zeros",
    "Optimizer.zero_grad() writes zeros to all gradients, and the backward pass then reads them to add to them.",
    "Call zero_grad(set_to_none=True), the default since PyTorch 2.0: the gradients are freed, and the backward pass"
    " writes new ones. Code that reads .grad must then allow None.",
    "It helped if the next trace has no kernels inside Optimizer.zero_grad.",
)
OPTIMIZER = Words(
    "The optimizer makes several passes over the parameters",
    "Each of its elementwise kernels reads and writes tensors as large as the parameters. A fused optimizer does so"
    " once.",
    "Pass fused=True to Adam, AdamW, SGD or Adagrad. Other optimizers are faster with foreach=True, if they have it, or"
    " with a step that torch.compile compiles.",
    "It helped if the kernels of the optimizer in the next trace have Fused in their names.",
)
TO_PAGEABLE = Words(
    "Copies to pageable memory hold up the device",
    "The host waits for the end of such a copy, while nothing is computed.",
    "Copy to pinned memory with non_blocking=True, and use the result later. Save checkpoints asynchronously"
    " (torch.distributed.checkpoint.async_save), and keep metrics on the device between the steps that log.",
    "It helped if the copies in the next trace are named Pinned instead of Pageable, and run beside kernels.",
)
PERHAPS_PAGEABLE = Words(
    "Slow copies from the host's memory hold up the device",
    "ROCm does not say whether the memory is pinned, but so slow a copy probably comes from pageable memory. Nothing is"
    " computed meanwhile.",
    "Set pin_memory=True in the DataLoader, and copy with .to(device, non_blocking=True).",
    "It helped if the copies in the next trace are faster, and run beside kernels.",
)
FLOAT32_ON_AMD = Words(
    "Matrix products and convolutions run in float32",
    "The names of these kernels say that they compute in float32, for which the matrix cores of this GPU are some 8"
    " times slower than for 16 bits.",
    "Use torch.autocast",
    "It helped if the next trace has matrix kernels that name the new type (such as BBS, HHS or S_MX_B behind Cijk)."
    " Check that the loss curve stays about the same.",
)
BLOCKING_LAUNCHES = (
    "Nearly all launching calls return only when their kernel has ended: unset CUDA_LAUNCH_BLOCKING (on AMD GPUs also"
    " AMD_SERIALIZE_KERNEL and HIP_LAUNCH_BLOCKING), which is for debugging. No kernel is launched ahead with it."
)
COMPILED_ALREADY = (
    "Parts of the program are compiled already: compile larger ones. Set TORCH_LOGS=graph_breaks to see where a graph"
    " ends, and why. Then launch them with less work of the host: use mode='reduce-overhead' of torch.compile"
)
