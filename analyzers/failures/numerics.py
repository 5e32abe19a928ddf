"""Losses and gradients that are not finite."""

import math
import re
from math import isfinite

from analyzers.case.facts import EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.rows import column, values_in
from analyzers.case.wording import at_step, place, quoted
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of
from analyzers.words import rank_names

_OTHER_VALUE = "a value that the program checked"


def nonfinite_loss(case: Case) -> str:
    """Return the title for a loss or gradient that is not finite."""
    lead = case.lead
    if case.reason is Reason.SCALE_EXHAUSTED:
        return f"fp16 gradients overflowed at every loss scale{at_step(lead)}"
    if case.ranks and case.reason is Reason.LOSS:
        return f"the loss of {rank_names(case.ranks)} is not finite{at_step(lead)}{place(lead)}: {quoted(lead)}"
    if case.ranks:
        return f"gradients of {rank_names(case.ranks)} became NaN{at_step(lead)}{place(lead)}"
    step = f" at step {lead.step}" if lead.step is not None else ""
    step = f" in the first row of this text{_of_step(lead)}" if _begins_broken(case) else step
    return f"{_what_is_nonfinite(lead)} {_is(lead)} NaN or infinite{step}{place(lead)}: {quoted(lead)}"


def _headline(case: Case) -> str:
    """Return the headline for a loss or gradient that is not finite, without the row that was printed."""
    if case.reason is Reason.SCALE_EXHAUSTED or case.ranks:
        return nonfinite_loss(case).partition(": {")[0]
    lead = case.lead
    if _is_other_value(case):
        return f"A check of the program found NaN or infinity: {quoted(lead).partition(': ')[2] or quoted(lead)}"
    if _begins_broken(case):
        return f"{_what_is_nonfinite(lead)} {_is(lead)} NaN or infinite in the first row of this text{_of_step(lead)}"
    row = " in the first row" if len(case.rows) > 0 and case.rows[0].line == lead.line else ""
    where = f" at step {lead.step}" if lead.step is not None else row
    return f"{_what_is_nonfinite(lead)} {_is(lead)} NaN or infinite{where}"


def _why_nonfinite(case: Case) -> str:
    """Return what a number that is not finite leads to; the gradient alone may be it while the loss is finite."""
    if case.reason is Reason.SCALE_EXHAUSTED:
        return ""
    if _what_is_nonfinite(case.lead) == "the gradient":
        loss = values_in(case.lead.headline).get("loss", math.nan)
        if loss == 0:
            return (
                "a loss of exactly 0 beside it most often stands for a NaN that the trainer does not print (transformers:"
                " logging_nan_inf_filter), or was computed with weights that are NaN already"
            )
        return (
            "the loss of this row is finite and its gradient is not, so the backward pass made it, if both are of one step; an optimizer"
            " step with it makes the weights NaN, unless it is skipped"
            if isfinite(loss)
            else "an optimizer step with such a gradient makes the weights NaN, unless it is skipped. Some trainers leave"
            " the loss out of a row when it is NaN"
        )
    if _is_other_value(case):
        return "the exception names the value; it need not be the loss, and may be made before any step"
    if any(value < _SCALE_GONE for value in column(case.rows, "scale")):
        return (
            "the gradient scale of these rows is 0 or nearly so: fp16 overflowed step after step until nothing was left of it,"
            " and the optimizer takes no step any more"
        )
    broken, finite = _terms(case)
    if broken and finite and _goes_on(case):
        return (
            f"of the terms of the loss {', '.join(broken[:3])} {'is' if len(broken) == 1 else 'are'} NaN; the others are numbers in"
            " later rows as well, so the weights are, too: such steps are skipped"
        )
    if broken and finite:
        return f"of the terms of the loss {', '.join(broken[:3])} {'is' if len(broken) == 1 else 'are'} NaN, the others are numbers"
    return (
        "once a NaN is in the loss, its gradients become NaN, and so do the weights unless the trainer skips such steps"
    )


def _terms(case: Case) -> tuple[list[str], list[str]]:
    """Return the names of the terms of the loss in the row: those that are not finite, and the others."""
    found = _TERM.findall(case.lead.message)
    broken = [name for name, value in found if value.lower() in ("nan", "inf", "-inf")]
    return broken, [name for name, _ in found if name not in broken]


def _goes_on(case: Case) -> bool:
    """Return whether a later row has numbers in some terms of the loss all the same."""
    later = [row.text for row in case.rows if row.line > case.lead.line]
    return any(value[:1].isdigit() for text in later for _, value in _TERM.findall(text))


