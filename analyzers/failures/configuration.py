"""Settings and arguments that do not fit each other."""

import re
from math import prod

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case
from analyzers.failures.entry import Advice, Example, Failure, sign


def _number(case: Case, name: str) -> int:
    """Return a number that the message gives; 0 if it does not."""
    return int(case.given.get(name) or 0)


def _divisors(number: int) -> str:
    """Return the divisors of a number that may be a count of ranks, as `1, 2, 4`."""
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)


def _deepspeed_batch(case: Case) -> str:
    """Return the headline for DeepSpeed's equation of batch sizes."""
    total, micro, steps, world = (_number(case, name) for name in ("total", "micro", "steps", "world"))
    return f"DeepSpeed: train_batch_size {total} is not {micro} x {steps} x {world} ranks = {micro * steps * world}"


def _for_deepspeed_batch(case: Case) -> str:
    """Return how to make DeepSpeed's batch sizes fit."""
    total, micro, steps, world = (_number(case, name) for name in ("total", "micro", "steps", "world"))
    ranks = total // (micro * steps) if micro * steps and total % (micro * steps) == 0 else 0
    if world == 1 and ranks > 1:
        return (
            f"the settings fit {ranks} ranks, and DeepSpeed sees 1. For {ranks} ranks, start the script with torchrun or deepspeed"
            f" (--nproc_per_node or --num_gpus {ranks}), and do not initialise DeepSpeed (or an Accelerator) before the ranks are"
            f" known; for one, set train_batch_size to {micro * steps}"
        )
    left_out = (
        f"leave {' or '.join(names)} out of the configuration, so that DeepSpeed computes it"
        if (names := _can_be_computed(total, micro, steps, world))
        else f"choose a train_batch_size that is a multiple of {world} ranks"
    )
    return (
        f"set train_batch_size to {micro * steps * world} (micro batch {micro} x accumulation {steps} x {world} ranks), or"
        f" {left_out}"
    )


def _can_be_computed(total: int, micro: int, steps: int, world: int) -> list[str]:
    """Return which of DeepSpeed's settings can be left out: those that have a whole number for the other two."""
    others = {"gradient_accumulation_steps": micro * world, "train_micro_batch_size_per_gpu": steps * world}
    return [name for name, product in others.items() if product and total % product == 0]


def _parallel_degrees(case: Case) -> str:
    """Return the headline for degrees of parallelism whose product is not the number of ranks."""
    degrees = [int(value) for name, value in case.given.items() if name.startswith("d") and value.lstrip("-").isdigit()]
    world = _number(case, "world")
    if degrees and world and min(degrees) > 0:
        return f"Parallel degrees multiply to {prod(degrees)}, and there are {world} ranks"
    return f"The parallel degrees do not multiply to the {world} ranks"


def _for_generations(case: Case) -> str:
    """Return which batch sizes and numbers of generations fit each other."""
    ranks, batch, generations = (_number(case, name) for name in ("ranks", "batch", "generations"))
    if generations < 2:
        return "set num_generations to 2 or more: GRPO compares the completions of one prompt with each other"
    fitting = next((n for n in range(1, generations + 1) if ranks * n % generations == 0), generations)
    valid = ", ".join(str(n) for n in range(2, ranks * batch + 1) if ranks * batch % n == 0)
    return (
        f"set per_device_{case.given['which']}_batch_size to {fitting} (or a multiple): {ranks} processes x {fitting} ="
        f" {ranks * fitting}, which {generations} divides"
        + (f"; or num_generations to one of {valid}" if valid else "")
    )


_PLACEHOLDER = re.compile(r"(?i)\b(?:your|my|path_to|path/to|example)_?|<\w+>|/path/to/")


def _end_of(path: str) -> str:
    """Return a path, or its end where it is long."""
    return path if len(path) <= _LONGEST_PATH else "…" + path[1 - _LONGEST_PATH :]


_LONGEST_PATH = 50


