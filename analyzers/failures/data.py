"""Failures of data loading and of files that are written."""

import re

from analyzers.case.facts import EventKind, LogClass, Reason
from analyzers.case.hypothesis import Case, Tier
from analyzers.case.wording import at_step, first_with, place, quoted, who
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of


def _has_fewer_tokens(case: Case) -> bool:
    """Return whether the text has fewer image tokens than its images have features."""
    return int(case.given["tokens"]) < int(case.given["features"])


def _first_of_chain(case: Case) -> str:
    """Return the exception that led to the one of a case; empty if the text has none."""
    return next((text.strip().splitlines()[0] for text in case.lead.chain if text.strip()), "")


def dataloader_worker(case: Case) -> str:
    """Return the title for the death of a data-loader worker."""
    lead = first_with(case, "signal")
    if case.reason is Reason.WORKER_TIMEOUT:
        return f"the data loader of {who(case.ranks)} timed out{at_step(lead)}"
    if case.reason is Reason.SHARED_MEMORY and not lead.facts.signal:
        return f"the data loader of {who(case.ranks)} ran out of shared memory{at_step(lead)}"
    how = f"was killed by {_signal_text(lead.facts.signal)}" if lead.facts.signal else "exited unexpectedly"
    return f"a data-loader worker of {who(case.ranks)} {how}{at_step(lead)}"


def _signal_text(described: str) -> str:
    """Return the name of a signal from PyTorch's description of it, such as `SIGKILL` for `Killed`.

    A description without a known name is returned after the word `signal`.
    """
    return {
        "killed": "SIGKILL",
        "segmentation fault": "SIGSEGV (segmentation fault)",
        "bus error": "SIGBUS (bus error)",
    }.get(described.strip(".").lower(), f"signal {described}")


def disk_full(case: Case) -> str:
    """Return the title for a file that could not be written."""
    lead = case.lead
    why = "no space is left" if case.reason is Reason.NO_SPACE else "the file system is probably full"
    return f"{who(case.ranks)} could not write a file{place(lead)}{at_step(lead)}, as {why}: {quoted(lead)}"


_WORKERS = {
    Reason.SHARED_MEMORY: "give the container more shared memory (`--shm-size=16g`, or mount /dev/shm), or use fewer"
    " workers",
    Reason.WORKER_TIMEOUT: "find the sample or the storage that is slow: set `num_workers=0` to see the stack, or raise"
    " `timeout=`",
    Reason.WORKER_EXIT: "set `num_workers=0` for one run: the exception then appears in the rank itself",
}


def _for_worker(case: Case) -> str:
    """Return what to look at when a data-loader worker died."""
    if case.reason in _WORKERS:
        return _WORKERS[case.reason]
    name = first_with(case, "signal").facts.signal or ""
    if "us error" in name:
        return _WORKERS[Reason.SHARED_MEMORY]
    if name.startswith("Killed"):
        return (
            "check with `dmesg -T` whether the kernel's out-of-memory killer ended it. If so, use fewer workers or a"
            " smaller prefetch_factor, or ask for more host memory"
        )
    return "set `num_workers=0` and run with `python -X faulthandler` to see which sample or library crashes"


_DIMENSIONS_OF_IMAGE = 3


