"""Functions of torch that allocate for a purpose of their own."""

from trainer.recorders.notes import COMMUNICATION, PARAMETERS

PURPOSES = {
    ("_fsdp_param.py", "alloc_all_gather_outputs"): PARAMETERS,
    ("_fsdp_collectives.py", "foreach_all_gather"): COMMUNICATION,
    ("_fsdp_collectives.py", "foreach_reduce"): COMMUNICATION,
    ("distributed_c10d.py", "all_gather_object"): COMMUNICATION,
    ("", "aten::flatten_dense_tensors"): COMMUNICATION,  # DDP sends the weights at the start
    ("distributed.py", "_pre_forward"): COMMUNICATION,  # where DDP makes its buckets anew
}


LIBRARIES = ("gloo:", "nccl:", "c10d::")
"""How what the collectives' libraries run is called."""


def purpose_of(filename: str, function: str) -> str | None:
    """What memory allocated in this function is for; None for the many that only compute."""
    if not filename and function.startswith(LIBRARIES):
        return COMMUNICATION
    return PURPOSES.get((filename.rpartition("/")[2], function))
