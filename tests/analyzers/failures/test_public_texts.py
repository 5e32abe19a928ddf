"""Public texts whose answer depends on their numbers, frames or other lines: what is said of them, and what is not.

The texts and their sources are those of `benchmarks/threads`.
"""

from pathlib import Path

import pytest

from analyzers import logs

_THREADS = Path(__file__).parents[3] / "benchmarks" / "threads" / "in"
_CASES = {
    "k001": ("memory.other_processes", "3.6 GiB", "2.1 GiB"),
    "k002": ("memory.spilled", "8.1 GiB less", "at least 194.0 MiB"),
    "k004": ("numerics.nonfinite", "in the first row of this text (step 5426)", "The loss of this row is finite"),
    "k005": ("startup.nccl_cuda_failure", "set_device", "the line that names the exception is missing"),
    "k007": ("software.missing_module", "pip install expecttest", "part of the project"),
    "k008": ("software.fake_tensors", "TORCHDYNAMO_DISABLE=1", "the message itself says what to do"),
    "k010": ("training.all_skipped", "bf16", "no failure"),
    "k013": ("numerics.nonfinite", "gradient scale of these rows is 0", "Resume from a checkpoint before step 30"),
    "k014": ("collectives.unused_parameters", "requires_grad_(False)", "prints the names"),
    "k016": ("training.stuck_loss", "10.826", "no failure"),
    "k019": ("checkpoints.io_error", "errno 5", "is damaged"),
    "k020": ("checkpoints.no_space", "errno 28", "were reported, too"),
    "k022": ("collectives.timeout", "rank 0 reports no timeout in this text", "never joined"),
    "k023": ("autograd.nan_before_sampling", "num_generations", "a wrongly loaded model"),
    "k026": ("software.bitsandbytes_setup", "folder of bitsandbytes' sources", "the line after the last frame"),
    "k029": ("collectives.timeout", "Rank 1 timed out in ALLGATHER #34036", "no rule knows"),
    "k031": ("collectives.while_saving", "storage", "before it the log says"),
    "k034": ("software.no_python_headers", "python3-dev", "nvcc"),
    "k038": ("training.raised_loss", "from 1.70 to 11.5", "no failure"),
    "k041": ("numerics.scale_at_minimum", "bf16", "Open the line"),
    "k043": ("memory.loading", "map_location", "logits"),
    "k047": ("software.library_of_other_release", "LD_LIBRARY_PATH", "Look in the log for the traceback"),
    "k049": ("", "tar_paths or tar_iterators is empty", "among its issues"),
    "k052": ("startup.more_ranks_than_gpus", "--accel-bind", "more ranks than visible GPUs"),
    "k059": ("autograd.nan_before_sampling", "reward model", "a wrongly loaded model"),
    "t001": ("software.missing_cuda_library", "one site-packages", "import torch;"),
    "t005": ("autograd.two_devices", "deepspeed's own", "register_buffer"),
    "t007": ("memory.device", "must become free", "other processes"),
    "t009": ("memory.device", "must become free", "other processes"),
    "t011": ("processes.signal", "SIGKILL", "is not in this text"),
    "t014": ("collectives.timeout", "Ranks 3, 7 timed out", "All ranks that the logs show"),
    "t015": ("startup.unreachable_master", "192.0.0.1:1234", "Give each job its own endpoint"),
    "t016": ("data.unequal_samples", "[3, 1, 144, 192]", "no rule"),
    "t018": ("data.shared_file_gone", "file_descriptor", "--shm-size"),
    "t019": ("configuration.unused_arguments", "A file of settings", "misspelt"),
    "t021": ("numerics.nonfinite", "task0.loss_heatmap", "updated weights become NaN"),
    "t022": ("numerics.nonfinite", "loss_disc, loss_gen, loss_fm are NaN", "no rule"),
    "u019": ("startup.unreachable_master", "plain number", "no rule knows"),
    "u022": ("software.extension_of_other_torch", "prerelease", "It was raised inside"),
    "u024": ("collectives.timeout", "Ranks 4-5 timed out", "Rank 7 never joined"),
    "u025": ("network.nccl_socket", "on one link", "exists only on this machine"),
    "u026": ("numerics.nonfinite", "at step 8280", "before step 3"),
    "u028": ("memory.evaluation", "preprocess_logits_for_metrics", "compute the loss in pieces"),
    "u030": ("checkpoints.dcp_sizes", "use_orig_params", "print the shapes"),
}
"""{thread: (failure of the verdict, what the answer says, what it must not say)}."""


@pytest.mark.parametrize("name", _CASES)
def test_the_answer_fits_to_the_rest_of_the_text(name: str) -> None:
    failure, says, never = _CASES[name]
    report = logs.analyze(_THREADS / f"{name}.log")
    verdict = report.verdict
    said = " ".join([verdict.sentence, verdict.next, *(finding.why for finding in report.findings)])
    assert verdict.failure == failure
    assert says in said
    assert never not in said
