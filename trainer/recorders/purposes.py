"""Functions of torch that allocate for a purpose of their own."""

from trainer.recorders.notes import COMMUNICATION, PARAMETERS

PURPOSES = {
    "alloc_all_gather_outputs": PARAMETERS,
    "foreach_all_gather": COMMUNICATION,
    "foreach_reduce": COMMUNICATION,
    "all_gather_object": COMMUNICATION,
    "_rebuild_buckets": COMMUNICATION,
}
