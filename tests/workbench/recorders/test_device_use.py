"""The memory of this process on a GPU, as NVML tells it: against a library in C with NVML's structs, and without it."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import distributed

from workbench.recorders.memory.device_use import nccl_groups, process_bytes

UUID = "c0ffee00-1234-5678-9abc-def012345678"
NVML = """
#include <string.h>
#include <stdlib.h>
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_t;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)1;
    return strcmp(uuid, "GPU-c0ffee00-1234-5678-9abc-def012345678") ? 2 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, nvmlProcessInfo_t *infos) {
    const char *pids = getenv("PIDS");
    unsigned int found = 0;
    while (*pids) {
        char *end;
        infos[found].pid = strtoul(pids, &end, 10);
        infos[found].usedGpuMemory = (found + 1) * 10000000000ULL;
        infos[found].gpuInstanceId = infos[found].computeInstanceId = 0xFFFFFFFF;
        pids = *end ? end + 1 : end;
        found++;
    }
    *count = found;
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fixture: a folder with a library that stands in for NVML and lists the processes in PIDS."""
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"], check=True)
    return folder


def asked(folder, pids, uuid=UUID):
    """Return what a new process is told about itself; `pids` are those on the device, `self` for the new one."""
    code = (
        "import os, sys; os.environ['PIDS'] = sys.argv[1].replace('self', str(os.getpid()));"
        "from workbench.recorders.memory.device_use import process_bytes; print(process_bytes(sys.argv[2]))"
    )
    settings = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code, pids, uuid], env=settings, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_the_process_finds_itself_among_others(folder):
    assert asked(folder, "1,self,2") == "20000000000"


def test_a_single_process_is_this_one_although_its_number_is_another(folder):
    assert asked(folder, "1") == "10000000000"


@pytest.mark.parametrize(("pids", "uuid"), [("1,2", UUID), ("", UUID), ("self", "another")])
def test_what_is_not_known_is_not_guessed(folder, pids, uuid):
    assert asked(folder, pids, uuid) == "None"


def test_without_a_driver_nothing_is_told():
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    assert process_bytes(UUID) is None


def test_groups_without_nccl_are_not_counted(tmp_path):
    assert nccl_groups() == 0
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert nccl_groups() == 0
    finally:
        distributed.destroy_process_group()
