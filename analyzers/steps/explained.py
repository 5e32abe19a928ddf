"""Say what each finding on step logs means."""

from analyzers.explained import Explained

EXPLAINED = tuple(
    Explained(id=f"steps.{name}", what=what, tested=tested, next=steps, rules_out=rules_out)
    for name, what, tested, steps, rules_out in (
        (
            "nonfinite_loss",
            "The loss or the gradient norm is NaN or infinite",
            "each row of each rank; later rows show whether it passed",
            "from the first rows on: a kernel, the precision, a mask or the data; later: the batch and the rate of that step",
            "rows of a scaler that skips steps: the loss is finite again in the next one",
        ),
        (
            "nonfinite_loss_recovered",
            "The loss or the gradient norm was NaN or infinite in some steps, and is finite again",
            "rows that are not finite are followed by finite ones on the same rank",
            "check that these steps were skipped; bfloat16 needs no loss scale",
            "",
        ),
        (
            "collective_count",
            "The ranks did not issue the same number of collectives in a process group",
            "the number of the last collective of each rank at the end of a step, as PyTorch counts it",
            "look for a branch or a loop that differs between ranks before that step",
            "sends and receives of a pipeline, of which ranks differ by design",
        ),
        (
            "straggler",
            "One rank is late in most steps, and all others wait for it",
            "how much later each rank is than a typical one, over stretches of steps; the share of all step time that this costs",
            "compare its host, GPU clock and data with those of other ranks; the finding names the part of the step",
            "the late rank differs from step to step, or the cost is below 1 % of the time",
        ),
        (
            "memory_growth",
            "The memory of a rank rises in nearly every step",
            "allocated bytes per step after the warm-up",
            "look for tensors that are kept across steps; a memory snapshot names the line",
            "caches and data that are loaded once",
        ),
        (
            "global_stall",
            "Some steps take far longer on all ranks at once",
            "even the fastest rank's time in these steps, against the usual time and its spread",
            "look at what happens then: checkpoints, evaluation, the file system, the network",
            "evaluation and checkpoints that the log names are counted apart",
        ),
        (
            "long_step",
            "A single step took far longer than those around it",
            "its time against its neighbours'",
            "look at what the log says at that time",
            "the first steps, which compile and allocate",
        ),
        (
            "slowdown",
            "Steps become slower during the run, step by step or at once",
            "the trend of step times, and where they change for good",
            "longer samples, growing lists, thermal limits, other jobs on the node: the finding says what else changed",
            "a resumed run on other machines",
        ),
        (
            "loss_spike",
            "The loss jumps far above its usual variation",
            "each loss against the spread of the steps before it",
            "look at the batch and the gradient norm of that step; clip gradients",
            "small batches vary as much in every step",
        ),
        (
            "loss_rise",
            "The loss rises and stays higher to the end",
            "the last part of the run against its lowest part",
            "lower the rate, and resume from before the rise",
            "a new data set or objective began there",
        ),
        (
            "grad_norm_jump",
            "The gradient norm is far above its usual variation in some steps",
            "each value against the spread of those before it",
            "clip gradients; look at these batches",
            "",
        ),
        (
            "plateau",
            "The loss fell at first and then stopped falling",
            "the steepest slope that fits the noise of the last part of the run",
            "whether it should fall further depends on the task: compare the validation loss",
            "",
        ),
        (
            "data_time",
            "Steps wait for the data loader",
            "the time in the phase data_wait, as a share of a typical step of most ranks",
            "more workers, prefetching, less work on each sample in the loop",
            "",
        ),
        (
            "checkpoint_time",
            "Saving checkpoints takes a large part of the run",
            "the time between steps in which a checkpoint was saved, as a share of the wall time",
            "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
            "",
        ),
        (
            "restart_time",
            "Restarts, and the steps that they repeat, take a large part of the run",
            "the gaps between sessions and repeated steps, as a share of the wall time of a run of at least ten minutes",
            "mend what ends the attempts; save more often",
            "",
        ),
        (
            "unequal_steps",
            "The ranks have logs of different lengths",
            "the last step of each rank",
            "the run may still be writing, or a rank ended earlier: look at its log",
            "",
        ),
        (
            "missing_ranks",
            "Some ranks of the job left no step log",
            "the world size against the ranks that have a log",
            "collect the logs of all nodes into one folder",
            "",
        ),
        (
            "torn_line",
            "A step log ends in the middle of a line",
            "the last line is no whole row",
            "nothing, unless the disk was full: the process ended while it wrote",
            "",
        ),
        (
            "columns",
            "Another program wrote the log, and its columns were recognised by their names",
            "names and units that trainers use",
            "name the right column with `--map loss=COLUMN` where one is wrong",
            "",
        ),
    )
)
