# ruff: noqa: E501
"""List realistic logs with the expected answers; their texts follow the formats of PyTorch, NCCL and Slurm.

`RECORDED`: real runs of `analyzers/logs/crashing_job.py` (see `record.py`). `COMPOSED`: cases for GPUs and clusters.
"""

from typing import NamedTuple


class Case(NamedTuple):
    """A log and the expected answer: the verdict's class and ranks, and words that its sentence must contain."""

    name: str
    kind: str
    ranks: list[int]
    words: tuple[str, ...] = ()
    text: str = ""


RECORDED = (
    Case("exception", "crashed", [1], ("KeyError", "crashing_job.py:17")),
    Case("chained", "crashed", [2], ("RuntimeError", "crashing_job.py:")),
    Case("sigkill", "signal", [1], ("SIGKILL",)),
    Case("sigsegv", "signal", [2], ("SIGSEGV", "crashing_job.py:")),
    Case("hang", "collective_timeout", [1], ("crashing_job.py:",)),
    Case("early_exit", "early_exit", [0]),
    Case("worker_killed", "dataloader_worker", [0], ("killed",)),
    Case("worker_error", "crashed", [2], ("ValueError", "sample 9 has no image", "crashing_job.py:")),
    Case("disk_full", "disk_full", [0], ("crashing_job.py:",)),
    Case("missing_file", "crashed", [0, 1, 2], ("FileNotFoundError", "crashing_job.py:")),
    Case("mismatch", "mismatch", [2], ("crashing_job.py:",)),
    Case("barrier", "collective_timeout", [2], ("barrier",)),
    Case("unused", "unused_parameters", [1]),
    Case("nan", "nonfinite_loss", [], ("step 3",)),
    Case("host_memory", "host_oom", [1], ("crashing_job.py:",)),
    Case("sizes", "mismatch", [0, 1]),
    Case("recorded_error", "crashed", [1], ("ValueError: batch 17 has 0 tokens", "crashing_job.py:")),
    Case("completed", "healthy", []),
    Case("terminated", "terminated", []),
    Case("import_error", "crashed", [1], ("flash_attn_kernels", "crashing_job.py:")),
    Case("port_in_use", "startup", [], ("port",)),
    Case("rendezvous", "startup", []),
    Case("unreachable", "startup", [], ("127.0.0.1",)),
    Case("arguments", "startup", [], ("--learning-rate",)),
    Case("no_script", "startup", [], ("trian.py",)),
)