def _begins_broken(case: Case) -> bool:
    """Return whether the text begins in the middle of a training whose numbers were not finite by then."""
    lead = case.lead
    batch = _BATCH.search(lead.message)
    step = lead.step if lead.step is not None else int(batch[1]) if batch else 0
    before = [row for row in case.rows if row.line < lead.line and {"loss", "grad_norm"} & row.values.keys()]
    if all(map(isfinite, values_in(lead.headline).values())):
        return False
    return lead.kind is EventKind.NAN and step > _EARLY_STEPS and not any(row.is_finite for row in before)


def _is(lead: LogEvent) -> str:
    return "are" if " and " in _what_is_nonfinite(lead) else "is"


def _of_step(lead: LogEvent) -> str:
    return f" (step {lead.step})" if lead.step is not None else ""


def _is_other_value(case: Case) -> bool:
    """Return whether an exception says of another value than the loss or a gradient that it is not finite."""
    return _what_is_nonfinite(case.lead) == _OTHER_VALUE


_BESIDE = re.compile(r"(?:rewards|logps|logits)/|kl |L ")
"""Matches the name of a number of a row in which no loss and no gradient was read."""


def _what_is_nonfinite(lead: LogEvent) -> str:
    """Return what is not finite according to an event: `the loss`, `the gradient`, or both if it does not say which."""
    broken = {name for name, value in values_in(lead.headline).items() if not isfinite(value)}
    if broken & {"loss", "grad_norm"}:
        return " and ".join(
            word for name, word in (("loss", "the loss"), ("grad_norm", "the gradient")) if name in broken
        )
    text = lead.headline.lower()
    if lead.facts.name and _BESIDE.match(lead.facts.name):
        return lead.facts.name.partition(" ")[0].replace("L", "the loss")
    named = [f"the {name}" for name in ("loss", "gradient") if name[:4] in text]
    if not named and lead.kind is EventKind.EXCEPTION:
        return _OTHER_VALUE
    return " or ".join(named or ("the loss", "the gradient"))


def _for_numbers(case: Case) -> str:
    """Return how to find where NaN or infinity first occurs."""
    if case.ranks:
        ranks = rank_names(case.ranks)
        return f"look at the batch and the device of {ranks}: NaN appeared there before ranks exchanged gradients"
    return _CHECK_FINITE


def _for_course(case: Case) -> str:
    """Return what to do about numbers that are not finite, by when they became so."""
    if case.ranks:
        return ""
    if _is_early(case):
        return _at_start(case)
    if _begins_broken(case):
        return (
            "unless such steps are skipped, these weights are lost: find the last row that is finite, in the log before this text, and resume from a checkpoint"
            " of that time. If the loss or the gradient norm rose there: a lower learning rate, a longer warm-up, gradient clipping."
            f" If no row is finite: {_at_start(case).partition(': ')[2]}"
        )
    if rise := _rise_before(case):
        return (
            f"the loss rose before, from {rise[0]:.4g} to {rise[1]:.4g}: lower the learning rate, warm up longer, clip gradients"
            " (clip_grad_norm_), and resume from before the rise"
        )
    if len(_finite_before(case)) > 1:
        return (
            "the rows before are finite and calm: look at the batch of that step (lengths, rows without labels, inf in the data), skip"
            " steps whose gradient norm is not finite, and resume from a checkpoint before it"
            + ("" if _is_in_bf16(case) else ". fp16 overflows at 65504, bf16 does not")
        )
    return (
        f"if it is so from the first rows on: {_at_start(case).partition(': ')[2]}. If the loss rose before: a lower learning rate, a longer"
        " warm-up, gradient clipping. If one batch causes it, check that batch or leave it out"
    )


# Texts that say more than that a number is not finite.

_CUDNN_SDPA = sign("SDPA", r"(?i)cudnn sdpa")
_CHECK_FINITE = (
    "find where the first NaN appears: check_finite of the workbench's recorder names the module and the step, or a forward hook with"
    " torch.isfinite; in the backward pass torch.autograd.set_detect_anomaly(True)"
)
_AT_START = (
    "NaN from the first steps on comes most often from a kernel, the precision, a mask or the data, not from"
    " the learning rate: try bf16 or fp32 instead of fp16, another attention implementation"
    " (attn_implementation='eager'), with DeepSpeed ZeRO-2 overlap_comm=false, and look at the first batch"
    " (rows without any label or token)"
)


def _is_in_bf16(case: Case) -> bool:
    """Return whether the text says that the training is in bfloat16 already, and nowhere in float16."""
    return any(case.context.has(name, "true") for name in ("bf16", "use_bf16")) or (
        case.context.says(r"(?i)(?:precision|dtype)['\"]?\s?[:=]\s?['\"]?(?:torch\.)?(?:bf16|bfloat16)")
        and not case.context.says(
            r"(?i)(?:precision|dtype)['\"]?\s?[:=]\s?['\"]?(?:torch\.)?(?:fp16|float16)|\bfp16\W{1,4}true"
        )
    )


