"""Functions of torch that allocate for a purpose of their own."""

from workbench.recorders.memory.tensor_hooks import COMMUNICATION, PARAMETERS

PURPOSES = {
    ("_fsdp_param.py", "alloc_all_gather_outputs"): PARAMETERS,
    ("_fsdp_collectives.py", "foreach_all_gather"): COMMUNICATION,
    ("_fsdp_collectives.py", "foreach_reduce"): COMMUNICATION,
    ("distributed_c10d.py", "all_gather_object"): COMMUNICATION,
    ("", "aten::flatten_dense_tensors"): COMMUNICATION,  # DDP sends the weights at the start
    ("distributed.py", "_pre_forward"): COMMUNICATION,  # where DDP makes its buckets anew
}


GATHERED = "FSDP::all_gather_copy_out"
RANGES = ("FSDP::all_gather", "FSDP::post_backward_reduce")
"""What FSDP records by itself, with the module's name behind: it is known also where no Python frame is."""
LIBRARIES = ("gloo:", "nccl:", "c10d::")
"""How what the collectives' libraries run is called."""


def purpose_of(filename: str, function: str) -> str | None:
    """What memory allocated in this function is for; None for the many that only compute."""
    if not filename and function.startswith(LIBRARIES):
        return COMMUNICATION
    if not filename and function.startswith(RANGES):
        return PARAMETERS if function.startswith(GATHERED) else COMMUNICATION
    return PURPOSES.get((filename.rpartition("/")[2], function))
