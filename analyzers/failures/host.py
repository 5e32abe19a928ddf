"""Failures of the host: its memory, its limits, and the schedulers and containers that end jobs."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import who
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of
from analyzers.words import size

_FOLLOWS = ("processes.*", "data.worker", "data.worker_killed", "data.worker_exited", "exceptions.other", "network.*",
            "collectives.*")  # fmt: skip
"""What follows from the death of a process by a lack of host memory, although it may be printed first."""
_LESS_HOST_MEMORY = (
    "use less host memory for each rank: fewer DataLoader workers and a smaller prefetch_factor, no data set that is"
    " held in memory, checkpoints loaded with mmap=True, less that is offloaded to the CPU"
)
_KIB = 1024

# Ray.

_MONITOR = (
    r"Task was killed due to the node running low on memory[\s\S]{0,300}?"
    r"(?:name=(?P<task>[^,)]{1,120}), pid=\d+, memory used=(?P<own>[\d.]+)GB\))?[^()]{0,60}was running was"
    r" (?P<used>[\d.]+)GB ?/ ?(?P<total>[\d.]+)GB \([\d.]+\), which exceeds the memory usage threshold of"
    r" (?P<limit>[\d.]+)"
)
_USER = re.compile(r"^\s*\d{1,9}\s+(?P<gigabytes>\d[\d.]*)\s+(?P<command>\S.{0,200})$", re.MULTILINE)


def _ray_headline(case: Case) -> str:
    """Return the headline for Ray's memory monitor, with the memory of the node if it is printed."""
    if case.given.get("used"):
        return (
            f"Host memory of the node was full ({case.given['used']} of {case.given['total']} GB), so Ray killed a"
            " worker"
        )
    return "Host memory of a node ran out, and Ray's memory monitor stopped a worker"


def _ray_why(case: Case) -> str:
    """Return why Ray killed this worker, with what it used and the largest processes if they are printed."""
    own, used = case.given.get("own"), case.given.get("used")
    text = "Ray kills the task that it can restart best, often the youngest one, which need not use most"
    if own and used:
        is_most = 2 * float(own) > float(used)
        text += f"; the killed one used {own} of the {used} GB" + ("" if is_most else ", so the rest belongs to others")
    largest: dict[str, float] = {}
    for found in _USER.finditer(text_of(case.lead)):
        command = found["command"].partition(" ")[0]
        # Of an actor's methods each has a name of its own.
        name = command.partition(".")[0] if command.startswith("ray::") else command.rpartition("/")[2]
        name = name[:60]
        largest[name] = largest.get(name, 0.0) + float(found["gigabytes"])
    first = sorted(largest.items(), key=lambda item: -item[1])[:3]
    if first:
        text += "; the largest in its table: " + ", ".join(f"{name} {amount:.1f} GB" for name, amount in first)
    return text.replace("{", "(").replace("}", ")")


_RAY_NEXT = (
    "find the process that grows in Ray's table of the top memory users (`ray logs raylet.out -ip NODE`), and"
    " give it less: fewer workers or environments on the node, less offload to the CPU, smaller batches of"
    " rollouts; or a node with more memory",
    "if the memory grows from step to step, look for what is kept: references in the object store (`ray memory"
    " --stats-only`), results in lists, a dataloader with state",
    "raising RAY_memory_usage_threshold only helps if the rest of the node's memory is really free",
)

# DeepSpeed prints the memory of the host while it is set up.

_CPU_MEMORY = sign("CPU Virtual Memory", r"CPU Virtual Memory: {1,3}used = (?P<used>[\d.]+) GB, percent = [\d.]+%")
_NEARLY_FULL = 70.0


def _cpu_memory(case: Case) -> tuple[str, float] | None:
    """Return the memory of the host that DeepSpeed printed last, in GB as text, and its share in percent."""
    lines = (event.message for event in case.events if event.kind is EventKind.CLUE)
    found = [m for line in lines if (m := re.search(r"used = ([\d.]+) GB, percent = ([\d.]+)%", line))]
    return (found[-1][1], float(found[-1][2])) if found else None


def _is_nearly_full(case: Case) -> bool:
    """Return whether the memory of the host was nearly full when DeepSpeed printed it last."""
    memory = _cpu_memory(case)
    return memory is not None and memory[1] >= _NEARLY_FULL


def _deepspeed_headline(case: Case) -> str:
    """Return the headline for a rank of DeepSpeed that SIGKILL ended."""
    memory = _cpu_memory(case)
    if memory and _is_nearly_full(case):
        return f"A rank was killed with the host's memory {memory[1]:.0f} % full ({memory[0]} GB used)"
    return "A rank of DeepSpeed was killed by SIGKILL (return code -9), most often for host memory"


def _ended_headline(case: Case) -> str:
    """Return the headline for processes that DeepSpeed's launcher ended, as far as the host's memory is known."""
    memory = _cpu_memory(case)
    if memory and _is_nearly_full(case):
        return f"DeepSpeed's ranks ended with the host's memory {memory[1]:.0f} % full ({memory[0]} GB used)"
    return "DeepSpeed's launcher ended its ranks: one of them had failed, or it was asked to stop"


_LESS_OFFLOAD = (
    "offload less to the CPU: keep the parameters on the GPU (offload_param: none), or offload to NVMe instead; give the"
    " job more host memory, or more ranks, which share what is offloaded"
)


def _killed_bytes(case: Case) -> str:
    """Return the resident memory of a process that the kernel killed, as a clause; empty if not printed."""
    printed = re.search(r"anon-rss:(\d{1,15})kB", text_of(case.lead))
    shared = re.search(r"shmem-rss:(\d{1,15})kB", text_of(case.lead))
    kilobytes = sum(int(found[1]) for found in (printed, shared) if found)
    return f"; the process used {size(kilobytes * _KIB)}" if kilobytes else ""


def _process(case: Case) -> str:
    """Return the process that the kernel killed, as `python3 (pid 25315)`."""
    name, pid = case.given.get("name") or "a process", case.given.get("pid")
    return f"{name} (pid {pid})" if pid else name


def _slurm_headline(case: Case) -> str:
    """Return the headline for a job that reached its memory limit, with the nodes that the log names."""
    hosts = sorted({event.facts.host for event in case.failure.events if event.facts.host})
    where = f" on {', '.join(hosts[:3])}" if hosts else ""
    whom = f"{who(case.ranks)} (SIGKILL)" if case.ranks else "a process"
    return f"The job's memory limit was reached{where}: Slurm's cgroup killed {whom}"


# Requests that failed.


def _asked(case: Case) -> int:
    """Return how many bytes a failed request to the host's memory asked for."""
    given = case.given
    if given.get("bytes"):
        return int(given["bytes"])
    units = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
    amount, unit = given.get("amount"), given.get("unit", "")
    return round(float(amount.rstrip(".")) * 2.0 ** units.get(unit, 0)) if amount else 0


_SMALL = 1 << 30
_ABSURD = 64 << 30
"""A single request for so much host memory is more probably a wrong shape than the last of many requests."""


def _passes_tensors(case: Case) -> bool:
    """Return whether the limit was met where a data loader passes tensors."""
    return case.called(r"resource_sharer|reductions?\.py|dataloader\.py") or bool(
        re.search("ancdata|workers|shared memory", text_of(case.lead))
    )


def _forks(case: Case) -> bool:
    return not case.lead.calls or case.called(r"dataloader\.py|popen_fork|subprocess\.py|multiprocess|:fork")


def _evicted_for(case: Case) -> str:
    """Return the resource for which a pod was evicted."""
    return case.given.get("resource") or "memory"


_OOM_KILLED = "Kubernetes: a container was killed for its memory, most often at its limit (OOMKilled)"


def _storage_headline(case: Case) -> str:
    """Return the headline for a pod that was evicted for its local storage, with the limit or the volume."""
    return (
        f"Kubernetes evicted the pod: volume {case.given['volume']} is over its limit of {case.given['limit']}"
        if case.given.get("volume")
        else "Kubernetes evicted the pod: its local storage is over the limit"
        + (f" of {limit}" if (limit := case.given.get("limit") or case.given.get("limit2")) else "")
        if case.given.get("limit") or case.given.get("limit2")
        else "Kubernetes evicted the pod because the node's local disk was nearly full"
    )


