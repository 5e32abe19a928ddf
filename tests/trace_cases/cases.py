"""Build labelled traces: the advice that an expert would give for each, and about how much it would save per step.

`advised` maps a kind of opportunity to the µs a step that its removal would save, None where that is not known from
the construction; the first of them is what comes first. `any_of` are kinds of which one is enough. `tolerated` may be
listed as well, as two experts may differ. Anything else is a false alarm. `said` are words that the text has, and
`unsaid` words that it must not have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from trace_cases.job import (
    A100,
    ADD,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    FLASH,
    GEMM,
    MEAN,
    MUL,
    SILU,
    SOFTMAX,
    V100,
    Job,
    product,
    train,
)  # fmt: skip


@dataclass
class Case:
    build: Callable
    advised: dict = field(default_factory=dict)
    tolerated: set = field(default_factory=set)
    name: str = ""
    any_of: set = field(default_factory=set)
    said: tuple = ()
    unsaid: tuple = ()


CASES: dict[str, Case] = {}
PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
SGEMM = "ampere_sgemm_128x64_tn"
MISALIGNED = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align1>"
NEXT = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


def case(tolerated=(), **advised):
    def register(build):
        CASES[build.__name__] = Case(build, advised, set(tolerated), build.__name__)
        return build

    return register


def products(count, **options):
    def body(job):
        for _ in range(count):
            product(job, **options)

    return body


# -- the device waits ---------------------------------------------------------------------------------------------


@case(data_loader=20_000)
def loader_in_the_main_process():
    load = NEXT.format("SingleProcess")
    return train(Job(), products(20), before=lambda job: (job.wait(), job.spend(20_000, load)))


@case()
def loader_hidden_behind_a_full_queue():
    load = NEXT.format("MultiProcessing")
    return train(Job(), products(100), before=lambda job: job.spend(5_000, load), steps=4)


@case(data_loader=15_000)
def workers_too_slow():
    load = NEXT.format("MultiProcessing")
    return train(Job(), products(40), before=lambda job: (job.wait(), job.spend(15_000, load)))


@case(data_loader=12_000)
def own_annotation_of_the_loader():
    return train(Job(), products(40), before=lambda job: (job.wait(), job.spend(12_000, "data_wait")))


@case(synchronising_call=None, tolerated=["launch"])
def item_after_every_small_kernel():
    def body(job):
        for _ in range(200):
            job.op("aten::sum", (MEAN, 30.0))
            with job.within("aten::item", "cpu_op"), job.within("aten::_local_scalar_dense", "cpu_op"):
                job.copy("Memcpy DtoH (Device -> Pageable)", 2.0, 4, blocking=True)
            job.spend(20.0)

    return train(Job(), body)


@case()
def long_wait_at_the_end_of_a_busy_step():
    return train(Job(), products(100), after=lambda job: job.wait())


def broadcast_of_buffers(job, count=150, host=40.0):
    """Broadcast `count` small buffers as DistributedDataParallel does before a forward pass."""
    job.op("aten::flatten_dense_tensors", (ADD, 5.0))
    job.collective("broadcast", 20.0, 50_000, dtype="Float", blocks=True)
    with job.within("aten::unflatten_dense_tensors", "cpu_op"):
        job.spend(100.0)
    with job.within("aten::unflatten_dense_tensors", "cpu_op"):
        for _ in range(count):
            job.spend(host)
            job.copy("Memcpy DtoD (Device -> Device)", 1.5, 256)


def ddp(forward, **options):
    """Return a step with DistributedDataParallel: a broadcast of buffers, and then the forward pass `forward`."""

    def body(job):
        with job.within("DistributedDataParallel.forward"):
            broadcast_of_buffers(job, **options)
            forward(job)

    return body


@case(buffer_broadcast=6_400)
def buffers_broadcast_before_each_forward_pass():
    return train(Job(), ddp(products(40)), after=lambda job: job.wait(), steps=4)


@case()
def buffers_broadcast_while_the_device_is_busy():
    """Only in the first step of the recording the device has no earlier work: 1.4 of 230 ms."""
    return train(Job(), ddp(products(200), host=8.0), steps=4)


@case(launch=None)
def tensors_that_a_script_flattens_itself():
    def body(job):
        broadcast_of_buffers(job)
        products(40)(job)

    return train(Job(), body, after=lambda job: job.wait(), steps=4)


@case(launch=None)
def small_operators_slower_to_launch_than_to_run():
    def body(job):
        for _ in range(800):
            job.op("aten::add", (ADD, 2.0), dims=[[64, 64], [64, 64]], host=6.0)

    return train(Job(), body)


@case(python=10_000)
def python_between_operators():
    return train(Job(), products(60), before=lambda job: (job.wait(), job.spend(10_000)))


@case(python=8_000)
def garbage_collection_each_step():
    return train(Job(), products(60), before=lambda job: (job.wait(), job.spend(8_000, "gc_collect")))


@case(data_loader=7_000, python=8_000)
def garbage_collection_inside_the_loader():
    def before(job):
        job.wait()
        with job.within("data_wait"):
            job.spend(7_000)
            job.spend(8_000, "gc")

    return train(Job(), products(60), before=before)


@case(python=9_000)
def checkpoint_in_the_loop():
    return train(Job(), products(60), before=lambda job: (job.wait(), job.spend(9_000, "checkpoint_save")))


@case(allocation=6_000)
def driver_allocations_each_step():
    def before(job):
        job.wait()
        for name in ("cudaMalloc", "cudaFree"):
            job.spend(3_000, name, "cuda_runtime")

    return train(Job(), products(60), before=before)


@case(compilation=None)
def compiling_in_the_recording():
    def before(job):
        job.wait()
        job.spend(30_000, "compile_inner", "user_annotation")

    return train(Job(), products(60), before=before)


@case()
def no_launches_recorded():
    job = train(Job(), products(20), before=lambda job: (job.wait(), job.spend(20_000)))
    job.events = [event for event in job.events if event["cat"] in ("kernel", "gpu_memcpy")]
    return job


@case()
def whole_graphs():
    job = Job()
    for _ in range(4):
        with job.step():
            job.number += 1
            job.event("cudaGraphLaunch", "cuda_runtime", job.now, 60.0, correlation=job.number)
            begin = max(job.now + 10, job.free.get(COMPUTE, 0))
            job.now += 80
            for i in range(300):
                where = {"correlation": job.number, "device": 0, "stream": COMPUTE, "graph id": 3}
                job.event(GEMM, "kernel", begin + 31 * i, 30.0, pid=0, tid=COMPUTE, **where)
            job.free[COMPUTE] = begin + 31 * 300
    job.end()
    return job


@case(launch=None, tolerated=["python"])
def launch_bound_with_python_stacks():
    job = Job(stacks=True)

    def body(job):
        for i in range(400):
            with job.within(f"model.py({i % 7}): forward", "python_function"):
                job.op("aten::add", (ADD, 2.0), dims=[[64, 64], [64, 64]], host=12.0)

    return train(job, body)


# -- attention ----------------------------------------------------------------------------------------------------


def unfused(job, size=2048, heads=32, batch=4, depth=64, us=(400.0, 900.0, 400.0)):
    b = batch * heads
    job.op("aten::bmm", (GEMM, us[0]), dims=[[b, size, depth], [b, depth, size]])
    job.op("aten::mul", (MUL, us[1]), dims=[[batch, heads, size, size], []])
    job.op("aten::masked_fill", (ADD, us[1]), dims=[[batch, heads, size, size], [size, size]])
    job.op("aten::_softmax", (SOFTMAX, us[1]), dims=[[batch, heads, size, size]])
    job.op("aten::bmm", (GEMM, us[2]), dims=[[b, size, size], [b, size, depth]])


@case(unfused_attention=None)
def attention_written_out():
    def body(job):
        for _ in range(8):
            product(job)
            unfused(job)
            product(job)

    return train(Job(), body)


@case(unfused_attention=None)
def attention_written_out_without_shapes():
    def body(job):
        for _ in range(8):
            product(job)
            unfused(job)
            product(job)

    return train(Job(shapes=False), body)


@case()
def attention_by_flash():
    def body(job):
        for _ in range(8):
            product(job)
            dims = [[4, 32, 2048, 64]] * 3
            with job.within("aten::scaled_dot_product_attention", "cpu_op"):
                job.op("aten::_scaled_dot_product_flash_attention", (FLASH, 300.0), dims=dims)
            product(job)

    return train(Job(), body)


@case(unfused_attention=None)
def sdpa_that_fell_back_to_math():
    def body(job):
        for _ in range(8):
            product(job)
            inner = job.within("aten::_scaled_dot_product_attention_math", "cpu_op")
            with job.within("aten::scaled_dot_product_attention", "cpu_op"), inner:
                unfused(job)

    return train(Job(), body)


@case()
def softmax_over_a_vocabulary():
    def body(job):
        for _ in range(20):
            product(job)
        job.op("aten::mm", (GEMM, 2000.0), dims=[[8192, 4096], [4096, 32768]])
        job.op(
            "aten::_log_softmax", ("void at::native::cunn_SoftMaxForward<4, float, float>", 300.0), dims=[[8192, 32768]]
        )
        job.op("aten::mm", (GEMM, 2000.0), dims=[[8192, 32768], [32768, 4096]])

    return train(Job(), body)


@case()
def softmax_of_a_router():
    def body(job):
        for _ in range(8):
            job.op("aten::mm", (GEMM, 40.0), dims=[[8192, 4096], [4096, 64]])
            job.op("aten::_softmax", (SOFTMAX, 60.0), dims=[[8192, 64]])
            job.op("aten::bmm", (GEMM, 900.0), dims=[[64, 1024, 4096], [64, 4096, 1536]])
            product(job)

    return train(Job(), body)


# -- precision and alignment --------------------------------------------------------------------------------------


@case(float32=None)
def float32_on_an_a100():
    return train(Job(A100), products(20, us=14_100, kernel=SGEMM, kind="float"))


@case(float32=None)
def float32_on_a_v100():
    return train(Job(V100), products(20, us=18_300, kernel="volta_sgemm_128x64_nn", kind="float"))


@case(float32=None)
def float32_without_shapes():
    return train(Job(A100, shapes=False), products(20, us=14_100, kernel=SGEMM, kind="float"))


@case()
def tf32_on_an_a100():
    kernel = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>"
    return train(Job(A100), products(20, us=2_100, kernel=kernel, kind="float"))


@case()
def little_float32():
    def body(job):
        products(40)(job)
        product(job, us=60, m=128, k=512, n=1024, kernel=SGEMM, kind="float")

    return train(Job(), body)


@case()
def storage_in_16_bits_by_a_convolution_called_sgemm():
    kernel = "void implicit_convolve_sgemm<__half, __half, 128, 5, 5, 3, 3, 3, 1, false, false, true>"
    return train(Job(), lambda job: (products(40)(job), product(job, us=200, kernel=kernel, kind="c10::Half")))


@case(misaligned=None)
def vocabulary_that_is_odd():
    def body(job):
        products(30)(job)
        product(job, us=14_000, n=50_257, kernel=MISALIGNED)

    return train(Job(), body)


@case()
def odd_shape_as_fast_as_the_others():
    def body(job):
        products(30)(job)
        product(job, us=300, n=4_090, kernel=MISALIGNED.replace("align1", "align2"))

    return train(Job(), body)


@case()
def matrix_times_vector():
    def body(job):
        for _ in range(50):
            kernel = "void gemv2T_kernel_val<int, int, __nv_bfloat16, float, 128, 16, 4, 4, false>"
            job.op("aten::mm", (kernel, 50.0), dims=[[1, 8193], [8193, 8193]])

    return train(Job(), body)


# -- copies -------------------------------------------------------------------------------------------------------


TRANSPOSE = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)2>"


@case(layout_copies=None)
def layouts_changed_around_each_convolution():
    def body(job):
        for _ in range(20):
            job.op(
                "aten::cudnn_convolution",
                (TRANSPOSE, 60.0),
                (GEMM, 250.0),
                (TRANSPOSE.replace("nchwToNhwc", "nhwcToNchw"), 50.0),
            )

    return train(Job(), body)


@case()
def one_layout_change():
    def body(job):
        products(60)(job)
        job.op("aten::cudnn_convolution", (TRANSPOSE, 40.0), (GEMM, 250.0))

    return train(Job(), body)


@case(pageable_copies=8_000)
def batch_from_pageable_memory():
    return train(Job(), products(60), before=lambda job: job.copy(PAGEABLE, 8_000, 40_000_000, blocking=True))


@case()
def batch_copied_beside_computing():
    return train(Job(), products(60), before=lambda job: job.copy(PINNED, 2_000, 100_000_000, stream=COPIES), steps=5)


@case()
def scalars_from_pageable_memory():
    def body(job):
        for _ in range(20):
            job.copy(PAGEABLE, 1.5, 8)
            products(4)(job)

    return train(Job(), body)


# -- small kernels ------------------------------------------------------------------------------------------------


def norm(job):
    for name, kernel in (
        ("aten::pow", MUL),
        ("aten::mean", MEAN),
        ("aten::add", ADD),
        ("aten::rsqrt", SILU),
        ("aten::mul", MUL),
        ("aten::mul", MUL),
    ):
        job.op(name, (kernel, 60.0), dims=[[4, 2048, 4096], [4, 2048, 4096]])


@case(elementwise=None)
def norms_written_out():
    def body(job):
        for _ in range(10):
            norm(job)
            product(job)
            norm(job)
            product(job)

    return train(Job(), body)


@case()
def pointwise_fused_by_a_compiler():
    def body(job):
        for _ in range(10):
            job.op("triton_poi_fused_add_mul_silu_3", ("triton_poi_fused_add_mul_silu_3", 60.0))
            product(job)
            product(job)

    return train(Job(), body)


@case(elementwise=None)
def optimizer_in_a_loop():
    job = Job()
    for _ in range(3):
        with job.step():
            products(20)(job)
            with job.within("Optimizer.step#AdamW.step"):
                for _ in range(300):
                    for name, kernel in (
                        ("aten::mul_", MUL),
                        ("aten::lerp_", ADD),
                        ("aten::mul_", MUL),
                        ("aten::addcmul_", MUL),
                        ("aten::sqrt", SILU),
                        ("aten::addcdiv_", ADD),
                    ):
                        job.op(name, (kernel, 8.0), host=2.0)
    job.end()
    return job


# -- communication ------------------------------------------------------------------------------------------------


@case(exposed_communication=5_600, tolerated=["bus_bandwidth"])
def gradients_reduced_after_the_backward():
    def after(job):
        for _ in range(8):
            job.collective("allreduce", 700.0, 1 << 26)
        job.free[COMPUTE] = job.free[COMMUNICATION]

    return train(Job(world=8), products(40), after=after)


@case()
def gradients_reduced_beside_the_backward():
    def body(job):
        for _ in range(10):
            products(5)(job)
            job.collective("allreduce", 700.0, 1 << 26)
        products(5)(job)
        job.free[COMPUTE] = max(job.free[COMPUTE], job.free[COMMUNICATION])

    return train(Job(world=8), body)


@case(small_collectives=None, tolerated=["exposed_communication"])
def one_collective_a_parameter():
    def after(job):
        for _ in range(300):
            job.collective("allreduce", 18.0, 20_000)
        job.free[COMPUTE] = job.free[COMMUNICATION]

    return train(Job(world=8), products(60), after=after)


@case(bus_bandwidth=None, tolerated=["exposed_communication"])
def links_at_a_fraction_of_their_speed():
    def after(job):
        job.collective("allreduce", 30_000.0, 1 << 27, blocks=True)

    return train(Job(world=8), products(60), after=after)


@case()
def large_collective_at_full_speed():
    def after(job):
        job.collective("allreduce", 350.0, 1 << 25, blocks=True)

    return train(Job(world=8), products(200), after=after)


@case(recomputation=None)
def everything_checkpointed():
    def body(job):
        products(20)(job)
        for i in range(20):
            job.thread = 4001
            with job.within("CheckpointFunctionBackward", "cpu_op", **{"Fwd thread id": 1, "Sequence number": 100 + i}):
                args = {"Sequence number": 1000 + i, "Fwd thread id": 0}
                job.op("aten::mm", (GEMM, 280.0), dims=[[8192, 4096], [4096, 4096]], **args)
            product(job)
            product(job)
            job.thread = 4000

    return train(Job(), body)


@case()
def plain_training():
    return train(Job(), products(90))


@case()
def two_streams_of_computing():
    def body(job):
        for _ in range(60):
            product(job)
            job.launch(GEMM, 100.0, 9)

    return train(Job(), body)


REAL = {
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": (
        {"launch"},
        {"python", "synchronising_call", "allocation", "compilation"},
    ),
    "hta/call_stack/backward_thread.json": (set(), {"python", "launch"}),
    "hta/cpu_only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": (
        set(),
        {"data_loader", "python", "exposed_communication"},
    ),
    "hta/critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz": (
        {"allocation"},
        {"launch", "python", "synchronising_call", "compilation"},
    ),
    "hta/distributed_info_unavailable/distributed_info_not_found.json.gz": (set(), {"data_loader"}),
    "hta/mtia_trace_single_rank/mtia_rank_0.json.gz": ({"launch"}, {"python"}),
    "hta/nccl_parser_config/nccl_data.json.gz": ({"launch", "buffer_broadcast"}, {"exposed_communication", "python"}),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": ({"float32"}, {"elementwise"}),
    "hta/triton_example/triton_example.json.gz": (set(), {"python", "launch", "compilation"}),
    "tracelens/h100/gaunernst_bert-small-uncased__1016001.json.gz": ({"launch"}, {"python", "synchronising_call"}),
    "tracelens/mi300/gaunernst_bert-small-uncased__1016001.json.gz": ({"launch"}, {"python", "synchronising_call"}),
}
"""{trace of other people's jobs: (advice that an expert would give, advice that he might give)}."""

ASIDE = sorted(CASES)[3::4]
"""The cases on which no rule was tuned."""
