"""Failures of GPU compilers, drivers, containers and notebooks that say what is missing or too old."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.failures.entry import Advice, Example, Failure, sign

_DEVICE_COUNT = {
    "1": "an argument is not valid: most often CUDA_VISIBLE_DEVICES, or a driver that does not fit",
    "2": "the GPU, or the memory of the host or of WSL, is full",
    "3": "the driver could not be initialised",
    "36": "the driver does not fit the CUDA libraries",
    "101": "a GPU was asked for that does not exist: most often CUDA_VISIBLE_DEVICES names it",
    "304": "a call of the operating system failed: limits, device files or permissions",
    "999": "unknown error: the kernel module nvidia_uvm is often missing or broken",
}
"""{error of cudaGetDeviceCount: what it means}."""


def _device_count(case: Case) -> str:
    """Return the headline for a failed cudaGetDeviceCount."""
    number, text = case.given["number"], case.given["text"]
    return f"CUDA could not start: cudaGetDeviceCount gave error {number} ({text})"


def _text_around(case: Case) -> str:
    """Return the message of a case and the lines around it."""
    return f"{case.lead.message}\n{case.lead.details}\n{case.lead.excerpt}"


ENTRIES: tuple[Failure, ...] = (
    # Compilers.
    Failure(
        id="software.ptxas",
        kind=LogClass.CRASHED,
        what="Triton's assembler (ptxas) is missing, or older than the code or the GPU that it is given.",
        signs=(
            sign(
                "Unsupported .version",
                r"Unsupported \.version (?P<wanted>[\d.]+); current version is '(?P<has>[\d.]+)'",
            ),
            sign(
                "is not defined for option 'gpu-name'", r"Value '(?P<gpu>sm_\w+)' is not defined for option 'gpu-name'"
            ),
            sign("annot find ptxas", r"[Cc]annot find ptxas"),
        ),
        headline=lambda case: (
            f"ptxas is too old: the code is PTX {case.given['wanted']}, and it knows up to {case.given['has']}"
            if case.given.get("wanted")
            else f"ptxas does not know this GPU: {case.given['gpu']}"
            if case.given.get("gpu")
            else "Triton finds no ptxas, the assembler for NVIDIA GPUs"
        ),
        why="Triton brings its own ptxas, and a CUDA toolkit on the PATH, CUDA_HOME, CUDA_PATH or TRITON_PTXAS_PATH may take its"
        " place",
        next=(
            "let Triton use a newer one: TRITON_PTXAS_PATH=/usr/local/cuda-12.8/bin/ptxas (or unset TRITON_PTXAS_PATH,"
            " CUDA_PATH and CUDA_HOME, so that the bundled one is used), and update the CUDA toolkit (12.8 or newer"
            " for sm_100 and sm_120, 12.9 for sm_103 and sm_121; for GPUs that newer toolkits have dropped, such as"
            " sm_70 in 13.0, an older one)",
            "or install the triton that the installed PyTorch asks for (pip show torch), whose PTX fits",
            "without torch.compile and Triton kernels it is not needed (TORCHDYNAMO_DISABLE=1 as a test)",
        ),
        check="`ptxas --version`, and find / -name ptxas*",
        explains=("exceptions.*", "software.inductor", "software.triton_compile"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ptxas C:\\Users\\user\\AppData\\Local\\Temp\\tmpafhfmeeh.ptx, line 5; fatal   : Unsupported .version 8.6; current"
                " version is '8.5'\n"
                "ptxas fatal   : Ptx assembly aborted due to errors",
                source="triton-lang/triton#5929",
                says=("PTX 8.6", "TRITON_PTXAS_PATH"),
            ),
            Example("ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'", says=("sm_120", "12.8")),
            Example("RuntimeError: Cannot find ptxas.exe", source="woct0rdho/triton-windows#49"),
            Example(
                "ptxas fatal   : Value 'sm_70' is not defined for option 'gpu-name'",
                says=(
                    "ptxas does not know this GPU: sm_70",
                    "have dropped",
                ),
            ),
        ),
        knowledge="triton-lang/triton#5929; the PTX ISA's table of versions",
    ),
    Failure(
        id="software.triton_compile",
        kind=LogClass.CRASHED,
        what="Triton could not compile a kernel.",
        signs=(
            sign("PassManager::run failed"),
            sign("while processing an MLIR pass pipeline"),
            sign("failed to translate module to LLVM IR"),
            sign("codegen error", r"Internal Triton PTX codegen error|PTXAS error:"),
        ),
        headline="Triton could not compile a kernel",
        why="a pass of its compiler failed; an operation of the kernel that this version cannot translate, versions of"
        " Triton that do not fit PyTorch or the GPU, old GPUs (bf16 or fp8 below Ampere) and unusual shapes are"
        " the usual reasons",
        next=(
            "install the triton that the installed PyTorch asks for (pip show torch names it), or a newer PyTorch with its own"
            " triton; delete ~/.triton/cache afterwards",
            "go around the kernel: TORCHDYNAMO_DISABLE=1, or disable=True for that function, if torch.compile made it; another"
            " attention or quantisation backend if a library did",
            "the lines around the message often name the kernel and the operation; report them with the versions",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "/home/user/miniforge3/lib/python3.10/site-packages/triton/backends/intel/compiler.py", line 304, in'
                " make_ttgir\n"
                "    pm.run(mod, 'make_ttgir')\n"
                "RuntimeError: PassManager::run failed",
                source="intel/intel-xpu-backend-for-triton#5654",
                says=("pip show torch",),
            ),
            Example(
                "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error",
                says=("TORCHDYNAMO_DISABLE",),
            ),
        ),
        knowledge="lllyasviel/FramePack#350, pytorch/pytorch#101368",
    ),
    Failure(
        id="software.triton_kernel_image",
        kind=LogClass.CRASHED,
        what="The driver cannot load a kernel that Triton has compiled.",
        signs=(sign("device kernel image is invalid"),),
        headline="The driver cannot load a compiled kernel: its image is invalid",
        why="the kernel was compiled by a newer toolkit than the driver knows, for another GPU, or the cache holds a damaged one",
        next=(
            "if Triton or torch.compile made the kernel, delete their caches and try again: rm -rf ~/.triton/cache"
            " /tmp/torchinductor_$USER",
            "if it stays: update the NVIDIA driver, or let the toolkit fit it (unset TRITON_PTXAS_PATH and CUDA_HOME,"
            " so that the bundled ptxas is used); an extension has to be built again for this GPU",
        ),
        check="`nvidia-smi` shows the newest CUDA that the driver supports",
        examples=(
            Example(
                "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
                source="pytorch/pytorch#119054",
                says=("~/.triton/cache", "driver"),
            ),
        ),
        knowledge="pytorch/pytorch#119054; CUDA_ERROR_INVALID_IMAGE",
    ),
    Failure(
        id="software.graph_capture",
        kind=LogClass.CRASHED,
        what="Something that is not allowed happened while a CUDA or HIP graph was captured.",
        signs=(
            sign(
                "captur",
                r"(?:CUDA|HIP) error: (?P<what>operation not permitted when stream is capturing|operation failed due to a previous"
                r" error during capture|operation would make the legacy stream depend on a capturing blocking stream|operation not"
                r" permitted on an event last recorded in a capturing stream)",
            ),
        ),
        headline="A graph was being captured, and an operation ran that capture does not allow",
        why="during capture nothing may synchronise, allocate by cudaMalloc, use the default stream, or query an event"
        " of the capture, by default in no thread; the first such call, or another error, breaks the capture, and"
        " later errors only say so",
        next=(
            "run without graphs: torch.compile without mode='reduce-overhead', vLLM enforce_eager=True, SGLang"
            " --disable-cuda-graph; if it then runs, capture is the reason",
            "keep .item(), .cpu(), print of tensors, torch.cuda.synchronize, data loading to the GPU and new communicators out of"
            " the captured part, and warm it up some times on a side stream before",
            "if only the watchdog thread reports it, on AMD: update ROCm",
        ),
        check="CUDA_LAUNCH_BLOCKING=1 cannot be used here: it is itself not allowed in capture",
        rules_out="broken hardware",
        explains=("processes.*", "exceptions.cuda"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Process group watchdog thread terminated with exception: HIP error: operation not permitted on an event last"
                " recorded in a capturing stream\n"
                "Fatal Python error: Aborted",
                source="sgl-project/sglang#24011",
                says=("ROCm", "--disable-cuda-graph"),
            ),
            Example("RuntimeError: CUDA error: operation not permitted when stream is capturing", says=(".item()",)),
        ),
        knowledge="PyTorch's notes on CUDA graphs; sgl-project/sglang#24011",
    ),
    Failure(
        id="software.nvrtc_architecture",
        kind=LogClass.CRASHED,
        what="The runtime compiler of PyTorch's CUDA does not know the GPU.",
        signs=(sign("invalid value for --gpu-architecture"),),
        headline="PyTorch's runtime compiler for CUDA (nvrtc) does not know this GPU",
        why="the build of PyTorch is for a CUDA that is older than the GPU, or has dropped it; some operations"
        " (complex, special functions, fused ones of TorchScript) are compiled at run time by nvrtc",
        next=(
            "install a PyTorch that was built for a CUDA with this GPU (Ada and Hopper: cu118 or newer; Blackwell:"
            " cu128 or newer, sm_103 and sm_121 cu129 or newer; GPUs before Turing: one before cu130)",
        ),
        check='python -c "import torch; print(torch.version.cuda, torch.cuda.get_device_capability())"',
        examples=(
            Example(
                "RuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)", says=("Blackwell", "cu128")
            ),
        ),
        knowledge="NVRTC: --gpu-architecture",
    ),
    Failure(
        id="software.cufft_internal",
        kind=LogClass.CRASHED,
        what="cuFFT failed internally.",
        signs=(sign("CUFFT_INTERNAL_ERROR"),),
        headline="cuFFT failed internally (CUFFT_INTERNAL_ERROR)",
        why="on RTX 40 GPUs with CUDA 11.7 it is a known fault of that cuFFT; elsewhere most often the GPU's memory is"
        " full, or a size or half-precision transform is not supported",
        next=(
            "print torch.version.cuda: if it is 11.7 or older, install a build of PyTorch for CUDA 11.8 or newer",
            "otherwise look at the GPU's free memory, and at the transform: fp16 needs sizes that are powers of two",
        ),
        check='python -c "import torch; print(torch.version.cuda); torch.fft.rfft(torch.randn(1000).cuda())"',
        examples=(Example("RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR", says=("11.8",)),),
        knowledge="pytorch/pytorch#88038",
    ),
    Failure(
        id="software.cusolver",
        kind=LogClass.CRASHED,
        what="cuSOLVER, the library of matrix factorisations, failed.",
        signs=(sign("CUSOLVER_STATUS", r"(?P<status>CUSOLVER_STATUS_\w+)(?:, when calling `(?P<call>\w+))?"),),
        headline=lambda case: (
            f"cuSOLVER failed{' in ' + call if (call := case.given.get('call')) else ''}: {case.given['status']}"
        ),
        why=lambda case: (
            "its handle is made at the first factorisation, and needs memory of the GPU that PyTorch may have taken already"
            if "Create" in (case.given.get("call") or "")
            else "most often the matrix holds NaN or is singular, or the GPU's memory is full"
        ),
        next=(
            Advice(
                "leave some memory of the GPU free: a smaller batch, torch.cuda.empty_cache() before, or"
                " torch.linalg.inv(torch.eye(2, device='cuda')) once at the start, which makes the handle early",
                when=lambda case: "Create" in (case.given.get("call") or ""),
            ),
            Advice(
                "test torch.isfinite(x).all() just before, and try x.double()",
                when=lambda case: "Create" not in (case.given.get("call") or ""),
            ),
            "take the other library: torch.backends.cuda.preferred_linalg_library('magma'), or the CPU for small matrices",
        ),
        check="`nvidia-smi` while it runs",
        examples=(
            Example(
                "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
                says=("cusolverDnCreate", "empty_cache"),
            ),
        ),
        knowledge="PyTorch: torch.backends.cuda.preferred_linalg_library",
    ),
    # Starting CUDA.
    Failure(
        id="startup.cuda_device_count",
        kind=LogClass.STARTUP,
        what="CUDA could not count the GPUs.",
        signs=(
            sign(
                "Unexpected error from cudaGetDeviceCount",
                r"Unexpected error from cudaGetDeviceCount\(\)[\s\S]{0,200}?Error (?P<number>\d+): (?P<text>[^(\n]{3,80}?)(?: \(|$)",
            ),
        ),
        headline=_device_count,
        why=lambda case: _DEVICE_COUNT.get(
            case.given["number"], "the driver answered, and could not be used by this process"
        ),
        next=(
            Advice(
                "see who holds the memory (`nvidia-smi`), and end it; under WSL raise memory in .wslconfig and update the driver"
                " of Windows, and try fewer GPUs (CUDA_VISIBLE_DEVICES=0)",
                when=lambda case: case.given["number"] == "2",
            ),
            Advice(
                "check CUDA_VISIBLE_DEVICES: `nvidia-smi -L` lists the GPUs",
                when=lambda case: case.given["number"] in ("1", "101"),
            ),
            "run `nvidia-smi` in the same shell or container: if it fails, too, the driver has to be mended (reboot"
            " after an update; modprobe nvidia_uvm)",
            "in a container: start it with --gpus all, and see that ls -l /dev/nvidia* shows nvidia-uvm and each GPU",
        ),
        check="`nvidia-smi`, `ls -l /dev/nvidia*`",
        examples=(
            Example(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
                " NumCudaDevices() that might have already set an error? Error 2: out of memory",
                source="hiyouga/LlamaFactory#7521",
                says=("error 2", "WSL"),
            ),
            Example(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
                " NumCudaDevices() that might have already set an error? Error 304: OS call failed or operation not supported on"
                " this OS",
                says=("304", "/dev/nvidia"),
            ),
        ),
        knowledge="CUDA runtime API: cudaError; c10/cuda/CUDAFunctions.cpp",
    ),
    Failure(
        id="startup.driver_unreachable",
        kind=LogClass.STARTUP,
        what="The tools of NVIDIA cannot reach the driver.",
        signs=(
            sign("communicate with the NVIDIA driver", r"NVIDIA-SMI has failed because it couldn't communicate with"),
            sign("you might not have a CUDA gpu", r"CUDA driver initialization failed, you might not have a CUDA gpu"),
        ),
        headline="The NVIDIA driver does not answer on this machine, or could not be started",
        why="its kernel module is missing for the running kernel (an update of the kernel, Secure Boot, a driver that"
        " was not rebuilt), the GPU is gone, or the machine has none",
        next=(
            "look: `lsmod | grep nvidia`, `dmesg -T | grep -iE 'nvrm|nvidia'`, `lspci | grep -i nvidia`",
            "rebuild or reinstall the driver for the running kernel (dkms status; apt install --reinstall nvidia-driver-NNN"
            " linux-headers-$(uname -r)) and reboot; with Secure Boot enrol its key",
            "in a container or a cloud notebook: check that the machine has a GPU at all and that it is passed in (--gpus all)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
                " driver is installed and running.",
                says=("dkms", "Secure Boot"),
            ),
        ),
        knowledge="NVIDIA's driver installation guide",
    ),
    Failure(
        id="startup.container_lost_gpu",
        kind=LogClass.STARTUP,
        what="A running container lost its access to the GPUs.",
        signs=(sign("Failed to initialize NVML: Unknown Error"),),
        headline="NVML cannot be initialised (unknown error), most often in a container that lost its GPUs",
        why="most often a running container lost it: `systemctl daemon-reload` on the host rewrites the rules of the"
        " container's cgroup, and the devices that the NVIDIA runtime had added are dropped; programs that run"
        " keep the GPU, new ones do not get it",
        next=(
            "restart the container: that brings the GPUs back if it had them",
            "to keep it from coming back: pass the devices explicitly (--device /dev/nvidia0 --device /dev/nvidiactl --device"
            " /dev/nvidia-uvm), use CDI, or set the cgroup driver of Docker to cgroupfs",
        ),
        check="`nvidia-smi` works on the host and fails in the container",
        rules_out="it fails on the host, too: then it is the driver",
        event=EventKind.KNOWN,
        examples=(
            Example("Failed to initialize NVML: Unknown Error", source="NVIDIA/nvidia-docker#1671", says=("restart",)),
        ),
        knowledge="NVIDIA/nvidia-docker#1671; NVIDIA Container Toolkit: troubleshooting",
    ),
    Failure(
        id="startup.container_without_gpu",
        kind=LogClass.STARTUP,
        what="Docker cannot give a container the GPUs.",
        signs=(
            sign(
                "could not select device driver",
                r"could not select device driver \"[^\"\n]{0,20}\" with capabilities: \[\[gpu\]\]",
            ),
            sign("nknown runtime specified nvidia"),
            sign("nknown or invalid runtime name: nvidia"),
        ),
        headline="Docker has no NVIDIA runtime: the container toolkit is not installed or not set up",
        why="--gpus and --runtime=nvidia need the NVIDIA Container Toolkit, and Docker has to be restarted after its setup",
        next=(
            "install it on the host and set it up: apt-get install nvidia-container-toolkit, nvidia-ctk runtime configure"
            " --runtime=docker, systemctl restart docker",
            "test: docker run --rm --gpus all ubuntu nvidia-smi (Docker of snap does not support it: use the package of Docker)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
                says=("nvidia-container-toolkit", "restart docker"),
            ),
            Example(
                "docker: Error response from daemon: Unknown runtime specified nvidia.",
                source="NVIDIA/nvidia-docker#951",
            ),
        ),
        knowledge="NVIDIA Container Toolkit: installation guide",
    ),
    Failure(
        id="startup.slurm_program",
        kind=LogClass.STARTUP,
        what="Slurm cannot find the program of a step on the node.",
        signs=(
            sign(
                "execve()",
                r"slurmstepd: error: execve\(\): (?P<name>[^:\n]{1,120}): (?P<reason>No such file|Permission denied)",
            ),
        ),
        headline=lambda case: (
            f"Slurm finds no program {case.given['name'][:40]} on the node"
            if case.given["reason"].startswith("No")
            else f"Slurm may not start {case.given['name'][:40]}: permission denied"
        ),
        why=lambda case: (
            "the environment of the step has another PATH, the folder is not mounted on that node, or the interpreter"
            " in the first line of a script is missing"
            if case.given["reason"].startswith("No")
            else "the file is not executable, or its file system is mounted without execution"
        ),
        next=(
            "activate the environment in the batch script before srun, and give the full path of the program (srun"
            " $(which python) ...); a script needs chmod +x and a first line with its interpreter",
            "check it on the node: srun -N1 -w NODE which python",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example("slurmstepd: error: execve(): python: No such file or directory", says=("python", "full path")),
        ),
        knowledge="Slurm: srun",
    ),
    # Libraries of threads.
    Failure(
        id="software.two_openmp",
        kind=LogClass.CRASHED,
        what="Two copies of Intel's OpenMP are loaded in one process.",
        signs=(sign("OMP: Error", r"OMP: Error #15: Initializing (?P<library>\S+?),? but found"),),
        headline="Two copies of OpenMP ({library}) are loaded in one process",
        why="PyTorch, NumPy with MKL, scikit-learn and others each bring one, and conda and pip do not know of each other's",
        next=(
            "keep one: find them (conda: find $CONDA_PREFIX -name 'libiomp5*'), and install PyTorch and NumPy from the same source"
            " (both pip, or conda install nomkl)",
            "as a stopgap KMP_DUPLICATE_LIB_OK=TRUE before Python starts: it runs, and may be slow or wrong",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "OMP: Error #15: Initializing libiomp5.dylib, but found libiomp5.dylib already initialized.",
                says=("libiomp5", "KMP_DUPLICATE_LIB_OK"),
            ),
        ),
        knowledge="Intel's OpenMP runtime: KMP_DUPLICATE_LIB_OK",
    ),
    Failure(
        id="software.mkl_threads",
        kind=LogClass.CRASHED,
        what="MKL's threading layer does not go with the OpenMP that is loaded.",
        signs=(sign("MKL_THREADING_LAYER=INTEL is incompatible"),),
        headline="MKL wants Intel's OpenMP, and GNU's (libgomp) was loaded before it",
        why="another library loaded libgomp before NumPy loaded MKL; child processes inherit the setting",
        next=(
            "set MKL_THREADING_LAYER=GNU (or MKL_SERVICE_FORCE_INTEL=1) before Python starts",
            "or import numpy before torch in the script",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp-7c85b1e2.so.1 library.",
                says=("MKL_THREADING_LAYER=GNU",),
            ),
        ),
        knowledge="pytorch/pytorch#37377",
    ),
    Failure(
        id="software.mkl_missing",
        kind=LogClass.CRASHED,
        what="MKL cannot load one of its own libraries.",
        signs=(sign("Intel MKL FATAL ERROR", r"Intel MKL FATAL ERROR: Cannot load (?P<library>\S+?)\.?$"),),
        headline="MKL cannot load its library {library}",
        why="most often the installation is incomplete, or parts of MKL of two versions, or of conda and pip, stand in"
        " one environment",
        next=(
            "reinstall it in a clean environment: conda install -f numpy mkl, or pip install --force-reinstall numpy mkl; do not mix"
            " both",
            "unset LD_LIBRARY_PATH as a test: an MKL of the system may come first",
        ),
        event=EventKind.KNOWN,
        examples=(Example("Intel MKL FATAL ERROR: Cannot load libmkl_core.so.", says=("libmkl_core.so",)),),
        knowledge="Intel MKL: linking",
    ),
    Failure(
        id="software.static_tls",
        kind=LogClass.CRASHED,
        what="A library was loaded too late: no room is left for its thread-local data.",
        signs=(
            sign(
                "in static TLS block",
                r"(?P<library>[\w.+-]{3,120}\.so[\w.]{0,20}): cannot allocate memory in static TLS block",
            ),
        ),
        headline="{library} was loaded too late: the room for thread-local data is used up",
        why="the C library reserves a fixed room for such data, and libraries that were loaded before have taken it (most often on"
        " ARM); the memory of the machine is not the point",
        next=(
            "load it first: LD_PRELOAD=/path/of/{library} before Python, or import the package that has it (torch, sklearn, cv2)"
            " at the top of the script",
            "or raise the room: GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096",
        ),
        examples=(
            Example(
                "ImportError: /lib/aarch64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block",
                says=("libgomp.so.1", "LD_PRELOAD"),
            ),
        ),
        knowledge="glibc: tunables of the dynamic linker",
    ),
    # Notebooks and shells.
    Failure(
        id="host.notebook_memory",
        kind=LogClass.HOST_OOM,
        what="A notebook service ended the session because its host memory was used up.",
        signs=(
            sign("session crashed after using all available RAM"),
            sign("notebook tried to allocate more memory than is available"),
        ),
        headline="The notebook's host memory (RAM) was used up, and the service ended the session",
        why="it is the memory of the machine, not of the GPU: data that is held whole in memory, copies in workers, or a"
        " checkpoint that is loaded on the CPU",
        next=(
            "load the data in pieces: memory-mapped arrays (np.load(..., mmap_mode='r')), datasets with streaming=True, float32 in"
            " place of float64, and del what is no longer needed",
            "load a model with low_cpu_mem_usage=True or device_map, and use num_workers=0 to 2",
            "or take a runtime with more memory; a smaller batch helps only if batches are what fills it",
        ),
        check="the RAM display of the notebook, or psutil.virtual_memory() after each cell",
        rules_out="CUDA out of memory, which is an exception of its own",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Your session crashed after using all available RAM. If you are interested in access to high-RAM runtimes, you may"
                " want to check out Colab Pro.",
                source="PV-Lab/FTCP#8",
                says=("not of the GPU", "mmap_mode"),
            ),
            Example(
                "Your notebook tried to allocate more memory than is available. It has restarted.",
                says=("streaming=True",),
            ),
        ),
        knowledge="Colab's and Kaggle's FAQ",
    ),
    Failure(
        id="host.notebook_died",
        kind=LogClass.SIGNAL,
        what="The process behind a notebook ended without an exception.",
        signs=(
            sign("ernel appears to have died"),
            sign("ernel crashed while executing code"),
            sign("Kernel died, restarting"),
            sign("Kernel died before replying"),
        ),
        headline="The notebook's Python process ended without an exception: killed, or crashed",
        why="a notebook only sees that its kernel is gone; most often host memory was full, or native code crashed",
        next=(
            "run the same code as a script (jupyter nbconvert --to script) in a terminal: it then prints the signal or the message",
            "watch the host's memory (free -h, `dmesg -T | grep -i 'killed process'`), and use less of it if it was the OOM killer",
            "if it dies at the import or the first GPU call: libraries that do not fit (two OpenMPs: KMP_DUPLICATE_LIB_OK=TRUE as a"
            " test; python -X faulthandler shows the line)",
        ),
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "The kernel appears to have died. It will restart automatically.",
                says=("as a script", "killed process"),
            ),
            Example(
                "The Kernel crashed while executing code in the current cell or a previous cell.",
                says=("faulthandler",),
            ),
        ),
        knowledge="Jupyter's and VS Code's messages",
    ),
    Failure(
        id="host.shell_job_killed",
        kind=LogClass.SIGNAL,
        what="The shell reports that a program was ended by a signal.",
        signs=(
            sign("killed", r"^\[\d+\]\s{1,6}[+-]?\s{0,4}\d+ (?P<how>killed)\b"),
            sign("Killed ", r"^\[\d+\][+-]?\s{1,6}(?P<how>Killed)\s{2,40}\S"),
            sign("segmentation fault", r"^\[\d+\]\s{1,6}[+-]?\s{0,4}\d+ (?P<how>segmentation fault)\b"),
            sign(
                "illegal hardware instruction",
                r"^\[\d+\]\s{1,6}[+-]?\s{0,4}\d+ (?P<how>illegal hardware instruction)\b",
            ),
        ),
        headline=lambda case: {
            "killed": "The program was killed (SIGKILL), most often for host memory",
            "segmentation fault": "The program crashed in native code (segmentation fault)",
        }.get(case.given["how"].lower(), "The program ended at an illegal instruction (SIGILL)"),
        why=lambda case: {
            "killed": "SIGKILL leaves no exception; most often the kernel's OOM killer sent it, else a scheduler, a parent"
            " program or a person",
            "segmentation fault": "most often an extension or a library read or wrote memory that is not its own",
        }.get(case.given["how"].lower(), "most often a library was compiled for another processor"),
        next=(
            lambda case: {
                "killed": "look: `dmesg -T | grep -i 'killed process'`; if it was the OOM killer, load less at once (smaller model or"
                " dtype, fewer workers, low_cpu_mem_usage=True), or use a machine with more memory",
                "segmentation fault": "run with `python -X faulthandler`: it prints the line; update or reinstall the library of its"
                " innermost frame",
            }.get(
                case.given["how"].lower(),
                "install builds for this processor: an x86 Python under Rosetta, or packages that need AVX, end so",
            ),
        ),
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[1]    75076 killed     python main.py --model allenai/unifiedqa-t5-base",
                source="amazon-science/mm-cot#25",
                says=("SIGKILL", "dmesg"),
            ),
            Example("[1]    10561 segmentation fault  khoj", source="khoj-ai/khoj#385", says=("faulthandler",)),
        ),
        knowledge="zsh: jobs; signal(7)",
    ),
    # Other accelerators.
    Failure(
        id="hardware.rocblas_library",
        kind=LogClass.CRASHED,
        what="rocBLAS has no kernels for this AMD GPU.",
        signs=(
            sign(
                "rocBLAS error",
                r"rocBLAS error: Cannot read [^\n]{0,200}?TensileLibrary[^\n]{0,200}?(?:GPU arch : (?P<gpu>gfx\w+)|$)",
            ),
        ),
        headline=lambda case: (
            f"rocBLAS finds no kernels for this AMD GPU{' (' + gpu + ')' if (gpu := case.given.get('gpu')) else ''}"
        ),
        why="ROCm is built for some GPUs; others of the same generation often run the kernels of their sibling",
        next=(
            "if the machine has a second GPU that is supported (this may be the one in the processor), choose it:"
            " HIP_VISIBLE_DEVICES; else let it pass as its supported sibling (not under Windows):"
            " HSA_OVERRIDE_GFX_VERSION=10.3.0 for gfx103x, 11.0.0 for gfx110x (9.0.0 for gfx90c)",
            "or install a build that has it (newer ROCm, TheRock's nightly builds)",
        ),
        check="`rocminfo | grep gfx`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch"
                " : gfx1032",
                says=("gfx1032", "HSA_OVERRIDE_GFX_VERSION"),
            ),
        ),
        knowledge="ROCm: compatibility matrix",
    ),
    Failure(
        id="hardware.miopen",
        kind=LogClass.CRASHED,
        what="MIOpen, AMD's library of convolutions, failed.",
        signs=(sign("miopenStatus", r"(?P<status>miopenStatus(?!Success)\w+)"),),
        headline="MIOpen (AMD's convolutions) failed: {status}",
        why="it compiles and tunes kernels at first use: a full or locked cache, missing kernel packages, a compiler that does not"
        " fit, or a GPU that it does not support",
        next=(
            "read what it did: MIOPEN_ENABLE_LOGGING=1 MIOPEN_LOG_LEVEL=5",
            "clear its caches (~/.cache/miopen, ~/.config/miopen), or give each rank its own: MIOPEN_USER_DB_PATH and"
            " MIOPEN_CUSTOM_CACHE_DIR on a local disk",
            "check that ROCm, the driver and PyTorch's ROCm are of one version, and the free memory of the GPU",
        ),
        examples=(
            Example(
                "RuntimeError: miopenStatusUnknownError",
                source="ROCm/legacy-rocm-build#2587",
                says=("miopenStatusUnknownError", "MIOPEN_LOG_LEVEL"),
            ),
        ),
        knowledge="MIOpen: debugging and logging",
    ),
    Failure(
        id="startup.no_xpu",
        kind=LogClass.STARTUP,
        what="PyTorch sees no Intel GPU.",
        signs=(
            sign("XPU device count is zero"),
            sign("No XPU devices", r"No XPU devices (?:are available|found)"),
            sign("not compiled with XPU support"),
        ),
        headline=lambda case: (
            "This PyTorch is not compiled with XPU support, and cannot use an Intel GPU"
            if "not compiled with XPU" in case.lead.message
            else "PyTorch sees no Intel GPU (XPU)"
        ),
        why="PyTorch is not the XPU build, the driver (Level Zero, compute runtime) is missing, or the user may not"
        " open /dev/dri",
        next=(
            "install the XPU build: pip install torch --index-url https://download.pytorch.org/whl/xpu, and the driver packages"
            " (intel-opencl-icd, libze1, libze-intel-gpu1)",
            "let the user open the device: usermod -aG render,video $USER, and log in again; in a container pass --device /dev/dri",
            "unset ZE_AFFINITY_MASK and ONEAPI_DEVICE_SELECTOR as a test",
        ),
        check="`sycl-ls` must list a level_zero GPU",
        examples=(
            Example("RuntimeError: XPU device count is zero", says=("libze", "render")),
            Example("AssertionError: Torch not compiled with XPU support", says=("cannot use an Intel GPU",)),
        ),
        knowledge="PyTorch: getting started on Intel GPU",
    ),
    Failure(
        id="startup.pjrt_device",
        kind=LogClass.STARTUP,
        what="torch_xla does not know or cannot open its device.",
        signs=(
            sign("PJRT_DEVICE is not set"),
            sign("Missing XLA configuration"),
            sign("TPU initialization failed", r"TPU initialization failed: (?!open)(?P<reason>[^\n]{3,160})"),
        ),
        headline=lambda case: (
            "torch_xla cannot open the TPU"
            if case.given.get("reason")
            else "PJRT_DEVICE, the device of torch_xla, is not set"
        ),
        why=lambda case: (
            f"the TPU's library says: {case.given['reason'].strip()}"
            if case.given.get("reason")
            else "it takes the device from the environment, and a notebook or ssh session may not have it"
        ),
        next=(
            Advice(
                "set it before torch_xla is imported: PJRT_DEVICE=TPU (or CUDA, CPU); old code sets XRT_TPU_CONFIG, which"
                " newer versions do not read",
                when=lambda case: not case.given.get("reason"),
            ),
            Advice(
                "the environment names other hosts than the slice has: before torch_xla is imported remove TPU_PROCESS_ADDRESSES and"
                " CLOUD_TPU_TASK_ID (os.environ.pop; Kaggle and Colab set them), or give the addresses of all hosts",
                when=lambda case: "worker_addresses" in (case.given.get("reason") or ""),
            ),
            Advice(
                "if another process holds it, end that (sudo lsof /dev/accel* /dev/vfio/*; another notebook or a crashed"
                " run), restart the TPU VM, and see that all hosts of a pod start the program at the same time",
                when=lambda case: bool(case.given.get("reason")) and "worker_addresses" not in case.given["reason"],
            ),
            "compare the versions of torch, torch_xla and libtpu (pip list | grep -iE 'torch|libtpu'): they must belong together",
        ),
        examples=(
            Example(
                "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: Invalid --2a886c8_slice_builder_worker_addresses"
                " specified. Expected 4 worker addresses, got 1.",
                source="huggingface/transformers#28204",
                says=("TPU_PROCESS_ADDRESSES",),
            ),
            Example(
                "RuntimeError: torch_xla/csrc/runtime/runtime.cc:31 : $PJRT_DEVICE is not set.",
                says=("PJRT_DEVICE=TPU",),
            ),
            Example(
                "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: Failed to connect to TPU",
                says=("Failed to connect", "lsof"),
            ),
        ),
        knowledge="torch_xla: PJRT runtime",
    ),
    Failure(
        id="startup.requested_gpus",
        kind=LogClass.STARTUP,
        what="A framework was asked for GPUs that the process does not see.",
        signs=(
            sign(
                "You requested",
                r"You requested (?:gpu|GPU)s?: ?(?P<wanted>\[[\d, ]*\])\s{1,4}But your machine only has: ?\[(?P<has>[\d, ]*)\]",
            ),
            sign("No supported gpu backend found", r"No supported gpu backend found(?P<has>)"),
            sign("can not run on your system", r"CUDAAccelerator`? can not run on your system(?P<has>)"),
        ),
        headline=lambda case: (
            f"GPUs {case.given['wanted']} were asked for, and this process sees only [{case.given['has']}]"
            if case.given["has"]
            else "A GPU was asked for, and this process sees none"
        ),
        why=lambda case: (
            "the machine has fewer, or CUDA_VISIBLE_DEVICES or the job's allocation leaves fewer; they are counted from 0"
            if case.given["has"]
            else "the container was started without the GPUs, the job or the machine has none, the driver does not work, or"
            " PyTorch is a build without CUDA"
        ),
        next=(
            Advice(
                "ask for as many as there are: devices={has}, or devices='auto'",
                when=lambda case: bool(case.given["has"]),
            ),
            Advice(
                "give the container the GPUs: singularity or apptainer with --nv (AMD: --rocm), docker --gpus all; and the job: Slurm"
                " --gres=gpu:1",
                when=lambda case: not case.given["has"],
            ),
            Advice(
                "if `nvidia-smi` shows them in the same place: print torch.version.cuda and torch.cuda.is_available(); without CUDA"
                " install the CUDA build of PyTorch",
                when=lambda case: not case.given["has"],
            ),
        ),
        check='python -c "import torch; print(torch.version.cuda, torch.cuda.device_count())" in the same place',
        examples=(
            Example(
                "pytorch_lightning.utilities.exceptions.MisconfigurationException: You requested GPUs: [0]\n"
                " But your machine only has: []",
                source="apptainer/singularity#6203",
                says=("--nv", "sees none"),
            ),
            Example(
                "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n"
                " But your machine only has: [0, 1]",
                says=("[0, 1]", "devices"),
            ),
            Example(
                "lightning_fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
                says=("--gpus all",),
            ),
        ),
        knowledge="apptainer/singularity#6203; Lightning: accelerators",
    ),
    Failure(
        id="hardware.xla_shapes",
        kind=LogClass.CRASHED,
        what="Sizes do not fit in an operation or a collective of torch_xla.",
        signs=(
            sign("Check failed: dim", r"Check failed: dim1 == dim2(?P<replicas>)"),
            sign(
                "replica groups should contain",
                r"replica groups should contain (?P<replicas>\d+) replicas, but found (?P<found>\d+)",
            ),
        ),
        headline=lambda case: (
            f"A collective on the TPU names {case.given['found']} of {case.given['replicas']} replicas: all must be in its groups"
            if case.given["replicas"]
            else "Two tensors of an operation on the XLA device have sizes that do not fit"
        ),
        why=lambda case: (
            "XLA compiles one program for all replicas, so each must be in exactly one group of a collective"
            if case.given["replicas"]
            else "one dimension differs and is 1 in neither; for example a cache of keys and values that grows, or a batch"
            " of another length"
        ),
        next=(
            Advice(
                "give groups that together have all replicas ([[0, 1], [2, 3], ...]), or start only as many processes as take part",
                when=lambda case: bool(case.given["replicas"]),
            ),
            Advice(
                "set use_cache=False for a language model in training, and pad to fixed lengths; the frame of your code names the line"
                " (XLA works later: torch_xla.sync() or PT_XLA_DEBUG=1 to find it)",
                when=lambda case: not case.given["replicas"],
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: torch_xla/csrc/helpers.cpp:589 : Check failed: dim1 == dim2 || dim1 == 1 || dim2 == 1 || dim1 =="
                " xla::Shape::kUnboundedSize || dim2 == xla::Shape::kUnboundedSize ",
                source="pytorch/xla#7138",
                says=("use_cache=False",),
            ),
            Example(
                "RuntimeError: Bad StatusOr access: INTERNAL: during context [pre-optimization]: RET_CHECK failure"
                " (hlo_verifier.cc:402) replica_count == 1 || n == replica_count In kCrossReplica mode, replica groups should contain"
                " 8 replicas, but found 2: %all-gather.20571",
                source="pytorch/xla#8271",
                says=("2 of 8",),
            ),
        ),
        knowledge="pytorch/xla#7138, pytorch/xla#8271",
    ),
    Failure(
        id="hardware.mps_kernel",
        kind=LogClass.CRASHED,
        what="Apple's graph library stopped the process on a shape that it cannot handle.",
        signs=(
            sign("MPSKernelDAG"),
            sign("MPSNDArray", r"failed assertion `\[MPS\w+[^\n]{0,200}"),
            sign("Failed to infer result type", r"LLVM ERROR: Failed to infer result type"),
        ),
        headline=lambda case: (
            "A tensor is too large for Apple's GPU library"
            if re.search(r"product of dimension sizes|> ?(?:2\*\*|INT_MAX)", _text_around(case))
            else "Apple's GPU library stopped the process: it cannot handle a shape or operation"
        ),
        why="these checks end the process, without an exception of Python",
        next=(
            "if the message is about a size, make the tensor smaller: a smaller batch, a shorter sequence, attention"
            " in slices (pipe.enable_attention_slicing())",
            "update macOS and PyTorch: many such checks were mended; or run that part on the CPU",
        ),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "/AppleInternal/Library/BuildRoots/x/MPSCore/Types/MPSNDArray.mm:805: failed assertion `[MPSNDArray,"
                " initWithBuffer:descriptor:] Error: product of dimension sizes > 2**31'",
                says=("too large", "smaller batch"),
            ),
        ),
        knowledge="PyTorch's issues with the label module: mps",
    ),
    Failure(
        id="hardware.mps_command_buffer",
        kind=LogClass.CRASHED,
        what="The Apple GPU did not finish work that PyTorch had given to it.",
        signs=(
            sign("ommand buffer exited with error status"),
            sign("ommand buffer execution failed"),
        ),
        headline=lambda case: (
            "The Apple GPU ran out of memory"
            if "Insufficient Memory" in _text_around(case)
            else "The Apple GPU stopped work that took too long or hung"
            if re.search(r"GPU (?:Timeout|Hang) Error", _text_around(case))
            else "The Apple GPU did not finish a command buffer; results of that step may be wrong"
        ),
        why="Metal reports it beside the program: PyTorch may go on, and the tensors of that step hold anything, often NaN",
        next=(
            Advice(
                "use less memory: a smaller batch or sequence, fewer other programs on the GPU",
                when=lambda case: "Insufficient Memory" in _text_around(case),
            ),
            Advice(
                "if it took too long, make single operations shorter: a smaller batch, image or sequence",
                when=lambda case: "Insufficient Memory" not in _text_around(case),
            ),
            "update macOS and PyTorch; if it comes again, find the operation by running with device='cpu', part by part",
            "do not go on from checkpoints that were written after the message, if the loss became NaN",
        ),
        tier=Tier.NATIVE_CRASH,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Error: command buffer exited with error status.\n"
                "\tThe Metal Performance Shaders operations encoded on it may not have completed.\n"
                "\tError: \n"
                "\t(null)\n"
                "\tInternal Error (0000000e:Internal Error)",
                source="pytorch/pytorch#119968",
                says=("Apple GPU", "smaller batch"),
            ),
            Example(
                "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed:"
                " Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
                source="lyogavin/airllm#367",
                says=("took too long",),
            ),
        ),
        knowledge="Metal: MTLCommandBufferError",
    ),
    Failure(
        id="startup.engine_profiling",
        kind=LogClass.STARTUP,
        what="vLLM measured the GPU's memory while another process freed some.",
        signs=(sign("Error in memory profiling", r"Error in memory profiling[\s\S]{0,300}?nitial free memory"),),
        headline="vLLM's memory profiling ended with more free GPU memory than it began with",
        why="it compares the free memory before and after a test run; an earlier process that ends, a second engine,"
        " or a training that gives memory back in the meantime, makes the result absurd",
        next=(
            "start one engine after the other on a GPU, and wait until an earlier process has ended (`nvidia-smi` shows none)",
            "in RL training: free the training's memory (torch.cuda.empty_cache(), sleep mode) before the engine is built",
        ),
        examples=(
            Example(
                "AssertionError: Error in memory profiling. Initial free memory 30.1, current free memory 35.2. This happens when the"
                " GPU memory was not properly cleaned up before initializing the vLLM instance.",
                says=("one engine after the other",),
            ),
        ),
        knowledge="vLLM: worker's determine_available_memory",
    ),
)