def _is_a_file(case: Case) -> bool:
    """Return whether the argument that a script does not know is a file of settings."""
    return re.search(r"\.(?:ya?ml|json|toml)['\"]", case.given["names"]) is not None


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="configuration.deepspeed_batch",
        kind=LogClass.CRASHED,
        what="DeepSpeed's three batch settings and the number of ranks contradict each other.",
        signs=(
            sign(
                "train_batch_size is not",
                r"world_size\s*(?P<total>\d+)\s+!=\s+(?P<micro>\d+)\s+\*\s+(?P<steps>\d+)\s+\*\s+(?P<world>\d+)",
            ),
        ),
        headline=_deepspeed_batch,
        why="the product of micro batch, gradient accumulation steps and number of ranks must be train_batch_size",
        next=(
            _for_deepspeed_batch,
            'with the Hugging Face Trainer set all three to "auto" in the DeepSpeed configuration',
        ),
        check="print(os.environ.get('WORLD_SIZE'), torch.distributed.is_initialized()) before deepspeed.initialize",
        examples=(
            Example(
                "[rank0]: AssertionError: Check batch related parameters. train_batch_size is not equal to"
                " micro_batch_per_gpu * gradient_acc_step * world_size 8 != 2 * 1 * 1",
                source="deepspeedai/DeepSpeed#6914",
                says=("train_batch_size 8", "fit 4 ranks", "torchrun or deepspeed"),
            ),
            Example(
                "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *"
                " gradient_acc_step * world_size 256 != 2 * 18 * 7",
                source="OpenRLHF/OpenRLHF#346",
                says=("= 252", "set train_batch_size to 252"),
            ),
        ),
        knowledge="DeepSpeed's page on batch-size parameters; bigcode-project/starcoder#41",
    ),
    Failure(
        id="configuration.deepspeed_mismatch",
        kind=LogClass.CRASHED,
        what="The DeepSpeed configuration and the arguments of the Trainer give different values for one setting.",
        signs=(
            sign(
                "DeepSpeed config values that mismatch",
                r"mismatch\s+TrainingArguments\s+values:(?:\s+- ds (?P<key>[\w.]+)=(?P<ds>\S+) vs hf (?P<hf>\S[^\n]{0,80}))?",
            ),
        ),
        headline=lambda case: (
            f"DeepSpeed's configuration contradicts the Trainer: {case.given['key']}={case.given['ds']}"
            if case.given["key"]
            else "DeepSpeed's configuration contradicts the arguments of the Trainer"
        ),
        why=lambda case: (
            f"the Trainer has {case.given['hf']}" if case.given["hf"] else "one setting is given twice, with two values"
        ),
        next=(
            'set the listed keys to "auto" in the DeepSpeed JSON (without quotes around numbers if you keep one): the'
            " Trainer then fills in its own values",
            "or give the Trainer the same values (per_device_train_batch_size, gradient_accumulation_steps, learning_rate,"
            " fp16 or bf16, warmup_steps)",
        ),
        check="the message lists each pair",
        examples=(
            Example(
                "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
                "- ds train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=8\n"
                "The easiest method is to set these DeepSpeed config values to 'auto'.",
                source="huggingface/transformers#27830",
                says=("train_micro_batch_size_per_gpu=1", "per_device_train_batch_size=8", '"auto"'),
            ),
        ),
        knowledge="the DeepSpeed page of transformers; huggingface/transformers#12021",
    ),
    Failure(
        id="configuration.generations",
        kind=LogClass.CRASHED,
        what="The batch of a GRPO step cannot be divided into whole groups of completions.",
        signs=(
            sign(
                "evenly divisible by the number of generations",
                r"global (?P<which>train|eval) batch size \((?P<ranks>\d+) x (?P<batch>\d+)\) must be evenly divisible by"
                r" the number of generations per prompt \((?P<generations>\d+)\)",
            ),
        ),
        headline=lambda case: (
            f"GRPO: {case.given['ranks']} processes x batch {case.given['batch']} is not a multiple of"
            f" {case.given['generations']} generations"
            if _number(case, "generations") > 1
            else "GRPO needs at least 2 generations for each prompt"
        ),
        why="since trl 0.15 the batch size counts completions, not prompts, and each prompt's group must be whole",
        next=(
            _for_generations,
            "if one GPU is kept for vLLM, the number of training processes is one less: count it",
        ),
        check="the valid numbers of generations stand at the end of the message",
        examples=(
            Example(
                "[rank1]: ValueError: The global train batch size (7 x 1) must be evenly divisible by the number of"
                " generations per prompt (8). Given the current train batch size, the valid values for the number of"
                " generations are: [7].",
                source="huggingface/open-r1#249",
                says=("7 processes x batch 1", "per_device_train_batch_size to 8", "one of 7"),
            ),
            Example(
                "ValueError: The global train batch size (1 x 1) must be evenly divisible by the number of generations per"
                " prompt (16). Given the current train batch size, the valid values for the number of generations are:"
                " [].",
                source="wyf3/llm_related#13",
                says=("per_device_train_batch_size to 16",),
            ),
        ),
        knowledge="huggingface/trl#2776, huggingface/trl#3199",
    ),
    Failure(
        id="configuration.equal_chunks",
        kind=LogClass.CRASHED,
        what="A batch of verl cannot be split evenly over its workers.",
        signs=(
            sign(
                "only support equal chunk",
                r"only support equal chunk\. Got size of DataProto (?P<size>\d+) and chunk (?P<chunks>\d+)",
            ),
            sign(
                "must be divisible by minimal possible batch size",
                r"real_train_batch_size \((?P<size>\d+)\) must be divisible by minimal possible batch size"
                r" \((?P<chunks>\d+)\)",
            ),
        ),
        headline="A batch of {size} cannot be split evenly over {chunks} workers",
        why="each worker of the group gets the same number of samples: prompts x rollout.n must be a multiple of nodes x"
        " GPUs (divided by the tensor-parallel size)",
        next=(
            lambda case: (
                f"the batch needs a multiple of {case.given['chunks']} samples"
                f" ({-(-_number(case, 'size') // max(1, _number(case, 'chunks'))) * _number(case, 'chunks')} is the next): set"
                " data.train_batch_size (or val and gen batch size) so"
            ),
            "with rollout.n completions for each prompt, count prompts x n; the last batch of validation needs padding or"
            " drop_last",
        ),
        check="nnodes x n_gpus_per_node of the run",
        examples=(
            Example(
                "AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.",
                source="hiyouga/EasyR1#44",
                says=("batch of 512", "516 is the next"),
            ),
        ),
        knowledge="verl's protocol.py; verl-project/verl#473",
    ),
    Failure(
        id="configuration.layers_over_stages",
        kind=LogClass.CRASHED,
        what="The layers of the model cannot be divided evenly over the pipeline stages.",
        signs=(
            sign("ivisible by", r"[Nn]um(?:ber of |_|-)layers (?:should|must) be divisible by[\s\S]{0,20}?pipeline"),
            sign("ivisible by", r"number of layers is not divisible by number of layers per virtual"),
        ),
        headline="The number of layers is not divisible by the pipeline-parallel size",
        why="each stage gets the same number of layers unless the first and last ones are given their own",
        next=(
            "give uneven stages: --decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers (also"
            " --pipeline-model-parallel-layout), so that the rest divides evenly",
            "or choose a pipeline-parallel size that divides the layers (with virtual stages: the product of both)",
        ),
        check="num_layers (num_hidden_layers in config.json) modulo pipeline_model_parallel_size",
        examples=(
            Example(
                "[rank14]: AssertionError: Number of layers should be divisible by the pipeline-model-parallel size",
                source="modelscope/ms-swift#5737",
                says=("decoder-first-pipeline-num-layers",),
            ),
            Example(
                "[rank15]: AssertionError: num_layers should be divisible by pipeline_model_parallel_size",
                source="NVIDIA-BioNeMo/bionemo-recipes#784",
                says=("pipeline",),
            ),
        ),
        knowledge="Megatron-LM's training/arguments.py; NVIDIA/Megatron-LM#1304",
    ),
    Failure(
        id="configuration.micro_batches",
        kind=LogClass.CRASHED,
        what="A pipeline has fewer micro-batches than its schedule needs.",
        signs=(
            sign(
                "icrobatch",
                r"(?:Number of microbatches \((?P<got>\d+)\) must be at least PP_SIZE-1=(?P<need>\d+)"
                r"|number of microbatches \((?P<got2>\d+)\) is not divisible by pipeline-model-parallel-size"
                r" \((?P<need2>\d+)\))",
            ),
        ),
        headline=lambda case: (
            f"The pipeline has {case.given['got'] or case.given['got2']} micro-batches, and its schedule needs"
            f" {'a multiple of ' if case.given['need2'] else 'at least '}{case.given['need'] or case.given['need2']}"
        ),
        why="each stage works on another micro-batch, so a step must have enough of them",
        next=(
            lambda case: (
                "raise the accumulation so that a step has"
                f" {'a multiple of ' if case.given['need2'] else 'at least '}{case.given['need'] or case.given['need2']}"
                " micro-batches (nanotron: batch_accumulation_per_replica; Megatron: global batch size / (micro batch size"
                " x data-parallel size))"
            ),
            "or use fewer pipeline stages",
        ),
        check="micro-batches = global batch size / (micro batch size x data-parallel size)",
        examples=(
            Example(
                "[default0]:AssertionError: Number of microbatches (1) must be at least PP_SIZE-1=7 when using the"
                " OneForwardOneBackwardPipelineEngine",
                source="huggingface/nanotron#347",
                says=("has 1 micro-batches", "at least 7", "batch_accumulation_per_replica"),
            ),
        ),
        knowledge="nanotron's pipeline_parallel/engine.py",
    ),
    Failure(
        id="configuration.parallel_degrees",
        kind=LogClass.STARTUP,
        what="The degrees of parallelism do not multiply to the number of ranks.",
        signs=(
            sign(
                "Invalid parallel dims",
                r"Invalid parallel dims: dp_replicate\((?P<d0>-?\d+)\) \* dp_shard\((?P<d1>-?\d+)\) \* cp\((?P<d2>\d+)\) \*"
                r" tp\((?P<d3>\d+)\) \* pp\((?P<d4>\d+)\)[^\n]{0,40}!= WORLD_SIZE\((?P<world>\d+)\)",
            ),
            sign(
                "is not divisible by",
                r"[Ww]orld[_ ]size \((?P<world>\d+)\) is not divisible by (?:total_model_size|tensor[^\n]{0,40})",
            ),
            sign(
                "is not equal to tensor_model_parallel_size",
                r"world_size \((?P<world>\d+)\) is not equal to tensor_model_parallel_size \((?P<d0>\d+)\) x"
                r" pipeline_model_parallel_size \((?P<d1>\d+)\)",
            ),
            sign("is not divisible by", r"world size: (?P<world>\d+)[^\n]{0,20} is not divisible by"),
        ),
        headline=_parallel_degrees,
        why="tensor x pipeline x context x data parallelism must use each rank exactly once",
        next=(
            Advice(
                "vLLM: start one process with python, not torchrun or accelerate, or set tensor_parallel_size to the ranks",
                when=lambda case: "is not equal to tensor_model_parallel_size" in case.lead.message,
            ),
            "set the data-parallel (shard) degree so that the product fits (torchtitan: data_parallel_shard_degree = -1"
            " takes what is left), or change tensor, pipeline or context parallelism",
            "or start another number of ranks: --nproc_per_node x --nnodes; if the message shows fewer than you"
            " started, the launcher was probably not used",
        ),
        check="echo $WORLD_SIZE in the job",
        examples=(
            Example(
                "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (1) x pipeline_model_parallel_size (1). ",
                source="open-compass/VLMEvalKit#561",
            ),
            Example(
                "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(2) * cp(1) * tp(8) * pp(1) !="
                " WORLD_SIZE(8)",
                says=("multiply to 16", "8 ranks"),
            ),
            Example(
                "RuntimeError: world_size (4) is not divisible by tensor_model_parallel_size (8) x"
                " pipeline_model_parallel_size (1) x context_parallel_size (1)",
                says=("4 ranks",),
            ),
        ),
        knowledge="torchtitan's distributed/parallel_dims.py; Megatron-LM's parallel_state.py",
    ),
    Failure(
        id="configuration.mesh_dimension",
        kind=LogClass.CRASHED,
        what="The code asks for a dimension of the device mesh that this run does not have.",
        signs=(sign("is not available", r"Mesh '(?P<name>\w+)' is not available"),),
        headline="The code asks for mesh '{name}', which this run does not have",
        why="most often its parallelism is off: torchtitan builds only the dimensions of the mesh whose degree is more"
        " than 1",
        next=(
            "turn this parallelism on (its degree larger than 1, such as tensor_parallel_degree = 2), if the model needs it",
            "or guard the line of the traceback: ask for the mesh only if parallel_dims has it enabled; update torchtitan,"
            " which has fixed some models",
        ),
        check="the line of the innermost frame asks for the mesh",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ValueError: Mesh 'tp' is not available. Ensure the corresponding parallelism dimension is enabled"
                " (size > 1).",
                source="pytorch/torchtitan#2184",
                says=("mesh 'tp'", "tensor_parallel_degree"),
            ),
        ),
        knowledge="pytorch/torchtitan#2184",
    ),
    Failure(
        id="configuration.batch_over_ranks",
        kind=LogClass.CRASHED,
        what="A batch size is not a multiple of what the ranks take.",
        signs=(
            sign(
                "divisible by",
                r"global batch size \((?P<total>\d+)\) (?:is not|must be) divisible by micro batch size \((?P<micro>\d+)\)"
                r" times data parallel size \((?P<ranks>\d+)\)",
            ),
            sign(
                "must be divisible by the number of",
                r"[Tt]otal batch size \((?P<total>\d+)\) must be divisible by the number of (?:gpus|GPUs|workers)"
                r" \((?P<ranks>\d+)\)",
            ),
            sign(
                "not multiple of GPU count",
                r"batch-size (?P<total>\d+) (?:not|must be) multiple of GPU count (?P<ranks>\d+)",
            ),
        ),
        headline=lambda case: (
            f"Batch size {case.given['total']} is not a multiple of"
            + (f" micro batch {case.given['micro']} x" if case.given.get("micro") else "")
            + f" {case.given['ranks']} ranks"
        ),
        why="each rank takes the same share of the batch in each step",
        next=(
            lambda case: (
                "set the batch size to "
                + str(
                    -(
                        -_number(case, "total")
                        // (unit := max(1, (_number(case, "micro") or 1) * _number(case, "ranks")))
                    )
                    * unit
                )
                + " or another multiple; or use a number of GPUs that divides it"
            ),
        ),
        check="global batch = micro batch x accumulation x data-parallel ranks",
        examples=(
            Example(
                "AssertionError: Total batch size (2) must be divisible by the number of gpus (4)",
                source="jiaosiyu1999/MAFT#10",
                says=("Batch size 2", "4 ranks", "to 4"),
            ),
            Example(
                "AssertionError: global batch size (16) is not divisible by micro batch size (2) times data parallel size"
                " (3)",
                says=("micro batch 2 x 3 ranks", "to 18"),
            ),
        ),
        knowledge="Megatron-LM's num_microbatches_calculator.py",
    ),
    Failure(
        id="configuration.heads",
        kind=LogClass.CRASHED,
        what="Attention heads cannot be divided over the tensor-parallel ranks.",
        signs=(
            sign(
                "attention heads",
                r"[Tt]otal number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size"
                r" \((?P<size>\d+)\)",
            ),
            sign(
                "is not divisible by tensor",
                r"(?:num_attention_heads|num_query_groups) \((?P<heads>\d+)\) (?:is not|must be) (?:divisible by|a multiple of)"
                r" tensor[_ ](?:model[_ ])?parallel[_ ]size \((?P<size>\d+)\)",
            ),
            sign("is not divisible by", r"^(?:AssertionError: )?(?P<heads>\d+) is not divisible by (?P<size>\d+)$"),
        ),
        when=lambda case: (
            "heads" in case.lead.message
            or "num_query_groups" in case.lead.message
            or case.called("vllm|megatron|sglang")
        ),
        headline=lambda case: (
            f"{case.given['heads']}"
            + (
                " attention heads"
                if "AssertionError" not in case.lead.message
                else " (attention heads, a layer or vocabulary)"
            )
            + f" cannot be divided over {case.given['size']} tensor-parallel ranks"
        ),
        why="each rank holds whole heads and equal parts of a layer",
        next=(
            lambda case: (
                f"choose a tensor-parallel size that divides {case.given['heads']}: {_divisors(_number(case, 'heads'))};"
                " use the other GPUs for data or pipeline parallelism"
            ),
        ),
        check="num_attention_heads and num_key_value_heads in config.json",
        examples=(
            Example(
                "(VllmWorkerProcess pid=29708) ERROR 09-03 12:08:10 multiproc_worker_utils.py:226]\n"
                "[rank0]: Traceback (most recent call last):\n"
                '[rank0]:   File "offline_inference_vision_language.py", line 240, in <module>\n'
                "[rank0]:     main(args)\n"
                '[rank0]:   File "offline_inference_vision_language.py", line 135, in run_internvl\n'
                "[rank0]:     llm = LLM(\n"
                '[rank0]:   File "/home/user/intervl/temp_vllm/vllm/vllm/entrypoints/llm.py", line 177, in __init__\n'
                "[rank0]:     self.llm_engine = LLMEngine.from_engine_args(\n"
                "[rank0]: AssertionError: 25 is not divisible by 4",
                source="vllm-project/vllm#8097",
                says=("25",),
            ),
            Example(
                "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
                says=("28 attention heads", "1, 2, 4, 7, 14, 28"),
            ),
        ),
        knowledge="vLLM's config.py",
    ),
    Failure(
        id="configuration.no_pad_token",
        kind=LogClass.CRASHED,
        what="A batch is to be padded, and the tokenizer or model has no padding token.",
        signs=(
            sign("does not have a padding token"),
            sign("no padding token is defined", r"Cannot handle batch sizes > 1 if no padding token is defined"),
        ),
        headline=lambda case: (
            "The model's config has no pad_token_id, which a batch of more than one needs"
            if "Cannot handle" in case.lead.message
            else "The tokenizer has no padding token, and the batch must be padded"
        ),
        why="many language models were trained without padding; samples of different length in one batch need it",
        next=(
            "tokenizer.pad_token = tokenizer.eos_token, and model.config.pad_token_id = tokenizer.pad_token_id",
            "if the collator masks padding by its id, the end of text is masked too: then take an unused token"
            " (tokenizer.unk_token, or one that the vocabulary reserves)",
            "a new token (add_special_tokens) needs model.resize_token_embeddings(len(tokenizer))",
        ),
        check="print(tokenizer.pad_token_id, model.config.pad_token_id)",
        examples=(
            Example(
                "ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as"
                " `pad_token` `(tokenizer.pad_token = tokenizer.eos_token e.g.)` or add a new pad token via"
                " `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`.",
                source="huggingface/trl#466",
                says=("tokenizer.pad_token = tokenizer.eos_token",),
            ),
            Example(
                "ValueError: Cannot handle batch sizes > 1 if no padding token is defined.",
                says=("pad_token_id",),
            ),
        ),
        knowledge="transformers' tokenization_utils_base.py; huggingface/trl#466",
    ),
    Failure(
        id="configuration.ragged_batch",
        kind=LogClass.CRASHED,
        what="Samples of different length cannot become one tensor, most often because nothing pads or truncates them.",
        signs=(
            sign("Unable to create tensor", r"Unable to create tensor, you should probably activate"),
            sign("excessive nesting", r"features \(`?(?P<feature>\w+)`? in this case\) have excessive nesting"),
        ),
        headline=lambda case: (
            "Samples of one batch differ in length, or a column is nested or holds texts"
            + (f": {case.given['feature']}" if case.given.get("feature") else "")
        ),
        why="most often the collator pads input_ids and attention_mask, and not the column in the message (often labels), or strings"
        " are left in the batch",
        next=(
            "use a collator that pads labels too: DataCollatorForSeq2Seq(tokenizer) or DataCollatorForLanguageModeling;"
            " for fixed labels truncate and pad when tokenizing (padding='max_length', truncation=True)",
            "remove columns that are not model inputs: dataset.map(..., remove_columns=dataset.column_names)",
        ),
        check="print([len(x) for x in batch['labels']]) of one batch",
        examples=(
            Example(
                "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with\n"
                "'padding=True' 'truncation=True' to have batched tensors with the same length. Perhaps your features\n"
                "(`text` in this case) have excessive nesting (inputs type `list` where type `int` is expected).",
                source="argilla-io/argilla#4513",
                says=("text",),
            ),
            Example(
                "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with"
                " 'padding=True' 'truncation=True' to have batched tensors with the same length. Perhaps your features"
                " (`labels` in this case) have excessive nesting (inputs type `list` where type `int` is expected).",
                says=("DataCollatorForSeq2Seq",),
            ),
        ),
        knowledge="transformers' tokenization_utils_base.py",
    ),
    Failure(
        id="configuration.bf16_unsupported",
        kind=LogClass.CRASHED,
        what="bf16 is asked for on a GPU without it, or without a visible GPU.",
        signs=(
            sign("support bf", r"[Yy]our setup doesn't support bf16"),
            sign("only supported on GPUs with compute capability", r"Bfloat16 is only supported on GPUs with compute"),
        ),
        headline="bf16 is on, and this GPU has none (older than Ampere), or no GPU is visible",
        why="V100, T4, P100 and RTX 20 have no bf16; the check also fails where torch sees no GPU at all",
        next=(
            "set bf16=False and fp16=True where the message comes from: in TrainingArguments (or its YAML), not only in the"
            " DeepSpeed JSON; load the model with torch_dtype=torch.float16 or float32 (vLLM: --dtype half)",
            "or use an Ampere or newer GPU (A100, L4, RTX 30)",
            "if the GPU is new enough: check torch.cuda.is_available() and CUDA_VISIBLE_DEVICES",
        ),
        check="python -c 'import torch; print(torch.cuda.is_available(), torch.cuda.is_bf16_supported(),"
        " torch.cuda.get_device_name())'",
        rules_out="the version of torch: 1.10 and newer suffice",
        examples=(
            Example(
                '  File "/databricks/python/lib/python3.9/site-packages/transformers/training_args.py", line 1098, in'
                " __post_init__\n"
                "    raise ValueError(\n"
                "ValueError: Your setup doesn't support bf16/gpu. You need torch>=1.10, using Ampere GPU with cuda>=11.0",
                source="databrickslabs/dolly#11",
                says=("fp16=True", "TrainingArguments"),
            ),
            Example(
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla V100"
                " GPU has compute capability 7.0. You can use float16 instead by explicitly setting the`dtype` flag in CLI,"
                " for example: --dtype=half.",
                says=("--dtype half",),
            ),
        ),
        knowledge="transformers' training_args.py; databrickslabs/dolly#11",
    ),
    Failure(
        id="configuration.precision_choice",
        kind=LogClass.CRASHED,
        what="Two precisions are on at once, or fp16 where there is no GPU for it.",
        signs=(
            sign("At most one of fp", r"At most one of fp16 and bf16 can be True"),
            sign("can only be used on CUDA", r"[Mm]ixed precision[\s\S]{0,160}?can only be used on CUDA"),
            sign("mixed precision requires", r"fp16 mixed precision requires a GPU"),
        ),
        headline=lambda case: (
            "fp16 and bf16 are both on"
            if "At most one" in case.lead.message
            else "fp16 is on, and this process sees no GPU"
        ),
        why=lambda case: (
            "one of them is often set in a configuration file and the other on the command line"
            if "At most one" in case.lead.message
            else "fp16 mixed precision exists for GPUs only"
        ),
        next=(
            Advice(
                "update the NVIDIA driver, or install a PyTorch that was built for the CUDA of the present one (nvidia-smi)",
                when=lambda case: case.printed("driver on your system is too old"),
            ),
            Advice(
                "leave one: bf16 on Ampere and newer, fp16 before",
                when=lambda case: "At most one" in case.lead.message,
            ),
            Advice(
                "if the machine has a GPU, find why PyTorch does not see it: nvidia-smi, CUDA_VISIBLE_DEVICES, and"
                " torch.version.cuda, which is empty in a build for the CPU",
                when=lambda case: "At most one" not in case.lead.message,
            ),
            Advice(
                "else turn fp16 off (mixed_precision: no)", when=lambda case: "At most one" not in case.lead.message
            ),
        ),
        check="python -c 'import torch; print(torch.cuda.is_available(), torch.version.cuda)'",
        examples=(
            Example(
                "$ ./run_unsup_example.sh\n"
                "02/15/2024 12:49:10 - INFO - __main__ -   PyTorch: setting up devices\n"
                "Traceback (most recent call last):\n"
                '  File "D:\\TASK\\SimCSE-main\\train.py", line 591, in <module>\n'
                "    main()\n"
                '  File "D:\\TASK\\SimCSE-main\\train.py", line 263, in main\n'
                "    model_args, data_args, training_args = parser.parse_args_into_dataclasses()\n"
                '  File "D:\\Anaconda3\\lib\\site-packages\\transformers\\training_args.py", line 428, in __post_init__\n'
                '    raise ValueError("Mixed precision training with AMP or APEX (`--fp16`) can only be used on CUDA devices.")\n'
                "ValueError: Mixed precision training with AMP or APEX (`--fp16`) can only be used on CUDA devices.",
                source="princeton-nlp/SimCSE#273",
            ),
            Example(
                "ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation (`--fp16_full_eval`) can only be used on CUDA or NPU devices or certain XPU devices (with IPEX).",
                source="FlagOpen/FlagEmbedding#546",
                says=("no GPU",),
            ),
            Example(
                "/home/user/anaconda3/envs/llama_etuning/lib/python3.10/site-packages/torch/cuda/__init__.py:138: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver. (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)\n"
                "  return torch._C._cuda_getDeviceCount() > 0\n"
                "FlashAttention-2 is not installed, ignore this if you are not using FlashAttention.\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/LLaMA-Efficient-Tuning/src/train_bash.py", line 14, in <module>\n'
                "    main()\n"
                "ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation (`--fp16_full_eval`) can only be used on CUDA devices.",
                source="hiyouga/LlamaFactory#1132",
            ),
            Example("ValueError: At most one of fp16 and bf16 can be True, but not both", says=("leave one",)),
            Example(
                "ValueError: fp16 mixed precision requires a GPU (not 'mps').",
                says=("no GPU", "mixed_precision"),
            ),
        ),
        knowledge="transformers' training_args.py; accelerate's accelerator.py",
    ),
    Failure(
        id="configuration.number_as_text",
        kind=LogClass.CRASHED,
        what="A number of a YAML file was read as text, such as 1e-5.",
        signs=(
            sign(
                "not supported between instances of",
                r"'[<>]=?' not supported between instances of '(?:float|int|str)' and '(?:str|float|int)'",
            ),
        ),
        when=lambda case: (
            case.printed(r"'str'") and (case.called(r"optim|lr_scheduler|trainer|train|config") or not case.lead.calls)
        ),
        headline="A number was compared with a text{place}: a setting was read as text",
        why="most often a learning rate like 1e-5 in YAML, which takes it for a string (its floats need a dot:"
        " 1.0e-5); else an argument without type=float, or quotes",
        next=(
            "write 1.0e-5 or 0.00001 in the YAML file (also weight_decay, eps and min_lr)",
            "or convert in the code: float(config['lr'])",
        ),
        check="print(type(config['lr']))",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "./train_dcnet.py", line 80, in <module>\n'
                "    train(args)\n"
                '  File "/home/user/MyCode/trainer.py", line 27, in create_optimizer\n'
                "    opt = supported_optimizer[optimizer](params, **kwargs)\n"
                '  File "/home/user/anaconda3/lib/python3.6/site-packages/torch/optim/rmsprop.py", line 29, in __init__\n'
                "    if not 0.0 <= lr:\n"
                "TypeError: '<=' not supported between instances of 'float' and 'str'",
                source="funcwj/deep-clustering#3",
                says=("1.0e-5", "1e-5"),
            ),
        ),
        near_misses=("TypeError: '<' not supported between instances of 'dict' and 'dict'",),
        knowledge="YAML 1.1's float type; hiyouga/LlamaFactory#4014",
    ),
    Failure(
        id="configuration.yaml_syntax",
        kind=LogClass.CRASHED,
        what="A YAML file is not valid, or has what its reader refuses.",
        signs=(
            sign("yaml.", r"yaml\.(?:scanner|parser|constructor|composer)\.\w+Error(?:: (?P<reason>[^\n]{3,90}))?"),
            sign("mapping values are not allowed"),
            sign("that cannot start any token"),
        ),
        headline=lambda case: (
            "A YAML file has a tag or value that its reader refuses"
            if "ConstructorError" in case.lead.message
            else "A YAML file has a syntax error"
        ),
        why=lambda case: (
            "a tab indents a line, and YAML allows only blanks"
            if case.printed(r"'\\t' that cannot start")
            else "a line has a colon without a blank after it or inside of a text, or its indentation does not fit"
            if case.printed("mapping values are not allowed")
            else "the file cannot be read to its end"
        ),
        next=(
            "look at the file, line and column that the message gives, and at the line above it: a missing blank after a"
            " colon, a text with a colon that needs quotes, tabs, uneven indentation, or markers of a merge",
        ),
        check="python -c 'import sys, yaml; yaml.safe_load(open(sys.argv[1]))' FILE",
        examples=(
            Example(
                "yaml.scanner.ScannerError: mapping values are not allowed here\n"
                '  in "configs/deim_dfine\\.\\../dataset/coco_detection.yml", line 32, column 15',
                source="Intellindust-AI-Lab/DEIM#36",
                says=("line and column",),
            ),
        ),
        knowledge="PyYAML's documentation",
    ),
    Failure(
        id="configuration.missing_file",
        kind=LogClass.CRASHED,
        what="A file of settings that the program was given does not exist.",
        signs=(
            sign(
                "No such file or directory",
                r"\[Errno 2\] No such file or directory: '(?P<path>[^'\n]{1,300}\.(?:ya?ml|toml|cfg|ini|conf))'",
            ),
        ),
        headline=lambda case: f"A file of settings is not there: {_end_of(case.given['path'])}",
        why=lambda case: (
            "its name is a placeholder of an example, to be replaced by one's own"
            if _PLACEHOLDER.search(case.given["path"])
            else "a path that does not begin with / is taken from the folder in which the job was started, on its own node"
        ),
        next=(
            "give the path of your own file in the command or its default; from the job's folder `ls` must show it (pwd; absolute paths"
            " are safest)",
        ),
        check="ls -l PATH on the node of the rank, in the folder where the job starts",
        explains=("exceptions.*",),
        examples=(
            Example(
                "FileNotFoundError: [Errno 2] No such file or directory: '/home/user/PanguWeather/config/your_config.yaml'",
                says=("placeholder", "your_config.yaml"),
            ),
            Example("FileNotFoundError: [Errno 2] No such file or directory: 'configs/base.yml'", says=("pwd",)),
        ),
        near_misses=("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",),
        knowledge="Python: FileNotFoundError",
    ),
    Failure(
        id="configuration.json_syntax",
        kind=LogClass.CRASHED,
        what="A file in JSON is not valid.",
        signs=(
            sign(
                "JSONDecodeError",
                r"JSONDecodeError: (?P<what>[A-Z][^:\n]{3,80}): line (?P<line>\d+) column (?P<column>\d+)",
            ),
        ),
        when=lambda case: case.called(
            r"json/__init__\.py:\d+:load$|hf_ds_config|deepspeed[^:]*\.py:\d+:|[Cc]onfig\w*$"
        ),
        headline=lambda case: (
            f"A file {'of settings ' if case.called('hf_ds_config|deepspeed|[Cc]onfig') else ''}in JSON is not valid at line"
            f" {case.given['line']}, column {case.given['column']}"
        ),
        why=lambda case: (
            f"Python's reader says: {case.given['what'].lower()}"
            + (
                "; the frames show that it is the configuration of DeepSpeed"
                if case.called("hf_ds_config|deepspeed")
                else ""
            )
        ),
        next=(
            Advice(
                "look what stands in it: an empty file, a git-lfs pointer or a web page fails at its first character",
                when=lambda case: (case.given["line"], case.given["column"]) == ("1", "1"),
            ),
            "open it at this line: JSON has no comments and no comma after the last entry, writes true, false and null"
            " small, and puts names and texts into double quotes",
        ),
        check="python -m json.tool FILE names the place, too",
        explains=("exceptions.*",),
        examples=(
            Example(
                '  File "/env/transformers/integrations/deepspeed.py", line 66, in __init__\n'
                "    config = json.load(f)\n"
                '  File "/usr/lib/python3.10/json/__init__.py", line 293, in load\n'
                "    return loads(fp.read(),\n"
                "json.decoder.JSONDecodeError: Expecting value: line 18 column 21 (char 359)",
                says=("line 18", "DeepSpeed"),
            ),
        ),
        knowledge="Python: json; RFC 8259",
    ),
    Failure(
        id="configuration.unused_arguments",
        kind=LogClass.STARTUP,
        what="A training script does not know an argument or a key of its configuration.",
        signs=(
            sign(
                "are not used by the HfArgumentParser",
                r"not used by the HfArgumentParser: (?P<names>\[[^\n]{1,200}?\])",
            ),
        ),
        headline="The script does not know these arguments: {names}",
        why=lambda case: (
            "the shell script has line ends of Windows, and so an argument of its own at the end of a line"
            if r"\r" in case.given["names"]
            else "the launcher (torch.distributed.launch, deepspeed) passes it to each rank, and the script does not expect it"
            if re.search("local.rank", case.given["names"])
            else "a file of settings is given without an option, and this script takes options only"
            if _is_a_file(case)
            else "the keys are misspelt, belong to another script, or were renamed in the installed version"
        ),
        next=(
            Advice(
                r"sed -i 's/\r$//' the shell script, and remove blanks after a backslash at the end of a line",
                when=lambda case: r"\r" in case.given["names"],
            ),
            Advice(
                "accept a local_rank in the script's arguments, or start with torchrun in place of python -m"
                " torch.distributed.launch (or launch --use_env)",
                when=lambda case: re.search("local.rank", case.given["names"]) is not None,
            ),
            Advice(
                "give the settings as --options, or take the version of the script that the command was written for, which reads such"
                " a file (parser.parse_yaml_file or parse_json_file in its main)",
                when=_is_a_file,
            ),
            Advice(
                "correct or remove them; `--help` lists those that exist (transformers 4.46: evaluation_strategy became"
                " eval_strategy; LLaMA-Factory renames keys between releases)",
                when=lambda case: not _is_a_file(case),
            ),
            "see in the frames which copy of the project is imported; use the one that the configuration was written for",
        ),
        check="the names stand in the message",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/TokenPacker/llava/train/train_mem.py", line 13, in <module>\n'
                "    train()\n"
                '  File "/home/user/LLaVA/llava/train/train.py", line 793, in train\n'
                "    model_args, data_args, training_args = parser.parse_args_into_dataclasses()\n"
                '  File "/home/user/miniconda3/envs/llava/lib/python3.10/site-packages/transformers/hf_argparser.py", line 348, in parse_args_into_dataclasses\n'
                '    raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining_args}")\n'
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--scale_factor', '2']\n"
                "[2025-07-12 10:41:18,916] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 14659\n"
                "[2025-07-12 10:41:18,917] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 14660\n"
                "[2025-07-12 10:41:19,091] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 14661\n"
                "[2025-07-12 10:41:19,225] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 14662",
                source="CircleRadon/TokenPacker#23",
                says=("--scale_factor",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/LLaVA-MoD/align_train.py", line 647, in <module>\n'
                "    train()\n"
                '  File "/home/user/LLaVA-MoD/align_train.py", line 528, in train\n'
                "    model_args, data_args, training_args, align_args = parser.parse_args_into_dataclasses()\n"
                "                                                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '  File "/home/user/miniconda3/envs/llavaMod/lib/python3.11/site-packages/transformers/hf_argparser.py", line 367, in parse_args_into_dataclasses\n'
                '    raise ValueError(f"Some specified arguments are not used by the HfArgumentParser: {remaining_args}")\n'
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['\\r']\n"
                "[2025-04-30 01:58:28,384] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 3611\n"
                "dense2dense_distillation.sh: line 52: --deepspeed: command not found\n"
                "dense2dense_distillation.sh: line 53: --ref_model_name_or_path: command not found",
                source="shufangxun/LLaVA-MoD#16",
            ),
            Example(
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--local-rank=0']",
                source="huggingface/transformers#22171",
            ),
            Example(
                "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--evaluation_strategy',"
                " 'steps']",
                says=("eval_strategy",),
            ),
            Example(
                "ValueError: Some keys are not used by the HfArgumentParser: ['max_samples', 'cutoff_len']",
                says=("cutoff_len",),
            ),
        ),
        knowledge="transformers' hf_argparser.py",
    ),
    Failure(
        id="configuration.hydra",
        kind=LogClass.STARTUP,
        what="Hydra or OmegaConf does not accept a key or value of the configuration.",
        signs=(
            sign("Could not override", r"Could not override '(?P<key>[^'\n]{1,120})'"),
            sign("is not in struct", r"Key '(?P<key>\w+)' is not in struct"),
            sign("Missing mandatory value", r"Missing mandatory value: (?P<key>[\w.]+)"),
            sign("Cannot find primary config", r"Cannot find primary config '(?P<key>[^'\n]{1,120})'"),
            sign("You must specify", r"You must specify '(?P<key>[^'\n]{1,80})', e\.g"),
        ),
        headline=lambda case: (
            f"Hydra: {case.given['key']} must be given"
            if case.printed("Missing mandatory|You must specify")
            else f"Hydra finds no configuration file {case.given['key']}"
            if case.printed("Cannot find primary config")
            else f"Hydra: the configuration has no key {case.given['key']}"
        ),
        why=lambda case: (
            "its value is ???, which stands for one that the command line must give"
            if case.printed("Missing mandatory|You must specify")
            else "config_path is relative to the script's file"
            if case.printed("Cannot find primary config")
            else "the configuration is closed: only keys that it has may be changed"
        ),
        next=(
            Advice(
                lambda case: f"give it: {case.given['key']}=VALUE on the command line",
                when=lambda case: case.printed("Missing mandatory|You must specify"),
            ),
            Advice(
                "correct --config-path (relative to the script) and --config-name (without .yaml)",
                when=lambda case: case.printed("Cannot find primary config"),
            ),
            Advice(
                lambda case: (
                    f"check the spelling and the level of {case.given['key']}; add a new key with a plus:"
                    f" +{case.given['key']}=VALUE (++ adds or overrides)"
                ),
                when=lambda case: not case.printed("Missing mandatory|You must specify|Cannot find primary config"),
            ),
        ),
        event=EventKind.KNOWN,
        check="python script.py --cfg job prints the configuration; HYDRA_FULL_ERROR=1 the whole traceback",
        examples=(
            Example(
                "Could not override 'trainer.gpus'.\n"
                "To append to your config use +trainer.gpus=0\n"
                "Key 'gpus' is not in struct\n"
                "    full_key: trainer.gpus\n"
                "    object_type=dict\n"
                "\n"
                "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
                source="lazaratan/dyn-gfn#8",
                says=("+",),
            ),
            Example(
                "Error executing job with overrides: ['train.batch_size=128', 'train.num_workers=16', 'train.num_epochs=100', 'train.lr=1e-3']\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/facial_robot/X2CNet/main.py", line 130, in main\n'
                "    pred_delta = int(cfg.train.pred_delta_from_neutral)\n"
                "                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "omegaconf.errors.ConfigAttributeError: Key 'pred_delta_from_neutral' is not in struct\n"
                "    full_key: train.pred_delta_from_neutral\n"
                "    object_type=dict\n"
                "\n"
                "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
                source="lipzh5/X2CNet#2",
                says=("pred_delta_from_neutral",),
            ),
            Example(
                "Could not override 'trainer.gpus'.\nTo append to your config use +trainer.gpus=2\n"
                "omegaconf.errors.ConfigAttributeError: Key 'gpus' is not in struct",
                says=("gpus", "plus"),
            ),
            Example(
                "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: data.path",
                says=("data.path=VALUE",),
            ),
        ),
        knowledge="Hydra's override grammar; OmegaConf's struct flag",
    ),
    Failure(
        id="configuration.save_and_eval",
        kind=LogClass.STARTUP,
        what="load_best_model_at_end needs evaluations where checkpoints are saved.",
        signs=(sign("load_best_model_at_end requires", r"load_best_model_at_end requires the (?:save|saving)"),),
        headline="load_best_model_at_end is on, and saving and evaluation do not fall on the same steps",
        why="the best checkpoint can only be chosen among those that were evaluated",
        next=(
            "set save_strategy and eval_strategy to the same, with save_steps a multiple of eval_steps",
            "or load_best_model_at_end=False",
        ),
        check="the two values stand in the message",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/data/user/TSAR/code/run.py", line 747, in <module>\n'
                "    main()\n"
                '  File "/data/user/TSAR/code/run.py", line 165, in main\n'
                "    model_args, data_args, training_args = parser.parse_args_into_dataclasses()\n"
                '  File "/home/user/anaconda3/envs/xs/lib/python3.9/site-packages/transformers/hf_argparser.py", line 332, in parse_args_into_dataclasses\n'
                "    obj = dtype(**inputs)\n"
                '  File "<string>", line 110, in __init__\n'
                '  File "/home/user/anaconda3/envs/xs/lib/python3.9/site-packages/transformers/training_args.py", line 1180, in __post_init__\n'
                "    raise ValueError(\n"
                "ValueError: --load_best_model_at_end requires the save and eval strategy to match, but found\n"
                "- Evaluation strategy: epoch\n"
                "- Save strategy: steps",
                source="RunxinXu/TSAR#13",
                says=("save_strategy",),
            ),
        ),
        knowledge="transformers' training_args.py",
    ),
    Failure(
        id="configuration.dataset_columns",
        kind=LogClass.CRASHED,
        what="The Trainer removed all columns, because none has the name of a model input.",
        signs=(sign("No columns in the dataset match the model's forward method"),),
        headline="No column of the data set has the name of a model input",
        why="the Trainer removes columns that the model's forward does not take; here none is left, as for text that was"
        " not tokenized, or a model that is wrapped and takes **kwargs",
        next=(
            "tokenize before: the data set needs input_ids, attention_mask and labels",
            "if your collator does it: remove_unused_columns=False in the training arguments",
            "peft: name the labels in label_names=['labels']",
        ),
        check="print(dataset.column_names)",
        examples=(
            Example(
                "ValueError: No columns in the dataset match the model's forward method signature. The following columns have been ignored: [text, audio]. Please check the dataset and model. You may need to set `remove_unused_columns=False` in `TrainingArguments`.",
                source="canopyai/Orpheus-TTS#105",
                says=("remove_unused_columns=False",),
            ),
        ),
        knowledge="transformers' trainer.py",
    ),
    Failure(
        id="configuration.chat_template",
        kind=LogClass.CRASHED,
        what="The tokenizer of a base model has no chat template.",
        signs=(sign("chat_template is not set"),),
        headline="The tokenizer has no chat template, and the code applies one",
        why="base models have none, and since transformers 4.44 there is no default",
        next=(
            "take the tokenizer of the instruct model, or set tokenizer.chat_template (trl: clone_chat_template or"
            " setup_chat_format, with the embeddings resized)",
            "or format the text yourself in the data set",
        ),
        check="print(tokenizer.chat_template)",
        examples=(
            Example(
                "[rankx]: ValueError: Cannot use chat template functions because tokenizer.chat_template is not set and no template argument was passed! For information about writing templates and setting the tokenizer.chat_template attribute, please see the documentation at https://huggingface.co/docs/transformers/main/en/chat_templating",
                source="OpenRLHF/OpenRLHF#613",
                says=("instruct",),
            ),
        ),
        knowledge="transformers' page on chat templates",
    ),
    Failure(
        id="configuration.target_modules",
        kind=LogClass.CRASHED,
        what="No module of the model has a name that LoRA should change.",
        signs=(
            sign("not found in the base model", r"Target modules (?P<names>[^\n]{2,120}?) not found in the base model"),
        ),
        headline=lambda case: (
            f"LoRA finds no module named {case.given['names'].strip('{}')} in this model"
            if re.search(r"\w", case.given["names"].replace("set()", ""))
            else "LoRA was given an empty list of target modules"
        ),
        why="each architecture has its own names: q_proj and v_proj in Llama, query_key_value in GPT-NeoX and ChatGLM,"
        " c_attn in GPT-2 and Qwen 1, qkv_proj in Phi-3",
        next=(
            'target_modules="all-linear", or names of this model: print([n for n, m in model.named_modules() if isinstance(m,'
            " torch.nn.Linear)])",
        ),
        check="print(model)",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "sft_lora.py", line 68, in <module>\n'
                "    model = get_peft_model(model, config)\n"
                '  File "/usr/lib/python3.8/site-packages/peft-0.4.0.dev0-py3.8.egg/peft/tuners/lora.py", line 181, in add_adapter\n'
                '  File "/usr/lib/python3.8/site-packages/peft-0.4.0.dev0-py3.8.egg/peft/tuners/lora.py", line 333, in _find_and_replace\n'
                "ValueError: Target modules [] not found in the base model. Please check the target modules and try again.",
                source="wp931120/baichuan_sft_lora#1",
            ),
            Example(
                '  File "F:\\llma3_bigmodel\\LLaMA-Factory-main\\src\\llmtuner\\model\\adapter.py", line 189, in init_adapter\n'
                "    model = get_peft_model(model, lora_config)\n"
                '  File "F:\\llma3_bigmodel\\big_model_venv\\lib\\site-packages\\peft\\mapping.py", line 136, in get_peft_model\n'
                "ValueError: Target modules {'c_attn'} not found in the base model. Please check the target modules and try again.",
                source="hiyouga/LlamaFactory#3597",
                says=("c_attn",),
            ),
        ),
        knowledge="peft's page on target modules",
    ),
    Failure(
        id="configuration.device_map_in_training",
        kind=LogClass.CRASHED,
        what="A model was loaded with a device map and is trained by several processes.",
        signs=(
            sign("in any distributed mode", r"train a model that has been loaded with `?device_map='auto'`?"),
            sign("on a different device than", r"loaded in \d-bit (?:or \d-bit )?precision on a different device than"),
            sign(
                "is not compatible with `low_cpu_mem_usage", r"Zero-?3 is not compatible with `low_cpu_mem_usage=True`"
            ),
        ),
        headline=lambda case: (
            "The quantised model was loaded on another device than the one that trains it"
            if "different device" in case.lead.message
            else "ZeRO-3 does not take a model that is loaded with low_cpu_mem_usage or a device_map"
            if re.search(r"Zero-?3", case.lead.message)
            else "The model was loaded with a device_map, which is refused in distributed training"
        ),
        why="a device map spreads one model over the GPUs of one process, and DDP, FSDP and ZeRO give each process its own",
        next=(
            "leave device_map (and low_cpu_mem_usage) out, and let the Trainer or accelerate place the model; quantised"
            " models: device_map={{'': int(os.environ['LOCAL_RANK'])}}",
            "or keep device_map='auto' and start one process: python script.py, or accelerate launch --num_processes 1"
            " (slower: one GPU works at a time); where one process is refused too, show it one GPU (CUDA_VISIBLE_DEVICES=0), or"
            " update accelerate and transformers, whose older versions refuse more",
        ),
        check="print(getattr(model, 'hf_device_map', 'no map'))",
        examples=(
            Example(
                "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode."
                " Please rerun your script specifying `--num_processes=1`.",
                source="FreedomIntelligence/HuatuoGPT-II#32",
                says=("LOCAL_RANK", "--num_processes 1"),
            ),
        ),
        knowledge="accelerate's accelerator.py; huggingface/transformers#31557",
    ),
    Failure(
        id="configuration.train_quantised",
        kind=LogClass.CRASHED,
        what="A purely quantised model is to be trained or moved.",
        signs=(
            sign("purely quantized models", r"cannot perform fine-tuning on purely quantized models"),
            sign("is not supported for", r"`?\.to`? is not supported for `?\d-bit`?"),
        ),
        headline=lambda case: (
            "A quantised model cannot be moved with .to()"
            if ".to" in case.lead.message and "purely" not in case.lead.message
            else "A quantised model cannot be trained itself: it needs LoRA adapters"
        ),
        why="4-bit and 8-bit weights have no gradients, and are placed when they are loaded",
        next=(
            Advice(
                "attach adapters: model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(...)), and check"
                " that the target modules match",
                when=lambda case: "purely" in case.lead.message,
            ),
            Advice(
                "remove the .to() or .cuda() call, and give device_map={{'': local_rank}} to from_pretrained; or update"
                " accelerate and transformers, if the call is theirs",
                when=lambda case: "purely" not in case.lead.message,
            ),
            "or load without quantisation for full fine-tuning",
        ),
        check="print(model.is_quantized, type(model))",
        examples=(
            Example(
                "ValueError: You cannot perform fine-tuning on purely quantized models. Please attach trainable adapters on top of the quantized model to correctly perform fine-tuning. Please see: https://huggingface.co/docs/transformers/peft for more details",
                source="unslothai/unsloth#241",
                says=("get_peft_model",),
            ),
        ),
        knowledge="transformers' page on bitsandbytes",
    ),
    Failure(
        id="configuration.empty_optimizer",
        kind=LogClass.CRASHED,
        what="An optimizer was made without parameters.",
        signs=(sign("optimizer got an empty parameter list"),),
        headline="The optimizer got no parameters: nothing in the model is trainable, or the list was used up",
        why="everything is frozen or filtered out, the layers stand in a plain Python list, or model.parameters() was"
        " iterated before (it is a generator)",
        next=(
            "print the names of trainable parameters before: [n for n, p in model.named_parameters() if p.requires_grad];"
            " put layers in nn.ModuleList or assign them as attributes",
            "pass list(model.parameters()) if the generator is used twice",
            "ZeRO-3 or FSDP: make the optimizer where the framework expects it (after FSDP wrapping)",
        ),
        check="print(sum(p.numel() for p in model.parameters() if p.requires_grad))",
        examples=(
            Example(
                ' File "train.py", line 76, in <module>\n'
                "    optimizer = optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=cfg.LR)\n"
                "ValueError: optimizer got an empty parameter list",
                source="lxztju/pytorch_classification#13",
                says=("requires_grad",),
            ),
        ),
        knowledge="torch.optim.Optimizer",
    ),
    Failure(
        id="configuration.scheduler_too_long",
        kind=LogClass.CRASHED,
        what="A learning-rate schedule was stepped more often than it was planned for.",
        signs=(
            sign(
                "Tried to step",
                r"Tried to step (?P<tried>\d+) times\. The (?:specified number of )?total (?:number of )?steps is (?P<planned>\d+)",
            ),
        ),
        headline="The schedule was planned for {planned} steps and is stepped for the {tried}th time",
        why="OneCycleLR counts each call of step: total_steps must be epochs x steps per epoch (divided by accumulation), also"
        " after a resume with more epochs",
        next=(
            "set total_steps (or epochs and steps_per_epoch) from the real length: len(loader) x epochs / accumulation, and"
            " call scheduler.step() once for each optimizer.step()",
            "resumed for more epochs: make a new schedule, and do not load the old one's state",
            "with accelerate, which steps the schedule once for each process: multiply the total by the number of"
            " processes, or step_scheduler_with_optimizer=False",
        ),
        check="print(len(loader), epochs, accumulation)",
        examples=(
            Example(
                "computing pseduo labels...\n"
                "Traceback (most recent call last):\n"
                '  File "train_Custom.py", line 308, in <module>\n'
                "    main(args, logger)\n"
                '  File "train_Custom.py", line 121, in main\n'
                "    train(train_loader, logger, model, optimizer, loss, epoch, scheduler, classifier)\n"
                '  File "train_Custom.py", line 220, in train\n'
                "    scheduler.step()\n"
                '  File "/home/user/anaconda3/envs/growsp2/lib/python3.8/site-packages/torch/optim/lr_scheduler.py", line 152, in step\n'
                "    values = self.get_lr()\n"
                '  File "/home/user/anaconda3/envs/growsp2/lib/python3.8/site-packages/torch/optim/lr_scheduler.py", line 1571, in get_lr\n'
                '    raise ValueError("Tried to step {} times. The specified number of total steps is {}"\n'
                "ValueError: Tried to step 60002 times. The specified number of total steps is 60000",
                source="vLAR-group/GrowSP#11",
                says=("60000",),
            ),
        ),
        knowledge="torch.optim.lr_scheduler.OneCycleLR",
    ),
    Failure(
        id="configuration.fp8_shapes",
        kind=LogClass.CRASHED,
        what="FP8 layers of Transformer Engine got shapes that are not multiples of 8 and 16.",
        signs=(
            sign(
                "execution requires",
                r"FP8 execution requires (?:the product of all dimensions|2D input matrices)[\s\S]{0,120}?",
            ),
            sign("are not compatible for", r"are not compatible for FP8 execution"),
        ),
        headline="FP8 needs sizes that are multiples of 8 and 16, and this tensor has others",
        why="tensor cores multiply FP8 in such blocks; the number of tokens (batch x sequence) and the hidden size must fit",
        next=(
            "pad sequences to a multiple of 16 (pad_to_multiple_of=16 in the collator), also in evaluation and for the last"
            " batch (drop_last=True)",
            "or keep the layers with other sizes out of fp8_autocast",
        ),
        check="the shape stands in the message",
        examples=(
            Example(
                "AssertionError: FP8 execution requires 2D input matrices with height divisible by 8 and width divisible by 16, but got tensor with dims=[896, 712]",
                source="NVIDIA/TransformerEngine#1422",
                says=("fp8_autocast",),
            ),
            Example(
                "AssertionError: Tensor dimensions are not compatible for FP8 execution: (2048 % 8 != 0, 767 % 16 != 0)",
                source="NVIDIA/TransformerEngine#688",
            ),
        ),
        knowledge="Transformer Engine's pytorch/utils.py",
    ),
    Failure(
        id="configuration.client_optimizer",
        kind=LogClass.CRASHED,
        what="DeepSpeed's ZeRO refuses the optimizer that the script made.",
        signs=(
            sign("ZeRO-Offload", r"You are using ZeRO-Offload with a client provided optimizer"),
            sign("untested ZeRO Optimizer", r"You are using an untested ZeRO Optimizer"),
        ),
        headline=lambda case: (
            "DeepSpeed has not tested ZeRO with the script's own optimizer, and refuses it"
            if "untested" in case.lead.message
            else "ZeRO-Offload refuses the script's own optimizer: it wants DeepSpeedCPUAdam"
        ),
        why=lambda case: (
            "only some optimizers are known to work on sharded parameters"
            if "untested" in case.lead.message
            else "the offloaded optimizer step runs on the CPU, where PyTorch's optimizers are slow"
        ),
        next=(
            "use deepspeed.ops.adam.DeepSpeedCPUAdam, or let the DeepSpeed configuration name the optimizer",
            'or allow it in the DeepSpeed configuration: "zero_force_ds_cpu_optimizer": false with offload,'
            ' "zero_allow_untested_optimizer": true for one that is untested',
            "or leave out offload_optimizer if the GPUs have room",
        ),
        check="zero_optimization.offload_optimizer in the DeepSpeed configuration",
        examples=(
            Example(
                "deepspeed.runtime.zero.utils.ZeRORuntimeException: You are using ZeRO-Offload with a client provided optimizer (<class 'deepspeed.ops.lion.cpu_lion.DeepSpeedCPULion'>) which in most cases will yield poor performance. Please either use deepspeed.ops.adam.DeepSpeedCPUAdam or set an optimizer in your ds-config (https://www.deepspeed.ai/docs/config-json/#optimizer-parameters). If you really want to use a custom optimizer w. ZeRO-Offload and understand the performance impacts you can also set <\"zero_force_ds_cpu_optimizer\": false> in your configuration file.",
                source="deepspeedai/DeepSpeed#7524",
                says=("zero_force_ds_cpu_optimizer",),
            ),
        ),
        knowledge="DeepSpeed's runtime/engine.py",
    ),
    Failure(
        id="configuration.no_labels",
        kind=LogClass.CRASHED,
        what="The model returned no loss, most often because the batch has no labels.",
        signs=(
            sign(
                "did not return a loss",
                r"model did not return a loss from the inputs, only the following keys: (?P<keys>[\w,. ]+)",
            ),
        ),
        headline=lambda case: (
            "The model returned no loss, although labels were passed"
            if re.search(r"received are [\w,]*\blabels\b", case.lead.message)
            else "The model returned no loss: the batch has no labels that it knows"
        ),
        why=lambda case: (
            "its forward takes no labels, or a patched forward drops the loss"
            if re.search(r"received are [\w,]*\blabels\b", case.lead.message)
            else "models of transformers compute a loss only if labels are passed; here they are missing, have another name, or"
            " were removed as an unused column"
        ),
        next=(
            Advice(
                "take the class with a head for the task (AutoModelForCausalLM, ...ForSequenceClassification), or update the"
                " library that patches it (unsloth, liger, trl)",
                when=lambda case: re.search(r"received are [\w,]*\blabels\b", case.lead.message) is not None,
            ),
            "add labels to the data set (for causal models a copy of input_ids; DataCollatorForLanguageModeling(tokenizer,"
            " mlm=False) makes them)",
            "give other names: label_names=['...'] in the training arguments, and remove_unused_columns=False if a wrapper hides"
            " forward's arguments",
        ),
        check="print(next(iter(trainer.get_train_dataloader())).keys())",
        examples=(
            Example(
                "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the inputs it received are input_ids,attention_mask,pixel_values,aspect_ratio_ids,aspect_ratio_mask,cross_attention_mask",
                source="huggingface/transformers#34392",
                says=("labels",),
            ),
            Example(
                "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the inputs it received are input_ids,attention_mask,labels.",
                source="unslothai/unsloth#1899",
            ),
        ),
        knowledge="transformers' trainer.py",
    ),
    Failure(
        id="configuration.no_evaluation_data",
        kind=LogClass.CRASHED,
        what="Evaluation is on, and the Trainer has no evaluation data.",
        signs=(
            sign("evaluation requires an eval_dataset"),
            sign("eval_dataset", r"but your `eval_dataset` is|You have set `args\.eval\w+` to [^\n]{0,60}but you"),
        ),
        headline="Evaluation is on, and the Trainer was given no eval_dataset",
        why="eval_strategy (or do_eval) asks for it, also when the validation split came out empty",
        next=("pass eval_dataset to the Trainer (LLaMA-Factory: val_size or eval_dataset), or set eval_strategy='no'",),
        check="print(len(dataset['validation']))",
        examples=(
            Example(
                'lib/python3.10/site-packages/transformers/trainer.py", line 890, in get_eval_dataloader\n'
                '    raise ValueError("Trainer: evaluation requires an eval_dataset.")\n'
                "ValueError: Trainer: evaluation requires an eval_dataset.",
                source="hiyouga/LlamaFactory#584",
                says=("eval_dataset",),
            ),
            Example(
                '[rank0]:   File "/home/user/.conda/envs/qwen3vl2/lib/python3.12/site-packages/transformers/trainer.py", line 440, in __init__\n'
                "[rank0]:     raise ValueError(\n"
                "[rank0]: ValueError: You have set `args.eval_strategy` to IntervalStrategy.STEPS but you didn't pass an `eval_dataset` to `Trainer`. Either set `args.eval_strategy` to `no` or pass an `eval_dataset`. \n"
                "[rank2]: Traceback (most recent call last):\n"
                '[rank2]:   File "/data/user/Qwen3-VL-new/qwen-vl-finetune/qwenvl/train/train_qwen.py", line 321, in <module>\n'
                '[rank2]:     train(attn_implementation="flash_attention_2")\n'
                '[rank2]:   File "/data/user/Qwen3-VL-new/qwen-vl-finetune/qwenvl/train/train_qwen.py", line 206, in train\n'
                "[rank2]:     trainer = Trainer(\n"
                "[rank2]:               ^^^^^^^^\n"
                '[rank2]:   File "/home/user/.conda/envs/qwen3vl2/lib/python3.12/site-packages/transformers/trainer.py", line 440, in __init__\n'
                "[rank2]:     raise ValueError(\n"
                "[rank2]: ValueError: You have set `args.eval_strategy` to IntervalStrategy.STEPS but you didn't pass an `eval_dataset` to `Trainer`.",
                source="QwenLM/Qwen3-VL#1936",
            ),
        ),
        knowledge="transformers' trainer.py",
    ),
    Failure(
        id="configuration.fsdp_layer_class",
        kind=LogClass.CRASHED,
        what="The layer class that FSDP should wrap does not exist in the model.",
        signs=(
            sign(
                "transformer layer class",
                r"[Cc]ould not find the transformer layer class (?:to wrap|(?P<name>\w+)) in the model",
            ),
        ),
        headline="FSDP's layer class to wrap does not exist in this model",
        why="most often transformer_layer_cls_to_wrap names the class of another architecture",
        next=(
            "set it to the model's own block: print(model), such as LlamaDecoderLayer, Qwen2DecoderLayer, GPT2Block, T5Block;"
            " newer transformers and accelerate take model._no_split_modules if the option is left out",
        ),
        check="print({type(m).__name__ for m in model.modules()})",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Exception: Could not find the transformer layer class to wrap in the model.",
                source="netease-youdao/BCEmbedding#66",
            ),
            Example(
                "[rank0]: Traceback (most recent call last):\n"
                '[rank0]:   File "/home/user/dev/SVD_Xtend/train_svd.py", line 1255, in <module>\n'
                "[rank0]:     main()\n"
                '[rank0]:   File "/home/user/dev/SVD_Xtend/train_svd.py", line 881, in main\n'
                "[rank0]:     unet, optimizer, lr_scheduler, train_dataloader = accelerator.prepare(\n"
                '[rank0]:   File "/home/user/miniconda3/envs/training/lib/python3.10/site-packages/accelerate/accelerator.py", line 1443, in prepare_model\n'
                "[rank0]:     self.state.fsdp_plugin.set_auto_wrap_policy(model)\n"
                "[rank0]: Exception: Could not find the transformer layer class to wrap in the model.",
                source="pixeli99/SVD_Xtend#55",
            ),
        ),
        knowledge="the FSDP page of accelerate",
    ),
    Failure(
        id="configuration.zero_no_sync",
        kind=LogClass.CRASHED,
        what="no_sync is used with ZeRO 2 or 3, which shard gradients in each micro-batch.",
        signs=(sign("no_sync context manager is incompatible"), sign("sync context manager is incompatible")),
        headline="DeepSpeed: no_sync does not go with ZeRO 2 and 3, which shard the gradients",
        why="with sharded gradients each backward must reduce them, so a step cannot be left unsynchronised; accelerate and"
        " transformers called no_sync in some versions",
        next=(
            "update accelerate and transformers (or install an older DeepSpeed with older ones), which no longer call it",
            "in an own loop leave out model.no_sync() and let DeepSpeed accumulate (gradient_accumulation_steps in its"
            " configuration)",
            "or ZeRO stage 1",
        ),
        check="the frames show who calls no_sync",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                "...\n"
                'File ".../site-packages/deepspeed/runtime/engine.py", line 1995, in no_sync\n'
                "    assert not self.zero_optimization_partition_gradients(), \\\n"
                "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2",
                source="kongds/E5-V#23",
                says=("update accelerate",),
            ),
        ),
        knowledge="deepspeedai/DeepSpeed's runtime/engine.py",
    ),
    Failure(
        id="configuration.trust_remote_code",
        kind=LogClass.STARTUP,
        what="A model or data set brings its own code, and running it was not allowed.",
        signs=(
            sign(
                "trust_remote_code=True",
                r"(?:contains custom code|requires you to execute)[\s\S]{0,300}?trust_remote_code=True",
            ),
            sign("Dataset scripts are no longer supported"),
        ),
        headline=lambda case: (
            "The data set is a script, which datasets 4 no longer runs"
            if "Dataset scripts" in case.lead.message
            else "The repository brings its own code, and the script did not allow to run it"
        ),
        why="code from the hub runs only if it is allowed, for safety",
        next=(
            Advice(
                'pip install "datasets<4", or a version of the data set in Parquet (revision="refs/convert/parquet")',
                when=lambda case: "Dataset scripts" in case.lead.message,
            ),
            Advice(
                "read that code, then pass trust_remote_code=True to from_pretrained or load_dataset (training scripts:"
                " --trust_remote_code)",
                when=lambda case: "Dataset scripts" not in case.lead.message,
            ),
            Advice(
                "or update transformers: if it has the model itself, no foreign code is needed",
                when=lambda case: "Dataset scripts" not in case.lead.message,
            ),
        ),
        check="the *.py files in the repository",
        examples=(
            Example(
                "ValueError: The repository for 'internlm-chat-7b-v1_1' contains custom code which must be executed to correctlyload the model. You can inspect the repository content at https://hf.co/..../internlm-chat-7b-v1_1.\n"
                "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
                source="InternLM/lagent#49",
                says=("trust_remote_code",),
            ),
            Example(
                "The repository for /home/user/Phi3-Vision-Finetune/output/model contains custom code which must be executed to correctly load the model. You can inspect the repository content at https://hf.co//home/user/Phi3-Vision-Finetune/output/model.\n"
                "You can avoid this prompt in future by passing the argument `trust_remote_code=True`.\n"
                "\n"
                "Do you wish to run the custom code? [y/N] Traceback (most recent call last):\n"
                '  File "/home/user/.venv/lib/python3.10/site-packages/transformers/dynamic_module_utils.py", line 612, in resolve_trust_remote_code\n'
                "    answer = input(\n"
                '  File "/home/user/.venv/lib/python3.10/site-packages/transformers/dynamic_module_utils.py", line 593, in _raise_timeout_error\n'
                "    raise ValueError(\n"
                "ValueError: Loading this model requires you to execute custom code contained in the model repository on your local machine. Please set the option `trust_remote_code=True` to permit loading of this model.",
                source="2U1/Phi3-Vision-Finetune#23",
            ),
            Example(
                "ValueError: Loading THUDM/chatglm3-6b requires you to execute the configuration file in that repo on your"
                " local machine. Make sure you have read the code there to avoid malicious use, then set the option"
                " `trust_remote_code=True` to remove this error.",
                says=("trust_remote_code=True",),
            ),
            Example(
                "RuntimeError: Dataset scripts are no longer supported, but found wikitext.py", says=("datasets<4",)
            ),
        ),
        knowledge="the hub's page on custom code; datasets' release notes of 4.0",
    ),
)
