"""A small simulated job on one device, written in Kineto's format: the work of the host, and of the device.

The host walks forward in time. A launching call returns after some µs; its kernel begins when it was launched, its
stream is free and what it waits for has ended. Times are in µs.
"""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field

COMPUTE, COMMUNICATION, COPIES = 7, 20, 22
H100 = ("NVIDIA H100 80GB HBM3", 9)
A100 = ("NVIDIA A100-SXM4-80GB", 8)
V100 = ("Tesla V100-SXM2-32GB", 7)
T4 = ("Tesla T4", 7)
MI300 = ("AMD Instinct MI300X", 9)
LAUNCH, LATENCY, AUTOGRAD = 4.0, 3.0, 4001


@dataclass
class Job:
    device: tuple = H100
    rank: int = 0
    world: int = 1
    shapes: bool = True
    stacks: bool = False
    now: float = 1000.0
    thread: int = 4000
    free: dict = field(default_factory=dict)
    events: list = field(default_factory=list)
    number: int = 0
    steps: int = 0
    sequence: int = 0
    runtime: str = "cuda"
    group: str = "default_pg"

    def event(self, name, cat, start, dur, pid=4000, tid=None, **args):
        if cat == "cuda_runtime" and name.startswith("cuda"):
            name = self.runtime + name.removeprefix("cuda")
        where = {"pid": pid, "tid": self.thread if tid is None else tid}
        self.events.append({"ph": "X", "name": name, "cat": cat, "ts": start, "dur": dur, **where, "args": args})

    @contextmanager
    def within(self, name, cat="user_annotation", **args):
        start = self.now
        self.now += 0.5
        yield
        self.now += 0.5
        self.event(name, cat, start, self.now - start, **args)

    @contextmanager
    def step(self):
        self.steps += 1
        start = self.now
        yield
        self.event(f"ProfilerStep#{self.steps}", "user_annotation", start, self.now - start)

    def spend(self, us, name="", cat="user_annotation"):
        """Let the host work for `us` without launching anything."""
        if name:
            self.event(name, cat, self.now, us)
        self.now += us

    def launch(self, kernel, us, stream=COMPUTE, after=(), call="cudaLaunchKernel", takes=LAUNCH, cat="kernel", **args):
        """Launch a kernel, and return its end; `after` lists streams that it waits for."""
        self.number += 1
        self.event(call, "cuda_runtime", self.now, takes, correlation=self.number)
        begin = max(self.now + LATENCY, *(self.free.get(s, 0) for s in (stream, *after)))
        self.now += takes
        args |= {"correlation": self.number, "device": 0, "stream": stream}
        self.event(kernel, cat, begin, us, pid=0, tid=stream, **args)
        self.free[stream] = begin + us
        return begin + us

    def op(self, name, *kernels, dims=None, types=None, host=3.0, values=None, **args):
        """Add an operator that launches kernels; each is (name, µs)."""
        if dims is not None and self.shapes:
            args |= {"Input Dims": dims, "Input type": types or ["c10::BFloat16"] * len(dims)}
            args["Concrete Inputs"] = values or [""] * len(dims)
        with self.within(name, "cpu_op", **args):
            self.now += host - 1.0
            for kernel, us in kernels:
                self.launch(kernel, us)

    def wait(self, call="cudaStreamSynchronize", streams=None):
        """Let the host wait for the device."""
        start = self.now
        ends = [end for stream, end in self.free.items() if streams is None or stream in streams]
        self.now = max([start + 2.0, *(end + 2.0 for end in ends)])
        self.event(call, "cuda_runtime", start, self.now - start)

    def copy(self, name, us, size, *, blocking=False, stream=COMPUTE, after=()):
        self.launch(name, us, stream, after, "cudaMemcpyAsync", cat="gpu_memcpy", bytes=size)
        if blocking:
            self.wait()

    def collective(self, name, us, elements, *, group=8, blocks=False, dtype="BFloat16", after=(COMPUTE,)):
        """Add a collective on its own stream, after earlier computations; if it `blocks`, later computations wait
        for it.
        """
        args = {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements, "Group size": group}
        args |= {"dtype": dtype, "Process Group Name": "0", "Seq": self.sequence}
        self.sequence += 1
        with self.within(f"c10d::{name}_", "cpu_op"), self.within("record_param_comms", "cpu_op", **args):
            kernel = f"ncclDevKernel_{name.title().replace('_', '')}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            end = self.launch(kernel, us, COMMUNICATION, after, **args)
        if blocks:
            self.free[COMPUTE] = max(self.free.get(COMPUTE, 0), end)

    def end(self):
        self.wait("cudaDeviceSynchronize")

    def text(self):
        name, major = self.device
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": name, "computeMajor": major, "computeMinor": 0}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world,
                "pg_config": [{"pg_name": "0", "pg_desc": self.group, "ranks": list(range(self.world))}],
            },
            "record_shapes": int(self.shapes),
            "with_stack": int(self.stacks),
        }
        return json.dumps(header | {"traceEvents": self.events}).encode()


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>>"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>,"
    " std::array<char*, 3>>"
)
MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16,"
    " c10::BFloat16, at::native::binary_internal::MulFunctor<float>>, std::array<char*, 3>>"
)
SILU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}>"
)
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>"


def product(job, us=280.0, m=8192, k=4096, n=4096, kernel=GEMM, kind="c10::BFloat16", host=3.0):
    """Add a matrix product; the default one reaches 98 % of an H100's peak."""
    job.op("aten::mm", (kernel, us), dims=[[m, k], [k, n]], types=[kind, kind], host=host)


def train(job, body, steps=3, before=None, after=None):
    """Add steps of `before`, forward and backward with `body`, and an optimizer; the host waits only at their end."""
    for _ in range(steps):
        with job.step():
            if before:
                before(job)
            body(job)
            if after:
                after(job)
            with job.within("Optimizer.step#AdamW.step"):
                job.op(
                    "aten::_fused_adamw_", ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", 400.0)
                )
    job.end()
    return job