def _at_start(case: Case) -> str:
    """Return advice on a number that is not finite from the first steps on, without what the text shows to be so."""
    return _AT_START.replace("bf16 or fp32 instead of fp16", "fp32 instead of bf16") if _is_in_bf16(case) else _AT_START


_BACKWARD = {
    "Sqrt": "the square root has an infinite slope at 0: add eps inside, torch.sqrt(x + 1e-8)",
    "Norm": "a norm has no slope at 0: add eps, or leave out rows that are all zero",
    "Pow": "a power below 1 has an infinite slope at 0, and one of a negative number is NaN: clamp the base (x.clamp_min(1e-8))",
    "Log": "the logarithm has an infinite slope at 0: clamp its input (x.clamp_min(1e-8)), or use log_softmax",
    "Div": "a division by 0 or by a very small number: add eps to the divisor, and look for empty masks (sum of 0)",
    "Softmax": "a row that is masked everywhere makes softmax of -inf only: keep one entry of each row, or use a large finite number for the mask",
    "Attention": "attention over a row that is masked everywhere, or a fault of that kernel: try attn_implementation='eager' or another backend"
    " (torch.backends.cuda.enable_cudnn_sdp(False))",
    "Acos": "arccos and arcsin have an infinite slope at -1 and 1: clamp the input to (-1 + 1e-6, 1 - 1e-6)",
    "Where": "torch.where lets the gradient of the branch that is not taken through: make its input safe before (clamp), not only its result",
}
"""{part of a backward function's name: why it gives NaN, and what to do}."""


def _backward(case: Case) -> str:
    """Return why the backward function of this case gives NaN; empty if that depends on its inputs."""
    name = case.given["name"]
    return next((text for part, text in _BACKWARD.items() if part.lower() in name.lower()), "")


def _step_of_nan(case: Case) -> str:
    """Return whether the numbers were not finite from the start, for a headline."""
    step = case.lead.step
    return "" if step is None else f" after step {step}"


def _evidence(case: Case) -> str:
    """Return what the lines around a NaN show about it."""
    if case.printed(r"(?i)cudnn sdpa"):
        return (
            "the log has a warning about cuDNN's SDPA kernel, whose backward pass gave NaN in some versions of PyTorch"
        )
    return "once a NaN is in the loss, its gradients are NaN as well, and so are the weights after a step with them"


def _is_early(case: Case) -> bool:
    """Return whether the number was not finite within the first steps, or in the first row of all."""
    rows = [row for row in case.rows if row.line <= case.lead.line and "loss" in row.values]
    epoch = _EPOCH.search(case.lead.message)
    if epoch and float(epoch[1]) > _EARLY_EPOCH:
        # The text begins in the middle of a training.
        return False
    is_first = len(rows) == 1 and rows[0].line == case.lead.line and (case.lead.step or 0) <= _EARLY_STEPS
    return is_first or (case.lead.step is not None and case.lead.step <= _EARLY_STEPS)


def _finite_before(case: Case) -> list[float]:
    """Return the losses of the rows before the first number that is not finite, the last one being that of its own row."""
    rows = [row.values["loss"] for row in case.rows if row.line <= case.lead.line and "loss" in row.values]
    return [loss for loss in rows if isfinite(loss)]


def _rise_before(case: Case) -> tuple[float, float] | None:
    """Return the lowest loss before the number that is not finite, and the last finite one if it is far above; else None."""
    losses = _finite_before(case)
    if len(losses) < 2 or losses[-1] < _RISE * min(losses[:-1]) or min(losses) <= 0:
        return None
    return min(losses[:-1]), losses[-1]


_EARLY_STEPS, _EARLY_EPOCH, _RISE, _SCALE_GONE = 20, 0.05, 2.0, 1e-6
_TERM = re.compile(
    r"((?:[\w/]{1,20}\.)?(?:\w{1,30}_loss|loss_\w{1,30}))['\"]?\s?[:=]\s?(-?(?:\d[\d.e+-]*|nan|inf))\b", re.IGNORECASE
)
_BATCH = re.compile(r"(?i)\bbatch[ :=#]{1,3}(\d{1,9})\b")
_EPOCH = re.compile(r"(?i)\bepoch['\"]?\s?[:=]?\s?(\d{1,5}(?:\.\d{1,6})?)")


