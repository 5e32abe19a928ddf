"""Two packages, or a package and the script, that were written for different versions of each other.

The entries say which two disagree: the one whose code makes the call, by the frames, and the one whose class or module
is called, by its name.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from analyzers.case.facts import LogClass
from analyzers.case.hypothesis import Case
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of

_FRAME = re.compile(r"(?:site|dist)-packages[/\\]([A-Za-z]\w{1,60})[/\\]")
_FORWARDING = re.compile(r"torch[/\\](?:nn[/\\]modules[/\\]module|utils[/\\]_contextlib)\.py|:__getattr__$")
_LOOSE_FRAME = re.compile(r"\.py(?:\x22, line |:)\d|\.py in \w|^Cell In\s?\[|<ipython-input-")
"""Matches a frame of a notebook, or one of which the beginning is cut off."""
_CHECKED_OUT = re.compile(
    r"(?:^|[/\\])(trl|transformers|accelerate|peft|diffusers|deepspeed|unsloth|unsloth_zoo|vllm)[/\\]"
)
_PIP = {
    "sentence_transformers": "sentence-transformers",
    "pytorch_lightning": "pytorch-lightning",
    "unsloth_zoo": "unsloth_zoo",
    "huggingface_hub": "huggingface_hub",
    "flash_attn": "flash-attn",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
}
_MODELS = r"(?:Llama|Qwen|Mistral|Mixtral|Gemma|Bert|Roberta|XLMRoberta|GPT|Phi|T5|Bart|MBart|Whisper|ViT|CLIP|Falcon|OPT|Bloom|Deberta|Electra|DistilBert|Wav2Vec2|Donut|Llava|Siglip)"
_OWNERS = (
    ("trl", r"(?:SFT|DPO|GRPO|PPO|KTO|ORPO|CPO|Reward|RLOO|GKD|BCO|XPO|NashMD|OnlineDPO)(?:v2)?(?:Trainer|Config)$"),
    ("trl", r"^AutoModelFor\w+WithValueHead$"),
    ("peft", r"^(?:Lora|AdaLora|IA3|LoKr|LoHa|PromptTuning|PrefixTuning|PromptEncoder|Peft)(?:Config|Model)\w*$"),
    ("accelerate", r"^(?:Accelerator|AcceleratorState|Accelerated\w+|DataLoaderConfiguration|ProjectConfiguration)$"),
    ("accelerate", r"^(?:FullyShardedDataParallel|DeepSpeed|GradientAccumulation|MegatronLM)Plugin$"),
    ("sentence-transformers", r"^(?:SentenceTransformer|CrossEncoder|SparseEncoder)\w*$"),
    ("bitsandbytes", r"^(?:Linear(?:4bit|8bitLt|NF4|FP4)|Params4bit|Int8Params|\w*8bit)$"),
    ("diffusers", r"^(?:UNet2D\w+|AutoencoderKL\w*|\w+Scheduler|\w*(?:Diffusion|Flux|SDXL)\w*Pipeline)$"),
    ("transformers", r"^(?:Seq2Seq)?TrainingArguments$|^Seq2SeqTrainer$|^(?:BitsAndBytes|Generation|GPTQ|Awq)Config$"),
    (
        "transformers",
        rf"^{_MODELS}\w*(?:Tokenizer(?:Fast)?|Processor|ImageProcessor(?:Fast)?|FeatureExtractor|Config|Model)$",
    ),
    ("transformers", rf"^{_MODELS}\w*For\w+$|^(?:Dynamic|Static|EncoderDecoder)Cache$|^PreTrained\w+$|^AutoModel\w*$"),
)
"""(package, what the names of its classes match)."""
_LIGHTNING = {
    "gpus": 'write accelerator="gpu", devices=N (devices="auto" for all)',
    "num_gpus": 'write accelerator="gpu", devices=N',
    "tpu_cores": 'write accelerator="tpu", devices=N',
    "resume_from_checkpoint": "pass it to fit: trainer.fit(model, ckpt_path=PATH)",
    "progress_bar_refresh_rate": "write callbacks=[TQDMProgressBar(refresh_rate=N)], or enable_progress_bar=False for 0",
    "checkpoint_callback": "write enable_checkpointing=True or False, and put a ModelCheckpoint into callbacks",
    "weights_summary": "write enable_model_summary=True or False",
    "distributed_backend": "write strategy (such as 'ddp')",
    "accelerator": 'write strategy for "ddp", and accelerator for the kind of device',
    "amp_backend": "leave it out, and set precision",
    "amp_level": "leave it out, and set precision",
    "replace_sampler_ddp": "write use_distributed_sampler",
    "auto_select_gpus": "leave it out, or find_usable_cuda_devices",
    "auto_lr_find": "use lightning.pytorch.tuner.Tuner(trainer).lr_find(model)",
    "auto_scale_batch_size": "use lightning.pytorch.tuner.Tuner(trainer).scale_batch_size(model)",
    "flush_logs_every_n_steps": "leave it out: it is an argument of the logger",
    "reload_dataloaders_every_epoch": "write reload_dataloaders_every_n_epochs=1",
    "track_grad_norm": "log the norms in on_before_optimizer_step",
    "truncated_bptt_steps": "cut the sequence in training_step, with manual optimization",
    "stochastic_weight_avg": "write callbacks=[StochasticWeightAveraging(...)]",
    "terminate_on_nan": "write detect_anomaly=True",
    "process_position": "write callbacks=[TQDMProgressBar(process_position=N)]",
    "multiple_trainloader_mode": "pass a CombinedLoader",
}
"""{argument that Lightning's Trainer once had: what to write now}."""
_PLAIN = re.compile(
    r"^(?:NoneType|str|int|float|bool|list|dict|tuple|set|bytes|function|builtin_function_or_method|method|generator|type"
    r"|module|Tensor|Parameter|ndarray|DataFrame|Series|Namespace|Image|Popen|OrderedDict|super|range|map|zip|filter"
    r"|(?:Distributed)?DataParallel|OptimizedModule|FullyShardedDataParallel)$"
)
"""Classes whose objects stand for a wrong value, not for a library of another version."""


def _given_by(expression: str, condition: Callable[[Case], bool]) -> Callable[[Case], bool]:
    """Return a condition that sees what the groups of an expression match in the failure's text."""
    pattern = re.compile(expression, re.MULTILINE)

    def holds(case: Case) -> bool:
        texts = (text_of(event) for event in case.failure.events)
        match = next((found for text in texts if (found := pattern.search(text))), None)
        given = {name: value or "" for name, value in match.groupdict().items()} if match else {}
        return bool(match) and condition(replace(case, given=given))

    return holds


def innermost(case: Case) -> str:
    """Return the frame that raised the exception, as `file:line:function`, without those that only pass a call on."""
    return next((call for call in reversed(case.lead.calls) if not _FORWARDING.search(call)), "")


def caller(case: Case) -> str:
    """Return the package whose code raised the exception, by its innermost frame, as pip calls it.

    It is empty for the user's code, for PyTorch's, and where no frame is shown.
    """
    inner = innermost(case)
    frames = [inner] if inner else [line for line in case.lead.excerpt.splitlines() if _LOOSE_FRAME.search(line)][-1:]
    for frame in frames:
        if match := _FRAME.search(frame) or _CHECKED_OUT.search(frame):
            return "" if match[1] in ("torch", "torchrun") else _PIP.get(match[1], match[1])
    return ""


def _owner(name: str, case: Case) -> str:
    """Return the package that has a class of a name; empty if it is not known."""
    if name == "Trainer" and case.given.get("name") in _LIGHTNING:
        return "pytorch-lightning"
    if name == "Trainer":
        return "pytorch-lightning" if case.called(r"lightning") else "transformers"
    return next((package for package, names in _OWNERS if re.search(names, name)), "")


def _names(case: Case) -> tuple[str, str]:
    """Return the calling package and the package of the class that a message names; each is empty if not known."""
    owner = case.given.get("owner", "")
    return caller(case), _owner(owner, case)


def _is_of_two(case: Case) -> bool:
    calling, owner = _names(case)
    return bool(calling and owner and calling != owner)


def _is_of_script(case: Case) -> bool:
    calling, owner = _names(case)
    return bool(owner and not calling)


def _class_of(case: Case) -> str:
    return case.given.get("owner") or case.given.get("function", "")


def _unknown_argument(case: Case) -> str:
    calling, owner = _names(case)
    whose = f"The installed {owner}'s {_class_of(case)}" if owner else f"{_class_of(case)}()"
    by = f", which {calling} passes" if calling and calling != owner else ""
    return f"{whose} does not know the argument {case.given['name']}{by}"


def _is_forward(case: Case) -> bool:
    return case.given["function"] == "forward"


_FORWARD = {
    "token_type_ids": "leave it out of the batch: tokenizer(..., return_token_type_ids=False), or del batch['token_type_ids']",
    "labels": "load the class with a head that computes the loss (AutoModelForSequenceClassification,"
    " AutoModelForCausalLM, ...): a bare encoder takes no labels; or compute the loss yourself",
    "inputs_embeds": "leave task_type out of LoraConfig if the model is no language model: peft's classes for a task pass"
    " arguments of language models",
    "input_ids": "leave task_type out of LoraConfig if the model is no language model: peft's classes for a task pass"
    " arguments of language models",
    "decoder_input_ids": "use the data collator and the class for this kind of model (encoder-decoder or not)",
    "pixel_values": "use the class of the model that takes images, and its processor",
    "return_dict": "let forward() accept **kwargs: the caller passes what transformers' models take",
    "output_attentions": "let forward() accept **kwargs: the caller passes what transformers' models take",
    "attention_mask": "let forward() accept attention_mask, or drop it from the batch",
    "cache_position": "most often the model's own code is older than the installed transformers: update it (delete the copy in"
    " ~/.cache/huggingface/modules), or install the transformers of its README",
    "position_embeddings": "most often the layer comes from older code than the installed transformers: update the package that"
    " replaces it, or install the transformers that it was written for",
    "past_key_values": "most often the model's own code is older than the installed transformers: update it, or install the"
    " transformers of its README",
}
"""{argument of forward(): what to do}."""


def _package_of_method(case: Case) -> str:
    """Return the package that calls a method of a trainer."""
    return caller(case) or "transformers"


_INTERNAL = {"_run_hydra": "hydra-core (1.1.2 for NeMo before 1.10)"}
"""{internal function of a library: which package has it}."""


def _is_internal(case: Case) -> bool:
    """Return whether a function is internal to a library, by its name."""
    name = case.given["function"]
    return name in _INTERNAL or (name.startswith("_") and not name.startswith("__") and not case.given.get("owner"))


_METHODS = {
    "compute_loss": "transformers 4.46 passes num_items_in_batch",
    "training_step": "transformers 4.46 passes num_items_in_batch",
    "log": "transformers 4.47 passes start_time",
    "get_batch_samples": "newer versions of transformers pass the device",
    "_get_train_sampler": "newer versions of transformers pass the data set",
    "_save_checkpoint": "transformers 4.47 no longer passes metrics",
    "_maybe_log_save_evaluate": "several versions of transformers added arguments: grad_norm, start_time, learning_rate",
    "evaluate": "compare the signature of the base class",
    "prediction_step": "compare the signature of the base class",
    "create_scheduler": "compare the signature of the base class",
    "optimizer_step": "Lightning 2 passes epoch, batch_idx, optimizer and closure only",
    "lr_scheduler_step": "Lightning 2 no longer passes optimizer_idx",
    "on_train_batch_start": "Lightning 2 no longer passes the index of a data loader",
    "on_train_batch_end": "Lightning 2 no longer passes the index of a data loader",
    "tokenizer": "",
}
"""{method of a trainer that a script overrides: how what it is given changed}."""


def _method(case: Case) -> str:
    """Return the name of the trainer's method that was called, without what a package puts before it."""
    name = case.given["function"]
    return next((known for known in _METHODS if known and (name == known or name.endswith(f"unsloth_{known}"))), "")


_COMMON = {"compute_loss", "training_step", "log", "evaluate", "optimizer_step", "prediction_step", "tokenizer"}
"""Methods of which a script may have one of its own that overrides nothing."""


def _is_override(case: Case) -> bool:
    return bool(_method(case)) and bool(
        caller(case) in ("transformers", "accelerate", "pytorch-lightning", "lightning", "trl")
        or (
            not caller(case)
            and (
                _method(case) not in _COMMON
                or bool(
                    re.search(r"Trainer|Module|Callback|unsloth", f"{case.given['owner']} {case.given['function']}")
                )
            )
        )
    )


def _counts(case: Case) -> str:
    given = case.given
    if given.get("missing"):
        return f"without {given['missing']}"
    if given.get("twice"):
        return f"with two values for {given['twice']}"
    return f"with {given.get('got')} arguments, and takes {given.get('takes')}"


def _argument_count(case: Case) -> str:
    calling = caller(case)
    by = f"{calling} calls" if calling else ""
    name = f"{case.given['function']}()"
    return f"{by} {name} {_counts(case)}" if by else f"{name} is called {_counts(case)}"


def _unsloth(case: Case) -> bool:
    return "unsloth" in case.given["function"] or case.called("unsloth") or case.printed("unsloth")


_SIGNATURE = r"(?<![\w.])(?:(?P<owner>\w{1,80})\.)?(?P<function>\w{1,80})\(\)"
_UNKNOWN = rf"{_SIGNATURE} got an unexpected keyword argument '(?P<name>\w{{1,80}})'"
_COUNT = (
    rf"{_SIGNATURE} (?:takes (?:from \d+ to )?(?P<takes>\d+) positional arguments? but (?P<got>\d+) (?:was|were) given"
    r"|missing \d+ required positional arguments?: '(?P<missing>\w+)'|got multiple values for argument '(?P<twice>\w+)')"
)
_ATTRIBUTE = r"'(?P<owner>\w{1,80})' object has no attribute '(?P<name>\w{1,80})'"
_UPDATE_UNSLOTH = (
    "update both parts of unsloth, which patches transformers and trl: pip install --upgrade --force-reinstall --no-deps"
    " --no-cache-dir unsloth unsloth_zoo, delete the folder unsloth_compiled_cache, and restart the notebook"
)


def _module_attribute(case: Case) -> str:
    module, name = case.given["module"], case.given["name"]
    calling, top = caller(case), module.partition(".")[0]
    if calling and calling != top:
        return f"{calling} asks {module} for {name}, which it does not have"
    if module != top:
        return f"{module} has no {name}: most often {top} is of another version"
    return f"{module} has no {name}: most often another version is needed, or a file hides it"


def _ray_callback(case: Case) -> bool:
    return case.given["module"].startswith("ray")


def _asks(case: Case) -> str:
    calling, owner = _names(case)
    given = case.given
    if calling and calling != owner:
        return f"{calling} asks {given['owner']} for {given['name']}, which it does not have"
    if calling:
        return f"{calling} got {given['owner']}, which has no {given['name']}"
    return f"{given['owner']} of the installed {owner} has no {given['name']}"


def _is_library_object(case: Case) -> bool:
    calling, owner = _names(case)
    own = _PLAIN.match(case.given["owner"])
    return not own and bool(owner or calling)


def _is_model(case: Case) -> bool:
    """Return whether the object that lacks an attribute is a model of transformers."""
    return _owner(case.given["owner"], case) == "transformers" and bool(
        re.search(r"For[A-Z]|Model$", case.given["owner"])
    )


def _pip_show(case: Case) -> str:
    names = " ".join(dict.fromkeys(filter(None, _names(case))))
    return (
        f"compare `pip show {names}` with the requirements of the project and of each other (`pip check`)"
        if names
        else ""
    )


def _update_pair(case: Case) -> str:
    calling, owner = _names(case)
    return (
        f"most often {calling} and {owner} are of versions that do not fit each other: pip install -U {calling} {owner}, or the pair"
        " that the project's requirements name"
    )


def _update_owner(case: Case) -> str:
    calling, owner = _names(case)
    return (
        f"update {owner} (pip install -U {owner}), because {calling} knows an argument of a newer one; if {owner} is the"
        f" newest, it has removed the argument: update {calling}"
    )


def _for_script(case: Case) -> str:
    owner = _owner(_class_of(case), case)
    return (
        f"install the {owner} that the script was written for (its requirements, or README): pip install -U {owner} if the"
        " argument is newer than the installed version, an older one or the new name of the argument if it was removed"
    )


def _is_lightning(case: Case) -> bool:
    return case.given.get("owner") == "Trainer" and case.given["name"] in _LIGHTNING


_SIGNATURE_CHECK = (
    "python -c 'import inspect, PACKAGE; print(inspect.signature(PACKAGE.CLASS))' prints what is accepted"
)

ENTRIES = (
    Failure(
        id="software.forward_argument",
        kind=LogClass.CRASHED,
        what="A model's forward() gets an argument that it does not take.",
        signs=(
            sign(
                "unexpected keyword argument",
                r"(?<![\w.])(?:(?P<owner>\w{1,80})\.)?(?P<function>forward)\(\) got an unexpected keyword argument"
                r" '(?P<name>\w{1,80})'",
            ),
        ),
        headline=lambda case: (
            f"{case.given['owner'] + '.' if case.given['owner'] else ''}forward() does not take {case.given['name']}, which it"
            " is given"
        ),
        why="the batch, the trainer or a wrapper passes it; the model is of another kind than the caller expects, or its code"
        " is of another version",
        next=(
            Advice(lambda case: _FORWARD[case.given["name"]], when=lambda case: case.given["name"] in _FORWARD),
            "find who passes it in the frames: a column of the batch is removed by remove_unused_columns=True or in the"
            " collator; an argument of the trainer or of peft needs a forward() that accepts it, or **kwargs",
        ),
        check="print(batch.keys()), and inspect.signature(model.forward)",
        examples=(
            Example("TypeError: forward() got an unexpected keyword argument 'decoder_mask'"),
            Example(
                "TypeError: BertModel.forward() got an unexpected keyword argument 'labels'",
                says=("AutoModelForSequenceClassification",),
            ),
        ),
        knowledge="transformers' documentation of Trainer: remove_unused_columns",
    ),
    Failure(
        id="software.unknown_argument",
        kind=LogClass.CRASHED,
        what="A function of a library gets an argument that its installed version does not know.",
        signs=(
            sign(
                "unexpected keyword argument",
                _UNKNOWN,
            ),
        ),
        when=_given_by(_UNKNOWN, lambda case: any(_names(case))),
        headline=_unknown_argument,
        why=lambda case: (
            "most often the two were written for different versions of each other: the argument came later than the"
            " installed one, or was removed from it; else it is one that your own call passes on"
            if _is_of_two(case)
            else "the argument came later than the installed version, was removed from it, or is misspelt"
            if _owner(_class_of(case), case)
            else "most often the function is of another version, or another one, than the caller was written for"
        ),
        next=(
            Advice(
                lambda case: f"{_LIGHTNING[case.given['name']]} (for Lightning 2)",
                when=_is_lightning,
            ),
            Advice(
                'or install what the script was written for: pip install "pytorch-lightning<2" (1.9.5, or the version of its'
                " requirements)",
                when=_is_lightning,
            ),
            Advice(_update_owner, when=lambda case: _is_of_two(case) and not _is_lightning(case)),
            Advice(_for_script, when=lambda case: _is_of_script(case) and not _is_lightning(case)),
            Advice(
                lambda case: (
                    f"the call is inside {caller(case)}: if the function is yours (an override or a callback), give it the"
                    f" signature of the base class, or **kwargs; otherwise compare `pip show {caller(case)}` with what the"
                    " project asks for"
                ),
                when=lambda case: not _is_of_two(case) and not _is_of_script(case),
            ),
        ),
        check=_SIGNATURE_CHECK,
        examples=(
            Example(
                "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'use_dora'",
                source="huggingface/diffusers#9664",
                says=("peft", "-U peft"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/env/lib/python3.11/site-packages/transformers/trainer.py", line 4700, in create_accelerator_and_postprocess\n'
                "    self.accelerator = Accelerator(**args)\n"
                "TypeError: Accelerator.__init__() got an unexpected keyword argument 'parallelism_config'",
                says=("transformers passes", "-U accelerate"),
            ),
            Example(
                "TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'",
                says=("pytorch-lightning", "devices=N"),
            ),
        ),
        near_misses=("TypeError: make_loader() got an unexpected keyword argument 'shufle'",),
        knowledge="the signatures of the libraries; huggingface/diffusers#9664",
    ),
    Failure(
        id="software.overridden_method",
        kind=LogClass.CRASHED,
        what="A script or package overrides a method of a trainer that is called with other arguments in this version.",
        signs=(sign("positional argument", _COUNT), sign("multiple values for argument", _COUNT)),
        when=_given_by(_COUNT, _is_override),
        headline=lambda case: (
            f"The overridden {_method(case)}() does not fit this trainer: it is called {_counts(case)}"
        ),
        why=lambda case: (
            f"most often the installed base class calls it with other arguments than it was written for ({_METHODS[_method(case)]})"
        ),
        next=(
            Advice(_UPDATE_UNSLOTH, when=_unsloth),
            Advice(
                "give the method that overrides it the signature of the installed base class, and pass *args, **kwargs on to"
                " super(): def NAME(self, ..., *args, **kwargs)",
                when=lambda case: not _unsloth(case),
            ),
            lambda case: (
                f"or, if the override is in a package (trl, unsloth, a project), update it to fit the installed"
                f" {_package_of_method(case)}, or install the {_package_of_method(case)} of its requirements"
            ),
        ),
        check="the last frame shows the call, and grep finds the `def` of the method in your project",
        examples=(
            Example(
                '[rank6]:   File "anaconda3/envs/qwen/lib/python3.9/site-packages/transformers/trainer.py", line 2591, in _inner_training_loop\n'
                "[rank6]:     self._maybe_log_save_evaluate(\n"
                '[rank6]:   File "anaconda3/envs/qwen/lib/python3.9/site-packages/transformers/trainer.py", line 3045, in _maybe_log_save_evaluate\n'
                "[rank6]:     self.log(logs, start_time)\n"
                "[rank6]: TypeError: log() takes 2 positional arguments but 3 were given",
                source="QwenLM/Qwen3-Coder#394",
                says=("start_time", "signature"),
            ),
            Example(
                "    self._maybe_log_save_evaluate(tr_loss, model, trial, epoch, ignore_keys_for_eval)\n"
                "TypeError: _maybe_log_save_evaluate() takes 5 positional arguments but 6 were given",
                source="universal-ie/UIE#43",
                says=("6 arguments",),
            ),
            Example(
                "TypeError: DPOTrainer.log() takes 2 positional arguments but 3 were given",
                source="huggingface/trl#2445",
                says=("start_time", "update it"),
            ),
        ),
        near_misses=(
            "TypeError: build_model() takes 2 positional arguments but 3 were given",
            "Traceback (most recent call last):\n"
            '  File "/w/run.py", line 12, in <module>\n'
            "    evaluate(model)\nTypeError: evaluate() missing 1 required positional argument: 'loader'",
        ),
        knowledge="the release notes of transformers 4.46 and 4.47; Lightning's guide to version 2",
    ),
    Failure(
        id="software.argument_count",
        kind=LogClass.CRASHED,
        what="A library calls a function with other arguments than it takes.",
        signs=(sign("positional argument", _COUNT), sign("multiple values for argument", _COUNT)),
        when=_given_by(_COUNT, lambda case: bool(caller(case)) or _unsloth(case) or _is_internal(case)),
        headline=_argument_count,
        why="the called function has another signature than its caller expects",
        next=(
            Advice(_UPDATE_UNSLOTH, when=_unsloth),
            Advice(
                lambda case: (
                    "a name that begins with _ is internal to its package and changes between versions: install the version of"
                    f" {_INTERNAL.get(case.given['function'], 'the package it is imported from')} that the calling code was"
                    " written for, or update the calling project"
                ),
                when=lambda case: _is_internal(case) and not _unsloth(case),
            ),
            Advice(
                lambda case: (
                    f"if {case.given['function']} is yours (a method that overrides one of {caller(case)}, a collator, a"
                    f" callback), give it the arguments that the installed {caller(case)} passes"
                ),
                when=lambda case: bool(caller(case)),
            ),
            Advice(
                lambda case: (
                    f"if it belongs to a library, that one and {caller(case)} are probably of versions that do not fit: install "
                    "those of the project's requirements"
                ),
                when=lambda case: bool(caller(case)),
            ),
        ),
        check="the last frame shows the call; grep finds the `def`",
        examples=(
            Example(
                "TypeError: _unsloth_get_training_batch() takes 3 positional arguments but 4 were given",
                says=("unsloth_zoo",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/env/lib/python3.11/site-packages/transformers/trainer.py", line 1800, in _prepare\n'
                "    metrics = self.compute_metrics(EvalPrediction(preds, labels))\n"
                "TypeError: compute_metrics() missing 1 required positional argument: 'labels'",
                says=("without labels", "if compute_metrics is yours"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/data/NeMo/nemo/core/config/hydra_runner.py", line 104, in wrapper\n'
                "    _run_hydra(\n"
                "TypeError: _run_hydra() missing 1 required positional argument: 'args'",
                source="NVIDIA-NeMo/Speech#4225",
                says=("hydra-core",),
            ),
        ),
        near_misses=("TypeError: build_model() takes 2 positional arguments but 3 were given",),
        knowledge="unslothai/unsloth#2769",
    ),
    Failure(
        id="software.module_attribute",
        kind=LogClass.CRASHED,
        what="A module of a library does not have a name that code asks it for.",
        signs=(
            sign("has no attribute", r"module '(?P<module>[A-Za-z]\w*(?:\.\w+)*)' has no attribute '(?P<name>\w+)'"),
        ),
        headline=_module_attribute,
        why=lambda case: (
            "most often the name was removed, or came later than the installed version; else it is misspelt"
            + ("" if "." in case.given["module"] else ", or Python imported a file or folder of that name instead")
        ),
        next=(
            Advice(
                "training itself does not need ray: pip uninstall ray, or switch the callback off (yolo settings"
                " raytune=False); or update ultralytics (or the fork of it) to fit the installed ray",
                when=lambda case: _ray_callback(case) and case.printed("ultralytics|yolo|YOLO|raytune|box_loss"),
            ),
            lambda case: (
                f"install the {case.given['module'].partition('.')[0]} that the calling code was written for, or update that"
                " code; `pip check` lists pairs that do not fit"
            ),
            Advice(
                lambda case: (
                    f"python -c 'import {case.given['module']} as m; print(m)': if it is a file or folder beside your script (a"
                    " folder wandb of runs, a script of that name), or has no file, rename or remove that one"
                ),
                when=lambda case: "." not in case.given["module"],
            ),
        ),
        examples=(
            Example(
                "AttributeError: module 'ray.train._internal.session' has no attribute '_get_session'. Did you mean:"
                " 'get_session'?",
                source="ray-project/ray#50828",
                says=("_get_session", "pip check"),
            ),
            Example("AttributeError: module 'wandb' has no attribute 'init'", says=("folder",)),
        ),
        near_misses=("AttributeError: module 'numpy' has no attribute 'float'.",),
        knowledge="ultralytics' raytune callback and ray 2.41 (sunsmarterjie/yolov12#54)",
    ),
    Failure(
        id="processes.clean_up",
        kind=LogClass.CRASHED,
        what="An exception while an object is cleaned up, most often because its construction had failed.",
        signs=(sign("object has no attribute", _ATTRIBUTE),),
        when=lambda case: innermost(case).endswith(":__del__") and not _PLAIN.match(case.given.get("owner", "")),
        headline="{owner} is cleaned up (__del__) without {name}: most often its construction had failed",
        why="Python calls __del__ also for an object whose constructor raised before it had set {name}, and at the end"
        " of the program, when parts are gone already",
        next=(
            "look for an earlier exception, in the constructor of {owner} or in a worker process: that one is then the"
            " cause",
            "if there is none in this text, run the construction alone and keep all of its output",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/opt/env/lib/python3.10/site-packages/vllm/entrypoints/llm.py", line 301, in __del__\n'
                "    if self.llm_engine:\n"
                "AttributeError: 'LLM' object has no attribute 'llm_engine'",
                source="AriaUI/Aria-UI#15",
                says=("earlier exception", "LLM"),
            ),
        ),
        near_misses=(
            "AttributeError: 'LLM' object has no attribute 'llm_engine'",
            "Traceback (most recent call last):\n"
            '  File "/w/io.py", line 40, in __del__\n'
            "    pickle.dumps(self.rest)\nAttributeError: 'NoneType' object has no attribute 'dumps'",
        ),
        knowledge="Python's data model: object.__del__",
    ),
    Failure(
        id="software.patched_name",
        kind=LogClass.CRASHED,
        what="Code that replaces a part of a library does not find it in the installed version.",
        signs=(
            sign(
                "does not have the attribute",
                r"<(?:function|module|class) '?(?P<target>[\w.]{1,120})'?[^>\n]{0,200}> does not have the attribute '(?P<name>\w{1,80})'",
            ),
        ),
        headline="Code that patches {target} finds no {name} in it",
        why="a package replaces {name} for a while, and was most often written for a version of the library that has"
        " it there",
        next=(
            "install the version of the patched library that the patching package pins (vLLM pins one PyTorch): reinstall that package in a"
            " fresh environment, with what it depends on",
            "or update the package in the frames, if the library is newer than it",
        ),
        check="pip check; pip show vllm torch",
        examples=(
            Example(
                "(Worker_TP0 pid=1345) ERROR 03-23 14:52:02 [multiproc_executor.py:932] AttributeError: <function standalone_compile at"
                " 0x7faca423a8c0> does not have the attribute 'FakeTensorMode'",
                source="vllm-project/vllm#37858",
                says=("standalone_compile", "pins one PyTorch"),
            ),
        ),
        knowledge="unittest.mock.patch; vllm-project/vllm#37858",
    ),
    Failure(
        id="software.missing_attribute",
        kind=LogClass.CRASHED,
        what="An object of a library does not have an attribute that other code asks it for.",
        signs=(sign("object has no attribute", _ATTRIBUTE),),
        when=_given_by(_ATTRIBUTE, _is_library_object),
        headline=_asks,
        why=lambda case: (
            "most often the code was written for another version of the class, or gets an object of another class than it expects"
            if any(_names(case))
            else ""
        ),
        next=(
            Advice(
                "pass a plain causal language model (AutoModelForCausalLM): the wrapper with a value head is for PPO only",
                when=lambda case: "WithValueHead" in case.given["owner"],
            ),
            Advice(_UPDATE_UNSLOTH, when=lambda case: "unsloth" in (caller(case), case.given["owner"].lower())),
            Advice(
                "load the model with vLLM inside: FastLanguageModel.from_pretrained(..., fast_inference=True), or generate without it:"
                " use_vllm=False",
                when=lambda case: case.given["name"] == "vllm_engine",
            ),
            Advice(
                lambda case: (
                    f"{case.given['name']} is nothing that a model of transformers has by itself: find which package sets it (unsloth, peft,"
                    " trl, the model's own code) and load or wrap the model as that package's examples do"
                ),
                when=lambda case: _is_model(case) and not _is_of_two(case),
            ),
            Advice(_update_pair, when=_is_of_two),
            Advice(
                lambda case: (
                    f"install the {_names(case)[1]} that the script was written for (its requirements), or change the script:"
                    " the name is newer than the installed version, was removed from it, or never was in this class"
                ),
                when=lambda case: _is_of_script(case) and not _is_model(case),
            ),
            Advice(
                lambda case: (
                    f"look which object the frames pass: {caller(case)} expects another class, or another version of"
                    f" {case.given['owner']}; compare `pip show {caller(case)}` with the requirements of the project"
                ),
                when=lambda case: not _is_of_two(case) and not _is_of_script(case),
            ),
            Advice(
                "trl's trainers inherit from transformers' Trainer and use what it sets: update both together (pip install -U"
                " trl transformers)",
                when=lambda case: _names(case)[1] == "trl" and case.given["owner"].endswith("Trainer"),
            ),
            Advice(_pip_show, when=lambda case: _is_of_two(case) or _is_of_script(case)),
        ),
        examples=(
            Example(
                '[rank2]:   File "/opt/conda/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 406, in __init__\n'
                '[rank2]:     model.warnings_issued["estimate_tokens"] = True\n'
                "[rank2]: AttributeError: 'AutoModelForCausalLMWithValueHead' object has no attribute 'warnings_issued'",
                source="huggingface/trl#3257",
                says=("AutoModelForCausalLM)",),
            ),
            Example(
                "[rank0]: AttributeError: 'GRPOConfig' object has no attribute 'num_iterations'. Did you mean:"
                " 'num_generations'?",
                source="dhcode-cpp/X-R1#72",
                says=("trl", "requirements"),
            ),
            Example(
                "AttributeError: 'LlamaForCausalLM' object has no attribute 'vllm_engine'",
                source="unslothai/unsloth#2384",
                says=("fast_inference=True",),
            ),
        ),
        near_misses=("AttributeError: 'NoneType' object has no attribute 'shape'",),
        knowledge="huggingface/trl#3257; dhcode-cpp/X-R1#72",
    ),
    Failure(
        id="software.lightning_hook",
        kind=LogClass.CRASHED,
        what="A LightningModule or Callback has a hook that Lightning 2 removed.",
        signs=(
            sign(
                "has been removed in",
                r"Support for `(?P<hook>\w+)` has been removed in v(?P<version>[\d.]+?)\.?(?:\s|$)(?:[^\n]{0,20}`(?P<owner>\w+)`"
                r" implements[^\n]{0,40}use the `(?P<instead>\w+)`)?",
            ),
        ),
        headline="The code is written for an older Lightning: version {version} removed {hook}",
        why=lambda case: (
            f"{case.given['owner']} has this method, which the installed version refuses"
            if case.given.get("owner")
            else "the installed version refuses modules that have this method"
        ),
        next=(
            'for a project that is not yours: pip install "pytorch-lightning<2" (1.9.5, or the version of its requirements)',
            lambda case: (
                f"or rename it to {case.given.get('instead') or 'the new hook'}; if it took the argument outputs, append "
                "what each step returns to a list of the module, read it there, and clear it"
            ),
        ),
        examples=(
            Example(
                "NotImplementedError: Support for `validation_epoch_end` has been removed in v2.0.0. `RAVE` implements this method."
                " You can use the `on_validation_epoch_end` hook instead. To access outputs, save them in-memory as instance"
                " attributes.",
                source="acids-ircam/RAVE#219",
                says=("2.0.0", "on_validation_epoch_end", "<2"),
            ),
        ),
        knowledge="Lightning's guide to version 2; Lightning-AI/pytorch-lightning#16520",
    ),
    Failure(
        id="software.failed_import",
        kind=LogClass.CRASHED,
        what="A library that imports its parts late says that one of them could not be imported.",
        signs=(
            sign(
                "Failed to import",
                r"Failed to import (?P<module>[\w.]{1,100}) because of the following error \(look up to see its traceback\):\s*"
                r"(?:(?:\[\w+\]:)?\s*Failed to import [\w.]{1,100} because of the following error \([^)\n]{1,60}\):\s*){0,4}"
                r"(?:\[\w+\]:)?\s*(?P<reason>[^\n]{3,300})",
            ),
        ),
        headline=lambda case: f"{case.given['module']} could not be imported: {case.given['reason'].rstrip('. ')}",
        why="the module is there; what it imports failed, most often because an installed package does not fit it",
        next=(
            "find the first traceback of that error: its last frame is the package that does not fit; install the"
            " version that {module}'s package asks for (`pip check`, its requirements)",
            "import the package of the reason by itself (python -c 'import PACKAGE'), which shows its own error",
        ),
        examples=(
            Example(
                "RuntimeError: Failed to import swift.llm.sft because of the following error (look up to see its traceback):\n"
                "Failed to import swift.trainers.trainers because of the following error (look up to see its traceback):\n"
                "the first argument must be callable.",
                source="modelscope/ms-swift#1898",
                says=("the first argument must be callable", "pip check"),
            ),
        ),
        knowledge="transformers' lazy modules; modelscope/ms-swift#1898",
    ),
    Failure(
        id="software.compiled_sizes",
        kind=LogClass.CRASHED,
        what="Code that torch.compile made checks the sizes of its inputs and finds others.",
        signs=(sign("AssertionError", r"expected size (?P<expected>\d+)==(?P<got>\d+), stride \d+==\d+ at dim=\d"),),
        headline="Compiled code of torch.compile was run with a tensor of another size ({expected} and {got})",
        why="Inductor's code is made for fixed sizes and strides; its guards should have caught this, so it is most often a fault of"
        " torch.compile together with what wraps or replaces parameters (FSDP, quantised tensors, custom operators)",
        next=(
            "run without torch.compile (TORCHDYNAMO_DISABLE=1) to see that the model itself is right",
            "compile in another order or part: wrap with FSDP2 (fully_shard) before torch.compile, compile single blocks, or update"
            " PyTorch; a custom operator needs a fake implementation that gives the true shape and strides",
        ),
        examples=(
            Example(
                "[rank0]: AssertionError: expected size 4096==1024, stride 1024==1024 at dim=0",
                source="pytorch/pytorch#138715",
                says=("4096 and 1024", "TORCHDYNAMO_DISABLE=1"),
            ),
        ),
        near_misses=("AssertionError: expected size 4 but got 5",),
        knowledge="pytorch/pytorch#138715",
    ),
    Failure(
        id="software.scaled_matmul",
        kind=LogClass.CRASHED,
        what="The FP8 matrix product of PyTorch refuses its operands or this GPU.",
        signs=(
            sign("col_major", r"mat2 must be col_major(?:, got stride (?P<stride>\([\d, ]+\)))?"),
            sign(
                "mat",
                r"Expected (?:self|mat1|both dimensions of mat2|trailing dimension of mat1)[^\n]{0,60} to be divisible by 16",
            ),
            sign("scaled_mm is only supported", r"_scaled_mm is only supported on (?P<gpus>[^\n]{3,120})"),
        ),
        headline=lambda case: (
            "This GPU has no FP8 matrix product that PyTorch supports"
            if case.given.get("gpus")
            else "The FP8 matrix product got operands of a layout or size that it does not take"
        ),
        why="the product torch._scaled_mm takes the first operand by rows and the second by columns, sizes that are multiples of 16, and only"
        " newer GPUs",
        next=(
            Advice(
                "train in bf16 here; the message names the GPUs that have FP8 (of NVIDIA Ada, Hopper and newer: compute"
                " capability 8.9)",
                when=lambda case: bool(case.given.get("gpus")),
            ),
            Advice(
                "leave layers whose sizes are no multiple of 16 out of the conversion (module_filter_fn of convert_to_float8_training)"
                ", and pad the vocabulary or the batch",
                when=lambda case: "divisible" in case.lead.message,
            ),
            Advice(
                "switch off what is combined with FP8, one at a time (tensor parallelism, torch.compile, activation"
                " checkpointing), and update torchao and PyTorch: a transposed weight that was made contiguous gets here",
                when=lambda case: "col_major" in case.lead.message,
            ),
        ),
        examples=(
            Example(
                "RuntimeError: mat2 must be col_major, got stride (4096, 1)",
                source="pytorch/torchtitan#3817",
                says=("update torchao",),
            ),
            Example(
                "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
                says=("8.9",),
            ),
        ),
        knowledge="torchao's README on float8 training; pytorch/torchtitan#3817",
    ),
)
