"""Trainings that run and do not learn, or wait: what the rows of numbers show where no error is printed."""

import re
from math import exp, isfinite, log
from statistics import median

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.rows import Row, are_all, column, data_share, largest_jump, lasting_jump
from analyzers.failures.entry import Advice, Example, Failure, sign
from analyzers.words import figures, number, percent, quantity

_LN2 = 0.6931
_LOADED = re.compile(r"[Ll]oading the checkpoint (?:at|of|from) step (\d{1,12})")
_STARTED = re.compile(r"[Tt]raining starts at step (\d{1,12})")
_ROWS_OF_ZEROS, _DATA_SHARE, _ROWS_OF_MEDIAN = 2, 0.5, 8
_ROWS_OF_SKIPS, _ROWS_OF_STUCK, _STUCK_SHARE, _CLASSES = 3, 10, 3e-4, (8.0, 300_000.0)
_FALLEN = 0.8
_LEVEL, _ROWS_AFTER = 3.0, 5
_SPIKE, _SPIKE_LEAST = 200.0, 500.0
"""A gradient norm of the first number times the median, and of at least the second number, is a spike."""
_JUMPS = (("grad_norm", 1e4, 1e3, "gradient norm"), ("loss", 20.0, 5.0, "loss"))
"""For each number that may jump: by which factor between two rows, to at least which value, and what it is called."""


def _rows(case: Case) -> str:
    """Return how many rows there are, up to which step."""
    steps = [row.step for row in case.rows if row.step is not None]
    return quantity(len(case.rows), "row") + (f" up to step {max(steps)}" if steps else "")


def _is_of_rows(case: Case) -> bool:
    return case.kind in (LogClass.DEAD_TRAINING, LogClass.DATA_TIME, LogClass.LOSS_SPIKE)


def _has_no_gradient(case: Case) -> bool:
    return are_all(case.rows, "grad_norm", lambda value: value == 0)


def _loss_falls(case: Case) -> bool:
    """Return whether the loss falls clearly from the first to the last third of the rows."""
    losses = [loss for loss in column(case.rows, "loss") if isfinite(loss)]
    third = len(losses) // 3
    return third >= _ROWS_OF_ZEROS and median(losses[-third:]) < _FALLEN * median(losses[:third])


def _has_equal_rewards(case: Case) -> bool:
    """Return whether all completions of a group got the same reward in each row."""
    same = are_all(case.rows, "zero_std", lambda value: value >= 1) or are_all(
        case.rows, "reward_std", lambda v: v == 0
    )
    return _has_no_gradient(case) and same


def _prefers_nothing(case: Case) -> bool:
    """Return whether a preference loss stays at ln 2 with margins of 0: the policy equals the reference."""
    at_start = are_all(case.rows, "loss", lambda value: abs(value - _LN2) < 1e-3)
    return _has_no_gradient(case) and at_start and are_all(case.rows, "margins", lambda value: value == 0)


def _has_no_loss(case: Case) -> bool:
    """Return whether the loss is exactly 0 in all rows, and no gradient shows that the model learns all the same.

    A gradient norm that has the same digits in each row comes from dead weights.
    """
    norms = set(column(case.rows, "grad_norm"))
    has_gradient = len(norms) > 1 or (len(norms) == 1 and norms != {0.0} and len(case.rows) < _ROWS_OF_ZEROS)
    enough = len(column(case.rows, "loss")) >= _ROWS_OF_ZEROS
    return enough and are_all(case.rows, "loss", lambda value: value == 0) and not has_gradient


def _skips_all(case: Case) -> bool:
    """Return whether the trainer skipped a step in each row, so that no parameter has changed."""
    enough = len(column(case.rows, "skipped")) >= _ROWS_OF_SKIPS
    return enough and are_all(case.rows, "skipped", lambda value: value >= 1)


def _is_stuck(case: Case) -> bool:
    """Return whether the loss has the same value in many rows, to more digits than batches agree in."""
    losses = column(case.rows, "loss")
    if len(losses) < _ROWS_OF_STUCK or not all(map(isfinite, losses)) or min(losses) <= 0:
        return False
    has_digits = any(abs(loss - round(loss, 2)) > 1e-6 for loss in losses)
    return has_digits and max(losses) - min(losses) <= _STUCK_SHARE * min(losses)


def _uniform_guess(case: Case) -> str:
    """Return of how many classes a uniform guess has this loss; empty if that is no usual number of classes."""
    loss = median(column(case.rows, "loss"))
    classes = exp(loss) if loss < log(_CLASSES[1]) else 0.0
    if not _CLASSES[0] <= classes <= _CLASSES[1]:
        return ""
    return f" {loss:.4g} is the loss of a uniform guess among about {figures(classes)} classes or tokens, so that the output knows nothing"


