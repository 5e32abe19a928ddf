"""Failures of what a user hands to a training framework: metrics, functions for its data, quantised layers."""

import re
from difflib import get_close_matches

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.failures.entry import Advice, Example, Failure, sign
from analyzers.failures.versions import caller, innermost


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


_TOKEN_LIKE = 1000
"""An index above this is most often a token id."""
_TRAINERS = (
    "trl",
    "transformers",
    "datasets",
    "unsloth",
    "unsloth_zoo",
    "sentence-transformers",
    "swift",
    "llamafactory",
)
_OF_SAMPLES = r"collat|tokeniz|__call__|__getitem__|_prepare|process|fetch|map"


def _failed_module(case: Case) -> str:
    """Return the module of a registry that could not be imported, by the warning of OpenMMLab; empty without one."""
    texts = (text for event in (*case.failure.events, *case.events) for text in (event.excerpt, event.message))
    return next((match[1] for text in texts if (match := _FAILED_MODULE.search(text))), "")


_FAILED_MODULE = re.compile(r"Failed to import ([\w.]+), please check the location of the registry")


def _is_letter(case: Case) -> bool:
    """Return whether the name of a data set is a single letter, as if a text was run through letter by letter."""
    return len(case.given["name"]) == 1 and case.given["kind"] == "dataset"


def _is_unknown_to_arrow(case: Case) -> bool:
    return case.printed("did not recognize Python value type")


def _has_zero(case: Case) -> bool:
    """Return whether the text has a sign of DeepSpeed, or an index as high as that of an embedding, which its ZeRO-3 splits."""
    return (
        int(case.given["index"]) > _TOKEN_LIKE
        or case.called("deepspeed")
        or case.printed(r"(?i)deepspeed|zero-?3")
        or case.context.says(r"(?i)deepspeed|zero-?3")
    )


def _is_quantised(case: Case) -> bool:
    return bool(
        re.search(r"Quant|WQLinear|Linear4bit|Linear8bit|Marlin|Exllama|HQQ|AQLM|Eetq|GPTQ|AWQ", case.given["module"])
    )


_INSIDE_TORCH = re.compile(r"(?:site|dist)-packages[/\\]torch[/\\]")


def _library(case: Case) -> str:
    """Return the package whose code raised an exception, PyTorch included; empty for the user's code."""
    return "torch" if _INSIDE_TORCH.search(innermost(case)) else caller(case)


_OF_TENSORS = (
    "to",
    "cuda",
    "shape",
    "size",
    "dim",
    "unsqueeze",
    "squeeze",
    "float",
    "long",
    "detach",
    "cpu",
    "device",
    "view",
)
_OF_OUTPUTS = ("logits", "loss", "last_hidden_state", "hidden_states", "pooler_output", "backward", "sample")
_PLAIN = {
    "dict": "a dict has its entries under keys, not as attributes",
    "list": "a list holds the things that have it",
    "tuple": "a tuple holds the things that have it, by their position",
    "str": "a text was passed: a name or path in place of what it stands for, or a key of a dict that was run through",
    "ndarray": "a NumPy array is no tensor of PyTorch",
}
_SHAPE_LINE = re.compile(
    r"([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)+\s*=\s*[\w.\[\]]{1,60}\.(?:shape|size\(\))(?:\[[^\]\n]{1,12}\])?)"
)


def _unpacked(case: Case) -> str:
    """Return the line of code that unpacks a shape, the last one before the exception; empty if there is none."""
    lines = case.lead.excerpt.splitlines()
    return next((match[1] for line in reversed(lines[-8:]) if (match := _SHAPE_LINE.search(line))), "")


