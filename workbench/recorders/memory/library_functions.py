"""Map functions of torch to the category of the memory that they allocate, such as communication."""

from workbench.recorders.memory.tensor_hooks import COMMUNICATION, PARAMETERS

CATEGORIES = {
    ("_fsdp_param.py", "alloc_all_gather_outputs"): PARAMETERS,
    ("_fsdp_collectives.py", "foreach_all_gather"): COMMUNICATION,
    ("_fsdp_collectives.py", "foreach_reduce"): COMMUNICATION,
    ("distributed_c10d.py", "all_gather_object"): COMMUNICATION,
    ("", "aten::flatten_dense_tensors"): COMMUNICATION,  # DDP sends the weights at the start
    ("distributed.py", "_pre_forward"): COMMUNICATION,  # where DDP makes its buckets anew
}


_GATHER_SPAN = "FSDP::all_gather_copy_out"
_FSDP_SPANS = ("FSDP::all_gather", "FSDP::post_backward_reduce")
"""The prefixes of the names of profiler spans that FSDP records around its collectives; the module's name follows.

They show the category of an allocation even if its call stack has no Python frames.
"""
_COLLECTIVE_PREFIXES = ("gloo:", "nccl:", "c10d::")
"""The prefixes of the names of profiler operations that gloo, NCCL and c10d run."""


def category_of_function(filename: str, function: str) -> str | None:
    """Return the category of the memory that a function of torch allocates; None if it is not known.

    `filename` is empty if `function` is not a Python function, but the name of a profiler operation or span.
    """
    if not filename and function.startswith(_COLLECTIVE_PREFIXES):
        return COMMUNICATION
    if not filename and function.startswith(_FSDP_SPANS):
        return PARAMETERS if function.startswith(_GATHER_SPAN) else COMMUNICATION
    return CATEGORIES.get((filename.rpartition("/")[2], function))