_NO_CUDNN = (
    "switch that kernel off: torch.backends.cuda.enable_cudnn_sdp(False) or TORCH_CUDNN_SDPA_ENABLED=0, or a newer PyTorch; another attention"
    " implementation (flash_attention_2) does as well"
)

TEXTS = (
    Failure(
        id="numerics.backward_nan",
        kind=LogClass.NONFINITE_LOSS,
        what="Anomaly detection found the backward function that gave NaN first.",
        signs=(
            sign(
                "returned nan values in its",
                r"Function '?(?P<name>\w+?)'? returned nan values in its (?P<output>\d+)(?:th|st|nd|rd) output",
            ),
        ),
        clues=(_CUDNN_SDPA,),
        headline="{name} gave the first NaN in the backward pass",
        why=lambda case: (
            f"{reason}; else what it got in the forward pass was NaN already"
            if (reason := _backward(case).partition(":")[0])
            else "it is the first whose result is NaN: what it got in the forward pass was NaN already, or its derivative is infinite"
            " there (a root or norm of 0, a logarithm of 0, 0/0)"
        ),
        next=(
            Advice(_NO_CUDNN, when=lambda case: "Cudnn" in case.given["name"] or case.printed(r"(?i)cudnn sdpa")),
            Advice(
                lambda case: _backward(case).partition(": ")[2] or _backward(case),
                when=lambda case: bool(_backward(case)),
            ),
            "in the line of the forward pass print whether its inputs are finite, and their smallest and largest value (the warning `Traceback"
            " of forward call that caused the error` names the line)",
        ),
        rules_out="the learning rate, if it is one of the first steps",
        event=EventKind.NAN,
        examples=(
            Example(
                "....\n"
                '  File "main.py", line 374, in compute_plane\n'
                "    ca_cb, LU = torch.solve(B, A + eps)\n"
                "\n"
                "Traceback (most recent call last):\n"
                '  File "main.py", line 879, in <module>\n'
                "    main()\n"
                '  File "main.py", line 420, in main\n'
                "    train(fk, train_loader, val_loader, model, optimizer, lr_scheduler, last_iter+1, tb_logger, criterion=loss_fun)\n"
                '  File "main.py", line 544, in train\n'
                "    loss.backward()\n"
                '  File "/lib/python3.6/site-packages/torch/tensor.py", line 107, in backward\n'
                "    torch.autograd.backward(self, gradient, retain_graph, create_graph)\n"
                '  File "/lib/python3.6/site-packages/torch/autograd/__init__.py", line 93, in backward\n'
                "    allow_unreachable=True)  # allow_unreachable flag\n"
                "RuntimeError: Function 'SolveBackward' returned nan values in its 0th output.",
                source="pytorch/pytorch#37712",
                says=("SolveBackward",),
            ),
            Example(
                "RuntimeError: Function 'PowBackward1' returned nan values in its 1st output.",
                source="pytorch/pytorch#38714",
            ),
            Example(
                "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",
                says=("SqrtBackward0", "1e-8"),
            ),
            Example(
                "RuntimeError: Function 'ScaledDotProductCudnnAttentionBackward0' returned nan values in its 0th output.",
                says=("enable_cudnn_sdp(False)",),
            ),
            Example(
                "RuntimeError: Function 'MulBackward0' returned nan values in its 1th output.", says=("forward pass",)
            ),
        ),
        knowledge="torch.autograd.set_detect_anomaly; pytorch/pytorch#139298",
    ),
    Failure(
        id="numerics.loss_is_nan",
        kind=LogClass.NONFINITE_LOSS,
        what="The program stopped because its loss is NaN or infinite.",
        signs=(
            sign(
                "topping training",
                r"(?i)loss is (?P<value>nan|-?inf(?:inity)?)(?:\(\w*\))?[^\n]{0,40}stopping training",
            ),
            sign("is nan or inf", r"[Tt]he loss returned in `\w+` is (?P<value>nan or inf)"),
            sign(
                "infinite or NaN at iteration",
                r"Loss became (?P<value>infinite or NaN) at iteration ?= ?(?P<iteration>\d+)",
            ),
            sign("Train loss contains a NaN"),
            sign("loss is NaN", r"(?:Error|Exception)[^\n]{0,40}[Ll]oss is (?P<value>NaN)"),
        ),
        clues=(_CUDNN_SDPA,),
        headline=lambda case: (
            f"The loss{f' of {rank_names(case.ranks)}' if case.ranks else ''} is not finite"
            + (f" at iteration {n}" if (n := case.given.get("iteration")) else _step_of_nan(case))
            + ", and the program stopped"
        ),
        why=_evidence,
        next=(
            Advice(
                lambda case: (
                    f"look at the batch and the device of {rank_names(case.ranks)}: the logs show it on no other rank"
                ),
                when=lambda case: bool(case.ranks),
            ),
            Advice(_NO_CUDNN, when=lambda case: case.printed(r"(?i)cudnn sdpa")),
            Advice(_at_start, when=_is_early),
            _CHECK_FINITE,
            Advice(
                lambda case: (
                    "if the loss rose before: a lower learning rate, a longer warm-up, clip_grad_norm_; if one batch does it, look at"
                    " that batch" + ("" if _is_in_bf16(case) else "; fp16 overflows at 65504, bf16 does not")
                ),
                when=lambda case: not _is_early(case),
            ),
        ),
        check="the gradient norm and the loss of the steps just before",
        tier=Tier.BROKEN_NUMBERS,
        event=EventKind.NAN,
        examples=(
            Example("Loss is nan, stopping training", says=("not finite", "check_finite", "bf16")),
            Example(
                "FloatingPointError: Loss became infinite or NaN at iteration=1002!",
                source="facebookresearch/meshrcnn#29",
                says=("iteration 1002",),
            ),
        ),
        knowledge="DETR, MAE, detectron2: their checks of the loss",
    ),
    Failure(
        id="numerics.scale_at_minimum",
        kind=LogClass.NONFINITE_LOSS,
        what="The loss scale of fp16 training is at its minimum, and steps still overflow.",
        signs=(
            sign("cannot decrease scale anymore"),
            sign("grad_scale is too small", r"grad_scale is too small, exiting: (?P<scale>[\d.e-]+)"),
            sign("Minimum loss scale reached", r"Minimum loss scale reached \((?P<scale>[\d.e-]+)\)"),
            sign(
                "OVERFLOW",
                # With a hysteresis the first overflows leave the scale as it is: only a small one is its minimum.
                r"OVERFLOW![^\n]{0,60}[Ss]kipping step\. Attempted loss scale: (?P<scale>(?:[0-9]|1[0-6])(?:\.\d+)?|\d\.\d+e-\d+),"
                r" (?:but hysteresis is \d+\. )?[Rr]educing to (?P=scale)(?![\d.])",
            ),
        ),
        headline=lambda case: (
            "fp16 gradients overflow at every loss scale"
            + (f" (down to {case.given['scale']})" if case.given.get("scale") else "")
            + ": the scale cannot fall further"
        ),
        why="the scale is halved after each overflow and cannot fall further: the gradients, or the activations before, are not finite in fp16,"
        " and nothing is learned any more",
        next=(
            "train in bf16 instead of fp16 (bf16: true, --bf16), which has the range of fp32 and needs no scale; on GPUs without it, fp32 for the"
            " loss and the last layers",
            "if it began suddenly, resume from a checkpoint before the first skipped steps with a lower learning rate, and look at the loss there",
            "if it is so from the first step, " + _AT_START.partition(": ")[2],
        ),
        rules_out="a few skipped steps at the beginning, while the scale falls from its start to a level that fits",
        check="all steps are skipped, not only some: the number of skipped iterations grows with every step",
        event=EventKind.NAN,
        examples=(
            Example(
                "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
                says=("bf16", "cannot fall further"),
            ),
            Example(
                "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using"
                " gradient clipping or increasing the batch size.",
                says=("0.0001", "bf16"),
            ),
            Example(
                "[2021-11-27 00:36:54,800] [INFO] [stage2.py:1628:step] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1,"
                " reducing to 1",
                source="huggingface/transformers#14531",
                says=("down to 1", "bf16"),
            ),
        ),
        near_misses=(
            "[stage2.py:1628:step] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
            "[stage2.py:1628:step] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 65536",
        ),
        knowledge="DeepSpeed: fp16 loss_scale_window; fairseq: fp16 optimizer",
    ),
    Failure(
        id="numerics.megatron_nan_check",
        kind=LogClass.NONFINITE_LOSS,
        what="Megatron's check found a NaN on one rank before ranks exchanged gradients.",
        signs=(
            sign(
                "Unexpected result",
                r"(?:[Uu]nexpected result (?P<value>\S+) on rank (?P<rank>\d+) at iteration #?(?P<iteration>\d+)[^\n]{0,60}|Rank (?P<rank2>\d+),"
                r" node [^\n]{0,100}iteration #?(?P<iteration2>\d+)[^\n]{0,60}[Uu]nexpected result )(?:[^\n]{0,40}message='(?P<what>[^'\n]{1,160}))?",
            ),
            sign(
                "found NaN in local",
                r"[Rr]ank (?P<rank>\d+)[^\n]{0,200}(?P<what>found NaN in local (?:grad norm|forward loss)[^\n']{0,120})",
            ),
        ),
        headline=lambda case: (
            f"Rank {case.given.get('rank') or case.given.get('rank2')} computed {'a NaN' if 'nan' in text_of(case.lead).lower() else 'a value that was not expected'}"
            + (
                " in its own gradients"
                if "grad" in case.given.get("what", "")
                else " in its own loss"
                if "loss" in case.given.get("what", "")
                else ""
            )
            + (f" at iteration {n}" if (n := case.given.get("iteration") or case.given.get("iteration2")) else "")
            + ", before any exchange"
        ),
        why="the check looks at each rank before the ranks exchange gradients, so this rank's data, weights or device made it",
        next=(
            "if other ranks report the same iteration, it is the data or the numbers: look at that batch, use bf16, lower the learning rate;"
            " resuming from before and skipping it tells both apart",
            "if it is only this rank, and always this device, suspect the GPU: dcgmi diag -r 3, and exclude its node; the rerun lines say"
            " `reproducible` for a fault of the program and `not reproducible` for one of the device",
            "to go on without the check: --no-check-for-nan-in-loss-and-grad (the NaN then spreads)",
        ),
        event=EventKind.NAN,
        examples=(
            Example(
                "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local"
                " grad norm for bucket #0 in backward pass before data-parallel communication collective')",
                source="NVIDIA/Megatron-LM#5026",
                says=("Rank 3", "iteration 3", "gradients", "dcgmi"),
            ),
            Example(
                "AssertionError: Rank 14: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 6,"
                " node: node-2",
                says=("Rank 14",),
            ),
        ),
        knowledge="Megatron-LM: rerun_state_machine.py",
    ),
    Failure(
        id="numerics.distribution",
        kind=LogClass.NONFINITE_LOSS,
        what="A parameter of a distribution is not valid, most often NaN.",
        signs=(
            sign(
                "to satisfy the constraint",
                r"Expected (?:parameter|value argument) (?:(?P<name>\w+) )?\(Tensor of shape (?P<shape>\([\d, ]*\))\)[\s\S]{0,60}?of distribution"
                r" (?P<kind>\w+)|[Ee]xpected parameter (?P<name2>\w+) [\s\S]{0,200}?to satisfy the constraint",
            ),
        ),
        headline=lambda case: (
            f"Parameter {case.given.get('name') or case.given.get('name2') or 'value'} of the distribution"
            f" {case.given.get('kind') or ''}".rstrip()
            + " is not valid"
            + (": it is NaN" if re.search(r"\bnan\b", text_of(case.lead)) else "")
        ),
        why=lambda case: (
            "what the network gave for it is NaN: most often its weights became NaN in an update before, or its input was"
            if re.search(r"\bnan\b", text_of(case.lead))
            else "the probabilities do not sum to 1 within 1e-6, or one is negative"
            if "Simplex" in text_of(case.lead)
            else "a value outside of what the distribution allows, such as a scale that is not positive"
        ),
        next=(
            Advice(
                "give logits in place of probabilities, or normalise them in float64 (or float32): p / p.sum(-1, keepdim=True)",
                when=lambda case: "Simplex" in text_of(case.lead) and not re.search(r"\bnan\b", text_of(case.lead)),
            ),
            "check inputs (observations, rewards) for NaN or very large numbers (normalise or clip them), and the weights before the update",
            "lower the learning rate, clip gradients (max_grad_norm=0.5), and keep the scale positive: softplus(x) + 1e-5, log_std clamped to"
            " (-20, 2)",
        ),
        examples=(
            Example(
                "ValueError: Expected parameter logits (Tensor of shape (280, 13)) of distribution Categorical(logits: torch.Size([280, 13])) to satisfy the constraint IndependentConstraint(Real(), 1), but found invalid values:\n"
                "tensor([[nan, nan, nan,  ..., nan, nan, nan],\n"
                "        [nan, nan, nan,  ..., nan, nan, nan],\n"
                "        [nan, nan, nan,  ..., nan, nan, nan],\n"
                "        ...,\n"
                "        [nan, nan, nan,  ..., nan, nan, nan],\n"
                "        [nan, nan, nan,  ..., nan, nan, nan],\n"
                "        [nan, nan, nan,  ..., nan, nan, nan]], grad_fn=<SubBackward0>)\n"
                "\n"
                "In tower 0 on device cpu",
                source="IDSIA/hhmarl_2D#15",
                says=("logits",),
            ),
            Example(
                "ValueError: Expected parameter probs (Tensor of shape (4992,)) of distribution Categorical(probs: torch.Size([4992])) to satisfy the constraint Simplex(), but found invalid values:\n"
                "tensor([4.9993e-05, 4.9993e-05, 4.9993e-05,  ..., 4.9993e-05, 4.9993e-05,\n"
                "        4.9993e-05], grad_fn=<DivBackward0>)",
                source="tansey-lab/bayestme#193",
            ),
            Example(
                "ValueError: Expected parameter loc (Tensor of shape (64, 12)) of distribution Normal(loc: torch.Size([64, 12]), scale:"
                " torch.Size([64, 12])) to satisfy the constraint Real(), but found invalid values:\ntensor([[nan, nan, nan],\n        [nan, nan,"
                " nan]], device='cuda:0')",
                says=("loc", "Normal", "NaN", "max_grad_norm"),
            ),
        ),
        knowledge="torch.distributions: argument validation",
    ),
    Failure(
        id="numerics.total_norm",
        kind=LogClass.NONFINITE_LOSS,
        what="The norm of all gradients is not finite, and clipping was called with error_if_nonfinite=True.",
        signs=(
            sign(
                "is non-finite, so it cannot be clipped",
                r"total norm of order \S+ for gradients from `parameters` is non-finite",
            ),
        ),
        headline="The norm of the gradients is NaN or infinite{step}, so it cannot be clipped",
        why="clip_grad_norm_ was called with error_if_nonfinite=True; at least one gradient is not finite",
        next=(
            "with fp16, call scaler.unscale_(optimizer) first, and leave error_if_nonfinite off: the scaler skips such steps itself",
            "else find which: for n, p in model.named_parameters(): print(n, p.grad.isfinite().all()); "
            + _CHECK_FINITE,
        ),
        examples=(
            Example(
                "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this"
                " error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`",
                says=("named_parameters",),
            ),
        ),
        knowledge="torch.nn.utils.clip_grad_norm_",
    ),
    Failure(
        id="numerics.linalg",
        kind=LogClass.NONFINITE_LOSS,
        what="A factorisation of a matrix failed, most often because the matrix is not finite or is ill-conditioned.",
        signs=(
            sign(
                "linalg",
                r"linalg\.(?P<name>\w+): (?:\(Batch element \d+\): )?The (?P<what>algorithm failed to converge|factorization could not be completed|input matrix contained? non-finite)",
            ),
            sign("did not converge", r"(?P<name>SVD|eig\w*) did not converge"),
        ),
        headline=lambda case: f"{case.given['name']} failed: most often its matrix is not finite or nearly singular",
        why="such algorithms fail on NaN and infinity first of all, and on repeated or tiny singular values",
        next=(
            "check the input: torch.isfinite(x).all(); if it is not finite, the cause is in the steps before ("
            + _CHECK_FINITE
            + ")",
            "else work in float64 and add to the diagonal (x + 1e-6 * eye); for optimizers such as Shampoo or SOAP raise their eps",
        ),
        examples=(
            Example(
                "[W BatchLinearAlgebraLib.cpp:703] Warning: torch.linalg.svd: During SVD computation with the selected cusolver driver, batches 0 failed to converge. A more accurate method will be used to compute the SVD as a fallback. Check doc at https://pytorch.org/docs/stable/generated/torch.linalg.svd.html (function operator ())\n"
                "[08:32:34.6859554] Projection failed: linalg.svd: The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated singular values (error code: 2623).",
                source="jiaweizzhao/GaLore#26",
                says=("isfinite",),
            ),
            Example(
                '    File "/home/user/miniconda3/envs/comps/lib/python3.10/site-packages/galore_torch/galore_projector.py", line 21, in project\n'
                "      self.ortho_matrix = self.get_orthogonal_matrix(full_rank_grad, self.rank, type='left')\n"
                '    File "/home/user/miniconda3/envs/comps/lib/python3.10/site-packages/galore_torch/galore_projector.py", line 83, in get_orthogonal_matrix\n'
                "      U, s, Vh = torch.linalg.svd(matrix, full_matrices = False)\n"
                "  torch._C._LinAlgError: linalg.svd: The algorithm failed to converge because the input matrix is ill-conditioned or has too many repeated singular values (error code: 895).",
                source="jiaweizzhao/GaLore#58",
            ),
            Example(
                "torch._C._LinAlgError: linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned or has too many"
                " repeated eigenvalues (error code: 3).",
                says=("eigh", "isfinite"),
            ),
            Example(
                "torch._C._LinAlgError: linalg.cholesky: The factorization could not be completed because the input is not positive-definite (the"
                " leading minor of order 1 is not positive-definite).",
                says=("cholesky",),
            ),
        ),
        event=EventKind.KNOWN,
        knowledge="torch.linalg",
    ),
)