ENTRIES = (
    Failure(
        id="checkpoints.fsdp_optimizer_state",
        kind=LogClass.CRASHED,
        what="PyTorch fails while it gathers or loads the optimizer state of FSDP.",
        signs=(sign("AttributeError", r"AttributeError: '\w+' object has no attribute"),),
        when=lambda case: "_optim_utils.py" in innermost(case) and "fsdp" in innermost(case),
        headline="PyTorch failed while gathering the optimizer state of FSDP, most often a fault of its version",
        why="FSDP1 expects the state of each parameter to be tensors of one form on all ranks; older versions of"
        " PyTorch fail on values that are none, and 8-bit or fused optimizers keep other ones",
        next=(
            "update PyTorch (newer versions mended several of these), or save by SHARDED_STATE_DICT in place of"
            " FULL_STATE_DICT",
            "with another optimizer than PyTorch's (8-bit, paged, fused): try adamw_torch, or save the weights only (save_only_model=True)",
        ),
        check="python -c 'import torch; print(torch.__version__)'",
        examples=(
            Example(
                '  File "/opt/lib/python3.9/site-packages/torch/distributed/fsdp/_optim_utils.py", line 1637, in _all_gather_optim_state\n'
                "    for name, non_tensor_value in object_state.non_tensors.items():\n"
                "AttributeError: 'int' object has no attribute 'items'",
                source="huggingface/transformers#25397",
                says=("update PyTorch",),
            ),
        ),
        near_misses=("AttributeError: 'int' object has no attribute 'items'",),
        knowledge="pytorch/pytorch#99079; pacman100/LLM-Workshop#6",
    ),
    Failure(
        id="software.protobuf_twice",
        kind=LogClass.CRASHED,
        what="Two libraries in one process register the same file of protobuf, and the second one aborts the process.",
        signs=(
            sign("File already exists in database", r"File already exists in database: (?P<file>\S{1,200})"),
            sign("CHECK failed: GeneratedDatabase"),
        ),
        headline="Two libraries in this process bring the same protobuf definitions, which aborts it",
        why=lambda case: (
            "each of them has protobuf compiled in"
            + (f" and registers {case.given['file']}" if case.given.get("file") else "")
            + "; most often TensorFlow beside torch_xla, or two builds of one library"
        ),
        next=(
            "uninstall the one that the training does not need: pip uninstall tensorflow (tensorflow-cpu if something imports it) beside"
            " torch_xla; USE_TF=0 keeps transformers from importing it",
            "import PyTorch (torch_xla) first, and see which import aborts: python -X importtime -c 'import MODULE'",
        ),
        event=EventKind.KNOWN,
        explains=("processes.*",),
        examples=(
            Example(
                "[libprotobuf ERROR external/com_google_protobuf/src/google/protobuf/descriptor_database.cc:642] File already exists in"
                " database: tsl/profiler/protobuf/trace_events.proto\n"
                "[libprotobuf FATAL external/com_google_protobuf/src/google/protobuf/descriptor.cc:1986] CHECK failed:"
                " GeneratedDatabase()->Add(encoded_file_descriptor, size):",
                source="huggingface/transformers#28609",
                says=("uninstall tensorflow", "trace_events.proto"),
            ),
        ),
        knowledge="huggingface/transformers#28609",
    ),
    Failure(
        id="software.xla_flag",
        kind=LogClass.STARTUP,
        what="XLA or the TPU's library is given a flag that its version does not know.",
        signs=(
            sign("Unknown command line flag", r"Unknown command line flag '(?P<flag>xla\w{1,80}|tpu\w{1,80})'"),
            sign("Unknown flag", r"Unknown flags? in XLA_FLAGS: (?P<flag>--\w{1,80})"),
        ),
        headline="XLA does not know the flag {flag}",
        why="the library (torch_xla, JAX) sets flags for one version of libtpu and XLA, and another one is installed; or XLA_FLAGS or LIBTPU_INIT_ARGS"
        " in the environment has a flag of another version",
        next=(
            "install torch, torch_xla[tpu] and libtpu of one version (the README of torch_xla has the command)",
            "unset XLA_FLAGS and LIBTPU_INIT_ARGS, or take that flag out of them",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ERROR: Unknown command line flag 'xla_latency_hiding_scheduler_rerun'",
                source="pytorch/xla#6990",
                says=("one version",),
            ),
        ),
        knowledge="pytorch/xla#6990",
    ),
    Failure(
        id="configuration.monitored_metric",
        kind=LogClass.CRASHED,
        what="A checkpoint callback, early stopping or a scheduler watches a metric that is not logged.",
        signs=(
            sign(
                "monitor",
                r"(?<!\w)(?P<of>\w{0,40}?(?:Checkpoint|Stopping)\w{0,20})\(monitor='(?P<metric>[^']{1,80})'\)`? (?:could not find the monitored key in|not"
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
        what="Values of one column cannot become a column of Arrow, because they are of different kinds, or of one that"
        " it does not have.",
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
            f"A column holds values of type {case.given['type']}, which Arrow cannot store"
            if _is_unknown_to_arrow(case)
            else "One column has values of different kinds"
            + (f" ({case.given['type']} among others)" if case.given.get("type") else " (lists and single values)")
            + ": Arrow cannot store it"
        ),
        why=lambda case: (
            "Arrow has types for numbers, texts, lists and structures, and for no other objects of Python"
            if _is_unknown_to_arrow(case)
            else "each column has one type; a later row, or what the mapped function returns, has another one"
        ),
        next=(
            Advice(
                "turn it into what Arrow has: a list or array (tensor.tolist()), a text, or a feature of datasets such as Image() or Audio()",
                when=_is_unknown_to_arrow,
            ),
            Advice(
                "make the column uniform: always a list, always a text, never both",
                when=lambda case: not _is_unknown_to_arrow(case),
            ),
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
            Example(
                "pyarrow.lib.ArrowInvalid: Could not convert <PIL.Image.Image image mode=RGB> with type Image: did not"
                " recognize Python value type when inferring an Arrow data type",
                says=(
                    "which Arrow cannot store",
                    "Image()",
                ),
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
        headline="A tensor of an integer dtype is made to require gradients: most often a quantised weight",
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
                '  File "/home/user/autodl-tmp/ft.py", line 205, in enable_gradients\n'
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
        signs=(sign("AssertionError", r"^(?:\S+\s)?AssertionError:?\s*$"),),
        when=lambda case: case.called(r"stage3\.py:\d+:defragment"),
        headline=lambda case: (
            f"ZeRO-3 found parameters of different {'devices' if case.printed('t.device') else 'dtypes'} where it needs one"
        ),
        why="DeepSpeed packs the parameters of a group into one flat buffer, which has one dtype and device; most"
        " often adapters, heads or norms in fp32 beside bf16 weights break that",
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
    Failure(
        id="data.class_out_of_names",
        kind=LogClass.CRASHED,
        what="The label files of a detection data set hold a class that its configuration does not name.",
        signs=(
            sign(
                "Label class",
                r"Label class (?P<label>\d+) exceeds (?:nc=|dataset class count )(?P<classes>\d+)(?: in (?P<file>\S{1,200}\w))?",
            ),
        ),
        headline="The labels hold class {label}, and the data set's configuration has {classes} classes",
        why=lambda case: (
            f"class numbers begin at 0, so that with {case.given['classes']} classes the highest is"
            f" {int(case.given['classes']) - 1}"
        ),
        next=(
            "list all classes under names (and nc, where it is read) in the data set's yaml; or filter and renumber the label"
            " files to the classes that you train",
            "delete the *.cache files beside the labels afterwards, since they keep what was read before",
        ),
        check="cut -d' ' -f1 labels/train/*.txt | sort -n | uniq -c",
        examples=(
            Example(
                "AssertionError: Label class 15 exceeds nc=2 in data/byself_dotav15_ship_poly.yaml. Possible class labels are 0-1",
                source="hukaixuan19970627/yolov5_obb#398",
                says=("class 15", "highest is 1"),
            ),
        ),
        knowledge="ultralytics' page on detection data sets",
    ),
    Failure(
        id="configuration.not_registered",
        kind=LogClass.CRASHED,
        what="A name in a configuration is in no registry of the framework.",
        signs=(
            sign(
                "is not registered",
                r"Dataset '(?P<name>[^']{1,100})' is not registered! Available (?P<kind>dataset)s are",
            ),
            sign(
                "is not in the",
                r"'?(?P<name>\w[\w.-]{0,100}) is not in the (?:\w+::)?(?P<kind>\w+) registry",
            ),
            sign(
                "No object named", r"No object named '(?P<name>[^']{1,100})' found in '(?P<kind>[^']{1,60})' registry"
            ),
            sign("Undefined dataset", r"Undefined (?P<kind>dataset) (?P<name>\S{1,100}) in dataset_info\.json"),
            sign("Unknown model", r"RuntimeError: Unknown (?P<kind>model) \((?P<name>[^)\n]{1,100})\)"),
        ),
        headline=lambda case: (
            f"The data set's name is '{case.given['name']}', one letter: a text stands where a tuple belongs"
            if _is_letter(case)
            else f"{case.given['name']} is not registered ({case.given['kind']})"
        ),
        why=lambda case: (
            'a loop over a text goes letter by letter; ("name") without a comma is a text, not a tuple'
            if _is_letter(case)
            else "the code that registers it was not imported in this process, another copy of the package is imported, or the"
            " name is spelt otherwise"
        ),
        clues=(
            sign("Failed to import", r"Failed to import (?P<module>[\w.]+), please check the location of the registry"),
        ),
        next=(
            Advice(
                lambda case: (
                    f"python -c 'import {_failed_module(case)}' shows why that package could not be imported, as a warning "
                    "says; until then none of its classes is registered: install the versions of mmcv, mmengine and mmdet that "
                    "it names"
                ),
                when=lambda case: bool(_failed_module(case)),
            ),
            Advice('write the tuple with a comma: cfg.DATASETS.TEST = ("name",), and so for TRAIN', when=_is_letter),
            Advice(
                "register it before it is used, in every process (also in those that launch() or workers start): call the"
                " registration at the top of the training script",
                when=lambda case: (
                    case.given["kind"] == "dataset" and "dataset_info" not in case.lead.message and not _is_letter(case)
                ),
            ),
            Advice(
                "add an entry of this name to dataset_info.json in the folder of --dataset_dir",
                when=lambda case: "dataset_info" in case.lead.message,
            ),
            Advice(
                "update timm, or correct the name: timm.list_models('*part*') lists those of the installed version",
                when=lambda case: "Unknown model" in case.lead.message,
            ),
            Advice(
                "import the module that registers it (custom_imports in a configuration of OpenMMLab, an import in the package's"
                " __init__), and see that the decorator @...register_module() is on the class",
                when=lambda case: case.given["kind"] not in ("dataset", "model") or "registry" in case.lead.message,
            ),
            Advice(
                "if the project brings its own copy of a framework (basicsr, mmdet, detectron2): pip uninstall the one from PyPI,"
                " so that the project's copy is imported",
                when=lambda case: "registry" in case.lead.message,
            ),
        ),
        check="python -c 'import PACKAGE; print(PACKAGE.__file__)'",
        examples=(
            Example(
                "KeyError: \"Dataset 'm' is not registered! Available datasets are: coco_2014_train, coco_2014_val\"",
                source="facebookresearch/detectron2#1946",
                says=("one letter", "comma"),
            ),
            Example(
                "    raise KeyError(f\"No object named '{name}' found in '{self._name}' registry!\")\n"
                "KeyError: \"No object named 'KEEP' found in 'arch' registry!\"",
                source="jnjaby/KEEP#16",
                says=("KEEP", "pip uninstall"),
            ),
            Example(
                "KeyError: 'XXX is not in the models registry'", source="junjie18/CMT#106", says=("custom_imports",)
            ),
            Example("ValueError: Undefined dataset my_data in dataset_info.json.", says=("dataset_dir",)),
            Example("RuntimeError: Unknown model (vit_base_patch16_clip_224)", says=("timm",)),
        ),
        near_misses=("AssertionError: Backend nccl is not registered",),
        knowledge="the registries of OpenMMLab, detectron2 and basicsr; facebookresearch/detectron2#1153",
    ),
    Failure(
        id="configuration.invalid_value",
        kind=LogClass.CRASHED,
        what="A configuration that is checked by pydantic has a value of the wrong type or range.",
        signs=(
            sign(
                "validation error",
                r"validation errors? for (?P<model>[\w.\[\]-]{1,100})\s*\n(?:\[\w+\]:\s?)?(?P<field>[^\s\[][^\n]{0,100})\n"
                r"(?:\[\w+\]:)?\s+(?P<reason>[^\n\[(]{3,200}?)\s*(?:[\[(]type=(?P<type>[\w.]+)(?:, input_value=(?P<value>[^\n]{0,160}?),"
                r" input_type=\w+)?[^\n]{0,60})?$",
            ),
        ),
        headline=lambda case: f"{case.given['field']} is not valid: {case.given['reason'].rstrip('. ')}",
        why=lambda case: (
            f"{case.given['model']} checks its values"
            + (f", and got {case.given['value']}" if case.given.get("value") else "")
        ),
        next=(
            Advice(
                "update transformers (4.45 or newer) and accelerate, which write it as a whole number, or pip install"
                ' deepspeed==0.14.4; a whole number in place of "auto" in the JSON file works where that file is used unchanged',
                when=lambda case: case.given["field"] == "stage3_prefetch_bucket_size",
            ),
            Advice(
                lambda case: f"write {case.given['field']} as a list (in YAML: - on a line of its own for each entry)",
                when=lambda case: "valid list" in case.given["reason"],
            ),
            Advice(
                lambda case: (
                    f"remove {case.given['field']} or correct its spelling: this version does not know it; it may have been renamed"
                    " (changelog), or belong to a newer version"
                ),
                when=lambda case: bool(re.search("[Ee]xtra (?:inputs|fields)", case.given["reason"])),
            ),
            Advice(
                lambda case: f"set {case.given['field']}: it is required",
                when=lambda case: "required" in case.given["reason"].lower(),
            ),
            "correct this value in the configuration file or the command line (the message gives the field, the expected kind and"
            " what was given), or find who writes it if you did not",
        ),
        examples=(
            Example(
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for AxolotlConfigWCapabilities\n"
                "pretraining_dataset\n"
                "  Input should be a valid list [type=list_type, input_value={'path': 'c4', 'name': 'en', 'type': 'pretrain'},"
                " input_type=dict]\n"
                "    For further information visit https://errors.pydantic.dev/2.6/v/list_type",
                source="axolotl-ai-cloud/axolotl#1840",
                says=("pretraining_dataset", "valid list", "as a list"),
            ),
            Example(
                "[rank0]: pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n"
                "[rank0]: stage3_prefetch_bucket_size\n"
                "[rank0]:   Input should be a valid integer, got a number with a fractional part [type=int_from_float,"
                " input_value=11560550.4, input_type=float]",
                source="OpenBMB/MiniCPM-V#694",
                says=("stage3_prefetch_bucket_size", "0.14.4"),
            ),
        ),
        knowledge="pydantic's page on errors; huggingface/transformers#33402",
    ),
    Failure(
        id="configuration.deepspeed_prepare",
        kind=LogClass.CRASHED,
        what="With DeepSpeed, accelerate was given no data loader from which to take the micro batch size.",
        signs=(
            sign(
                "requires you to pass at least one of training or evaluation dataloaders",
            ),
            sign("dataloaders passed to", r"dataloaders passed to `accelerate\.prepare\(\)` has `None` as batch size"),
        ),
        headline="accelerate cannot tell DeepSpeed the micro batch size: no data loader gives one",
        why='the setting train_micro_batch_size_per_gpu is "auto", and accelerator.prepare() got no data loader with a batch_size (none at'
        " all, or one with a batch sampler)",
        next=(
            "pass the data loader in the same call: accelerator.prepare(model, optimizer, dataloader, scheduler)",
            "or set a whole number: train_micro_batch_size_per_gpu in the DeepSpeed file, or"
            " AcceleratorState().deepspeed_plugin.deepspeed_config['train_micro_batch_size_per_gpu'] = N before prepare",
            "if DeepSpeed was not intended: accelerate config, or another --config_file",
        ),
        examples=(
            Example(
                "ValueError: When using DeepSpeed `accelerate.prepare()` requires you to pass at least one of training or"
                " evaluation dataloaders or alternatively set an integer value in `train_micro_batch_size_per_gpu` in the deepspeed"
                " config file",
                source="jquesnelle/yarn#35",
                says=("same call",),
            ),
        ),
        knowledge="accelerate's _prepare_deepspeed; GuHuangAI/ADM-Public#5",
    ),
    Failure(
        id="configuration.unsupported_target",
        kind=LogClass.CRASHED,
        what="peft cannot put LoRA on a module of this class.",
        signs=(
            sign(
                "Target module",
                r"Target module (?P<module>\w+)[\s\S]{0,3000}?\)? is not supported\. Currently, only",
            ),
        ),
        headline="peft cannot put LoRA on a {module}",
        why=lambda case: (
            "it is a quantised layer, for which peft needs a fitting version of itself and of the library of that format"
            if _is_quantised(case)
            else "most often a target name matches a container or a layer of another kind, not the linear layers in it"
        ),
        next=(
            Advice(
                "update peft together with the library of the format (GPTQ: optimum and gptqmodel, or auto-gptq for older"
                " models; AWQ: autoawq): pip install -U peft optimum",
                when=_is_quantised,
            ),
            Advice(
                "or train over the unquantised model in 4 bits: BitsAndBytesConfig(load_in_4bit=True), which peft supports",
                when=_is_quantised,
            ),
            Advice(
                'target the linear layers: target_modules="all-linear", or names such as q_proj, k_proj, v_proj, o_proj; a number'
                " or a whole block as the name matches the block itself",
                when=lambda case: not _is_quantised(case),
            ),
            Advice(
                "if the name is right for one part of the model (vision tower, projector) and wrong for another, give a regular"
                " expression as target_modules, or exclude_modules",
                when=lambda case: not _is_quantised(case),
            ),
        ),
        check="print([(n, type(m).__name__) for n, m in model.named_modules()])",
        examples=(
            Example(
                "ValueError: Target module QuantLinear() is not supported. Currently, only the following modules are supported:"
                " `torch.nn.Linear`, `torch.nn.Embedding`, `torch.nn.Conv2d`, `transformers.pytorch_utils.Conv1D`.",
                source="huggingface/peft#1097",
                says=("quantised", "-U peft optimum"),
            ),
            Example(
                "[rank0]: ValueError: Target module Qwen2DecoderLayer(\n"
                "[rank0]:   (self_attn): Qwen2SdpaAttention(\n"
                "[rank0]:     (q_proj): Linear(in_features=5120, out_features=5120, bias=True)\n"
                "[rank0]:   )\n"
                "[rank0]: ) is not supported. Currently, only the following modules are supported: `torch.nn.Linear`,"
                " `torch.nn.Embedding`.",
                source="xiezhe-24/ChatTS-Training#1",
                says=("Qwen2DecoderLayer", "all-linear"),
            ),
        ),
        knowledge="huggingface/peft#1097; huggingface/transformers#28193",
    ),
    Failure(
        id="data.plain_value",
        kind=LogClass.CRASHED,
        what="A plain value of Python stands where a tensor or an object with attributes is expected.",
        signs=(
            sign(
                "object has no attribute",
                r"'(?P<type>dict|list|tuple|str|int|float|(?:numpy\.)?ndarray)' object has no attribute '(?P<name>\w{1,80})'",
            ),
        ),
        headline=lambda case: (
            f"The code expects an object with .{case.given['name']}, and got {'an' if case.given['type'][0] in 'aeiou' else 'a'}"
            f" {case.given['type']}"
        ),
        why=lambda case: _PLAIN.get(case.given["type"].rpartition(".")[2], ""),
        next=(
            Advice(
                lambda case: (
                    f"it was raised inside {_library(case)}: if no line of yours passes that value, the versions of {_library(case)} and of"
                    " its caller do not fit: try the version that the project pins, or one before or after; look for the message among"
                    " its issues"
                ),
                when=lambda case: _library(case) not in ("", "omegaconf"),
            ),
            Advice(
                "move its entries: {{k: v.to(device) for k, v in batch.items()}}, or a list comprehension for a list",
                when=lambda case: (
                    case.given["name"] in ("to", "cuda") and case.given["type"] in ("dict", "list", "tuple")
                ),
            ),
            Advice(
                "make a tensor of it first: torch.as_tensor(x), or torch.stack(x) for a list of tensors of one shape",
                when=lambda case: case.given["name"] in _OF_TENSORS and case.given["type"] != "dict",
            ),
            Advice(
                "take the output by its position (outputs[0]), or call the model with return_dict=True",
                when=lambda case: case.given["type"] == "tuple" and case.given["name"] in _OF_OUTPUTS,
            ),
            Advice(
                "pass the class that the function expects: OmegaConf.create(d) for OmegaConf and NeMo, the model's Config class for"
                " transformers, SimpleNamespace(**d) for own code",
                when=lambda case: case.given["type"] == "dict" and case.given["name"] not in ("to", "cuda"),
            ),
            Advice(
                'or, if the line is yours, read it as d["{name}"]',
                when=lambda case: case.given["type"] == "dict" and not case.given["name"].startswith("_"),
            ),
            "go up the frames to the line that passes it, and print type(x) there: a function may return another type in the installed"
            " version than the caller expects",
        ),
        examples=(
            Example(
                "AttributeError: 'dict' object has no attribute '_get_node_flag'",
                source="NVIDIA-NeMo/Speech#2557",
                says=("OmegaConf.create",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.12/dist-packages/transformers/tokenization_utils_base.py", line 2419, in _from_pretrained\n'
                '    if _config.model_type not in ["mistral", "mistral3"]:\n'
                "AttributeError: 'dict' object has no attribute 'model_type'",
                source="vllm-project/vllm#29368",
                says=("inside transformers", "one before or after"),
            ),
            Example("AttributeError: 'tuple' object has no attribute 'logits'", says=("outputs[0]",)),
            Example("AttributeError: 'list' object has no attribute 'to'", says=("as_tensor", "list comprehension")),
        ),
        near_misses=("AttributeError: 'NoneType' object has no attribute 'shape'",),
        knowledge="Python's data model; NVIDIA-NeMo/Speech#2557",
    ),
    Failure(
        id="autograd.shape_unpacked",
        kind=LogClass.CRASHED,
        what="The shape of a tensor is unpacked into another number of names than it has dimensions.",
        signs=(
            sign(
                "not enough values to unpack",
                r"not enough values to unpack \(expected (?P<expected>\d+), got (?P<got>\d+)\)",
            ),
            sign(
                "too many values to unpack",
                r"too many values to unpack \(expected (?P<expected>\d+)(?:, got (?P<got>\d+))?\)",
            ),
        ),
        when=lambda case: bool(_unpacked(case)),
        headline=lambda case: (
            f"A tensor's shape has {case.given['got'] or 'more'} where {case.given['expected']} are unpacked:"
            f" {_unpacked(case)}"
        ),
        why=lambda case: (
            "a dimension is missing, most often that of the batch"
            if case.given["got"] and int(case.given["got"]) < int(case.given["expected"])
            else "there is a dimension more than the code knows of, such as that of channels, of time or of a batch of batches"
        ),
        next=(
            Advice(
                'add it: x.unsqueeze(0) for a single sample, or return_tensors="pt" in the tokenizer or processor; in a data set'
                " return single samples and let the loader stack them",
                when=lambda case: bool(case.given["got"]) and int(case.given["got"]) < int(case.given["expected"]),
            ),
            Advice(
                'drop or merge it: x.squeeze(1) where it is 1 (a processor\'s return_tensors="pt" inside a data set adds one), or'
                " x.flatten(0, 1)",
                when=lambda case: not case.given["got"] or int(case.given["got"]) > int(case.given["expected"]),
            ),
            "print x.shape just before that line, and compare it with the shape that the function's documentation names",
        ),
        examples=(
            Example(
                "    batch_size, seq_length = input_ids.shape\n"
                "ValueError: not enough values to unpack (expected 2, got 1)",
                source="rmihaylov/falcontune#18",
                says=("has 1 where 2", "unsqueeze"),
            ),
            Example(
                "    bsz, q_len, _ = hidden_states.size()\nValueError: too many values to unpack (expected 3)",
                says=("squeeze",),
            ),
        ),
        near_misses=("ValueError: not enough values to unpack (expected 2, got 1)",),
        knowledge="Python's unpacking; rmihaylov/falcontune#18",
    ),
    Failure(
        id="data.decoded_ignored",
        kind=LogClass.CRASHED,
        what="Token ids that stand for ignored positions (-100) are decoded to text.",
        signs=(sign("out of range integral type conversion attempted"),),
        headline="A token id outside of the vocabulary is decoded: most often the -100 of ignored positions",
        why="labels, and predictions that the Trainer has padded to one length, hold -100, which no tokenizer can decode; logits"
        " in place of ids fail alike",
        next=(
            "before batch_decode: preds = np.where(preds != -100, preds, tokenizer.pad_token_id), and the same for the labels",
            "if the predictions are logits: preds = preds.argmax(-1), or predict_with_generate=True",
            "if the id comes from a configuration (pad_token_id=-1), set it to an existing token",
        ),
        check="print(preds.min(), preds.max(), len(tokenizer))",
        examples=(
            Example(
                "OverflowError: out of range integral type conversion attempted",
                source="amazon-science/mm-cot#69",
                says=("np.where",),
            ),
        ),
        knowledge="huggingface/transformers#22634; artidoro/qlora#49",
    ),
    Failure(
        id="data.metric_shapes",
        kind=LogClass.CRASHED,
        what="compute_metrics gets predictions of another shape or kind than it was written for.",
        signs=(
            sign(
                "AxisError",
                r"AxisError: axis (?P<axis>-?\d+) is out of bounds for array of dimension (?P<dimensions>\d+)",
            ),
            sign("inhomogeneous shape", r"requested array has an inhomogeneous shape"),
            sign("the expected format", r"Predictions and/or references don't match the expected format"),
            sign(
                "Classification metrics can't handle",
                r"Classification metrics can't handle a mix of (?P<mix>[^\n]{3,80})",
            ),
            sign("Target is multiclass but average"),
        ),
        when=lambda case: (
            case.printed(r"compute_metrics|metric|argmax|evaluate|Prediction|average=")
            or case.called(r"compute_metrics|metric")
        ),
        headline="The metric gets predictions of another shape or kind than it was written for",
        why="predictions may be a tuple (logits and further outputs of the model), token logits where classes are expected, or"
        " samples of different lengths that are no array",
        next=(
            Advice(
                "give the metric an average: average='macro' (or 'weighted'), since there are more than two classes",
                when=lambda case: "multiclass but average" in case.lead.message,
            ),
            Advice(
                "print type(predictions) and the shapes in compute_metrics; if it is a tuple take predictions[0], then argmax over"
                " the last axis (axis=-1)",
                when=lambda case: "multiclass but average" not in case.lead.message,
            ),
            "keep only the logits with preprocess_logits_for_metrics, or ignore_keys for further outputs of the model (hidden"
            " states, past_key_values)",
            "for a metric of evaluate: the types have to be those that metric.features names (class numbers, not logits or lists)",
        ),
        examples=(
            Example(
                "    predictions = np.argmax(predictions, axis=2)\n"
                "AxisError: axis 2 is out of bounds for array of dimension 1",
                source="airaria/TextBrewer#117",
                says=("predictions[0]",),
            ),
            Example(
                '  File "run_glue.py", line 498, in compute_metrics\n'
                "    result = metric.compute(predictions=preds, references=p.label_ids)\n"
                "ValueError: Predictions and/or references don't match the expected format.",
                source="huggingface/transformers#39510",
                says=("metric.features",),
            ),
        ),
        near_misses=("AxisError: axis 2 is out of bounds for array of dimension 1",),
        knowledge="transformers' EvalPrediction; huggingface/transformers#39510",
    ),
    Failure(
        id="startup.wandb_process",
        kind=LogClass.STARTUP,
        what="The program gets no answer from wandb's own process on the same machine.",
        signs=(sign("Error communicating with wandb process"),),
        headline="The helper process of wandb on this machine does not answer",
        why="the call of wandb.init starts a helper process and gave up waiting for it; this says nothing of the training itself",
        next=(
            'train without it first: WANDB_MODE=disabled (or report_to="none"), or WANDB_MODE=offline and `wandb sync` later',
            "update wandb, start it on one rank only, and give it time: wandb.init(settings=wandb.Settings(init_timeout=300,"
            ' start_method="thread"))',
            "end helper processes of earlier runs, and see that WANDB_DIR is on a local disk that is not full",
        ),
        check="logs/debug-internal.log in the run's wandb folder",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "wandb: ERROR Error communicating with wandb process\n"
                "wandb: ERROR For more info see: https://docs.wandb.ai/library/init#init-start-error",
                source="bigcode-project/Megatron-LM#27",
                says=("WANDB_MODE=disabled",),
            ),
            Example(
                "wandb.errors.UsageError: Error communicating with wandb process", source="ultralytics/yolov5#5498"
            ),
        ),
        knowledge="wandb's page on init errors",
    ),
    Failure(
        id="startup.mlflow",
        kind=LogClass.STARTUP,
        what="mlflow cannot use its store of runs, or refuses a parameter.",
        signs=(
            sign(
                "MissingConfigException", r"MissingConfigException: Yaml file '(?P<file>[^'\n]{1,300})' does not exist"
            ),
            sign(
                "MlflowException",
                r"(?:MlflowException|RestException): (?P<refused>[^\n]{0,200}(?:length|Changing param values is not allowed)[^\n]{0,80})",
            ),
        ),
        headline=lambda case: (
            "The folder in which mlflow keeps its runs is incomplete: a meta.yaml is missing"
            if case.given.get("file")
            else "The tracking service mlflow refuses a parameter of the run"
        ),
        why=lambda case: (
            f"{case.given['file']} belongs to mlflow's local store, not to the training's configuration"
            if case.given.get("file")
            else "a value is longer than mlflow stores, or differs from what was logged to the same run before"
        ),
        next=(
            Advice(
                "delete or move away that folder of mlruns (or set MLFLOW_TRACKING_URI to another place), and start again",
                when=lambda case: bool(case.given.get("file")),
            ),
            Advice(
                "start a new run (unset MLFLOW_RUN_ID), or update mlflow, which stores longer values",
                when=lambda case: not case.given.get("file"),
            ),
            'if you do not need mlflow: report_to="none", or DISABLE_MLFLOW_INTEGRATION=TRUE; the Trainer uses it because it is'
            " installed",
        ),
        examples=(
            Example(
                "mlflow.exceptions.MissingConfigException: Yaml file '/home/user/src/axolotl/mlruns/0/meta.yaml' does not exist.",
                source="axolotl-ai-cloud/axolotl#1307",
                says=("mlruns", 'report_to="none"'),
            ),
        ),
        event=EventKind.KNOWN,
        knowledge="mlflow's file store; transformers' MLflowCallback",
    ),
    Failure(
        id="autograd.index_into_empty",
        kind=LogClass.CRASHED,
        what="A row of a tensor without rows is read: it is empty, or ZeRO-3 keeps it sharded.",
        signs=(sign("with size", r"index (?P<index>-?\d+) is out of bounds for (?:dimension|axis) 0 with size 0\b"),),
        headline=lambda case: (
            f"A tensor of 0 rows is read at row {case.given['index']}"
            + (
                ": a weight that ZeRO-3 has not gathered, or nothing in it"
                if _has_zero(case)
                else ": there is nothing in it"
            )
        ),
        why=lambda case: (
            "what fills it found nothing"
            if not _has_zero(case)
            else "an index as high as a token id points to an embedding, which under ZeRO-3 has 0 rows outside of its module's forward"
            if int(case.given["index"]) > _TOKEN_LIKE
            else "what fills it found nothing, or under ZeRO-3 it is a weight outside of its module's forward"
        ),
        next=(
            Advice(
                "with ZeRO-3 (also while the model is loaded): update transformers, which skips such initialisations, wrap own code in"
                " deepspeed.zero.GatheredParameters([weight]), or use ZeRO-2",
                when=lambda case: int(case.given["index"]) > _TOKEN_LIKE,
            ),
            "print the tensor's shape before that line: without ZeRO-3 it is an empty split, batch or selection, so look at what"
            " fills it",
            Advice(
                "with ZeRO-3: a weight used outside of its module's forward needs deepspeed.zero.GatheredParameters([weight])",
                when=lambda case: int(case.given["index"]) <= _TOKEN_LIKE,
            ),
        ),
        examples=(
            Example(
                "[rank6]: IndexError: index 151643 is out of bounds for dimension 0 with size 0",
                source="modelscope/ms-swift#7988",
                says=("ZeRO-3", "151643"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 9, in main\n'
                "    first = boxes[0]\nIndexError: index 0 is out of bounds for dimension 0 with size 0",
                says=("there is nothing in it",),
            ),
        ),
        near_misses=("IndexError: index 2 is out of bounds for dimension 1 with size 2",),
        knowledge="DeepSpeed's documentation of ZeRO-3; modelscope/ms-swift#7988",
    ),
    Failure(
        id="configuration.vocabulary",
        kind=LogClass.CRASHED,
        what="The labels hold token ids that the model's vocabulary does not have.",
        signs=(sign("Label values must be", r"Label values must be <=? ?vocab_size: (?P<size>\d+)"),),
        headline="The labels hold token ids of {size} or more, and the model's vocabulary has {size}",
        why="most often the tokenizer has more tokens than the model's configuration, which was made for another"
        " vocabulary",
        next=(
            "load the model for this tokenizer: from_pretrained(..., vocab_size=len(processor.tokenizer),"
            " pad_token_id=processor.tokenizer.pad_token_id, ignore_mismatched_sizes=True)",
            "padding of the labels must be -100, not an id of the tokenizer beyond the vocabulary",
        ),
        check="print(len(processor.tokenizer), model.config.vocab_size, max(labels))",
        examples=(
            Example(
                "ValueError: Label values must be <= vocab_size: 29",
                source="phineas-pta/fine-tune-whisper-vi#1",
                says=("vocab_size=len(processor.tokenizer)",),
            ),
        ),
        knowledge="transformers' CTC models",
    ),
    Failure(
        id="data.dataset_dict",
        kind=LogClass.CRASHED,
        what="A dictionary of splits was passed where one data set is expected.",
        signs=(
            sign("Column to remove", r"Column to remove \['(?P<split>train|test|validation)'\] not in the dataset"),
            sign("'DatasetDict' object has no attribute", r"'DatasetDict' object has no attribute '(?P<name>\w+)'"),
        ),
        headline="A DatasetDict (all splits) was passed where one split is expected",
        why="the call of load_dataset without split= returns a dictionary of splits, whose keys are taken for columns",
        next=(
            'pass one split: load_dataset(..., split="train"), or dataset["train"]; also for JSON and CSV files, which get the'
            " split train",
        ),
        examples=(
            Example(
                "ValueError: Column to remove ['train'] not in the dataset. Current columns in the dataset: ['prompt', 'completion']",
                source="huggingface/trl#2541",
                says=('split="train"',),
            ),
        ),
        knowledge="the documentation of load_dataset; huggingface/trl#2541",
    ),
    Failure(
        id="data.missing_column",
        kind=LogClass.CRASHED,
        what="A trainer's own code reads a column that the samples do not have.",
        signs=(
            sign(
                "KeyError",
                r"KeyError: '(?P<column>prompt|chosen|rejected|completion|messages|text|labels|label|input_ids|attention_mask|images|"
                r"image|pixel_values|input_features|audio|sentence|query|response|instruction|conversations|prompt_input_ids)'",
            ),
        ),
        when=lambda case: caller(case) in _TRAINERS and case.called(_OF_SAMPLES),
        headline=lambda case: f"The samples have no column {case.given['column']}, which {caller(case)} reads",
        why="the columns are not those of this trainer's data format, or the Trainer dropped them because the model's forward does not"
        " take them",
        next=(
            Advice(
                "bring the data set to this trainer's columns with map or rename_column: prompt, chosen, rejected for DPO, ORPO,"
                " CPO and (without prompt) rewards; prompt, completion, label for KTO; prompt for GRPO and RLOO; text, messages or"
                " prompt + completion for SFT",
                when=lambda case: caller(case) in ("trl", "unsloth", "unsloth_zoo"),
            ),
            Advice(
                "bring the data set to the columns that this code reads (map, rename_column), and see that the function that makes"
                " them ran on every split",
                when=lambda case: caller(case) not in ("trl", "unsloth", "unsloth_zoo"),
            ),
            "if the column is there before training: remove_unused_columns=False, since the Trainer drops what forward() does not name",
        ),
        check="print(trainer.train_dataset.column_names)",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/env/lib/python3.10/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n'
                "    return self.collate_fn(data)\n"
                '  File "/opt/env/lib/python3.10/site-packages/trl/trainer/utils.py", line 471, in __call__\n'
                '    prompt = feature["prompt"]\n'
                "KeyError: 'prompt'",
                source="rui-ye/OpenFedLLM#39",
                says=("prompt, chosen, rejected", "remove_unused_columns=False"),
            ),
        ),
        near_misses=("KeyError: 'prompt'",),
        knowledge="trl's page on data set formats; modelscope/ms-swift#1922",
    ),
    Failure(
        id="configuration.dummy_optimizer",
        kind=LogClass.CRASHED,
        what="accelerate's placeholder for DeepSpeed's optimizer is used as if it were one.",
        signs=(sign("Dummy", r"'(?P<name>DummyOptim|DummyScheduler)' object has no attribute '(?P<attribute>\w+)'"),),
        headline="The placeholder {name} was not replaced: DeepSpeed did not take over the optimizer",
        why="the library accelerate puts it where DeepSpeed is to make the optimizer from its own configuration; here the training loop got the"
        " placeholder itself",
        next=(
            "start the script with its launcher (deepspeed train.py or accelerate launch), one process per GPU: with plain python and"
            " several GPUs the Trainer wraps in DataParallel instead",
            "update transformers and accelerate together, so that they agree on whether DeepSpeed runs: pip install -U transformers"
            " accelerate deepspeed",
            "with your own loop: use DummyOptim only if the DeepSpeed file has an optimizer, and pass it to accelerator.prepare",
        ),
        examples=(
            Example(
                "AttributeError: 'DummyOptim' object has no attribute 'step'",
                source="deepspeedai/DeepSpeed#3867",
                says=("launcher", "-U transformers"),
            ),
        ),
        knowledge="accelerate's page on DeepSpeed; deepspeedai/DeepSpeed#3867",
    ),
    Failure(
        id="processes.only_wrapper",
        kind=LogClass.CRASHED,
        what="An exception that only says that something else failed.",
        signs=(
            sign("TrainingFailedError", r"(?P<name>TrainingFailedError): (?!\S+Error)"),
            sign("Some workers returned results while others"),
        ),
        when=lambda case: not case.lead.chain,
        headline=lambda case: (
            f"{case.given.get('name') or 'The launcher'} only says that something else failed, not what"
        ),
        why="the process that reports it only waits for the one that failed, and this exception does not carry that"
        " one's own",
        next=(
            "look in the rest of the log, or in the output of that process, for the first traceback: its last line is"
            " the cause",
            Advice(
                "Ray keeps the output of each worker in /tmp/ray/session_latest/logs (worker-*.err), and the trial's error.txt",
                when=lambda case: case.given.get("name") == "TrainingFailedError",
            ),
        ),
        tier=Tier.VAGUE,
        examples=(
            Example(
                "TrainingFailedError: The Ray Train run failed. Please inspect the previous error messages for a cause. After fixing the"
                " issue (assuming that the error is not caused by your own application logic, but rather an error such as OOM), you can"
                " restart the run from scratch or continue this run.",
                source="GokuMohandas/Made-With-ML#271",
                says=("error.txt",),
            ),
        ),
        knowledge="Ray Train's BaseTrainer.fit",
    ),
    Failure(
        id="software.processor_class",
        kind=LogClass.CRASHED,
        what="A processor of transformers gets a part of another class than it takes.",
        signs=(
            sign(
                "for argument",
                r"Received an? (?P<got>\w+) for argument (?P<argument>\w+), but an? (?P<wanted>\w+|\([^)\n]{1,200}\)) was expected",
            ),
        ),
        headline=lambda case: (
            f"The processor got a {case.given['got']} as {case.given['argument']}, and takes another class"
        ),
        why=lambda case: (
            f"it expects {case.given['wanted']}; "
            + (
                "most often vLLM makes the processor in a way that fits another version of transformers than the installed"
                " one"
                if case.called("vllm")
                else "most often the files of the processor (preprocessor_config.json) or the calling code fit another version"
                " of transformers"
            )
        ),
        next=(
            "install the transformers that the calling package names (pip show vllm; pip check), or update that package",
            Advice(
                "or use_fast=False (use_fast=True) when the processor is loaded",
                when=lambda case: "Fast" in case.given["got"] + case.given["wanted"],
            ),
            "if the processor was saved by a training with another version, copy the processor's files of the base model over it",
        ),
        examples=(
            Example(
                "TypeError: Received a Qwen2VLImageProcessorFast for argument image_processor, but a Qwen2VLImageProcessor was expected.",
                source="vllm-project/vllm#20855",
                says=("transformers", "use_fast"),
            ),
        ),
        knowledge="transformers' ProcessorMixin; vllm-project/vllm#20855",
    ),
    Failure(
        id="data.annotation_format",
        kind=LogClass.CRASHED,
        what="An annotation file is in another format than its reader expects.",
        signs=(
            sign("Annotation must have data_list and metainfo keys"),
            sign("annotation file format", r"annotation file format <class '(?P<type>\w+)'> not supported"),
            sign("Results do not correspond to current coco set"),
        ),
        headline=lambda case: (
            "The results and the COCO annotations are of different images"
            if "Results do not" in case.lead.message
            else "The annotation file is in another format than the data set's class reads"
        ),
        why=lambda case: (
            "the image ids of the predictions are not those of the annotation file, such as that of another split"
            if "Results do not" in case.lead.message
            else "the BaseDataset of mmengine reads OpenMMLab's own format, with data_list and metainfo; COCO's is read by its subclasses"
            if "data_list" in case.lead.message
            else "COCO's format is an object with images, annotations and categories"
        ),
        next=(
            Advice(
                "derive the class from the one that reads COCO (CocoDataset, BaseCocoStyleDataset), or convert the file to an object with"
                " metainfo and data_list",
                when=lambda case: "data_list" in case.lead.message,
            ),
            Advice(
                "let the evaluator read the annotation file of the split that was predicted (ann_file in val_evaluator and dataset)",
                when=lambda case: "Results do not" in case.lead.message,
            ),
            "open the file and compare its top-level keys with the documentation of the data set's class",
        ),
        examples=(
            Example(
                "ValueError: Annotation must have data_list and metainfo keys",
                source="open-mmlab/mmpose#3053",
                says=("BaseCocoStyleDataset",),
            ),
            Example("AssertionError: annotation file format <class 'list'> not supported", says=("categories",)),
        ),
        knowledge="mmengine's BaseDataset; pycocotools",
    ),
    Failure(
        id="configuration.missing_key",
        kind=LogClass.CRASHED,
        what="Code asks the configuration or the parsed arguments for something that is not in them.",
        signs=(
            sign(
                "object has no attribute",
                r"'(?P<type>Namespace|ConfigDict|AttrDict|EasyDict|DotDict|dotdict|Munch|CfgNode|CN|SimpleNamespace|AttributeDict|Box)' object"
                r" has no attribute '(?P<key>\w{1,80})'",
            ),
            sign("KeyError", r"KeyError: '(?P<key>\w{1,80})'"),
            sign("Key", r"ConfigAttributeError: (?:Key '|Missing key )(?P<key>\w{1,80})"),
        ),
        when=lambda case: (
            case.printed(r"object has no attribute|ConfigAttributeError")
            or case.called(r"(?:mmengine|mmcv)[/\\](?:config|utils)[/\\]config\.py|omegaconf|yacs|addict")
        ),
        headline=lambda case: f"The configuration has no {case.given['key']}, which the code asks for",
        why="the file or the command line does not set it and the code has no default: the two are of different versions, the file is"
        " only a part of a configuration, or the name is spelt otherwise",
        next=(
            Advice(
                "add the option to the script's parser, or pass the object that has it; where another library adds its own options, call"
                " what adds them before parse_args",
                when=lambda case: case.given.get("type") in ("Namespace", "SimpleNamespace"),
            ),
            Advice(
                "give a complete configuration (in OpenMMLab: with model, train_dataloader, train_cfg, or _base_ files that have them) and"
                " one for the installed version",
                when=lambda case: case.given.get("type") not in ("Namespace", "SimpleNamespace"),
            ),
            "compare with an example configuration of the same version of the project",
        ),
        check="print the configuration as it is after all files and overrides are merged",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/lib/python3.10/site-packages/mmengine/runner/runner.py", line 446, in from_cfg\n'
                "    model=cfg['model'],\n"
                '  File "/opt/lib/python3.10/site-packages/mmengine/config/config.py", line 1443, in __getitem__\n'
                "    return self._cfg_dict.__getitem__(name)\n"
                "KeyError: 'model'",
                source="open-mmlab/mmpose#3090",
                says=("has no model", "complete configuration"),
            ),
            Example(
                "AttributeError: 'Namespace' object has no attribute 'use_flash_attn'",
                says=("parser",),
            ),
        ),
        near_misses=("KeyError: 'model'",),
        knowledge="mmengine's Runner.from_cfg; argparse",
    ),
    Failure(
        id="data.not_text",
        kind=LogClass.CRASHED,
        what="A tokenizer gets something that is no text.",
        signs=(
            sign("text input must", r"text input must (?:be )?of type `?str`?"),
            sign("TextEncodeInput must be"),
            sign("TextInputSequence must be"),
            sign("PreTokenizedInputSequence must be"),
        ),
        headline="The tokenizer got a value that is no text (or a list of texts)",
        why="most often a sample has an empty cell, a number, or a list or column object where the text belongs",
        next=(
            "make texts of them before: dataset.filter(lambda x: x['text']) for empty rows, str(x) for numbers; a CSV's empty cells"
            " are no texts",
            "with batched=True the function gets lists; without it single values: pass what the tokenizer then expects, and list(column)"
            " for a whole column",
        ),
        check="print(set(map(type, column)))",
        examples=(
            Example(
                "ValueError: text input must of type `str` (single example), `List[str]` (batch or single pretokenized example) or"
                " `List[List[str]]` (batch of pretokenized examples).",
                source="Zasder3/train-CLIP#34",
                says=("empty", "filter"),
            ),
            Example("TypeError: TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"),
        ),
        knowledge="transformers' tokenization_utils_base.py and the tokenizers library",
    ),
    Failure(
        id="configuration.adapter_class",
        kind=LogClass.CRASHED,
        what="An adapter is loaded by an auto class that cannot tell the class of its base model.",
        signs=(sign("Cannot infer the auto class from the config"),),
        headline="peft cannot tell the class of the adapter's base model, which this auto class needs",
        why="adapter_config.json names no auto class for it: the base is no plain model of that task, such as one with images",
        next=(
            "load the base model with its own class, then the adapter: model = PeftModel.from_pretrained(base, ADAPTER)",
            "or write task_type and the base model's class (auto_mapping) into adapter_config.json",
        ),
        examples=(
            Example(
                "ValueError: Cannot infer the auto class from the config, please make sure that you are loading the correct model for"
                " your task type.",
                source="huggingface/peft#1744",
                says=("PeftModel.from_pretrained(base",),
            ),
        ),
        knowledge="peft's auto.py; huggingface/peft#1744",
    ),
    Failure(
        id="configuration.adapter_name",
        kind=LogClass.CRASHED,
        what="peft is asked for an adapter of a name that the model does not have.",
        signs=(
            sign("Adapter", r"Adapter(?: with name)? '?(?P<adapter>[\w.-]{1,80})'? (?:not found in|doesn't exist)"),
            sign("KeyError", r"KeyError: '(?P<adapter>[\w.-]{1,80})'"),
        ),
        when=lambda case: (
            caller(case) == "peft"
            and (
                case.called(r"(?:inject|set|add|load|delete)_adapters?$")
                or case.printed(r"\bAdapter\b[^\n]{0,90}(?:not found in|doesn't exist)")
            )
        ),
        headline="peft finds no adapter named {adapter} in this model",
        why="the name was never added to this object, or the model had adapters before (wrapped twice, or after merge_and_unload), so that"
        " two dictionaries of adapters differ",
        next=(
            "print(model.peft_config.keys()), and use one of these names; the first adapter is called default unless adapter_name is given",
            "start from a freshly loaded base model: get_peft_model or PeftModel.from_pretrained once, further ones by"
            " model.load_adapter(PATH, adapter_name=...)",
            "if the name is there, update peft: older versions kept two dictionaries",
        ),
        examples=(
            Example(
                '  File "H:\\env\\lib\\site-packages\\peft\\tuners\\tuners_utils.py", line 192, in inject_adapter\n'
                "    peft_config = self.peft_config[adapter_name]\n"
                "KeyError: 'test'",
                source="huggingface/peft#998",
                says=("test", "update peft"),
            ),
        ),
        near_misses=("KeyError: 'test'",),
        knowledge="huggingface/peft#998; huggingface/peft#923",
    ),
    Failure(
        id="configuration.tokens_over_tensor_ranks",
        kind=LogClass.CRASHED,
        what="With sequence parallelism the number of tokens is not a multiple of the tensor-parallel size.",
        signs=(sign("First dimension of the tensor should be divisible by tensor parallel size"),),
        headline="The number of tokens is not a multiple of the tensor-parallel size (sequence parallelism)",
        why="sequence parallelism splits the first dimension, the tokens of the sequence or of the packed batch, over the tensor-parallel"
        " ranks",
        next=(
            "pad the sequence or the packed tokens to a multiple of the tensor-parallel size (with context parallelism: of twice its size"
            " times that), also in evaluation and for samples of other lengths",
            "or switch sequence_parallel off",
        ),
        examples=(
            Example(
                "AssertionError: First dimension of the tensor should be divisible by tensor parallel size",
                source="verl-project/verl#3296",
                says=("sequence_parallel off",),
            ),
        ),
        knowledge="Megatron-Core's tensor_parallel/mappings.py",
    ),
    Failure(
        id="autograd.zero_trace",
        kind=LogClass.CRASHED,
        what="ZeRO-3 prefetches parameters in the order of an earlier step, and this step runs other modules.",
        signs=(
            sign(
                "parameter fetch queue",
                r"(?:tracing error at step \d+: )?expected the next \d+ parameters in the parameter fetch queue",
            ),
            sign("still have inflight params"),
        ),
        headline="ZeRO-3: this step runs other modules than the step whose order was recorded",
        why="it records the order of modules in the first steps and prefetches by it; branches, experts, an evaluation or a generation in"
        " between, or checkpointing that runs modules again, change the order",
        next=(
            "switch the prefetch off: stage3_prefetch_bucket_size=0 (and stage3_max_reuse_distance=0), or update DeepSpeed, which handles"
            " more of these cases",
            "let each step run the same modules: no data-dependent branches, generation and evaluation outside of a training step; modules"
            " that run as a whole (experts) marked with deepspeed.utils.set_z3_leaf_modules",
            "or ZeRO-2, which gathers nothing",
        ),
        examples=(
            Example(
                "RuntimeError: tracing error at step 999: expected the next 4 parameters in the parameter fetch queue to be ({'id': 211,"
                " 'status': 'AVAILABLE'}, {'id': 212, 'status': 'AVAILABLE'}) but got ().",
                source="deepspeedai/DeepSpeed#3599",
                says=("stage3_prefetch_bucket_size=0",),
            ),
        ),
        knowledge="DeepSpeed's partitioned_param_coordinator.py; deepspeedai/DeepSpeed#3599",
    ),
)