def _raised(case: Case) -> tuple[Row, Row] | None:
    """Return the rows between which the loss rose for good, by at least the factor of `_LEVEL`; None if it did not."""
    return lasting_jump(case.rows, "loss", factor=_LEVEL, after_at_least=_ROWS_AFTER)


def _raised_headline(case: Case) -> str:
    before, after = _raised(case) or (case.rows[0], case.rows[-1])
    step = f" at step {after.step}" if after.step is not None else ""
    return f"The loss jumped from {figures(before.values['loss'])} to {figures(after.values['loss'])}{step} and stays there"


def _waits_for_data(case: Case) -> bool:
    share = data_share(case.rows)
    return share is not None and share >= _DATA_SHARE


def _jumped(case: Case) -> str:
    """Return how much the gradient norm or the loss jumped within two rows; empty if it did not."""
    for name, factor, least, words in _JUMPS:
        jump = largest_jump(case.rows, name)
        numbers = column(case.rows, name)
        # A loss has its first rows, and rows that are printed of something else.
        if name == "loss" and (len(numbers) < _ROWS_OF_MEDIAN or max(numbers) < factor * median(numbers)):
            continue
        if jump and jump[1].values[name] >= max(least, factor * jump[0].values[name]):
            before, after = (row.values[name] for row in jump)
            return f"the {words} jumped from {figures(before)} to {number(round(after)) if after >= 1e4 else figures(after)}"
    norms = column(case.rows, "grad_norm")
    usual = median(norms) if len(norms) >= _ROWS_OF_MEDIAN else 0.0
    if usual > 0 and max(norms) >= max(_SPIKE_LEAST, _SPIKE * usual):
        return f"the gradient norm is {figures(usual)} as a rule and {number(round(max(norms)))} at the most"
    return ""


def _data_headline(case: Case) -> str:
    return f"{percent(data_share(case.rows))} of the time of {_rows(case)} is waiting for data"


def _resumed_elsewhere(case: Case) -> "tuple[int, int] | None":
    """Return (step of the checkpoint, first step of the training) if a run did not go on where it was saved."""
    said = [event.message for event in case.events if event.kind is EventKind.CLUE]
    loaded = [int(match[1]) for text in said if (match := _LOADED.search(text))]
    started = [int(match[1]) for text in said if (match := _STARTED.search(text))]
    if not loaded or not started or started[-1] in (loaded[-1], loaded[-1] + 1):
        return None
    return loaded[-1], started[-1]