def _shapes_differ(case: Case) -> str:
    """Return a clause on how two shapes of samples differ: swapped sides, lengths, or the number of dimensions."""
    first, second = ([int(n) for n in re.findall(r"\d+", case.given[name])] for name in ("first", "second"))
    if len(first) != len(second):
        return f"they have {len(first)} and {len(second)} dimensions, as a grey image beside one with colours"
    if first != second and sorted(first) == sorted(second):
        return "the sides are swapped, as in an upright image and a wide one"
    differing = [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if len(differing) == 1:
        n = differing[0]
        what = (
            " (channels: an image in grey, with colours or with transparency)"
            if {first[n], second[n]} <= {1, 2, 3, 4} and len(first) == _DIMENSIONS_OF_IMAGE and n != 1
            else ""
        )
        return f"they differ in dimension {n}: {first[n]} and {second[n]}{what}"
    return "they differ in several dimensions, as images of different size do"


_ONE_SIZE = (
    "bring the samples of a batch to one size: pad them to the longest in the collate function (collate_fn with"
    " pad_sequence, or a DataCollatorWithPadding), or resize or crop each sample in the data set"
)
_FEWER_WORKERS = "use fewer workers (num_workers) and a smaller prefetch_factor"


def _lmdb(case: Case) -> str:
    """Return the kind of a failure of LMDB: "MAPFULL" of MDB_MAP_FULL and of MapFullError."""
    return case.given["code"].removeprefix("MDB_").removesuffix("Error").replace("_", "").upper()


def _is_saved(case: Case) -> bool:
    """Return whether what cannot be pickled was to be written to a checkpoint, by the frames of the exception."""
    return case.called(r"serialization\.py|checkpoint|:(?:save|torch_save|_save|async_save|save_state_dict)$")


def _is_copied(case: Case) -> bool:
    """Return whether an object was to be copied in the same process."""
    return case.called(r"(?:^|[/\\])copy\.py:\d+:(?:deepcopy|_deepcopy\w*|_reconstruct|copy)$")


def _is_sent(case: Case) -> bool:
    """Return whether what cannot be pickled was to be sent to another process."""
    return (
        case.called(r"multiprocess|popen|dataloader\.py|concurrent[/\\]futures|[/\\]ray[/\\]|spawn\.py")
        or not case.lead.calls
    )


LOADING = (
    Failure(
        id="data.unequal_samples",
        kind=LogClass.CRASHED,
        what="Samples of one batch have different shapes, and the loader cannot stack them.",
        signs=(
            sign(
                "stack expects each tensor to be equal size",
                r"stack expects each tensor to be equal size, but got (?P<first>\[[\d, ]*\]) at entry \d+ and"
                r" (?P<second>\[[\d, ]*\]) at entry (?P<entry>\d+)",
            ),
        ),
        headline="Samples of one batch differ in shape: {first} and {second}",
        why=lambda case: _shapes_differ(case) + "; a batch is one tensor, so all its samples must have one shape",
        next=(
            _ONE_SIZE,
            "or group samples of one size into batches (a BatchSampler with buckets by length or aspect ratio)",
            "check the sample if all are meant to be equal: print the index and shape in __getitem__",
        ),
        check="batch_size=1 runs; that is a test and no cure",
        rules_out="a lack of memory, or a worker that crashed",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: stack expects each tensor to be equal size, but got [24, 32, 64] at entry 0 and [24, 64, 32] at"
                " entry 1",
                source="Suanmd/TR-MISR#3",
                says=("[24, 32, 64] and [24, 64, 32]", "collate", "swapped"),
            ),
            Example(
                "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, 224, 224] at"
                " entry 5",
                says=("channels", "collate"),
            ),
            Example(
                "RuntimeError: stack expects each tensor to be equal size, but got [4] at entry 0 and [3] at entry 1",
                says=("dimension 0: 4 and 3",),
            ),
        ),
        knowledge="torch.utils.data: default_collate; torch.stack",
    ),
    Failure(
        id="data.unequal_lists",
        kind=LogClass.CRASHED,
        what="Lists of different length are to become one tensor.",
        signs=(
            sign("each element in list of batch should be of equal size"),
            sign(
                "expected sequence of length",
                r"expected sequence of length (?P<first>\d+) at dim \d+ \(got (?P<second>\d+)\)",
            ),
        ),
        headline=lambda case: (
            f"Lists of different lengths are to become one tensor: {case.given['first']} and {case.given['second']}"
            if case.given.get("first")
            else "Samples of one batch have different lengths, and nothing pads them"
        ),
        why="a list of lists becomes a tensor only if all are equally long",
        next=(
            "pad in the collate function: DataCollatorWithPadding, DataCollatorForSeq2Seq or pad_sequence; or tokenize with"
            " padding and truncation (padding='max_length', truncation=True, max_length=N)",
            "pad the labels too (with -100), and remove columns that are text or nested (remove_unused_columns,"
            " dataset.remove_columns)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.8/dist-packages/torch/utils/data/_utils/worker.py", line 302, in _worker_loop\n'
                "    data = fetcher.fetch(index)\n"
                '  File "/usr/local/lib/python3.8/dist-packages/torch/utils/data/_utils/collate.py", line 265, in default_collate\n'
                "    return collate(batch, collate_fn_map=default_collate_fn_map)\n"
                '  File "/usr/local/lib/python3.8/dist-packages/torch/utils/data/_utils/collate.py", line 139, in collate\n'
                "    raise RuntimeError('each element in list of batch should be of equal size')\n"
                "RuntimeError: each element in list of batch should be of equal size",
                source="davidhalladay/Frido#9",
                says=("collate",),
            ),
            Example("RuntimeError: each element in list of batch should be of equal size", says=("collate",)),
            Example("ValueError: expected sequence of length 165 at dim 1 (got 128)", says=("165 and 128", "padding")),
        ),
        knowledge="torch.utils.data: default_collate; transformers: data collators",
    ),
    Failure(
        id="data.broken_image",
        kind=LogClass.CRASHED,
        what="A file of the data set is damaged or is no image.",
        signs=(
            sign(
                "image file is truncated",
                r"(?:Error|Exception)\b[^\n]{0,120}?(?P<what>image file is truncated(?: \((?P<bytes>\d+) bytes not processed\))?)",
            ),
            sign(
                "cannot identify image file",
                r"Error: [^\n]{0,80}?cannot identify image file (?:<_io\.BufferedReader name=)?'?(?P<file>[^'>\n]{1,200})",
            ),
            sign("broken data stream when reading", r"Error: [^\n]{0,80}?broken data stream when reading image file"),
            sign("DecompressionBombError"),
        ),
        headline=lambda case: (
            "A file of the data set is no image that can be read"
            + ("" if "<" in case.given["file"] else f": {case.given['file'].rpartition('/')[2][-50:]}")
            if case.given.get("file")
            else "An image of the data set is too large for PIL's safety limit"
            if "Bomb" in text_of(case.lead)
            else "An image file of the data set is damaged or cut off"
        ),
        why=lambda case: (
            "PIL refuses images with so many pixels, which may be made to exhaust the memory"
            if "Bomb" in text_of(case.lead)
            else "most often the file was cut while it was downloaded, copied or unpacked, or something else has that name (an empty"
            " file, an HTML page), or a format that this PIL cannot read"
        ),
        next=(
            "find it: catch the exception in __getitem__ and print the path, or open and .load() every file once before the"
            " training; then copy it again or leave it out",
            Advice(
                "to read what there is of cut files: from PIL import ImageFile; ImageFile.LOAD_TRUNCATED_IMAGES = True",
                when=lambda case: "truncated" in text_of(case.lead) or "broken" in text_of(case.lead),
            ),
            Advice(
                "raise Image.MAX_IMAGE_PIXELS, or make the image smaller before",
                when=lambda case: "Bomb" in text_of(case.lead),
            ),
        ),
        rules_out="a lack of memory; a worker that was killed says so",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Original Traceback (most recent call last):\n"
                '  File "/home/user/anaconda3/envs/test/lib/python3.7/site-packages/torch/utils/data/_utils/worker.py", line 202, in _worker_loop\n'
                "    data = fetcher.fetch(index)\n"
                '  File "/home/user/anaconda3/envs/test/lib/python3.7/site-packages/torch/utils/data/_utils/fetch.py", line 44, in <listcomp>\n'
                "    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
                '  File "tools/../vedastr/datasets/lmdb_dataset.py", line 81, in __getitem__\n'
                "    img, label = self.read_data(index)\n"
                '  File "tools/../vedastr/datasets/lmdb_dataset.py", line 73, in read_data\n'
                "    img = Image.open(buf).convert('RGB')  # for color image\n"
                '  File "/home/user/anaconda3/envs/test/lib/python3.7/site-packages/PIL/ImageFile.py", line 249, in load\n'
                '    "(%d bytes not processed)" % len(b)\n'
                "OSError: image file is truncated (43 bytes not processed)",
                source="Media-Smart/vedastr#72",
                says=("LOAD_TRUNCATED_IMAGES",),
            ),
            Example(
                "OSError: cannot identify image file <_io.BufferedReader name=imagenet/raw-data/train/n01667778/n01667778_6494.JPEG'",
                source="facebookresearch/deit#76",
                says=("n01667778_6494.JPEG",),
            ),
            Example(
                "OSError: image file is truncated (1 bytes not processed)", says=("damaged", "LOAD_TRUNCATED_IMAGES")
            ),
            Example(
                "PIL.UnidentifiedImageError: cannot identify image file 'data/train/00012.jpg'",
                says=("00012.jpg",),
            ),
        ),
        near_misses=(
            "train: WARNING data/a.jpg: ignoring corrupt image/label: image file is truncated (0 bytes not processed)",
        ),
        knowledge="Pillow: ImageFile",
    ),
    Failure(
        id="data.worker_killed",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker of a DataLoader was killed, most often for lack of host memory.",
        signs=(sign("is killed by signal", r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Killed"),),
        explains=("data.worker_exited",),
        headline="A DataLoader worker (pid {pid}) was killed (SIGKILL), most often for host memory",
        why="nobody but the kernel's OOM killer usually kills a worker: each worker holds prefetch_factor batches, and"
        " can come to hold its own copy of what the data set keeps in memory",
        next=(
            f"{_FEWER_WORKERS} (0 as a test), and do not hold the data set in memory (caches, lists of Python objects, which grow"
            " in every worker)",
            "or give the job more host memory (--mem, the container's limit)",
        ),
        check="`dmesg -T | grep -i 'killed process'`, `sacct -j JOB -o State,MaxRSS`; `free -h` while it runs",
        rules_out="GPU memory, and a full /dev/shm (that is a bus error)",
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                "RuntimeError: DataLoader worker (pid 12847) is killed by signal: Killed.",
                source="TorchSSL/TorchSSL#4",
                says=("12847", "num_workers", "--mem"),
            ),
        ),
        near_misses=("RuntimeError: DataLoader worker (pid 12) is killed by signal: Terminated.",),
        knowledge="pytorch/pytorch#13246",
    ),
    Failure(
        id="data.worker_terminated",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker of a DataLoader was ended by SIGTERM: somebody asked it to end.",
        signs=(sign("is killed by signal", r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Terminated"),),
        headline="A DataLoader worker (pid {pid}) was ended from outside (SIGTERM)",
        why="SIGTERM is an order to end, from a launcher or scheduler that stops the job, from kill, or from the end of its"
        " own rank; it shows no fault of the worker or its data",
        next=(
            "find who stopped the job: a message of the scheduler or launcher (time limit, preemption, another rank's failure), or"
            " a kill of your own; then start again from the last checkpoint",
        ),
        explains=("data.worker_exited",),
        tier=Tier.ABORTED,
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                "RuntimeError: DataLoader worker (pid 43430) is killed by signal: Terminated.",
                says=("SIGTERM", "checkpoint"),
            ),
        ),
        near_misses=("RuntimeError: DataLoader worker (pid 12847) is killed by signal: Killed.",),
        knowledge="torch.utils.data: _utils/signal_handling.py; signal(7)",
    ),
    Failure(
        id="data.worker_crashed",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker of a DataLoader crashed in native code.",
        signs=(
            sign(
                "is killed by signal",
                r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<how>Segmentation fault|Aborted|Floating point"
                r" exception|Illegal instruction)",
            ),
            sign(
                "encountered in worker",
                r"Unexpected (?P<how>segmentation fault|floating-point exception) encountered in worker",
            ),
        ),
        explains=("data.worker_exited",),
        headline=lambda case: f"A DataLoader worker crashed in native code: {case.given['how'].lower()}",
        why="most often a library that decodes or transforms samples crashed: one that does not survive a fork (OpenCV"
        " with threads, an open HDF5 or LMDB file), or a damaged sample",
        next=(
            "run once with num_workers=0 and python -X faulthandler: the crash then shows its line",
            "open files in each worker and not before the fork (in __getitem__, at first use), call cv2.setNumThreads(0), or use"
            " multiprocessing_context='spawn'",
            "if it is always the same sample, decode that file alone",
        ),
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                "ERROR: Unexpected segmentation fault encountered in worker.\n"
                "\n"
                "Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.6/dist-packages/torch/utils/data/dataloader.py", line 986, in _try_get_data\n'
                "    data = self._data_queue.get(timeout=timeout)\n"
                '  File "/usr/local/lib/python3.6/dist-packages/torch/utils/data/_utils/signal_handling.py", line 66, in handler\n'
                "    _error_if_any_worker_fails()\n"
                "RuntimeError: DataLoader worker (pid 624) is killed by signal: Segmentation fault. \n"
                "\n"
                "The above exception was the direct cause of the following exception:\n"
                "\n"
                "Traceback (most recent call last):\n"
                '  File "/workspace/pycls/train1.0.1/train_net.py", line 24, in <module>\n'
                "    dist.multi_proc_run(num_proc=cfg.NUM_GPUS, fun=trainer.train_model)",
                source="facebookresearch/pycls#146",
                says=(
                    "segmentation fault",
                    "faulthandler",
                ),
            ),
            Example(
                "RuntimeError: DataLoader worker (pid 3320) is killed by signal: Segmentation fault.",
                says=("faulthandler",),
            ),
            Example("ERROR: Unexpected segmentation fault encountered in worker.", says=("cv2.setNumThreads(0)",)),
        ),
        knowledge="pytorch/pytorch#1355, #50858",
    ),
    Failure(
        id="data.shared_file_gone",
        kind=LogClass.DATALOADER_WORKER,
        what="A batch in shared memory was gone when a process wanted to open it by its name.",
        signs=(
            sign(
                "unable to open shared memory object",
                r"unable to open shared memory object </torch_\S+ in (?:read-write|read-only) mode: No such file or directory",
            ),
        ),
        headline="A batch in shared memory was gone before the training process opened it (errno 2)",
        why="with the sharing strategy file_system batches are handed over by name; the name is gone once the worker that made it,"
        " or its manager, has ended or cleaned up. /dev/shm is not full",
        next=(
            "use the sharing strategy file_descriptor (the default of Linux), with a higher `ulimit -n`: find who calls"
            " set_sharing_strategy('file_system') and remove it",
            "look for a worker that ended before; else fewer workers, and persistent_workers or pin_memory changed for"
            " a test",
        ),
        check="print(torch.multiprocessing.get_sharing_strategy())",
        rules_out="errno 28 (no space) or 24 (open files) in the message",
        examples=(
            Example(
                "RuntimeError: unable to open shared memory object </torch_310_3681426278_102> in read-write mode: No such file or"
                " directory (2)",
                source="KatherLab/MediSwarm#574",
                says=("file_descriptor",),
            ),
        ),
        near_misses=(
            "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
        ),
        knowledge="torch.multiprocessing's documentation of sharing strategies",
    ),
    Failure(
        id="data.shared_memory",
        kind=LogClass.DATALOADER_WORKER,
        what="The shared memory through which DataLoader workers pass batches is full.",
        signs=(
            sign("bus error", r"[Uu]nexpected bus error encountered in worker|is killed by signal: Bus error"),
            sign("is killed by signal: Bus error"),
            sign("out of shared memory", r"dataloader's workers are out of shared memory"),
            sign("unable to write to file", r"unable to write to file </torch_"),
            sign(
                "unable to mmap",
                r"unable to mmap (?P<bytes>\d+) bytes from file </?torch_\S{0,60}?(?:>|)[^\n]{0,20}(?:Cannot|No space|$)",
            ),
            sign("unable to resize file", r"unable to resize file </torch_"),
            sign(
                "unable to open shared memory object",
                r"unable to open shared memory object </torch_\S+ in (?:read-write|read-only) mode",
            ),
            sign(
                "No space left on device",
                r"\A[\s\S]{0,300}?(?:/dev/shm|torch_\d+_\d+)[\s\S]{0,200}?No space left on device"
                r"|No space left on device[^\n]{0,60}(?:/dev/shm|torch_\d+)",
            ),
        ),
        headline=lambda case: (
            "A DataLoader worker could not open shared memory: /dev/shm is full, or a limit is reached"
            if "unable to open" in text_of(case.lead)
            else "A DataLoader worker got a bus error: most often shared memory (/dev/shm) is full"
            if re.search("[Bb]us error", text_of(case.lead))
            else "Shared memory could not be mapped (errno 12): the memory, or a limit of it, is used up"
            if "Cannot allocate" in text_of(case.lead)
            else "Shared memory (/dev/shm) is too small for the batches of the DataLoader workers"
        ),
        why="workers hand over batches in /dev/shm, which has only 64 MB in a Docker container unless more is asked"
        " for; it counts as memory of the job, too",
        next=(
            "in a container, give it more: docker run --shm-size=16g or --ipc=host; in Kubernetes mount an emptyDir of"
            " medium Memory at /dev/shm",
            Advice(
                "if `df -h /dev/shm` shows room, the limit of open files is reached: ulimit -n 65535, or"
                " torch.multiprocessing.set_sharing_strategy('file_system')",
                when=lambda case: "unable to open" in text_of(case.lead),
            ),
            f"or {_FEWER_WORKERS}, or smaller batches; num_workers=0 needs none",
        ),
        check="`df -h /dev/shm` on the node or in the container, while it runs",
        rules_out="a full disk: /dev/shm is memory",
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                "Epoch 0: 6843.771 seconds\n"
                "Epoch start time: 1577064742.170, epoch end time: 1577071585.941\n"
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
                "Traceback (most recent call last):\n"
                '  File "/opt/conda/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 480, in _try_get_batch\n'
                "    data = self.data_queue.get(timeout=timeout)\n"
                '  File "/opt/conda/lib/python3.6/site-packages/torch/utils/data/_utils/signal_handling.py", line 63, in handler\n'
                "    _error_if_any_worker_fails()\n"
                "RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error.",
                source="msr-fiddle/pipedream#28",
                says=("shm-size",),
            ),
            Example(
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
                says=("--shm-size",),
            ),
            Example(
                "RuntimeError: DataLoader worker (pid 27) is killed by signal: Bus error. It is possible that dataloader's workers"
                " are out of shared memory. Please try to raise your shared memory limit.",
                says=("--shm-size",),
            ),
            Example(
                "RuntimeError: unable to write to file </torch_1034_3310563345_0>: No space left on device (28)",
                says=("--shm-size",),
            ),
            Example(
                "RuntimeError: unable to mmap 1024 bytes from file </torch_4411_2211_1>: Cannot allocate memory (12)",
                says=("errno 12",),
            ),
        ),
        near_misses=("OSError: [Errno 28] No space left on device: '/scratch/ckpt/model.pt'",),
        knowledge="pytorch/pytorch#5040; docker run: --shm-size",
    ),
    Failure(
        id="data.worker_exited",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker of a DataLoader ended without saying why.",
        signs=(
            sign(
                "exited unexpectedly",
                r"DataLoader worker \(pid\(?s?\)? (?P<pid>[\d, ]+)\) exited unexpectedly(?: with exit code (?P<code>-?\d+))?",
            ),
            sign("Pin memory thread exited unexpectedly"),
        ),
        when=lambda case: not case.printed(r"encountered in worker|is killed by signal"),
        headline=lambda case: (
            "The DataLoader's thread that pins memory ended unexpectedly"
            if "Pin memory thread" in text_of(case.lead)
            else "A DataLoader worker ended without an exception"
            + (f" (pid {case.given['pid']})" if len(case.given.get("pid", "")) in range(1, 12) else "")
            + ": killed, crashed, or not started"
        ),
        why="this message names no reason: a kill for host memory, a crash in native code, and an exception while the"
        " worker starts all look like this",
        next=(
            "look for the reason elsewhere: an exception of the worker in the log, `dmesg -T | grep -i 'killed"
            " process'`, the scheduler's log (oom-kill)",
            f"set num_workers=0 for one run: the exception then appears in the rank itself; if it runs, {_FEWER_WORKERS}",
            "on Windows and macOS, put the start of the program under if __name__ == '__main__':",
        ),
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                '  File "D:\\ruanjian\\ana\\lib\\site-packages\\torch\\utils\\data\\dataloader.py", line 1024, in _try_get_data\n'
                "    raise RuntimeError('DataLoader worker (pid(s) {}) exited unexpectedly'.format(pids_str)) from e\n"
                "\n"
                "RuntimeError: DataLoader worker (pid(s) 12048, 7612) exited unexpectedly",
                source="buppt/ChineseNRE#41",
                says=("12048", "num_workers=0", "on Windows"),
            ),
            Example(
                "RuntimeError: DataLoader worker (pid(s) 411948) exited unexpectedly",
                says=("411948", "num_workers=0", "dmesg"),
            ),
            Example("RuntimeError: Pin memory thread exited unexpectedly", says=("thread that pins memory",)),
        ),
        knowledge="torch.utils.data: DataLoader",
    ),
    Failure(
        id="data.worker_timeout",
        kind=LogClass.DATALOADER_WORKER,
        what="A DataLoader waited longer than its timeout for a batch.",
        signs=(sign("DataLoader timed out", r"DataLoader timed out after (?P<seconds>\d+) seconds"),),
        headline="The DataLoader got no batch within its timeout of {seconds} s",
        why="a worker is stuck or slow: storage that does not answer, one very large sample, or a deadlock after a fork",
        next=(
            "see where it is: py-spy dump --pid PID for the workers (ps shows them), or num_workers=0 once",
            "raise timeout= only if one sample really takes that long",
            "for a deadlock: cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false, multiprocessing_context='spawn'",
        ),
        event=EventKind.DATALOADER_WORKER,
        examples=(
            Example(
                '  File "/usr/local/miniconda/envs/build/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 521, in __next__\n'
                "    data = self._next_data()\n"
                '  File "/usr/local/miniconda/envs/build/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1186, in _next_data\n'
                "    idx, data = self._get_data()\n"
                '  File "/usr/local/miniconda/envs/build/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1139, in _get_data\n'
                "    raise RuntimeError('DataLoader timed out after {} seconds'.format(self._timeout))\n"
                "RuntimeError: DataLoader timed out after 5 seconds",
                source="pytorch/pytorch#68643",
                says=("5 s",),
            ),
        ),
        knowledge="torch.utils.data: DataLoader(timeout=)",
    ),
    Failure(
        id="data.map_process_died",
        kind=LogClass.DATALOADER_WORKER,
        what="A process of Dataset.map was killed or crashed.",
        signs=(sign("abruptly died during map operation"),),
        headline="A process of Dataset.map died without an exception: killed for host memory, or crashed",
        why="each of the num_proc processes holds its own copy of the function's objects (tokenizer, model, images) and batches, and on"
        " Windows and macOS imports the script anew",
        next=(
            "use fewer processes (num_proc=1 to see the exception itself; preprocessing_num_workers, dataset_num_proc), and smaller pieces"
            " (batch_size=100, writer_batch_size=100)",
            "check for a kill: `dmesg -T | grep -i 'killed process'`; then more host memory as well",
            "on Windows put the start of the program under if __name__ == '__main__':; with CUDA initialised before, num_proc must be 1 or"
            " the start method spawn",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
                source="unslothai/unsloth#2693",
                says=("num_proc=1", "dmesg"),
            ),
        ),
        knowledge="Hugging Face datasets: py_utils.iflatmap_unordered",
    ),
    Failure(
        id="data.none_sample",
        kind=LogClass.CRASHED,
        what="A sample holds something of which no batch can be made.",
        signs=(
            sign(
                "batch must contain tensors",
                r"batch must contain tensors[\w, ]{0,60}; found (?:<class '(?P<type>[\w.]{1,80})'>|(?P<object>[\w.]{1,80}))",
            ),
        ),
        headline=lambda case: (
            f"A sample has a {case.given['type'] or case.given['object']}, of which no batch can be made".replace(
                "a NoneType", "None"
            ).replace("has None", "is or has a missing value")
        ),
        why=lambda case: (
            "__getitem__ returned nothing for it, or a field of it: a missing file, a failed transform, a missing return"
            if "NoneType" in (case.given["type"] or case.given["object"])
            else "the default collate function knows tensors, arrays, numbers, texts, dictionaries and lists"
        ),
        next=(
            lambda case: (
                "find it: raise in __getitem__ where the value is missing, with the index and the path; or drop such samples in a"
                " collate_fn before default_collate"
                if "NoneType" in (case.given["type"] or case.given["object"])
                else "convert it in __getitem__ (transforms.ToTensor() for a PIL image, torch.as_tensor for others), or pass a collate_fn that"
                " keeps such fields as a list"
            ),
        ),
        examples=(
            Example(
                "TypeError: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'NoneType'>",
                source="Megvii-BaseDetection/YOLOX#1523",
                says=("missing value", "collate_fn"),
            ),
            Example(
                "TypeError: default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class"
                " 'PIL.Image.Image'>",
                says=("PIL.Image.Image", "ToTensor()"),
            ),
        ),
        knowledge="torch.utils.data: default_collate",
    ),
    Failure(
        id="data.not_resizable",
        kind=LogClass.CRASHED,
        what="A worker could not stack its samples in shared memory.",
        signs=(sign("Trying to resize storage that is not resizable"),),
        headline="A worker cannot stack its samples: they differ in shape, or share the memory of an array",
        why="the worker makes one piece of shared memory by the first sample's size; samples of other shapes do not fit, and tensors on foreign"
        " memory (np.memmap, slices of a large array) cannot be enlarged",
        next=(
            "set num_workers=0 once: then the message says whether the shapes differ (stack expects each tensor to be equal size)",
            "bring samples to one shape (resize, crop, pad in the collate function), or copy what comes from an array: torch.tensor(x), .clone()",
        ),
        examples=(
            Example(
                "RuntimeError: Trying to resize storage that is not resizable",
                source="roboflow/notebooks#167",
                says=("num_workers=0", ".clone()"),
            ),
        ),
        knowledge="torch.utils.data: collate_tensor_fn",
    ),
    Failure(
        id="data.pin_memory_thread",
        kind=LogClass.CRASHED,
        what="The DataLoader's thread that copies batches into pinned memory failed.",
        signs=(sign("in pin memory thread", r"Caught \w+ in pin memory thread"),),
        headline="The thread that pins the DataLoader's batches failed (pin_memory=True)",
        why="it copies each batch into host memory that the GPU can read directly; without room for it, without the"
        " GPU, after an earlier error of CUDA, or for a batch of a type that it cannot copy, this fails",
        next=(
            "set pin_memory=False: the error goes away if pinned memory is what lacks, or else comes up where the batch is used",
            "see what it says at its end: `out of memory` is pinned host memory (ulimit -l, the container's limit) or a full GPU; `busy or"
            " unavailable` is a GPU in exclusive mode",
        ),
        check="the last line of the part `Original Traceback`",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 415, in <module>\n'
                "    main()\n"
                '  File "train.py", line 315, in evaluate\n'
                "    for step, (inputs, targets) in enumerate(loader):\n"
                '  File "/home/user/lib/python3.7/site-packages/torch/utils/data/dataloader.py", line 1014, in _process_data\n'
                "    data.reraise()\n"
                '  File "/home/user/lib/python3.7/site-packages/torch/_utils.py", line 395, in reraise\n'
                "    raise self.exc_type(msg)\n"
                "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/home/user/lib/python3.7/site-packages/torch/utils/data/_utils/pin_memory.py", line 31, in _pin_memory_loop\n'
                "    data = pin_memory(data)",
                source="synxlin/deep-gradient-compression#1",
                says=("pin_memory=False",),
            ),
        ),
        knowledge="torch.utils.data: memory pinning",
    ),
    Failure(
        id="data.empty_batch",
        kind=LogClass.CRASHED,
        what="A batch has no samples.",
        signs=(
            sign("stack expects a non-empty TensorList"),
            sign("expected a non-empty list of Tensors"),
            sign("batch size must be positive"),
        ),
        headline=lambda case: (
            "An empty batch reached the attention kernel"
            if "batch size" in case.lead.message
            else "A list of tensors is empty where at least one was expected"
        ),
        why=lambda case: (
            "most often the collate function left out all samples of a batch"
            if case.called("collate")
            else "what fills it found nothing: for data an empty or missing split, a wrong path, or a filter that leaves"
            " nothing; in a model a loop that made no output"
        ),
        next=(
            Advice(
                "see what drops samples (without boxes, too long, failed to load) and draw another one in __getitem__ instead",
                when=lambda case: case.called("collate"),
            ),
            Advice(
                "print the length of what the loop runs over, and the path that it is read from (validation and test sets too)",
                when=lambda case: not case.called("collate"),
            ),
            "where an empty batch is right, leave its step out, on all ranks alike",
        ),
        examples=(
            Example(
                " psnr_val_rgb = torch.stack(psnr_val_rgb).mean().item()\n"
                "RuntimeError: stack expects a non-empty TensorList",
                source="FanChiMao/SUNet#6",
            ),
            Example(
                "Extracting train features for class capsule\n"
                "\n"
                "Running coreset for PC+RGB+Infra+gating on class capsule...\n"
                "Traceback (most recent call last):\n"
                '  File "Test.py", line 150, in <module>\n'
                "    run_3d_ads(args)\n"
                '  File "/home/data/MulSen-AD/feature_extractors/mulsen_features.py", line 1364, in run_coreset\n'
                "    self.patch_xyz_lib = torch.cat(self.patch_xyz_lib, 0)\n"
                "RuntimeError: torch.cat(): expected a non-empty list of Tensors",
                source="ZZZBBBZZZ/MulSen-AD#7",
            ),
        ),
        knowledge="torch.stack, torch.cat",
    ),
    Failure(
        id="data.opencv_empty",
        kind=LogClass.CRASHED,
        what="OpenCV got an empty image, most often because a file could not be read.",
        signs=(
            sign(
                "empty()", r"\(-215:Assertion failed\) !_?\w{1,12}\.empty\(\) in function '(?P<function>[^'\n]{1,60})'"
            ),
        ),
        headline="OpenCV got an empty image in {function}",
        why="cv2.imread returns nothing, without an error, for a missing or unreadable file; a crop outside of the image is empty too",
        next=(
            "check the result of cv2.imread and raise with the path; see whether the path exists on this node, and its encoding",
            "verify the images once before the training, and leave out those that cannot be read",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "cv2.error: OpenCV(4.5.5) D:\\a\\opencv-python\\opencv-python\\opencv\\modules\\imgproc\\src\\color.cpp:182: error: (-215:Assertion failed) !_src.empty() in function 'cv::cvtColor'",
                source="anse3832/IQT#3",
                says=("cvtColor",),
            ),
        ),
        knowledge="OpenCV: imread",
    ),
    Failure(
        id="data.negative_strides",
        kind=LogClass.CRASHED,
        what="A NumPy array that was flipped cannot become a tensor.",
        signs=(
            sign(
                "negative",
                r"[Aa]t least one (?:of the strides in the given numpy array|stride in the given numpy array) is negative|some of the strides of a given numpy array are negative",
            ),
        ),
        headline="A flipped NumPy array (negative strides) cannot become a tensor",
        why="flips such as x[::-1] or np.flip only turn the view around, and tensors have no such views",
        next=("copy it first: torch.from_numpy(np.ascontiguousarray(x)), or x.copy()",),
        examples=(
            Example(
                "ValueError: At least one stride in the given numpy array is negative, and tensors with negative strides are not currently supported. (You can probably work around this by making a copy of your array  with array.copy().) ",
                source="1adrianb/face-alignment#259",
                says=("copy()",),
            ),
        ),
        knowledge="torch.from_numpy",
    ),
    Failure(
        id="data.object_array",
        kind=LogClass.CRASHED,
        what="A NumPy array of objects cannot become a tensor.",
        signs=(sign("convert np.ndarray of type", r"can't convert np\.ndarray of type (?P<dtype>numpy\.\w+)"),),
        headline="A NumPy array of type {dtype} cannot become a tensor",
        why=lambda case: (
            "its rows have different lengths, it holds texts or missing values, or nothing was found for it"
            if "object" in case.given["dtype"]
            else "this PyTorch has no such type"
        ),
        next=(
            lambda case: (
                "print it: is it empty because a file or key was not found? Else pad rows to one length, remove missing values,"
                " or read it as numbers (astype(np.float32))"
                if "object" in case.given["dtype"]
                else "convert it before: x.astype(np.int64) or np.float32; texts need a tokenizer or a number for each class"
            ),
        ),
        examples=(
            Example(
                "Start training...\n"
                "\n"
                "  0%|          | 0/127 [00:07<?, ?it/s]\n"
                "Traceback (most recent call last):\n"
                '  File "D:/user/CL/Contrastive-COVIDNet-master/code/main.py", line 106, in <module>\n'
                "    main()\n"
                '  File "D:/user/CL/Contrastive-COVIDNet-master/code/main.py", line 56, in main\n'
                "    train_metrics = train(args, model, training_generator, optimizer, epoch)\n"
                '  File "D:\\user\\CL\\Contrastive-COVIDNet-master\\code\\train.py", line 79, in train\n'
                "    new_label = torch.from_numpy(np.array([target[i]]))\n"
                "TypeError: can't convert np.ndarray of type numpy.object_. The only supported types are: float64, float32, float16, complex64, complex128, int64, int32, int16, int8, uint8, and bool.\n"
                "\n"
                "Process finished with exit code 1",
                source="med-air/Contrastive-COVIDNet#6",
            ),
        ),
        knowledge="torch.from_numpy",
    ),
    Failure(
        id="data.splits_differ",
        kind=LogClass.CRASHED,
        what="A data set has other sizes or files than its description says.",
        signs=(
            sign("NonMatchingSplitsSizesError"),
            sign("NonMatchingChecksumError"),
            sign("ExpectedMoreSplits"),
            sign("UnexpectedSplits"),
        ),
        headline="The data set has other sizes, splits or checksums than its description",
        why="only a part is loaded (data_files, data_dir), the source changed, or the download or cache is incomplete or older",
        next=(
            "for a part, or after a change: load_dataset(..., verification_mode='no_checks') (before 2.9: ignore_verifications=True)",
            "else `pip install -U datasets` and download it again (download_mode='force_redownload')",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "datasets.utils.info_utils.NonMatchingSplitsSizesError: [{'expected': SplitInfo(name='test', num_bytes=1305088, num_examples=4358, shard_lengths=None, dataset_name=None), 'recorded': SplitInfo(name='test', num_bytes=5176698, num_examples=17432, shard_lengths=None, dataset_name='parquet')}, {'expected': SplitInfo(name='train', num_bytes=546500949, num_examples=1801350, shard_lengths=None, dataset_name=None), 'recorded': SplitInfo(name='train', num_bytes=1113622699, num_examples=3676136, shard_lengths=[1650675, 1661350, 364111], dataset_name='parquet')}]",
                source="EleutherAI/lm-evaluation-harness#1311",
            ),
        ),
        knowledge="Hugging Face datasets: verification mode",
    ),
    Failure(
        id="data.video_decode",
        kind=LogClass.CRASHED,
        what="A video or audio file could not be decoded.",
        signs=(
            sign("DECORDError", r"DECORDError[^\n]{0,200}"),
            sign("Invalid data found when processing input"),
            sign("moov atom not found"),
            sign("LibsndfileError", r"LibsndfileError: Error opening (?P<file>'[^'\n]{1,200}')?"),
        ),
        headline=lambda case: (
            "A video or audio file cannot be decoded: damaged, cut off, or of another format"
            if "moov" in text_of(case.lead) or "Invalid data" in text_of(case.lead)
            else "A video or audio file of the data set cannot be opened or decoded"
        ),
        why="the file is cut off (its index is at its end), empty, or in a format for which this build has no codec",
        next=(
            "find it: catch the exception with the path in __getitem__, or test all once: ffprobe -v error FILE; then copy it again or leave it"
            " out",
            "re-encode what only this library cannot read: ffmpeg -i in -c:v libx264 out.mp4; or use another reader (torchcodec, PyAV)",
        ),
        examples=(
            Example(
                "   raise #DECORDError(py_str(_LIB.DECORDGetLastError()))\n"
                "decord._ffi.base.DECORDError: [09:27:10] /io/decord/src/video/video_reader.cc:125: Check failed: st_nb >= 0 (-1381258232 vs. 0) ERROR cannot find video stream with wanted index: -1",
                source="dmlc/decord#116",
                says=("ffprobe",),
            ),
        ),
        knowledge="FFmpeg: ffprobe",
    ),
    Failure(
        id="data.lmdb",
        kind=LogClass.CRASHED,
        what="An LMDB database cannot be opened or grown.",
        signs=(
            sign("MDB_", r"(?P<code>MDB_(?:MAP_FULL|READERS_FULL|CORRUPTED|INVALID|BAD_RSLOT))"),
            sign("lmdb.", r"lmdb\.(?P<code>(?:MapFull|ReadersFull|Corrupted|Invalid|BadRslot)Error)"),
        ),
        headline=lambda case: {
            "MAPFULL": "The LMDB database reached its map_size while it was written",
            "READERSFULL": "The LMDB database has more readers than it allows",
            "BADRSLOT": "LMDB refuses a read transaction: most often it was opened before a fork",
        }.get(_lmdb(case), "The LMDB database is damaged or is none"),
        why=lambda case: {
            "MAPFULL": "map_size is the largest size that it may have",
            "READERSFULL": "each process and thread that reads takes one of its places (126 unless max_readers says otherwise)",
            "BADRSLOT": "an environment belongs to the process that opened it; two read transactions in one thread give this"
            " error, too",
        }.get(_lmdb(case), "most often it was cut off while it was copied or written, or the path is another file"),
        next=(
            lambda case: {
                "MAPFULL": "open it with a larger one: lmdb.open(path, map_size=1 << 40); it takes no more disk than is written",
                "READERSFULL": "lmdb.open(path, readonly=True, lock=False, max_readers=1024), or fewer workers",
                "BADRSLOT": "open it in each worker at first use (in __getitem__), not in __init__, with readonly=True, lock=False",
            }.get(_lmdb(case), "compare the size of data.mdb with the original, and copy it again"),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "train.py", line 128, in train_network\n'
                "    for i, (features, labels) in enumerate(generator):\n"
                '  File "/data/anaconda3/envs/sorel/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 1229, in _process_data\n'
                "    data.reraise()\n"
                '  File "/data/anaconda3/envs/sorel/lib/python3.6/site-packages/torch/_utils.py", line 434, in reraise\n'
                "    raise exception\n"
                "lmdb.ReadersFullError: Caught ReadersFullError in DataLoader worker process 0.",
                source="sophos/SOREL-20M#14",
                says=("lock=False",),
            ),
            Example(
                "lmdb.MapFullError: mdb_put: MDB_MAP_FULL: Environment mapsize limit reached",
                source="ZheC/Realtime_Multi-Person_Pose_Estimation#32",
                says=("map_size",),
            ),
        ),
        knowledge="py-lmdb: lmdb.open",
    ),
    Failure(
        id="data.pickling",
        kind=LogClass.CRASHED,
        what="Something that is to be sent to another process cannot be pickled.",
        signs=(
            sign(
                "pickle",
                r"(?:Can't|[Cc]annot|can't) pickle (?:local object |(?=[<']))(?P<what>'[^']{1,120}'|<[^\n]{1,120}?>|\S{1,80})",
            ),
            sign("objects cannot be pickled", r"(?P<what>\w+ objects) cannot be pickled"),
        ),
        headline=lambda case: (
            (
                "Cannot be saved"
                if _is_saved(case)
                else "Cannot be copied"
                if _is_copied(case)
                else "Cannot be sent to another process"
                if _is_sent(case)
                else "Cannot be serialised"
            )
            + f" (pickle): {case.given['what'].strip(chr(39))[:45]}"
        ),
        why=lambda case: (
            "what is saved is pickled, except for tensors; functions within functions, lambdas, open files, locks and modules cannot be"
            if _is_saved(case)
            else "deepcopy follows the rules of pickle: open files, locks, generators and modules cannot be copied"
            if _is_copied(case)
            else (
                "with spawn, a DataLoader sends its data set, collate_fn and worker_init_fn to each worker by pickle; "
                if _is_sent(case)
                else ""
            )
            + "functions within functions, lambdas, open files, locks and modules cannot be pickled"
        ),
        next=(
            Advice(
                "leave it out of what is saved: state_dict() instead of whole objects, and only numbers, texts and tensors beside it; for an"
                " object of your own, write state_dict() or __getstate__ without such members",
                when=_is_saved,
            ),
            Advice(
                "define the function or class at the top level of a module (functools.partial instead of a lambda), and open files, databases"
                " and clients in the worker at first use, not in __init__",
                when=lambda case: not _is_saved(case),
            ),
            Advice(
                "for a DataLoader also num_workers=0, or on Linux multiprocessing_context='fork', which needs no pickle",
                when=lambda case: not _is_saved(case) and _is_sent(case),
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "D:\\MutualNet-master\\ComputePostBN.py", line 44, in ComputeBN\n'
                "    for batch_idx, (inputs, targets) in enumerate(postloader):\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\site-packages\\torch\\utils\\data\\dataloader.py", line 560, in __init__\n'
                "    w.start()\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\multiprocessing\\popen_spawn_win32.py", line 65, in __init__\n'
                "    reduction.dump(process_obj, to_child)\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\multiprocessing\\reduction.py", line 60, in dump\n'
                "    ForkingPickler(file, protocol).dump(obj)\n"
                "AttributeError: Can't pickle local object 'get_cifar.<locals>.<lambda>'",
                source="taoyang1122/MutualNet#5",
                says=(
                    "get_cifar",
                    "functools.partial",
                ),
            ),
            Example(
                '  File "D:\\MutualNet-master\\ComputePostBN.py", line 44, in ComputeBN\n'
                "    for batch_idx, (inputs, targets) in enumerate(postloader):\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\site-packages\\torch\\utils\\data\\dataloader.py", line 560, in __init__\n'
                "    w.start()\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\multiprocessing\\popen_spawn_win32.py", line 65, in __init__\n'
                "    reduction.dump(process_obj, to_child)\n"
                '  File "E:\\Anaconda3\\envs\\mutual\\lib\\multiprocessing\\reduction.py", line 60, in dump\n'
                "    ForkingPickler(file, protocol).dump(obj)\n"
                "AttributeError: Can't pickle local object 'get_cifar.<locals>.<lambda>'",
                source="taoyang1122/MutualNet#5",
                says=(
                    "get_cifar",
                    "functools.partial",
                ),
            ),
            Example(
                "AttributeError: Can't pickle local object 'build_loader.<locals>.collate'",
                says=("build_loader", "top level"),
            ),
            Example("TypeError: cannot pickle '_io.BufferedReader' object", says=("_io.BufferedReader",)),
            Example(
                "_pickle.PicklingError: Can't pickle <function <lambda> at 0x7f2b>: attribute lookup <lambda> on __main__ failed",
                says=("functools.partial",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 9, in main\n'
                "    best = copy.deepcopy(model)\n"
                '  File "/usr/lib/python3.11/copy.py", line 161, in deepcopy\n'
                "    rv = reductor(4)\nTypeError: cannot pickle '_thread.lock' object",
                says=(
                    "Cannot be copied",
                    "deepcopy",
                ),
            ),
        ),
        knowledge="Python: pickle, what can be pickled",
    ),
    Failure(
        id="data.nothing_to_concatenate",
        kind=LogClass.CRASHED,
        what="A list of arrays or tensors that is to be joined is empty.",
        signs=(sign("need at least one array to concatenate"),),
        headline="A list that is to be joined is empty: nothing was collected before",
        why="most often a data set, a filter or a file list gave no samples, or an evaluation made no predictions",
        next=(
            "print len(dataset) and what fills the list at that line: paths that do not exist here, annotations whose classes are not"
            " those of the configuration, a filter (filter_empty_gt, a maximum length) that drops every sample",
        ),
        check="the length of the list just before the line that joins it",
        examples=(Example("ValueError: need at least one array to concatenate", says=("empty", "len(dataset)")),),
        knowledge="numpy.concatenate",
    ),
    Failure(
        id="data.empty",
        kind=LogClass.CRASHED,
        what="A data set has no samples.",
        signs=(
            sign(
                "num_samples should be a positive integer",
                r"num_samples should be a positive integer value, but got num_samples=0",
            ),
            sign("No images found", r"No images found in"),
        ),
        headline="The data set is empty: it found no samples",
        why="the folder, the split, the filter or the file list gave nothing",
        next=(
            "print len(dataset) and the path that it reads; check the path (relative to where the job starts), the file endings, and"
            " filters such as a maximum length that drop every sample",
            "delete a cached list or *.cache of an earlier, empty reading",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 222, in <module>\n'
                "    main(hp, num_epochs=args.epochs, resume=args.resume, name=args.name)\n"
                '  File "train.py", line 76, in main\n'
                "    mass_dataset_train, batch_size=hp.batch_size, num_workers=2, shuffle=True\n"
                '  File "/home/user/anaconda3/envs/env/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 213, in __init__\n'
                "    sampler = RandomSampler(dataset)\n"
                '  File "/home/user/anaconda3/envs/env/lib/python3.6/site-packages/torch/utils/data/sampler.py", line 94, in __init__\n'
                '    "value, but got num_samples={}".format(self.num_samples))\n'
                "ValueError: num_samples should be a positive integer value, but got num_samples=0",
                source="rishikksh20/ResUnet#5",
            ),
        ),
        knowledge="torch.utils.data: RandomSampler",
    ),
    Failure(
        id="data.iterable_length",
        kind=LogClass.CRASHED,
        what="A data set without a length is used where a length is needed.",
        signs=(
            sign(
                "has no len()",
                r"object of type '(?P<type>[\w.]*(?:Iterable|Dataset|Loader|Pipe|Stream|generator)\w*)' has no len\(\)",
            ),
            sign(
                "does not have a length",
                r"max_steps must be set to a positive value if dataloader does not have a length",
            ),
            sign("does not implement __len__", r"_dataset does not implement __len__"),
            sign(
                "expected unspecified shuffle option", r"DataLoader with IterableDataset: expected unspecified shuffle"
            ),
        ),
        headline=lambda case: (
            "A streamed data set has no length, and one is asked for"
            if "shuffle" not in text_of(case.lead)
            else "shuffle=True is not possible for an IterableDataset"
        ),
        why="an IterableDataset only yields samples, so epochs, schedules and samplers cannot know how many there are",
        next=(
            Advice(
                "give the number of steps: TrainingArguments(max_steps=N), Trainer(max_steps=N), or a schedule by steps",
                when=lambda case: "shuffle" not in text_of(case.lead),
            ),
            "shuffle in the data set itself (dataset.shuffle(buffer_size=10000, seed=0)) and pass no sampler",
            "or use a map-style data set (load_dataset(..., streaming=False))",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "finetune.py", line 177, in <module>\n'
                "    whisper_finetune(traindir,devdir,outdir)\n"
                '  File "finetune.py", line 161, in whisper_finetune\n'
                "    trainer = Seq2SeqTrainer(\n"
                '  File "/home/user/miniconda3/envs/whister/lib/python3.8/site-packages/transformers/trainer.py", line 567, in __init__\n'
                "    raise ValueError(\n"
                "ValueError: The train_dataset does not implement __len__, max_steps has to be specified. The number of steps needs to be known in advance for the learning rate scheduler.",
                source="huggingface/datasets#5773",
                says=("max_steps=N",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "finetune.py", line 177, in <module>\n'
                "    whisper_finetune(traindir,devdir,outdir)\n"
                '  File "finetune.py", line 161, in whisper_finetune\n'
                "    trainer = Seq2SeqTrainer(\n"
                '  File "/home/user/miniconda3/envs/whister/lib/python3.8/site-packages/transformers/trainer.py", line 567, in __init__\n'
                "    raise ValueError(\n"
                "ValueError: The train_dataset does not implement __len__, max_steps has to be specified. The number of steps needs to be known in advance for the learning rate scheduler.",
                source="huggingface/datasets#5773",
                says=("max_steps=N",),
            ),
            Example(
                "ValueError: args.max_steps must be set to a positive value if dataloader does not have a length, was -1",
                says=("max_steps=N",),
            ),
            Example("TypeError: object of type 'IterableDataset' has no len()", says=("max_steps=N",)),
        ),
        knowledge="torch.utils.data: IterableDataset; transformers: TrainingArguments",
    ),
    Failure(
        id="data.parquet_damaged",
        kind=LogClass.CRASHED,
        what="A Parquet or Arrow file is cut off or is no such file.",
        signs=(
            sign(
                "Parquet",
                r"Parquet magic bytes not found in footer|Couldn't deserialize thrift|Parquet file size is \d+ bytes",
            ),
            sign("Not an Arrow file", r"Not an Arrow file|Tried reading schema message, was null or length 0"),
            sign(
                "Expected to read",
                r"Expected to (?:be able to )?read (?P<want>\d+) (?:metadata )?bytes(?: for message body, got|, but only read| but got) (?P<got>-?\d+)",
            ),
        ),
        headline=lambda case: (
            f"A file of the data set is cut off: {case.given['want']} bytes expected, {case.given['got']} read"
            if case.given.get("want") and len(case.given["want"]) < 14
            else "A Parquet or Arrow file of the data set is damaged, cut off or something else"
        ),
        why="a download or a write was interrupted (also by a full disk), or the file is a git-lfs pointer or an HTML page",
        next=(
            "find it by its size (ls -lS): one of about 130 bytes is a pointer (`git lfs pull`); delete another and download it"
            " again (load_dataset(..., download_mode='force_redownload'))",
            "for the cache of Hugging Face datasets: remove the folder of this data set in ~/.cache/huggingface/datasets, and build it"
            " by one process before the ranks start",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
                source="NVlabs/Tool-N1#4",
                says=("git lfs",),
            ),
            Example(
                "ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
                source="NVlabs/Tool-N1#4",
                says=("git lfs",),
            ),
            Example(
                "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a"
                " parquet file.",
                says=("git-lfs", "force_redownload"),
            ),
            Example(
                "pyarrow.lib.ArrowInvalid: Expected to read 538970747 metadata bytes, but only read 2131",
                says=("538970747", "2131"),
            ),
        ),
        knowledge="Apache Arrow: Parquet and IPC formats",
    ),
    Failure(
        id="data.image_tokens",
        kind=LogClass.CRASHED,
        what="A batch has more or fewer image tokens in its text than its images have features.",
        signs=(
            sign(
                "Image features and image tokens do not match",
                r"Image features and image tokens do not match[:,] ?tokens: (?P<tokens>\d+), features:? (?P<features>\d+)",
            ),
            sign(
                "multimodal tokens to",
                r"Attempted to assign (?:[\d +]{1,80} = )?(?P<features>\d+) multimodal tokens to (?P<tokens>\d+) placeholders",
            ),
        ),
        headline="The text has {tokens} image tokens, and its images have {features} features",
        why=lambda case: (
            "most often image tokens were cut off with the text (max_length, cutoff_len), or the text has no"
            " placeholder for an image; else model and processor count differently (versions, sizes)"
            if _has_fewer_tokens(case)
            else "most often the text itself has image tokens that belong to no image: in the data, or generated by the"
            " model; else model and processor count differently (versions, sizes)"
        ),
        next=(
            Advice(
                "raise max_length (cutoff_len) or turn truncation off, or make the images smaller (max_pixels)",
                when=_has_fewer_tokens,
            ),
            Advice(
                "take image tokens out of texts and of generated answers (in RL: forbid the model to generate the placeholder), drop"
                " that sample, and update vLLM if it raises this",
                when=lambda case: not _has_fewer_tokens(case),
            ),
            "check the format of the data: one placeholder (<image>) for each image, where the project's README wants it",
        ),
        examples=(
            Example(
                '[rank1]:   File "/cpfs04/user/env/conda/visualthinker/lib/python3.11/site-packages/transformers/models/qwen2_vl/modeling_qwen2_vl.py", line 1676, in forward\n'
                "[rank1]:     raise ValueError(\n"
                "[rank1]: ValueError: Image features and image tokens do not match: tokens: 0, features 324",
                source="turningpoint-ai/VisualThinker-R1-Zero#20",
                says=("placeholder",),
            ),
            Example(
                "ValueError: Attempted to assign 702 = 702 multimodal tokens to 703 placeholders",
                source="vllm-project/vllm#15764",
                says=("703 image tokens", "generate the placeholder"),
            ),
            Example(
                "ValueError: Image features and image tokens do not match, tokens: 14650, features: 17152.",
                source="huggingface/trl#5927",
                says=("truncation off",),
            ),
            Example(
                "ValueError: Image features and image tokens do not match: tokens: 1333, features 1332.",
                source="real-absolute-AI/NoisyRollout#3",
                says=("generated",),
            ),
            Example(
                "ValueError: Image features and image tokens do not match: tokens: 1200, features 1296",
                says=("model and processor count differently",),
            ),
        ),
        knowledge="huggingface/trl#5927; 2U1/Qwen-VL-Series-Finetune#128",
    ),
    Failure(
        id="data.no_input_ids",
        kind=LogClass.CRASHED,
        what="A collator that pads gets samples without input_ids.",
        signs=(
            sign(
                "You should supply an encoding or a list of encodings",
                r"method that includes input_ids, but you provided \[(?P<columns>[^\]\n]{0,160})\]",
            ),
        ),
        headline=lambda case: (
            f"The collator got samples without input_ids, only {case.given['columns']}"
            if case.given.get("columns")
            else "The collator got samples without any column, so without input_ids"
        ),
        why="padding needs tokens: they are made before, or by a collator that tokenizes",
        next=(
            "tokenize first: dataset.map(tokenize, batched=True, remove_columns=dataset.column_names)",
            "if a collator of your own makes them from other columns, set remove_unused_columns=False; if it comes only"
            " after some steps, leave out samples that are empty",
        ),
        examples=(
            Example(
                "    data = self._next_data()\n"
                '  File "/gpfsdata/home/user/.local/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1345, in _next_data\n'
                "    return self._process_data(data)\n"
                '  File "/gpfsdata/home/user/.local/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1371, in _process_data\n'
                "    data.reraise()\n"
                '  File "/gpfsdata/home/user/.local/lib/python3.8/site-packages/torch/_utils.py", line 644, in reraise\n'
                "    raise exception\n"
                "ValueError: You should supply an encoding or a list of encodings to this method that includes input_ids, but you provided []",
                source="yangjianxin1/Firefly#158",
                says=("empty",),
            ),
            Example(
                "ValueError: You should supply an encoding or a list of encodings to this method that includes input_ids, but you provided ['text']",
                source="huggingface/datasets#5765",
                says=("'text'",),
            ),
        ),
        knowledge="huggingface/datasets#5765; transformers: DataCollatorWithPadding",
    ),
    Failure(
        id="data.columns_differ",
        kind=LogClass.CRASHED,
        what="The files or rows of a data set do not have the same columns or types.",
        signs=(
            sign(
                "JSON parse error",
                r"JSON parse error: Column\((?P<column>[^)]{0,80})\) (?:changed from|was specified twice)(?P<how>[^\n]{0,60})",
            ),
            sign("cast", r"[Cc]ouldn't cast(?: array of type)?(?P<how>[^\n]{0,60})"),
            sign("column names don't match"),
            sign(
                "All the data files must have the same columns",
                r"All the data files must have the same columns, but at some point there are"
                r" (?P<how>[^\n]{0,120})",
            ),
        ),
        headline=lambda case: (
            "Parts of the data set do not agree in their columns or types"
            + (
                f" (column {column})"
                if (column := case.given.get("column", "").strip("/")) and len(column) < 24
                else ""
            )
        ),
        why="datasets takes columns and types from the first rows or file, or from the features that it is given, and"
        " a later one differs: a missing key, a number beside a text, a list beside a single value",
        next=(
            "give every row the same keys and types (empty values included), or pass features=Features(...) to load_dataset",
            "load files of different kinds apart: data_files=... with one kind only, or a configuration for each, and bring them to"
            " one form before concatenate_datasets",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "All the data files must have the same columns, but at some point there are 3 new columns ({'task_type', 'dataset', 'table_type'})",
                source="hiyouga/LlamaFactory#3281",
                says=("columns",),
            ),
            Example(
                '  File "/home/user/lib/python3.10/site-packages/datasets/table.py", line 2295, in table_cast\n'
                "    return cast_table_to_schema(table, schema)\n"
                '  File "/home/user/lib/python3.10/site-packages/datasets/table.py", line 2249, in cast_table_to_schema\n'
                "    raise CastError(\n"
                "datasets.table.CastError: Couldn't cast\n"
                "text: string\n"
                "answer_and_analysis: string\n"
                "duration: double\n"
                "question_and_option: string\n"
                "speech_path: string\n"
                "answer: string\n"
                "to\n"
                "{'text': Value(dtype='string', id=None), 'duration': Value(dtype='float64', id=None), 'question': Value(dtype='string', id=None), 'speech_path': Value(dtype='string', id=None), 'answer': Value(dtype='string', id=None)}\n"
                "because column names don't match\n"
                "\n"
                "During handling of the above exception, another exception occurred:",
                source="ZihanZhaoSJTU/LibriSQA#2",
            ),
            Example(
                "All the data files must have the same columns, but at some point there are 3 new columns ({'task_type', 'dataset', 'table_type'})",
                source="hiyouga/LlamaFactory#3281",
                says=("columns",),
            ),
            Example(
                '  File "/home/user/lib/python3.10/site-packages/datasets/table.py", line 2295, in table_cast\n'
                "    return cast_table_to_schema(table, schema)\n"
                '  File "/home/user/lib/python3.10/site-packages/datasets/table.py", line 2249, in cast_table_to_schema\n'
                "    raise CastError(\n"
                "datasets.table.CastError: Couldn't cast\n"
                "text: string\n"
                "answer_and_analysis: string\n"
                "duration: double\n"
                "question_and_option: string\n"
                "speech_path: string\n"
                "answer: string\n"
                "to\n"
                "{'text': Value(dtype='string', id=None), 'duration': Value(dtype='float64', id=None), 'question': Value(dtype='string', id=None), 'speech_path': Value(dtype='string', id=None), 'answer': Value(dtype='string', id=None)}\n"
                "because column names don't match\n"
                "\n"
                "During handling of the above exception, another exception occurred:",
                source="ZihanZhaoSJTU/LibriSQA#2",
            ),
            Example(
                "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/answer) changed from string to array in row 0",
                says=("answer", "Features"),
            ),
            Example(
                "datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset\n\nAll the data files"
                " must have the same columns, but at some point there are 3 new columns ({'input', 'output', 'source'}) and 2 missing"
                " columns ({'prompt', 'label'}).",
                says=("columns",),
            ),
        ),
        knowledge="Hugging Face datasets: dataset features",
    ),
    Failure(
        id="data.arrow_overflow",
        kind=LogClass.CRASHED,
        what="A column of a table holds more than 2 GiB in one piece.",
        signs=(sign("offset overflow while concatenating arrays"),),
        headline="A column of the data set is larger than 2 GiB in one piece (Arrow's 32-bit offsets)",
        why="string and list columns have 32-bit offsets, and a batch of rows with large samples exceeds them",
        next=(
            "make smaller pieces: map(..., writer_batch_size=100), batch_size=100, or large_string / large_list as types",
            "split one large JSON file into several, and keep images and audio as files beside it, not in its rows",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[rank0]:     pa_table = pa_table.combine_chunks()\n"
                '[rank0]:   File "pyarrow/table.pxi", line 4512, in pyarrow.lib.Table.combine_chunks\n'
                '[rank0]:   File "pyarrow/error.pxi", line 155, in pyarrow.lib.pyarrow_internal_check_status\n'
                '[rank0]:   File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status\n'
                "[rank0]: pyarrow.lib.ArrowInvalid: offset overflow while concatenating arrays",
                source="hiyouga/LlamaFactory#7526",
                says=("writer_batch_size",),
            ),
        ),
        knowledge="huggingface/datasets#6206; Apache Arrow: variable-size layouts",
    ),
    Failure(
        id="data.tar_damaged",
        kind=LogClass.CRASHED,
        what="A tar shard of a data set is cut off.",
        signs=(
            sign(
                "ReadError",
                r"(?:tarfile\.)?ReadError\W{1,5}(?P<what>unexpected end of data|empty file|file could not be opened"
                r" successfully|invalid header|bad checksum|truncated header)(?:[^\n]{0,60}name='(?P<shard>[^'\n]{1,200})')?",
            ),
            sign("unexpected end of data"),
        ),
        headline=lambda case: (
            f"A tar {'shard' if not case.given.get('shard') else 'file ' + case.given['shard'][-40:]} of the data set is damaged:"
            f" {case.given.get('what') or 'unexpected end of data'}"
        ),
        event=EventKind.KNOWN,
        why="a download or upload was interrupted, or an empty or partial shard was written at the end of a preparation",
        next=(
            "find it: for f in *.tar; do tar -tf $f > /dev/null || echo $f; done; then copy it again or leave it out",
            "with webdataset, go on after such shards: handler=wds.warn_and_continue; for streams from a bucket retry"
            " (pipe:curl --retry 5)",
        ),
        examples=(
            Example(
                '2022-01-23 02:08:36.029 raise ReadError("unexpected end of data")\n'
                "\n"
                "2022-01-23 02:08:36.029 tarfile.ReadError: (\"unexpected end of data @ <_io.BufferedReader name='train-224-30/00000022.tar'>\", \n"
                "<_io.BufferedReader name='train-224-30/00000022.tar'>, {'__url__': 'train-224-30/00000022.tar', '__worker__': 'None', \n"
                "'__rank__': '(18, 32)', '__nodeinfo__': \"('worker-1', 276)\"})",
                source="webdataset/webdataset#142",
                says=("tar -tf",),
            ),
            Example(
                "Generating train split: 107 examples [00:38,  2.76 examples/s]\n"
                "Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.11/dist-packages/datasets/builder.py", line 1568, in _prepare_split_single\n'
                "    for key, record in generator:\n"
                '  File "/usr/local/lib/python3.11/dist-packages/datasets/packaged_modules/webdataset/webdataset.py", line 44, in _get_pipeline_from_tar\n'
                "    current_example[field_name.lower()] = f.read()\n"
                "                                          ^^^^^^^^\n"
                '  File "/usr/lib/python3.11/tarfile.py", line 687, in read\n'
                '    raise ReadError("unexpected end of data")\n'
                "tarfile.ReadError: unexpected end of data",
                source="JoeLeelyf/OVO-Bench#18",
                says=("tar -tf",),
            ),
        ),
        knowledge="webdataset: handlers; Python: tarfile",
        when=lambda case: "ReadError" in text_of(case.lead) or case.called(r"tarfile|tariterators|webdataset|wids"),
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "/w/a.py", line 4, in main\n    json5.loads(text)\nValueError: unexpected end of data',
        ),
    ),
    Failure(
        id="data.no_shards_for_worker",
        kind=LogClass.CRASHED,
        what="There are fewer shards than workers, so that some get no data.",
        signs=(sign("fewer shards than", r"fewer shards than (?:there are )?workers"),),
        headline="There are fewer shards than DataLoader workers: some get no data",
        why="shards are dealt to ranks first and then to workers, and each needs one of its own",
        next=(
            "use fewer workers (num_workers <= shards / ranks), or write more and smaller shards",
            "or resampled=True (webdataset), with a number of steps for each epoch",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ValueError: no samples found in dataset; perhaps you have fewer shards than workers",
                says=("num_workers <=",),
            ),
        ),
        knowledge="webdataset: split_by_worker",
    ),
    Failure(
        id="data.hdf_lock",
        kind=LogClass.CRASHED,
        what="An HDF5 file is locked or cannot be locked on this file system.",
        signs=(sign("unable to lock file", r"unable to lock file, errno = (?P<errno>\d+)"),),
        headline="An HDF5 file could not be locked (errno {errno})",
        why=lambda case: (
            "another process has it open, one of both for writing"
            if case.given["errno"] == "11"
            else "the file system does not offer such locks, as some network file systems"
        ),
        next=(
            "for files that are only read: HDF5_USE_FILE_LOCKING=FALSE in the environment, or h5py.File(path, 'r', locking=False)",
            "close the program that writes it, or write from one process only",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "plot_surface.py", line 289, in <module>\n'
                "    crunch(surf_file, net, w, s, d, trainloader, 'train_loss', 'train_acc', comm, rank, args)\n"
                '  File "plot_surface.py", line 80, in crunch\n'
                "    f = h5py.File(surf_file, 'r+' if rank == 0 else 'r')\n"
                '  File "/home/user/anaconda3/envs/python3.6/lib/python3.6/site-packages/h5py/_hl/files.py", line 144, in make_fid\n'
                "    fid = h5f.open(name, h5f.ACC_RDWR, fapl=fapl)\n"
                '  File "h5py/_objects.pyx", line 54, in h5py._objects.with_phil.wrapper\n'
                '  File "h5py/h5f.pyx", line 78, in h5py.h5f.open\n'
                "OSError: Unable to open file (unable to lock file, errno = 11, error message = 'Resource temporarily unavailable')",
                source="open-mpi/ompi#6535",
                says=(
                    "HDF5_USE_FILE_LOCKING=FALSE",
                    "errno 11",
                ),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/data/envs/py39/lib/python3.9/site-packages/diopy/input.py", line 51, in read_h5\n'
                "    h5 = h5py.File(name=file, mode='r')\n"
                '  File "h5py/h5f.pyx", line 106, in h5py.h5f.open\n'
                "OSError: [Errno 37] Unable to open file (unable to lock file, errno = 37, error message = 'No locks available')",
                source="JiekaiLab/scDIOR#6",
            ),
        ),
        knowledge="HDF5: file locking",
    ),
    Failure(
        id="data.no_locks",
        kind=LogClass.CRASHED,
        what="The file system of a cache does not offer locks.",
        signs=(sign("No locks available", r"\[Errno 37\] No locks available"),),
        headline="No lock could be had on this file system (errno 37)",
        why="datasets, the hub and Triton lock files in their caches, and some network file systems do not support"
        " that, or their lock service does not answer",
        next=(
            "put the caches on a local disk: HF_HOME, HF_DATASETS_CACHE, TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR",
            "or mount the file system with locks (NFS: local_lock=all or a running lockd; Lustre: -o flock)",
        ),
        examples=(
            Example(
                ">>> ds=load_dataset('xsum')\n"
                "\n"
                "^CTraceback (most recent call last):\n"
                '  File "/user/.conda/envs/env/lib/python3.6/site-packages/datasets/utils/filelock.py", line 402, in _acquire\n'
                "    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
                "OSError: [Errno 37] No locks available",
                source="huggingface/datasets#2618",
                says=("HF_HOME",),
            ),
        ),
        knowledge="fcntl(2): ENOLCK; filelock",
    ),
    Failure(
        id="data.index_file",
        kind=LogClass.CRASHED,
        what="A file that is mapped into memory is shorter than expected.",
        signs=(
            sign("mmap length is greater than file", r"mmap length is greater than file ?size"),
            sign("cannot mmap an empty file"),
            sign("No data left in file"),
        ),
        headline="A file is shorter than its index, its header or the reader expects",
        why="preprocessing or a copy was cut off (also by a full disk), or the reader was given the shape of another file",
        next=(
            "if the file was unpacked or is a cache (nnU-Net: the .npy next to the .npz), remove it, and let one"
            " process build it again",
            "compare its size with the original and with the shape and dtype that np.memmap is given, and copy it again if it is shorter",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "2024-11-04 09:03:10.057891: unpacking dataset...\n"
                "Exception in background worker 3:\n"
                " mmap length is greater than file size\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/miniconda3/envs/nnunet/lib/python3.9/site-packages/batchgenerators/dataloading/nondet_multi_threaded_augmenter.py", line 53, in producer\n'
                "    item = next(data_loader)\n"
                '  File "/mnt/user/nnUNet-master/nnunetv2/training/dataloading/nnunet_dataset.py", line 86, in load_case\n'
                "    data = np.load(entry['data_file'][:-4] + \".npy\", 'r')",
                source="MIC-DKFZ/nnUNet#2581",
            ),
            Example(
                "02/14/2023 02:53:04 - INFO - __main__ -   load dstore fp16 4259960, 1024\n"
                "Traceback (most recent call last):\n"
                '  File "../train_datastore_gpu.py", line 69, in <module>\n'
                "    shape=(args.dstore_size, args.dimension))\n"
                '  File "/usr/local/lib/python3.6/site-packages/numpy/core/memmap.py", line 264, in __new__\n'
                "    mm = mmap.mmap(fid.fileno(), bytes, access=acc, offset=start)\n"
                "ValueError: mmap length is greater than file size",
                source="FadedCosine/kNN-KD#5",
            ),
            Example(
                "2024-11-04 09:03:10.057891: unpacking dataset...\n"
                "Exception in background worker 3:\n"
                " mmap length is greater than file size\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/miniconda3/envs/nnunet/lib/python3.9/site-packages/batchgenerators/dataloading/nondet_multi_threaded_augmenter.py", line 53, in producer\n'
                "    item = next(data_loader)\n"
                '  File "/mnt/user/nnUNet-master/nnunetv2/training/dataloading/nnunet_dataset.py", line 86, in load_case\n'
                "    data = np.load(entry['data_file'][:-4] + \".npy\", 'r')",
                source="MIC-DKFZ/nnUNet#2581",
            ),
            Example(
                "02/14/2023 02:53:04 - INFO - __main__ -   load dstore fp16 4259960, 1024\n"
                "Traceback (most recent call last):\n"
                '  File "../train_datastore_gpu.py", line 69, in <module>\n'
                "    shape=(args.dstore_size, args.dimension))\n"
                '  File "/usr/local/lib/python3.6/site-packages/numpy/core/memmap.py", line 264, in __new__\n'
                "    mm = mmap.mmap(fid.fileno(), bytes, access=acc, offset=start)\n"
                "ValueError: mmap length is greater than file size",
                source="FadedCosine/kNN-KD#5",
            ),
            Example("ValueError: mmap length is greater than file size", says=("preprocess",)),
            Example("EOFError: No data left in file", says=("shorter",)),
        ),
        knowledge="Python: mmap; NumPy: numpy.load",
    ),
    Failure(
        id="data.missing_file",
        kind=LogClass.CRASHED,
        what="A file that the data set lists does not exist on the node.",
        signs=(
            sign(
                "FileNotFoundError in DataLoader worker",
                r"Caught FileNotFoundError in DataLoader worker[\s\S]{0,1800}?No such file or directory: '(?P<path>[^'\n]{1,300})'",
            ),
            sign("FileNotFoundError in DataLoader worker"),
            sign("No such file or directory", r"\[Errno 2\] No such file or directory: '(?P<path>[^'\n]{1,300})'"),
        ),
        when=lambda case: (
            "in DataLoader worker" in text_of(case.lead)
            or case.called(r"__getitem__|utils/data/_utils/(?:worker|fetch)\.py")
        ),
        headline=lambda case: (
            "A file of the data set does not exist on this node"
            + (f": …{path[-34:]}" if (path := case.given.get("path")) else "")
        ),
        why="most often the list of samples names it, but the copy on this node is not complete, is not mounted, or"
        " lies elsewhere",
        next=(
            Advice(
                "join its parts with os.path.join or '/': a backslash is a separator of Windows only",
                when=lambda case: (
                    "\\" in (case.given.get("path") or "") and ":" not in (case.given.get("path") or "")[:3]
                ),
            ),
            "check the path on the node of this rank (ls, mount), and whether paths in the list are relative to another folder",
            "compare the list with the files once before the training",
        ),
        examples=(
            Example(
                "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\n"
                "Original Traceback (most recent call last):\n"
                '  File "/usr/local/lib/python3.7/dist-packages/torch/utils/data/_utils/worker.py", line 302, in _worker_loop\n'
                "    data = fetcher.fetch(index)\n"
                '  File "/usr/local/lib/python3.7/dist-packages/torch/utils/data/_utils/fetch.py", line 49, in <listcomp>\n'
                "    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
                '  File "<ipython-input-14-7bc4d2497e8a>", line 40, in make_mask\n'
                "    tree = ET.parse(annot)\n"
                '  File "/usr/lib/python3.7/xml/etree/ElementTree.py", line 587, in parse\n'
                '    source = open(source, "rb")\n'
                "FileNotFoundError: [Errno 2] No such file or directory: '/content/gdrive/My Drive/project/NEULOC/NEUDET/train/annotations\\\\rolled-in_scale_21.xml'",
                source="siddhartamukherjee/NEU-DET-Steel-Surface-Defect-Detection#7",
            ),
        ),
        knowledge="Python: FileNotFoundError",
    ),
)


