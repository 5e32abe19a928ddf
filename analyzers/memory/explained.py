"""Say what each finding on memory snapshots means."""

from analyzers.explained import Explained

_FULL_HISTORY = "record a history of allocations (torch.cuda.memory._record_memory_history), and dump it later"

EXPLAINED = tuple(
    Explained(id=f"memory.{name}", what=what, tested=tested, next=steps, rules_out=rules_out)
    for name, what, tested, steps, rules_out in (
        (
            "oom",
            "A request for memory failed, and the job ended with it",
            "the snapshot has an `oom` entry: its size, what was free then, and what tensors held by category",
            "look at the largest category and at what the failed request is for; the finding names the line of both",
            "the rank finished that step or a later one: then it is memory.oom.caught",
        ),
        (
            "oom.spike",
            "A request for memory failed that is far larger than any before it, or one rank's step needed far more than others",
            "the failed request, or what its step allocated, is compared with earlier steps and other ranks",
            "look for the batch of that step: a long sample, a gather, logits of all tokens",
            "all steps and ranks need as much: then the model is simply too big for the device",
        ),
        (
            "oom.caught",
            "A request for memory failed, and the program went on",
            "the rank finished the step of the failed request, or a later one, after it",
            "if it was not meant: find who caught it; a retry with a smaller batch changes what is trained",
            "",
        ),
        (
            "leak",
            "A line of code allocates memory in each step that is not freed again",
            "blocks of one stack were allocated in many steps and are alive at the end; those of other stacks are not",
            "look for what keeps the tensor: a list of losses with their graphs, a cache, a hook; MemoryRecorder(find_holders=True)",
            "growth in the first steps only (optimizer state), caches that fill up and stay, recordings of very few steps",
        ),
        (
            "spike",
            "One step, or one moment of it, needs far more memory than all others",
            "the largest peak is compared with the peaks of the other steps",
            "look at the line that the finding names, and at what differs in that step's batch",
            "every step has the same peak",
        ),
        (
            "near_limit",
            "The peak is so near to the limit of the device that a slightly larger step would fail",
            "the allocated bytes at the peak against the device's memory, or the limit that is set",
            "leave room: recompute activations, a smaller batch, or shard more",
            "",
        ),
        (
            "fragmentation",
            "Memory was free, but in pieces between blocks in use that were too small for the request",
            "free blocks inside segments that cannot be given back are summed, and compared with the failed request or with what is reserved",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where the device has it; keep the shapes of steps alike",
            "expandable segments are on, or the free pieces together are smaller than the request",
        ),
        (
            "reserved",
            "The allocator keeps much more memory from the device than tensors use",
            "reserved bytes against those in use at the end of the trace",
            "it matters to other processes and libraries on the device only; torch.cuda.empty_cache() gives it back once",
            "",
        ),
        (
            "retries",
            "The device was full, and the allocator gave cached memory back before it could serve a request",
            "segments are freed between allocations of a step; each time the device first finishes all its work",
            "leave room, or make shapes alike, so that cached blocks fit again",
            "the program calls empty_cache() itself",
        ),
        (
            "idle_threshold",
            "A garbage-collection threshold is set that never takes effect",
            "the setting is in the snapshot, and no fraction of the device is set, which it is compared with",
            "set torch.cuda.memory.set_per_process_memory_fraction too, or remove the setting",
            "",
        ),
        (
            "dead_pool",
            "A private pool of a CUDA graph or a MemPool keeps segments in which no block is in use",
            "segments of private pools without an allocated block at the end",
            "delete the graph or the pool when it is not needed, and capture graphs into one shared pool",
            "",
        ),
        (
            "late_state",
            "The optimizer's state is allocated in the first optimizer step, after the first forward and backward pass",
            "blocks of the optimizer's state are first seen after a peak of the first step",
            "judge whether a model fits by its second step",
            "",
        ),
        (
            "activation_peak",
            "Most of the peak is results of the forward pass that wait for the backward pass",
            "the bytes of the category activations at the peak",
            "activation checkpointing, a smaller micro batch, shorter samples",
            "inference: nothing is kept there for a backward pass",
        ),
        (
            "loss",
            "The loss keeps several copies of the logits",
            "blocks of the size batch x sequence x vocabulary that lines of the loss allocated, at the peak",
            "compute the loss in pieces, compile it, or use a fused linear cross entropy",
            "",
        ),
        (
            "attention_scores",
            "Attention is computed step by step, and its scores stay for the backward pass",
            "blocks that a softmax outside of a fused kernel allocated, at the peak; they grow with the square of the length",
            "torch.nn.functional.scaled_dot_product_attention",
            "the names of the frames show a fused kernel",
        ),
        (
            "attention_fallback",
            "scaled_dot_product_attention is called, but computes with its math kernel, which keeps the scores",
            "blocks that its math kernel allocated, at the peak",
            "give it what its fused kernels take: 16-bit inputs, is_causal=True in place of a mask, head sizes they know",
            "",
        ),
        (
            "kept",
            "Memory allocated in one step stays allocated to the end of the recording",
            "blocks of one stack that appear from one step on and are alive at the end",
            "if it is not meant (a checkpoint's buffers, a compiled graph), find who holds it",
            "the recording ends within that step",
        ),
        (
            "late_frees",
            "Tensors stay until Python's garbage collector runs, as cycles refer to them",
            "blocks of several steps are freed together, some steps late",
            "break the cycle (a hook or a closure that refers to its module), or call gc.collect() every n steps",
            "a list that the program empties every few steps looks the same",
        ),
        (
            "unused_graph",
            "A forward pass keeps activations for a backward pass that never comes",
            "activations at the peak that are freed before any backward pass ran",
            "evaluate under torch.inference_mode() or torch.no_grad()",
            "",
        ),
        (
            "uneven",
            "One rank, or one device of a process, holds far more memory than the others",
            "the peak of each rank against that of the usual one, and in which category they differ",
            "balance what is sharded or batched: the finding names the category",
            "the ranks have different roles by design, such as pipeline stages",
        ),
        (
            "untracked",
            "Much of the device's memory is used, but not by PyTorch's allocator",
            "what the device reports as used, less what PyTorch has reserved; contexts and libraries are estimated",
            "nvidia-smi shows other processes; NCCL's buffers and libraries of this process are the rest",
            "",
        ),
        (
            "uncategorised",
            "The category of most of the peak is not known",
            "categories come from the stacks of allocations; too few have one",
            "record with stacks, or with MemoryRecorder, which knows the tensors of model and optimizer",
            "",
        ),
        (
            "state_only",
            "The snapshot has no history: it shows one moment",
            "there is no allocation or free in its trace",
            _FULL_HISTORY,
            "",
        ),
        (
            "inconsistent",
            "The history does not add up to the blocks that the snapshot lists",
            "the bytes at the end of the history, or its peak, against the list of segments and blocks",
            "trust the list of blocks; record again without skip_actions for a whole history",
            "",
        ),
    )
)