ENTRIES = (
    *TEXTS,
    Failure(
        id="numerics.nan_in_table",
        kind=LogClass.NONFINITE_LOSS,
        what="A row of a table of numbers, whose names stand elsewhere, has NaN.",
        signs=(sign("nan", r"^\s{0,12}\d{1,6}/\d{1,6}\s+\S{1,12}\s[\s\d.eE+-]{0,80}(?:\bnan\b\s*){2,}"),),
        headline="A printed row of numbers has NaN",
        sentence=lambda case: f"a printed row of numbers has NaN: {quoted(case.lead)}",
        why="once a weight is NaN, all that is computed from it is, too",
        next=(
            "if the first rows have it, most often fp16 on this GPU or this model: train without mixed precision (amp"
            " off) or in bfloat16, and look at the labels and the learning rate",
            "if finite rows come before: look at the batches just before the first such row, lower the learning rate, clip"
            " gradients",
            _CHECK_FINITE,
        ),
        event=EventKind.NAN,
        tier=Tier.BROKEN_NUMBERS,
        examples=(
            Example(
                "     0/299    0.489G       nan       nan       nan       nan        10       640         0         0",
                says=("NaN", "mixed precision"),
            ),
        ),
        near_misses=(
            "epoch 3/30 nan_to_num 0",
            "     0/299    0.489G    0.0456    0.0321     0.012        10       640",
        ),
        knowledge="the rows that Ultralytics' trainers print",
    ),
    Failure(
        id="numerics.falling_scale",
        kind=LogClass.NONFINITE_LOSS,
        what="The loss scale of fp16 training falls far below its usual level, because gradients overflow step after step.",
        signs=(
            sign(
                "Attempted loss scale",
                r"Attempted loss scale: (?P<scale>\d{1,2})(?:\.0)?, reducing to (?P<to>\d{1,2}(?:\.\d+)?)",
            ),
        ),
        headline="Gradients overflow step after step: the loss scale has fallen to {to} or below",
        sentence=lambda case: (
            f"gradients overflow step after step{at_step(case.lead)}: fp16's loss scale falls from {case.given['scale']} to"
            f" {case.given['to']}"
        ),
        why="at such a scale a gradient that overflows is huge, infinite or NaN by itself; each of these steps is skipped, and a loss"
        " printed meanwhile, which may be an average, does not show it",
        next=(
            "go back to a checkpoint before the first of these steps, and look at the batches there; lower the learning rate or clip"
            " gradients if the loss had risen",
            "or train in bfloat16, which needs no loss scale",
            "if the weights are not finite by now (torch.isfinite on all parameters), nothing but an older checkpoint helps",
        ),
        rules_out="the scale rises again, and steps are no longer skipped",
        tier=Tier.BROKEN_NUMBERS,
        examples=(
            Example(
                "{'loss': 2.0491, 'learning_rate': 0.000196, 'epoch': 0.28}\n"
                "[2023-06-07 22:20:23,340] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
                " Attempted loss scale: 16, reducing to 8",
                source="ymcui/Chinese-LLaMA-Alpaca#534",
                says=("overflow", "bfloat16"),
            ),
        ),
        knowledge="the dynamic loss scaler of DeepSpeed and apex",
    ),
    Failure(
        id="numerics.nonfinite",
        kind=LogClass.NONFINITE_LOSS,
        what="The loss or a gradient is NaN or infinite.",
        when=lambda case: case.kind is LogClass.NONFINITE_LOSS,
        headline=_headline,
        sentence=nonfinite_loss,
        why=_why_nonfinite,
        clues=(_CUDNN_SDPA,),
        next=(
            Advice(
                "look at the input of the quoted check: print torch.isfinite(x).all() for what goes in, and run the part of the"
                " model that makes it (a VAE, an encoder) in fp32, or in bf16 where the GPU has it",
                when=_is_other_value,
            ),
            Advice(_NO_CUDNN, when=lambda case: case.printed(r"(?i)cudnn sdpa")),
            Advice(
                lambda case: (
                    f"compute {_terms(case)[0][0]} in fp32 (autocast off around it), and look at its formula and its targets: logarithms"
                    " and divisions without eps, empty targets"
                ),
                when=lambda case: all(_terms(case)),
            ),
            _for_course,
            _for_numbers,
        ),
        tier=Tier.BROKEN_NUMBERS,
        examples=(
            Example(
                "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}\n"
                "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 0.02}\n",
                says=("a NaN that the trainer does not print",),
            ),
            Example(
                "bf16: true\n"
                "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.01}\n"
                "{'loss': nan, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 0.02}\n",
                says=("fp32 instead of bf16",),
            ),
        ),
    ),
)