ENTRIES = (
    *LOADING,
    Failure(
        id="data.background_workers",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker of batchgenerators (nnU-Net) ended, and its exception only says so.",
        signs=(sign("background workers are no longer alive"),),
        headline="A data worker of batchgenerators (nnU-Net) ended; this exception does not say why",
        why="the thread that collects the batches only sees that a process is gone: killed for host memory, crashed,"
        " or ended by an exception of its own; it is also printed when the main process itself has failed",
        next=(
            "look for another error before it (of a worker, or of the training itself): that one is then the cause",
            "if there is none: watch the host's memory (free -h, `dmesg -T | grep -i killed`) and start fewer workers:"
            " nnUNet_n_proc_DA=4 (old: nnUNet_def_n_proc)",
            "as a test, nnUNet_n_proc_DA=0 runs the loading in the main process, slowly, and shows its exception; damaged"
            " preprocessed files come from an interrupted preprocessing or unpacking: delete and repeat it",
        ),
        check="`dmesg -T | grep -i 'killed process'`",
        tier=Tier.VAGUE,
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: One or more background workers are no longer alive. Exiting. Please check the print statements above"
                " for the actual error message",
                source="MIC-DKFZ/nnUNet#2656",
                says=("does not say why", "nnUNet_n_proc_DA"),
            ),
            Example("RuntimeError: Some background workers are no longer alive", source="bowang-lab/U-Mamba#23"),
        ),
        knowledge="batchgenerators: nondet_multi_threaded_augmenter.py; MIC-DKFZ/nnUNet#2656",
    ),
    Failure(
        id="data.generation_failed",
        kind=LogClass.CRASHED,
        what="The library datasets could not build a data set; its exception hides the cause.",
        when=lambda case: bool(re.search(r"An error occurr?ed while generating the dataset", case.lead.message)),
        headline=lambda case: (
            f"A data set could not be built: {cause}"
            if (cause := _first_of_chain(case))
            else "A data set could not be built, and the exception that says why is not in the text"
        ),
        why="DatasetGenerationError only wraps the exception of a script, a generator or a reader of files, which"
        " Python prints before it (`The above exception was the direct cause`)",
        next=(
            Advice(
                "mend that first exception: it names the line or file that cannot be read, or the code that reads it",
                when=lambda case: bool(_first_of_chain(case)),
            ),
            Advice(
                "show the lines above it: the first traceback ends in the cause",
                when=lambda case: not _first_of_chain(case),
            ),
            "the usual ones: JSON lines with different keys or types, a file that was downloaded in part (ls -l, delete it in"
            " ~/.cache/huggingface/datasets), a full disk, a KeyError of the own generator",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "tokenize_dataset_rows.py", line 10, in preprocess\n'
                '    prompt = example["context"]\n'
                "KeyError: 'context'\n"
                "\n"
                "The above exception was the direct cause of the following exception:\n"
                "\n"
                "Traceback (most recent call last):\n"
                '  File "tokenize_dataset_rows.py", line 53, in <module>\n'
                "    main()\n"
                '  File "/home/user/.conda/envs/t/lib/python3.8/site-packages/datasets/builder.py", line 1642, in _prepare_split_single\n'
                '    raise DatasetGenerationError("An error occurred while generating the dataset") from e\n'
                "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset",
                source="mymusise/ChatGLM-Tuning#248",
                says=("KeyError: 'context'",),
            ),
            Example(
                "datasets.builder.DatasetGenerationError: An error occurred while generating the dataset",
                source="beyondguo/LLM-Tuning#36",
                says=("not in the text", "lines above"),
            ),
        ),
        knowledge="datasets/builder.py",
    ),
    Failure(
        id="data.worker",
        kind=LogClass.DATALOADER_WORKER,
        what="A worker process of a DataLoader died or delivered nothing.",
        when=lambda case: case.kind is LogClass.DATALOADER_WORKER,
        headline=dataloader_worker,
        sentence=dataloader_worker,
        why="the training process fails when a worker of its DataLoader dies or delivers no batches",
        next=(_for_worker,),
    ),
    Failure(
        id="data.disk_full",
        kind=LogClass.DISK_FULL,
        what="A file could not be written to its end.",
        when=lambda case: case.kind is LogClass.DISK_FULL,
        headline=disk_full,
        sentence=disk_full,
        why="a write stopped before all bytes were written, as on a full disk or beyond a quota",
        next=(
            (
                "free space or raise the quota where the file is written (`df -h`, `quota -s`), and check the last"
                " checkpoint: it may be truncated"
            ),
        ),
    ),
)
