"""Errors of autograd, of precision, and of wrappers such as DDP and FSDP, that their message explains."""

import re
from math import prod

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case
from analyzers.case.wording import place
from analyzers.failures.entry import Advice, Example, Failure, sign
from analyzers.failures.versions import caller

_DTYPES = {
    "float": "float32",
    "c10::half": "float16",
    "half": "float16",
    "c10::bfloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "double": "float64",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "byte": "uint8",
    "char": "int8",
    "bool": "bool",
    "torch.float32": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
    "c10::float8_e4m3fn": "float8_e4m3fn",
}
"""{name of a dtype in a message, in small letters: its name in Python}."""


def _dtype(case: Case, name: str) -> str:
    """Return the dtype that a message names, as Python writes it."""
    given = case.given.get(name, "").strip()
    return _DTYPES.get(given.lower(), given)


def _has(case: Case, expression: str) -> bool:
    """Return whether the failure's own text matches an expression."""
    return re.search(expression, f"{case.lead.message}\n{case.lead.details}") is not None


def _mixed_dtypes(case: Case) -> str:
    """Return the headline for operands of different dtypes."""
    first, second = _dtype(case, "first"), _dtype(case, "second")
    return f"One operation got two dtypes, {first} and {second}{place(case.lead)}"


def _devices(case: Case) -> str:
    """Return the headline for tensors on different devices."""
    first, second = case.given["first"], case.given["second"]
    return f"One operation got tensors on two devices, {first} and {second}{place(case.lead)}"


def _may_be_weight(case: Case) -> bool:
    """Return whether a tensor that was changed in place may be a weight: no operation, or a transposition, made it."""
    return not case.given["op"] or case.given["op"].startswith(("AsStrided", "TBackward", "Transpose"))


def _short_type(text: str) -> str:
    """Return how a message names the type of a tensor, without what is not said of it: `float on cuda:0`."""
    options = re.search(r"dtype=([\w ]+), device=([\w:]+)", text)
    return f"{options[1]} on {options[2]}" if options else text.strip(" .")


def _matmul(case: Case) -> str:
    """Return the headline for a matrix product of shapes that do not fit."""
    rows, inner, other, columns = (case.given[name] for name in ("a", "b", "c", "d"))
    return f"Matrices do not fit: {rows} x {inner} times {other} x {columns}, {inner} against {other}{place(case.lead)}"


_INTEGERS = {"Int", "Byte", "Char", "Short", "Bool", "Long"}


def _is_of_cpu(case: Case) -> bool:
    """Return whether an operation without a kernel is one of the CPU, by its name; those for float16 are, but of libraries."""
    name = case.given["op"].lower()
    of_library = re.search(r"cuda|cublas|cusolver|magma|linalg|lu_|svd|eigh?|cholesky|qr|inverse|_out$", name)
    return "cpu" in name or (case.given["dtype"] == "Half" and not of_library)


def _is_linear(case: Case) -> bool:
    """Return whether a linear layer failed, whose second operand is its weight."""
    return case.called(r"linear\.py|:linear$") or case.printed(r"F\.linear\(|nn\.functional\.linear|addmm")


def _channels(case: Case) -> str:
    """Return the headline for an image whose channels do not fit a convolution."""
    return f"A convolution expects {case.given['expected']} channels and got {case.given['got']}{place(case.lead)}"


def _has_overflowed(case: Case) -> bool:
    """Return whether a negative length is too far below zero to be the difference of two lengths."""
    return int(case.given["length"]) < -(1 << 24)


def _reshape_reason(case: Case) -> str:
    """Return which dimension of a requested shape would fit the elements of a tensor, as far as one does."""
    shape = [int(number) for number in re.findall(r"-?\d+", case.given["shape"])]
    size = int(case.given["size"])
    for index, length in enumerate(shape):
        rest = prod(shape[:index] + shape[index + 1 :])
        if -1 not in shape and rest > 0 and size % rest == 0:
            return f"the elements would fit with {size // rest} in place of {length} (dimension {index})"
    if -1 in shape:
        return (
            f"{size:,} is no multiple of the {prod(length for length in shape if length > 0):,} of the other dimensions"
        )
    return f"the shape needs {prod(shape):,} elements"


def _in_evaluation(case: Case) -> bool:
    """Return whether the failure was raised by evaluation, prediction or generation."""
    return case.called(r"eval|predict|generat|validat")


_OWN_OPERANDS = {"deepspeed", "accelerate", "bitsandbytes", "apex", "torchao", "unsloth", "unsloth_zoo", "trl"}
"""Packages whose operations work on what they make themselves, not on what a script passes to them."""


def _for_two_devices(case: Case) -> str:
    """Return where to look for the tensor on the other device."""
    kinds = {case.given["first"].partition(":")[0], case.given["second"].partition(":")[0]}
    if package := caller(case):
        offload = (
            "; with an optimizer or parameters that are offloaded to the CPU, run once without that"
            if "cpu" in kinds
            else ""
        )
        if package not in _OWN_OPERANDS and not case.called(r"optim\w*[^:]*:\d+:step$"):
            return (
                f"see first that all that you pass to {package} (inputs, masks, labels, cached states) is on the model's device; if it"
                f" is, take a version of {package} that fits to the other packages (`pip show {package}`, its releases and issues)"
                f"{offload}"
            )
        return (
            f"the failing line is {package}'s own: take a version of it that fits to the other packages (`pip show {package}`, its"
            f" releases and issues){offload}"
        )
    if kinds == {"cuda"}:
        return (
            "let each process see one GPU: CUDA_VISIBLE_DEVICES=0 before Python starts for a single GPU, or torchrun with"
            " torch.cuda.set_device(LOCAL_RANK) before the model is built; a fixed .cuda() or cuda:0 in the code puts"
            " tensors elsewhere"
        )
    return (
        "move what is created in forward, or comes from the data, to the device of the other operand: x.to(weight.device);"
        " tensors that belong to the model are moved with it only if they are parameters or register_buffer"
    )


def _is_on_device(kind: str) -> bool:
    """Return whether the name of a tensor's type is that of a tensor on an accelerator."""
    return kind.startswith(("MPS", "CUDA", "XPU")) or kind.count(".") > 1


_AUTOCAST = (
    "run forward and loss under one dtype: with torch.autocast('cuda', dtype=torch.bfloat16) around them (also around"
    " evaluation and generation), or the same .to(dtype) for model and inputs"
)


def _is_of_embedding(case: Case) -> bool:
    """Return whether the failing index looks up rows of an embedding, and is not one of a gather or a scatter."""
    if case.called(r"embedding"):
        return True
    return _has(case, "srcIndex|out of range in self") and not case.context.says(
        "torch_geometric|torch_scatter|edge_index|dgl"
    )


_NAN = re.compile(r"([A-Za-z][\w./]{0,40})['\"]?\s?[:=]\s?['\"]?(?:tensor\()?nan\b")


def _nan_names(case: Case) -> list[str]:
    """Return the names of the numbers that the text shows as NaN, in their order."""
    return list(dict.fromkeys(_NAN.findall(case.context.text)))