def _memory_headline(case: Case) -> str:
    """Return the headline for a pod that was evicted because its node was short of memory."""
    return f"Kubernetes evicted the pod because its node ran low on {_evicted_for(case)}" + (
        f" (it used {case.given['used']})" if case.given.get("used") else ""
    )


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="host.ray_memory_monitor",
        kind=LogClass.HOST_OOM,
        what="Ray's memory monitor killed a worker because the memory of its node was nearly full.",
        signs=(
            sign("Task was killed due to the node running low on memory", _MONITOR),
            sign("due to the node running low on memory"),
            sign("RayOutOfMemoryError", r"More than \d+% of the memory on node \S+ is used"),
        ),
        headline=_ray_headline,
        why=_ray_why,
        next=_RAY_NEXT,
        check="`ray logs raylet.out -ip NODE` shows the memory of all processes at the time of the kill",
        rules_out="GPU memory: this monitor only looks at the memory of the host",
        explains=_FOLLOWS,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
                "Memory on the node (IP: 192.168.0.107, ID: fc2befb2867ce88e73a8a45572c43a64) where the task (actor ID:"
                " f9cc340f5aef7b479d86345001000000, name=SimEnv.__init__, pid=4331, memory used=2.22GB) was running was"
                " 59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95. Ray killed this worker"
                " because it was the most recently scheduled task\n"
                "PID\tMEM(GB)\tCOMMAND\n4331\t2.22\tray::SimEnv.__init__\n4310\t2.31\tray::SimEnv.step",
                source="real-stanford/flingbot#11",
                says=("59.49 of 62.58 GB", "fewer workers", "2.22 of the 59.49 GB", "ray::SimEnv 4.5 GB"),
            ),
        ),
        near_misses=("ray.exceptions.ObjectStoreFullError: Failed to put object in object store because it is full.",),
        knowledge="Ray: out-of-memory prevention; ray-project/ray#30312",
    ),
    Failure(
        id="host.ray_workers_killed",
        kind=LogClass.HOST_OOM,
        what="Ray counts workers that its memory monitor killed.",
        signs=(
            sign(
                "killed due to memory pressure",
                r"(?<!\d)(?P<count>\d{1,6}) Workers \(tasks / actors\) killed due to memory pressure \(OOM\)",
            ),
        ),
        headline="Host memory of a node ran out: Ray's memory monitor killed {count} of its workers",
        why="Ray kills the task that it can restart best, often the youngest one, which need not use most",
        next=_RAY_NEXT,
        check="`ray logs raylet.out -ip NODE` shows the memory of all processes at the time of the kill",
        explains=_FOLLOWS,
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "(raylet) [2025-12-07 09:57:19,206 E 393463 393463] (raylet) node_manager.cc:3277: 2 Workers (tasks /"
                " actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID:"
                " 8289f87b78d161ae, IP: 172.24.0.226) over the last time period.",
                source="WM-PO/WMPO#3",
                says=("2 of its workers", "ray logs raylet.out"),
            ),
        ),
        knowledge="Ray: out-of-memory prevention",
    ),
    Failure(
        id="host.ray_node_died",
        kind=LogClass.TERMINATED,
        what="Ray lost a whole node, by preemption, by a failure or because its own daemon ended.",
        signs=(
            sign(
                "node has died",
                r"The actor (?:is dead|died) because its node has died\.(?: Node Id: (?P<node>\w{6}))?(?:[\s\S]{0,200}?"
                r"(?P<preempted>preempted))?",
            ),
            sign(
                "Task failed because the node",
                r"Task failed because the node it was running on is dead or unavailable\. Node IP: (?P<ip>[\w.:-]+)",
            ),
            sign(
                "has been marked dead",
                r"The node with node id: (?P<node>\w{6})\w* and (?:ip|address): ?(?P<ip>[\w.:-]+)[\s\S]{0,120}?has been"
                r" marked dead",
            ),
            sign("Owner's node has crashed"),
        ),
        headline=lambda case: (
            "Ray lost a node"
            + (f" ({case.given['ip'].rstrip('.')})" if case.given.get("ip") else "")
            + (": it was preempted" if case.given.get("preempted") else ", and with it the actors that ran there")
        ),
        why=lambda case: (
            "the provider or the scheduler took the node back"
            if case.given.get("preempted")
            else "a node is lost when it is preempted, when it fails, or when its raylet ends, for example for lack of"
            " memory: the message does not say which"
        ),
        next=(
            Advice(
                "resume from the last checkpoint on another node; for spot nodes let Ray Train restart by itself"
                " (FailureConfig(max_failures=-1)) and save checkpoints often",
                when=lambda case: bool(case.given.get("preempted")),
            ),
            Advice(
                "find out what became of the node: `ray list nodes`, `ray logs raylet.out -ip NODE`, and the scheduler or"
                " cloud console (preempted, rebooted, out of memory). Then resume from the last checkpoint",
                when=lambda case: not case.given.get("preempted"),
            ),
            "leave memory for the raylet on each node (fewer workers, less offload): without it, the raylet misses its"
            " heartbeats, and the node counts as dead",
        ),
        tier=Tier.STOPPED,
        explains=("exceptions.other", "network.*", "collectives.*", "processes.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
                "\tclass_name: RayTrainWorker\n\tip: 10.72.56.3\n"
                "The actor is dead because its node has died. Node Id: 677df2a9020c5db45e755b0078c469e2ce51e05ea093ed3b",
                source="ray-project/ray#43751",
                says=("lost a node", "ray list nodes"),
            ),
            Example(
                "(TrainController pid=79312) The actor died because its node has died. Node Id: b157c93de9603b1458ae4bd2"
                " the actor's node was preempted: preemption_integration_demo: simulating node drain",
                source="ray-project/ray#63807",
                says=("preempted", "max_failures"),
            ),
            Example(
                "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable."
                " Node IP: 127.0.0.1, node ID: e55b8ca03ebf3f7418f51533d8d55abeaab75fa9b29e2e6282b47646. This can happen"
                " if the node was preempted, had a hardware failure, or its raylet crashed unexpectedly.",
                source="ray-project/ray#58638",
                says=("127.0.0.1",),
            ),
        ),
        knowledge="ray-project/ray#41107, #58638, #45497",
    ),
    Failure(
        id="host.ray_worker_died",
        kind=LogClass.SIGNAL,
        what="A worker process of Ray ended without an exception of Python.",
        signs=(
            sign("worker process has died", r"its worker process has died"),
            sign("A worker died or was killed while executing a task", r"A worker died or was killed while executing"),
            sign("Worker unexpectedly exits with a connection error"),
            sign("worker died unexpectedly while executing this task"),
            sign("actor died unexpectedly before finishing this task"),
        ),
        headline="A Ray worker process ended: it was killed, crashed in native code, or called exit",
        why="Ray only saw its connection end; the usual causes are the OOM killer of the host or of the job's limit,"
        " `ray stop --force`, or a crash such as SIGSEGV",
        next=(
            "look for a kill first: `dmesg -T | grep -i 'killed process'` on its node, `sacct -j JOB -o State,MaxRSS`"
            " under Slurm, `kubectl describe pod` (OOMKilled). If it was killed for memory: fewer workers, less offload"
            " to the CPU, or more host memory",
            "else read the worker's own log for a crash (`ray logs worker-WORKERID*out -ip NODE`, files `*.err` in"
            " /tmp/ray/session_latest/logs); python -X faulthandler shows the line",
        ),
        check="the logs of the raylet (`ray logs raylet.out`) say whether Ray's own memory monitor killed it",
        tier=Tier.KILLED,
        explains=("exceptions.other", "network.*", "collectives.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
                "\tclass_name: ActorModelRayActorBOX\n\tpid: 12903\n"
                "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit"
                " detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential"
                " root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
                source="hkust-nlp/simpleRL-reason#25",
                says=("killed", "dmesg"),
            ),
        ),
        knowledge="Ray: debugging worker failures",
    ),
    Failure(
        id="host.ray_disk_nearly_full",
        kind=LogClass.NEAR_LIMIT,
        what="Ray warns that the disk of its session folder is nearly full.",
        signs=(
            sign("% full, available space", r"(?P<folder>/\S{1,200}) is over (?P<share>\d+)% full, available space"),
        ),
        headline="The disk with Ray's session folder is over {share} % full",
        why="nothing can be spilled to it then: objects that do not fit into the object store fail; the warning alone ends"
        " nothing",
        next=(
            "free space there (`df -h {folder}`; folders /tmp/ray/session_* of earlier runs), or put it on a larger disk:"
            " ray start --temp-dir=FOLDER, ray.init(_temp_dir=FOLDER)",
            "if enough is free in bytes, raise the limit: RAY_local_fs_capacity_threshold=0.99",
        ),
        event=EventKind.KNOWN,
        tier=Tier.VAGUE,
        examples=(
            Example(
                "(raylet) [2025-04-21 10:05:37,313 E 959680 959717] file_system_monitor.cc:116: /tmp/ray/session_2025-03-25_17-33-57_554404_959134 is over 95% full, available space: 42.6695 GB; capacity: 876.137 GB. Object creation will fail if spilling is required.\n"
                "(raylet) [2025-04-21 10:05:47,320 E 959680 959717] file_system_monitor.cc:116: /tmp/ray/session_2025-03-25_17-33-57_554404_959134 is over 95% full, available space: 42.6694 GB; capacity: 876.137 GB. Object creation will fail if spilling is required.",
                source="InternLM/lmdeploy#3457",
                says=("95 %",),
            ),
        ),
        knowledge="Ray: object spilling; src/ray/common/file_system_monitor.cc",
    ),
    Failure(
        id="host.ray_object_store",
        kind=LogClass.HOST_OOM,
        what="Ray's object store, or the disk to which it spills, is full.",
        signs=(
            sign(
                "ObjectStoreFullError",
                r"ObjectStoreFullError(?:[\s\S]{0,400}?Object size is (?P<bytes>\d{1,15}) bytes)?",
            ),
            sign("OutOfDiskError", r"OutOfDiskError|Local disk is full"),
        ),
        headline=lambda case: (
            "Ray's disk for spilled objects is full"
            if "Disk" in text_of(case.lead)
            else f"Ray's object store has no room for an object of {size(int(case.given['bytes']))}"
            if case.given.get("bytes")
            else "Ray's object store is full"
        ),
        why="objects that are still referenced stay in the store's shared memory, or are spilled to the disk of the"
        " session folder (/tmp/ray)",
        next=(
            "release references to results that are no longer needed (del, no lists of ObjectRefs), and keep fewer tasks"
            " in flight; `ray memory --stats-only` shows what is held",
            "or give it more room: ray.init(object_store_memory=BYTES) with a larger /dev/shm, and a larger disk for"
            " --temp-dir or object_spilling_directory",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "/home/ubuntu/anaconda3/lib/python3.8/site-packages/ray/rllib/evaluation/worker_set.py", line 87, in sync_weights\n'
                "    weights = ray.put(self.local_worker().get_weights())\n"
                '  File "python/ray/_raylet.pyx", line 904, in ray._raylet.CoreWorker.put_serialized_object\n'
                '  File "python/ray/_raylet.pyx", line 829, in ray._raylet.CoreWorker._create_put_buffer\n'
                '  File "python/ray/_raylet.pyx", line 142, in ray._raylet.check_status\n'
                "ray.exceptions.ObjectStoreFullError: Failed to put object ffffffffffffffffdf5a1a820100000002000000 in object store because it is full. Object size is 25892330588 bytes.\n"
                "The local object store is full of objects that are still in scope and cannot be evicted. Tip: Use the `ray memory` command to list active objects in the cluster.",
                source="ray-project/ray#11594",
                says=("object store",),
            ),
            Example(
                '  File "python/ray/_raylet.pyx", line 1599, in ray._raylet.CoreWorker.put_serialized_object_and_increment_local_ref\n'
                '  File "python/ray/_raylet.pyx", line 1488, in ray._raylet.CoreWorker._create_put_buffer\n'
                '  File "python/ray/_raylet.pyx", line 188, in ray._raylet.check_status\n'
                "ray.exceptions.OutOfDiskError: Local disk is full\n"
                "The object cannot be created because the local object store is full and the local disk's utilization is over capacity (95% by default).Tip: Use `df` on this node to check disk usage and `ray memory` to check object store memory usage.",
                source="alpa-projects/alpa#969",
                says=("disk",),
            ),
        ),
        knowledge="Ray: object spilling",
    ),
    # Slurm, containers and the kernel.
    Failure(
        id="host.slurm_oom",
        kind=LogClass.HOST_OOM,
        what="Slurm's memory limit of the job was reached, and the kernel killed a process in it.",
        signs=(
            sign("oom-kill event", r"Detected (?P<count>\d+) oom-kill event\(s\) in (?P<step>\S+?)\.?(?: cgroup|\s|$)"),
            sign("oom_kill event", r"Detected (?P<count>\d+) oom_kill events? in (?P<step>\S+?)\.?(?:\s|$)"),
            sign("cgroup out-of-memory handler"),
            sign(": Out Of Memory", r"error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): Out Of Memory"),
            sign("memory limit", r"Exceeded (?:job|step) memory limit"),
        ),
        headline=_slurm_headline,
        why="host memory of all processes of the job on a node counts against --mem, DataLoader workers and cached files"
        " in /dev/shm as well; GPU memory does not",
        next=(
            "ask for more host memory (#SBATCH --mem=200G, or --mem-per-gpu, --mem=0 for the whole node): `sacct -j JOB -o"
            " JobID,State,ReqMem,MaxRSS` shows what was asked for and used",
            _LESS_HOST_MEMORY,
        ),
        check="`sacct -j JOB` shows the state OUT_OF_MEMORY",
        rules_out="a CUDA out of memory, which Python reports as an exception",
        tier=Tier.HARDWARE,
        explains=_FOLLOWS,
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may"
                " have been killed by the cgroup out-of-memory handler.",
                source="ArjunaCluster/ArjunaUsers#52",
                says=("--mem", "memory limit"),
            ),
            Example(
                "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM"
                " Killed.\nsrun: error: sdumont6156: task 0: Out Of Memory",
                source="nextflow-io/nextflow#5932",
                says=("--mem",),
            ),
        ),
        knowledge="Slurm: cgroup.conf, ConstrainRAMSpace; sacct",
    ),
    Failure(
        id="host.cgroup_oom",
        kind=LogClass.HOST_OOM,
        what="The memory limit of a container or of a job was reached, and the kernel killed a process in it.",
        signs=(
            sign(
                "Memory cgroup out of memory",
                r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]{1,80})\)",
            ),
            sign(
                "CONSTRAINT_MEMCG", r"oom-kill:constraint=CONSTRAINT_MEMCG\S*task=(?P<name>[^,]{1,80}),pid=(?P<pid>\d+)"
            ),
        ),
        headline=lambda case: (
            "The container's or job's memory limit was reached: kernel killed"
            f" {f'{who(case.ranks)} (SIGKILL)' if case.ranks else _process(case)}"
        ),
        why=lambda case: (
            f"the limit of its control group was full, not the machine{_killed_bytes(case)}; all processes in the group"
            " count, and so does /dev/shm"
        ),
        next=(
            "raise the limit: resources.limits.memory of the pod, docker run --memory, --mem of Slurm",
            _LESS_HOST_MEMORY,
        ),
        check="the kernel's line `oom_memcg=` names the group: kubepods, docker, slurm or user.slice",
        tier=Tier.HARDWARE,
        explains=_FOLLOWS,
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "> read 840000 img\n"
                "> read 850000 img\n"
                "> read 860000 img\n"
                "/pai/bootstrap/docker_bootstrap.sh: line 159:   943 Killed                  /usr/bin/python3 Res-click-adCategory.py\n"
                "[DEBUG] EXIT signal received in docker container, exiting ...\n"
                "[Thu Aug 16 09:05:19 2018] memory: usage 184320000kB, limit 184320000kB, failcnt 2316326\n"
                "[Thu Aug 16 09:05:19 2018] Memory cgroup out of memory: Kill process 17811 (python3) score 972 or sacrifice child",
                source="microsoft/pai#1089",
                says=("--memory",),
            ),
            Example(
                "May 15 23:09:27 node-1 kernel: [  514.682838] Memory cgroup out of memory: Killed process 15617 (python3) total-vm:11892kB, anon-rss:4292kB, file-rss:3428kB, shmem-rss:0kB\n"
                "May 15 23:09:27 node-1 kernel: [  514.686093] oom_reaper: reaped process 15617 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\n"
                "May 15 23:09:27 node-1 kernel: [  514.686269] Memory cgroup out of memory: Killed process 15674 (python3) total-vm:11892kB, anon-rss:4292kB, file-rss:3424kB, shmem-rss:0kB",
                source="docker/for-linux#1001",
                says=("python3 (pid 15617)",),
            ),
            Example(
                "[12345.678] Memory cgroup out of memory: Killed process 19289 (python3) total-vm:79471988kB,"
                " anon-rss:62914560kB, file-rss:1468kB, shmem-rss:2097152kB, UID:0",
                says=("python3 (pid 19289)", "62.0 GiB", "--memory"),
            ),
            Example(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/ltp_19257,"
                "task_memcg=/ltp_19257,task=memcg_process,pid=19289,uid=0",
                says=("memcg_process (pid 19289)",),
            ),
        ),
        knowledge="Linux: admin-guide/cgroup-v2, memory.max",
    ),
    Failure(
        id="host.kernel_oom",
        kind=LogClass.HOST_OOM,
        what="The machine's memory ran out, and the kernel killed a process.",
        signs=(
            sign("Out of memory: Kill", r"Out of memory: Kill(?:ed)? process (?P<pid>\d+),? \((?P<name>[^)]{1,80})\)"),
            sign(
                "global_oom",
                r"oom-kill:constraint=CONSTRAINT_NONE\S*global_oom\S*task=(?P<name>[^,]+),pid=(?P<pid>\d+)",
            ),
        ),
        headline=lambda case: (
            f"The machine's memory ran out: the kernel killed {f'{who(case.ranks)} (SIGKILL)' if case.ranks else _process(case)}"
        ),
        why=lambda case: (
            "the kernel kills the process with the highest score, most often the largest one"
            + _killed_bytes(case)
            + "; nothing of this is GPU memory"
        ),
        next=(
            _LESS_HOST_MEMORY,
            "or use a machine with more memory, or add swap; `free -h` and `ps aux --sort=-rss | head` show who else uses"
            " it",
        ),
        check="`dmesg -T | grep -i 'killed process'` shows the time and the size of each killed process",
        explains=_FOLLOWS,
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, anon-rss:31451456kB,"
                " file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB oom_score_adj:0",
                source="pcyin/tranX#41",
                says=("python3 (pid 25315)", "30.0 GiB", "DataLoader workers"),
            ),
        ),
        near_misses=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",),
        knowledge="Linux: mm/oom_kill.c",
    ),
    Failure(
        id="host.kubernetes_oom_killed",
        kind=LogClass.HOST_OOM,
        what="A container of Kubernetes reached its memory limit.",
        signs=(
            sign("OOMKilled", r"(?:[Rr]eason\W{1,6}|STATUS[\s\S]{0,200}?|\s|\")OOMKilled\b"),
            sign("OOMKilling", r"OOMKilling"),
        ),
        headline=_OOM_KILLED,
        sentence=_OOM_KILLED,
        why="the memory of all processes in the container counts against resources.limits.memory, and so does a /dev/shm"
        " that is an emptyDir of medium Memory; this is host memory, not that of the GPU",
        next=(
            "raise resources.limits.memory of the container (and requests with it)",
            _LESS_HOST_MEMORY,
        ),
        check="`kubectl describe pod POD`: Last State: Terminated, Reason: OOMKilled, Exit Code: 137",
        rules_out="Reason: Error with exit code 137: then something else sent SIGKILL",
        tier=Tier.HARDWARE,
        explains=_FOLLOWS,
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "Containers:\n"
                "    <name>:\n"
                "    Last State:     Terminated\n"
                "        Reason:       OOMKilled\n"
                "        Exit Code:    137\n"
                "        Started:      Mon, 18 Oct 2021 16:31:40 +0300\n"
                "        Finished:     Mon, 18 Oct 2021 16:39:05 +0300",
                source="vmware-archive/versatile-data-kit#410",
                says=("limits.memory",),
            ),
            Example(
                "kubeflow                    training-operator-8569f97489-zkxbt                            0/1     OOMKilled",
                source="alauda/kubeflow-chart#45",
                says=("limits.memory",),
            ),
        ),
        knowledge="Kubernetes: assign memory resources to containers and pods",
    ),
    Failure(
        id="host.kubernetes_evicted_storage",
        kind=LogClass.DISK_FULL,
        what="Kubernetes evicted a pod because its local (ephemeral) storage was full.",
        signs=(
            sign(
                "phemeral",
                r"(?:Pod )?ephemeral local storage usage exceeds the total limit of containers (?P<limit>[\w.]+?)\.?(?:\s|$)"
                r"|Container (?P<container>\S+) exceeded its local ephemeral storage limit \"?(?P<limit2>[\w.]+?)\"?\.",
            ),
            sign(
                "low on resource: ephemeral-storage",
                r"node was low on resource: ephemeral-storage(?:[\s\S]{0,80}?Container (?P<container>\S+) was using"
                r" (?P<used>\w+))?",
            ),
            sign("DiskPressure", r"(?:condition: \[|reason: )DiskPressure"),
            sign(
                "exceeds the limit",
                r"Usage of EmptyDir volume \"(?P<volume>[^\"]{1,80})\" exceeds the limit \"(?P<limit>\w+)\"",
            ),
        ),
        headline=_storage_headline,
        sentence=_storage_headline,
        why="all that the containers write outside of mounted volumes counts: checkpoints, caches in the home folder,"
        " /tmp, logs, and the cache of a storage sidecar",
        next=(
            "write checkpoints, HF_HOME and TMPDIR to a mounted volume that is large enough",
            "or raise resources.limits.ephemeral-storage (or the sizeLimit of the emptyDir)",
        ),
        check="`kubectl describe pod POD`; `du -xsh /* ~/.cache` in the container shows what fills it",
        rules_out="OOMKilled: this eviction has nothing to do with memory",
        explains=("processes.*", "network.*", "collectives.*"),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "  Warning  Evicted              109s  kubelet                                Pod ephemeral local storage"
                " usage exceeds the total limit of containers 5Gi.",
                source="substratusai/runbooks#92",
                says=("5Gi", "mounted volume", "ephemeral-storage"),
            ),
            Example(
                "The node was low on resource: ephemeral-storage. Container trainer was using 97362528Ki, which exceeds"
                " its request of 0.",
                says=("local disk", "mounted volume"),
            ),
        ),
        near_misses=(
            "The node was low on resource: memory. Container egg was using 5053216Ki, which exceeds its request of 0.",
        ),
        knowledge="Kubernetes: node-pressure eviction; local ephemeral storage",
    ),
    Failure(
        id="host.kubernetes_evicted_memory",
        kind=LogClass.HOST_OOM,
        what="Kubernetes evicted a pod because its node ran low on memory or process ids.",
        signs=(
            sign(
                "low on resource",
                r"node was low on resource: (?P<resource>memory|pids)(?:[\s\S]{0,80}?Container (?P<container>\S+) was"
                r" using (?P<used>\w+)[\s\S]{0,40}?request (?:of|is) (?P<request>\w+))?",
            ),
            sign("MemoryPressure", r"condition: \[MemoryPressure\]"),
        ),
        headline=_memory_headline,
        sentence=_memory_headline,
        why=lambda case: (
            "the kubelet evicts first the pods that use more than they requested"
            + (
                f": {case.given['container']} had requested {case.given['request']}"
                if case.given.get("request")
                else ""
            )
        ),
        next=(
            "set resources.requests.memory of the pod to what it really needs, so that it is scheduled to a node with room"
            " and is evicted last; equal requests and limits make it Guaranteed",
            _LESS_HOST_MEMORY,
        ),
        check="`kubectl describe node NODE` shows MemoryPressure; `kubectl top pod` what the pod uses",
        rules_out="OOMKilled: the pod was not over its own limit, the node was short of memory",
        explains=("processes.*", "network.*", "collectives.*"),
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "4m11s       Warning   Evicted               pod/egg-0    The node was low on resource: memory. Container"
                " egg was using 5053216Ki, which exceeds its request of 0.",
                source="FederatedAI/KubeFATE#64",
                says=("low on memory", "requests.memory", "requested 0"),
            ),
        ),
        knowledge="Kubernetes: node-pressure eviction",
    ),
    Failure(
        id="host.windows_paging_file",
        kind=LogClass.HOST_OOM,
        what="Windows could not commit memory, because its paging file is too small.",
        signs=(
            sign(
                "[WinError",
                r"\[WinError 1455\](?:[\s\S]{0,200}?Error loading \"[^\"]{0,200}?(?P<library>[\w.-]+\.dll)\")?",
            ),
            sign("os error", r"\(os error 1455\)"),
            sign("paging file is too small"),
        ),
        headline=lambda case: (
            "Windows could not commit memory: the paging file is too small (error 1455)"
            + (f" for {case.given['library']}" if len(case.given.get("library", "")) in range(1, 15) else "")
        ),
        why="each process that imports torch commits some GiB for its CUDA libraries, and on Windows each DataLoader"
        " worker imports torch anew; a file that is mapped in full, such as a model, counts as well",
        next=(
            "with DataLoader workers or several processes, use fewer (num_workers or --workers of 0 to 2)",
            "enlarge the paging file: System > Advanced > Performance > Virtual memory, at least as large as RAM, on a"
            " drive with room",
            Advice(
                "load the model in parts or in a smaller type, as the file that failed to open is read by one process",
                when=lambda case: "os error" in text_of(case.lead),
            ),
        ),
        check="Task Manager > Performance > Memory: Committed is near its limit",
        rules_out="a missing library: the file is there, but could not be mapped",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading"
                ' "D:\\anaconda3\\envs\\yolov5\\lib\\site-packages\\torch\\lib\\caffe2_detectron_ops_gpu.dll" or one of its'
                " dependencies.",
                source="ultralytics/yolov5#11418",
                says=("paging file", "DataLoader workers"),
            ),
            Example(
                "Server execution error: The paging file is too small for this operation to complete. (os error 1455)",
                source="Acly/krita-ai-diffusion#1898",
                says=("paging file",),
            ),
        ),
        knowledge="pytorch/pytorch#35803; Microsoft: introduction to the page file",
    ),
    # DeepSpeed.
    Failure(
        id="host.deepspeed_sigkill",
        kind=LogClass.SIGNAL,
        what="A rank of DeepSpeed was killed by SIGKILL.",
        signs=(sign("exits with return code", r"exits with return code = -9\b"),),
        clues=(_CPU_MEMORY,),
        headline=_deepspeed_headline,
        why="nothing but SIGKILL leaves this code and no exception; the kernel's OOM killer sends it when host memory or"
        " the limit of the container or job is full, as with optimizer state or parameters that are offloaded",
        next=(
            "make sure of it: `dmesg -T | grep -i 'killed process'` on the node, `sacct -j JOB -o State,MaxRSS`, or"
            " `kubectl describe pod` (OOMKilled)",
            _LESS_OFFLOAD,
            "while a model is loaded, each rank may hold a whole copy of it: load with low_cpu_mem_usage=True, or under"
            " deepspeed.zero.Init",
        ),
        rules_out="a person or a scheduler that killed the process at that time",
        tier=Tier.KILLED,
        examples=(
            Example(
                "[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266\n"
                "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py',"
                " '--local_rank=0'] exits with return code = -9",
                source="deepspeedai/DeepSpeed#3232",
                says=("SIGKILL", "dmesg", "offload"),
            ),
        ),
        knowledge="deepspeedai/DeepSpeed#4239",
    ),
    Failure(
        id="host.deepspeed_ended",
        kind=LogClass.SIGNAL,
        what="DeepSpeed's launcher ended its ranks because one of them had failed or it was asked to stop.",
        signs=(sign("sigkill_handler", r"sigkill_handler\] Killing subprocess"),),
        clues=(_CPU_MEMORY,),
        headline=_ended_headline,
        why=lambda case: (
            "the launcher's sigkill_handler reacts to the end of a rank; a rank that ends without an exception while"
            " host memory is nearly full was most often killed by the kernel's OOM killer"
            if _is_nearly_full(case)
            else "the launcher's sigkill_handler reacts to the end of a rank, or to a signal to stop, and is not the cause"
        ),
        next=(
            Advice(
                "make sure of it: `dmesg -T | grep -i 'killed process'` on the node, or the return code (-9)",
                when=_is_nearly_full,
            ),
            Advice(_LESS_OFFLOAD, when=_is_nearly_full),
            Advice(
                "look before these lines, and in the output of each rank, for the first exception or signal; the line"
                " `exits with return code` names how the first rank ended (-9: killed, -11: segmentation fault, 1: exception)",
                when=lambda case: not _is_nearly_full(case),
            ),
        ),
        tier=Tier.ABORTED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[2024-01-22 16:50:44,316] [INFO] [utils.py:799:see_memory_usage] CPU Virtual Memory: used = 26.4 GB,"
                " percent = 84.6%\n"
                "[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080504",
                source="deepspeedai/DeepSpeed#4571",
                says=("85 %", "26.4 GB", "offload"),
            ),
            Example(
                "[2021-11-21 08:32:07,148] [INFO] [launch.py:131:sigkill_handler] Killing subprocess 250621\n"
                "[2021-11-21 08:32:07,149] [INFO] [launch.py:131:sigkill_handler] Killing subprocess 250622",
                source="deepspeedai/DeepSpeed#1581",
                says=("look before",),
            ),
        ),
        knowledge="DeepSpeed: launcher/launch.py",
    ),
    # Requests for memory that failed.
    Failure(
        id="host.cpu_allocator",
        kind=LogClass.HOST_OOM,
        what="PyTorch asked the system for host memory, and got none.",
        signs=(
            sign(
                "DefaultCPUAllocator",
                r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to"
                r" allocate (?P<bytes>\d{1,17}) ?bytes",
            ),
        ),
        headline=lambda case: f"Host memory ran out: a tensor of {size(_asked(case))} on the CPU could not be made",
        why="PyTorch asked the system for this much host memory, and got none",
        next=(
            Advice(
                "check the size of this tensor on the host: a single request of this size is more probably a wrong shape, or a whole data set in"
                " one tensor, than the last of many. If it really is that large, work in pieces (chunks, neighbour sampling, np.memmap)",
                when=lambda case: _asked(case) >= _ABSURD,
            ),
            Advice(
                "the request is small, so the memory was full already: check what limits it (`free -h`, `ulimit -d -v`, the limit of"
                " the container or of Slurm's --mem; on Windows the paging file), and see which process grows",
                when=lambda case: _asked(case) < _SMALL,
            ),
            Advice(
                "see whether the memory was full already, or has less than this request: check what limits it (`free -h`, `ulimit -d -v`, the limit of"
                " the container or of Slurm's --mem; on Windows the paging file), and see which process grows",
                when=lambda case: _SMALL <= _asked(case) < _ABSURD,
            ),
            Advice(_LESS_HOST_MEMORY, when=lambda case: _asked(case) < _ABSURD),
        ),
        rules_out="CUDA memory: its message names a GPU",
        examples=(
            Example(
                "RuntimeError: [enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you tried"
                " to allocate 116813856768 bytes. Error code 12 (Cannot allocate memory)",
                source="JingyunLiang/VRT#49",
                says=("108.8 GiB", "shape"),
            ),
            Example(
                "RuntimeError: [enforce fail at ..\\c10\\core\\impl\\alloc_cpu.cpp:72] data. DefaultCPUAllocator: not"
                " enough memory: you tried to allocate 26214400 bytes.",
                source="lllyasviel/Fooocus#237",
                says=("25.0 MiB", "full already"),
            ),
        ),
        knowledge="PyTorch: c10/core/impl/alloc_cpu.cpp",
    ),
    Failure(
        id="host.numpy_memory",
        kind=LogClass.HOST_OOM,
        what="NumPy asked the system for memory for an array, and got none.",
        signs=(
            sign(
                "Unable to allocate",
                r"Unable to allocate (?P<amount>[\d.]+) ?(?P<unit>[KMGTP]iB) for an array with shape (?P<shape>\([\d, ]*\))"
                r" and data type (?P<dtype>[^\n]{1,40})",
            ),
        ),
        headline="Host memory ran out: NumPy could not make an array of {amount} {unit}, shape {shape}",
        why=lambda case: (
            "a single array of this size is most often a wrong shape or a dense copy of something sparse"
            if _asked(case) >= _ABSURD
            else f"an array of {case.given['dtype'].strip()} of this shape was asked for on the host"
            + (", and float64 needs twice the memory of float32" if "float64" in case.given["dtype"] else "")
        ),
        next=(
            Advice("use float32 instead of float64 (NumPy's default)", when=lambda c: "float64" in c.given["dtype"]),
            "check the shape; do not hold the whole data set in one array: np.load(..., mmap_mode='r'), or read samples"
            " in __getitem__",
            "with several processes that each hold it (ranks, DataLoader workers), share it by memory-mapping one file",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "numpy.core._exceptions.MemoryError: Unable to allocate 7.91 GiB for an array with shape (1396913, 190, 4)"
                " and data type float64",
                source="open-mmlab/mmhuman3d#331",
                says=("7.91 GiB", "float32"),
            ),
            Example(
                "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.73 TiB for an array with shape"
                " (124994103978,) and data type [('sample_id', '<u8'), ('ptr', '<u8'), ('size', '<u8')]",
                source="libffcv/ffcv-imagenet#21",
                says=("2.73 TiB", "wrong shape"),
            ),
        ),
        knowledge="numpy/numpy#13225",
    ),
    Failure(
        id="host.bad_alloc",
        kind=LogClass.HOST_OOM,
        what="Native code asked for host memory, and got none.",
        signs=(sign("std::bad_alloc"),),
        headline="Native code could not get host memory (std::bad_alloc)",
        why="C++ throws it for a request that fails: the host's memory or a limit is full, or the asked size is nonsense,"
        " as from a damaged file",
        next=(
            "watch the memory of the process (`free -h`, `ps -o rss`): if it is nearly full, " + _LESS_HOST_MEMORY,
            "if there was room, the size was wrong: suspect the file that was read last, or a library built for another"
            " version (python -X faulthandler shows the call)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "2018-08-15 12:23:05.209896: epoch 21, step 30, loss = 0.51, Top-1 = 0.78 Top-5 = 1.00 (46.9 examples/sec; 0.682 sec/batch)\n"
                "2018-08-15 12:23:32.467195: epoch 21, step 40, loss = 0.29, Top-1 = 0.88 Top-5 = 1.00 (46.2 examples/sec; 0.693 sec/batch)\n"
                "terminate called after throwing an instance of 'std::bad_alloc'\n"
                "  what():  std::bad_alloc",
                source="arashno/tensorflow_multigpu_imagenet#13",
                says=(
                    "std::bad_alloc",
                    "DataLoader workers",
                ),
            ),
        ),
        knowledge="C++ standard library",
    ),
    Failure(
        id="host.fork_memory",
        kind=LogClass.HOST_OOM,
        what="The system refused more memory to a process, most often for a fork.",
        signs=(sign("[Errno", r"OSError: \[Errno 12\] Cannot allocate memory"),),
        headline=lambda case: (
            "A DataLoader worker could not be started: the host has no memory for a fork"
            if case.called(r"dataloader\.py|popen_fork")
            else "The host has no memory left for this process (errno 12, ENOMEM)"
        ),
        why=lambda case: (
            "a fork reserves as much memory as its parent has, so a parent with a large data set cannot fork many times"
            if _forks(case)
            else "the system refused more memory to this process: it is full, a limit (ulimit -v, the container) is reached, or too much of"
            " it is promised already"
        ),
        next=(
            Advice(
                "see what fills it (`free -h`, `ps aux --sort=-rss | head`) and what limits it (`ulimit -v`, the container's limit), and hold less in this process",
                when=lambda case: not _forks(case),
            ),
            Advice(
                "use fewer DataLoader workers, persistent_workers=True (so that they are not started for each epoch), or"
                " start them before the data set is loaded",
                when=_forks,
            ),
            Advice(
                "keep less in the parent process (np.memmap, Arrow), or use multiprocessing_context='forkserver'",
                when=_forks,
            ),
            "or let the system promise more: sysctl vm.overcommit_memory=1, swap, or a higher limit of the container",
        ),
        examples=(
            Example(
                "Step: 61. Epoch: 1/500. Iteration: 31/31. Cls loss: 11970.64941. Reg loss: 1.10038. Total loss: 11971.\n"
                "Step: 92. Epoch: 2/500. Iteration: 31/31. Cls loss: 8047.87695. Reg loss: 0.87966. Total loss: 8048.75\n"
                "  0%|                                                                          | 0/31 [00:00<?, ?it/s]\n"
                "Traceback (most recent call last):\n"
                '  File "train.py", line 338, in <module>\n'
                "    train(opt)\n"
                '  File "train.py", line 206, in train\n'
                "    for iter, data in enumerate(progress_bar):\n"
                '  File "/home/user/miniconda3/envs/EfficientDet/lib/python3.6/multiprocessing/popen_fork.py", line 66, in _launch\n'
                "    self.pid = os.fork()\n"
                "OSError: [Errno 12] Cannot allocate memory",
                source="zylo117/Yet-Another-EfficientDet-Pytorch#191",
                says=(
                    "DataLoader worker",
                    "persistent_workers",
                ),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/data.py", line 9, in read\n'
                "    return mmap.mmap(f.fileno(), 0)\nOSError: [Errno 12] Cannot allocate memory",
                says=(
                    "too much of it is promised",
                    "see what fills it",
                ),
            ),
        ),
        knowledge="fork(2): ENOMEM; Linux: overcommit-accounting",
    ),
    # Limits of a process.
    Failure(
        id="host.open_files",
        kind=LogClass.CRASHED,
        what="A process reached its limit of open files.",
        signs=(
            sign("Too many open files"),
            sign("items of ancdata", r"received \d+ items of ancdata"),
            sign(
                "unable to open shared memory object",
                r"unable to open shared memory object[^\n]{0,120}(?:\(24\)|open files)",
            ),
        ),
        headline=lambda case: (
            "The limit of open files was reached (ulimit -n)"
            + (" while a data loader passed tensors" if _passes_tensors(case) else "")
        ),
        why=lambda case: (
            "with the sharing strategy file_descriptor, each tensor that a DataLoader worker sends holds an open file until"
            " it is freed; the usual limit is 1024"
            if _passes_tensors(case)
            else "each file, socket, pipe and tensor in shared memory that a process holds open counts; the usual limit is 1024"
        ),
        next=(
            "raise the limit before the start: ulimit -n 65535 (in a container --ulimit nofile=65535, in a service"
            " LimitNOFILE)",
            "if DataLoader workers pass tensors, share them by name:"
            " torch.multiprocessing.set_sharing_strategy('file_system'), in the workers as well (worker_init_fn)",
            "if it grows with the steps, something keeps them open: batches kept in a list (copy what is kept: .clone(),"
            " or NumPy arrays), or files opened in __getitem__ without close",
        ),
        check="`ls /proc/PID/fd | wc -l` beside `ulimit -n`",
        rules_out="a full /dev/shm, which ends workers with a bus error or `No space left on device`",
        explains=("data.worker", "data.shared_memory", "data.worker_exited", "exceptions.other"),
        tier=Tier.HARDWARE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase"
                " the limit using `ulimit -n` in the shell or change the sharing strategy by calling"
                " `torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code",
                source="pytorch/pytorch#34768",
                says=("ulimit -n", "file_system", "data loader"),
            ),
            Example(
                'Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n    for batch in loader:\n'
                '  File "/opt/lib/python3.7/multiprocessing/reduction.py", line 161, in recvfds\n    len(ancdata))\n'
                "RuntimeError: received 0 items of ancdata",
                source="lzccccc/SMOKE#21",
                says=("ulimit -n", "file_system"),
            ),
        ),
        near_misses=("OSError: [Errno 28] No space left on device",),
        knowledge="pytorch/pytorch#973; torch.multiprocessing: sharing strategies",
    ),
    Failure(
        id="host.thread_limit",
        kind=LogClass.CRASHED,
        what="No further thread or process could be started.",
        signs=(
            sign(
                "blas_thread_init",
                r"blas_thread_init: (?:RLIMIT_NPROC (?P<limit>-?\d+) current|pthread_create)(?: failed for thread \d+ of"
                r" (?P<threads>\d+))?",
            ),
            sign("can't start new thread"),
            sign("Thread creation failed", r"libgomp: Thread creation failed"),
            sign(
                "Resource temporarily unavailable",
                r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
                r"|fork: (?:retry: )?Resource temporarily unavailable|pthread_create failed",
            ),
        ),
        headline=lambda case: (
            "No new thread or process could be started: most often the limit of processes"
            + (f" ({case.given['limit']})" if case.given.get("limit", "-1") not in ("", "-1") else "")
        ),
        why=lambda case: (
            "threads count as processes (ulimit -u, pids.max of the container), and each rank and each DataLoader worker"
            " starts one thread per core for OpenMP and BLAS"
            + (f" (here {case.given['threads']})" if case.given.get("threads") else "")
        ),
        next=(
            "start fewer threads: OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=4 in the environment of all"
            " ranks, and fewer DataLoader workers",
            "or raise the limit: ulimit -u 65535, docker run --pids-limit=-1, podPidsLimit of the kubelet",
            "if the limits are high, the memory for another stack was missing: `free -h`, `ulimit -v`",
        ),
        check="`ulimit -u`; `cat /sys/fs/cgroup/pids.max`; `ps -eLf | wc -l`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable\n"
                "OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 513046 max",
                source="MIC-DKFZ/nnUNet#1343",
                says=("OMP_NUM_THREADS", "64"),
            ),
            Example("RuntimeError: can't start new thread", says=("ulimit -u",)),
            Example(
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                source="facebookresearch/detectron2#3900",
                says=("ulimit -u",),
            ),
        ),
        knowledge="getrlimit(2): RLIMIT_NPROC; Linux: cgroup-v2 pids; OpenBLAS FAQ",
        when=lambda case: (
            "BlockingIOError" not in text_of(case.lead)
            or case.called(r"fork|subprocess|thread|popen|process")
            or not case.lead.calls
        ),
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "/w/log.py", line 9, in emit\n'
            "    sys.stdout.write(text)\nBlockingIOError: [Errno 11] Resource temporarily unavailable",
        ),
    ),
    Failure(
        id="host.semaphores",
        kind=LogClass.CRASHED,
        what="Python's multiprocessing could not make a lock or a block in shared memory: there is no space for it.",
        signs=(sign("No space left on device", r"\[Errno 28\] No space left on device"),),
        when=lambda case: bool(
            case.lead.calls and re.search(r"multiprocessing[/\\](?:synchronize|shared_memory)\.py", case.lead.calls[-1])
        ),
        headline=lambda case: (
            "No space in shared memory for "
            + ("a lock or queue" if "synchronize" in case.lead.calls[-1] else "a block")
            + " of multiprocessing (errno 28)"
        ),
        why="on Linux these are files in /dev/shm, a file system in memory (64 MB in a Docker container unless more is asked"
        " for): its bytes or its number of files are used up, whatever is free on the disks",
        next=(
            "see what fills it (df -h /dev/shm, df -i /dev/shm, ls -la /dev/shm), and delete what runs that have ended left there:"
            " sem.*, psm_*, torch_*, nccl-*",
            "or make it larger: docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir of medium Memory at"
            " /dev/shm",
            "or use fewer workers (num_workers) and queues",
        ),
        rules_out="a full disk: the innermost frame makes no file on one",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 55, in main\n    for batch in loader:\n'
                '  File "/usr/lib/python3.10/multiprocessing/context.py", line 68, in Lock\n'
                "    return Lock(ctx=self.get_context())\n"
                '  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 57, in __init__\n'
                "    sl = self._semlock = _multiprocessing.SemLock(\n"
                "OSError: [Errno 28] No space left on device",
                says=("lock", "df -h /dev/shm"),
            ),
        ),
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "train.py", line 70, in save\n    handle.write(data)\n'
            "OSError: [Errno 28] No space left on device",
        ),
        knowledge="sem_overview(7): named semaphores lie in /dev/shm; errno(3): ENOSPC; python/cpython#93253",
    ),
    Failure(
        id="host.slurm_requeued",
        kind=LogClass.TERMINATED,
        what="Slurm requeued a job.",
        signs=(
            sign("JOB REQUEUE", r"DUE TO JOB REQUEUE"),
            sign("requeued", r"[Jj]ob \d+ (?:has been |was )?requeued"),
        ),
        headline="Slurm took the job from its nodes and requeued it{step}",
        why="after a node failure, a preemption or by scontrol requeue Slurm starts the whole script again from its beginning, in the same log",
        next=(
            "let the script find and resume the last checkpoint by itself at its start, because it runs again with the same arguments",
            "see why: sacct -j JOB --duplicates -o JobID,State,NodeList,Start,End; sbatch --no-requeue if it must not start again",
        ),
        tier=Tier.STOPPED,
        event=EventKind.STOP_REQUESTED,
        examples=(
            Example(
                "Mon Nov  5 10:34:59 PST 2018: Job 31182239 received SIGUSR1, re-queueing\n"
                "slurmstepd: error: *** JOB 31182239 ON sh-06-34 CANCELLED AT 2018-11-05T10:35:06 DUE TO JOB REQUEUE ***",
                source="www.sherlock.stanford.edu: docs, job management",
                says=(
                    "requeued",
                    "--duplicates",
                ),
            ),
        ),
        knowledge="Slurm: sbatch --requeue",
    ),
    Failure(
        id="host.slurm_refused",
        kind=LogClass.STARTUP,
        what="Slurm refused a job or a step, most often because it asks for what is not there.",
        signs=(
            sign(
                "srun: error: Unable to",
                r"srun: error: Unable to (?:create step for job \d+|allocate resources|confirm allocation[^:]{0,20}): (?P<why>[^\n]{4,100})",
            ),
            sign("Batch job submission failed", r"Batch job submission failed: (?P<why>[^\n]{4,100})"),
        ),
        headline=lambda case: f"Slurm did not take the job: {case.given['why'].strip()[:64].rstrip('.')}",
        why=lambda case: (
            "the step asks for more tasks or CPUs than the job was granted"
            if "processors" in case.given["why"]
            else "the job's allocation has not that much memory left: another step holds it, or the step asks for more than the job"
            if "Memory required" in case.given["why"]
            else "the GPUs that are asked for do not exist here under that name, or the job was not granted them"
            if "gres" in case.given["why"]
            else "no node of the partition has that combination of CPUs, GPUs and memory"
            if "not available" in case.given["why"]
            else "its controller did not answer in time"
            if re.search("(?i)contact|timed out|connect", case.given["why"])
            else "most often an account, a partition, a limit or an option is not allowed here"
        ),
        next=(
            lambda case: (
                "make srun's --ntasks and --cpus-per-task fit the allocation of sbatch (scontrol show job $SLURM_JOB_ID)"
                if "processors" in case.given["why"]
                else "give each srun its share of the job's memory (srun --mem=..., or --overlap to share it), or ask for more in sbatch"
                if "Memory required" in case.given["why"]
                else "ask for GPUs in sbatch (--gpus-per-node=N or --gres=gpu:N) by the names of `sinfo -o '%N %G'`, and for no more of"
                " them in srun"
                if "gres" in case.given["why"]
                else "try again later: `scontrol ping` and `sinfo` show whether the controller answers"
                if re.search("(?i)contact|timed out|connect", case.given["why"])
                else "compare the request with the nodes: sinfo -o '%P %D %c %m %G %f', and with your limits: sacctmgr show assoc user=$USER"
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "srun: Job 29986033 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
                "srun: Job 29986033 step creation still disabled, retrying (Requested nodes are busy)\n"
                "srun: error: Unable to create step for job 29986033: Memory required by task is not available",
                source="eth-cscs/DLA-Future#337",
                says=("another step holds it",),
            ),
            Example(
                "srun: error: Unable to create step for job 8123: More processors requested than permitted",
                says=("More processors requested", "--cpus-per-task"),
            ),
            Example(
                "sbatch: error: Batch job submission failed: Requested node configuration is not available",
                says=("sinfo",),
            ),
            Example(
                "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)",
                says=(
                    "did not answer in time",
                    "scontrol ping",
                ),
            ),
        ),
        knowledge="Slurm: srun, sbatch",
    ),
    Failure(
        id="host.container_exit",
        kind=LogClass.SIGNAL,
        what="A container was killed, and only its exit code is known.",
        signs=(
            sign("Exit Code", r"Exit Code: {1,8}(?P<code>137|139|143)(?!\d)"),
            sign("terminated with exit", r"terminated with exit (?:code|status) \(?(?P<code>137|139|143)\)?(?!\d)"),
            sign("exited with code", r"exited with code (?P<code>137|139|143)(?!\d)"),
            sign("exitCode", r"exitCode\W{1,4}(?P<code>137|139|143)(?!\d)"),
        ),
        headline=lambda case: {
            "137": "A container was killed (exit code 137, SIGKILL), most often for its memory limit",
            "139": "A container's program crashed in native code (exit code 139, SIGSEGV)",
            "143": "A container was asked to stop (exit code 143, SIGTERM): eviction, preemption or a person",
        }[case.given["code"]],
        why="codes above 128 are 128 plus the number of the signal that ended the process",
        next=(
            lambda case: {
                "137": "see why: kubectl describe pod POD (Reason: OOMKilled, or Evicted), docker inspect -f '.State.OOMKilled' CONTAINER, dmesg"
                " of the node; for OOMKilled raise the memory limit or use fewer DataLoader workers",
                "139": "run with python -X faulthandler to see the line; compare the versions of libraries and of the driver",
                "143": "see who stopped it: kubectl get events --sort-by=.lastTimestamp; save a checkpoint in a handler of SIGTERM",
            }[case.given["code"]],
        ),
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "command terminated with exit code 137", source="jupyter/docker-stacks#736", says=("137", "OOMKilled")
            ),
            Example("trainer-1 exited with code 139", says=("faulthandler",)),
        ),
        near_misses=("srun: error: node-3: task 5: Exited with exit code 1",),
        knowledge="Kubernetes and Docker: exit codes of containers",
    ),
    Failure(
        id="host.kubernetes_unschedulable",
        kind=LogClass.STARTUP,
        what="Kubernetes finds no node for a pod.",
        signs=(
            sign(
                "nodes are available",
                r"(?<!\d)(?P<fit>\d{1,6})/(?P<nodes>\d{1,6}) nodes are available: (?P<why>[^\n]{4,300})",
            ),
        ),
        headline=lambda case: (
            f"Kubernetes finds no node for the pod: {found[0]}"
            if (found := re.search(r"Insufficient [\w./-]{2,40}\w", case.given["why"]))
            else f"Kubernetes finds no node for the pod: none of {case.given['nodes']} fits"
        ),
        why=lambda case: (
            "no node has that much of it free: other pods use it, the pod asks for more than a node has, or none offers it"
            if "Insufficient" in case.given["why"]
            else "taints, selectors or volumes of the pod exclude the nodes: "
            + case.given["why"].strip()[:120].rstrip(".")
        ),
        next=(
            "compare the request with the nodes: kubectl describe nodes | grep -A8 'Allocated resources'; ask for fewer GPUs or less memory for each"
            " pod, or wait for other jobs",
            "if no node lists nvidia.com/gpu under Allocatable, its device plugin or driver does not run there; for taints and selectors add a"
            " toleration, or correct nodeSelector",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "  Warning  FailedScheduling  6m7s (x351 over 23h)  default-scheduler  0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
                source="open-edge-platform/geti_v2#1876",
                says=("nvidia.com/gpu",),
            ),
        ),
        knowledge="Kubernetes: kube-scheduler",
    ),
    Failure(
        id="host.kubernetes_image",
        kind=LogClass.STARTUP,
        what="Kubernetes cannot pull the image of a container.",
        signs=(
            sign("ImagePullBackOff"),
            sign("ErrImagePull"),
            sign("Failed to pull image", r"Failed to pull image \"(?P<image>[^\"\n]{1,200})\""),
        ),
        headline=lambda case: (
            "Kubernetes cannot pull the image"
            + (
                f" {image if len(image) <= 54 else '…' + image[-52:]}"
                if (image := case.given.get("image"))
                else " of a container"
            )
        ),
        why="its name or tag is wrong, the registry needs a login, the node cannot reach it, or it limits pulls",
        next=(
            "kubectl describe pod POD shows the registry's answer: `not found` is the name or tag, `unauthorized` needs imagePullSecrets, a timeout"
            " is the node's network or proxy",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                'Failed to pull image "curlimages/curl": failed to pull and unpack image "docker.io/curlimages/curl:latest": failed to resolve reference "docker.io/curlimages/curl:latest": failed to authorize: failed to fetch oauth token: unexpected status from GET request to https://auth.docker.io/token?scope=repository%3Acurlimages%2Fcurl%3Apull&service=registry.docker.io: 401 Unauthorized',
                source="kaito-project/kaito#609",
                says=("curlimages/curl",),
            ),
            Example(
                '9m37s       Warning   Failed                pod/octarine-guardrails-enforcer-5888cf98bf-xzklp          Failed to pull image "octarinesec/guardrails-enforcer:20.7": rpc error: code = Unknown desc = Error response from daemon: unauthorized: authentication required\n'
                "8m22s       Warning   Failed                pod/octarine-guardrails-enforcer-5888cf98bf-xzklp          Error: ErrImagePull",
                source="octarinesec/octarine-operator#15",
            ),
            Example(
                'Warning Failed 3s kubelet Failed to pull image "registry.example/train:v7": not found',
                says=("registry.example/train:v7",),
            ),
        ),
        knowledge="Kubernetes: images",
    ),
    Failure(
        id="host.kubernetes_preempted",
        kind=LogClass.TERMINATED,
        what="Kubernetes removed a pod for another one or from a node that goes away.",
        signs=(
            sign("Preempted", r"Preempted\s+[\s\S]{0,80}?(?:by|Preempted by) "),
            sign("TaintManagerEviction", r"TaintManagerEviction"),
            sign("Preempting", r"reason: Preempting"),
        ),
        headline="Kubernetes removed the pod: preempted by another one, or its node goes away",
        why="pods of higher priority take the place of others, and nodes that are drained or reclaimed (spot) lose their pods",
        next=(
            "resume from the last checkpoint; save on SIGTERM within terminationGracePeriodSeconds",
            "ask for a priorityClass that is not preempted, or nodes that are not spot",
        ),
        tier=Tier.STOPPED,
        event=EventKind.STOP_REQUESTED,
        examples=(
            Example(
                "Normal TaintManagerEviction 8s taint-eviction-controller Marking for deletion Pod default/trainer-0",
                says=("SIGTERM",),
            ),
        ),
        knowledge="Kubernetes: pod priority and preemption",
    ),
    Failure(
        id="host.pinned_memory",
        kind=LogClass.HOST_OOM,
        what="Pinned host memory could not be allocated.",
        signs=(sign("out of memory", r"CUDA error: out of memory"),),
        when=lambda case: (
            case.called(r":(?:pin_memory|_pin_memory_loop|do_one_step)$") or case.printed(r"\.pin_memory\(")
        ),
        headline="pin_memory() failed: no pinned host memory, or a GPU without room for it",
        why="pinned memory is host memory that cannot be swapped, and CUDA allocates it; the first call in a process"
        " also makes a CUDA context, which needs some hundred MiB of the GPU",
        next=(
            "pin less: pin_memory=False, fewer prefetched batches, DeepSpeed offload with pin_memory: false",
            "check the limit of locked memory (ulimit -l) and the memory of the container; PyTorch rounds each pinned block up to a power of two",
            "`nvidia-smi`: if the GPU that this process uses first (often GPU 0) is full, free it, or set the device"
            " before the loader starts",
        ),
        examples=(
            Example(
                'Traceback (most recent call last):\n  File "train.py", line 40, in <module>\n    for batch in loader:\n'
                '  File "/opt/lib/python3.10/site-packages/torch/utils/data/_utils/pin_memory.py", line 55, in pin_memory\n'
                "    return data.pin_memory(device)\nRuntimeError: CUDA error: out of memory",
                says=("pin_memory=False", "ulimit -l"),
            ),
        ),
        near_misses=("RuntimeError: CUDA error: out of memory",),
        knowledge="pytorch/pytorch#150517: pinned memory is rounded up",
    ),
    # Schedulers.
    Failure(
        id="host.batch_memory_limit",
        kind=LogClass.HOST_OOM,
        what="A batch system other than Slurm ended a job at its memory limit.",
        signs=(
            sign("TERM_MEMLIMIT", r"TERM_MEMLIMIT: job killed"),
            sign(
                "PBS: job killed", r"PBS: job killed: (?:v?mem|pmem|pvmem) (?P<used>\w+) exceeded limit (?P<limit>\w+)"
            ),
            sign("exceeded MEM usage", r"exceeded MEM usage"),
        ),
        headline=lambda case: (
            "The batch system killed the job at its memory limit"
            + (f": {case.given['used']} used, {case.given['limit']} allowed" if case.given.get("limit") else "")
        ),
        why="the memory of all processes of the job on a node counts, DataLoader workers as well; GPU memory does not",
        next=(
            "ask for more memory: LSF `bsub -M` and `-R rusage[mem=...]` (per core or per job, as the site has it), PBS"
            " `-l select=...:mem=`",
            _LESS_HOST_MEMORY,
        ),
        explains=_FOLLOWS,
        event=EventKind.HOST_OUT_OF_MEMORY,
        examples=(
            Example(
                "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 130.",
                source="OmicsML/scMoFormer#2",
                says=("bsub -M",),
            ),
            Example(
                "=>> PBS: job killed: mem 67175384kb exceeded limit 67108864kb",
                says=("67175384kb used",),
            ),
        ),
        knowledge="IBM LSF: termination reasons; PBS Professional: enforcement of limits",
    ),
    Failure(
        id="host.batch_time_limit",
        kind=LogClass.TIME_LIMIT,
        what="A batch system other than Slurm ended a job at its time limit.",
        signs=(
            sign("TERM_RUNLIMIT", r"TERM_RUNLIMIT: job killed"),
            sign("PBS: job killed", r"PBS: job killed: (?:walltime|cput) (?P<used>\d+) exceeded limit (?P<limit>\d+)"),
            sign("timed-out and not checkpointable"),
        ),
        headline=lambda case: (
            "The batch system ended the job at its time limit"
            + (f" of {int(case.given['limit']) / 3600:.1f} h" if case.given.get("limit") else "")
        ),
        why="the job was still running when its time was used up",
        next=(
            "ask for more time, or resume from the last checkpoint in a chain of jobs, and save often enough",
            Advice(
                "with submitit, give the submitted callable a method checkpoint() that returns DelayedSubmission: then it"
                " is requeued at its timeout",
                when=lambda case: "checkpointable" in text_of(case.lead),
            ),
        ),
        tier=Tier.STOPPED,
        event=EventKind.KNOWN,
        examples=(
            Example("=>> PBS: job killed: walltime 86416 exceeded limit 86400", says=("24.0 h", "checkpoint")),
            Example(
                "submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out and not checkpointable.",
                source="facebookincubator/submitit#1775",
                says=("checkpoint()",),
            ),
        ),
        knowledge="PBS Professional; IBM LSF; facebookincubator/submitit: checkpointing",
    ),
    Failure(
        id="host.submitit_preempted",
        kind=LogClass.TERMINATED,
        what="Slurm preempted a job of submitit, or its time was up, and submitit did not or did requeue it.",
        signs=(
            sign("submitit", r"(?:Job has been preempted|Job (?:not )?requeued? because)"),
            sign("Caught signal", r"Caught signal SIG\w+ on \S+: this job is (?P<why>preempted|timed-out)"),
        ),
        headline=lambda case: (
            "Slurm stopped the job: "
            + ("its time was up" if case.given.get("why") == "timed-out" else "it was preempted")
        ),
        why="submitit gets a signal before the end, saves if the submitted callable has a method checkpoint(), and requeues"
        " the job",
        next=(
            "look whether the job was requeued (`squeue -j JOB`, the next log file of the same job) and resumed from its"
            " checkpoint",
            "to lose fewer steps, save checkpoints more often, and set --signal=USR2@120 to get a signal earlier",
        ),
        tier=Tier.STOPPED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "submitit INFO (2022-07-12 04:17:53,762) - Starting with JobEnvironment(job_id=60601445, hostname=node-1, local_rank=0(2), node=0(1), global_rank=0(2))\n"
                "Setting up distributed environement with MASTER_ADDR=node-1, MASTER_PORT=33666, RANK=0, WORLD_SIZE=2\n"
                "submitit WARNING (2022-07-12 04:18:45,706) - Bypassing signal SIGTERM\n"
                "submitit INFO (2022-07-12 04:18:45,881) - Job has not timed out. Ran 1 minutes out of requested 20 minutes.\n"
                "submitit WARNING (2022-07-12 04:18:45,881) - Caught signal SIGHUP on node-1: this job is preempted.\n"
                "submitit INFO (2022-07-12 04:18:45,912) - Requeued job 60601445 (3 remaining timeouts)\n"
                "submitit WARNING (2022-07-12 04:18:45,912) - Bypassing signal SIGCONT\n"
                "submitit INFO (2022-07-12 04:18:45,913) - Exiting gracefully after preemption/timeout.",
                source="facebookincubator/submitit#1701",
                says=("preempted",),
            ),
        ),
        knowledge="facebookincubator/submitit: core/job_environment.py",
    ),
    Failure(
        id="host.mpi_node_lost",
        kind=LogClass.NETWORK,
        what="The launcher of MPI lost its daemon on a node.",
        signs=(
            sign(
                "has lost communication with a remote daemon",
                r"(?P<launcher>ORTE|PRTE) has lost communication with a remote daemon",
            ),
            sign("has lost communication with its daemon", r"ORTE has lost communication with its daemon"),
        ),
        headline="MPI's launcher lost a node: its daemon ended, or the connection to it broke",
        why="the daemon ends with its node or container, for example when that is out of memory or was preempted; a"
        " broken connection looks the same",
        next=(
            "look at the node that the message calls `Remote daemon`: is it up (ping, `kubectl get pods`), was its"
            " container killed (exit code 137: OOMKilled), did it reboot (`uptime`)?",
            "if the node was well, choose the network for the launcher: --mca oob_tcp_if_include eth0 --mca"
            " btl_tcp_if_include eth0 (Open MPI 5: --prtemca)",
        ),
        tier=Tier.NETWORK,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "--------------------------------------------------------------------------\n"
                "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[27407,0],0] on node batch2\n"
                "  Remote daemon: [[27407,0],1] on node d23n02",
                source="radical-cybertools/radical.pilot#2164",
                says=("lost a node", "137"),
            ),
            Example("PRTE has lost communication with a remote daemon.", source="openpmix/prrte#2694", says=("node",)),
        ),
        knowledge="open-mpi/ompi#6618, openpmix/prrte#2694",
    ),
    Failure(
        id="host.mpi_rank_killed",
        kind=LogClass.SIGNAL,
        what="A rank that MPI's launcher had started was ended by a signal.",
        signs=(
            sign(
                "noticed that process rank",
                r"(?:mpirun|mpiexec|prterun|orterun) noticed that process rank (?P<rank>\d+) with PID \d+ on node"
                r" (?P<node>\S+)\s{1,4}exited on\s{1,4}signal (?P<signal>\d+)(?: \((?P<name>[^)]{1,40})\))?",
            ),
        ),
        headline=lambda case: (
            f"Rank {case.given['rank']} on {case.given['node'][:30]} was ended by signal {case.given['signal']}"
            + (f" ({case.given['name']})" if case.given.get("name") else "")
        ),
        why=lambda case: {
            "9": "SIGKILL leaves no exception: the kernel's OOM killer sends it when host memory, or the limit of the"
            " container, is full; a scheduler and a person can send it, too",
            "11": "a segmentation fault is a crash in native code: an extension, a library of another version",
            "7": "a bus error is most often a full /dev/shm, or a file that became shorter while it was mapped",
            "6": "the process aborted itself: the reason is in its own output",
            "15": "SIGTERM is a request to stop, from a scheduler, a person, or a launcher that ends the other ranks",
        }.get(case.given["signal"], "a signal ends a process without an exception of Python"),
        next=(
            Advice(
                "check the memory of that node: `dmesg -T | grep -i 'killed process'`, `sacct -j JOB -o State,MaxRSS`,"
                " OOMKilled; if so, " + _LESS_HOST_MEMORY,
                when=lambda case: case.given["signal"] == "9",
            ),
            Advice(
                "run with `python -X faulthandler` to see the line, and compare the versions of the libraries on all"
                " nodes",
                when=lambda case: case.given["signal"] in ("11", "4", "8"),
            ),
            Advice(
                "in a container, give it more shared memory: --shm-size=16g",
                when=lambda case: case.given["signal"] == "7",
            ),
            "read the output of that rank alone: mpirun --tag-output, or --output-filename DIR",
        ),
        tier=Tier.KILLED,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "mpirun noticed that process rank 7 with PID 0 on node worker-3 exited on signal 9 (Killed).",
                source="horovod/horovod#469",
                says=("Rank 7 on worker-3", "signal 9", "dmesg"),
            ),
            Example(
                "mpirun noticed that process rank 0 with PID 21 on node gpu1 exited on signal 11 (Segmentation fault).",
                says=("faulthandler",),
            ),
        ),
        knowledge="open-mpi/ompi: help-orterun.txt; signal(7)",
    ),
    Failure(
        id="host.mpi_without_pmi",
        kind=LogClass.STARTUP,
        what="Ranks of Open MPI were started by srun, and the two have no common protocol to meet.",
        signs=(
            sign("was not built with SLURM's PMI support"),
            sign("OMPI was not built with SLURM", r"OMPI was not built with SLURM"),
            sign("_Init failed to initialize", r"PMI2?_Init failed to initialize"),
        ),
        headline="Open MPI and srun do not fit: the ranks cannot find each other (PMI, PMIx)",
        why="srun gives its tasks a PMI of one kind, and this Open MPI was built for none or another; each rank then takes itself"
        " for the only one, or stops",
        next=(
            "choose the kind that both have: `srun --mpi=list`, then srun --mpi=pmix (or pmi2)",
            "or start with mpirun inside of the allocation, with the Open MPI that the program was built with; PyTorch with NCCL or"
            " gloo needs no MPI: torchrun",
        ),
        check="`ompi_info | grep -i pmi` and `srun --mpi=list`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                'The application appears to have been direct launched using "srun",\n'
                "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
                "execute.",
                says=("srun --mpi=pmix",),
            ),
        ),
        knowledge="Open MPI: help text of the ess/pmi component; Slurm's MPI guide",
    ),
    Failure(
        id="host.mpi_as_root",
        kind=LogClass.STARTUP,
        what="mpirun refuses to start as root.",
        signs=(sign("has detected an attempt to run as root"),),
        headline="mpirun refuses to run as root, as in a container",
        why="Open MPI asks for an explicit yes, because a wrong command does more harm as root",
        next=(
            "add --allow-run-as-root, or set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (prterun:"
            " PRTE_ALLOW_RUN_AS_ROOT=1 and PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1)",
            "or run it as another user (docker run --user)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "mpirun has detected an attempt to run as root.\n\nRunning as root is *strongly* discouraged as any mistake (e.g.,"
                " in\ndefining TMPDIR) or bug can result in catastrophic damage to the OS\nfile system",
                says=("--allow-run-as-root",),
            ),
        ),
        knowledge="Open MPI: mpirun(1)",
    ),
    Failure(
        id="host.mpi_daemon_not_started",
        kind=LogClass.STARTUP,
        what="MPI's launcher could not start its daemon on another node.",
        signs=(
            sign(
                "was unable to reliably start one or more daemons",
                r"(?:ORTE|PRTE) was unable to reliably start one or more",
            ),
            sign("orted", r"orted: (?:command not found|No such file)"),
            sign("prted", r"prted: (?:command not found|No such file)"),
        ),
        headline="mpirun could not start its daemon on another node (orted, prted)",
        why="it logs in by ssh and starts Open MPI there: most often the login asks for something, or Open MPI is not"
        " on the PATH of a shell that is not interactive",
        next=(
            "try it: `ssh NODE which orted` must print a path without asking; else set up keys (ssh-copy-id, known_hosts)",
            "call mpirun with its full path, or --prefix /path/of/openmpi, so that the other node finds the same one",
            "if ssh works: a firewall, or the wrong interface: --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n\n"
                "* not finding the required libraries and/or binaries on\n  one or more nodes.",
                says=("ssh NODE which orted", "--prefix"),
            ),
            Example("bash: orted: command not found", source="horovod/horovod#1084", says=("PATH",)),
        ),
        knowledge="Open MPI: help-errmgr-base.txt; horovod/horovod#1084",
    ),
    Failure(
        id="host.mpi_init",
        kind=LogClass.STARTUP,
        what="MPI could not be initialised in a rank.",
        signs=(
            sign("An error occurred in MPI_Init", r"An error occurred in MPI_Init(?:_thread)?"),
            sign("ompi_mpi_init", r"ompi_mpi_init: \w+ failed"),
        ),
        headline="MPI_Init failed in a rank: Open MPI's own text beside it names the component",
        why="most often mpirun, the library that is loaded and mpi4py, Horovod or PyTorch's MPI are of different MPIs, or the ranks"
        " were not started by mpirun",
        next=(
            "compare `which mpirun`, `mpirun --version` and `ldd` of the extension (libmpi.so) on each node: one MPI for all, and"
            " rebuild the extension with it (pip install --no-cache-dir --force-reinstall mpi4py, horovod)",
            "read the box that Open MPI printed with it; -x LD_LIBRARY_PATH -x PATH passes the environment to the other nodes",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"
                "*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)",
                source="horovod/horovod#465",
                says=("which mpirun",),
            ),
        ),
        knowledge="horovod/horovod#465",
    ),
    Failure(
        id="host.mpi_slots",
        kind=LogClass.STARTUP,
        what="MPI's launcher has fewer slots than processes were asked for.",
        signs=(
            sign(
                "not enough slots available",
                r"There are not enough slots available in the system to satisfy the (?P<count>\d+)",
            ),
        ),
        headline="mpirun has fewer slots than the {count} processes that were asked for",
        why="a host in -H without a number counts as one slot; without -H or a host file, each core counts",
        next=(
            "name the slots: -H localhost:{count} (-H node1:8,node2:8 for several), or `node1 slots=8` in the host file; or start"
            " fewer processes, one for each GPU (-np)",
            "under Slurm ask for the tasks (--ntasks-per-node=8); --oversubscribe only where several ranks may share a"
            " core",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "There are not enough slots available in the system to satisfy the 2 slots \n"
                "that were requested by the application:\n"
                "  python\n"
                "\n"
                "Either request fewer slots for your application, or make more slots available\n"
                "for use.",
                source="horovod/horovod#978",
                says=("localhost:2",),
            ),
        ),
        knowledge="Open MPI: help-ras-base.txt",
    ),
)