COMPOSED = (
    Case(
        "cuda_oom_one_rank",
        "oom",
        [2],
        ("18.5 GiB", "model.py:88"),
        """\
step 118 loss 2.113
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/user/llm/train.py", line 41, in main
[rank2]:     loss = model(batch)
[rank2]:   File "/home/user/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
[rank2]:     return forward_call(*args, **kwargs)
[rank2]:   File "/home/user/llm/model.py", line 88, in forward
[rank2]:     scores = q @ k.transpose(-1, -2)
[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.50 GiB. GPU 2 has a total capacity of 79.11 GiB of which 3.28 GiB is free. Process 41022 has 10.01 GiB memory in use. Including non-PyTorch memory, this process has 65.80 GiB memory in use. Of the allocated memory 61.02 GiB is allocated by PyTorch, and 3.91 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.
[rank0]:[E205 11:02:44.118002010 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
[rank1]:[E205 11:02:44.118302010 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9120, OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.
""",
    ),
    Case(
        "cuda_oom_old_text",
        "oom",
        [],
        ("12.5 MiB",),
        """\
Traceback (most recent call last):
  File "main.py", line 10, in <module>
    y = net(x)
RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB already allocated; 9.28 MiB free; 4.68 MiB cached)
""",
    ),
    Case(
        "watchdog_one_behind",
        "collective_timeout",
        [3],
        ("ALLREDUCE", "4411"),
        "".join(
            f"[rank{r}]:[E1103 04:10:55.20{r}000111 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective"
            f" operation timeout: WorkNCCL(SeqNum=4411, OpType=ALLREDUCE, NumelIn=8192, NumelOut=8192, Timeout(ms)=600000)"
            f" ran for 60002{r} milliseconds before timing out.\n"
            f"[rank{r}]:[E1103 04:10:55.21{r}000111 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}] "
            f" failure detected by watchdog at work sequence id: 4411 PG status: last enqueued work: 4413,"
            f" last completed work: 4410\n"
            for r in (0, 1, 2)
        )
        + "[rank3]:[E1103 04:10:56.010000111 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed"
        " flight recorder dump signal from another rank via TCPStore.\n"
        "[rank3]:[E1103 04:10:56.011000111 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a"
        " dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last"
        " enqueued NCCL work: 4410, last completed NCCL work: 4410.This is most likely caused by incorrect usages of"
        " collectives, e.g., wrong sizes used across ranks\n",
    ),
    Case(
        "watchdog_first_operation",
        "collective_timeout",
        [],
        (),
        "".join(
            f"[rank{r}]:[E1103 04:10:55.20{r}000111 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective"
            f" operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, NumelIn=1, NumelOut=4, Timeout(ms)=600000)"
            f" ran for 60002{r} milliseconds before timing out.\n"
            f"[rank{r}]:[E1103 04:10:55.21{r}000111 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}] "
            f" failure detected by watchdog at work sequence id: 1 PG status: last enqueued work: 1,"
            f" last completed work: -1\n"
            for r in range(4)
        ),
    ),
    Case(
        "watchdog_other_operation",
        "mismatch",
        [1],
        ("BROADCAST", "ALLREDUCE"),
        "".join(
            f"[rank{r}]:[E1103 04:10:55.20{r}000111 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective"
            f" operation timeout: WorkNCCL(SeqNum=77, OpType={'BROADCAST' if r == 1 else 'ALLREDUCE'}, NumelIn=100,"
            f" NumelOut=100, Timeout(ms)=600000) ran for 60002{r} milliseconds before timing out.\n"
            for r in range(4)
        ),
    ),
    Case(
        "xid_79",
        "hardware",
        [],
        ("79",),
        """\
[rank5]:[E1103 04:10:55.200000111 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
Nov  3 04:10:40 gpu-17 kernel: NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
""",
    ),
    Case(
        "driver_lost_its_device",
        "hardware",
        [],
        ("0000:9d:00.0", "fallen off the bus"),
        """\
[88123.402] NVRM: The NVIDIA GPU 0000:9d:00.0
NVRM: (PCI ID: 10de:2330) installed in this system has
NVRM: fallen off the bus and is not responding to commands.
[rank5]:[E1103 04:10:55.200000111 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure
""",
    ),
    Case(
        "driver_does_not_support_the_device",
        "startup",
        [],
        ("0000:3b:00.0", "is not supported by"),
        """\
[   60.058486] NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1b38)
               NVRM: installed in this system is not supported by open
               NVRM: nvidia.ko because it does not include the required GPU
               NVRM: System Processor (GSP).
Traceback (most recent call last):
  File "/home/user/llm/train.py", line 12, in main
    torch.cuda.set_device(0)
RuntimeError: No CUDA GPUs are available
""",
    ),
    Case(
        "unsupported_device_beside_those_of_the_job",
        "healthy",
        [],
        (),
        """\
[   60.058486] NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1b38)
               NVRM: installed in this system is not supported by the
               NVRM: NVIDIA 535.104.05 driver release.
step 1 loss 3.21
step 2 loss 3.11
Training completed
""",
    ),
    Case(
        "ecc",
        "hardware",
        [6],
        ("ECC",),
        """\
[rank6]: Traceback (most recent call last):
[rank6]:   File "/home/user/llm/train.py", line 120, in step
[rank6]:     loss.backward()
[rank6]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
[rank6]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
[rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:328, remote process exited or there was a network error, NCCL version 2.21.5
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
""",
    ),
    Case(
        "slurm_time_limit",
        "time_limit",
        [],
        ("time limit",),
        """\
 [2026-03-02 10:11:31.120331] iteration      859/  200000 | consumed samples:       439808 | elapsed time per iteration (ms): 2210.4 | lm loss: 2.609532E+00 | loss scale: 1.0 | grad norm: 0.038 | number of skipped iterations:   0 | number of nan iterations:   0 |
slurmstepd: error: *** JOB 774411 ON n12 CANCELLED AT 2026-03-02T10:11:40 DUE TO TIME LIMIT ***
W0302 10:11:41.000000 2413 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers
srun: Job step aborted: Waiting up to 62 seconds for job step to finish.
""",
    ),
    Case(
        "slurm_oom_killer",
        "host_oom",
        [],
        ("n07",),
        """\
step 40 loss 3.2
slurmstepd: error: Detected 1 oom_kill event in StepId=774412.0. Some of the step tasks have been OOM Killed.
srun: error: n07: task 3: Out Of Memory
srun: Terminating StepId=774412.0
slurmstepd: error: *** STEP 774412.0 ON n06 CANCELLED AT 2026-03-02T11:00:40 ***
srun: error: n06: tasks 0-2: Terminated
""",
    ),
    Case(
        "kernel_oom_killer",
        "host_oom",
        [0],
        ("SIGKILL", "82"),
        """\
[ 9123.000316] Out of memory: Killed process 11127 (python) total-vm:98000000kB, anon-rss:86000000kB, file-rss:1000kB, shmem-rss:0kB, UID:1000
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-26_16:50:50
  host      : node01
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 11127)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 11127
============================================================
""",
    ),
    Case(
        "infiniband",
        "network",
        [],
        ("10.4.1.9",),
        """\

node3:3063025:3066048 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.4.1.9<45119> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80:: remoteGidsfe80:: hca mlx5_2
node3:3063025:3066048 [2] NCCL INFO transport/net.cc:1034 -> 6
[rank18]: torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:328, remote process exited or there was a network error, NCCL version 2.21.5
""",
    ),
    Case(
        "driver_too_old",
        "startup",
        [],
        ("driver", "11.4"),
        """\
Traceback (most recent call last):
  File "/home/user/train.py", line 9, in <module>
    torch.cuda.set_device(local_rank)
  File "/home/user/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 404, in _lazy_init
    torch._C._cuda_init()
RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx
""",
    ),
    Case(
        "no_interface",
        "startup",
        [],
        ("interface",),
        """\
n3:211:211 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib9

n3:211:211 [0] bootstrap.cc:54 NCCL WARN Bootstrap : no socket interface found
[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:328, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5
""",
    ),
    Case(
        "nccl_versions",
        "startup",
        [],
        ("2.19", "2.21"),
        """\

n3:211:211 [0] bootstrap.cc:54 NCCL WARN Mismatched NCCL version detected : rank 0 version 2.21.5 rank 8 version 2.19.3
""",
    ),
    Case(
        "duplicate_gpu",
        "startup",
        [],
        ("rank 1", "rank 0"),
        """\

n3:211:260 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 31, in main
[rank1]:     dist.barrier()
[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:328, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000
""",
    ),
    Case(
        "clients_missing",
        "startup",
        [],
        ("3 of 4",),
        """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/train.py", line 12, in <module>
[rank0]:     dist.init_process_group("nccl")
[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.
""",
    ),
    Case(
        "heartbeat",
        "collective_timeout",
        [],
        ("480",),
        """\
[rank1]:[F1103 04:20:55.200000111 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.
[rank1]:[E1103 04:19:55.200000111 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog
""",
    ),
    Case(
        "megatron_nan",
        "nonfinite_loss",
        [13],
        ("13",),
        """\
 iteration      859/  200000 | consumed samples: 439808 | lm loss: 2.609532E+00 | number of nan iterations:   0 |
[rank13]: Traceback (most recent call last):
[rank13]:   File "/home/user/Megatron-LM/megatron/core/distributed/param_and_grad_buffer.py", line 155, in check_grads
[rank13]:     assert not norm.isnan(), (
[rank13]: AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 5, node: n3
[rank12]: torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:328, remote process exited or there was a network error, NCCL version 2.21.5
""",
    ),
    Case(
        "deepspeed_scale_exhausted",
        "nonfinite_loss",
        [],
        (),
        "".join(
            f"[2026-05-25 07:0{i}:03,668] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping"
            f" step. Attempted loss scale: {2 ** (9 - i)}, reducing to {2 ** (8 - i)}\n"
            for i in range(9)
        )
        + """\
Traceback (most recent call last):
  File "/home/user/train.py", line 70, in main
    engine.step()
  File "/home/user/venv/lib/python3.10/site-packages/deepspeed/runtime/fp16/loss_scaler.py", line 175, in update_scale
    raise Exception(
Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
""",
    ),
    Case(
        "nan_goes_on",
        "nonfinite_loss",
        [],
        ("step 3",),
        "step 1 loss 2.31\nstep 2 loss 2.20\nstep 3 loss nan\nstep 4 loss nan\n",
    ),
    Case(
        "device_assert",
        "crashed",
        [0],
        ("assert",),
        """\
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectSmallIndex: block: [4,0,0], thread: [95,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectSmallIndex: block: [4,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/llm/model.py", line 30, in forward
[rank0]:     return self.norm(x)
[rank0]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank0]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
""",
    ),
    Case(
        "preempted",
        "terminated",
        [],
        ("preempt",),
        "step 10 loss 2.2\nslurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-03-02T10:11:40 DUE TO PREEMPTION ***\n",
    ),
    Case(
        "failed_before_cancel",
        "crashed",
        [4],
        ("ZeroDivisionError", "data.py:7"),
        """\
4: Traceback (most recent call last):
4:   File "/home/user/data.py", line 7, in collate
4:     return total / len(batch)
4: ZeroDivisionError: division by zero
srun: error: n2: task 4: Exited with exit code 1
srun: Terminating StepId=774412.0
0: slurmstepd: error: *** STEP 774412.0 ON n1 CANCELLED AT 2026-03-02T11:00:40 ***
srun: error: n1: tasks 0-3: Terminated
srun: error: n2: tasks 5-7: Terminated
""",
    ),
    Case(
        "healthy_with_noise",
        "healthy",
        [],
        (),
        """\
W1122 07:16:55.948000 2413 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
[W1122 07:16:56.948000111 socket.cpp:758] [c10d] The client socket cannot be initialized to connect to [localhost.localdomain]:29500 (errno: 97 - Address family not supported by protocol).
/home/user/venv/lib/python3.11/site-packages/x.py:3: FutureWarning: this errors in the next version
n3:211:260 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
n3:211:260 [0] net.cc:9 NCCL WARN NET/Plugin: Could not find: libnccl-net.so
[2026-05-25 07:01:03,668] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
{'loss': 3.5534, 'grad_norm': 1.4142, 'learning_rate': 2.04e-06, 'epoch': 0.01}
{'train_runtime': 120.1, 'train_samples_per_second': 10.2, 'train_steps_per_second': 1.3, 'train_loss': 3.1}
[rank0]:[W1122 07:18:56.948000111 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
n3:211:260 [0] NCCL INFO [Service thread] Connection closed by localRank 0
""",
    ),
    Case("running", "unknown", [], (), "step 1 loss 2.31\nstep 2 loss 2.20\nstep 3 loss 2.11\n"),
    Case(
        "ready_twice",
        "crashed",
        [0, 1],
        ("ready only once", "train.py:40"),
        "".join(
            f"""\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/user/llm/train.py", line 40, in main
[rank{rank}]:     loss.backward()
[rank{rank}]:   File "/home/user/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py", line 331, in backward
[rank{rank}]:     torch.autograd.backward(outputs_with_grad, args_with_grad)
[rank{rank}]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function.
[rank{rank}]: Parameter at index 3 with name shared.bias has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this particular parameter during this iteration.
"""
            for rank in (0, 1)
        ),
    ),
    Case(
        "glued_and_coloured",
        "crashed",
        [1],
        ("ValueError",),
        "\x1b[31mEpoch 0:  12%|#| 10/80 [00:01<00:07]\x1b[0m\r\x1b[31mEpoch 0:  13%|#| 11/80 [00:01<00:07]"
        "[default1]:[rank1]: Traceback (most recent call last):\n"
        '[default1]:[rank1]:   File "/home/user/a.py", line 3, in f\n[default1]:[rank1]:     g()\n'
        "[default1]:[rank1]:     ^^^\n[default1]:[rank1]: ValueError: \x1b[1mbad\x1b[0m batch\n",
    ),
)