def _has_group_of_one(case: Case) -> bool:
    """Return whether the spread of the rewards of a group is NaN, while the rewards are numbers."""
    names = _nan_names(case)
    return "reward_std" in names and case.context.says(r"\breward['\"]: ?['\"]?-?\d")


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="autograd.unscale_fp16",
        kind=LogClass.CRASHED,
        what="A GradScaler is to unscale gradients that are fp16 themselves.",
        signs=(sign("Attempting to unscale FP", r"Attempting to unscale FP16 gradients"),),
        headline="The trainable parameters are float16, and the GradScaler needs them in float32",
        why="mixed precision with fp16 keeps the weights in float32 and lets autocast do the rest; here the model, or its"
        " LoRA weights, were loaded or cast to float16, so their gradients are float16 too",
        next=(
            "keep what is trained in float32: load the model without torch_dtype=float16, or afterwards `for p in"
            " model.parameters(): if p.requires_grad: p.data = p.data.float()` (diffusers: cast_training_params(models,"
            " dtype=torch.float32))",
            "or train in bf16 (bf16=True in place of fp16=True), which needs no GradScaler, on Ampere or newer",
        ),
        check="print({p.dtype for p in model.parameters() if p.requires_grad}) before the first step",
        rules_out="overflow or NaN: the gradients were not looked at yet",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ValueError: Attempting to unscale FP16 gradients.", source="yk7333/d3po#6", says=("float32", "bf16")
            ),
        ),
        knowledge="torch.amp.GradScaler.unscale_; huggingface/diffusers#10752",
    ),
    Failure(
        id="autograd.checkpoint_without_grad",
        kind=LogClass.CRASHED,
        what="Gradient checkpointing cut the frozen model off the graph, so that the loss has no gradient.",
        signs=(
            sign("does not require grad", r"element 0 of tensors does not require grad and does not have a grad_fn"),
        ),
        clues=(sign("None of the inputs have requires_grad"),),
        when=lambda case: case.printed(r"None of the inputs have requires_grad|torch[/\\]utils[/\\]checkpoint\.py"),
        headline="The loss has no gradient: checkpointing was fed inputs that need none",
        why="reentrant checkpointing only records gradients if an input of the segment requires them; with a frozen"
        " embedding none does, and the trainable (LoRA) weights inside are never connected to the loss",
        next=(
            "call model.enable_input_require_grads() before training (peft: prepare_model_for_kbit_training does it)",
            "or checkpoint without reentry: gradient_checkpointing_kwargs={{'use_reentrant': False}}, or"
            " checkpoint(..., use_reentrant=False)",
        ),
        check="the warning `None of the inputs have requires_grad=True` is printed before",
        rules_out="without gradient checkpointing the same error comes",
        examples=(
            Example(
                "/usr/local/lib/python3.10/site-packages/torch/utils/checkpoint.py:31: UserWarning: None of the inputs"
                " have requires_grad=True. Gradients will be None\n"
                "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
                source="LlamaChinese/Llama-Chinese#242",
                says=("enable_input_require_grads", "use_reentrant"),
            ),
        ),
        knowledge="torch.utils.checkpoint's documentation; huggingface/peft's troubleshooting",
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "/w/checkpoint.py", line 40, in main\n'
            "    loss.backward()\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        ),
    ),
    Failure(
        id="autograd.no_grad_fn",
        kind=LogClass.CRASHED,
        what="backward was called on a loss that is connected to no trainable parameter.",
        signs=(
            sign("does not require grad", r"element \d+ of (?:tensors|variables) does not require grad"),
            sign(
                "does not require grad", r"One of the differentiated Tensors (?:does not require grad|appears to not)"
            ),
        ),
        headline=lambda case: (
            "A gradient is asked for a tensor that does not require one, or that the loss does not use"
            if "differentiated Tensors" in case.lead.message
            else "The loss is connected to no trainable parameter, so backward has nothing to do"
        ),
        why=lambda case: (
            "torch.autograd.grad needs inputs with requires_grad=True that are in the graph of the output; a copy, a cast or .to() makes"
            " another tensor"
            if "differentiated Tensors" in case.lead.message
            else "all parameters on the way to the loss are frozen, or the graph was cut by no_grad, inference_mode, detach,"
            " .item(), .data or a new torch.tensor(loss)"
        ),
        next=(
            "check that something is trainable: sum(p.numel() for p in model.parameters() if p.requires_grad) is not 0"
            " (LoRA: target_modules must match; a loaded adapter needs is_trainable=True)",
            "check the way from there to the loss: no torch.no_grad() or detach() around it, and print(output.requires_grad,"
            " output.grad_fn) after each part",
            "with gradient checkpointing over a frozen model: model.enable_input_require_grads(), or use_reentrant=False",
        ),
        check="print(loss.requires_grad, loss.grad_fn) right before backward",
        examples=(
            Example(
                "torch.autograd.backward(\n"
                '  File ".../torch/autograd/__init__.py", line 354, in backward\n'
                "    _engine_run_backward(\n"
                '  File ".../torch/autograd/graph.py", line 829, in _engine_run_backward\n'
                "    return Variable._execution_engine.run_backward(  \n"
                "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
                source="huggingface/peft#2742",
                says=("enable_input_require_grads",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 9, in main\n'
                "    g = torch.autograd.grad(out, x)\nRuntimeError: One of the differentiated Tensors does not require grad",
                says=(
                    "that does not require one",
                    "requires_grad=True",
                ),
            ),
        ),
        knowledge="PyTorch's notes on autograd mechanics",
    ),
    Failure(
        id="autograd.in_place",
        kind=LogClass.CRASHED,
        what="A tensor that backward needs was changed in place after the forward pass had saved it.",
        signs=(
            sign(
                "modified by an inplace operation",
                r"modified by an inplace operation(?:: \[(?P<type>[\w.]+) (?P<shape>\[[\d, ]*\])\]"
                r"(?:, which is output \d+ of (?P<op>\w+))?)?",
            ),
        ),
        headline=lambda case: (
            f"A tensor that backward needs was changed in place: {case.given['shape']}"
            + (f", output of {re.sub('Backward[0-9]*$', '', case.given['op'])}" if case.given["op"] else "")
            if case.given["shape"]
            else "A tensor that backward needs was changed in place"
        ),
        why="autograd saves some results for backward and compares their version; +=, *=, masked assignment, functions"
        " that end in _ or have inplace=True, and optimizer.step() before backward change it",
        next=(
            Advice(
                "if two losses or optimizers are in one step (GAN, actor and critic), call all backward() before the first"
                " optimizer.step(): a step changes weights that the other graph has saved",
                when=_may_be_weight,
            ),
            "write the operation out of place (a = a + b in place of a += b), or change a .clone(); look for a tensor of"
            " that shape",
            Advice(
                "the backtrace of the forward call (anomaly detection was on) shows the forward line whose result was changed",
                when=lambda case: case.printed("the backtrace further above"),
            ),
            Advice(
                "torch.autograd.set_detect_anomaly(True) for one run prints the forward line whose result was changed",
                when=lambda case: not case.printed("the backtrace further above"),
            ),
            Advice(
                "in DDP a second forward before backward also changes buffers: broadcast_buffers=False",
                when=lambda case: not case.given["op"],
            ),
        ),
        check="set_detect_anomaly(True) names the line",
        examples=(
            Example(
                "Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\n"
                "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace"
                " operation: [torch.cuda.FloatTensor [8, 32, 120]], which is output 0 of TanhBackward0, is at version 1;"
                " expected version 0 instead. Hint: enable anomaly detection to find the operation that failed to"
                " compute its gradient, with torch.autograd.set_detect_anomaly(True).",
                source="yunik1004/SAiD#8",
                says=("[8, 32, 120]", "Tanh", "a = a + b", "set_detect_anomaly"),
            ),
        ),
        knowledge="PyTorch's notes on autograd: in-place correctness checks",
    ),
    Failure(
        id="autograd.leaf_in_place",
        kind=LogClass.CRASHED,
        what="A parameter itself is changed in place while autograd records.",
        signs=(sign("leaf Variable that requires grad"),),
        headline="A parameter is changed in place while gradients are recorded{place}",
        why="a leaf of the graph has no history to record the change in",
        next=(
            "change parameters under torch.no_grad() (initialisation, EMA, clipping of weights)",
            "if it is an input whose gradient is wanted, work on a clone: x = x.clone()",
        ),
        check="the innermost frame of your code is the line",
        examples=(
            Example(
                "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation.",
                source="ultralytics/yolov5#1552",
                says=("no_grad",),
            ),
        ),
        knowledge="PyTorch's notes on autograd mechanics",
    ),
    Failure(
        id="autograd.detach_view",
        kind=LogClass.CRASHED,
        what="detach_() is called on a view of another tensor.",
        signs=(sign("detach views in-place"),),
        headline="detach_() was called on a view of another tensor, which PyTorch forbids{place}",
        why="a view shares its history with its base; a gradient can be a view, too: .grad that was assigned from a reshaped"
        " or split tensor, and is then cleared by zero_grad",
        next=(
            "write x = x.detach() in place of x.detach_()",
            "if zero_grad() or detach_() on .grad raises it: optimizer.zero_grad(set_to_none=True), or assign a copy:"
            " p.grad = g.reshape(p.shape).clone()",
        ),
        check="print(x._is_view()) before the line",
        examples=(
            Example(
                "RuntimeError: Can't detach views in-place. Use detach() instead",
                source="pytorch/pytorch#25814",
                says=("x = x.detach()", "set_to_none"),
            ),
        ),
        knowledge="pytorch/pytorch#25814",
    ),
    Failure(
        id="autograd.backward_twice",
        kind=LogClass.CRASHED,
        what="backward runs through a part of the graph that an earlier backward has freed.",
        signs=(sign("Trying to backward through the graph a second time"),),
        headline="backward ran a second time through the same graph, or through a part of it",
        why="the first backward frees what the graph had saved; the second most often reaches it through a tensor that"
        " was computed before the loop, or kept from the step before (hidden state, running loss, memory bank);"
        " else two losses share one forward pass",
        next=(
            "detach what is carried over: state = state.detach(), total += loss.item(), buffer.append(x.detach())",
            "compute inside the loop what depends on parameters, such as a projection or an embedding table",
            "only if two losses really share one forward pass: add them and call backward once, or retain_graph=True in"
            " the first",
        ),
        check="does it fail in the second step and not in the first? Then something is carried over",
        rules_out="the first step fails: then two backward calls share one forward pass",
        examples=(
            Example(
                "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after"
                " they have already been freed). Saved intermediate values of the graph are freed when you call"
                " .backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the graph a"
                " second time or if you need to access saved tensors after calling backward.",
                source="lucidrains/denoising-diffusion-pytorch#109",
                says=("detach", "inside the loop"),
            ),
        ),
        knowledge="torch.Tensor.backward; lucidrains/denoising-diffusion-pytorch#109",
    ),
    Failure(
        id="autograd.not_scalar",
        kind=LogClass.CRASHED,
        what="backward was called on a loss with several elements.",
        signs=(sign("grad can be implicitly created only for scalar outputs"),),
        headline="backward was called on a loss that is not a single number{place}",
        why="most often a loss with reduction='none', or DataParallel, which returns one loss for each GPU",
        next=("reduce it first: loss = loss.mean() (DataParallel and reduction='none' alike)",),
        check="print(loss.shape) before backward",
        examples=(
            Example(
                "2023-03-16 18:37:25,684 - pretrain_shapenet - INFO - Using Data parallel ...\n"
                "Traceback (most recent call last):\n"
                '  File "main.py", line 116, in <module>\n'
                "    main()\n"
                '  File "main.py", line 112, in main\n'
                "    pretrain(args, config, train_writer, val_writer)\n"
                '  File "/home/user/MaskPoint/tools/runner_pretrain.py", line 144, in run_net\n'
                "    _loss.backward()\n"
                '  File "/home/user/anaconda3/envs/maskpoint/lib/python3.7/site-packages/torch/tensor.py", line 245, in backward\n'
                "    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)\n"
                '  File "/home/user/anaconda3/envs/maskpoint/lib/python3.7/site-packages/torch/autograd/__init__.py", line 141, in backward\n'
                "    grad_tensors_ = _make_grads(tensors, grad_tensors_)\n"
                '  File "/home/user/anaconda3/envs/maskpoint/lib/python3.7/site-packages/torch/autograd/__init__.py", line 50, in _make_grads\n'
                '    raise RuntimeError("grad can be implicitly created only for scalar outputs")\n'
                "RuntimeError: grad can be implicitly created only for scalar outputs",
                source="WisconsinAIVision/MaskPoint#7",
                says=("mean()",),
            ),
        ),
        knowledge="torch.Tensor.backward",
    ),
    Failure(
        id="autograd.recompute_differs",
        kind=LogClass.CRASHED,
        what="Activation checkpointing computed something else in backward than in the forward pass.",
        signs=(
            sign("torch.utils.checkpoint", r"Recomputed values for the following tensors have different metadata"),
            sign("torch.utils.checkpoint", r"A different number of tensors was saved during the original forward"),
        ),
        headline=lambda case: (
            "Checkpointing recomputed a layer after its parameters had been sharded again (shape [0])"
            if _has(case, r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)")
            else "Checkpointing recomputed other tensors in backward than the forward pass had saved"
        ),
        why=lambda case: (
            "ZeRO-3 or FSDP had released the parameters that the recomputation reads"
            if _has(case, r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)")
            else "the segment is run again in backward and must do the same: most often what differs is autocast, a cache"
            " (use_cache), random routing of experts, or a module that changed its state in between"
        ),
        next=(
            Advice(
                "use reentrant checkpointing with ZeRO-3: gradient_checkpointing_kwargs={{'use_reentrant': True}}; with"
                " FSDP apply checkpointing to the wrapped layers, inside of the FSDP unit",
                when=lambda case: _has(case, r"recomputed metadata: \{'shape': torch\.Size\(\[0\]\)"),
            ),
            "set model.config.use_cache = False, and run forward and backward under the same autocast",
            "for mixture of experts, leave the router out of the checkpointed segment; or gradient_checkpointing_kwargs="
            "{{'use_reentrant': True}}, which does not compare (only if the difference is harmless)",
        ),
        check="with torch.utils.checkpoint.set_checkpoint_debug_enabled(True): the two lists of operators are printed",
        examples=(
            Example(
                "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following"
                " tensors have different metadata than during the forward pass.\n"
                "tensor at position 5:\n"
                "saved metadata: {'shape': torch.Size([1, 1, 2048]), 'dtype': torch.bfloat16, 'device':"
                " device(type='cuda', index=0)}\n"
                "recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16, 'device': device(type='cuda',"
                " index=0)}",
                source="Joluck/RWKV-PEFT#58",
                says=("shape [0]", "use_reentrant"),
            ),
            Example(
                "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following"
                " tensors have different metadata than during the forward pass.\n"
                "tensor at position 16:\n"
                "saved metadata: {'shape': torch.Size([1, 12, 171, 128]), 'dtype': torch.bfloat16, 'device':"
                " device(type='cuda', index=0)}\n"
                "recomputed metadata: {'shape': torch.Size([1, 12, 342, 128]), 'dtype': torch.bfloat16}",
                source="pytorch/pytorch#155171",
                says=("use_cache",),
            ),
        ),
        knowledge="torch/utils/checkpoint.py; pytorch/torchtitan#1117",
    ),
    Failure(
        id="autograd.ready_twice",
        kind=LogClass.CRASHED,
        what="Two backward passes reached a parameter within one step of DistributedDataParallel.",
        signs=(sign("Expected to mark a variable ready only once"),),
        headline="DDP: a parameter got its gradient twice in one step",
        why="DDP expects one gradient for each parameter and step; reentrant checkpointing of a part that is used twice,"
        " or a parameter that is used outside of the wrapped forward(), delivers two",
        next=(
            "with gradient checkpointing: gradient_checkpointing_kwargs={{'use_reentrant': False}} (checkpoint(...,"
            " use_reentrant=False))",
            "else use the parameters only within the wrapped forward(), or pass static_graph=True to"
            " DistributedDataParallel if all steps have the same graph",
            "or ZeRO-2 or FSDP in place of DDP",
        ),
        check="without gradient checkpointing the error is gone",
        rules_out="find_unused_parameters=True cures it: this is the opposite error",
        examples=(
            Example(
                "[rank3]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the"
                " following reasons: 1) Use of a module parameter outside the `forward` function. Please make sure model"
                " parameters are not shared across multiple concurrent forward-backward passes. or try to use"
                " _set_static_graph() as a workaround if this module graph does not change during training loop.2)"
                " Reused parameters in multiple reentrant backward passes.",
                source="modelscope/ms-swift#3171",
                says=("use_reentrant", "static_graph"),
            ),
        ),
        knowledge="DistributedDataParallel's documentation; torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Failure(
        id="autograd.reduced_twice",
        kind=LogClass.CRASHED,
        what="ZeRO got two gradients for one parameter in a step.",
        signs=(sign("has already been reduced", r"[Tt]he parameter (?P<parameter>\S+) has already been reduced"),),
        headline="ZeRO: parameter {parameter} got its gradient twice in one step",
        why="the hooks of ZeRO expect one gradient for each parameter and backward; reentrant checkpointing, a module that"
        " is used in two passes, or backward called twice gives two",
        next=(
            "gradient_checkpointing_kwargs={{'use_reentrant': False}}",
            "add the losses and call engine.backward once for each forward; a layer that is used twice must be in one"
            " graph",
            "or ZeRO stage 0 or 1, which reduces after backward",
        ),
        check="without gradient checkpointing the error is gone",
        examples=(
            Example(
                "AssertionError: The parameter 323 has already been reduced. Gradient computed twice for this partition."
                " Multiple gradient reduction is currently not supported",
                source="modelscope/ms-swift#3128",
                says=("parameter 323", "use_reentrant"),
            ),
        ),
        knowledge="DeepSpeed's runtime/zero/stage_1_and_2.py",
    ),
    Failure(
        id="autograd.graph_changed",
        kind=LogClass.CRASHED,
        what="DistributedDataParallel was created with static_graph=True, and the graph changes.",
        signs=(sign("training graph has changed", r"[Yy]our training graph has changed in this iteration"),),
        headline="DDP runs with static_graph=True, and the graph changed between steps",
        why="static_graph records in the first step which parameters take part, and expects the same in each step",
        next=(
            "leave out static_graph=True (or _set_static_graph()), and use find_unused_parameters=True if some parameters"
            " take no part in some steps",
            "with gradient checkpointing use use_reentrant=False, which does not need a static graph",
        ),
        check="without static_graph the error is gone",
        examples=(
            Example(
                "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your training graph has changed in this iteration, e.g., one parameter is used in first iteration, but then got unused in the second iteration. this is not compatible with static_graph set to True.",
                source="pytorch/pytorch#97030",
                says=("static_graph",),
            ),
        ),
        knowledge="DistributedDataParallel's documentation",
    ),
    Failure(
        id="autograd.mixed_dtensor",
        kind=LogClass.CRASHED,
        what="An operation got a DTensor and a plain tensor.",
        signs=(
            sign(
                "mixed torch.Tensor and DTensor",
                r"(?:(?<![\w.])(?P<op>[\w.]{1,80}): )?got mixed torch\.Tensor and DTensor",
            ),
        ),
        headline=lambda case: (
            f"{case.given['op'] or 'An operation'} got a DTensor (sharded) and a plain tensor{place(case.lead)}"
        ),
        why=lambda case: (
            "some gradients are DTensors and others plain tensors: a part of the model was not sharded, or on another mesh"
            if case.called("clip_grad|get_total_norm")
            else "most often the optimizer keeps a state or a factor as a plain tensor, while the parameters are DTensors"
            if case.called(r"optim\w*\.py|:step$") or _has(case, "_foreach")
            else "parameters of FSDP2 and tensor parallelism are DTensors; here one operand was created outside of them,"
            " or the layer was resharded before it is recomputed"
        ),
        next=(
            Advice(
                "update the optimizer, or choose one that makes its state by torch.zeros_like(parameter); without"
                " momentum or with foreach=False the failing operation may not be used",
                when=lambda case: (
                    not case.called("clip_grad|get_total_norm")
                    and (case.called(r"optim\w*\.py|:step$") or _has(case, "_foreach"))
                ),
            ),
            Advice(
                "in backward with activation checkpointing: reshard_after_forward=False, one forward for each backward,"
                " or no checkpointing on these layers; a newer PyTorch fixes the nested case (pytorch/pytorch#171779)",
                when=lambda case: case.called(r"checkpoint\.py"),
            ),
            "call the wrapped module itself, not its parts (hooks of FSDP2 gather the parameters), and make plain tensors"
            " DTensors: distribute_tensor(x, mesh, [Replicate()]), or parameter.full_tensor()",
        ),
        check="print(type(operand)) for both in the line of the innermost frame",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: aten._foreach_add_.List: got mixed torch.Tensor and DTensor, need to convert all"
                " torch.Tensor to DTensor before calling distributed operators!",
                source="facebookresearch/optimizers#79",
                says=("aten._foreach_add_.List", "optimizer"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 9, in main\n'
                "    clip_grad_norm_(model.parameters(), 1.0)\n"
                '  File "/e/lib/python3.11/site-packages/torch/nn/utils/clip_grad.py", line 150, in clip_grad_norm_\n'
                "    torch._foreach_mul_(device_grads, clip)\n"
                "RuntimeError: aten._foreach_mul_.Tensor: got mixed torch.Tensor and DTensor, need to convert all"
                " torch.Tensor to DTensor before calling distributed operators!",
                says=("was not sharded",),
            ),
        ),
        knowledge="torch.distributed.tensor's dispatcher; pytorch/pytorch#153354",
    ),
    Failure(
        id="autograd.sharded_parameter",
        kind=LogClass.CRASHED,
        what="A parameter that ZeRO-3 or FSDP keeps sharded is used outside of its wrapped module.",
        signs=(
            sign("must be", r"'weight' must be 2-D"),
            sign("must match", r"size of tensor a \(0\) must match"),
            sign("must be a matrix", r"mat2 must be a matrix, got 1-D tensor"),
            sign("setStorage", r"setStorage: sizes [^\n]{0,300}are out of bounds for storage of size 0"),
        ),
        headline="A weight is empty or flat where it is used: most often ZeRO-3 or FSDP had not gathered it",
        why="they gather a parameter only during the forward of the module that they wrapped; a model that was not"
        " prepared (reference, teacher, text encoder), or a part that is called directly, sees the shard",
        next=(
            "call the wrapped model itself, not model.module or a layer of it; for generation use the unwrapping context"
            " (trl: unwrap_model_for_generation; FSDP: summon_full_params)",
            "prepare each model that runs: accelerator.prepare(ref_model), or deepspeed.initialize for the reference; or"
            " load frozen helpers outside of zero3 init (accelerate's zero3_init_context_manager(enable=False))",
            "ZeRO-3: with deepspeed.zero.GatheredParameters([weight]): around direct uses; start with deepspeed,"
            " torchrun or accelerate launch, also on one GPU",
            "or ZeRO-2, which keeps the parameters whole, if they fit",
        ),
        check="print(model.get_input_embeddings().weight.shape): torch.Size([0]) under ZeRO-3",
        rules_out="neither ZeRO-3 nor FSDP is used",
        examples=(
            Example(
                "    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)\n"
                "RuntimeError: 'weight' must be 2-D",
                source="huggingface/transformers#22705",
                says=("ZeRO-3", "GatheredParameters"),
            ),
        ),
        knowledge="DeepSpeed's documentation of ZeRO-3; arcee-ai/DistillKit#3",
    ),
    Failure(
        id="autograd.fsdp_mixed_dtypes",
        kind=LogClass.CRASHED,
        what="One FSDP unit has parameters of different dtypes.",
        signs=(
            sign(
                "Must flatten tensors with",
                r"Must flatten tensors with (?:the same|uniform) dtype but got (?P<first>[\w.]+) and (?P<second>[\w.]+)",
            ),
        ),
        headline=lambda case: (
            f"One FSDP unit has parameters of two dtypes: {_dtype(case, 'first')} and {_dtype(case, 'second')}"
        ),
        why="FSDP1 puts all parameters of a unit into one flat tensor, which has one dtype; LoRA weights, norms or a"
        " quantised base are often in another",
        next=(
            "bring all to one dtype before wrapping: model.to(torch.bfloat16) (LLaMA-Factory: pure_bf16; trl: load with"
            " the dtype of bf16=True)",
            "QLoRA: bnb_4bit_quant_storage must be the dtype of the rest (torch.bfloat16)",
            "or FSDP2 (fsdp_version: 2), which does not flatten",
        ),
        check="print({p.dtype for p in model.parameters()}) before wrapping",
        rules_out="fsdp_use_orig_params cures it: it does not",
        examples=(
            Example(
                "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
                source="hiyouga/LlamaFactory#7993",
                says=("bfloat16", "quant_storage"),
            ),
        ),
        knowledge="torch/distributed/fsdp/_flat_param.py; hiyouga/LlamaFactory#7993",
    ),
    Failure(
        id="autograd.fsdp_mixed_requires_grad",
        kind=LogClass.CRASHED,
        what="One FSDP unit has frozen and trainable parameters.",
        signs=(
            sign(
                "uniform",
                r"(?:uniform|same) `?requires_grad`? when `?use_orig_params=False|requires uniform `requires_grad`",
            ),
        ),
        headline="One FSDP unit has frozen and trainable parameters, with use_orig_params=False",
        why="they lie in one flat tensor, which is either trained or not",
        next=(
            "use_orig_params=True (accelerate: fsdp_use_orig_params: true)",
            "or wrap frozen and trainable modules in units of their own (peft: fsdp_auto_wrap_policy(model))",
        ),
        check="print the names of the trainable parameters of the unit that fails",
        examples=(
            Example(
                ' File "/opt/conda/lib/python3.8/site-packages/torch/distributed/fsdp/flat_param.py", line 440, in _init_flat_param\n'
                "    self._init_flat_param(params, fully_sharded_module, use_orig_params)\n"
                '  File "/opt/conda/lib/python3.8/site-packages/torch/distributed/fsdp/flat_param.py", line 440, in _init_flat_param\n'
                "    raise ValueError(\n"
                "ValueError: `FlatParameter` requires uniform `requires_grad`",
                source="declare-lab/flan-alpaca#10",
                says=("use_orig_params=True",),
            ),
            Example(
                "ValueError: Must flatten tensors with uniform requires_grad when use_orig_params=False",
                source="ByteDance-Seed/Bagel#120",
                says=("use_orig_params=True",),
            ),
            Example(
                "ValueError: Must flatten tensors with uniform requires_grad when use_orig_params=False",
                says=("use_orig_params=True",),
            ),
        ),
        knowledge="torch/distributed/fsdp/_flat_param.py",
    ),
    Failure(
        id="autograd.weights_on_cpu",
        kind=LogClass.CRASHED,
        what="The input is on the GPU and the weights are not, or the reverse.",
        signs=(
            sign(
                "should be the same",
                r"Input type \((?P<input>(?:torch\.(?:\w+\.)?|MPS|CUDA|XPU)\w+)\) and weight type \((?P<weight>(?:torch\.(?:\w+\.)?|MPS|CUDA|XPU)\w+)\)"
                r" should be the same",
            ),
        ),
        headline=lambda case: (
            (
                (
                    "The model is on the CPU and its input on the GPU"
                    if _is_on_device(case.given["input"])
                    else "The input is on the CPU and the model on the GPU"
                )
                if _is_on_device(case.given["input"]) != _is_on_device(case.given["weight"])
                else f"Input is {case.given['input']}, weights are {case.given['weight']}"
            )
            + place(case.lead)
        ),
        why="an operation needs its operands on one device and, without autocast, in one dtype",
        next=(
            "model.to(device) before the optimizer is made, and batch.to(device) for each batch; modules in a plain list"
            " or dict are not moved with the model: use nn.ModuleList, nn.ModuleDict, register_buffer",
            Advice(
                _AUTOCAST,
                when=lambda case: _is_on_device(case.given["input"]) == _is_on_device(case.given["weight"]),
            ),
        ),
        check="print(next(model.parameters()).device, x.device)",
        examples=(
            Example(
                "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
                source="yuanyuanli85/Fast_Human_Pose_Estimation_Pytorch#7",
                says=("model is on the CPU", "nn.ModuleList"),
            ),
            Example(
                "RuntimeError: Input type (CUDABFloat16Type) and weight type (torch.FloatTensor) should be the same",
                says=("on the CPU and its input on the GPU", "model.to(device)"),
            ),
            Example(
                "RuntimeError: Input type (MPSFloatType) and weight type (torch.FloatTensor) should be the same",
                source="Mikubill/sd-webui-controlnet#1649",
                says=("model is on the CPU",),
            ),
        ),
        knowledge="torch.nn.Module.to",
    ),
    Failure(
        id="autograd.mixed_dtypes",
        kind=LogClass.CRASHED,
        what="One operation got operands of different dtypes.",
        signs=(
            sign("expected scalar type", r"expected scalar type (?P<first>\w+) but found (?P<second>\w+)"),
            sign(
                "to have the same dtype",
                r"expected \w+ and \w+ to have the same dtype, but got: (?P<first>[\w:]+) != (?P<second>[\w:]+)",
            ),
            sign("must have the same dtype", r"must have the same dtype, but got (?P<first>\w+) and (?P<second>\w+)"),
            sign(
                "should be the same",
                r"Input type \((?P<first>[\w:]+)\) and bias type \((?P<second>[\w:]+)\) should be the same",
            ),
            sign(
                "destination dtypes match",
                r"Index put requires the source and destination dtypes match, got (?P<first>\w+) for the destination"
                r" and (?P<second>\w+) for the source",
            ),
            sign(
                "must have the same dtype, got",
                r"must have the same dtype, got (?P<first>torch\.\w+) and (?P<second>torch\.\w+)",
            ),
            sign("expected dtype", r"expected dtype (?P<first>\w+) for `?\w+`? but got dtype (?P<second>\w+)"),
        ),
        headline=_mixed_dtypes,
        why=lambda case: (
            "most often labels or indices have another type than the operation takes"
            if "int" in _dtype(case, "first") or "int" in _dtype(case, "second")
            else "most often model and inputs (or a part, such as LoRA weights, a head or a norm) were cast differently,"
            " and no autocast brings them together here"
        ),
        next=(
            Advice(
                "evaluation or generation runs outside of autocast: put torch.autocast around it too (Trainer:"
                " bf16_full_eval or fp16_full_eval), or use one dtype for the whole model",
                when=_in_evaluation,
            ),
            Advice(
                "cast them: labels.long() for class indices, labels.float() for BCE and regression",
                when=lambda case: "int" in _dtype(case, "first") or "int" in _dtype(case, "second"),
            ),
            Advice(
                _AUTOCAST,
                when=lambda case: "int" not in _dtype(case, "first") and "int" not in _dtype(case, "second"),
            ),
            Advice(
                "or load everything in one dtype: torch_dtype=torch.bfloat16 together with bf16=True; a LoRA over a 4-bit"
                " model: bnb_4bit_compute_dtype the same",
                when=lambda case: "int" not in _dtype(case, "first") and "int" not in _dtype(case, "second"),
            ),
        ),
        check="print({n: p.dtype for n, p in model.named_parameters()}) and the dtype of the input in that line",
        examples=(
            Example(
                "RuntimeError: expected scalar type Half but found Float",
                source="hiyouga/ChatGLM-Efficient-Tuning#261",
                says=("float16 and float32", "autocast", "evaluation"),
            ),
            Example(
                "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16",
                source="hiyouga/LlamaFactory#3991",
                says=("float32 and bfloat16", "bnb_4bit_compute_dtype"),
            ),
            Example(
                "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
                source="hpcaitech/ColossalAI#6169",
                says=("float32 and bfloat16",),
            ),
            Example("RuntimeError: expected scalar type Long but found Int", says=("labels.long()",)),
        ),
        knowledge="PyTorch's page on automatic mixed precision; hiyouga/LlamaFactory#3991",
    ),
    Failure(
        id="autograd.two_devices",
        kind=LogClass.CRASHED,
        what="One operation got tensors on different devices.",
        signs=(
            sign(
                "found at least two devices",
                r"found at least two devices, (?P<first>[\w:]+\w) and (?P<second>[\w:]+\w)",
            ),
            sign(
                "to be on the same device",
                r"[Ee]xpected all tensors to be on the same device, but got \w+ is on (?P<first>[\w:]+), different from"
                r" other tensors on (?P<second>[\w:]+)",
            ),
        ),
        headline=_devices,
        why="a part of the model or a tensor that was made on the way stands elsewhere",
        next=(
            _for_two_devices,
            Advice(
                "if the model is split on purpose (device_map='auto'), its inputs must go to the first device"
                " (model.device), and each loss or mask that your code makes to the device of the logits",
                when=lambda case: case.given["first"].partition(":")[0] == case.given["second"].partition(":")[0],
            ),
        ),
        check="print(x.device, weight.device) in the innermost line of the traceback",
        rules_out="a fault of a GPU or of NCCL",
        examples=(
            Example(
                "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and"
                " cuda:0!",
                source="magic-research/bubogpt#11",
                says=("CUDA_VISIBLE_DEVICES", "cuda:1 and cuda:0"),
            ),
            Example(
                "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and"
                " cpu! (when checking argument for argument index in method wrapper_CUDA__index_select)",
                says=("register_buffer",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/m.py", line 9, in main\n'
                "    model(x)\n"
                '  File "/e/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", line 200, in'
                " apply_rotary_pos_emb\n"
                "    q_embed = (q * cos)\n"
                "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
                says=("is on the model's device",),
            ),
        ),
        knowledge="accelerate's documentation of device_map; torch.nn.Module.register_buffer",
    ),
    Failure(
        id="autograd.operand_elsewhere",
        kind=LogClass.CRASHED,
        what="One operand is on another device than the others.",
        signs=(
            sign(
                "indices should be either on",
                r"indices should be either on \w+ or on the same device as the indexed tensor \((?P<other>\w+)\)(?P<what>)",
            ),
            sign(
                "Placeholder storage has not been allocated on MPS device",
                r"(?P<what>)allocated on (?P<other>MPS) device",
            ),
            sign(
                "but expected on",
                r"Tensor for argument (?:#\d+ )?'?(?P<what>\w+)'? is on \w+ but expected on (?P<other>\w+)",
            ),
            sign(
                "but expected",
                r"Tensor for (?:'out'|argument #\d+ '(?P<what>\w+)') is on \w+, but expected (?:it|them) to be on (?P<other>\w+)",
            ),
            sign(
                "but got device type",
                r"Expected object of (?:device type|backend) (?P<other>\w+) but got (?:device type|backend) \w+ for argument"
                r" #\d+ '(?P<what>\w+)'",
            ),
            sign("expected device", r"(?P<what>)(?<!- )expected device (?P<other>[\w:]+) but got device [\w:]+"),
        ),
        headline=lambda case: (
            (
                f"The operand '{case.given['what']}' is on another device than the rest"
                if case.given["what"]
                else "An operation got operands on two devices"
            )
            + f" ({case.given['other']}){place(case.lead)}"
        ),
        why="the model, a tensor that is made in forward, a mask or index, or the batch was not moved with the rest",
        next=(
            "move it: batch.to(device), model.to(device) before the optimizer is made, and new tensors with device=x.device;"
            " tensors that belong to the model as parameters or register_buffer",
            "an index or mask may also stay on the CPU with the tensor that it indexes: x[idx.to(x.device)]",
        ),
        check="print the .device of each tensor in the innermost line of your code",
        rules_out="a fault of the GPU",
        examples=(
            Example(
                "RuntimeError: Placeholder storage has not been allocated on MPS device!",
                source="pytorch/pytorch#130790",
                says=("MPS", "batch.to(device)"),
            ),
            Example(
                "RuntimeError: Expected object of device type cuda but got device type cpu for argument #1 'self' in call to"
                " _th_index_select",
                source="Nmegha2601/activitygraph_transformer#9",
                says=("'self'", "cuda"),
            ),
            Example("RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)"),
            Example(
                "RuntimeError: Tensor for argument #2 'mat1' is on CPU, but expected it to be on GPU (while checking arguments"
                " for addmm)",
                says=("mat1",),
            ),
        ),
        knowledge="torch.Tensor.to; pytorch/pytorch#130790",
    ),
    Failure(
        id="autograd.gradient_device",
        kind=LogClass.CRASHED,
        what="backward got a gradient of another device, dtype or shape than the tensor that it is for.",
        signs=(
            sign(
                "returned an invalid gradient at index",
                r"Function (?P<function>\w+?)(?:Backward\w{0,3})? returned an invalid gradient at index \d+ - (?:expected (?:type |device |)(?P<wanted>[^\n]{1,300}?) but got (?P<got>[^\n]{1,120})|got (?P<shape>\[[\d, ]*\]) but expected shape compatible with (?P<other>\[[\d, ]*\]))",
            ),
            sign(
                "assign a gradient",
                r"attempting to assign a gradient (?P<function>)(?:with|of) (?:device type|type|size) '(?P<got>[^'\n]{1,60})' to a tensor (?:with|of) (?:device type|type|size) '(?P<wanted>[^'\n]{1,60})'",
            ),
        ),
        headline=lambda case: (
            "backward got a gradient that does not fit its tensor: "
            + (
                f"{case.given['shape']} for {case.given['other']}"
                if case.given.get("shape")
                else f"{_short_type(case.given['got'])} for {_short_type(case.given['wanted'])}"
            )
        ),
        why=lambda case: (
            f"the gradient of {case.given['function']} left its device, dtype or shape on the way; autograd only finds it at the"
            " next operation"
            if case.given["function"]
            else "a gradient that is assigned must have the device, dtype and shape of its parameter"
        ),
        next=(
            "if devices differ: a part of the loss or of an own autograd.Function works on the CPU (NumPy, a library, a constant"
            " tensor); move that part's inputs and results with .to(device) in forward, and return grad.to(input.device) in an own"
            " backward",
            "if shapes or dtypes differ: an own backward must return a gradient of the shape and dtype of each input; a parameter"
            " whose .data was replaced or moved (.to, pruning) after the graph was built gives the same error",
            "torch.autograd.set_detect_anomaly(True) for one run prints the forward line",
        ),
        check="set_detect_anomaly(True) names the line of forward",
        examples=(
            Example(
                "RuntimeError: Function AddBackward0 returned an invalid gradient at index 1 - expected type"
                " torch.cuda.FloatTensor but got torch.FloatTensor",
                source="HelenGuohx/logbert#3",
                says=("torch.FloatTensor for torch.cuda.FloatTensor", "set_detect_anomaly"),
            ),
            Example(
                "RuntimeError: Function NumpyOpWrapperBackward returned an invalid gradient at index 0 - expected type"
                " TensorOptions(dtype=float, device=cuda:0, layout=Strided, requires_grad=false (default), pinned_memory=false"
                " (default), memory_format=(nullopt)) but got TensorOptions(dtype=float, device=cpu, layout=Strided,"
                " requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))",
                source="google-research/fast-soft-sort#17",
                says=("float on cpu for float on cuda:0",),
            ),
            Example(
                "RuntimeError: Function MulBackward0 returned an invalid gradient at index 1 - got [0, 512] but expected shape"
                " compatible with [0, 256]",
                says=("[0, 512] for [0, 256]",),
            ),
            Example(
                "RuntimeError: attempting to assign a gradient with device type 'cpu' to a tensor with device type 'cuda'. Please"
                " ensure that the gradient and the tensor are on the same device",
                says=("cpu for cuda",),
            ),
        ),
        knowledge="torch/csrc/autograd: validate_outputs",
    ),
    Failure(
        id="autograd.empty_scaler",
        kind=LogClass.CRASHED,
        what="A GradScaler is stepped although no parameter of the optimizer has a gradient.",
        signs=(
            sign("No inf checks were recorded", r"No inf checks were recorded (?:for this optimizer|prior to update)"),
        ),
        headline="No parameter of the optimizer got a gradient, so the GradScaler has nothing to check",
        why="the scaler finds every .grad empty: the loss is connected to none of the optimizer's parameters, or the"
        " optimizer holds parameters from before the model was moved or wrapped",
        next=(
            "make the optimizer after model.to(device), FSDP or DDP and after freezing: its parameters must be the"
            " model's",
            "check that the loss has a way to them: a torch.tensor(loss) or .item() in the loss cuts it; skip the step"
            " if a batch has no loss",
            "call scaler.scale(loss).backward() before scaler.step; with accelerate do not call the scaler at all",
            "with several optimizers, step only those whose part took part in this loss; bf16 needs no scaler"
            " (GradScaler(enabled=False))",
        ),
        check="print(sum(p.grad is not None for g in optimizer.param_groups for p in g['params'])) after backward",
        examples=(
            Example(
                "AssertionError: No inf checks were recorded for this optimizer.",
                source="huggingface/accelerate#328",
                says=("model.to(device)", "accelerate"),
            ),
        ),
        knowledge="torch/amp/grad_scaler.py; huggingface/accelerate#328, open-mmlab/mmsegmentation#3230",
    ),
    Failure(
        id="autograd.unscaled_twice",
        kind=LogClass.CRASHED,
        what="unscale_ or step of a GradScaler was called twice before update.",
        signs=(
            sign("has already been called", r"(?P<call>unscale_\(\)|step\(\)) has already been called"),
            sign("is being called after step", r"(?P<call>unscale_\(\)) is being called after step\(\)"),
        ),
        headline=lambda case: (
            "GradScaler: unscale_() was called after step(), before update()"
            if "being called after" in case.lead.message
            else f"GradScaler: {case.given['call']} was called twice for one optimizer between two updates"
        ),
        why="the gradients may be unscaled only once in a step; clipping by a library (accelerate, Lightning) unscales"
        " them too, and with gradient accumulation it is often called in each micro-batch",
        next=(
            "clip and step only when the gradients are complete (accelerate: inside `if accelerator.sync_gradients:`), and"
            " call scaler.update() after each scaler.step()",
            "with several optimizers call unscale_ and step once for each, and update once at the end",
        ),
        check="look for a second clip_grad_norm_ or unscale_ in the loop",
        examples=(
            Example(
                "RuntimeError: unscale_() has already been called on this optimizer since the last update().",
                source="huggingface/transformers#23935",
                says=("sync_gradients",),
            ),
            Example("RuntimeError: unscale_() is being called after step().", says=("after step(), before update()",)),
        ),
        knowledge="PyTorch's examples of automatic mixed precision",
    ),
    Failure(
        id="autograd.matmul_shapes",
        kind=LogClass.CRASHED,
        what="A linear layer or a matrix product got operands whose inner sizes differ.",
        signs=(
            sign(
                "shapes cannot be multiplied",
                r"mat1 and mat2 shapes cannot be multiplied \((?P<a>\d+)x(?P<b>\d+) and (?P<c>\d+)x(?P<d>\d+)\)",
            ),
        ),
        headline=_matmul,
        why=lambda case: (
            f"the layer was built for {case.given['c']} features and its input has {case.given['b']} in the last dimension"
            if _is_linear(case)
            else f"a product needs as many columns of the first operand ({case.given['b']}) as rows of the second ({case.given['c']}); for"
            " a linear layer these are the features of its input and those that it was built for"
        ),
        next=(
            lambda case: (
                f"for a linear layer, set in_features to {case.given['b']}, or see why the input has not"
                f" {case.given['c']} features: the size of the image or the backbone (after flatten), the hidden size of"
                " another encoder, or a missing transpose"
            ),
            "for weights of a checkpoint, use the encoder and the configuration that they were trained with",
            Advice(
                "a 4-bit weight was used as it is stored (n x 1): a module outside of the quantised layers multiplies by"
                " it directly; exclude it from quantisation or call the layer",
                when=lambda case: "1" in (case.given["c"], case.given["d"]),
            ),
        ),
        check="print(x.shape) before the layer",
        rules_out="memory or the GPU",
        examples=(
            Example(
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1920x2048 and 4096x512)",
                source="ekosman/AnomalyDetectionCVPR2018-Pytorch#230",
                says=("2048 against 4096", "in_features"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/m.py", line 9, in forward\n'
                "    return self.fc(x)\n"
                '  File "/e/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward\n'
                "    return F.linear(input, self.weight, self.bias)\n"
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 768x10)",
                says=("built for 768 features",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/m.py", line 9, in forward\n'
                "    return q @ k\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 768x10)",
                says=("as many columns of the first operand (512)",),
            ),
        ),
        knowledge="torch.nn.Linear",
    ),
    Failure(
        id="autograd.channels",
        kind=LogClass.CRASHED,
        what="A convolution got an input with another number of channels than it was built for.",
        signs=(
            sign(
                "Given groups",
                r"Given groups=\d+, weight of size \[[\d, ]+\], expected input\[(?P<shape>[\d, ]+)\] to have"
                r" (?P<expected>\d+) channels, but got (?P<got>\d+) channels",
            ),
        ),
        headline=_channels,
        why=lambda case: (
            (
                "most often the images have another number of channels (grey 1, colour 3, with transparency 4) than the"
                " layer was built for"
                if {case.given["expected"], case.given["got"]} <= {"1", "3", "4"}
                else "most often the input has another layout, or comes from another encoder than the layer was built for"
            )
            + f"; the input is [{case.given['shape']}]"
        ),
        next=(
            Advice(
                lambda case: (
                    "convert each image when it is read: Image.open(path).convert("
                    + {"1": "'L'", "3": "'RGB'"}.get(case.given["expected"], "'RGBA'")
                    + f"), or build the model for {case.given['got']} (in_channels, in_chans)"
                ),
                when=lambda case: {case.given["expected"], case.given["got"]} <= {"1", "3", "4"},
            ),
            Advice(
                "check the order of dimensions: it must be batch, channels, height, width (x.permute(0, 3, 1, 2))",
                when=lambda case: (
                    not {case.given["expected"], case.given["got"]} <= {"1", "3", "4"}
                    or case.given["shape"].endswith(("3", "4", " 1"))
                ),
            ),
            Advice(
                "or set the layer's in_channels to what the layer before gives",
                when=lambda case: not {case.given["expected"], case.given["got"]} <= {"1", "3", "4"},
            ),
        ),
        check="print(x.shape) before the first layer, for the batch that fails",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Given groups=1, weight of size [32, 1, 3, 3], expected input[4, 3, 320, 220] to have 1 channels, but got 3 channels instead",
                source="open-mmlab/mmsegmentation#2330",
                says=("1 channel",),
            ),
            Example(
                "Given groups=1, weight of size [1536, 16, 2, 2], expected input[4, 4, 128, 96] to have 16 channels, but got 4 channels instead",
                source="kohya-ss/sd-scripts#1419",
            ),
            Example(
                "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[16, 256, 256, 3] to have 3 channels, but got 256 channels instead",
                source="anilbatra2185/road_connectivity#10",
            ),
            Example(
                "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[8, 1, 224, 224] to have 3"
                " channels, but got 1 channels instead",
                says=("expects 3 channels and got 1", "convert('RGB')"),
            ),
        ),
        knowledge="torch.nn.Conv2d",
    ),
    Failure(
        id="autograd.batch_of_one",
        kind=LogClass.CRASHED,
        what="BatchNorm in training got a single value for each channel.",
        signs=(
            sign(
                "Expected more than",
                r"Expected more than 1 value per channel when training, got input size (?:torch\.Size\()?(?P<shape>\[[\d, ]{1,60}\])",
            ),
        ),
        headline="BatchNorm got a batch of one sample: {shape}",
        why="in training BatchNorm needs more than one value for each channel; the last batch of an epoch is often one"
        " sample, or the batch size for each GPU is 1",
        next=(
            "drop_last=True in the training DataLoader, or a batch size of 2 or more for each GPU",
            "call model.eval() if this is evaluation; or use GroupNorm or SyncBatchNorm",
        ),
        check="len(dataset) % batch_size is 1",
        examples=(
            Example(
                '    raise ValueError(f"Expected more than 1 value per channel when training, got input size {size}")\n'
                "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 16, 1, 1])",
                source="thograce/C2FNet#9",
                says=("drop_last=True",),
            ),
        ),
        knowledge="torch/nn/functional.py, _verify_batch_size",
    ),
    Failure(
        id="autograd.too_long_for_positions",
        kind=LogClass.CRASHED,
        what="A sequence is longer than the model's table of positions.",
        signs=(
            sign(
                "must match the size of tensor b",
                r"size of tensor a \((?P<got>\d+)\) must match the size of tensor b \((?P<limit>512|514|1024|2048|4096)\)"
                r" at non-singleton dimension 1",
            ),
            sign(
                "must match the existing size",
                r"expanded size of the tensor \((?P<got>\d+)\) must match the existing size \((?P<limit>512|514|1024|2048|4096)\)"
                r" at non-singleton dimension 1\.  Target sizes: \[\d+, \d+\]\.  Tensor sizes: \[1, \d+\]",
            ),
        ),
        when=lambda case: (
            int(case.given["got"]) > int(case.given["limit"])
            and case.printed(
                r"Token indices sequence length is longer|bert|position|embeddings|Tensor sizes: \[1, \d+\]"
            )
        ),
        clues=(sign("Token indices sequence length is longer"),),
        headline="A sequence of {got} tokens is longer than the model's {limit} positions",
        why="the table of positions has a fixed size, and the text was not truncated to it",
        next=(
            "truncate when tokenizing: tokenizer(text, truncation=True, max_length={limit}) (RoBERTa: 2 less than the"
            " table), or split long texts into windows",
            "or use a model for longer texts",
        ),
        check="the warning `Token indices sequence length is longer than the specified maximum` is printed before",
        examples=(
            Example(
                "   embeddings += position_embeddings\n"
                "RuntimeError: The size of tensor a (937) must match the size of tensor b (512) at non-singleton dimension 1",
                source="gomate-community/TrustRAG#156",
                says=(
                    "937",
                    "truncation=True",
                ),
            ),
            Example(
                "RuntimeError: The expanded size of the tensor (513) must match the existing size (512) at non-singleton dimension 1.  Target sizes: [6, 513].  Tensor sizes: [1, 512]",
                source="hemingkx/WordSeg#13",
                says=("513",),
            ),
            Example(
                "Token indices sequence length is longer than the specified maximum sequence length for this model (629 >"
                " 512). Running this sequence through the model will result in indexing errors\n"
                "RuntimeError: The size of tensor a (629) must match the size of tensor b (512) at non-singleton"
                " dimension 1",
                says=("629", "truncation=True"),
            ),
        ),
        knowledge="the documentation of tokenizers in transformers",
        near_misses=(
            "RuntimeError: The size of tensor a (300) must match the size of tensor b (512) at non-singleton dimension"
            " 1, in modeling_bert embeddings",
        ),
    ),
    Failure(
        id="autograd.sizes_differ",
        kind=LogClass.CRASHED,
        what="Two tensors of an element-wise operation have different sizes in one dimension.",
        signs=(
            sign(
                "must match",
                r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at non-singleton"
                r" dimension (?P<dim>\d+)",
            ),
            sign(
                "must match the existing size",
                r"expanded size of the tensor \((?P<a>\d+)\) must match the existing size \((?P<b>\d+)\) at non-singleton"
                r" dimension (?P<dim>\d+)",
            ),
            sign(
                "Sizes of tensors must match except in dimension",
                r"Sizes of tensors must match except in dimension \d+\. (?:Expected size (?P<a>\d+) but got size"
                r" (?P<b>\d+)|Got (?P<c>\d+) and (?P<d>\d+) in dimension (?P<dim>\d+))",
            ),
        ),
        headline=lambda case: (
            f"Tensor sizes differ: {case.given['a'] or case.given['c']} against"
            f" {case.given['b'] or case.given['d']}"
            + (f" in dimension {case.given['dim']}" if case.given["dim"] else "")
            + place(case.lead)
        ),
        why=lambda case: (
            "torch.cat and torch.stack need equal sizes in all other dimensions"
            if "Sizes of tensors must match" in case.lead.message
            else "element-wise operations need equal sizes in this dimension, or 1 on one side"
        ),
        next=(
            Advice(
                "a transparent image among colour images: Image.open(path).convert('RGB')",
                when=lambda case: (
                    {case.given["a"] or case.given["c"], case.given["b"] or case.given["d"]} == {"3", "4"}
                ),
            ),
            lambda case: (
                "they differ by little: with images (skip connections, up-sampling) pad or resize to a multiple of the network's"
                " stride, such as 32; with text one side has a token more (BOS, EOS, shifted labels, a mask made before)"
                if abs(int(case.given["a"] or case.given["c"]) - int(case.given["b"] or case.given["d"])) <= 2
                else f"print both shapes before that line: which side has {case.given['a'] or case.given['c']} and which"
                f" {case.given['b'] or case.given['d']}; then make them alike where they are made (size of image or crop in the"
                " configuration, padding, mask, labels)"
            ),
            "if only some batches fail, print the shapes of each batch: one sample differs from the rest",
        ),
        check="print both shapes before that line",
        rules_out="memory or the GPU",
        examples=(
            Example(
                "normD_down = D_down + norm_down\n"
                "RuntimeError: The size of tensor a (378) must match the size of tensor b (281) at non-singleton dimension 2",
                source="SJTU-ViSYS/StructDepth#10",
                says=("378",),
            ),
            Example(
                "RuntimeError: The size of tensor a (150) must match the size of tensor b (152) at non-singleton dimension 3",
                source="jiwei0921/DMRA#5",
            ),
            Example(
                "RuntimeError: The size of tensor a (4) must match the size of tensor b (3) at non-singleton dimension 0",
                source="VITA-Group/ShapeMatchingGAN#23",
            ),
            Example(
                "RuntimeError: The size of tensor a (64) must match the size of tensor b (65) at non-singleton dimension"
                " 3",
                says=("64 against 65", "such as 32"),
            ),
            Example(
                "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 20 but got size 19 for"
                " tensor number 1 in the list.",
                says=("20 against 19", "stride"),
            ),
        ),
        knowledge="PyTorch's notes on broadcasting",
    ),
    Failure(
        id="autograd.batch_of_target",
        kind=LogClass.CRASHED,
        what="A loss got predictions and targets for different numbers of samples.",
        signs=(
            sign(
                "to match target batch_size",
                r"Expected input batch_size \((?P<a>\d+)\) to match target batch_size \((?P<b>\d+)\)",
            ),
        ),
        headline="The loss got {a} predictions and {b} targets",
        why=lambda case: (
            "one is a multiple of the other: most often one side was flattened into the batch, or has a batch size"
            " written in the code"
            if int(case.given["a"]) % max(1, int(case.given["b"])) == 0
            or int(case.given["b"]) % max(1, int(case.given["a"])) == 0
            else "most often predictions and targets were cut, shifted or filtered differently"
        ),
        next=(
            "print(logits.shape, labels.shape) before the loss: cross_entropy takes (N, C) and (N), or (N, C, d) and (N,"
            " d)",
            "language models: flatten both (logits.view(-1, vocab), labels.view(-1)) and shift both by one token",
            "images: the view(-1, features) before the classifier must have the right number of features",
        ),
        check="print(logits.shape, labels.shape)",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "dann.py", line 331, in <module>\n'
                "    main(args)\n"
                '  File "dann.py", line 136, in main\n'
                "    lr_scheduler, epoch, args)\n"
                '  File "dann.py", line 192, in train\n'
                "    cls_loss = F.cross_entropy(y_s, labels_s)\n"
                '  File "/home/user/anaconda3/envs/py36/lib/python3.6/site-packages/torch/nn/functional.py", line 2468, in cross_entropy\n'
                "    return nll_loss(log_softmax(input, 1), target, weight, None, ignore_index, None, reduction)\n"
                '  File "/home/user/anaconda3/envs/py36/lib/python3.6/site-packages/torch/nn/functional.py", line 2262, in nll_loss\n'
                "    .format(input.size(0), target.size(0)))\n"
                "ValueError: Expected input batch_size (1568) to match target batch_size (32).",
                source="thuml/Transfer-Learning-Library#52",
                says=("1568",),
            ),
            Example(
                "train_cylinder_asym.py\n"
                "Namespace(config_path='config/semantickitti.yaml')\n"
                "[480 360  32]\n"
                "  0%|          | 0/1136 [00:00<?, ?it/s]epoch 0 iter     0, loss: 4.095\n"
                "\n"
                " 88%|████████▊ | 1000/1136 [22:35<02:54,  1.29s/it]epoch 0 iter  1000, loss: 1.071\n"
                "\n"
                "100%|█████████▉| 1135/1136 [25:31<00:01,  1.11s/it]Traceback (most recent call last):\n"
                '  File "train_cylinder_asym.py", line 167, in <module>\n'
                "    main(args)\n"
                '  File "train_cylinder_asym.py", line 134, in main\n'
                "    outputs, point_label_tensor)\n"
                '  File "/home/user/anaconda3/envs/pytorch/lib/python3.7/site-packages/torch/nn/functional.py", line 2998, in cross_entropy\n'
                "    return torch._C._nn.cross_entropy_loss(input, target, weight, _Reduction.get_enum(reduction), ignore_index, label_smoothing)\n"
                "ValueError: Expected input batch_size (4) to match target batch_size (1).\n"
                "100%|█████████▉| 1135/1136 [25:32<00:01,  1.35s/it]",
                source="xinge008/Cylinder3D#128",
            ),
        ),
        knowledge="torch.nn.CrossEntropyLoss",
    ),
    Failure(
        id="autograd.not_contiguous",
        kind=LogClass.CRASHED,
        what="view was called on a tensor whose memory is not in the order that it needs.",
        signs=(sign("view size is not compatible with input tensor"),),
        headline="view() on a tensor that is not contiguous{place}",
        why="after transpose, permute or channels_last the elements lie in another order, and view never copies",
        next=("use .reshape(...) in place of .view(...), or .contiguous().view(...), in that line",),
        check="print(x.is_contiguous(), x.stride())",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 280, in <module>\n'
                "    main()\n"
                '  File "train.py", line 210, in main\n'
                "    loss, acc = model(inputs)\n"
                '  File "/home/user/anaconda3/envs/metal/lib/python3.7/site-packages/torch/nn/modules/module.py", line 550, in __call__\n'
                "    result = self.forward(*input, **kwargs)\n"
                '  File "/home/user/TPN-torch/models.py", line 170, in forward\n'
                "    emb_all = self.encoder(inp).view(-1,1600)\n"
                "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
                source="csyanbin/TPN-pytorch#6",
                says=("reshape",),
            ),
        ),
        knowledge="torch.Tensor.view",
    ),
    Failure(
        id="autograd.not_implemented_for_dtype",
        kind=LogClass.CRASHED,
        what="An operation has no kernel for a dtype on this device.",
        signs=(sign("not implemented for", r"\"(?P<op>\w+)\" not implemented for '(?P<dtype>\w+)'"),),
        headline=lambda case: (
            f"{case.given['op']} does not exist for {_dtype(case, 'dtype')}"
            + (" on the CPU" if _is_of_cpu(case) else "")
        ),
        why=lambda case: (
            "many operations of the CPU have no float16 kernel: the model runs on the CPU in half precision"
            if case.given["dtype"] == "Half" and _is_of_cpu(case)
            else "class indices must be int64"
            if "nll" in case.given["op"]
            else "the operation takes no tensors of this integer type"
            if case.given["dtype"] in _INTEGERS
            else "gradients in bfloat16 need no GradScaler, and older PyTorch has none for them"
            if "_amp_foreach" in case.given["op"]
            else "this operation was written for other dtypes only"
        ),
        next=(
            Advice(
                "leave the GradScaler out (bf16=True in place of fp16=True, GradScaler(enabled=False)), or train in float16",
                when=lambda case: "_amp_foreach" in case.given["op"],
            ),
            Advice(
                "put the model on the GPU, or load it in float32 or bfloat16 for the CPU (torch_dtype=torch.float32,"
                " --no_half); if a GPU was meant, torch.cuda.is_available() is probably False",
                when=lambda case: case.given["dtype"] == "Half" and _is_of_cpu(case),
            ),
            Advice(
                "labels = labels.long() (targets of BCE and regression: .float())",
                when=lambda case: "nll" in case.given["op"],
            ),
            Advice(
                "convert it before this line: x.float() for arithmetic, x.long() for indices and class labels",
                when=lambda case: case.given["dtype"] in _INTEGERS and "nll" not in case.given["op"],
            ),
            Advice(
                "cast for this operation to a type that it takes: x.float()",
                when=lambda case: (
                    case.given["dtype"] not in {"BFloat16", *_INTEGERS}
                    and "nll" not in case.given["op"]
                    and not (case.given["dtype"] == "Half" and _is_of_cpu(case))
                ),
            ),
            Advice(
                "cast for this operation: x.float(), or update PyTorch, which adds bfloat16 kernels in each version",
                when=lambda case: case.given["dtype"] == "BFloat16",
            ),
        ),
        check="print(x.dtype, x.device) in the line of the traceback",
        examples=(
            Example(
                'File "KERPLE/megatron/mpu/layers.py", line 238, in get_stats\n'
                "    name+'_max': obj.max().detach().cpu(),\n"
                "RuntimeError: \"max_all_cuda\" not implemented for 'BFloat16'",
                source="chijames/KERPLE#5",
                says=("max_all_cuda",),
            ),
            Example(
                "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'",
                source="hiyouga/ChatGLM-Efficient-Tuning#37",
            ),
            Example(
                "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
                source="AttentionX/InstructBLIP_PEFT#3",
            ),
            Example(
                "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
                says=("float16", "on the CPU", "is_available"),
            ),
            Example(
                "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
                says=("labels.long()",),
            ),
            Example("RuntimeError: \"cholesky_cuda\" not implemented for 'Half'", says=("cast for this operation",)),
        ),
        knowledge="the dispatch macros of ATen",
    ),
    Failure(
        id="autograd.embedding_index",
        kind=LogClass.CRASHED,
        what="An index is outside of an embedding or another table that is indexed.",
        signs=(
            sign("srcIndex", r"Assertion `srcIndex < srcSelectDimSize` failed"),
            sign("index out of range in self"),
            sign("index out of bounds", r"Assertion `[^`\n]{0,80}index out of bounds[^`\n]{0,5}` failed"),
            sign("vectorized_gather_kernel", r"vectorized_gather_kernel[\s\S]{0,200}?Assertion"),
            sign("idx_dim", r"Assertion `idx_dim >= 0 && idx_dim < index_size"),
        ),
        headline=lambda case: (
            "An index is outside of the table: a token id beyond the embedding, or a position or label"
            if _is_of_embedding(case)
            else "An index is outside of the tensor that it indexes"
            + ("" if _has(case, "out of range in self") else " (device-side assertion)")
        ),
        why=lambda case: (
            (
                "token ids must be below the rows of the embedding; most often special tokens were added without resizing,"
                " the tokenizer belongs to another model, a sequence is longer than the table of positions, or labels of"
                " -100 were embedded"
                if _is_of_embedding(case)
                else "a gather, a scatter or an index has a number below 0 or beyond the size of that dimension"
            )
            + ("" if _has(case, "out of range in self") else "; CUDA reports it later, at another line")
        ),
        next=(
            Advice(
                "compare max(input_ids) with model.get_input_embeddings().num_embeddings: after adding tokens call"
                " model.resize_token_embeddings(len(tokenizer)), and use the model's own tokenizer",
                when=_is_of_embedding,
            ),
            Advice(
                "compare the sequence length with config.max_position_embeddings, and check that no -100 or negative id is in"
                " input_ids",
                when=_is_of_embedding,
            ),
            Advice(
                "check the indices before the call: their smallest and largest value against the size of the dimension that they index"
                " (of a graph: edge_index and batch against the number of nodes; of a pooling or a gather of positions: the length)",
                when=lambda case: not _is_of_embedding(case),
            ),
            Advice(
                "run one batch on the CPU (or CUDA_LAUNCH_BLOCKING=1): the traceback then shows the true line",
                when=lambda case: not _has(case, "out of range in self"),
            ),
        ),
        check="print(input_ids.min(), input_ids.max(), model.get_input_embeddings().num_embeddings)",
        rules_out="a defect of the GPU; memory",
        explains=("exceptions.*", "autograd.cublas", "network.*", "collectives.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "indexSelectLargeIndex: block: [654,0,0], thread: [32,0,0] Assertion `srcIndex < srcSelectDimSize`"
                " failed.\n"
                "RuntimeError: CUDA error: device-side assert triggered\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might"
                " be incorrect.",
                source="AkariAsai/self-rag#91",
                says=("embedding", "resize_token_embeddings"),
            ),
            Example("IndexError: index out of range in self", says=("max_position_embeddings",)),
            Example(
                "../aten/src/ATen/native/cuda/IndexKernel.cu:92: operator(): block: [10,0,0], thread: [101,0,0] Assertion"
                ' `index >= -sizes[i] && index < sizes[i] && "index out of bounds"` failed.\n'
                "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmStridedBatchedExFix`",
                source="EvolvingLMMs-Lab/Otter#218",
                says=("device-side", "CUDA_LAUNCH_BLOCKING"),
            ),
            Example(
                "from torch_geometric.nn import GCNConv\n"
                "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [10,0,0], thread: [31,0,0]"
                " Assertion `srcIndex < srcSelectDimSize` failed.",
                says=("outside of the tensor that it indexes",),
            ),
        ),
        knowledge="ATen's Indexing.cu and IndexKernel.cu",
    ),
    Failure(
        id="autograd.label_out_of_range",
        kind=LogClass.CRASHED,
        what="A class label is outside of the number of classes.",
        signs=(
            sign("n_classes", r"Assertion `t >= 0 && t < n_classes` failed"),
            sign("n_classes", r"Assertion `cur_target >= 0 && cur_target < n_classes` failed"),
            sign("is out of bounds", r"IndexError: Target (?P<label>-?\d+) is out of bounds"),
            sign("Class values must be", r"Class values must be (?:non-negative|smaller than num_classes)"),
        ),
        headline=lambda case: (
            f"Label {case.given['label']} is outside of the classes that the model predicts"
            if case.given.get("label")
            else "A label is outside of 0 to the number of classes - 1 (assertion in the loss)"
        ),
        why="cross entropy reads the probability of the labelled class; most often the labels begin at 1, have one class more than"
        " the model, or an ignored value (255, -1) that is not ignore_index",
        next=(
            "compare torch.unique(labels) with the last layer: labels must be 0 to num_classes - 1; set num_classes, or"
            " map the labels",
            "ignored pixels or tokens: ignore_index=255 (or the value in the masks; transformers use -100); masks saved"
            " as colour images or resized with interpolation have other values",
            Advice(
                "run one batch on the CPU to see the value and the line", when=lambda case: not case.given.get("label")
            ),
        ),
        check="print(torch.unique(labels), logits.shape) before the loss",
        rules_out="a defect of the GPU; memory",
        explains=("exceptions.*", "autograd.cublas", "collectives.*", "network.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "/pytorch/aten/src/ATen/native/cuda/NLLLoss2d.cu:104: nll_loss2d_forward_kernel: block: [3,0,0], thread:"
                " [33,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
                "RuntimeError: CUDA error: device-side assert triggered",
                source="SegmentationBLWX/sssegmentation#47",
                says=("num_classes", "ignore_index"),
            ),
            Example("IndexError: Target 5 is out of bounds.", says=("Label 5",)),
        ),
        knowledge="ATen's NLLLoss2d.cu; torch.nn.CrossEntropyLoss",
    ),
    Failure(
        id="autograd.nan_before_sampling",
        kind=LogClass.NONFINITE_LOSS,
        what="A training's numbers became NaN, and the next generation fails because its probabilities are NaN, too.",
        signs=(sign("probability tensor contains", r"probability tensor contains either `?inf`?, `?nan`? or element"),),
        when=lambda case: bool(_nan_names(case)),
        headline=lambda case: (
            f"{_nan_names(case)[0]} is NaN in the printed rows, and sampling got invalid probabilities"
        ),
        why=lambda case: (
            f"rows have NaN in {', '.join(_nan_names(case)[:4])}; an update with a NaN in the loss makes the weights NaN, and sampling"
            " from them is then the first place that raises"
        ),
        next=(
            Advice(
                "reward_std is NaN while the rewards are numbers: the standard deviation of a group of one. Set num_generations to 2"
                " or more (4 to 16 are usual)",
                when=_has_group_of_one,
            ),
            Advice(
                "the reward is NaN itself: look at the reward model's output for the first batch (its checkpoint, its head, fp16),"
                " before anything of the policy",
                when=lambda case: any(re.fullmatch(r"rewards?", name) for name in _nan_names(case)),
            ),
            Advice(
                "the weights are in float16 (torch_dtype): updates in it often become NaN within steps. Load them in"
                " float32 or bfloat16, and let the trainer's fp16 or bf16 option do the mixed precision",
                when=lambda case: case.context.says(r"torch_dtype ?= ?['\"]?(?:torch\.)?(?:half|float16)\b"),
            ),
            "find the first row with NaN and what made it: loss and gradient norm of the rows before, the batch of that step",
        ),
        check="torch.isfinite on all parameters just before the failing generate()",
        rules_out="no number in the rows before the failure is NaN",
        explains=("exceptions.*",),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9.997e-07, 'reward': 0.25, 'reward_std': nan, 'kl': 0.0007}\n"
                "Traceback (most recent call last):\n"
                '  File "/src/open_r1/grpo.py", line 205, in <module>\n'
                "    main(script_args, training_args, model_args)\n"
                "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
                source="StarsfieldAI/R1-V#69",
                says=("num_generations", "reward_std"),
            ),
            Example(
                "Train epoch [5/5]: 100%|##########| 80/80 [00:34<00:00,  2.33it/s, reward=nan]\n"
                "Episode [2/10]:   0%|          | 0/10 [00:00<?, ?it/s]\n"
                "Traceback (most recent call last):\n"
                '  File "examples/train_prompts.py", line 233, in <module>\n'
                "    main(args)\n"
                "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
                source="hpcaitech/ColossalAI#3732",
                says=("reward model",),
            ),
        ),
        knowledge="torch.multinomial; trl's GRPOTrainer",
    ),
    Failure(
        id="autograd.probabilities_outside",
        kind=LogClass.NONFINITE_LOSS,
        what="A loss or a sampler got values that are no probabilities, most often NaN.",
        signs=(
            sign("input_val", r"Assertion `input_val >= zero && input_val <= one` failed"),
            sign("probability tensor contains", r"probability tensor contains either `?inf`?, `?nan`? or element"),
            sign("all elements of input should be between"),
        ),
        headline=lambda case: (
            "Sampling got probabilities that are NaN, infinite or negative"
            if _has(case, "probability tensor")
            else "BCE got values outside of 0 to 1: NaN, or logits without a sigmoid"
        ),
        why=lambda case: (
            "most often the logits are NaN: by an overflow of float16, by weights that became NaN in training, or by a"
            " wrongly loaded model"
            if _has(case, "probability tensor")
            else "NaN fails this check too, so weights or inputs may be NaN already; else the output has no sigmoid"
        ),
        next=(
            "look for the first NaN: torch.isfinite(x).all() on the inputs, and on the output of each block by a forward"
            " hook",
            Advice(
                "use BCEWithLogitsLoss on the logits, which is also safe under autocast",
                when=lambda case: not _has(case, "probability tensor"),
            ),
            Advice(
                "load in bfloat16 in place of float16, and check that the weights were finite when they were saved",
                when=lambda case: _has(case, "probability tensor"),
            ),
        ),
        check="print(torch.isfinite(logits).all())",
        explains=("exceptions.*",),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
                source="meta-llama/llama#380",
                says=("bfloat16", "NaN"),
            ),
            Example(
                "../aten/src/ATen/native/cuda/Loss.cu:94: operator(): block: [0,0,0], thread: [0,0,0] Assertion"
                " `input_val >= zero && input_val <= one` failed.",
                says=("BCEWithLogitsLoss",),
            ),
        ),
        knowledge="ATen's Loss.cu and Distributions",
    ),
    Failure(
        id="autograd.cublas_no_memory",
        kind=LogClass.OOM,
        what="cuBLAS could not get memory for its handle or workspace.",
        signs=(
            sign("CUBLAS_STATUS_ALLOC_FAILED"),
            sign("CUBLAS_STATUS_NOT_INITIALIZED", r"CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"),
        ),
        headline="cuBLAS could not start: most often the GPU's memory was full",
        why="its handle and workspace are allocated at the first matrix product outside of PyTorch's cache, so a full GPU"
        " shows here and not as an out-of-memory error; an earlier assertion or a wrong CUDA library shows the same",
        next=(
            "look at `nvidia-smi` at that moment: end other processes on this GPU, or use one with more free memory",
            "use a smaller batch or sequence, and leave room: torch.cuda.set_per_process_memory_fraction(0.95)",
            "if memory is free: run once with CUDA_LAUNCH_BLOCKING=1 (an index out of range before it), and with"
            " LD_LIBRARY_PATH unset (another cuBLAS)",
        ),
        check="print(torch.cuda.mem_get_info()) before the line",
        examples=(
            Example(
                "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                source="QwenLM/Qwen3#873",
                says=("memory was full", "nvidia-smi"),
            ),
        ),
        knowledge="ATen's CublasHandlePool.cpp; QwenLM/Qwen3#873",
    ),
    Failure(
        id="autograd.cublas",
        kind=LogClass.CRASHED,
        what="A matrix product of cuBLAS failed.",
        signs=(
            sign(
                "CUBLAS_STATUS",
                r"(?P<status>CUBLAS_STATUS_(?:EXECUTION_FAILED|INVALID_VALUE|NOT_SUPPORTED|INTERNAL_ERROR)) when calling"
                r" `?(?P<call>\w+)",
            ),
        ),
        headline=lambda case: f"cuBLAS failed in {case.given['call']}: {case.given['status']}",
        why=lambda case: (
            "this GPU or cuBLAS has no such product: for example bfloat16 before Ampere, or sizes that the format does"
            " not allow"
            if "NOT_SUPPORTED" in case.given["status"]
            else "the arguments do not fit, most often because another libcublas than PyTorch's is loaded, or a shape is"
            " empty or wrong"
            if "INVALID_VALUE" in case.given["status"]
            else "a kernel failed: often an index out of range in an earlier kernel, whose assertion is printed before, or"
            " an older cuBLAS on a new GPU"
        ),
        next=(
            Advice(
                "run once with LD_LIBRARY_PATH unset, so that PyTorch's own cuBLAS is taken (pip list | grep cublas)",
                when=lambda case: "INVALID_VALUE" in case.given["status"],
            ),
            Advice(
                "use float16 or float32 on a GPU before Ampere; for FP8, sizes must be multiples of 16",
                when=lambda case: "NOT_SUPPORTED" in case.given["status"],
            ),
            "run once on the CPU, or with CUDA_LAUNCH_BLOCKING=1: a wrong index or shape then shows at its own line",
            "if the same batch succeeds elsewhere, update PyTorch and its nvidia-cublas package",
        ),
        check="look for a line with `Assertion ... failed` before it: that is then the cause",
        examples=(
            Example(
                "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m,"
                " n, k, &falpha, a, CUDA_R_16F, lda, b, CUDA_R_16F, ldb, &fbeta, c, CUDA_R_16F, ldc, CUDA_R_32F,"
                " CUBLAS_GEMM_DFALT_TENSOR_OP)`",
                source="clovaai/bros#14",
                says=("cublasGemmEx", "CUDA_LAUNCH_BLOCKING"),
            ),
        ),
        knowledge="cuBLAS' documentation of cublasStatus_t",
    ),
    Failure(
        id="autograd.cudnn_start",
        kind=LogClass.CRASHED,
        what="cuDNN could not be initialised.",
        signs=(sign("CUDNN_STATUS_NOT_INITIALIZED"),),
        headline="cuDNN could not start: most often a full GPU, or a build that does not fit it",
        why="the first convolution sets up cuDNN; a build for an older CUDA than the GPU needs, another libcudnn that"
        " is found first, and a full GPU end here",
        next=(
            "check that this PyTorch is made for the GPU: torch.cuda.get_arch_list() must have its architecture"
            " (torch.cuda.get_device_capability()); else install a PyTorch built for a newer CUDA",
            "run once with LD_LIBRARY_PATH unset, so that PyTorch's own cuDNN is taken",
            "look at `nvidia-smi` for other processes that fill the GPU; a much smaller batch tells whether it is memory",
        ),
        check="torch.backends.cudnn.enabled = False for one run: if it works, the GPU and memory are well and cuDNN is"
        " the cause",
        rules_out="the line of the traceback: it is only the first that needs cuDNN",
        examples=(
            Example(
                "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
                source="xiaoyufenfei/Efficient-Segmentation-Networks#27",
                says=("get_arch_list", "LD_LIBRARY_PATH"),
            ),
        ),
        knowledge="cuDNN's documentation of cudnnStatus_t",
    ),
    Failure(
        id="autograd.cudnn_no_algorithm",
        kind=LogClass.CRASHED,
        what="cuDNN found no way to run a convolution.",
        signs=(
            sign("Unable to find a valid cuDNN algorithm"),
            sign(
                "was unable to find an engine", r"(?:FIND|GET) was unable to find an engine to execute this computation"
            ),
            sign("CUDNN_STATUS_NOT_SUPPORTED"),
        ),
        headline="cuDNN found no algorithm for this convolution",
        why="most often there is too little free memory for its workspace, another cuDNN than PyTorch's is loaded, or"
        " a dtype that the GPU cannot do",
        next=(
            "look at the GPU's free memory (nvidia-smi): if it is almost full, a smaller batch or image helps",
            "run once with LD_LIBRARY_PATH unset, or install PyTorch anew with its own cuDNN (pip install --force-reinstall)",
            "use float16 or float32 in place of bfloat16 on GPUs before Ampere; torch.backends.cudnn.benchmark = False",
        ),
        check="torch.backends.cudnn.enabled = False: an out-of-memory error then shows itself",
        examples=(
            Example(
                "Process Process-1:\n"
                "Traceback (most recent call last):\n"
                '  File "multiprocessing\\process.py", line 315, in _bootstrap\n'
                '  File "multiprocessing\\process.py", line 108, in run\n'
                '  File "D:\\RVC\\RVC0813Nvidia\\train_nsf_sim_cache_sid_load_pretrain.py", line 228, in run\n'
                "    train_and_evaluate(\n"
                '  File "D:\\RVC\\RVC0813Nvidia\\train_nsf_sim_cache_sid_load_pretrain.py", line 397, in train_and_evaluate\n'
                "    ) = net_g(phone, phone_lengths, pitch, pitchf, spec, spec_lengths, sid)\n"
                '  File "D:\\RVC\\RVC0813Nvidia\\lib\\infer_pack\\models.py", line 747, in forward\n'
                "    m_p, logs_p, x_mask = self.enc_p(phone, pitch, phone_lengths)\n"
                "RuntimeError: GET was unable to find an engine to execute this computation",
                source="RVC-Project/Retrieval-based-Voice-Conversion-WebUI#1840",
                says=("cuDNN",),
            ),
            Example(
                "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
                says=("free memory",),
            ),
        ),
        knowledge="ATen's Conv_v8.cpp",
    ),
    Failure(
        id="autograd.cudnn_status",
        kind=LogClass.CRASHED,
        what="A function of cuDNN failed, and its status says which way.",
        signs=(
            sign(
                "CUDNN_STATUS",
                r"(?P<status>CUDNN_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR|BAD_PARAM|INTERNAL_ERROR|ALLOC_FAILED)\w*)",
            ),
        ),
        headline="cuDNN failed: {status}",
        why=lambda case: (
            "a parameter or tensor that it was given does not fit: an empty or huge tensor, sizes beyond 2**31, a layout"
            if "BAD_PARAM" in case.given["status"]
            else "it could not get memory, map a texture or run its kernel: most often the GPU's memory is nearly full, a kernel before it"
            " had failed, or two versions of cuDNN are loaded"
        ),
        next=(
            Advice(
                "print shape, dtype and stride of the input of that layer; a smaller batch or .contiguous() as a test",
                when=lambda case: "BAD_PARAM" in case.given["status"],
            ),
            Advice(
                "look at the GPU's free memory (`nvidia-smi`), and try a smaller batch and torch.backends.cudnn.benchmark = False",
                when=lambda case: "BAD_PARAM" not in case.given["status"],
            ),
            "run once with CUDA_LAUNCH_BLOCKING=1: an illegal access or an index out of range before it ends so, too",
            "torch.backends.cudnn.enabled = False as a test: if it then runs, reinstall PyTorch in a clean environment, and unset"
            " LD_LIBRARY_PATH",
        ),
        check="python -c 'import torch; print(torch.backends.cudnn.version())'",
        examples=(
            Example(
                "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", says=("memory", "CUDA_LAUNCH_BLOCKING=1")
            ),
            Example("RuntimeError: cuDNN error: CUDNN_STATUS_BAD_PARAM", says=("shape",)),
            Example("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", says=("nvidia-smi",)),
        ),
        knowledge="cuDNN: cudnnStatus_t",
    ),
    Failure(
        id="autograd.cuda_in_fork",
        kind=LogClass.CRASHED,
        what="A forked process uses CUDA, which its parent had initialised.",
        signs=(sign("Cannot re-initialize CUDA in forked subprocess"),),
        headline="A forked worker uses CUDA, which the parent process had already initialised",
        why="CUDA cannot be used in a process that was forked after the parent touched the GPU, such as a DataLoader"
        " worker",
        next=(
            "keep CUDA out of the Dataset, its transforms and the collate function: return CPU tensors, and move the"
            " batch to the GPU in the loop",
            "or start the workers anew: DataLoader(multiprocessing_context='spawn'); own processes:"
            " torch.multiprocessing.set_start_method('spawn') under `if __name__ == '__main__':`, before CUDA is used"
            " (vLLM: VLLM_WORKER_MULTIPROCESSING_METHOD=spawn; datasets.map: with_rank and spawn)",
            "or num_workers=0",
        ),
        check="the traceback of the worker shows the .cuda() or .to(device) call",
        examples=(
            Example(
                "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must"
                " use the 'spawn' start method",
                source="shubham-goel/4D-Humans#59",
                says=("collate", "spawn"),
            ),
        ),
        knowledge="PyTorch's notes on multiprocessing; traveller59/spconv#408",
    ),
    Failure(
        id="autograd.cpu_tensor_in_nccl",
        kind=LogClass.CRASHED,
        what="A collective got a tensor on a device for which its process group has no backend.",
        signs=(
            sign("No backend type associated with device type", r"associated with device type (?P<device>\w+)"),
            sign("Tensors must be CUDA and dense"),
        ),
        headline=lambda case: (
            f"A collective got a tensor on {device}, for which this process group has no backend"
            if (device := case.given.get("device"))
            else "A collective of NCCL got a tensor that is on the CPU or sparse"
        ),
        why=lambda case: (
            "a group of gloo alone takes tensors of the CPU, and those of a GPU only for some operations"
            if case.given.get("device", "cpu") != "cpu"
            else "NCCL takes tensors of the GPU only; most often a tensor, an optimizer state or a parameter that stayed on (or was"
            " offloaded to) the CPU was passed to it"
        ),
        next=(
            Advice(
                "give the group a backend for this device: init_process_group('cpu:gloo,cuda:nccl'), or 'nccl' for GPUs alone; or move the tensor to the CPU",
                when=lambda case: case.given.get("device", "cpu") != "cpu",
            ),
            Advice(
                "move the tensor to torch.cuda.current_device() before the collective",
                when=lambda case: case.given.get("device", "cpu") == "cpu",
            ),
            Advice(
                "if CPU tensors are meant (offload, loading a checkpoint): init_process_group('cpu:gloo,cuda:nccl')",
                when=lambda case: case.given.get("device", "cpu") == "cpu",
            ),
            Advice(
                "FSDP with a model built on the CPU: pass device_id=torch.cuda.current_device() and sync_module_states=True",
                when=lambda case: case.given.get("device", "cpu") == "cpu",
            ),
        ),
        check="print(tensor.device) in the innermost line of your code",
        examples=(
            Example(
                '  File "/usr/local/lib/python3.10/dist-packages/sat/training/deepspeed_training.py", line 180, in setup_model_untrainable_params_and_optimizer\n'
                "    dist.broadcast(\n"
                '  File "/usr/local/lib/python3.10/dist-packages/torch/distributed/c10d_logger.py", line 47, in wrapper\n'
                "    return func(*args, **kwargs)\n"
                '  File "/usr/local/lib/python3.10/dist-packages/torch/distributed/distributed_c10d.py", line 1906, in broadcast\n'
                "    work = default_pg.broadcast([tensor], opts)\n"
                "RuntimeError: No backend type associated with device type cpu",
                source="zai-org/CogVLM#328",
            ),
            Example(
                "RuntimeError: No backend type associated with device type cuda",
                says=(
                    "on cuda, for which",
                    "'nccl' for GPUs alone",
                ),
            ),
        ),
        knowledge="torch.distributed.init_process_group",
    ),
    Failure(
        id="autograd.ddp_nothing_to_train",
        kind=LogClass.CRASHED,
        what="DistributedDataParallel got a module without trainable parameters.",
        signs=(
            sign(
                "DistributedDataParallel is not needed",
                r"DistributedDataParallel is not needed when a module doesn't have any parameter",
            ),
        ),
        headline="DDP got a module of which no parameter is trainable",
        why="DDP only averages gradients, and here there will be none: a frozen teacher, or everything was frozen",
        next=(
            "do not wrap frozen helpers (teacher, reference, VAE): move them to the device only, without"
            " accelerator.prepare or DDP",
            "if this is the model to train: LoRA or unfreezing was not applied before wrapping",
        ),
        check="print(sum(p.requires_grad for p in module.parameters()))",
        examples=(
            Example(
                "  unet = DDP(unet, device_ids=[local_rank], output_device=local_rank)\n"
                '  File "/home/user/miniconda3/envs/animate/lib/python3.8/site-packages/torch/nn/parallel/distributed.py", line 551, in __init__\n'
                "    self._log_and_throw(\n"
                '  File "/home/user/miniconda3/envs/animate/lib/python3.8/site-packages/torch/nn/parallel/distributed.py", line 686, in _log_and_throw\n'
                "    raise err_type(err_msg)\n"
                "RuntimeError: DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.",
                source="guoqincode/Open-AnimateAnyone#32",
                says=("trainable",),
            ),
        ),
        knowledge="torch/nn/parallel/distributed.py",
    ),
    Failure(
        id="autograd.ddp_unmoved_module",
        kind=LogClass.CRASHED,
        what="DistributedDataParallel got a module that is not on the device that device_ids names.",
        signs=(
            sign("arguments only work with single-device", r"module parameters (?P<devices>\{[^}\n]{3,200}\})"),
            sign(
                "SyncBatchNorm", r"SyncBatchNorm (?:layers only work with GPU modules|expected input tensor to be on)"
            ),
        ),
        headline=lambda case: (
            "DDP got a module that is split over several GPUs"
            if case.given.get("devices", "").count("cuda") > 1
            else "The module is not on the GPU of its rank"
        ),
        why=lambda case: (
            "DDP and SyncBatchNorm work where the parameters are, and these are"
            + (f" on {re.sub('[{}]', '', case.given['devices'])}" if case.given.get("devices") else " on the CPU")
        ),
        next=(
            Advice(
                "load it on one GPU for each rank: device_map={{'': local_rank}}, or no device_map; or start one process only",
                when=lambda case: case.given.get("devices", "").count("cuda") > 1,
            ),
            Advice(
                "model.to(local_rank) before DistributedDataParallel(model, device_ids=[local_rank]); all parts on one device",
                when=lambda case: case.given.get("devices", "").count("cuda") <= 1,
            ),
            "a model that really is split over GPUs: leave device_ids out",
        ),
        check="print({p.device for p in model.parameters()})",
        examples=(
            Example(
                "LOCAL_RANK    0 cuda:0\n"
                "Traceback (most recent call last):\n"
                '  File "train_ddp.py", line 70, in <module>\n'
                "    main(opt)    \n"
                '  File "train_ddp.py", line 57, in main\n'
                "    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[LOCAL_RANK],output_device=LOCAL_RANK)\n"
                '  File "/opt/conda/lib/python3.8/site-packages/torch/nn/parallel/distributed.py", line 508, in __init__\n'
                "    self._log_and_throw(\n"
                '  File "/opt/conda/lib/python3.8/site-packages/torch/nn/parallel/distributed.py", line 604, in _log_and_throw\n'
                "    raise err_type(err_msg)\n"
                "ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], output_device 0, and module parameters {device(type='cpu')}.",
                source="pytorch/pytorch#100243",
                says=(".to(",),
            ),
            Example(
                "ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules or CPU modules, but got device_ids [1], output_device 1, and module parameters {device(type='cuda', index=0), device(type='cuda', index=1)}.",
                source="chenyiwan/chatglm-6b-fine-tuning#11",
                says=("device_map",),
            ),
        ),
        knowledge="torch/nn/parallel/distributed.py",
    ),
    Failure(
        id="autograd.target_size",
        kind=LogClass.CRASHED,
        what="A loss that compares element by element got a target of another shape than the prediction.",
        signs=(
            sign(
                "must be the same as input size",
                r"Target size \(torch\.Size\((?P<target>\[[\d, ]*\])\)\) must be the same as input size"
                r" \(torch\.Size\((?P<input>\[[\d, ]*\])\)\)",
            ),
            sign(
                "Using a target size",
                r"Error: Using a target size \(torch\.Size\((?P<target>\[[\d, ]*\])\)\) that is different to the input size"
                r" \(torch\.Size\((?P<input>\[[\d, ]*\])\)\)",
            ),
        ),
        headline="The loss got targets {target} for predictions {input}",
        why="binary cross entropy needs one target for each output, in the same shape",
        next=(
            lambda case: (
                "one output for each sample: labels.unsqueeze(1).float(), or logits.squeeze(1)"
                if case.given["input"].endswith(" 1]") or case.given["target"].endswith(" 1]")
                else "make one of them for each element of the other (reduce the output to one number for each sample, or repeat"
                " the label), or check that the input images have the size that the network was built for"
            ),
            "class indices for several classes: use cross_entropy, or one_hot(labels, classes).float()",
        ),
        check="print(logits.shape, labels.shape)",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "main.py", line 71, in <module>\n'
                "    trainer.train_one_epoch(epoch)\n"
                '  File "/home/user/W-Net-PyTorch/src/loss_func.py", line 116, in forward\n'
                "    out[0], real_label.float()\n"
                '  File "/home/user/pytorch/lib/python3.6/site-packages/torch/nn/functional.py", line 2752, in binary_cross_entropy\n'
                '    "Please ensure they have the same size.".format(target.size(), input.size())\n'
                "ValueError: Using a target size (torch.Size([64])) that is different to the input size (torch.Size([64, 1])) is deprecated. Please ensure they have the same size.",
                source="Arctanxy/W-Net-PyTorch#15",
                says=("unsqueeze",),
            ),
            Example(
                "  0%|                                                                                                                                                                                         | 0/500000 [00:00<?, ?it/s]\n"
                "Traceback (most recent call last):\n"
                '  File "D:\\DiscoGAN\\main.py", line 41, in <module>\n'
                "    main(config)\n"
                '  File "D:\\DiscoGAN\\trainer.py", line 200, in train\n'
                "    l_d_A_real, l_d_A_fake = bce(self.D_A(x_A).squeeze(1), real_tensor), bce(self.D_A(x_BA).squeeze(1), fake_tensor)\n"
                "ValueError: Using a target size (torch.Size([4])) that is different to the input size (torch.Size([4, 169])) is deprecated. Please ensure they have the same size.",
                source="carpedm20/DiscoGAN-pytorch#19",
            ),
            Example(
                "ValueError: Target size (torch.Size([4])) must be the same as input size (torch.Size([4, 1]))",
                says=("targets [4]", "unsqueeze(1)"),
            ),
        ),
        knowledge="torch.nn.BCEWithLogitsLoss",
    ),
    Failure(
        id="autograd.reshape",
        kind=LogClass.CRASHED,
        what="A tensor has another number of elements than the shape it is viewed as.",
        signs=(
            sign(
                "is invalid for input of size",
                r"shape '(?P<shape>\[[\d, -]+\])' is invalid for input of size (?P<size>\d+)",
            ),
        ),
        headline=lambda case: (
            f"A tensor of {int(case.given['size']):,} elements does not fit the shape {case.given['shape']}"
        ),
        why=_reshape_reason,
        next=(
            "if only some batches fail, the last batch is smaller (drop_last=True), or an image or sequence has another size",
            "else print x.shape before that line: fixed numbers in the shape (image size, patches, heads, classes) must be those of"
            " the input; take them from x.shape, and use -1 for the batch",
            "attention with fewer key and value heads (grouped-query): view them with num_key_value_heads, not num_heads",
        ),
        check="print(x.shape) before the line",
        examples=(
            Example(
                '[rank4]:   File "/mnt/data/user/Video-R1/src/r1-v/src/open_r1/trainer/grpo_trainer.py", line 587, in compute_loss\n'
                "[rank4]:     rewards_per_device = gathered_rewards.view(num_devices, self.num_generations)\n"
                "[rank4]: RuntimeError: shape '[2, 8]' is invalid for input of size 17",
                source="tulerfeng/Video-R1#31",
                says=("17",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "train_rotationnet.py", line 485, in <module>\n'
                "    main()\n"
                '  File "train_rotationnet.py", line 253, in main\n'
                "    prec1 = validate(val_loader, model, criterion)\n"
                '  File "train_rotationnet.py", line 377, in validate\n'
                "    output = output.view( -1, nview * nview, num_classes )\n"
                "RuntimeError: shape '[-1, 144, 40]' is invalid for input of size 16800",
                source="kanezaki/pytorch-rotationnet#9",
            ),
            Example(
                "RuntimeError: shape '[8, 512, 768]' is invalid for input of size 2752512",
                says=("2,752,512", "7 in place of 8"),
            ),
            Example("RuntimeError: shape '[-1, 400]' is invalid for input of size 179776", says=("[-1, 400]",)),
        ),
        knowledge="torch.Tensor.view",
    ),
    Failure(
        id="autograd.negative_length",
        kind=LogClass.CRASHED,
        what="A tensor is to be made with a length below zero, most often the result of a subtraction.",
        signs=(
            sign(
                "create tensor with negative dimension",
                r"create tensor with negative dimension (?P<length>-\d{1,20}): (?P<shape>\[[\d, -]{1,200}\])",
            ),
        ),
        headline=lambda case: (
            f"A tensor of shape {case.given['shape']} is asked for, with a length of {case.given['length']}"
        ),
        why=lambda case: (
            "the number is so far below zero that it has overflowed: a count beyond 2,147,483,647 was computed in 32 bits"
            if _has_overflowed(case)
            else "a length below zero is most often the result of a subtraction, such as a sequence length minus a window, a"
            " kernel or a prompt that is longer than the sequence"
        ),
        next=(
            Advice(
                "print both sides of the subtraction before that line: leave out or pad samples that are shorter than the"
                " window, or take a smaller window for them (min(window, length))",
                when=lambda case: not _has_overflowed(case),
            ),
            Advice(
                "a length from a configuration (layers, channels, context minus prompt) is wrong in each step, and one of the"
                " data only in some: set it right, or filter the data set by length",
                when=lambda case: not _has_overflowed(case),
            ),
            Advice(
                "make the batch, the scene or the sequence smaller, or compute the count in 64 bits",
                when=_has_overflowed,
            ),
        ),
        check="the line of the innermost frame of your code: where the negative length in its arguments is computed",
        examples=(
            Example(
                "RuntimeError: Trying to create tensor with negative dimension -4: [2, -4, 64]",
                says=("[2, -4, 64]", "a length of -4", "minus a window", "min(window, length)"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 61, in forward\n'
                "    past = x.new_zeros(x.shape[0], x.shape[1] - self.window, x.shape[2])\n"
                "RuntimeError: Trying to create tensor with negative dimension -4: [2, -4, 64]",
                says=("a length of -4", "train.py:61"),
            ),
            Example(
                "RuntimeError: Trying to create tensor with negative dimension -1794967296: [-1794967296]",
                says=("32 bits", "64 bits"),
            ),
        ),
        near_misses=("RuntimeError: invalid shape dimension -4 at index 1 of shape [2, -4, 64]",),
        knowledge="ATen/EmptyTensor.h (check_size_nonnegative)",
    ),
    Failure(
        id="autograd.not_contiguous_collective",
        kind=LogClass.CRASHED,
        what="A collective got a tensor that is not contiguous in memory.",
        signs=(sign("Tensors must be contiguous"),),
        headline="A collective got a tensor that is not contiguous{place}",
        why="NCCL sends one block of memory, and a transposed or sliced tensor is none",
        next=(
            "call it with tensor.contiguous(), and copy the result back if the collective works in place",
            "if it is a parameter (a transposed or tied weight): make it contiguous before DDP or FSDP wraps the model",
        ),
        check="print(tensor.is_contiguous(), tensor.stride())",
        examples=(
            Example(
                '  File "anaconda3/envs/llama_etuning/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 2448, in all_gather\n'
                "    work = default_pg.allgather([tensor_list], [tensor])\n"
                "RuntimeError: Tensors must be contiguous",
                source="hiyouga/LlamaFactory#850",
                says=("contiguous",),
            ),
            Example(
                "           work = group.allgather([tensor_list], [tensor])\n"
                "E       ValueError: Tensors must be contiguous",
                source="facebookresearch/fairscale#1173",
                says=("contiguous",),
            ),
        ),
        knowledge="torch.distributed's documentation",
    ),
    Failure(
        id="autograd.meta_tensor",
        kind=LogClass.CRASHED,
        what="Parameters without data (on the meta device) are to be moved to a device.",
        signs=(sign("Cannot copy out of meta tensor"),),
        headline="Some parameters have no data: they stayed on the meta device{place}",
        why="the model was built without memory (low_cpu_mem_usage, device_map, init_empty_weights), and these parameters were not"
        " in the checkpoint, are offloaded, or belong to a model that is moved by .to() afterwards",
        next=(
            "print what is left: [n for n, p in model.named_parameters() if p.is_meta]; if names differ from the checkpoint's, load"
            " with fitting names or initialise them",
            "do not call .to() or .cuda() on a model that was loaded with a device_map; or load with low_cpu_mem_usage=False and"
            " without device_map",
            "FSDP: pass param_init_fn, or sync_module_states=True with real weights on rank 0 only; an own model: model.to_empty("
            "device='cuda'), then initialise or load",
        ),
        check="any(p.is_meta for p in model.parameters())",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "G:\\lora-scripts\\scripts\\dev\\flux_train_network.py", line 519, in <module>\n'
                "    trainer.train(args)\n"
                '  File "G:\\lora-scripts\\scripts\\dev\\train_network.py", line 402, in train\n'
                "    self.cache_text_encoder_outputs_if_needed(args, accelerator, unet, vae, text_encoders, train_dataset_group, weight_dtype)\n"
                '  File "G:\\lora-scripts\\scripts\\dev\\flux_train_network.py", line 209, in cache_text_encoder_outputs_if_needed\n'
                '    unet.to("cpu")\n'
                '  File "G:\\lora-scripts\\venv\\lib\\site-packages\\torch\\nn\\modules\\module.py", line 1174, in to\n'
                "    return self._apply(convert)\n"
                '  File "G:\\lora-scripts\\venv\\lib\\site-packages\\torch\\nn\\modules\\module.py", line 1167, in convert\n'
                "    raise NotImplementedError(\n"
                "NotImplementedError: Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta to a different device.\n"
                "18:18:01-885824 ERROR    Training failed / 训练失败",
                source="Akegarasu/lora-scripts#607",
                says=("meta",),
            ),
        ),
        knowledge="PyTorch's page on the meta device; accelerate's big model inference",
    ),
    Failure(
        id="autograd.to_numpy",
        kind=LogClass.CRASHED,
        what="A tensor is converted to NumPy that NumPy cannot hold or see.",
        signs=(
            sign("on Tensor that requires grad", r"Can't call numpy\(\) on Tensor that requires grad"),
            sign("tensor to numpy", r"can't convert (?P<device>\S{3,20}) (?:device type )?tensor to numpy"),
            sign("unsupported ScalarType", r"Got unsupported ScalarType (?P<dtype>\w+)"),
        ),
        headline=lambda case: (
            f"NumPy has no {_dtype(case, 'dtype')}, and a tensor of it is converted"
            if case.given.get("dtype")
            else f"A tensor on {case.given['device']} is converted to NumPy"
            if case.given.get("device")
            else "A tensor with gradients is converted to NumPy"
        ),
        why="NumPy arrays live in host memory, without gradients, and without bfloat16",
        next=("write x.detach().float().cpu().numpy() in that line (metrics, plots, compute_metrics)",),
        check="the line of the innermost frame",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/fastllm/build/tools/baichuan2flm.py", line 18, in <module>\n'
                "    torch2flm.tofile(exportPath, model, tokenizer, dtype = dtype)\n"
                '  File "/home/user/fastllm/build/tools/fastllm_pytools/torch2flm.py", line 156, in tofile\n'
                "    cur = dict[key].numpy().astype(ori_np_data_type)\n"
                "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
                source="ztxz16/fastllm#231",
                says=(".cpu()",),
            ),
            Example(
                "TypeError: can't convert CUDA tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.",
                source="iMoonLab/PVRNet#3",
                says=(".cpu()",),
            ),
            Example("TypeError: Got unsupported ScalarType BFloat16", says=("bfloat16", ".float()")),
            Example(
                "TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"
                " first.",
                says=("on cuda:0", ".cpu()"),
            ),
        ),
        knowledge="torch.Tensor.numpy",
    ),
)
