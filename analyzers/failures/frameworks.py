"""Failures of what a user hands to a training framework: metrics, functions for its data, quantised layers."""

import re
from difflib import get_close_matches

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case
from analyzers.failures.entry import Advice, Example, Failure, sign


def _logged(case: Case) -> list[str]:
    """Return the names of metrics that a message lists."""
    named = re.findall(r"['`]([^'`\n]{1,80})['`]", case.given.get("logged", "").partition("HINT")[0])
    return [name for name in named if name != case.given["metric"] and not name.isspace()]


def _nearest(case: Case) -> str:
    """Return the logged metric whose name is most like the monitored one; empty if none is."""
    name = case.given["metric"]
    last = [one for one in _logged(case) if one.startswith("eval_") and one.endswith(f"_{name.removeprefix('eval_')}")]
    return next(iter(last or get_close_matches(name, _logged(case), n=1, cutoff=0.75)), "")


def _is_eval_loss(case: Case) -> bool:
    return case.given["metric"] in ("eval_loss", "loss") and not _nearest(case)


def _is_trainer(case: Case) -> bool:
    return case.given.get("of", "").startswith("metric_for")


ENTRIES = (
    Failure(
        id="configuration.monitored_metric",
        kind=LogClass.CRASHED,
        what="A checkpoint callback, early stopping or a scheduler watches a metric that is not logged.",
        signs=(
            sign(
                "monitor",
                r"(?P<of>\w*(?:Checkpoint|Stopping)\w*)\(monitor='(?P<metric>[^']{1,80})'\)`? (?:could not find the monitored key in|not"
                r" found in) the returned metrics: (?P<logged>[^\n]{0,2000})",
            ),
            sign(
                "conditioned on metric",
                r"(?P<of>Early stopping|ReduceLROnPlateau) conditioned on metric `?(?P<metric>[^`\s]{1,80})`? which is not available."
                r"[^\n]{0,200}?(?:[Aa]vailable metrics are|following): (?P<logged>[^\n]{0,2000})",
            ),
            sign(
                "metric_for_best_model",
                r"`(?P<of>metric_for_best_model)` training argument is set to '(?P<metric>[^']{1,80})', which is not found in the"
                r" evaluation metrics. The available evaluation metrics are: (?P<logged>[^\n]{0,2000})",
            ),
        ),
        headline="{of} watches {metric}, which the evaluation or the model does not log",
        why=lambda case: (
            "the metrics that are there are other ones"
            + (f"; the nearest is {nearest}" if (nearest := _nearest(case)) else "")
        ),
        next=(
            Advice(
                lambda case: (
                    f"watch {_nearest(case)} instead"
                    + (
                        f": metric_for_best_model={_nearest(case)}"
                        if _is_trainer(case)
                        else f": monitor='{_nearest(case)}'"
                    )
                ),
                when=lambda case: bool(_nearest(case)),
            ),
            Advice(
                "the evaluation gave no loss: see that each evaluation batch has labels and the model returns a loss (with"
                " peft: label_names=['labels'] in the TrainingArguments), and that the evaluation set has at least one batch"
                " for each rank; or choose one of the listed metrics",
                when=lambda case: _is_trainer(case) and _is_eval_loss(case),
            ),
            Advice(
                "return the metric from compute_metrics (the Trainer adds the prefix eval_), or choose one of the listed ones",
                when=lambda case: _is_trainer(case) and not _is_eval_loss(case),
            ),
            Advice(
                "call self.log with exactly this name in the step or epoch that runs before the callback looks, or let the"
                " callback watch one of the listed names",
                when=lambda case: not _is_trainer(case),
            ),
            Advice(
                "a metric of the validation is there only after a validation: check_val_every_n_epoch, and that the run has"
                " validation data",
                when=lambda case: not _is_trainer(case) and not any("val" in name for name in _logged(case)),
            ),
        ),
        check="the message lists what is logged",
        rules_out="a checkpoint file is missing or damaged",
        examples=(
            Example(
                "lightning.fabric.utilities.exceptions.MisconfigurationException: `ModelCheckpoint(monitor='validation/nll_dec')`"
                " could not find the monitored key in the returned metrics: ['weights/nll', 'validation/loss',"
                " 'validation/nll_decoder', 'epoch', 'step']. HINT: Did you call `log('validation/nll_dec', value)` in the"
                " `LightningModule`?",
                source="vislearn/FFF#3",
                says=("monitor='validation/nll_decoder'",),
            ),
            Example(
                "pytorch_lightning.utilities.exceptions.MisconfigurationException: ModelCheckpoint(monitor='val_loss') not found"
                " in the returned metrics: ['loss', 'l_mle', 'l_length', 'logdet']. HINT: Did you call self.log('val_loss',"
                " value) in the LightningModule?",
                source="NVIDIA-NeMo/Speech#2616",
                says=("only after a validation",),
            ),
            Example(
                "KeyError: \"The `metric_for_best_model` training argument is set to 'eval_loss', which is not found in the"
                " evaluation metrics. The available evaluation metrics are: ['eval_custom_alpaca_loss',"
                " 'eval_custom_alpaca_runtime', 'epoch']. Consider changing the `metric_for_best_model` via the"
                ' TrainingArguments."',
                source="hiyouga/LlamaFactory#7906",
                says=("metric_for_best_model=eval_custom_alpaca_loss",),
            ),
            Example(
                "[rank0]: KeyError: \"The `metric_for_best_model` training argument is set to 'eval_loss', which is not found in"
                " the evaluation metrics. The available evaluation metrics are: ['eval_runtime', 'eval_samples_per_second',"
                " 'eval_steps_per_second', 'epoch']. Consider changing the `metric_for_best_model` via the TrainingArguments.\"",
                source="modelscope/ms-swift#5682",
                says=("at least one batch for each rank", "labels"),
            ),
            Example(
                "RuntimeError: Early stopping conditioned on metric `val_loss` which is not available. Pass in or modify your"
                " `EarlyStopping` callback to use any of the following: `train_loss`",
            ),
        ),
        knowledge="Lightning's ModelCheckpoint; transformers' Trainer._determine_best_metric; hiyouga/LlamaFactory#7906",
    ),
    Failure(
        id="data.map_lengths",
        kind=LogClass.CRASHED,
        what="A function given to Dataset.map returns columns of different lengths for a batch.",
        signs=(
            sign(
                "expected length",
                r"Column \d+ named (?P<column>\S{1,80}) expected length (?P<expected>\d+) but got length (?P<got>\d+)",
            ),
        ),
        headline="Dataset.map: column {column} has {got} rows in a batch where the others have {expected}",
        why="with batched=True all columns of a batch need one length, those of the input that are kept included",
        next=(
            "if the function makes more or fewer rows than it gets (chunks, packing, return_overflowing_tokens):"
            " map(..., remove_columns=dataset.column_names), so that only its own columns remain",
            "if it is written for one sample, leave batched=True out; otherwise return a list with one entry per row for"
            " every column",
        ),
        check="print({k: len(v) for k, v in function(dataset[:8]).items()})",
        rules_out="a damaged file",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "pyarrow.lib.ArrowInvalid: Column 1 named input_ids expected length 1000 but got length 709",
                source="shibing624/MedicalGPT#305",
                says=("remove_columns", "709"),
            ),
        ),
        knowledge="the documentation of datasets on batch mapping; huggingface/datasets#1817",
    ),
    Failure(
        id="data.map_mixed_values",
        kind=LogClass.CRASHED,
        what="Values of one column cannot become a column of Arrow, because they are of different kinds.",
        signs=(
            sign("cannot mix list and non-list"),
            sign("cannot mix struct and non-struct"),
            sign(
                "Could not convert",
                r"ArrowInvalid: Could not convert (?P<value>[^\n]{1,200}?) with type (?P<type>[\w.]+)",
            ),
            sign("Expected bytes, got a", r"ArrowTypeError: Expected bytes, got a '(?P<type>\w+)' object"),
        ),
        headline=lambda case: (
            "One column has values of different kinds"
            + (f" ({case.given['type']} among others)" if case.given.get("type") else " (lists and single values)")
            + ": Arrow cannot store it"
        ),
        why="each column has one type; a later row, or what the mapped function returns, has another one",
        next=(
            "make the column uniform: always a list, always a text, never both",
            Advice(
                "if the function is given one sample at a time, leave out batched=True: with it the function gets and returns lists",
                when=lambda case: case.printed(r"map\(|batched|_map_single"),
            ),
        ),
        check="{type(v) for v in column} before the data set is made",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "pyarrow.lib.ArrowInvalid: cannot mix list and non-list, non-null values",
                source="agiresearch/OpenP5#5",
                says=("always a list",),
            ),
        ),
        knowledge="pyarrow's conversion of Python objects; agiresearch/OpenP5#5",
    ),
    Failure(
        id="autograd.integer_requires_grad",
        kind=LogClass.CRASHED,
        what="A tensor of integers is to require a gradient, most often a quantised weight.",
        signs=(
            sign(
                "can require gradients", r"only Tensors of floating point (?:and complex )?dtype can require gradients"
            ),
        ),
        headline="A parameter of an integer dtype is made trainable: it is a quantised weight, or an index",
        why="gradients exist for floating-point tensors only; weights loaded in 4 or 8 bits are stored as integers",
        next=(
            "if the model is loaded in 4 or 8 bits: train adapters (peft's LoRA after prepare_model_for_kbit_training), and do not"
            " set requires_grad=True on all parameters",
            "a head in modules_to_save must not be quantised: BitsAndBytesConfig(llm_int8_skip_modules=['classifier', 'score',"
            " 'lm_head']) with the name of that layer",
            "without quantisation: create the tensor as float, or set requires_grad only where"
            " param.is_floating_point()",
        ),
        check="print([(n, p.dtype) for n, p in model.named_parameters() if not p.is_floating_point()])",
        examples=(
            Example(
                "RuntimeError: only Tensors of floating point dtype can require gradients",
                source="huggingface/peft#1720",
                says=("llm_int8_skip_modules",),
            ),
            Example(
                '  File "/root/autodl-tmp/ft.py", line 205, in enable_gradients\n'
                "    param.requires_grad = True\n"
                "RuntimeError: only Tensors of floating point and complex dtype can require gradients",
                source="dropbox/hqq#41",
                says=("LoRA",),
            ),
        ),
        knowledge="huggingface/peft#1720; bitsandbytes",
    ),
    Failure(
        id="autograd.packed_weight",
        kind=LogClass.CRASHED,
        what="A matrix product got operands of different dtypes, without saying which; most often a packed 4-bit weight.",
        signs=(sign("self and mat", r"self and mat2 must have the same dtype(?!, but)"),),
        headline="A matrix product got operands of two dtypes: a quantised weight, or a part that was cast otherwise",
        why="a layer whose 4-bit or 8-bit weight is used as a plain matrix sees its packed bytes; otherwise one operand was"
        " cast and the other not",
        next=(
            "with a model in 4 or 8 bits: update peft and bitsandbytes (pip install -U peft bitsandbytes), whose older"
            " versions do not know these layers, and set bnb_4bit_compute_dtype to the dtype of the training",
            "otherwise bring model and inputs to one dtype, or run the line under torch.autocast",
        ),
        check="print the dtypes of both operands in the innermost line",
        examples=(
            Example(
                "RuntimeError: self and mat2 must have the same dtype",
                source="hiyouga/LlamaFactory#13",
                says=("-U peft",),
            ),
        ),
        near_misses=("RuntimeError: self and mat2 must have the same dtype, but got Half and Float",),
        knowledge="hiyouga/LlamaFactory#13; huggingface/peft#156",
    ),
    Failure(
        id="autograd.zero_mixed_dtypes",
        kind=LogClass.CRASHED,
        what="ZeRO-3 flattens parameters of different dtypes into one buffer.",
        signs=(sign("AssertionError"),),
        when=lambda case: case.called(r"stage3\.py:\d+:defragment"),
        headline="ZeRO-3 found parameters of different dtypes where it needs one",
        why="DeepSpeed packs the parameters of a group into one flat buffer, which has one dtype; adapters, heads or norms in fp32"
        " beside bf16 weights break that",
        next=(
            "cast all parameters to one dtype before the engine is made: model.to(torch.bfloat16), also adapters and a value"
            " head (LLaMA-Factory: pure_bf16; peft: autocast_adapter_dtype=False)",
            "or update the training code and DeepSpeed, which cast them in newer versions; ZeRO-2 does not need it",
        ),
        check="print({p.dtype for p in model.parameters()}) before deepspeed.initialize",
        rules_out="memory is full or fragmented: defragment is only the name of the function",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/lib/python3.9/site-packages/deepspeed/runtime/zero/stage3.py", line 525, in defragment\n'
                "    assert len(set(t.dtype for t in tensors)) == 1\n"
                "AssertionError",
                source="hiyouga/LlamaFactory#3634",
                says=("one dtype",),
            ),
        ),
        near_misses=("AssertionError",),
        knowledge="DeepSpeed's runtime/zero/stage3.py; hiyouga/LlamaFactory#3634",
    ),
)
