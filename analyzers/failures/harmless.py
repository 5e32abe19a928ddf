"""Warnings that look like failures and are none.

Each headline is about the warning alone: a text may end before the failure that its reporter has.
"""

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Tier
from analyzers.failures.entry import Example, Failure, Sign, sign


def _harmless(
    name: str, headline: str, why: str, steps: tuple[str, ...], signs: tuple[Sign, ...], *examples: Example
) -> Failure:
    """Return the entry of a warning that is no failure."""
    return Failure(
        id=f"training.{name}",
        kind=LogClass.HEALTHY,
        what=f"{headline}.",
        signs=signs,
        headline=headline,
        why=why,
        next=steps,
        rules_out="another line of the log shows a failure, or the program stands still after it",
        event=EventKind.CLUE,
        tier=Tier.VAGUE,
        examples=examples,
        knowledge="the text of the warning, and what its issues found",
    )


ENTRIES: tuple[Failure, ...] = (
    _harmless(
        "amp_names",
        "Only a warning: a name of torch.cuda.amp is deprecated, and works as before",
        "torch.amp has the same with the device as an argument",
        ("nothing to do; torch.amp.GradScaler('cuda') and torch.amp.autocast('cuda') are the new names",),
        (
            sign(
                "is deprecated. Please use `torch.amp",
                r"`torch\.cuda\.amp\.[^`\n]{1,40}` is deprecated\. Please use `torch\.amp",
            ),
        ),
        Example(
            "train.py:196: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use"
            " `torch.amp.GradScaler('cuda', args...)` instead.",
        ),
    ),
    _harmless(
        "no_usable_gpu",
        "A warning: PyTorch can use no GPU here, and programs that allow it go on with the CPU",
        "CUDA could not be initialised; the warning says why, and training on the CPU is many times slower",
        (
            "`unknown error` after a suspend of the machine: `modprobe -r nvidia_uvm` and `modprobe nvidia_uvm`, or a reboot; in a"
            " container start it with the GPU (--gpus all, --nv); else `nvidia-smi` shows whether the driver works",
        ),
        (sign("UserWarning: CUDA initialization:", r"UserWarning: CUDA initialization: (?!The NVIDIA driver)"),),
        Example(
            "torch/cuda/__init__.py:128: UserWarning: CUDA initialization: CUDA unknown error - this may be due to an"
            " incorrectly set up environment",
            says=("modprobe nvidia_uvm",),
        ),
    ),
    _harmless(
        "prompt_mismatch",
        "A warning of TRL: a prompt alone and with its completion give different tokens, so masks may be off",
        "the prompt's tokens are compared with the beginning of the whole; a template that adds tokens at its end makes a small"
        " difference, versions that do not fit make one for every example",
        (
            "if it comes for every example: update TRL so that it fits the installed transformers, or pin an older"
            " transformers; if only for some, compare the two by the chat template, and look at the masked labels:"
            " `workbench tokens DATASET`",
        ),
        (sign("Mismatch between tokenized prompt and the start of tokenized prompt+completion"),),
        Example(
            "[RANK 0] Mismatch between tokenized prompt and the start of tokenized prompt+completion. This may be due to unexpected"
            " tokenizer behavior, whitespace issues, or special token handling.",
            says=("update TRL",),
        ),
    ),
    _harmless(
        "few_multiprocessors",
        "Only a note of torch.compile: this GPU is too small for max_autotune_gemm",
        "matrix products then use the usual kernels; results are the same",
        ("nothing to do",),
        (sign("Not enough SMs to use max_autotune_gemm"),),
        Example(
            "W0903 20:13:19.043000 55763 torch/_inductor/utils.py:1436] [0/0] Not enough SMs to use max_autotune_gemm mode"
        ),
    ),
    _harmless(
        "no_verbs",
        "Only a note of NCCL: the library of InfiniBand is not installed, so it connects nodes by TCP",
        "that is right on machines without InfiniBand; with it, the nodes would be connected more slowly than they could",
        ("nothing to do on one node or without InfiniBand; else apt-get install libibverbs1 in the image",),
        (sign("Failed to open libibverbs.so", r"Failed to open libibverbs\.so"),),
        Example("node1:1873:1873 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]"),
    ),
    _harmless(
        "scheduler_before_optimizer",
        "Only a warning: the scheduler stepped before the optimizer",
        "the first value of the schedule is left out then; with fp16 the first steps of the optimizer are skipped"
        " while the loss scale is found, and the scheduler steps all the same",
        (
            "nothing to do if mixed precision is on and it is printed once; otherwise call optimizer.step() before"
            " scheduler.step()",
        ),
        (sign("before `optimizer.step", r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`"),),
        Example(
            "/usr/local/lib/python3.6/dist-packages/torch/optim/lr_scheduler.py:123: UserWarning: Detected call of"
            " `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the opposite"
            " order: `optimizer.step()` before `lr_scheduler.step()`.",
            source="ShannonAI/mrc-for-flat-nested-ner#56",
        ),
    ),
    _harmless(
        "few_workers",
        "Only a warning about speed: the DataLoader has few workers",
        "Lightning compares num_workers with the number of cores, and does not measure whether the loader is too slow",
        ("raise num_workers only if the GPU waits for data",),
        (sign("does not have many workers which may be a bottleneck"),),
        Example(
            "UserWarning: The dataloader, train dataloader, does not have many workers which may be a bottleneck. Consider"
            " increasing the value of the `num_workers` argument`",
            source="ShannonAI/mrc-for-flat-nested-ner#56",
        ),
    ),
    _harmless(
        "tokenizers_forked",
        "Only a note: the tokenizers library uses one thread in DataLoader workers that were forked",
        "it ran in threads before the fork, which could deadlock in the child; so it switches its threads off there",
        (
            "nothing to do; TOKENIZERS_PARALLELISM=false before the start silences the note, and costs nothing where workers"
            " tokenize",
        ),
        (sign("huggingface/tokenizers: The current process just got forked"),),
        Example(
            "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling"
            " parallelism to avoid deadlocks...",
            source="huggingface/tokenizers#1391",
        ),
    ),
    _harmless(
        "no_unused_parameters",
        "Only a warning about speed: find_unused_parameters=True, and none was unused",
        "DDP walks through the graph in each step to find unused parameters; in this step there were none",
        (
            "set find_unused_parameters=False (ddp_find_unused_parameters=False in the Trainer) if no branch of the model is"
            " skipped in other steps",
        ),
        (sign("but did not find any unused parameters"),),
        Example(
            "[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any"
            " unused parameters in the forward pass. This flag results in an extra traversal of the autograd graph every"
            " iteration,  which can adversely affect performance.",
            source="clin1223/VLDet#9",
        ),
    ),
    _harmless(
        "gradient_strides",
        "Only a warning about speed: a gradient has another memory layout than DDP's bucket",
        "DDP copies such a gradient; a transposed or permuted tensor, channels_last or a 1x1 convolution makes them",
        ("nothing to do; a .contiguous() behind the transpose() or permute() in forward saves the copy",),
        (sign("Grad strides do not match bucket view strides"),),
        Example(
            "UserWarning: Grad strides do not match bucket view strides. This may indicate grad was not created according to the"
            " gradient layout contract, or that the param's strides changed since DDP was constructed.  This is not an error,"
            " but may impair performance.",
            source="CompVis/latent-diffusion#281",
        ),
    ),
    _harmless(
        "barrier_device",
        "Only a warning: barrier() was called before PyTorch knew the GPU of the rank",
        "it takes GPU rank % count then, which is right if each rank uses the GPU of its local rank; if not, ranks hang",
        (
            "tell it: torch.cuda.set_device(local_rank) and init_process_group(..., device_id=torch.device('cuda', local_rank))",
        ),
        (
            sign("to perform barrier as devices used by this process are currently unknown"),
            sign("barrier(): using the device under current context"),
        ),
        Example(
            "[W404 00:15:21.693690333 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as"
            " devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping"
            " is incorrect.",
            source="deepspeedai/DeepSpeed#7266",
        ),
    ),
    _harmless(
        "factory_registered",
        "Only noise of TensorFlow at its import: a CUDA factory is registered twice",
        "two copies of XLA are loaded in one process, as by TensorFlow and tensorboard or JAX; PyTorch does not use them",
        ("nothing to do: look for the failure in other lines; USE_TF=0 keeps transformers from importing TensorFlow",),
        (sign("factory: Attempting to register factory for plugin"),),
        Example(
            "2025-02-09 09:37:32.334610: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN"
            " factory: Attempting to register factory for plugin cuDNN when one has already been registered",
            source="kr-colab/ReLERNN#63",
        ),
    ),
    _harmless(
        "checkpoint_inputs",
        "Only a warning if other parameters train: a checkpointed block got inputs without gradient",
        "reentrant checkpointing gives its block no gradient if no input needs one: right for a frozen part and in evaluation,"
        " wrong for a block that is to be trained",
        (
            "if the block is to be trained: use_reentrant=False (gradient_checkpointing_kwargs={'use_reentrant': False}), or"
            " model.enable_input_require_grads()",
            "frozen block or evaluation: nothing to do",
        ),
        (sign("None of the inputs have requires_grad=True"),),
        Example(
            "/usr/local/lib/python3.10/dist-packages/torch/utils/checkpoint.py:61: UserWarning: None of the inputs have"
            " requires_grad=True. Gradients will be None",
            source="Victorwz/LLaVA-Llama-3#4",
        ),
    ),
    _harmless(
        "omp_threads",
        "Only a note: torchrun set OMP_NUM_THREADS=1 for each process",
        "it keeps the processes from using more threads together than there are cores",
        (
            "nothing to do; a program that stands still after it waits for something else, such as other ranks: py-spy dump"
            " --pid PID shows where",
        ),
        (sign("Setting OMP_NUM_THREADS environment variable for each process to be"),),
        Example(
            "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being"
            " overloaded, please further tune the variable for optimal performance in your application as needed. ",
            source="hailanyi/CasA#26",
        ),
    ),
    _harmless(
        "leaked_semaphores",
        "Only a consequence: semaphores were left over when the program ended",
        "the tracker of multiprocessing cleans up what a process did not close; it is printed after a kill, a crash or a normal"
        " end, and does not say which",
        (
            "see how the process ended: its exit code, the lines before it, and `dmesg -T | tail` for a kill for host"
            " memory or a segmentation fault",
        ),
        (sign("resource_tracker: There appear to be"),),
        Example(
            "/home/user/miniconda3/envs/swift/lib/python3.10/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker:"
            " There appear to be 1 leaked semaphore objects to clean up at shutdown",
            source="modelscope/ms-swift#4689",
        ),
    ),
    _harmless(
        "no_network_plugin",
        "Only a note: NCCL found no network plugin and uses its own InfiniBand or socket code",
        "libnccl-net.so is an extra of some clouds and fabrics; NCCL works without",
        (
            "nothing to do on one node, InfiniBand or plain Ethernet; on AWS EFA or GCP install the plugin (aws-ofi-nccl), or it"
            " runs over slow sockets",
        ),
        (sign("NET/Plugin", r"NET/Plugin ?:[^\n]{0,160}?(?:No plugin found|Could not find:)"),),
        Example(
            "ds-ml-01-0:17085:17354 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).",
            source="NVIDIA/nccl#352",
        ),
    ),
    _harmless(
        "new_head",
        "Only a warning: the new head of the model begins with random weights, as before any training",
        "the checkpoint was made for another task and has no weights for the head; all listed weights are of a head, a pooler or"
        " computed buffers",
        ("nothing to do if the model is trained now; for evaluation load a checkpoint that was trained for this task",),
        (
            sign(
                "and are newly initialized",
                r"newly initialized: \[(?:'[\w.]{0,80}?(?:classifier|score|lm_head|pooler|qa_outputs|regress\w*|inv_freq|position_ids|"
                r"projector|out_proj|head)[\w.]{0,60}'(?:, )?){1,60}\]",
            ),
        ),
        Example(
            "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base-uncased and"
            " are newly initialized: ['classifier.bias', 'classifier.weight']",
            source="huggingface/sentence-transformers#699",
        ),
    ),
    _harmless(
        "no_redirects",
        "Only a note: torchrun cannot redirect the output of ranks on Windows and macOS",
        "it concerns --redirects alone",
        ("nothing to do: look for the failure in other lines",),
        (sign("Redirects are currently not supported in Windows or MacOs"),),
        Example(
            "W0423 16:02:17.259000 31420 Lib\\site-packages\\torch\\distributed\\elastic\\multiprocessing\\redirects.py:29] NOTE:"
            " Redirects are currently not supported in Windows or MacOs.",
            source="hiyouga/LlamaFactory#7806",
        ),
    ),
)