def _resume_headline(case: Case) -> str:
    saved, started = _resumed_elsewhere(case) or (0, 0)
    return f"The checkpoint is of step {saved}, and the training starts at step {started}"


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="training.resumed_elsewhere",
        kind=LogClass.RESUME,
        what="A run loads the checkpoint of one step and goes on at another: its counters were not restored.",
        clues=(sign("oading the checkpoint", _LOADED.pattern), sign("raining starts at step", _STARTED.pattern)),
        when=lambda case: case.kind is LogClass.RESUME,
        headline=_resume_headline,
        why="the step is part of the training state; if it comes from elsewhere, learning rate and data position are those of"
        " another step than the weights",
        next=(
            "check what restores the step (train_state in torchtitan's checkpoint): is it in the checkpoint, loaded after"
            " the model, and not left out (checkpoint.exclude_from_loading)? Until then steps are trained twice or left out",
        ),
        rules_out="the weights are meant to be a new start (model only)",
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.equal_rewards",
        kind=LogClass.DEAD_TRAINING,
        what="All completions of a group got the same reward, so that the advantages and the gradient are 0.",
        when=lambda case: _is_of_rows(case) and _has_equal_rewards(case),
        headline="Every group of completions has the same reward: the gradient is 0, nothing is learned",
        why=lambda case: (
            f"the advantage is a reward compared with its group; in {_rows(case)} no group has a difference"
        ),
        next=(
            "look at the completions of one prompt and their rewards: are all cut at the maximum length, all wrong, or all"
            " right? Make the task easier or harder, or the reward finer",
            "raise the number of completions for each prompt (num_generations) or the temperature, so that they differ",
        ),
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.preference_without_gradient",
        kind=LogClass.DEAD_TRAINING,
        what="A preference loss stays at ln 2: the policy equals its reference and gets no gradient.",
        when=lambda case: _is_of_rows(case) and _prefers_nothing(case),
        headline="The loss stays at ln 2 = 0.693 with margins of 0: the policy gets no gradient",
        why="with the policy equal to the reference each margin is 0 and the loss ln 2; it leaves this value only if"
        " parameters change",
        next=(
            "count the trainable parameters (model.print_trainable_parameters(), or those with requires_grad): adapters may"
            " be frozen, merged or not in the optimizer; with gradient checkpointing call"
            " model.enable_input_require_grads() or pass use_reentrant=False",
        ),
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.no_gradient",
        kind=LogClass.DEAD_TRAINING,
        what="The norm of the gradient is exactly 0 in all rows.",
        when=lambda case: _is_of_rows(case) and _has_no_gradient(case),
        headline=lambda case: (
            f"The gradient norm is exactly 0 in {_rows(case)}" + ("" if _loss_falls(case) else ": nothing is learned")
        ),
        why=lambda case: (
            "the loss falls all the same, so the printed norm is not that of the gradients that the optimizer uses"
            if _loss_falls(case)
            else "a norm of exactly 0 means that no parameter got a gradient, or that every sample is masked out of the loss; some trainers"
            " print 0 where they do not compute it"
        ),
        next=(
            "count the parameters that require a gradient and are in the optimizer, and the labels of a batch that are not"
            " masked (-100): `workbench tokens DATASET` shows them",
        ),
        tier=Tier.BROKEN_NUMBERS,
        examples=(
            Example(
                "{'loss': 2.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.0}\n"
                "{'loss': 2.3000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
                "{'loss': 2.1000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.2}\n"
                "{'loss': 1.9000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.3}\n"
                "{'loss': 1.7000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.4}\n"
                "{'loss': 1.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.5}\n"
                "{'loss': 1.3000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.6}\n"
                "{'loss': 1.1000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.7}\n"
                "{'loss': 0.9000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.8}\n"
                "{'loss': 0.7000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.9}\n",
                says=("the loss falls all the same",),
            ),
            Example(
                "{'loss': 2.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.0}\n"
                "{'loss': 2.5100, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
                "{'loss': 2.5200, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.2}\n"
                "{'loss': 2.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.3}\n"
                "{'loss': 2.5100, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.4}\n"
                "{'loss': 2.5200, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.5}\n"
                "{'loss': 2.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.6}\n"
                "{'loss': 2.5100, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.7}\n"
                "{'loss': 2.5200, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.8}\n"
                "{'loss': 2.5000, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.9}\n",
                says=("nothing is learned",),
            ),
        ),
    ),
    Failure(
        id="training.loss_zero",
        kind=LogClass.DEAD_TRAINING,
        what="The loss is exactly 0 in all rows, which no training reaches: no label counts, or the weights are dead.",
        clues=(sign("will be ignored in loss calculation"),),
        when=lambda case: _is_of_rows(case) and _has_no_loss(case),
        headline=lambda case: (
            "All labels are masked: the loss is exactly 0 and nothing is learned"
            if case.printed("will be ignored in loss calculation")
            else f"The loss is exactly 0 in {_rows(case)}: nothing is learned"
        ),
        why="a loss of exactly 0 is hardly convergence: most often it is the mean over no label at all, or what a"
        " trainer prints for NaN",
        next=(
            Advice(
                "the collator finds its response template in no sample, and ignores them: give the template as the tokenizer"
                " encodes it within the text (token ids with the newline before it), and check that prompts fit max_seq_length",
                lambda case: case.printed("will be ignored in loss calculation"),
            ),
            "count the labels of a batch that are not masked (-100): `workbench tokens DATASET`; if there are some, look for"
            " the first NaN in the gradient norm, because after it the weights are dead and the printed loss is 0",
        ),
        tier=Tier.BROKEN_NUMBERS,
        rules_out="the loss is that of a policy (GRPO, PPO), whose printed value may be 0 while it learns",
    ),
    Failure(
        id="training.all_skipped",
        kind=LogClass.DEAD_TRAINING,
        what="The trainer skipped the step of each row, because gradients in fp16 overflowed: no parameter changed.",
        when=lambda case: _is_of_rows(case) and _skips_all(case),
        headline=lambda case: f"Every step of {_rows(case)} was skipped: nothing is learned",
        why="a step is skipped when its gradients are not finite at the loss scale of that step, so parameters and the state"
        " of the optimizer stay as they were; some trainers then print no loss",
        next=(
            "train in bf16 instead of fp16, which needs no loss scale",
            "if the scale of the rows still falls, wait until it fits; if it stays, check what sets it (a fixed loss scale, or"
            " a minimum), and look for inf or NaN in the first batch and the loaded weights",
        ),
        rules_out="the loss scale is still falling from its start, and later steps are taken",
        tier=Tier.BROKEN_NUMBERS,
        knowledge="the rows of Megatron-LM and Megatron-DeepSpeed: number of skipped iterations",
    ),
    Failure(
        id="training.stuck_loss",
        kind=LogClass.DEAD_TRAINING,
        what="The loss has the same value in all rows, to more digits than two batches agree in.",
        when=lambda case: _is_of_rows(case) and _is_stuck(case),
        headline=lambda case: f"The loss stays at {median(column(case.rows, 'loss')):.5g} in {_rows(case)}",
        why=lambda case: (
            "batches differ, and so does the loss of any model that reads them: the parameters do not change, or the output does"
            f" not depend on the input.{_uniform_guess(case)}"
        ),
        next=(
            "compare a parameter before and after optimizer.step(): if it is equal, look at the learning rate of these rows (0,"
            " a warm-up), at which parameters the optimizer was given, and at requires_grad",
            "if it changes, look at the output: logits that are all equal or zero (a dead last layer, weights that were not"
            " loaded, inputs that are all masked)",
        ),
        rules_out="the rows print an average over many steps, or the same batch each time",
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.raised_loss",
        kind=LogClass.LOSS_SPIKE,
        what="The loss jumped to a level several times as high and stays there.",
        when=lambda case: case.kind is LogClass.LOSS_SPIKE and _raised(case) is not None,
        headline=_raised_headline,
        why="a loss that does not come back within some rows points to weights that are damaged by one update that was"
        " too large, to a resume with other weights, or to other data from then on",
        next=(
            "resume from a checkpoint before the jump; look at the gradient norm and the learning rate of that step, and clip"
            " (clip_grad_norm_, max_norm=1.0); a lower learning rate or a longer warm-up if it comes back",
            "if a checkpoint was loaded or the data changed there, compare the loss of one fixed batch before and after",
        ),
        rules_out="the rows after the jump are of an evaluation or of other data",
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.data_wait",
        kind=LogClass.DATA_TIME,
        what="Most of the time of the steps is spent waiting for the data loader.",
        when=lambda case: case.kind is LogClass.DATA_TIME,
        headline=_data_headline,
        why="the loader delivers batches more slowly than the device computes them",
        next=(
            "find what a worker does in this time (num_workers=0 and py-spy, or a profile of __getitem__): decoding, a slow or"
            " network disk, a tokenizer. Store the data decoded or resized, or on a local disk",
            "set num_workers to the number of cores for each rank, not more, with prefetch_factor and persistent_workers=True;"
            " OMP_NUM_THREADS=1 keeps workers from fighting for the cores",
        ),
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.spike",
        kind=LogClass.LOSS_SPIKE,
        what="The gradient norm or the loss jumped by orders of magnitude between two rows.",
        when=lambda case: case.kind is LogClass.LOSS_SPIKE and bool(_jumped(case)),
        headline=_jumped,
        why="most often single batches cause it (broken labels or boxes, an empty target, a very long sample), or a division"
        " by a small number",
        next=(
            "clip the gradients (torch.nn.utils.clip_grad_norm_, max_norm about 10 times the usual norm), and look at the"
            " batches at these rows: samples without targets, extreme values, a wrong label",
            "if it comes back at other batches, lower the learning rate or warm up longer",
        ),
        rules_out="it is the first row, or the loss was not finite before",
        tier=Tier.BROKEN_NUMBERS,
    ),
    Failure(
        id="training.group_not_destroyed",
        kind=LogClass.HEALTHY,
        what="PyTorch warns that a program ended without destroy_process_group(): the warning itself is no failure.",
        signs=(sign("process group has NOT been destroyed"), sign("destroy_process_group() was not called")),
        event=EventKind.CLUE,
        headline="Only a warning: the program ended without destroy_process_group()",
        why="the warning is printed at the end of a program that leaves the process group open",
        next=(
            "call torch.distributed.destroy_process_group() at the end of the program; what it had saved is not touched by this",
        ),
        examples=(
            Example(
                "[rank0]:[W227 10:54:51.986111855 ProcessGroupNCCL.cpp:1374] Warning: WARNING: process group has NOT been"
                " destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call"
                " destroy_process_group to ensure that any pending NCCL operations have finished in this process.",
                source="pytorch/pytorch#147802",
            ),
        ),
        knowledge="the destructor of ProcessGroupNCCL",
    ),
    Failure(
        id="training.loss_scale_search",
        kind=LogClass.HEALTHY,
        what="fp16 training skips steps at its start while it looks for its loss scale: that is normal.",
        signs=(sign("Attempted loss scale", r"Attempted loss scale: \d{3,}(?:\.0)?, (?:reducing|but hysteresis)"),),
        headline="Only a note: fp16 training looks for its loss scale, and skips steps meanwhile",
        why="the scale begins high and is halved at each overflow; the scale of this line is not its minimum",
        next=("nothing to do while the loss falls; bfloat16 needs no loss scale",),
        rules_out="the scale falls to 1 or below, or most steps are skipped later on",
        examples=(
            Example(
                "[2023-04-28 06:51:30,648] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
                " Attempted loss scale: 65536, reducing to 32768",
                source="deepspeedai/DeepSpeedExamples#479",
            ),
        ),
        near_misses=(
            "[2021-11-27 00:36:54,800] [INFO] [stage2.py:1628:step] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss"
            " scale: 1, reducing to 1",
        ),
        knowledge="the dynamic loss scaler of DeepSpeed and apex",
    ),
    Failure(
        id="training.garbage_collection",
        kind=LogClass.HEALTHY,
        what="Python's garbage collector stops single steps for a large part of a second, on each rank at another time.",
        signs=(sign("ms collected", r"\bgen2: \d{2,6}(?:\.\d+)? ?ms collected"),),
        event=EventKind.CLUE,
        headline="Slow, not failed: Python's garbage collection stops single steps",
        why="a collection of the oldest generation looks at all objects; each rank runs it in another step, and"
        " the other ranks wait for it in the next collective, so that step takes longer",
        next=(
            "gc.collect() and gc.freeze() before the loop, gc.disable() in it, and gc.collect(1) every some hundred steps, on all"
            " ranks in the same step (torchtitan: training.gc_freq)",
        ),
        rules_out="the slow steps are not those above which such a line stands",
        examples=(
            Example(
                "[GC rank3] gen2: 713.5ms collected 340341 objects",
                source="karpathy/nanochat#477",
                says=("gc.freeze",),
            ),
        ),
        near_misses=("[GC rank3] gen0: 0.2ms collected 12 objects",),
        knowledge="Python's module gc; torchtitan's GarbageCollection",
    ),
    Failure(
        id="training.graphs_of_many_sizes",
        kind=LogClass.HEALTHY,
        what="torch.compile records a CUDA graph for each new size of the input, which takes time and memory.",
        signs=(sign("recording a new graph for each distinct input size", r"We have observed \d+ distinct sizes"),),
        event=EventKind.CLUE,
        headline="Slow, not failed: torch.compile records a CUDA graph for each size of the input",
        why="the modes reduce-overhead and max-autotune replay recorded graphs, and a batch of a new length needs a recording of its"
        " own",
        next=(
            "pad to one or a few fixed lengths (pad_to_multiple_of, padding='max_length'), or leave graphs out for changing sizes:"
            " torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True, or mode='default'",
        ),
        rules_out="all sizes were seen early, and later steps are fast",
        examples=(
            Example(
                "/usr/local/lib/python3.12/dist-packages/torch/_inductor/cudagraph_utils.py:320: UserWarning: CUDAGraph supports"
                " dynamic shapes by recording a new graph for each distinct input size. Recording too many CUDAGraphs may lead to"
                " extra overhead. We have observed 9 distinct sizes. Please consider the following options",
                source="pytorch/pytorch#188150",
                says=("pad",),
            ),
        ),
        knowledge="torch/_inductor/cudagraph_utils.py",
    ),
    Failure(
        id="training.no_straggler",
        kind=LogClass.HEALTHY,
        what="A straggler report that names no slow rank.",
        signs=(sign("No stragglers detected"),),
        event=EventKind.CLUE,
        headline="Nothing is wrong: the straggler report names no slow rank",
        why="the report compares the times of the ranks, and found no difference above its limit",
        next=("nothing to do",),
        examples=(Example("[default0]:\u2713 No stragglers detected.", source="Megatron-LM's straggler detector"),),
        knowledge="the straggler detector of Megatron-LM",
    ),
)


def judged(case: Case) -> LogClass | None:
    """Return what a case without any error shows by its rows and clues: a class of failure; None if they show none."""
    if _resumed_elsewhere(case):
        return LogClass.RESUME
    rows_of = (_has_equal_rewards, _prefers_nothing, _has_no_gradient, _has_no_loss, _skips_all, _is_stuck)
    if case.rows and any(holds(case) for holds in rows_of):
        return LogClass.DEAD_TRAINING
    if _jumped(case) or _raised(case):
        return LogClass.LOSS_SPIKE
    return LogClass.DATA_TIME if _waits_for_data(case) else None
