"""Failures of autograd, optimizers, wrappers and processes that break a rule of PyTorch's own."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.failures.entry import Advice, Example, Failure, sign

_PIPE = re.compile(
    r"^(?:EOFError|BrokenPipeError|ConnectionRefusedError|ConnectionResetError|FileNotFoundError: \[Errno 2\][^\n]{0,40}/pymp-)"
)
_OF_PROCESSES = re.compile(
    r"multiprocessing[/\\](?:connection|resource_sharer|managers|reduction|queues|pool|popen_\w+|context)\.py"
)
_SPAWNED = re.compile(r"multiprocessing[/\\](?:spawn|forkserver)\.py:\d+:(?:_main|spawn_main|main)")


def _lost_other_end(case: Case) -> bool:
    """Return whether a pipe or queue between processes broke in the code of multiprocessing."""
    return bool(_PIPE.match(case.lead.message)) and case.called(_OF_PROCESSES.pattern)


_HTTP = {
    "401": "a login is needed",
    "403": "forbidden",
    "404": "no such file",
    "410": "no longer there",
    "416": "the part asked for is not in the file",
    "429": "too many requests",
    "500": "an error of the server",
    "502": "the server is not reachable behind its proxy",
    "503": "the server is overloaded or in maintenance",
    "504": "the server is too slow",
}
"""{status code of HTTP: what it says}."""


def _starts_process(case: Case) -> bool:
    """Return whether it broke while a process was being started by spawn."""
    return case.called(r"popen_spawn\w*\.py")


def _caught_by_spawn(case: Case) -> bool:
    """Return whether a process that spawn started could not read what its parent sent."""
    return case.called(_SPAWNED.pattern)


ENTRIES: tuple[Failure, ...] = (
    # Autograd.
    Failure(
        id="autograd.view_in_place",
        kind=LogClass.CRASHED,
        what="A view that autograd cannot follow is changed in place.",
        signs=(
            sign(
                "is a view and is being modified inplace",
                r"Output \d+ of (?P<function>\w+?)(?:Backward\d{0,2})? is a view and is being modified inplace",
            ),
        ),
        headline="The output of {function} is a view, and it is changed in place{place}",
        why="autograd cannot follow such a change: split, chunk and unbind return several views, and custom functions or no_grad"
        " make views without a history",
        next=(
            "write it out of place (x = x + y in place of x += y, relu without inplace=True), or change a x.clone()",
            "with full backward hooks, FSDP or checkpoint wrappers the output of a module is such a view: its user must not change"
            " it in place (nn.ReLU(inplace=False))",
        ),
        check="the innermost frame of your code is the line",
        examples=(
            Example(
                "RuntimeError: Output 0 of SplitBackward0 is a view and is being modified inplace. This view is the output of a"
                " function that returns multiple views. Such functions do not allow the output views to be modified inplace.",
                says=("Split", "clone"),
            ),
            Example(
                "RuntimeError: Output 0 of BackwardHookFunctionBackward is a view and is being modified inplace.",
                says=("inplace=False",),
            ),
        ),
        knowledge="PyTorch's notes on autograd: in-place operations",
    ),
    Failure(
        id="autograd.inference_tensor",
        kind=LogClass.CRASHED,
        what="A tensor that was made in inference mode is used in training.",
        signs=(
            sign("nference tensors cannot be saved for backward"),
            sign("nplace update to inference tensor outside InferenceMode"),
            sign(
                "inference tensors in normal mode",
                r"(?:Setting requires_grad|make a view) [^\n]{0,60}inference tensors? in normal mode",
            ),
        ),
        headline="A tensor that was made under inference_mode is used where gradients are recorded{place}",
        why="such tensors carry no version counter, for good; a cache, a buffer or a weight that was filled during evaluation, or"
        " a model that was loaded under inference_mode, brings them into training",
        next=(
            "use torch.no_grad() in place of torch.inference_mode() where the result is used in training afterwards (Lightning:"
            " Trainer(inference_mode=False))",
            "or copy it outside: x = x.clone()",
        ),
        check="print(x.is_inference())",
        examples=(
            Example(
                "RuntimeError: Inference tensors cannot be saved for backward. To work around you can make a clone to get a normal"
                " tensor and use it in autograd.",
                says=("no_grad", "clone"),
            ),
            Example(
                "RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone"
            ),
        ),
        knowledge="torch.inference_mode",
    ),
    Failure(
        id="autograd.no_derivative",
        kind=LogClass.CRASHED,
        what="An operation has no derivative, most often no second one.",
        signs=(sign("is not implemented", r"derivative for '?(?:aten::)?(?P<operation>[\w.]+?)'? is not implemented"),),
        headline=lambda case: (
            f"{case.given['operation'].lstrip('_')} has no derivative: a gradient of a gradient is asked for"
            if "backward" in case.given["operation"]
            else f"PyTorch has no derivative for {case.given['operation']}"
        ),
        why=lambda case: (
            "fused kernels (attention, some losses and norms) implement the first derivative only; gradient penalties, forces and"
            " Hessians need the second"
            if "backward" in case.given["operation"]
            else "the operation is not differentiable, or nobody has written its derivative"
        ),
        next=(
            Advice(
                "use the plain implementation for that part: with torch.nn.attention.sdpa_kernel(SDPBackend.MATH):, or"
                " attn_implementation='eager'",
                when=lambda case: "attention" in case.given["operation"],
            ),
            Advice(
                "write that part with basic operations, which have second derivatives, or leave it out of the gradient penalty",
                when=lambda case: "backward" in case.given["operation"] and "attention" not in case.given["operation"],
            ),
            Advice(
                "compute it on a detached tensor (x.detach()) if no gradient should flow, or replace it by a differentiable one",
                when=lambda case: "backward" not in case.given["operation"],
            ),
            "create_graph=True where it is not needed asks for second derivatives, too: leave it out",
        ),
        check="the line of forward: torch.autograd.set_detect_anomaly(True)",
        examples=(
            Example(
                "RuntimeError: derivative for aten::_scaled_dot_product_efficient_attention_backward is not implemented",
                says=("SDPBackend.MATH",),
            ),
            Example(
                "RuntimeError: derivative for aten::searchsorted is not implemented", says=("searchsorted", "detach")
            ),
        ),
        near_misses=(
            "NotImplementedError: The operator 'aten::nonzero' is not currently implemented for the MPS device.",
        ),
        knowledge="PyTorch: derivatives.yaml",
    ),
    Failure(
        id="autograd.not_used_in_graph",
        kind=LogClass.CRASHED,
        what="A gradient was asked for with respect to a tensor that the result does not depend on.",
        signs=(sign("appears to not have been used in the graph"),),
        headline="torch.autograd.grad was asked for a tensor that the loss does not depend on{place}",
        why="the tensor was replaced on the way (.to(), reshape, detach make another one), a branch left it out, or a parameter"
        " is unused",
        next=(
            "pass the very tensor that forward used (after .to(device)), and check that it is used",
            "if some may be unused, allow_unused=True and take a missing gradient as 0 (materialize_grads=True in newer PyTorch)",
        ),
        check="print(loss.grad_fn), and ask for one tensor at a time",
        examples=(
            Example(
                "RuntimeError: One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True"
                " if this is the desired behavior.",
                says=("allow_unused=True",),
            ),
        ),
        knowledge="torch.autograd.grad",
    ),
    Failure(
        id="autograd.legacy_function",
        kind=LogClass.CRASHED,
        what="An own function of autograd is written in the style of PyTorch 0.x.",
        signs=(
            sign("Legacy autograd function with non-static forward method"),
            sign(
                "ou must implement",
                r"ou must implement (?P<lacks>[^\n]{0,30}(?:backward|vjp)[^\n]{0,30}) for (?:your )?custom autograd\.Function",
            ),
        ),
        headline=lambda case: (
            "An autograd.Function has no backward that PyTorch can find (a static method)"
            if case.given.get("lacks")
            else "An autograd.Function is written in the old style, which PyTorch has removed"
        ),
        why="forward and backward must be static methods that get a context",
        next=(
            "make them static: @staticmethod def forward(ctx, x), ctx.save_for_backward(x), and call the class by"
            " MyFunction.apply(x) in place of MyFunction()(x)",
            "or look for a newer version of that code (compiled operators such as DCN, roi_align: torchvision.ops has them)",
        ),
        check="the last frame of the traceback names the class",
        examples=(
            Example(
                "RuntimeError: Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd"
                " function with static forward method.",
                says=(".apply",),
            ),
            Example(
                "RuntimeError: You must implement the backward function for custom autograd.Function.",
                says=("static methods", "no backward"),
            ),
        ),
        knowledge="PyTorch: extending autograd",
    ),
    Failure(
        id="autograd.deepcopy",
        kind=LogClass.CRASHED,
        what="Something with gradients is copied or sent that only leaves can be.",
        signs=(
            sign("support the deepcopy protocol", r"(?P<copy>graph leaves\) support the deepcopy protocol)"),
            sign("efusing to serialize non-leaf tensor", r"efusing to serialize non-leaf tensor"),
        ),
        headline=lambda case: (
            "copy.deepcopy met a tensor that was computed with gradients"
            if case.given.get("copy")
            else "A tensor with a history of gradients is sent to another process"
        ),
        why=lambda case: (
            "most often a module keeps a computed tensor as an attribute: weight_norm or spectral_norm of the old"
            " kind, a cached output, a loss"
            if case.given.get("copy")
            else "the graph of a tensor cannot leave its process"
        ),
        next=(
            Advice(
                "find the attribute and keep x.detach() of it, or copy the model before its first forward pass (EMA, best model)",
                when=lambda case: bool(case.given.get("copy")),
            ),
            Advice(
                "for weight_norm use torch.nn.utils.parametrizations.weight_norm, or copy the weights alone:"
                " new.load_state_dict(model.state_dict())",
                when=lambda case: bool(case.given.get("copy")),
            ),
            Advice(
                "send x.detach() (also in a DataLoader's data set, and in what a queue or mp.spawn gets); precomputed features are"
                " made under torch.no_grad()",
                when=lambda case: not case.given.get("copy"),
            ),
        ),
        check="[n for n, v in vars(module).items() if torch.is_tensor(v) and not v.is_leaf] for each module",
        examples=(
            Example(
                "RuntimeError: Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the"
                " moment",
                says=("weight_norm", "detach"),
            ),
            Example(
                "RuntimeError: Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support"
                " crossing process boundaries.",
                says=("detach", "no_grad"),
            ),
        ),
        knowledge="torch.Tensor.__deepcopy__; torch.multiprocessing.reductions",
    ),
    Failure(
        id="autograd.integer_in_place",
        kind=LogClass.CRASHED,
        what="The result of an operation does not fit the dtype of the tensor that is to hold it.",
        signs=(
            sign(
                "be cast to the desired output type",
                r"result type (?P<result>\w+) can't be cast to the desired output type (?P<wanted>\w+)",
            ),
        ),
        headline="A {result} result is written into a tensor of type {wanted}{place}",
        why="an in-place operation (+=, *=, clamp_, out=) keeps the dtype of its left side",
        next=(
            "make the left side fit before: x = x.float(), or write x = x * y in place of x *= y",
            "in older code for YOLO and the like, indices need .long(): x.clamp_(0, int(n) - 1)",
        ),
        check="print(x.dtype) in the innermost line of your code",
        examples=(
            Example(
                "RuntimeError: result type Float can't be cast to the desired output type Long",
                says=("Float result", "x.float()"),
            ),
        ),
        knowledge="PyTorch: type promotion",
    ),
    Failure(
        id="autograd.input_too_small",
        kind=LogClass.CRASHED,
        what="An image or sequence became smaller than a kernel, or empty.",
        signs=(
            sign(
                "be greater than actual input size",
                r"padded input size(?: per channel)?: \((?P<size>[\d x]+)\)\. Kernel size: \((?P<kernel>[\d x]+)\)",
            ),
            sign("Output size is too small", r"Output size is too small"),
        ),
        headline=lambda case: (
            f"An input of {case.given['size']} is smaller than the kernel of {case.given['kernel']}"
            if case.given.get("size")
            else "An input is too small for the layers: its size shrinks to 0"
        ),
        why="each stride and pooling divides the size; small images, short clips or a wrong order of dimensions end below the"
        " kernel",
        next=(
            "use larger inputs (resize, pad), or fewer downsampling layers, for the smallest sample of the data",
            "check the order: convolutions want (batch, channels, height, width), not channels last",
        ),
        check="print(x.shape) before that layer",
        examples=(
            Example(
                "RuntimeError: Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel size can't be greater"
                " than actual input size",
                says=("2 x 2", "3 x 3"),
            ),
        ),
        knowledge="torch.nn.Conv2d",
    ),
    Failure(
        id="autograd.wrapped_attribute",
        kind=LogClass.CRASHED,
        what="A method or attribute of the model is called on its wrapper.",
        signs=(
            sign(
                "object has no attribute",
                r"'(?P<wrapper>DistributedDataParallel|DataParallel|FullyShardedDataParallel|DeepSpeedEngine|OptimizedModule|_FabricModule)' object has no attribute '(?P<name>\w+)'",
            ),
        ),
        headline="{name} is asked of the wrapper {wrapper}, which does not have it{place}",
        why="a wrapper has only what nn.Module has; the model, which most often has it, is its attribute module"
        " (_orig_mod for torch.compile)",
        next=(
            lambda case: (
                f"write model.{'_orig_mod' if case.given['wrapper'] == 'OptimizedModule' else 'module'}.{case.given['name']}, or"
                " accelerator.unwrap_model(model) / getattr(model, 'module', model), which also work without a wrapper"
            ),
            Advice(
                "under FSDP and ZeRO-3 weights are sharded outside of the wrapper's forward: generate or read them within"
                " FSDP.summon_full_params(model) or deepspeed.zero.GatheredParameters",
                when=lambda case: case.given["wrapper"] in ("FullyShardedDataParallel", "DeepSpeedEngine"),
            ),
            Advice(
                "for a method that runs the model in training, let forward() call it: gradients are only synchronised through the"
                " wrapper's forward",
                when=lambda case: case.given["wrapper"] == "DistributedDataParallel",
            ),
        ),
        check="print(type(model))",
        examples=(
            Example(
                "AttributeError: 'DistributedDataParallel' object has no attribute 'generate'",
                says=("model.module.generate", "unwrap_model"),
            ),
            Example(
                "AttributeError: 'OptimizedModule' object has no attribute 'save_pretrained_x'",
                says=("_orig_mod",),
            ),
        ),
        knowledge="torch.nn.parallel.DistributedDataParallel: module",
    ),
    Failure(
        id="collectives.fsdp_order",
        kind=LogClass.MISMATCH,
        what="FSDP found that ranks run the modules in another order.",
        signs=(sign("Forward order differs across ranks"),),
        headline="The ranks run the modules of the model in different order, which FSDP cannot do",
        why="each module's weights are gathered from all ranks when it runs, so all must run the same ones; a branch by data"
        " (images or none, experts, layer drop, unused heads) differs between them",
        next=(
            "let every rank run every wrapped module in each step, with dummy inputs whose result is multiplied by 0 where a rank has"
            " nothing for it",
            "or wrap the part that may be skipped together with what always runs, and switch off layer drop",
        ),
        check="print which branch each rank takes in that step",
        examples=(
            Example(
                "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 1 parameters while rank 1 is all-gathering"
                " 2 parameters",
                says=("dummy inputs",),
            ),
        ),
        knowledge="torch/distributed/fsdp: _exec_order_utils",
    ),
    Failure(
        id="autograd.fsdp_root",
        kind=LogClass.CRASHED,
        what="A part of an FSDP model ran before the whole.",
        signs=(sign("`_is_root` should not have been set yet"),),
        headline="A part of the FSDP model was called before the model itself, and took itself for the root",
        why="the first FSDP module whose forward runs becomes the root; generate(), an encoder that is called alone, or a state dict"
        " of a part do that",
        next=(
            "call the outer model's forward once before (a dummy batch), or generate within FSDP.summon_full_params(model)",
            "wrap what is used alone as a model of its own, or go through the outer model",
        ),
        check="the first frames of your code in the traceback",
        examples=(
            Example(
                "AssertionError: Non-root FSDP instance's `_is_root` should not have been set yet or should have been set to"
                " `False`",
                says=("summon_full_params",),
            ),
        ),
        knowledge="pytorch/pytorch#82461",
    ),
    Failure(
        id="autograd.pipeline_outputs",
        kind=LogClass.CRASHED,
        what="The outputs of a pipeline stage and the gradients that come back for them differ in number.",
        when=lambda case: (
            case.lead.message.startswith("AssertionError")
            and case.called(r"pipelining[/\\]_backward\.py:\d+:extract_tensors_with_grads")
        ),
        headline="A pipeline stage's outputs and the gradients that come back for them differ in number",
        why="the next stage sends one gradient for each tensor that it received; an output that is no tensor, a cache, a dict or a tensor"
        " without gradient breaks the count",
        next=(
            "let each stage return one tensor, or a flat tuple of tensors that the next stage takes and that need gradients:"
            " use_cache=False, return_dict=False, no masks or positions passed through",
            "compute masks and positions in each stage again",
        ),
        check="print the types of what each stage returns",
        examples=(
            Example(
                "[rank0]: Traceback (most recent call last):\n"
                '[rank0]:   File "/home/project/lib/python3.10/site-packages/torch/distributed/pipelining/_backward.py", line 52, in'
                " extract_tensors_with_grads\n"
                "[rank0]:     assert len(output_val) == len(grad_val)\n"
                "[rank0]: AssertionError",
                source="pytorch/pytorch#129732",
                says=("return_dict=False",),
            ),
        ),
        knowledge="torch/distributed/pipelining/_backward.py",
    ),
    Failure(
        id="autograd.empty_tensor",
        kind=LogClass.CRASHED,
        what="An operation got a tensor without elements.",
        signs=(
            sign("cannot reshape tensor of", r"cannot reshape tensor of 0 elements"),
            sign(
                "with no identity",
                r"cannot perform reduction function \w+ on a tensor with no elements|operation does not have an identity",
            ),
            sign(
                "have non-zero size", r"Expected reduction dim \S+ to have non-zero size|to have non-zero size, but got"
            ),
            sign("for input.numel()", r"Expected reduction dim to be specified for input\.numel\(\) == 0"),
            sign("empty Tensor", r"cannot (?:sample|draw|select)[^\n]{0,40}empty Tensor"),
        ),
        headline="An operation got a tensor without elements: something was empty{place}",
        why="an empty prompt or sequence, a batch whose samples were all filtered out, a mask or an index that selects nothing, an image"
        " without boxes",
        next=(
            "find what is empty: print the shapes of the inputs of that line, and the sample or prompt that they come from",
            "leave empty samples and prompts out before the call, or return a loss of 0 that keeps the graph (output.sum() * 0), on all"
            " ranks alike",
        ),
        check="print(x.shape) before the line",
        rules_out="it fails for the first batch always: then the wrong dimension is reduced or a filter leaves nothing",
        examples=(
            Example(
                "RuntimeError: cannot reshape tensor of 0 elements into shape [0, -1, 64] because the unspecified dimension size -1"
                " can be any value and is ambiguous",
                source="mmcdermott/MEDS_EIC_AR#176",
                says=("empty", "prompt"),
            ),
            Example(
                "RuntimeError: max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with"
                " the 'dim' argument.",
                says=("selects nothing",),
            ),
        ),
        knowledge="PyTorch: reductions of empty tensors",
    ),
    Failure(
        id="autograd.not_a_dtensor",
        kind=LogClass.CRASHED,
        what="Code for sharded tensors got a plain one, or the reverse.",
        signs=(
            sign(
                "object has no attribute",
                r"'(?P<kind>Tensor|Parameter|AsyncCollectiveTensor)' object has no attribute '(?P<name>to_local|full_tensor|_local_tensor|device_mesh|placements|_spec)'",
            ),
        ),
        headline="A plain tensor came where a sharded one (DTensor) is expected: {name}{place}",
        why="FSDP2 and tensor parallelism make parameters, gradients and optimizer states DTensors; a state that a fused optimizer made,"
        " a frozen or unwrapped part, or a loaded checkpoint is a plain tensor",
        next=(
            "if it is in saving or loading: use an optimizer and versions of the libraries that keep DTensors (update Transformer Engine,"
            " Megatron or the trainer), and get_state_dict / set_state_dict of torch.distributed.checkpoint.state_dict",
            "in own code: x.to_local() if isinstance(x, DTensor) else x; and check that fully_shard was applied to that module before the"
            " optimizer was made",
        ),
        check="print({n: type(p.data) for n, p in model.named_parameters()})",
        examples=(
            Example(
                '[rank0]:   File "/opt/megatron-lm/megatron/core/transformer/fsdp_dtensor_checkpoint.py", line 246, in'
                " split_swiglu_linear_fc1\n"
                "[rank0]:     local_tensor = data.to_local()\n"
                "[rank0]: AttributeError: 'Tensor' object has no attribute 'to_local'",
                source="NVIDIA/TransformerEngine#2795",
                says=("DTensor", "to_local"),
            ),
        ),
        knowledge="torch.distributed.tensor; NVIDIA/TransformerEngine#2795",
    ),
    Failure(
        id="autograd.gradient_shape",
        kind=LogClass.CRASHED,
        what="backward was given a gradient of another shape than the output.",
        signs=(
            sign(
                "Mismatch in shape: grad_output",
                r"Mismatch in shape: grad_output\[\d+\] has a shape of torch\.Size\((?P<gradient>\[[\d, ]*\])\) and output\[\d+\] has"
                r" a shape of torch\.Size\((?P<output>\[[\d, ]*\])\)",
            ),
        ),
        headline="backward got a gradient of {gradient} for an output of {output}{place}",
        why=lambda case: (
            "in a pipeline the gradient comes from the next stage, in buffers of the first micro-batch's shape; micro-batches of another"
            " size do not fit"
            if case.called(r"pipe|pipelin|schedules\.py")
            else "the gradient that is passed to backward(gradient) or torch.autograd.grad must have the shape of the output"
        ),
        next=(
            Advice(
                "make all micro-batches equal: drop_last=True, a batch that is a multiple of micro-batch size x number of micro-batches,"
                " and sequences that are padded to one length",
                when=lambda case: case.called(r"pipe|pipelin|schedules\.py"),
            ),
            Advice(
                "pass torch.ones_like(output), or reduce the output to one number before backward()",
                when=lambda case: not case.called(r"pipe|pipelin|schedules\.py"),
            ),
            "print both shapes in the step that fails: the last batch of an epoch is the usual one",
        ),
        check="does it fail at the end of the epoch?",
        examples=(
            Example(
                '  File "/apps/lib/python3.10/site-packages/deepspeed/runtime/pipe/engine.py", line 735, in _exec_backward_pass\n'
                "    torch.autograd.backward(tensors=(outputs, ), grad_tensors=(grad_tensors, ))\n"
                "RuntimeError: Mismatch in shape: grad_output[0] has a shape of torch.Size([8, 4096]) and output[0] has a shape of"
                " torch.Size([16, 4096]).",
                source="deepspeedai/DeepSpeedExamples#790",
                says=("[8, 4096]", "drop_last=True"),
            ),
        ),
        knowledge="torch/autograd/__init__.py: _make_grads",
    ),
    Failure(
        id="checkpoints.fsdp_state_type",
        kind=LogClass.CRASHED,
        what="FSDP was given no type of state dict.",
        when=lambda case: case.lead.message.startswith("KeyError: None") and case.called(r":set_state_dict_type"),
        headline="FSDP has no type of state dict where a checkpoint is loaded or saved",
        why="the plugin's setting is empty, or the checkpoint is loaded before FSDP has wrapped the model",
        next=(
            "set it: fsdp_state_dict_type: SHARDED_STATE_DICT (or FULL_STATE_DICT) in the configuration of accelerate",
            "update transformers and accelerate: older ones loaded the checkpoint before the model was prepared",
            "in own code load after accelerator.prepare(model)",
        ),
        check="print(accelerator.state.fsdp_plugin)",
        examples=(
            Example(
                '  File "/home/user/.conda/envs/cross/lib/python3.10/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py",'
                " line 608, in set_state_dict_type\n"
                "    state_dict_config_type = _state_dict_type_to_config[state_dict_type]\n"
                "KeyError: None",
                source="huggingface/transformers#26159",
                says=("fsdp_state_dict_type",),
            ),
        ),
        knowledge="huggingface/transformers#26159",
    ),
    # Collectives and process groups.
    Failure(
        id="autograd.collective_dtype",
        kind=LogClass.CRASHED,
        what="A collective got a dtype that its backend does not know.",
        signs=(
            sign("Invalid scalar type"),
            sign(
                "data type is not supported for NCCL",
                r"nput tensor data type is not supported for NCCL process group: (?P<dtype>\w+)",
            ),
            sign("Unconvertible NCCL type"),
        ),
        headline=lambda case: (
            "A collective got a dtype that its backend does not know"
            + (f": {d}" if (d := case.given.get("dtype")) else "")
        ),
        why="gloo knows no bool and, in older PyTorch, no bfloat16; NCCL knows no int16 and no complex types",
        next=(
            "send it as another type: x.to(torch.uint8) for bool, .float() for bfloat16, .long() for int16,"
            " torch.view_as_real(x) for complex",
            "a gloo group that gets GPU tensors or parameters: init_process_group('cpu:gloo,cuda:nccl')",
        ),
        check="print(x.dtype, x.device) before the call in the innermost frame of your code",
        examples=(
            Example("RuntimeError: Invalid scalar type", says=("bfloat16", "uint8")),
            Example(
                "RuntimeError: Input tensor data type is not supported for NCCL process group: Short",
                says=("Short", "int16"),
            ),
        ),
        knowledge="torch.distributed: backends",
    ),
    Failure(
        id="autograd.collective_lists",
        kind=LogClass.CRASHED,
        what="The tensors given to a collective do not fit the number of ranks or each other.",
        signs=(
            sign(
                "number of collective participants",
                r"must match number of collective participants but got (?P<got>\d+) inputs with world_size (?P<size>\d+)",
            ),
            sign(
                "all tensor operands",
                r"all tensor operands to (?P<got>scatter/gather) must have the same(?P<size> number of elements)?",
            ),
            sign(
                "tensors must be equal to world size", r"tensors? must be equal (?:to )?(?P<got>world size)(?P<size>)"
            ),
        ),
        headline=lambda case: (
            f"A gather or scatter got {case.given['got']} tensors for {case.given['size']} ranks"
            if case.given["got"].isdigit()
            else "A gather or scatter got tensors that do not fit the number of ranks or each other"
        ),
        why="the list must hold one tensor of equal shape for each rank of the group",
        next=(
            "make the list as [torch.empty_like(x) for _ in range(dist.get_world_size(group))], with the same group as in the call",
            "if lengths differ between ranks, pad to the longest (all_reduce the length with MAX first), or all_gather_object",
        ),
        check="print(len(tensors), tensors[0].shape) on each rank",
        examples=(
            Example(
                "ValueError: Tensor list input to scatter/gather must match number of collective participants but got 1 inputs with"
                " world_size 8",
                says=("1 tensors for 8 ranks", "empty_like"),
            ),
        ),
        knowledge="torch.distributed.all_gather",
    ),
    Failure(
        id="startup.group_twice",
        kind=LogClass.STARTUP,
        what="The process group is initialised a second time.",
        signs=(sign("trying to initialize the default process group twice"),),
        headline="init_process_group was called twice in one process",
        why="a framework (Trainer, accelerate, DeepSpeed, Lightning) or an earlier cell has already called it",
        next=(
            "call it only if not torch.distributed.is_initialized(), or leave it to the framework",
            "in notebooks and tests: torch.distributed.destroy_process_group() first, or restart the kernel",
        ),
        check="search the project for init_process_group and init_distributed",
        examples=(
            Example("RuntimeError: trying to initialize the default process group twice!", says=("is_initialized",)),
        ),
        knowledge="torch.distributed.init_process_group",
    ),
    Failure(
        id="startup.no_mpi_backend",
        kind=LogClass.STARTUP,
        what="This build of PyTorch has no MPI backend.",
        signs=(sign("have MPI built in"),),
        headline="This PyTorch has no MPI backend: the packages of pip and conda are built without it",
        why="MPI is only in builds from source on a machine with MPI",
        next=(
            "use backend='nccl' for GPUs or 'gloo' for CPUs; mpirun can still start the ranks if RANK, WORLD_SIZE, MASTER_ADDR and"
            " MASTER_PORT are set from OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
            "only if MPI itself is needed: build PyTorch from source with it",
        ),
        check='python -c "import torch.distributed as d; print(d.is_mpi_available())"',
        examples=(
            Example(
                "RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build PyTorch from source"
                " on a host that has MPI installed.",
                says=("gloo", "OMPI_COMM_WORLD_RANK"),
            ),
        ),
        knowledge="torch.distributed: backends",
    ),
    Failure(
        id="network.gloo_mesh",
        kind=LogClass.NETWORK,
        what="Ranks of gloo could not connect to each other.",
        signs=(
            sign("connectFullMesh failed"),
            sign(
                "transport/tcp/",
                r"gloo/transport/tcp/\w+\.cc:\d+\][^\n]{0,80}connect: (?:Network is unreachable|No route to host)",
            ),
        ),
        headline="Gloo: the ranks could not connect to each other",
        why="each rank connects to each other one directly, at the address of its host name; a name that resolves to"
        " 127.0.1.1, a wrong interface, a firewall, or a rank that ended before breaks it",
        next=(
            "name the interface on every node: GLOO_SOCKET_IFNAME=eth0 (`ip -br addr`)",
            "correct /etc/hosts: `getent hosts $(hostname)` must give an address that other nodes reach",
            "read the other ranks' logs: one that failed before leaves the others with this error",
        ),
        tier=Tier.NETWORK,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
                says=("GLOO_SOCKET_IFNAME",),
            ),
            Example(
                "/opt/pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: Network is"
                " unreachable.",
                says=("GLOO_SOCKET_IFNAME",),
            ),
        ),
        knowledge="gloo: rendezvous/context",
    ),
    Failure(
        id="startup.docker_desktop_name",
        kind=LogClass.STARTUP,
        what="Ranks look for the store at a name that Docker Desktop wrote into the hosts file.",
        signs=(sign("kubernetes.docker.internal"),),
        headline="The store of rank 0 is looked for at kubernetes.docker.internal, a name of Docker Desktop",
        why="Docker Desktop maps 127.0.0.1 to this name in the hosts file of Windows; PyTorch looks the name of the address up, and"
        " cannot connect to what it gives (10049)",
        next=(
            "remove that line of C:\\Windows\\System32\\drivers\\etc\\hosts, or set MASTER_ADDR to the machine's own address or name"
            " (not localhost)",
            "on one GPU start without a launcher (CUDA_VISIBLE_DEVICES=0, python train.py); several GPUs work better under WSL",
        ),
        check="ping -a 127.0.0.1",
        tier=Tier.UNREACHED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: The client socket has timed out after 60s while trying to connect to"
                " (kubernetes.docker.internal, 29500).",
                says=("hosts",),
            ),
        ),
        knowledge="hiyouga/LlamaFactory#7806, pytorch/pytorch#118378",
    ),
    Failure(
        id="network.ucc",
        kind=LogClass.NETWORK,
        what="The UCC backend of torch.distributed failed.",
        signs=(
            sign(
                "ProcessGroupUCC",
                r"ProcessGroupUCC[^\n]{0,80}?(?:\]|: )(?P<what>[a-z][^\n]{3,120}?)(?:, error code (?P<code>-?\d+)|$)",
            ),
        ),
        headline=lambda case: (
            f"The UCC backend failed: {case.given['what']}" + (f" ({code})" if (code := case.given.get("code")) else "")
        ),
        why="UCC chooses its transports by what it finds (UCX, CUDA, SHARP), and some combinations of GPU, driver and version are not"
        " supported",
        next=(
            "use backend='nccl' for GPU tensors and 'gloo' for CPU tensors, which PyTorch tests",
            "for the reason: UCC_LOG_LEVEL=debug UCX_LOG_LEVEL=info, and try fewer transports: UCX_TLS=tcp,cuda_copy UCC_TLS=ucp",
            "read the other ranks' logs: one that failed before leaves the others with this error",
        ),
        tier=Tier.NETWORK,
        examples=(
            Example(
                "RuntimeError: [/var/lib/jenkins/workspace/torch/csrc/distributed/c10d/ProcessGroupUCC.cpp:496] [Rank"
                " 0][ProcessGroupUCC-0][READY]failed to post triggered collective, error code -6: Unhandled error, system error code 0",
                source="pytorch/pytorch#137932",
                says=("-6", "nccl"),
            ),
        ),
        knowledge="torch/csrc/distributed/c10d/ProcessGroupUCC.cpp",
    ),
    Failure(
        id="host.ray_core_check",
        kind=LogClass.SIGNAL,
        what="Ray's own code stopped a process, because one of its checks failed.",
        signs=(
            sign(
                "Check failed:",
                r"\[20\d\d-\d\d-\d\d [\d:,]{8,15} C \d+ \d+\] (?P<file>\w+\.(?:cc|h)):\d+:\s{1,4}(?:An unexpected system state has"
                r" occurred[^\n]{0,200}?)?Check failed: (?P<check>[^\n]{1,120})",
            ),
        ),
        headline=lambda case: (
            f"Ray's core stopped a process: its check {case.given['check'].strip()[:40]} failed ({case.given['file']})"
        ),
        why="such a check guards Ray's internal state, and ends the process without an exception of Python; most often"
        " it is a fault of Ray, or its state was damaged by a full disk, mixed versions or a process that was"
        " ended in the middle of a task",
        next=(
            "look for an earlier error of the same process (an exception, a kill, a full disk or object store): that"
            " one may be the cause",
            "use one version of Ray on all nodes, end left-over processes (ray stop --force) and start the cluster again; then update Ray",
            "if it comes back, report it with this line and the stack below it",
        ),
        check="the worker's log in /tmp/ray/session_latest/logs",
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "(RayTrainWorker pid=43514) [2024-09-20 15:32:10,003 C 43514 274023] task_receiver.cc:213:  Check failed:"
                " objects_valid",
                source="ray-project/ray#47759",
                says=("objects_valid", "Ray"),
            ),
        ),
        knowledge="ray-project/ray#47759",
    ),
    # Processes.
    Failure(
        id="data.daemonic",
        kind=LogClass.CRASHED,
        what="A worker process tries to start processes of its own.",
        signs=(sign("daemonic processes are not allowed to have children"),),
        headline="A worker process tries to start workers of its own, which a daemon may not{place}",
        why="DataLoader workers, Pool workers and some launchers' ranks are daemons",
        next=(
            "inside a worker use num_workers=0, and no Pool: start the inner processes from the main one",
            "or make the outer processes ordinary ones: concurrent.futures.ProcessPoolExecutor, mp.spawn(..., daemon=False)",
        ),
        check="multiprocessing.current_process().daemon",
        examples=(
            Example(
                "AssertionError: daemonic processes are not allowed to have children",
                says=("num_workers=0", "daemon=False"),
            ),
        ),
        knowledge="Python: multiprocessing.Process.daemon",
    ),
    Failure(
        id="data.worker_options",
        kind=LogClass.CRASHED,
        what="An option of the DataLoader needs workers, and there are none.",
        signs=(
            sign(
                "option could only be specified in multiprocessing",
                r"(?P<option>\w+) option could only be specified in multiprocessing",
            ),
            sign("option needs num_workers", r"(?P<option>\w+) option needs num_workers > 0"),
        ),
        headline="{option} is set, and num_workers is 0: it only makes sense with workers",
        why="without workers the batches are loaded in the main process",
        next=("set num_workers to 1 or more, or leave {option} out",),
        check="the call of DataLoader in the innermost frame of your code",
        examples=(
            Example(
                "ValueError: prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable"
                " multiprocessing.",
                says=("prefetch_factor",),
            ),
            Example("ValueError: persistent_workers option needs num_workers > 0", says=("persistent_workers",)),
        ),
        knowledge="torch.utils.data.DataLoader",
    ),
    Failure(
        id="data.generator_device",
        kind=LogClass.CRASHED,
        what="A random generator is on another device than the tensor that it fills.",
        signs=(
            sign(
                "device type for generator",
                r"Expected a '(?P<wanted>\w+)' device type for generator but found '(?P<found>\w+)'",
            ),
        ),
        headline="A random generator on {found} is used for a tensor on {wanted}{place}",
        why="most often after torch.set_default_device('cuda') or set_default_tensor_type(torch.cuda.FloatTensor) the"
        " sampler of a DataLoader, random_split and randperm make tensors on the GPU with a generator of the CPU",
        next=(
            "pass a fitting one: DataLoader(..., generator=torch.Generator(device='{wanted}')), random_split(..., generator=...)",
            "or do not set a default device: move model and batches by .to(device)",
        ),
        check="print(torch.get_default_device())",
        examples=(
            Example(
                "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'",
                says=("torch.Generator(device='cuda')",),
            ),
        ),
        knowledge="torch.set_default_device",
    ),
    Failure(
        id="data.spawned_child",
        kind=LogClass.CRASHED,
        what="A process that spawn started could not read what its parent sends, because the parent had failed or ended.",
        signs=(sign("Ran out of input"), sign("pickle data was truncated")),
        when=_caught_by_spawn,
        headline="A spawned process found its parent's data cut off: the parent failed or ended while sending it",
        why="with spawn (the default of Windows and macOS) the parent pickles what the child gets; if pickling fails or the parent"
        " ends, the child only sees the end: no file is damaged",
        next=(
            "mend the parent's error, which stands in its own traceback: most often something that cannot be pickled (lambda, open"
            " file, database, local class), or a lack of memory",
            "as a test num_workers=0, which needs no pickle; and put the script's code below if __name__ == '__main__':",
        ),
        check="the traceback of the process whose frames are not in multiprocessing/spawn.py",
        tier=Tier.ABORTED,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "<string>", line 1, in <module>\n'
                '  File "C:\\anaconda3\\envs\\ai\\lib\\multiprocessing\\spawn.py", line 116, in spawn_main\n'
                "    exitcode = _main(fd, parent_sentinel)\n"
                '  File "C:\\anaconda3\\envs\\ai\\lib\\multiprocessing\\spawn.py", line 126, in _main\n'
                "    self = reduction.pickle.load(from_parent)\n"
                "_pickle.UnpicklingError: pickle data was truncated",
                source="pytorch/pytorch#69611",
                says=("parent", "num_workers=0"),
            ),
        ),
        knowledge="pytorch/pytorch#69611; Python: multiprocessing, spawn",
    ),
    Failure(
        id="data.other_end_gone",
        kind=LogClass.CRASHED,
        what="A pipe or queue between processes broke, because the process at its other end had ended.",
        when=_lost_other_end,
        headline=lambda case: (
            "A new process ended before it had read what it was sent"
            if _starts_process(case)
            else "The process at the other end of a pipe or queue had ended"
        ),
        why=lambda case: (
            "with spawn the child imports the script again; it ended there, most often for a missing main guard or an exception"
            if _starts_process(case)
            else "a worker, a manager or the main process was killed, failed or ended first; this exception only shows that it is gone"
        ),
        next=(
            Advice(
                "put the script's code below if __name__ == '__main__':, and read the child's own traceback; num_workers=0 as a test",
                when=_starts_process,
            ),
            Advice(
                "look for the first other error, before this one or in another process: that one is then the cause; a kill"
                " for host memory shows in `dmesg -T | grep -i killed`",
                when=lambda case: not _starts_process(case),
            ),
            Advice(
                "if all went well until the end, the program ended while workers or a queue were still in use: join them, or keep a"
                " reference to the tensors that were sent until they have been received",
                when=lambda case: not _starts_process(case),
            ),
        ),
        tier=Tier.VAGUE,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/usr/lib/python3.8/multiprocessing/queues.py", line 116, in get\n'
                "    return _ForkingPickler.loads(res)\n"
                '  File "/usr/lib/python3.8/site-packages/torch/multiprocessing/reductions.py", line 297, in rebuild_storage_fd\n'
                "    fd = df.detach()\n"
                '  File "/usr/lib/python3.8/multiprocessing/resource_sharer.py", line 57, in detach\n'
                "    with _resource_sharer.get_connection(self._id) as conn:\n"
                '  File "/usr/lib/python3.8/multiprocessing/connection.py", line 629, in SocketClient\n'
                "    s.connect(address)\n"
                "ConnectionRefusedError: [Errno 111] Connection refused",
                says=("other end", "dmesg"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "D:/pixel/main.py", line 119, in <module>\n'
                "    for batch_idx, (input,_) in enumerate(train_loader):\n"
                '  File "C:\\anaconda\\lib\\multiprocessing\\popen_spawn_win32.py", line 65, in __init__\n'
                "    reduction.dump(process_obj, to_child)\n"
                '  File "C:\\anaconda\\lib\\multiprocessing\\reduction.py", line 60, in dump\n'
                "    ForkingPickler(file, protocol).dump(obj)\n"
                "BrokenPipeError: [Errno 32] Broken pipe",
                source="pytorch/tutorials#326",
                says=("__main__",),
            ),
        ),
        knowledge="Python: multiprocessing; PyTorch's notes on Windows",
    ),
    # Optimizers.
    Failure(
        id="configuration.optimizer_parameters",
        kind=LogClass.CRASHED,
        what="The optimizer got parameters that it cannot take.",
        signs=(
            sign(
                "parameters appear in more than one parameter group",
                r"(?P<twice>parameters appear in more than one parameter group)",
            ),
            sign("optimize a non-leaf Tensor"),
        ),
        headline=lambda case: (
            "A parameter is in two groups of the optimizer"
            if case.given.get("twice")
            else "The optimizer got a computed tensor, not a parameter"
        ),
        why=lambda case: (
            "a shared weight (tied embeddings, one module at two places) is found twice, or two lists overlap"
            if case.given.get("twice")
            else "a parameter that was moved or changed after its creation (x.cuda(), x * 0.1) is the result of an operation"
        ),
        next=(
            Advice(
                "collect by identity: seen = set(), and take p only if id(p) not in seen; model.named_parameters() lists a shared"
                " one once",
                when=lambda case: bool(case.given.get("twice")),
            ),
            Advice(
                "create it where it belongs: nn.Parameter(torch.randn(n, device='cuda') * 0.1), or x = (…).detach().requires_grad_()",
                when=lambda case: not case.given.get("twice"),
            ),
        ),
        check="print(p.is_leaf) for each, and the names that occur twice",
        examples=(
            Example(
                "ValueError: some parameters appear in more than one parameter group",
                says=("shared", "named_parameters"),
            ),
            Example("ValueError: can't optimize a non-leaf Tensor", says=("nn.Parameter",)),
        ),
        knowledge="torch.optim.Optimizer.add_param_group",
    ),
    Failure(
        id="configuration.initial_lr",
        kind=LogClass.CRASHED,
        what="A scheduler is to continue at an epoch, and the optimizer does not know where it began.",
        signs=(sign("'initial_lr' is not specified in param_groups"),),
        headline="A scheduler with last_epoch continues an optimizer whose groups have no initial_lr",
        why="last_epoch other than -1 means a resume, and then each group must have initial_lr, which the first scheduler writes",
        next=(
            "make the scheduler with last_epoch=-1, and load both: optimizer.load_state_dict(...), scheduler.load_state_dict(...)",
            "or set it: for g in optimizer.param_groups: g.setdefault('initial_lr', g['lr'])",
        ),
        check="optimizer.param_groups[0].keys()",
        examples=(
            Example(
                "KeyError: \"param 'initial_lr' is not specified in param_groups[0] when resuming an optimizer\"",
                says=("last_epoch=-1",),
            ),
        ),
        knowledge="torch.optim.lr_scheduler.LRScheduler",
    ),
    Failure(
        id="data.hdf_read",
        kind=LogClass.CRASHED,
        what="HDF5 could not read a part of a file.",
        signs=(sign("t read data", r"Can't (?:synchronously )?read data \((?P<why>[^\n]{3,120}?)\)$"),),
        headline="HDF5 could not read a part of a file: {why}",
        why="most often the file is damaged, or it was opened before the workers were forked, which then read through"
        " one shared position",
        next=(
            "open it in each worker at first use (in __getitem__, not in __init__), so that no handle is shared",
            "if it fails with num_workers=0, too, the file is damaged: compare its size, copy it again (h5ls, h5check)",
        ),
        check="num_workers=0 as a test",
        examples=(Example("OSError: Can't read data (inflate() failed)", says=("inflate() failed", "in each worker")),),
        knowledge="h5py: FAQ on multiprocessing",
    ),
    # Builds and backends.
    Failure(
        id="software.extension_objects",
        kind=LogClass.CRASHED,
        what="A package with C++ or CUDA code could not be compiled while it was installed.",
        signs=(sign("Error compiling objects for extension"),),
        headline="A C++ or CUDA extension could not be compiled",
        why="setuptools only reports that a compiler failed; the usual reasons are a compiler that CUDA does not take, a toolkit of"
        " another version than PyTorch's, code for an older PyTorch, and too little memory for many jobs",
        next=(
            "read the first line with `error:` or `FAILED:` of the compiler's output; `Killed` there means host"
            " memory: MAX_JOBS=2",
            "compare nvcc --version with torch.version.cuda, and set TORCH_CUDA_ARCH_LIST to your GPU's capability",
            "look for a ready wheel, or a version of the package for your PyTorch",
        ),
        examples=(Example("RuntimeError: Error compiling objects for extension", says=("MAX_JOBS", "error:")),),
        knowledge="torch/utils/cpp_extension.py",
    ),
    Failure(
        id="software.wrong_backend",
        kind=LogClass.CRASHED,
        what="An operation is not available for the device or layout of its input.",
        signs=(
            sign(
                "with arguments from the",
                r"Could not run '(?P<operation>[\w:.]+)' with arguments from the '(?P<backend>\w+)' backend",
            ),
        ),
        headline=lambda case: (
            f"{case.given['operation']} is not available for {case.given['backend']} in this installation"
        ),
        why=lambda case: (
            "most often the installed torchvision is a build for the CPU, or for another PyTorch"
            if case.given["operation"].startswith("torchvision")
            else "the operation has no kernel for such tensors: for example a build without that device, a quantised model"
            " on the GPU, or a sparse or meta tensor where a dense one is expected"
        ),
        next=(
            Advice(
                "install torchvision from the same index as PyTorch: pip install --force-reinstall torch torchvision --index-url"
                " https://download.pytorch.org/whl/cu128 (the index of your CUDA)",
                when=lambda case: case.given["operation"].startswith("torchvision"),
            ),
            Advice(
                "see on which device and in which layout the input is (print(x.device, x.layout, x.is_quantized)); move it, or make it"
                " dense (x.to_dense()); quantised models of torch.ao run on the CPU",
                when=lambda case: not case.given["operation"].startswith("torchvision"),
            ),
        ),
        check='python -c "import torch, torchvision; print(torch.__version__, torchvision.__version__)"',
        examples=(
            Example(
                "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
                says=("torchvision::nms", "same index"),
            ),
            Example(
                "NotImplementedError: Could not run 'quantized::conv2d.new' with arguments from the 'CUDA' backend.",
                says=("on the CPU",),
            ),
        ),
        knowledge="PyTorch's dispatcher; torchvision's installation",
    ),
    Failure(
        id="autograd.attention_limits",
        kind=LogClass.CRASHED,
        what="A fused attention kernel got sizes that it does not support.",
        signs=(
            sign("only supports head dimension at most", r"only supports head dimension at most (?P<most>\d+)"),
            sign("is not correctly aligned", r"attn_bias_ptr is not correctly aligned(?P<most>)"),
        ),
        headline=lambda case: (
            f"The attention kernel supports heads of at most {case.given['most']}, and the model's are larger"
            if case.given["most"]
            else "The attention bias is not aligned as the fused kernel needs it"
        ),
        why=lambda case: (
            "fused kernels are written for some head sizes"
            if case.given["most"]
            else "its rows must begin at multiples of 8 elements"
        ),
        next=(
            Advice(
                "use another implementation for this model: attn_implementation='sdpa' or 'eager', or a newer flash-attn",
                when=lambda case: bool(case.given["most"]),
            ),
            Advice(
                "pad the last dimension of the bias or mask to a multiple of 8 and cut it afterwards: F.pad(bias, (0, -n % 8))[..., :n]",
                when=lambda case: not case.given["most"],
            ),
        ),
        check="print(q.shape, bias.shape)",
        examples=(
            Example(
                "RuntimeError: FlashAttention forward only supports head dimension at most 256", says=("256", "sdpa")
            ),
            Example("RuntimeError: p.attn_bias_ptr is not correctly aligned", says=("multiple of 8",)),
        ),
        knowledge="flash-attention's README; ATen's memory-efficient attention",
    ),
    Failure(
        id="startup.cuda_initialization",
        kind=LogClass.STARTUP,
        what="CUDA could not be initialised in a process, most often a forked one.",
        signs=(
            sign("CUDA error: initialization error"),
            sign("Cuda failure", r"Cuda failure (?:\d+ )?'initialization error'"),
        ),
        headline="CUDA could not be initialised in this process: most often it was forked from one that uses CUDA",
        why="a forked process inherits a CUDA context that does not work in it; a data loader, Ray, a subprocess of the launcher or a"
        " library that touched CUDA at its import brings that about",
        next=(
            "do not touch CUDA before processes are forked (torch.cuda.* at import, tensors on the GPU in the data set), or start them by"
            " spawn: torch.multiprocessing.set_start_method('spawn'), multiprocessing_context='spawn'",
            "if nothing was forked: `nvidia-smi`, `dmesg -T | grep -i xid`, and a reboot of the node after a driver update",
        ),
        check="print(torch.cuda.is_initialized()) just before the processes are started",
        event=EventKind.KNOWN,
        examples=(
            Example("RuntimeError: CUDA error: initialization error", says=("spawn", "forked")),
            Example(
                "node1:123:456 [0] init.cc:1262 NCCL WARN Cuda failure 'initialization error'",
                source="NVIDIA/nccl#1029",
            ),
        ),
        knowledge="PyTorch's notes on multiprocessing; NVIDIA/nccl#1029",
    ),
    Failure(
        id="startup.nccl_cuda_failure",
        kind=LogClass.CRASHED,
        what="A call of CUDA inside NCCL failed; NCCL's warning names its error.",
        signs=(
            sign(
                "Cuda failure",
                r"(?:NCCL WARN |^(?:\[\w+\]:\s?)?)Cuda failure (?:\d+ )?'(?P<error>(?!out of memory|initialization error)[^'\n]{3,80})'",
            ),
        ),
        headline="A CUDA call inside NCCL failed: {error}",
        why=lambda case: (
            "a handle is only valid on the device that it was made on: most often the process works on another GPU"
            " than NCCL's, as when no rank has chosen its own before the first collective"
            if "resource handle" in case.given["error"]
            else "NCCL only reports it; an error of an earlier kernel of this process appears in its next call of CUDA as well"
        ),
        next=(
            Advice(
                "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, barrier() included, or pass"
                " device_id= to init_process_group; a newer PyTorch or NCCL may do without",
                when=lambda case: "resource handle" in case.given["error"],
            ),
            Advice(
                "run once with CUDA_LAUNCH_BLOCKING=1: the traceback then ends at the kernel that failed",
                when=lambda case: "resource handle" not in case.given["error"],
            ),
            "NCCL_DEBUG=INFO prints the device and the call; compare the NCCL that is loaded (torch.cuda.nccl.version()) with other"
            " NCCLs in LD_LIBRARY_PATH",
        ),
        check="print(torch.cuda.current_device()) in each rank just before the collective",
        explains=("exceptions.*", "network.nccl_wrapper"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "host:2532579:2532579 [0] enqueue.cc:336 NCCL WARN Cuda failure 'invalid resource handle'",
                source="pytorch/pytorch#130414",
                says=("set_device", "invalid resource handle"),
            ),
            Example(
                "node:11:29 [1] transport/p2p.cc:275 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
                says=("CUDA_LAUNCH_BLOCKING",),
            ),
        ),
        near_misses=("node1:1:2 [0] NCCL WARN Cuda failure 'out of memory'",),
        knowledge="NCCL's debug output; pytorch/pytorch#130414",
    ),
    # Ranks and their models.
    Failure(
        id="collectives.different_parameters",
        kind=LogClass.MISMATCH,
        what="The models of two ranks have parameters of different shape.",
        signs=(
            sign(
                "appears not to match",
                r"\[(?P<rank>\d+)\]: params\[(?P<index>\d+)\] in this process with (?:sizes|strides) (?P<sizes>\[[\d, ]*\]) appears not to"
                r" match",
            ),
        ),
        headline="Rank {rank}'s model differs from rank 0's: parameter {index} has {sizes} there",
        why="each rank builds the model itself, and something made it different: a configuration or vocabulary of its own, a checkpoint"
        " that only some loaded, another version of the code or of a library",
        next=(
            "print [tuple(p.shape) for p in model.parameters()] on each rank, and compare; build the model from the same configuration on"
            " all ranks",
            "sizes that come from data (vocabulary, number of classes, speakers) must be computed once and shared with all ranks",
        ),
        check="compare the hash of str(model) on all ranks",
        examples=(
            Example(
                "RuntimeError: [1]: params[0] in this process with sizes [768] appears not to match sizes of the same param in process 0.",
                says=("Rank 1", "[768]"),
            ),
        ),
        knowledge="torch/csrc/distributed/c10d/reducer: verify_params_across_processes",
    ),
    Failure(
        id="autograd.lazy_module",
        kind=LogClass.CRASHED,
        what="A lazy module is used before it knows its shapes.",
        signs=(
            sign("Modules with uninitialized parameters"),
            sign("ninitialized parameter", r"(?:valid|shape of an) [Uu]ninitialized ?[Pp]arameter"),
        ),
        headline="A lazy module (LazyLinear, LazyConv) has no shapes yet where it is wrapped or counted",
        why="it learns them in its first forward pass",
        next=(
            "run one forward pass with a sample batch before DDP, the optimizer or the loading of weights",
            "or use the ordinary module with its sizes given",
        ),
        check="[n for n, p in model.named_parameters() if torch.nn.parameter.is_lazy(p)]",
        examples=(
            Example(
                "RuntimeError: Modules with uninitialized parameters can't be used with `DistributedDataParallel`. Run a dummy forward"
                " pass to correctly initialize the modules",
                says=("sample batch",),
            ),
        ),
        knowledge="torch.nn.modules.lazy",
    ),
    Failure(
        id="autograd.fsdp_replaced",
        kind=LogClass.CRASHED,
        what="A parameter of an FSDP module was replaced or resized after it was wrapped.",
        signs=(sign("Cannot writeback when the parameter shape changes"),),
        headline="A parameter was replaced or resized after FSDP had wrapped the model",
        why="FSDP keeps the weights in one flat parameter, and cannot take in one of another shape",
        next=(
            "change the model before it is wrapped: resize_token_embeddings, adding tokens, pruning, tying, loading of LoRA",
            "a forward that sets self.weight = ... must work on a temporary tensor",
        ),
        check="search the code between the wrapping and the first step",
        examples=(
            Example(
                "RuntimeError: Cannot writeback when the parameter shape changes", says=("resize_token_embeddings",)
            ),
        ),
        knowledge="torch/distributed/fsdp/_flat_param.py",
    ),
    Failure(
        id="configuration.fsdp_integers",
        kind=LogClass.CRASHED,
        what="FSDP is to shard weights of an integer dtype: quantised ones.",
        signs=(sign("Cannot flatten integer dtype tensors"),),
        headline="FSDP cannot shard parameters of an integer dtype, most often quantised weights",
        why="the library bitsandbytes stores 4-bit weights as uint8 by default, and FSDP flattens floating-point"
        " parameters only",
        next=(
            "store them in the dtype of the others: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16), with"
            " torch_dtype=torch.bfloat16 for the model (FSDP-QLoRA)",
            "8-bit weights do not go with FSDP: use DDP or 4-bit",
        ),
        check="print({p.dtype for p in model.parameters()}): one floating dtype",
        examples=(Example("ValueError: Cannot flatten integer dtype tensors", says=("bnb_4bit_quant_storage",)),),
        knowledge="bitsandbytes' documentation of FSDP-QLoRA",
    ),
    Failure(
        id="startup.ray_gpus",
        kind=LogClass.STARTUP,
        what="Ray's cluster has fewer GPUs than the job asks for.",
        signs=(
            sign(
                "is less than total desired GPUs",
                r"Total available GPUs (?P<has>[\d.]+) is less than total desired GPUs (?P<wanted>\d+)",
            ),
        ),
        headline="The job wants {wanted} GPUs, and Ray's cluster offers {has}",
        why="Ray counts what its nodes announced at `ray start`, less what other jobs and left-over actors hold",
        next=(
            "`ray status` shows what there is: start Ray on every node with its GPUs (--num-gpus 8; CUDA_VISIBLE_DEVICES counts at that"
            " moment), and wait until all nodes have joined",
            "set nnodes and n_gpus_per_node to what the cluster has; end left-over jobs (ray stop --force)",
        ),
        check="ray status",
        examples=(
            Example(
                "ValueError: Total available GPUs 0 is less than total desired GPUs 8", says=("8 GPUs", "ray status")
            ),
        ),
        knowledge="verl: ResourcePoolManager",
    ),
    Failure(
        id="network.ib_registration",
        kind=LogClass.NETWORK,
        what="An RDMA adapter could not register a buffer.",
        signs=(sign("ibv_reg_", r"Call to ibv_reg_\w+ failed with error (?P<reason>[A-Z][^\n,]{3,60})"),),
        headline="The RDMA adapter could not register a buffer: {reason}",
        why="for GPU memory it needs nvidia-peermem or DMA-BUF of a fitting kernel and driver; for host memory the right to lock it",
        next=(
            "for GPU memory load the module: modprobe nvidia-peermem on each node (or update driver and kernel for"
            " DMA-BUF); as a test NCCL_NET_GDR_LEVEL=LOC, which does without GPUDirect",
            "for host memory let the job lock it: ulimit -l unlimited (docker --ulimit memlock=-1, Kubernetes"
            " IPC_LOCK, Slurm's PropagateResourceLimits)",
        ),
        check="`lsmod | grep peermem`, `ulimit -l`",
        tier=Tier.NETWORK,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "NCCL WARN Call to ibv_reg_mr failed with error Bad address", says=("Bad address", "nvidia-peermem")
            ),
        ),
        knowledge="NVIDIA: GPUDirect RDMA; NCCL's troubleshooting",
    ),
    Failure(
        id="collectives.nccl_mismatch",
        kind=LogClass.MISMATCH,
        what="NCCL itself found that ranks call different collectives.",
        signs=(
            sign("ollective mismatch", r"caused by a collective mismatch around rank (?P<rank>\d+)"),
            sign("ismatched collective detected", r"ismatched collective detected[^\n]{0,100}?rank (?P<rank>\d+)"),
        ),
        headline="NCCL: the ranks called different collectives, at or around rank {rank}",
        why="all ranks of a group must call the same collectives in the same order with the same sizes",
        next=(
            "compare what rank {rank} and its neighbours called: TORCH_DISTRIBUTED_DEBUG=DETAIL for one run names the calls and where they"
            " differ",
            "look for branches by rank, unequal numbers of batches, and tensors whose size depends on the data",
        ),
        tier=Tier.OWN_FAILURE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "node1:1:2 [0] NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 2. You can"
                " use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs",
                says=("rank 2", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
            ),
            Example(
                "node1:1:2 [0] NCCL WARN Your program may be hanging, this may be caused by a collective mismatch around rank 3."
            ),
        ),
        knowledge="NCCL's checks of collectives",
    ),
    # Downloads and files.
    Failure(
        id="startup.github_limit",
        kind=LogClass.STARTUP,
        what="GitHub refuses a request, most often of torch.hub, because too many came from this address.",
        signs=(sign("rate limit exceeded", r"HTTP Error 403: rate limit exceeded"),),
        headline="GitHub refused a request: too many came from this address in the last hour",
        why="torch.hub asks GitHub which branches a repository has; without a token GitHub answers 60 such requests per hour and address,"
        " which all jobs behind one proxy share",
        next=(
            "torch.hub.load(..., skip_validation=True), or GITHUB_TOKEN in the environment",
            "many ranks or jobs: load it once, and let the others read the copy (torch.hub.load(path, ..., source='local'), TORCH_HOME on a"
            " shared disk)",
        ),
        check="curl -s https://api.github.com/rate_limit",
        examples=(
            Example(
                "HTTPError: HTTP Error 403: rate limit exceeded",
                source="pytorch/pytorch#61755",
                says=("skip_validation", "GITHUB_TOKEN"),
            ),
        ),
        knowledge="torch.hub.load; pytorch/pytorch#61755",
    ),
    Failure(
        id="startup.http_error",
        kind=LogClass.STARTUP,
        what="A server answered a download with an error.",
        signs=(
            sign(
                "HTTP Error",
                r"urllib\.error\.HTTPError: HTTP Error (?P<code>[45]\d\d)|^HTTPError: HTTP Error (?P<other>[45]\d\d)",
            ),
        ),
        headline=lambda case: (
            f"A download failed: the server answered {case.given['code'] or case.given['other']}"
            f" ({_HTTP.get(case.given['code'] or case.given['other'], 'an error')})"
        ),
        why="the frames of the traceback usually show which file was asked for",
        next=(
            Advice(
                "the address is no longer right: update the package that has it, or find the file's new place, and put it where the cache"
                " expects it (torch.hub.get_dir() for torch.hub and torchvision)",
                when=lambda case: (case.given["code"] or case.given["other"]) in {"404", "410"},
            ),
            Advice(
                "open the address in a browser: it may need a login, a token or an accepted licence, or have expired, or refuse Python as a"
                " client; then put the file where the cache expects it",
                when=lambda case: (case.given["code"] or case.given["other"]) in {"401", "403"},
            ),
            Advice(
                "wait and try again; with many ranks let one download the file, and the others wait at a barrier and read the copy",
                when=lambda case: (case.given["code"] or case.given["other"]) not in {"401", "403", "404", "410"},
            ),
        ),
        check="curl -IL the address",
        examples=(
            Example("urllib.error.HTTPError: HTTP Error 404: Not Found", says=("404", "no longer right")),
            Example("urllib.error.HTTPError: HTTP Error 403: Forbidden", says=("browser",)),
            Example("urllib.error.HTTPError: HTTP Error 503: Service Unavailable", says=("one download",)),
        ),
        knowledge="HTTP's status codes; torch.hub",
    ),
    Failure(
        id="data.file_in_use",
        kind=LogClass.CRASHED,
        what="Windows does not let a file be changed that a process has open.",
        signs=(sign("being used by another process", r"WinError 32\][^\n]{0,80}being used by another process"),),
        headline="Windows refused to change a file that a process has open",
        why="on Windows an open file cannot be deleted, renamed or replaced: another process, a loader's worker, a virus scanner, or this"
        " program itself has it open",
        next=(
            "close it first: leave the `with` block, NamedTemporaryFile(delete=False) and delete it after use, or end the other process"
            " (Resource Monitor or handle.exe shows which it is)",
            "for folders of checkpoints or caches: exclude them from the virus scanner and OneDrive, and try again; with several ranks let"
            " only rank 0 rename or delete",
        ),
        check="the end of the message names the file",
        examples=(
            Example(
                "PermissionError: [WinError 32] The process cannot access the file because it is being used by another process:"
                " 'C:\\\\tmp\\\\a.pt'",
                says=("virus scanner",),
            ),
        ),
        knowledge="Windows: ERROR_SHARING_VIOLATION; Python: tempfile",
    ),
    Failure(
        id="processes.ray_get_timeout",
        kind=LogClass.CRASHED,
        what="ray.get with a time limit got no answer.",
        signs=(sign("GetTimeoutError", r"GetTimeoutError: Get timed out"),),
        headline="Ray: an answer did not come within the time limit of ray.get",
        why="the task or actor is still busy or loading, waits for resources that the cluster does not have, or hangs",
        next=(
            "look at what it waits for: `ray status` (demands that cannot be met), `ray list tasks --filter state!=FINISHED`, and `ray stack`",
            "if it only loads a large model or compiles: raise the limit of the call",
        ),
        check="the frame above ray.get names what was asked for",
        examples=(
            Example(
                "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.",
                says=("ray status",),
            ),
        ),
        knowledge="Ray: ray.get",
    ),
    Failure(
        id="autograd.fsdp_storage",
        kind=LogClass.CRASHED,
        what="FSDP wants to free or use a parameter whose memory it has freed already.",
        signs=(sign("Expects storage to be allocated", r"Expects storage to be (?:allocated|freed)[^\n]{0,80}"),),
        headline="FSDP: the memory of a gathered parameter is not in the state that FSDP expects",
        why="forward and backward did not come in the order that FSDP saw: a failure in between, a parameter or module that two wrapped"
        " modules share, two forwards before one backward, or a module that is used outside of its wrapped parent",
        next=(
            "if another exception stands above it, that is the cause: FSDP's clean-up fails after it",
            "wrap modules that share weights in one FSDP unit, call the wrapped model itself, and keep validation or generation apart from"
            " an unfinished step",
            "or use FSDP2 (fully_shard), use_orig_params=True, or a newer PyTorch",
        ),
        check="the frames above it tell forward, backward and clean-up apart",
        examples=(
            Example(
                "AssertionError: Expects storage to be allocated",
                source="huggingface/accelerate#2301",
                says=("fully_shard",),
            ),
        ),
        knowledge="torch.distributed.fsdp: _flat_param.py",
    ),
    Failure(
        id="startup.certificates",
        kind=LogClass.STARTUP,
        what="A download failed because the certificate of the server was not accepted.",
        signs=(
            sign(
                "CERTIFICATE_VERIFY_FAILED",
                r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed(?:: (?P<reason>[^(\n]{3,80}))?",
            ),
        ),
        headline="A download failed: the server's certificate was not accepted",
        why="Python has no current list of authorities (macOS, old images), a proxy of the company signs with its own, or the clock is"
        " wrong",
        next=(
            "give Python the authorities: pip install -U certifi and SSL_CERT_FILE=$(python -m certifi) (macOS: Install"
            " Certificates.command; Debian: apt-get install ca-certificates)",
            "behind a proxy: REQUESTS_CA_BUNDLE and SSL_CERT_FILE with the proxy's certificate",
            "or download the file on another machine, and put it where the message or torch.hub.get_dir() says",
        ),
        check="curl -v the address, and `date`",
        examples=(
            Example(
                "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local"
                " issuer certificate (_ssl.c:1129)>",
                says=("certifi",),
            ),
        ),
        knowledge="Python: ssl",
    ),
    Failure(
        id="checkpoints.wrong_hash",
        kind=LogClass.CRASHED,
        what="A downloaded file of torch.hub is not the one that its name promises.",
        signs=(
            sign("invalid hash value", r"invalid hash value \(expected \"(?P<wanted>\w+)\", got \"(?P<got>\w+)\"\)"),
        ),
        headline="A downloaded weights file is incomplete or another one: its hash is wrong",
        why="most often the download broke off, or a proxy or login page was stored in its place; the empty file has"
        " the hash e3b0c442",
        next=(
            "delete it (torch.hub.get_dir()/checkpoints, by default ~/.cache/torch/hub/checkpoints), and load it again",
            "with several ranks let rank 0 download first, and the others wait",
            "without internet copy the file there from another machine",
        ),
        check="ls -l ~/.cache/torch/hub/checkpoints",
        examples=(
            Example(
                'RuntimeError: invalid hash value (expected "f37072fd", got "e3b0c442")', says=("~/.cache/torch/hub",)
            ),
        ),
        knowledge="torch.hub.download_url_to_file",
    ),
    Failure(
        id="checkpoints.mount_gone",
        kind=LogClass.DISK_FULL,
        what="A mounted file system has lost its server or its own process.",
        signs=(sign("Transport endpoint is not connected"),),
        headline="A mounted file system is gone: transport endpoint is not connected (errno 107)",
        why="the process that serves a FUSE mount (gcsfuse, s3fs, sshfs, Google Drive, Lustre clients) has ended or lost its connection",
        next=(
            "mount it again: fusermount -uz PATH, then the mount command; on Colab mount the Drive anew",
            "see why it ended (its log, host memory, quotas), and write checkpoints to a local disk first, then copy them",
        ),
        check="`mount | grep fuse`, `ls PATH`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "OSError: [Errno 107] Transport endpoint is not connected: '/content/drive/MyDrive'",
                says=("fusermount",),
            ),
        ),
        knowledge="fuse(8)",
        when=lambda case: not case.called(r"socket|asyncio|ssl\.py|http|urllib|connection\.py|selectors"),
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "/usr/lib/python3.11/socket.py", line 500, in shutdown\n'
            "    self._sock.shutdown(how)\nOSError: [Errno 107] Transport endpoint is not connected",
        ),
    ),
    Failure(
        id="checkpoints.made_by_other",
        kind=LogClass.CRASHED,
        what="A folder or file is there already where one is to be made, or is not empty where it is to be removed.",
        signs=(
            sign("FileExistsError", r"FileExistsError: \[Errno 17\] File exists: '(?P<path>[^'\n]{1,200})'"),
            sign("Directory not empty", r"OSError: \[Errno 39\] Directory not empty: '(?P<path>[^'\n]{1,200})'"),
        ),
        headline=lambda case: (
            f"…{case.given['path'][-44:]} is not empty where it is removed or replaced"
            if "not empty" in case.lead.message
            else f"…{case.given['path'][-44:]} is there already where it is to be made"
        ),
        why="most often several ranks run the same lines at the same time, or an earlier run left it",
        next=(
            "let one rank do it and the others wait (if rank == 0: ...; dist.barrier()), and write os.makedirs(path, exist_ok=True)",
            "if an earlier run left it: another output folder, or remove it before the start",
        ),
        check="does it come with one process, too? Then it is left over",
        examples=(
            Example("FileExistsError: [Errno 17] File exists: '/out/run'", says=("/out/run", "exist_ok=True")),
            Example("OSError: [Errno 39] Directory not empty: '/ckpt/tmp'", says=("/ckpt/tmp",)),
            Example(
                "OSError: [Errno 39] Directory not empty: '/scratch/run/tmp_cache'",
                says=("is not empty where it is removed",),
            ),
        ),
        knowledge="Python: os.makedirs",
    ),
    Failure(
        id="data.text_encoding",
        kind=LogClass.CRASHED,
        what="A text file is read with the encoding of the system, and was written in another one.",
        signs=(
            sign(
                "codec can't decode byte",
                r"'(?P<codec>charmap|gbk|cp\d+|ascii|cp932|shift_jis|mbcs)' codec can't decode byte",
            ),
            sign(
                "codec can't encode character",
                r"'(?P<codec>charmap|gbk|cp\d+|ascii|latin-1)' codec can't encode character",
            ),
        ),
        headline="A text file or output is not in the system's encoding ({codec}): most often it is UTF-8",
        why="open() without an encoding, and output that is redirected, take the one of the system's language",
        next=(
            Advice(
                "set PYTHONUTF8=1 before Python starts (PowerShell: $env:PYTHONUTF8 = 1), or leave such characters out of what is printed",
                when=lambda case: case.printed(r"\bprint\("),
            ),
            "write open(path, encoding='utf-8') in that line; for code of others set PYTHONUTF8=1 before Python starts (Linux containers:"
            " LANG=C.UTF-8)",
        ),
        check="the innermost frame of your code shows the open()",
        examples=(
            Example(
                "UnicodeDecodeError: 'charmap' codec can't decode byte 0x9d in position 1234: character maps to <undefined>",
                says=("utf-8", "PYTHONUTF8=1"),
            ),
            Example(
                "UnicodeDecodeError: 'gbk' codec can't decode byte 0xae in position 199: illegal multibyte sequence",
                says=("gbk",),
            ),
        ),
        knowledge="Python: UTF-8 mode",
    ),
    Failure(
        id="checkpoints.other_system_path",
        kind=LogClass.CRASHED,
        what="A checkpoint holds a path object of another operating system.",
        signs=(sign("on your system", r"cannot instantiate '(?P<kind>PosixPath|WindowsPath)' on your system"),),
        headline=lambda case: (
            f"The checkpoint holds a path object ({case.given['kind']}) of {'Linux or macOS' if case.given['kind'][0] == 'P' else 'Windows'}"
        ),
        why="pathlib's paths are pickled as the class of their system",
        next=(
            lambda case: (
                "before loading: import pathlib; "
                + (
                    "pathlib.PosixPath = pathlib.WindowsPath"
                    if case.given["kind"] == "PosixPath"
                    else "pathlib.WindowsPath = pathlib.PosixPath"
                )
            ),
            "or load it on the other system, and save it without paths (str(path)) or as state_dict only",
        ),
        examples=(
            Example(
                "NotImplementedError: cannot instantiate 'PosixPath' on your system",
                says=("pathlib.PosixPath = pathlib.WindowsPath",),
            ),
        ),
        knowledge="Python: pathlib",
    ),
    Failure(
        id="data.too_large_to_send",
        kind=LogClass.CRASHED,
        what="What is to be sent to another process is larger than the protocol allows.",
        signs=(
            sign("cannot serialize a", r"cannot serialize a (?:string|bytes object|bytes) larger than 4 ?GiB"),
            sign("struct.error", r"struct\.error: 'i' format requires -\d+ <= number <= \d+"),
        ),
        headline="Something larger than 2 or 4 GiB is to be sent to another process in one piece",
        why="the data set, a batch or a result is pickled as a whole; Python before 3.8 sends at most 2 GiB, old pickle protocols hold"
        " 4 GiB",
        next=(
            "do not send it: let each worker open the data itself (memory-mapped arrays, LMDB, Arrow), or start workers by fork, which"
            " shares it",
            "use Python 3.8 or newer, pickle protocol 4, and smaller chunks (chunksize in Pool.map)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example("OverflowError: cannot serialize a string larger than 4GiB", says=("memory-mapped",)),
            Example("struct.error: 'i' format requires -2147483648 <= number <= 2147483647", says=("3.8",)),
        ),
        knowledge="Python: pickle protocols; bpo-17560",
    ),
    # Plain mistakes with tensors.
    Failure(
        id="autograd.not_one_element",
        kind=LogClass.CRASHED,
        what="A tensor of several elements is used as one number or condition.",
        signs=(
            sign("of Tensor with more than one value is ambiguous"),
            sign(
                "cannot be converted to Scalar", r"[Tt]ensor with (?P<count>\d+) elements cannot be converted to Scalar"
            ),
            sign("only one element tensors can be converted to Python scalars"),
        ),
        headline=lambda case: (
            f"A tensor of {case.given['count']} elements is used as a single number"
            if case.given.get("count")
            else "A tensor of several elements is used as a single number or condition"
        ),
        why="item(), float(), if, and, or and comparisons of lists need exactly one element",
        next=(
            "reduce it first: .mean(), .any(), .all() (torch.equal for whole tensors, & and | for masks)",
            "`x in list` and `==` of tuples with tensors ask for a truth value, too: compare by identity or index",
            "a loss class called like a function (nn.CrossEntropyLoss(pred, target)) ends so: make it first, then call it",
        ),
        check="print(x.shape) in the innermost line of your code",
        examples=(
            Example("RuntimeError: Boolean value of Tensor with more than one value is ambiguous", says=(".any()",)),
            Example("RuntimeError: a Tensor with 10 elements cannot be converted to Scalar", says=("10 elements",)),
            Example("ValueError: only one element tensors can be converted to Python scalars"),
        ),
        knowledge="torch.Tensor.item",
    ),
    Failure(
        id="autograd.parallel_devices",
        kind=LogClass.CRASHED,
        what="DataParallel was given devices that are not there, or a module that is on another one.",
        signs=(
            sign(
                "must have its parameters and buffers on device",
                r"parameters and buffers on device (?P<wanted>\S+) \(device_ids\[0\]\) but found one of them on device: (?P<found>\S+)",
            ),
            sign("AssertionError: Invalid device id", r"AssertionError: Invalid device id(?P<wanted>)"),
        ),
        headline=lambda case: (
            f"DataParallel wants the module on {case.given['wanted']}, and a part of it is on {case.given['found']}"
            if case.given["wanted"]
            else "A GPU number was given that does not exist here (Invalid device id)"
        ),
        why=lambda case: (
            "it copies the module from its first device to the others"
            if case.given["wanted"]
            else "GPUs are counted from 0 among those that CUDA_VISIBLE_DEVICES leaves"
        ),
        next=(
            Advice(
                "call model.to(f'cuda:{{device_ids[0]}}') before nn.DataParallel, also for modules in lists",
                when=lambda case: bool(case.given["wanted"]),
            ),
            Advice(
                "give device_ids that exist: range(torch.cuda.device_count()); change --gpu or gpu_ids of the project to 0",
                when=lambda case: not case.given["wanted"],
            ),
            "DistributedDataParallel with torchrun is faster, and has no such rule",
        ),
        check="print(torch.cuda.device_count(), {p.device for p in model.parameters()})",
        examples=(
            Example(
                "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found one of them on"
                " device: cpu",
                says=("cuda:0", "cpu"),
            ),
            Example("AssertionError: Invalid device id", says=("device_count",)),
        ),
        knowledge="torch.nn.DataParallel",
    ),
)
