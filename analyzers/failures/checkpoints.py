"""Failures of checkpoints: files that cannot be written or read, and states that do not fit the model."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of

_WHOLE_TEXT = 4000
_ANOTHER_CHECKPOINT = (
    "resume from the checkpoint before it (delete this one, or give its path), and check that one's size first"
)


def _all_text(case: Case) -> str:
    """Return the text of a failure with the lines around it."""
    return f"{text_of(case.lead)}\n{case.lead.excerpt}"[:_WHOLE_TEXT]


def _keys(case: Case, kind: str) -> list[str]:
    """Return the keys that a message lists as `Missing` or `Unexpected`."""
    found = re.search(rf"{kind} key\(s\) in state_dict:? ?((?:\"[^\"\n]{{1,200}}\"(?:, )?)+)", _all_text(case))
    return re.findall(r'"([^"\n]{1,200})"', found[1]) if found else []


_WRAPPERS = {
    "module.": "DataParallel, DistributedDataParallel or DeepSpeed",
    "_orig_mod.": "torch.compile",
    "_fsdp_wrapped_module.": "FSDP",
    "_forward_module.": "Lightning Fabric or DeepSpeed",
    "base_model.model.": "PEFT",
    "model.": "a class that holds the model as self.model",
}
"""{prefix of keys: what adds it}."""


def _prefix(case: Case) -> tuple[str, bool] | None:
    """Return the prefix by which the keys of model and checkpoint differ, and whether the model's keys have it.

    None if the keys differ otherwise, or if the text does not show it.
    """
    missing, unexpected = _keys(case, "Missing"), _keys(case, "Unexpected")
    for prefix in _WRAPPERS:
        if any(prefix + key in missing for key in unexpected):
            return prefix, True
        if any(prefix + key in unexpected for key in missing):
            return prefix, False
    if case.printed(
        r"loading state_dict for (?:DataParallel|DistributedDataParallel|FullyShardedDataParallel|OptimizedModule)"
    ):
        return None  # all keys of such a model have the prefix
    for prefix in ("module.", "_orig_mod.", "_fsdp_wrapped_module."):
        if unexpected and not missing and all(key.startswith(prefix) for key in unexpected):
            return prefix, False
    return None


def _prefix_headline(case: Case) -> str:
    """Return the headline for keys that differ by a prefix."""
    prefix, model_has_it = _prefix(case) or ("", False)
    return (
        f"The model's keys begin with '{prefix}' and those of the checkpoint do not"
        if model_has_it
        else f"The checkpoint's keys begin with '{prefix}' and those of the model do not"
    )


def _prefix_next(case: Case) -> str:
    """Return how to load a state whose keys differ by a prefix."""
    prefix, model_has_it = _prefix(case) or ("", False)
    if model_has_it:
        return (
            "load into the model before it is wrapped, or into the inner one: model."
            f"{prefix.rstrip('.')}.load_state_dict(state)"
        )
    return f"strip it: state = dict((k.removeprefix('{prefix}'), v) for k, v in state.items())"


def _is_training_state(case: Case) -> bool:
    """Return whether the entry that a checkpoint lacks belongs to the state of a training, not to its weights."""
    return bool(re.match(r"optimi[sz]er|lr_scheduler|scheduler|epoch|args", case.given["key"]))


_VOCABULARY = re.compile(r"embed|lm_head|wte|word_emb|decoder\.bias|output\.weight|vocab")
_POSITIONS = re.compile(r"pos|patch|time|token_type")
_HEAD = re.compile(r"(?i)class|head|fc\.|logits|score|pred|cls")


def _numbers(text: str) -> list[int]:
    """Return the numbers of a printed shape."""
    return [int(n) for n in re.findall(r"\d+", text)]


def _size_headline(case: Case) -> str:
    """Return the headline for a parameter whose shape differs, with both shapes."""
    name, saved, model = case.given["name"], case.given["saved"], case.given["model"]
    short = name if len(name) <= 30 else "…" + name[-28:]
    return f"{short} is {saved} in the checkpoint and {model} in the model"


def _size_why(case: Case) -> str:
    """Return what parameters of different shape point to, by their name and by what differs."""
    name, saved, model = case.given["name"], _numbers(case.given["saved"]), _numbers(case.given["model"])
    others = len(set(re.findall(r"size mismatch for ([\w.]+)", text_of(case.lead))))
    more = f"; at least {others} parameters differ" if others > 1 else ""
    if 0 in model or 0 in saved:
        return f"an empty shape is that of a parameter which DeepSpeed ZeRO-3 has split over the ranks{more}"
    if (
        len(saved) == len(model)
        and sum(a != b for a, b in zip(saved, model, strict=True)) == 1
        and saved[0] != model[0]
    ):
        if _VOCABULARY.search(name) and not _POSITIONS.search(name):
            return f"the vocabularies differ: {saved[0]} and {model[0]} tokens{more}"
        if _HEAD.search(name):
            return f"most often the number of classes or outputs differs: {saved[0]} and {model[0]}{more}"
    return f"the model was built with other sizes than the one that was saved{more}"


def _size_next(case: Case) -> str:
    """Return how to load a state with a parameter of another shape."""
    name, saved, model = case.given["name"], _numbers(case.given["saved"]), _numbers(case.given["model"])
    if 0 in model or 0 in saved:
        return (
            "load under deepspeed.zero.GatheredParameters(params, modifier_rank=0), or save with"
            " stage3_gather_16bit_weights_on_model_save / zero_to_fp32.py"
        )
    if saved[:1] != model[:1] and _VOCABULARY.search(name) and not _POSITIONS.search(name):
        return (
            "configure the base model and tokenizer with which the checkpoint was trained; if tokens were added since, load first"
            " and call model.resize_token_embeddings(len(tokenizer)) afterwards, or resize to the checkpoint's number before"
        )
    if saved[:1] != model[:1] and _HEAD.search(name):
        return (
            "for the same task set the number of classes of the checkpoint; for a new one leave this layer out"
            " (ignore_mismatched_sizes=True in transformers, or drop its keys)"
        )
    return "build the model with the configuration of the checkpoint (its config.json, hparams or command line), and compare both"


def _is_flat(case: Case) -> bool:
    """Return whether the model has a tensor as a flat vector that the checkpoint has in several dimensions."""
    return "," in case.given["saved"] and "," not in case.given["current"]


def _is_of_own_run(case: Case) -> bool:
    """Return whether the file that is loaded is one that the run had saved itself."""
    return case.called(r":_load_best_model$|:_?load_from_checkpoint$|:_load_rng_state$|:_load_optimizer_and_scheduler$")


def _path(case: Case) -> str:
    """Return the file in the message of an error of the file system, with a blank before it; empty if there is none."""
    # Of a copy, `'one' -> 'other'`, it is the other one that could not be written.
    found = re.search(
        r"(?:device|exceeded|system|handle|error|denied): (?:'[^'\n]{1,300}' -> )?'([^'\n]{1,300})'", text_of(case.lead)
    )
    if not found:
        return ""
    return f" ({found[1] if len(found[1]) <= 32 else '…' + found[1][-31:]})"


def _file(case: Case) -> str:
    """Return what kind of file could not be read: only some pickled files are checkpoints."""
    is_pickle = re.search("Ran out of input|pickle data was truncated", text_of(case.lead))
    of_torch = not case.lead.calls or case.called(r"torch[/\\]serialization|checkpoint|ckpt|load_state|resume")
    return "checkpoint file" if of_torch or not is_pickle else "file that is unpickled"


def _is_in_new_process(case: Case) -> bool:
    return case.called(r"multiprocessing[/\\](?:spawn|forkserver|queues|pool)\.py")


_AFTER_WRITE = (
    "if a file was being written, it is cut off: delete it, and resume from the checkpoint before it if it was one"
)

_LOADS = re.compile(r":(?:load_state_dict|_?load_checkpoint|_?load_optimizer\w*|resume\w*)$")
"""Matches a frame, as `file:line:function`, that loads a state."""

ENTRIES: tuple[Failure, ...] = (
    # Files that cannot be written.
    Failure(
        id="checkpoints.quota",
        kind=LogClass.DISK_FULL,
        what="A quota of the user, the group or the project is used up.",
        signs=(
            sign("Disk quota exceeded"),
            sign("Errno", r"\[Errno 122\]"),
        ),
        headline=lambda case: f"A disk quota is used up{_path(case)}: the disk itself may have room (errno 122)",
        why="a quota limits the bytes or the number of files of a user, a group or a project on this file system; df does not show"
        " it",
        next=(
            "look at the quota, bytes and number of files (quota -s; Lustre: lfs quota -hu $USER PATH; GPFS: mmlsquota), and delete or"
            " move old checkpoints and caches (~/.cache/huggingface, pip, conda)",
            "write checkpoints to the scratch or project file system, and keep fewer of them (save_total_limit)",
            _AFTER_WRITE,
        ),
        rules_out="a full disk, which is errno 28",
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                "OSError: [Errno 122] Disk quota exceeded: '/home/user/work_dirs/epoch_14.pth'",
                source="open-mmlab/mmdetection#12069",
                says=("quota", "lfs quota", "epoch_14.pth"),
            ),
        ),
        knowledge="errno(3): EDQUOT",
    ),
    Failure(
        id="checkpoints.dcp_sizes",
        kind=LogClass.CRASHED,
        what="A sharded checkpoint holds a tensor in another shape than the model that loads it.",
        signs=(
            sign(
                "Size mismatch between saved",
                r"Size mismatch between saved torch\.Size\(\[(?P<saved>[\d, ]*)\]\) and current: torch\.Size\(\[(?P<current>[\d, ]*)\]\)"
                r" for (?P<name>\S+)",
            ),
        ),
        headline=lambda case: (
            f"The checkpoint has a tensor as [{case.given['saved']}], the model as [{case.given['current']}]"
        ),
        why=lambda case: (
            f"{case.given['name']} is one flat shard in the model, and a tensor of its own shape in the checkpoint: they were made with"
            " different settings of FSDP"
            if _is_flat(case)
            else f"{case.given['name']} has another shape in the model than when it was saved: another configuration, vocabulary or"
            " degree of parallelism"
        ),
        next=(
            Advice(
                "load with the settings of FSDP that saved it: use_orig_params, the type of state dict (full or sharded), FSDP1 or FSDP2,"
                " and the version of the framework; or convert the checkpoint (torch.distributed.checkpoint.format_utils)",
                when=_is_flat,
            ),
            Advice(
                "build the model with the configuration of the checkpoint (vocabulary, layers, tensor parallel degree), or leave this"
                " tensor out of what is loaded",
                when=lambda case: not _is_flat(case),
            ),
        ),
        check="torch.distributed.checkpoint.FileSystemReader(PATH).read_metadata() lists names and sizes",
        explains=("exceptions.*",),
        examples=(
            Example(
                "ValueError: Size mismatch between saved torch.Size([257152, 2048]) and current: torch.Size([131661824]) for"
                " fsdp_checkpoint.model.language_model.embed_tokens.weight",
                source="RLinf/RLinf#655",
                says=("use_orig_params",),
            ),
            Example(
                "ValueError: Size mismatch between saved torch.Size([32000, 2048]) and current: torch.Size([32064, 2048]) for"
                " model.embed_tokens.weight",
                says=("vocabulary",),
            ),
        ),
        knowledge="torch/distributed/checkpoint/default_planner.py",
    ),
    Failure(
        id="checkpoints.no_space",
        kind=LogClass.DISK_FULL,
        what="A disk is full.",
        signs=(
            sign(
                "No space left on device",
                r"\A(?![\s\S]{0,3000}?(?:\bshm\b|torch_\d+_\d+|shared memory|nccl-))[\s\S]{0,3000}?No space left on device",
            ),
        ),
        headline=lambda case: f"A disk is full{_path(case)}: no space is left (errno 28)",
        why="the file system refuses to write or to make a file; its bytes or its inodes (number of files) are used up",
        next=(
            "see which disk (df -h PATH, and df -i for the number of files), and free space: old checkpoints, caches (HF_HOME, TMPDIR,"
            " /tmp), logs",
            "keep fewer checkpoints (save_total_limit, keep_last), and write them to a larger file system",
            _AFTER_WRITE,
        ),
        rules_out="a quota, which is errno 122",
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] 2023-04-29 06:01:12 ERROR [__main__] main failed\n"
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] Traceback (most recent call last):\n"
                '2023-04-29 06:01:12.977 [177/train/578 (pid 28936)]   File "/opt/conda/lib/python3.7/site-packages/torch/serialization.py", line 379, in save\n'
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)]     _save(obj, opened_zipfile, pickle_module, pickle_protocol)\n"
                '2023-04-29 06:01:12.977 [177/train/578 (pid 28936)]   File "/opt/conda/lib/python3.7/site-packages/torch/serialization.py", line 604, in _save\n'
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)]     zip_file.write_record(name, storage.data_ptr(), num_bytes)\n"
                "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] OSError: [Errno 28] No space left on device",
                source="databrickslabs/dolly#139",
                says=("full",),
            ),
        ),
        near_misses=("RuntimeError: unable to write to file </torch_1034_3310563345_0>: No space left on device (28)",),
        knowledge="errno(3): ENOSPC",
    ),
    Failure(
        id="checkpoints.read_only",
        kind=LogClass.DISK_FULL,
        what="A file is to be written on a file system that is mounted read-only.",
        signs=(sign("Read-only file system"),),
        headline=lambda case: f"The file system is read-only{_path(case)} (errno 30)",
        why="it is mounted so (a container's image, a data volume, a home folder on compute nodes), or the kernel made it read-only"
        " after an error of the disk",
        next=(
            Advice(
                "the path starts at the root: if a folder below the current one is meant, leave out the slash in front",
                when=lambda case: case.printed(r"Read-only file system: '/{1,2}[\w.-]+'"),
            ),
            "write elsewhere: output_dir, HF_HOME, TMPDIR, TRITON_CACHE_DIR on a volume that can be written (`mount | grep PATH`)",
            "if it could be written before, see `dmesg -T` for errors of the disk, and leave this node",
        ),
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                ' File "train.py", line 7, in <module>\n'
                "    enhance_data=True, batch_size=32, show_network_summary=True)\n"
                '  File "/Users/user/opt/miniconda3/lib/python3.7/site-packages/imageai/Prediction/Custom/__init__.py", line 266, in trainModel\n'
                "    os.makedirs(self.__trained_model_dir)\n"
                '  File "/Users/user/opt/miniconda3/lib/python3.7/os.py", line 221, in makedirs\n'
                "    mkdir(name, mode)\n"
                "OSError: [Errno 30] Read-only file system: '/spareparts'",
                source="OlafenwaMoses/ImageAI#594",
                says=(
                    "/spareparts",
                    "leave out the slash",
                ),
            ),
        ),
        knowledge="errno(3): EROFS",
    ),
    Failure(
        id="checkpoints.stale_handle",
        kind=LogClass.DISK_FULL,
        what="A file on a network file system was removed or its server was restarted.",
        signs=(sign("Stale file handle"), sign("Stale NFS file handle"), sign("Errno", r"\[Errno 116\]")),
        headline=lambda case: f"A file on a network file system is gone{_path(case)}: stale file handle (errno 116)",
        why="another process deleted or replaced it while it was open here, or the server or its export changed",
        next=(
            Advice(
                "put the cache of the data sets on a local disk of each node (HF_DATASETS_CACHE, MODELSCOPE_CACHE), or let one process"
                " prepare it before the others start; pip install -U filelock datasets",
                when=lambda case: case.called(r"/datasets/|filelock") or case.printed(r"\.cache|cache-|\.arrow|\.lock"),
            ),
            "start again from the last checkpoint; if it comes back, remount the file system on that node",
            "do not delete or replace files that other ranks read (old checkpoints, caches that are rebuilt): let one rank do it after"
            " a barrier",
        ),
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/sw/taiyaki/bin/train_flipflop.py", line 530, in <module>\n'
                "    main()\n"
                '  File "/home/user/sw/taiyaki/bin/train_flipflop.py", line 456, in main\n'
                "    None if args.gradient_cap_fraction is None else gradient_cap)\n"
                '  File "/home/user/TAIYAKI_ENV/lib/python3.6/site-packages/taiyaki/helpers.py", line 233, in record\n'
                '    self.write("{:5.4f}\\t{:5.4f}\\t".format(loss, gradientnorm))\n'
                '  File "/home/user/TAIYAKI_ENV/lib/python3.6/site-packages/taiyaki/helpers.py", line 227, in write\n'
                "    self.fh.write(s.encode('utf-8'))\n"
                "OSError: [Errno 116] Stale file handle\n"
                "Command exited with non-zero status 1",
                source="nanoporetech/taiyaki#66",
                says=(
                    "errno 116",
                    "remount",
                ),
            ),
        ),
        knowledge="errno(3): ESTALE; nfs(5)",
    ),
    Failure(
        id="checkpoints.io_error",
        kind=LogClass.HARDWARE,
        what="A device or a network file system failed to read or write.",
        signs=(
            sign("Input/output error", r"(?<!standard output: )(?<!write error: )(?<!message = ')Input/output error"),
        ),
        headline=lambda case: (
            f"The disk or network file system failed{path}: input/output error (errno 5)"
            if (path := _path(case))
            else "A read or write failed: input/output error (errno 5)"
        ),
        why=lambda case: (
            "the storage failed or did not answer; some network drives report so that they are full, or that they are asked too often"
            + (
                ""
                if _path(case)
                else ". Without the name of a file it may also be the terminal, which is gone (a closed ssh session)"
            )
        ),
        next=(
            Advice(
                "copy the data to the machine's own disk (/content): Google Drive limits reads, above all of many small files",
                when=lambda case: case.printed(r"/content/g?drive|My ?Drive"),
            ),
            "see whether it is full (df -h, quota -s), then `dmesg -T` of that node for errors of the disk, NFS, Lustre or FUSE",
            "run on another node or disk; if a checkpoint was being written, resume from the one before it",
            Advice(
                "if it failed while it printed: start it so that it outlives the terminal (nohup, tmux, output into a file)",
                when=lambda case: not _path(case),
            ),
        ),
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                "ERROR: megatron.core.dist_checkpointing.strategies.filesystem_async: Local process 0 encountered an error: [Errno 5] Input/output error",
                source="THUDM/slime#326",
                says=("df -h",),
            ),
            Example(
                "    with open(file, mode) as f:\n"
                "OSError: [Errno 5] Input/output error: '/media/project/nnUNet/nnUNet_preprocessed/Dataset002_CCTA_3D/nnUNetPlans_3d_fullres/L0550_RCA_sagital.pkl'\n"
                "OSError: [Errno 5] Input/output error: '/media/project/nnUNet/nnUNet_preprocessed/Dataset002_CCTA_3D/nnUNetPlans_3d_fullres/FA1791_LAD_axial.pkl'",
                source="MIC-DKFZ/nnUNet#1784",
                says=("L0550",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/train.py", line 9, in main\n    print(loss)\nOSError: [Errno 5] Input/output error',
                says=("nohup",),
            ),
        ),
        knowledge="errno(3): EIO",
    ),
    Failure(
        id="checkpoints.permission",
        kind=LogClass.CRASHED,
        what="The user may not write or read a file or folder.",
        signs=(
            sign(
                "Permission denied",
                r"(?:PermissionError: \[Errno 13\] |Errno 13\] )Permission denied: '(?P<path>[^'\n]{1,300})'",
            ),
        ),
        headline=lambda case: (
            f"No permission for {path if len(path := case.given['path']) <= 60 else '…' + path[-58:]}"
        ),
        why="the file or folder belongs to another user (root in a container is one), its mode does not allow it, or"
        " the mount is read-only; on Windows it may be open in another program, or be a folder",
        next=(
            "see who owns it: ls -ld PATH and its parent, id; then chown or chmod it, or run as that user (docker run --user $(id -u))",
            "or put it where you may write: output and cache folders (HF_HOME, TMPDIR), or a copy of the data set if a cache is made"
            " beside it",
        ),
        check="`touch PATH/x` as the job's user; `mount` shows ro for a read-only mount",
        rules_out="a full disk",
        examples=(
            Example(
                "PermissionError: [Errno 13] Permission denied: 'data/input/train_001/cache/hunyuan-video'",
                source="tdrussell/diffusion-pipe#71",
                says=("data/input/train_001/cache/hunyuan-video", "chown"),
            ),
        ),
        knowledge="errno(3): EACCES",
    ),
    Failure(
        id="checkpoints.persistent_id",
        kind=LogClass.CRASHED,
        what="A file of torch.save is read as a bare pickle.",
        signs=(sign("load persistent id instruction was encountered"),),
        headline="A file with tensors of torch.save is read as a bare pickle",
        why="torch.save keeps the tensors beside the pickle; pickle.load, or torch.load on the data.pkl of an unpacked archive or on a file"
        " in another format than its own, finds references without their data",
        next=(
            "read the file itself with torch.load(path), not with pickle.load or joblib",
            "if it is the data.pkl of a folder: the archive was unpacked (some browsers and Drive do that): download it again as one .pt or"
            " .pth file, or zip the folder without compression (zip -0 -r model.pth FOLDER)",
            "if torch.load itself says it: the file comes from a newer PyTorch, or is of another kind; update PyTorch",
        ),
        check="unzip -l FILE lists archive/data.pkl for a file of torch.save",
        examples=(
            Example(
                "_pickle.UnpicklingError: A load persistent id instruction was encountered,\nbut no persistent_load function was specified.",
                source="bartn8/stereoanywhere#5",
                says=("torch.load(path)", "data.pkl"),
            ),
        ),
        knowledge="torch.serialization; pickle: persistence of external objects",
    ),
    Failure(
        id="checkpoints.write_failed",
        kind=LogClass.CRASHED,
        what="A file could not be written to its end, and the text does not say why.",
        signs=(
            sign(
                "failed writing",
                r"PytorchStreamWriter failed writing (?:file|central directory)(?: (?P<file>[\w./]{1,60}))?",
            ),
            sign("failed opening archive", r"PytorchStreamWriter failed (?P<opened>opening archive)"),
            sign("unexpected pos", r"unexpected pos \d+ vs \d+"),
            sign("iostream error", r"basic_ios::clear: iostream error"),
            sign("iostream stream error", r"ios_base::badbit set: iostream stream error"),
            sign("I/O error: No space", r"I/O error: No space"),
            sign("cannot be opened", r"RuntimeError: File (?P<opened>\S{1,200}) cannot be opened"),
        ),
        when=lambda case: not case.printed(r"No space left on device|Disk quota exceeded|Read-only file system"),
        headline=lambda case: (
            "The file that was to be saved could not be created"
            if case.given.get("opened") == "opening archive"
            else f"The file {case.given['opened'][-50:]} could not be created"
            if case.given.get("opened")
            else "A checkpoint could not be written to its end, and the message does not say why"
        ),
        why=lambda case: (
            "a full disk, a quota, a missing folder and missing rights all look like this"
            if case.given.get("opened")
            else "a full disk, a quota and a network file system that failed for a moment all look like this"
        ),
        next=(
            "look which it was: df -h PATH and df -i, the quota (quota -s, lfs quota), the node's `dmesg -T`",
            lambda case: (
                "make the folder before (os.makedirs(..., exist_ok=True)), and see that it may be written"
                if case.given.get("opened")
                else "then start again from the last complete checkpoint; if neither disk nor quota is full, let the save be tried again,"
                " and write to a local disk first"
            ),
        ),
        event=EventKind.DISK_FULL,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/ma-user/anaconda3/envs/myenv/lib/python3.9/site-packages/torch/serialization.py", line 423, in save\n'
                "    _save(obj, opened_zipfile, pickle_module, pickle_protocol)\n"
                '  File "/home/ma-user/anaconda3/envs/myenv/lib/python3.9/site-packages/torch/serialization.py", line 650, in _save\n'
                "    zip_file.write_record(name, storage.data_ptr(), num_bytes)\n"
                "RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/176: file write failed",
                source="hiyouga/LlamaFactory#1223",
                says=("quota",),
            ),
            Example(
                "Epoch 0, time usage: 10319.676s, average loss: [0.050121 0.051044]/0.050582\n"
                "Traceback (most recent call last):\n"
                '  File "/ronin/source/ronin_resnet.py", line 423, in <module>\n'
                "    train(args)\n"
                '  File "/ronin/source/ronin_resnet.py", line 227, in train\n'
                "    torch.save({'model_state_dict': network.state_dict(),\n"
                '  File "/opt/anaconda3/envs/py397/lib/python3.9/site-packages/torch/serialization.py", line 422, in save\n'
                "    with _open_zipfile_writer(f) as opened_zipfile:\n"
                '  File "/opt/anaconda3/envs/py397/lib/python3.9/site-packages/torch/serialization.py", line 287, in __init__\n'
                "    super(_open_zipfile_writer_file, self).__init__(torch._C.PyTorchFileWriter(str(name)))\n"
                "RuntimeError: File my_out/checkpoints/checkpoint_0.pt cannot be opened.",
                source="Sachini/ronin#51",
                says=(
                    "checkpoint_0.pt",
                    "df -h",
                ),
            ),
            Example(
                "RuntimeError: [enforce fail at inline_container.cc:857] . PytorchStreamWriter failed writing file data/322: file write"
                " failed",
                says=("quota", "tried again"),
            ),
            Example(
                "RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 7323520 vs 7323408",
                says=("df -h",),
            ),
        ),
        knowledge="PyTorch: caffe2/serialize/inline_container.cc",
    ),
    # Files that cannot be read.
    Failure(
        id="checkpoints.truncated",
        kind=LogClass.CRASHED,
        what="A checkpoint is cut off or damaged.",
        signs=(
            sign("failed finding central directory"),
            sign(
                "PytorchStreamReader failed",
                r"PytorchStreamReader failed (?:reading file|locating file|getting data|reading zip archive)",
            ),
            sign("file not found: archive/", r"file not found: archive/"),
            sign("Invalid magic number; corrupt file"),
            sign("The file might be corrupted", r"unexpected EOF, expected (?P<bytes>\d+) more bytes"),
            sign("Ran out of input", r"EOFError: Ran out of input"),
            sign("pickle data was truncated"),
            sign("storage has wrong", r"storage has wrong (?:byte )?size: expected (?:-?\d+|%ld) got [-%\d]"),
        ),
        when=lambda case: (
            not case.called(r"multiprocessing[/\\](?:spawn|forkserver)\.py")
            and "constants.pkl" not in text_of(case.lead)
        ),
        headline=lambda case: (
            f"The {_file(case)} is cut off: {case.given['bytes']} more bytes were expected"
            if case.given.get("bytes")
            else f"The {_file(case)} is empty: there is nothing to read in it"
            if "Ran out of input" in text_of(case.lead)
            else f"The {_file(case)} is cut off or damaged: its end is missing"
            if "central directory" in text_of(case.lead)
            else f"The {_file(case)} is damaged: a part of it cannot be read"
        ),
        why="most often its writing, copy or download stopped early (a full disk, a job that was killed while saving,"
        " an interrupted transfer); else it is not finished, several processes write it, or it was wrong at its"
        " source",
        next=(
            "compare its size with the original or with the other checkpoints (ls -l), and copy or download it again",
            _ANOTHER_CHECKPOINT,
            "to avoid it, let one rank save to a temporary name and rename it when it is complete, with a barrier before others load it,"
            " and free the disk if it was full",
        ),
        check="python -m zipfile -t FILE tests a .pt or .pth file",
        rules_out="another version of PyTorch, which says so",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
                source="guoweiyu/Context-Enhanced-Stereo-Transformer#1",
                says=("cut off", "copy", "before it"),
            ),
            Example(
                "RuntimeError: PytorchStreamReader failed reading file data/104: invalid header or archive is corrupted",
                source="LizhenWangT/StyleAvatar#23",
                says=("damaged", "download it again"),
            ),
            Example(
                "RuntimeError: unexpected EOF, expected 3302021 more bytes. The file might be corrupted.",
                says=("3302021",),
            ),
            Example("EOFError: Ran out of input", says=("empty",)),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/w/data.py", line 9, in read\n    return pickle.load(f)\nEOFError: Ran out of input',
                says=("file that is unpickled is empty",),
            ),
        ),
        knowledge="pytorch/pytorch#170244",
        near_misses=("RuntimeError: PytorchStreamReader failed locating file constants.pkl: file not found",),
    ),
    Failure(
        id="checkpoints.no_folder",
        kind=LogClass.CRASHED,
        what="The folder into which a checkpoint is written does not exist.",
        signs=(sign("Parent directory", r"Parent directory (?P<folder>\S{1,300}) does not exist"),),
        headline="The folder for a checkpoint does not exist: {folder}",
        why="torch.save makes no folders",
        next=(
            Advice(
                "if the folder is there: on Windows move it to a path of ASCII letters only",
                when=lambda case: not case.given["folder"].isascii(),
            ),
            "make it before the training: os.makedirs(folder, exist_ok=True), on the node that writes; a relative path counts from"
            " the folder in which the job was started",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/KnowledgeablePromptTuning/fewshot.py", line 346, in <module>\n'
                '    torch.save(prompt_model.state_dict(),f"ckpts/{this_run_unicode}.ckpt")\n'
                '  File "/opt/homebrew/lib/python3.11/site-packages/torch/serialization.py", line 440, in save\n'
                "    with _open_zipfile_writer(f) as opened_zipfile:\n"
                "         ^^^^^^^^^^^^^^^^^^^^^^^\n"
                '  File "/opt/homebrew/lib/python3.11/site-packages/torch/serialization.py", line 288, in __init__\n'
                "    super().__init__(torch._C.PyTorchFileWriter(str(name)))\n"
                "                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "RuntimeError: Parent directory ckpts does not exist.",
                source="thunlp/KnowledgeablePromptTuning#24",
                says=("ckpts",),
            ),
            Example(
                "Train Epoch: 0 [98560/99286 (99%)]      Loss: 1775.361294\n"
                "Train Average Loss: 1772.74785672829\n"
                " Validation: Average Loss: 1936.5173486788433\n"
                "early stop change\n"
                "ERROR - main.py - 2024-09-26 16:09:25,111 - Traceback (most recent call last):\n"
                '  File "/mnt/workspace/TIMEADDM-main/main.py", line 234, in main\n'
                "    emb.main()\n"
                '  File "/mnt/workspace/TIMEADDM-main/early_stopping.py", line 85, in savemodel\n'
                "    torch.save(model.state_dict(), path)\n"
                '  File "/usr/local/lib/python3.10/site-packages/torch/serialization.py", line 472, in __init__\n'
                "    super().__init__(torch._C.PyTorchFileWriter(self.name))\n"
                "RuntimeError: Parent directory ./earlysave does not exist.",
                source="Hurongyao/TIMEADDM#2",
                says=("./earlysave",),
            ),
            Example(
                '  File "k:/ZiToZi/train.py", line 127, in main\n'
                "    model.save_networks(global_steps)\n"
                '  File "k:\\ZiToZi\\model\\model.py", line 223, in save_networks\n'
                "    torch.save(net.state_dict(), save_path)\n"
                '  File "K:\\Program Files\\anaconda3\\envs\\py-37-Pytorch-cu117\\lib\\site-packages\\torch\\serialization.py", line 287, in __init__\n'
                "    super(_open_zipfile_writer_file, self).__init__(torch._C.PyTorchFileWriter(str(name)))  \n"
                "RuntimeError: Parent directory K:\\ZiToZi\\训练\\experiment_dir\\checkpoint does not exist.  ",
                source="EuphoriaYan/zi2zi-pytorch#54",
                says=("ASCII",),
            ),
        ),
        knowledge="PyTorch: caffe2/serialize/inline_container.cc",
    ),
    Failure(
        id="checkpoints.no_tokenizer_model",
        kind=LogClass.CRASHED,
        what="A sentencepiece tokenizer is loaded, and the model's folder has no tokenizer.model.",
        signs=(sign("TypeError: not a string", r"TypeError: not a string\s*\Z"),),
        headline="A sentencepiece tokenizer got no file: most often there is no tokenizer.model",
        why="the slow tokenizer reads tokenizer.model; newer models (Llama 3 and what is made from it) have only tokenizer.json",
        next=(
            "AutoTokenizer.from_pretrained(MODEL), without use_fast=False and not LlamaTokenizer",
            "if the model does have a tokenizer.model, copy it into the folder that is loaded (`ls` it)",
        ),
        examples=(
            Example(
                "    309 def LoadFromFile(self, arg):\n"
                "--> 310     return _sentencepiece.SentencePieceProcessor_LoadFromFile(self, arg)\n"
                "\n"
                "TypeError: not a string",
                source="krafton-ai/KORani#1",
                says=("AutoTokenizer",),
            ),
        ),
        knowledge="huggingface/transformers#29137; krafton-ai/KORani#1",
    ),
    Failure(
        id="checkpoints.left_on_meta",
        kind=LogClass.CRASHED,
        what="A parameter got no value from the checkpoint while a model was loaded.",
        signs=(sign("is on the meta device, we need a", r"(?P<name>[\w.]{1,160}) is on the meta device, we need a"),),
        headline="A parameter ({name}) got no value from the checkpoint",
        why="loading makes parameters without memory and fills them from the files; this one was not filled",
        next=(
            "pip install -U transformers accelerate: some older pairs leave parameters unfilled",
            "check that the checkpoint has it: all files there, the class of the model as in config.json (not another head"
            " or a part of the model)",
        ),
        examples=(
            Example(
                '│   135 │   if old_value.device == torch.device("meta") and device not in ["meta", torch.dev │\n'
                '│ ❱ 136 │   │   raise ValueError(f"{tensor_name} is on the meta device, we need a `value` to │\n'
                "│   137 │                                                                                    │\n"
                "│   138 │   if value is not None:                                                            │\n"
                "│   139 │   │   if dtype is None:                                                            │\n"
                "╰────────────────────────────────────────────────────────────────────────────────────────────╯\n"
                "ValueError: weight is on the meta device, we need a `value` to put in on 0.",
                source="huggingface/accelerate#1289",
                says=("-U transformers accelerate",),
            ),
        ),
        knowledge="huggingface/accelerate#1289; huggingface/trl#364",
    ),
    Failure(
        id="checkpoints.safetensors_header",
        kind=LogClass.CRASHED,
        what="A file with the ending safetensors is none, or is cut off.",
        signs=(
            sign(
                "deserializing header",
                r"Error while deserializing header: (?P<what>HeaderTooLarge|HeaderTooSmall|MetadataIncompleteBuffer|InvalidHeader\w*"
                r"|[a-z][^\n]{2,80})",
            ),
        ),
        headline=lambda case: (
            "The .safetensors file begins with no valid header: most often it is a git-lfs pointer or a web page"
            if "TooLarge" in case.given["what"] or "too large" in case.given["what"]
            else "The .safetensors file is cut off: its header promises more bytes than it has"
            if "ncomplete" in case.given["what"]
            else f"The .safetensors file is damaged or none ({case.given['what'][:24]})"
        ),
        why=lambda case: (
            "its first bytes are read as the length of the header, and those of a text make a huge one; a file with very many"
            " tensors can exceed the library's limit, too"
            if "arge" in case.given["what"]
            else "the run saved this file itself: its save stopped early, or wrote nothing"
            if _is_of_own_run(case)
            else "most often a download, copy or save stopped early"
        ),
        next=(
            Advice(
                "look at its size in the checkpoint's folder (ls -l): an adapter of some hundred bytes is empty. Scripts that replace"
                " model.state_dict (older versions of alpaca-lora) save it so: remove that line and save by save_pretrained; if only"
                " the last loading failed, load_best_model_at_end=False leaves it out",
                when=_is_of_own_run,
            ),
            Advice(
                "look at it (ls -l; head -c 200 FILE): a pointer begins with `version https://git-lfs`. Then git lfs install && git lfs"
                " pull in the repository, or download it by huggingface-cli download REPO",
                when=lambda case: "ncomplete" not in case.given["what"] and not _is_of_own_run(case),
            ),
            Advice(
                "delete it, in the cache as well (~/.cache/huggingface/hub/models--...), and download or copy it again",
                when=lambda case: not _is_of_own_run(case),
            ),
            Advice(_ANOTHER_CHECKPOINT, when=lambda case: "ncomplete" in case.given["what"]),
        ),
        check="ls -l shows some GB for weights, about 130 bytes for a pointer",
        rules_out="another version of safetensors",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
                source="microsoft/OmniParser#34",
                says=("git-lfs", "git lfs"),
            ),
            Example(
                "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
                source="QwenLM/Qwen#462",
                says=("cut off", "download"),
            ),
            Example(
                "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
                source="datalab-to/marker#970",
                says=("cut off",),
            ),
        ),
        knowledge="safetensors: format; lyogavin/airllm#137",
    ),
    Failure(
        id="checkpoints.not_a_checkpoint",
        kind=LogClass.CRASHED,
        what="A file that is to be unpickled is a text or another format.",
        signs=(sign("invalid load key", r"invalid load key, '(?P<key>[^\n]{1,6}?)'"),),
        headline=lambda case: (
            "The file begins with 'v': most often it is a git-lfs pointer, not the weights"
            if case.given["key"] == "v"
            else "The file begins with '<': most often it is a web page, not the weights"
            if case.given["key"] == "<"
            else "The file is no checkpoint of torch.save, or it is damaged at its beginning"
        ),
        why=lambda case: (
            "a pointer begins with `version https://git-lfs`, and is what a clone without git-lfs has"
            if case.given["key"] == "v"
            else "such a download got an error or a confirmation page instead of the file"
            if case.given["key"] == "<"
            else "its first byte is none of pickle's: a safetensors, GGUF or compressed file, or a damaged copy"
        ),
        next=(
            lambda case: (
                "git lfs install && git lfs pull in the repository, or download the file itself"
                if case.given["key"] == "v"
                else "look at it (head -c 300 FILE) and download it again, for example with gdown or huggingface-cli"
                if case.given["key"] == "<"
                else "see what it is (file FILE, head -c 16 FILE | xxd); load safetensors by safetensors.torch.load_file"
            ),
        ),
        check="ls -l: a pointer has about 130 bytes",
        examples=(
            Example(
                "_pickle.UnpicklingError: invalid load key, 'v'.",
                source="vllm-project/vllm#1382",
                says=("git lfs pull",),
            ),
            Example("_pickle.UnpicklingError: invalid load key, '<'.", says=("web page", "head -c")),
        ),
        knowledge="git-lfs/git-lfs#4366",
    ),
    Failure(
        id="checkpoints.weights_only",
        kind=LogClass.CRASHED,
        what="A checkpoint holds objects that torch.load does not admit by default since PyTorch 2.6.",
        signs=(
            sign(
                "Weights only load failed",
                r"Weights only load failed[\s\S]{0,1800}?(?:Unsupported (?:global: GLOBAL|class|operand)|global) (?P<object>[A-Za-z_][\w.]{2,120})",
            ),
            sign("Weights only load failed"),
        ),
        headline=lambda case: (
            f"torch.load refuses an object in the checkpoint: {name if len(name) <= 42 else '…' + name[-40:]}"
            if (name := case.given.get("object"))
            else "torch.load refuses the checkpoint: it holds more than tensors (weights_only=True)"
        ),
        why="since PyTorch 2.6 weights_only=True is the default, which admits tensors and a few types only",
        next=(
            lambda case: (
                f"if you trust the file, admit it: torch.serialization.add_safe_globals([{case.given['object'].rpartition('.')[2]}])"
                " before the load"
                if case.given.get("object")
                else "if you trust the file, admit the class that the message names: torch.serialization.add_safe_globals([CLASS])"
            ),
            "or torch.load(..., weights_only=False); where a library calls it, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the environment",
        ),
        rules_out="a damaged file",
        examples=(
            Example(
                "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options, do"
                " those steps only if you trust the source of the checkpoint. \n\t(1) In PyTorch 2.6, we changed the default value of the"
                " `weights_only` argument in `torch.load` from `False` to `True`.\n\tWeightsUnpickler error: Unsupported global: GLOBAL"
                " deepspeed.runtime.fp16.loss_scaler.LossScaler was not an allowed global by default.",
                source="modelscope/ms-swift#5808",
                says=("add_safe_globals([LossScaler])", "LossScaler"),
            ),
            Example(
                "_pickle.UnpicklingError: Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely"
                " succeed, but it can result in arbitrary code execution.Do it only if you get the file from a trusted source."
                " WeightsUnpickler error: Unsupported class omegaconf.listconfig.ListConfig",
                source="meta-pytorch/torchtune#1142",
                says=("ListConfig",),
            ),
        ),
        knowledge="PyTorch: torch.load, notes on serialization",
    ),
    Failure(
        id="checkpoints.class_not_found",
        kind=LogClass.CRASHED,
        what="A checkpoint holds objects of a class or module that this program does not have.",
        signs=(
            sign(
                "Can't get attribute",
                r"Can't get attribute '(?P<name>[\w.<>]{1,100})' on <module '(?P<module>[\w.]{1,100})'",
            ),
        ),
        headline=lambda case: (
            f"A new process was sent {case.given['module']}.{case.given['name']}, and does not have it"
            if _is_in_new_process(case)
            else f"The file needs {case.given['module']}.{case.given['name']}, which this program does not have"
        ),
        why="pickle stores the name of a class and its module; the class was moved or renamed, or was defined in the"
        " script that saved or sent it (__main__)",
        next=(
            Advice(
                "use the version of the code that saved it, or define or import the class under that name before the load",
                when=lambda case: not _is_in_new_process(case),
            ),
            Advice(
                "then save state_dict() instead of whole objects, which needs no classes",
                when=lambda case: not _is_in_new_process(case),
            ),
            Advice(
                "define it in a module that the process imports, not in a notebook or under `if __name__ == '__main__':` (or num_workers=0)",
                when=_is_in_new_process,
            ),
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/MA-Net-main/just_test.py", line 5, in <module>\n'
                "    model = torch.load('./checkpoint/Pretrained_on_MSCeleb.pth.tar')\n"
                '  File "/home/user/anaconda3/envs/env/lib/python3.8/site-packages/torch/serialization.py", line 608, in load\n'
                "    return _legacy_load(opened_file, map_location, pickle_module, **pickle_load_args)\n"
                '  File "/home/user/anaconda3/envs/env/lib/python3.8/site-packages/torch/serialization.py", line 787, in _legacy_load\n'
                "    result = unpickler.load()\n"
                "AttributeError: Can't get attribute 'RecorderMeter' on <module '__main__' from '/home/user/MA-Net-main/just_test.py'>",
                source="zengqunzhao/MA-Net#5",
                says=(
                    "__main__.RecorderMeter",
                    "state_dict",
                ),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "<string>", line 1, in <module>\n'
                "    x\n"
                '  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main\n'
                "    exitcode = _main(fd, parent_sentinel)\n"
                "AttributeError: Can't get attribute 'MySet' on <module '__main__' (built-in)>",
                says=(
                    "A new process was sent",
                    "in a module that the process imports",
                ),
            ),
        ),
        knowledge="PyTorch: saving and loading models",
    ),
    Failure(
        id="checkpoints.device",
        kind=LogClass.CRASHED,
        what="A checkpoint is to be loaded onto a device that this machine does not have.",
        signs=(
            sign(
                "Attempting to deserialize object on",
                r"Attempting to deserialize object on (?:a )?(?P<kind>\w+) device(?: (?P<index>\d+) but torch\.\w+\.device_count\(\) is"
                r" (?P<count>\d+))?",
            ),
            sign(
                "how to restore data location",
                r"don't know how to restore data location of \S+ \(tagged with (?P<tag>[\w:]+)\)",
            ),
        ),
        headline=lambda case: (
            f"The checkpoint was saved on {case.given['kind']} device {case.given['index']}, and {case.given['count']} are visible here"
            if case.given.get("index")
            else f"The checkpoint was saved on a device ('{case.given['tag']}') that is unknown here"
            if case.given.get("tag")
            else f"The checkpoint was saved on a {case.given['kind']} device, and none is available here"
        ),
        why="torch.load puts each tensor back on the device from which it was saved",
        next=(
            "torch.load(..., map_location='cpu'), then move the model (also saves GPU memory); or map_location=f'cuda:LOCAL_RANK'",
            Advice(
                "if there should be a GPU, see nvidia-smi, CUDA_VISIBLE_DEVICES and torch.cuda.is_available() first",
                when=lambda case: not case.given.get("tag"),
            ),
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 29, in <module>\n'
                "    opt.model1_path, opt.model2_path)\n"
                '  File "/content/CaricatureFace/cariface.py", line 145, in load_model\n'
                "    ck1 = torch.load(model1_path)\n"
                '  File "/usr/local/lib/python3.6/site-packages/torch/serialization.py", line 126, in validate_cuda_device\n'
                "    device, torch.cuda.device_count()))\n"
                "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1. Please use torch.load with map_location to map your storages to an existing device.",
                source="Juyong/CaricatureFace#2",
                says=("CUDA device 1, and 1 are visible",),
            ),
            Example(
                "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. Please use torch.load"
                " with map_location to map your storages to an existing device.",
                says=("CUDA device 3, and 1 are visible", "map_location"),
            ),
            Example(
                "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
                says=("none is available", "map_location='cpu'"),
            ),
        ),
        knowledge="torch.load: map_location",
    ),
    # States that do not fit.
    Failure(
        id="checkpoints.key_prefix",
        kind=LogClass.CRASHED,
        what="The keys of a state_dict differ from those of the model by a prefix.",
        signs=(sign("in state_dict", r"(?:Missing|Unexpected) key\(s\) in state_dict"),),
        when=lambda case: _prefix(case) is not None,
        headline=_prefix_headline,
        sentence=_prefix_headline,
        why=lambda case: f"this prefix is that of {_WRAPPERS[(_prefix(case) or ('model.', False))[0]]}",
        next=(
            _prefix_next,
            "save without it: model.module.state_dict(), model._orig_mod.state_dict() or accelerator.unwrap_model(model)",
        ),
        rules_out="strict=False, which would load nothing and say nothing",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Error(s) in loading state_dict for VGG:\n"
                'Missing key(s) in state_dict: "features.0.weight", "features.0.bias"...\n'
                'Unexpected key(s) in state_dict: "module.features.0.weight", "module.features.0.bias"...',
                source="abeardear/pytorch-YOLO-v1#4",
                says=("removeprefix",),
            ),
            Example(
                'Missing key(s) in state_dict "module.encoders.0.basic_module.SingleConv1.conv.weight"\n'
                'Unexpected key(s) in state_dict "encoders.0.basic_module.SingleConv1.conv.weight"',
                says=("module.", "before it is wrapped"),
            ),
            Example(
                'RuntimeError: Error(s) in loading state_dict for GPT:\n\tMissing key(s) in state_dict: "wte.weight", "wpe.weight". \n'
                '\tUnexpected key(s) in state_dict: "_orig_mod.wte.weight", "_orig_mod.wpe.weight". ',
                says=("_orig_mod.", "removeprefix", "torch.compile"),
            ),
        ),
        near_misses=(
            'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "fc.weight". \n\tUnexpected key(s) in'
            ' state_dict: "head.weight". ',
        ),
        knowledge="torch.nn.Module.load_state_dict",
    ),
    Failure(
        id="checkpoints.size_mismatch",
        kind=LogClass.CRASHED,
        what="A parameter has another shape in the checkpoint than in the model.",
        signs=(
            sign(
                "size mismatch for",
                r"size mismatch for (?P<name>[\w.]{1,200}): copying a param(?:eter)? (?:with shape|of)\s?(?:torch\.Size\()?(?P<saved>[\[(]?[\d, ]*[\])]?)\)?"
                r" from (?:the )?checkpoint, (?:the shape in current model is|where the shape is) (?:torch\.Size\()?(?P<model>[\[(]?[\d, ]*[\])]?)\)?",
            ),
        ),
        headline=_size_headline,
        why=_size_why,
        next=(
            _size_next,
            "if only some layers are meant to be reused, drop the others from the state before load_state_dict: strict=False does not skip"
            " shapes that differ",
        ),
        rules_out="a damaged file",
        examples=(
            Example(
                "RuntimeError: Error(s) in loading state_dict for EntRelJointDecoder:\n\tsize mismatch for"
                " embedding_model.bert_encoder.bert_model.embeddings.word_embeddings.weight: copying a param with shape"
                " torch.Size([31090, 768]) from checkpoint, the shape in current model is torch.Size([30522, 768]).",
                source="Receiling/UniRE#1",
                says=("[31090, 768] in the checkpoint and [30522, 768]", "31090 and 30522 tokens", "tokenizer"),
            ),
            Example(
                "RuntimeError: Error(s) in loading state_dict for ResNet:\n\tsize mismatch for fc.weight: copying a param with shape"
                " torch.Size([1000, 512]) from checkpoint, the shape in current model is torch.Size([10, 512]).",
                says=("1000 and 10", "classes"),
            ),
            Example(
                "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a"
                " param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([32000, 4096]).",
                says=("ZeRO-3", "zero_to_fp32"),
            ),
            Example(
                "RuntimeError: Error(s) in loading state_dict for BertModel:\n"
                "\tsize mismatch for embeddings.position_embeddings.weight: copying a param with shape torch.Size([1024,"
                " 768]) from checkpoint, the shape in current model is torch.Size([512, 768]).",
                says=("other sizes",),
            ),
        ),
        knowledge="torch.nn.Module.load_state_dict",
    ),
    Failure(
        id="checkpoints.keys_differ",
        kind=LogClass.CRASHED,
        what="The keys of a state_dict are not those of the model.",
        signs=(
            sign("loading state_dict for", r"Error\(s\) in loading state_dict for (?P<model>\w+)"),
            sign("in state_dict", r"(?:Missing|Unexpected) key\(s\) in state_dict"),
        ),
        headline=lambda case: (
            f"The checkpoint does not fit the model{' ' + case.given['model'] if case.given.get('model') else ''}"
            + (
                f": key {key if len(key) <= 30 else '…' + key[-28:]} is missing"
                if (key := (_keys(case, "Missing") or [""])[0])
                else ""
            )
        ),
        why=lambda case: (
            f"keys that only the checkpoint has, such as {unexpected[0][-60:]}, show another architecture, version or form (quantised, an adapter)"
            if (unexpected := _keys(case, "Unexpected"))
            else "the checkpoint has no such keys: another architecture or version of the code, or the weights lie one level deeper in the"
            " file (state['model'], state['state_dict'])"
        ),
        next=(
            "compare list(state)[:5] with list(model.state_dict())[:5]: pass the inner dictionary if the weights lie one level deeper, and"
            " build the model with the configuration of the checkpoint",
            Advice(
                "the model is wrapped (its keys begin with 'module.'): if those of the file do not, load into model.module",
                when=lambda case: (
                    bool(_keys(case, "Missing")) and all(key.startswith("module.") for key in _keys(case, "Missing"))
                ),
            ),
            "strict=False only if the missing keys are meant to start fresh: read what it returns",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Error(s) in loading state_dict for DataParallel:\n"
                '        Missing key(s) in state_dict: "module.layer2.0.downsample.0.weight", "module.layer3.0.downsample.0.weight". \n'
                '        Unexpected key(s) in state_dict: "module.layer2.0.downsample.0.pweight", "module.layer2.0.downsample.0.nweight", "module.layer2.0.downsample.0.scale", "module.layer3.0.downsample.0.pweight", "module.layer3.0.downsample.0.nweight", "module.layer3.0.downsample.0.scale".',
                source="yanghr/BSQ#4",
                says=(
                    "downsample.0.weight",
                    "pweight",
                ),
            ),
            Example(
                "net.load_state_dict(pretrained_model['net'], strict=True)\n"
                '  File "/opt/conda/lib/python3.7/site-packages/torch/nn/modules/module.py", line 1045, in load_state_dict\n'
                '    self.__class__.__name__, "\\n\\t".join(error_msgs)))\n'
                "RuntimeError: Error(s) in loading state_dict for DataParallel:\n"
                '\tMissing key(s) in state_dict: "module.aggregator.conv_d0.weight", ..........',
                source="Turoad/lanedet#23",
                says=("model.module",),
            ),
        ),
        knowledge="torch.nn.Module.load_state_dict",
    ),
    Failure(
        id="checkpoints.optimizer_groups",
        kind=LogClass.CRASHED,
        what="The state of an optimizer was saved for other parameters than it has now.",
        signs=(
            sign("match the size of optimizer's group"),
            sign("different number of parameter groups"),
        ),
        headline="The saved optimizer state is for other parameters than this optimizer has",
        why="the state is matched by position, so frozen or added layers, another split into groups, or another model change it",
        next=(
            "build the optimizer from the same parameters as when it was saved: freeze and unfreeze first (requires_grad), same groups of"
            " weight decay, same LoRA targets, same code version",
            "or load only the model and start the optimizer fresh, with a short warm-up",
        ),
        rules_out="a damaged file",
        examples=(
            Example(
                "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
                source="STVIR/pysot#92",
                says=("requires_grad", "fresh"),
            ),
            Example("ValueError: loaded state dict has a different number of parameter groups", says=("groups",)),
        ),
        knowledge="torch.optim.Optimizer.load_state_dict",
    ),
    Failure(
        id="checkpoints.fsdp_optimizer_dtypes",
        kind=LogClass.CRASHED,
        what="FSDP cannot gather an optimizer state whose tensors have different dtypes.",
        when=lambda case: (
            case.lead.message == "AssertionError" and case.called(r"_optim_utils\.py:\d+:_convert_all_state_info")
        ),
        headline="FSDP cannot save this optimizer's state: its tensors have different dtypes",
        why="to gather the full state FSDP joins the pieces of all ranks, and asserts that each has the dtype of the first;"
        " 8-bit and bf16 optimizers, or a model whose parameters are not of one dtype, break that",
        next=(
            "train and save with states of one dtype: a plain AdamW in place of an 8-bit or low-precision one, and the whole model"
            " in one dtype before FSDP wraps it (load in float32 with mixed precision, or all in bfloat16)",
            "or save the state sharded (SHARDED_STATE_DICT, torch.distributed.checkpoint), or without the optimizer"
            " (save_only_model=True)",
        ),
        check="print({v.dtype for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)}) on each rank",
        rules_out="a full disk or a damaged file: nothing was written yet",
        examples=(
            Example(
                "[rank0]: Traceback (most recent call last):\n"
                '[rank0]:   File "/workspace/sft_trainer/train.py", line 276, in main\n'
                "[rank0]:     train_stats = trainer.train()\n"
                '[rank0]:   File "/home/user/.local/lib/python3.10/site-packages/torch/distributed/fsdp/_optim_utils.py", line 1382, in'
                " _convert_all_state_info\n"
                "[rank0]:     assert dtype == info.dtype\n"
                "[rank0]: AssertionError",
                source="pytorch/pytorch#156166",
                says=("dtypes", "save_only_model=True"),
            ),
        ),
        near_misses=(
            "Traceback (most recent call last):\n"
            '  File "/workspace/train.py", line 276, in main\n'
            "    assert dtype == info.dtype\n"
            "AssertionError",
        ),
        knowledge="pytorch/pytorch#156166, NVlabs/COAT#20, bitsandbytes-foundation/bitsandbytes#1732",
    ),
    Failure(
        id="checkpoints.optimizer_state_missing",
        kind=LogClass.CRASHED,
        what="A checkpoint has no state of the optimizer, or not in the form that the optimizer reads.",
        signs=(
            sign(
                "KeyError",
                r"KeyError: '(?P<key>state|optimizer|optimizer_states|exp_avg|param_groups|optimizer_state_dict|lr_scheduler)'",
            ),
        ),
        when=lambda case: any(_LOADS.search(call) for event in case.events for call in event.calls),
        headline=lambda case: (
            f"The checkpoint has no '{case.given.get('key', 'state')}'"
            + (" for the schedule" if case.given.get("key") == "lr_scheduler" else " for the optimizer")
        ),
        why="it was saved without the optimizer, by another version or another optimizer, or in a form that this one"
        " does not read",
        next=(
            "load the model only and start the optimizer fresh (Megatron: --no-load-optim --no-load-rng or --finetune; others: do not pass"
            " the optimizer)",
            "or resume with the code, the optimizer and the checkpoint format with which it was saved",
            "if it was saved so by the same code, this is a fault of that code for this optimizer: report it",
        ),
        examples=(
            Example(
                'Traceback (most recent call last):\n  File "/opt/app/train.py", line 354, in <module>\n    pretrain()\n'
                '  File "/opt/megatron-lm/megatron/training/checkpointing.py", line 1818, in load_checkpoint\n'
                "    optimizer.load_state_dict(state_dict['optimizer'])\n"
                '  File "/opt/megatron-lm/megatron/core/optimizer/optimizer.py", line 1240, in load_state_dict\n'
                "    state_dict['state']\nKeyError: 'state'",
                source="NVIDIA/Megatron-LM#3885",
                says=("--no-load-optim", "'state'"),
            ),
        ),
        near_misses=("KeyError: 'state'",),
        knowledge="Megatron-LM: arguments of checkpointing",
    ),
    Failure(
        id="checkpoints.deepspeed_world_size",
        kind=LogClass.CRASHED,
        what="A ZeRO checkpoint is loaded by another number of ranks than saved it.",
        signs=(
            sign(
                "DP world size of",
                r"checkpoint being loaded used a DP world size of (?P<saved>\d+) but the current world size is (?P<now>\d+)",
            ),
        ),
        headline="The ZeRO checkpoint was saved by {saved} ranks and is loaded by {now}",
        why="each rank saved its own part of the optimizer's state, and ZeRO does not split it anew",
        next=(
            "resume with {saved} ranks",
            "or convert it to a universal checkpoint (deepspeed/checkpoint/ds_to_universal.py) and set load_universal",
            "or take only the weights (zero_to_fp32.py, load_optimizer_states=False) and start the optimizer fresh",
        ),
        examples=(
            Example(
                "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 32 but the current world"
                " size is 128. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported.",
                source="deepspeedai/DeepSpeed#3810",
                says=("32 ranks", "universal"),
            ),
        ),
        event=EventKind.KNOWN,
        knowledge="DeepSpeed: universal checkpointing",
    ),
    Failure(
        id="checkpoints.dcp_missing_key",
        kind=LogClass.CRASHED,
        what="A distributed checkpoint does not have a key that the model asks for.",
        signs=(
            sign(
                "Missing key in checkpoint state_dict",
                r"Missing key in checkpoint state_dict: (?P<key>[\w./]{1,200}?)\.?(?=\s|$)",
            ),
        ),
        headline=lambda case: (
            f"The distributed checkpoint has no {key if len(key := case.given['key']) <= 45 else '…' + key[-43:]}"
        ),
        why=lambda case: (
            "_extra_state is written by Transformer Engine's layers: the checkpoint was saved without it, or by another version"
            if "_extra_state" in case.given["key"]
            else "torch.distributed.checkpoint loads exactly the keys of the state that it is given; the model, a prefix, or what is saved"
            " with it (optimizer, scheduler) is another one"
        ),
        next=(
            Advice(
                "build the model as it was saved (the same Transformer Engine settings and version), or leave _extra_state out"
                " (Megatron: --dist-ckpt-strictness log_unexpected)",
                when=lambda case: "_extra_state" in case.given["key"],
            ),
            "list what is in it: FileSystemReader(PATH).read_metadata().state_dict_metadata.keys(), and ask for these keys only",
            "to let keys that are missing keep their values: DefaultLoadPlanner(allow_partial_load=True)",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Missing key in checkpoint state_dict: model.2.weight.",
                source="pytorch/pytorch#148252",
                says=("model.2.weight", "allow_partial_load"),
            ),
            Example(
                "RuntimeError: Missing key in checkpoint state_dict:"
                " module.decoder.layers.self_attention.q_layernorm._extra_state/shard_0_16.",
                source="NVIDIA/cosmos#69",
                says=("_extra_state", "Transformer Engine"),
            ),
        ),
        knowledge="pytorch/pytorch#148252; torch.distributed.checkpoint",
    ),
    Failure(
        id="checkpoints.dcp_unfinished",
        kind=LogClass.CRASHED,
        what="A distributed checkpoint has no metadata, so its save did not end.",
        signs=(sign(".metadata", r"No such file or directory: '(?P<path>[^'\n]{1,300}?)/?\.metadata'"),),
        headline=lambda case: f"The distributed checkpoint has no .metadata in {case.given['path'][-42:]}",
        why="rank 0 writes .metadata last, when all ranks have written their parts: most often the save was cut off,"
        " each node wrote to its own disk, or the path is that of another folder",
        next=(
            "look for it on the node of rank 0: if it is there, the nodes do not share that folder; save to a shared file system, or copy the"
            " parts of all nodes together",
            "else the save was cut off: resume from the checkpoint before it, and delete this one",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Traceback (most recent call last): (RANK 0)\n"
                '  File ".../torch/distributed/checkpoint/utils.py", line 171, in reduce_scatter\n'
                "    local_data = map_fun()\n"
                '  File ".../torch/distributed/checkpoint/filesystem.py", line 511, in read_metadata\n'
                '    with (self.path / ".metadata").open("rb") as metadata_file:\n'
                "FileNotFoundError: [Errno 2] No such file or directory: 'completed-model/checkpoint-600/pytorch_model_0/.metadata'",
                source="axolotl-ai-cloud/axolotl#554",
                says=("node of rank 0",),
            ),
        ),
        knowledge="torch.distributed.checkpoint: FileSystemWriter",
    ),
    Failure(
        id="checkpoints.global_shape",
        kind=LogClass.CRASHED,
        what="A parameter of a distributed checkpoint of Megatron has another shape than in the model.",
        signs=(
            sign(
                "Global shape mismatch",
                r"Global shape mismatch for loaded \((?P<saved>[^\n]{1,60}?)\) and expected \((?P<model>[^\n]{1,60}?)\) tensor for key (?P<key>[\w./]{1,160})",
            ),
        ),
        headline=lambda case: (
            f"{key if len(key := case.given['key']) <= 34 else '…' + key[-32:]} has another shape in the checkpoint than in the model"
        ),
        why=lambda case: (
            f"{_numbers(case.given['saved'])} was saved and {_numbers(case.given['model'])}"
            " is expected: the model is built with other sizes"
            + (
                ", or its vocabulary was padded for another number of tensor-parallel ranks"
                if _VOCABULARY.search(case.given["key"]) and "position" not in case.given["key"]
                else ""
            )
        ),
        next=(
            Advice(
                "set the number of positions that was saved (max_position_embeddings, --max-position-embeddings)",
                when=lambda case: "position" in case.given["key"],
            ),
            "build the model with the arguments of the checkpoint (--use-checkpoint-args)",
            Advice(
                "for the vocabulary set --make-vocab-size-divisible-by so that the padded size is the same (it is multiplied by the"
                " tensor-parallel size)",
                when=lambda case: bool(_VOCABULARY.search(case.given["key"])) and "position" not in case.given["key"],
            ),
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                '[rank3]:   File "/opt/megatron-lm/megatron/core/dist_checkpointing/strategies/tensorstore.py", line 112, in _load_regular_chunk\n'
                "[rank3]:     raise CheckpointingException(_msg)\n"
                "[rank3]: megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded ((4096, 68)) and expected ((4096, 72)) tensor for key module.x_embedder.proj.1.weight",
                source="NVIDIA/cosmos#145",
                says=("use-checkpoint-args",),
            ),
            Example(
                "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded ((1024, 768)) and expected ((512, 768)) tensor for key model.embedding.position_embeddings.weight",
                source="NVIDIA-NeMo/Speech#10715",
                says=("number of positions",),
            ),
            Example(
                "megatron.core.dist_checkpointing.core.CheckpointingException: Global shape mismatch for loaded (torch.Size([128512, 4096])) and"
                " expected ((128256, 4096)) tensor for key embedding.word_embeddings.weight",
                says=("word_embeddings", "make-vocab-size-divisible-by"),
            ),
        ),
        knowledge="Megatron-LM: dist_checkpointing",
    ),
    Failure(
        id="checkpoints.inner_key",
        kind=LogClass.CRASHED,
        what="A checkpoint does not have the entry from which the weights are read.",
        signs=(
            sign(
                "KeyError",
                r"KeyError: '(?P<key>state_dict|model|model_state_dict|net|network|params|ema|epoch|args|hyper_parameters|weights?"
                r"|pytorch-lightning_version|(?:optimi[sz]er|lr_scheduler|scheduler)\w{0,12})'",
            ),
        ),
        when=lambda case: (
            any(
                _LOADS.search(call)
                or (
                    re.search(r"(?:checkpoint|ckpt|load_model|resume)[^/\\]*$", call)
                    and "torch/utils/checkpoint.py" not in call
                )
                for call in case.lead.calls
            )
            or case.printed(r"torch\.load|load_state_dict|(?:checkpoint|ckpt|state)\w{0,20}\[['\"]")
        ),
        headline="The checkpoint has no entry '{key}'",
        why=lambda case: (
            "most often the file holds weights and not the state of the training"
            if _is_training_state(case)
            else "some programs save the bare weights, others a dictionary with the weights under 'model' or 'state_dict'"
        ),
        next=(
            lambda case: (
                "take the checkpoint that the training itself saved (its optimizer may lie in a file of its own), or start with a new"
                " optimizer and skip that line"
                if _is_training_state(case)
                else "print(list(torch.load(path, map_location='cpu'))[:10]): if these are names of layers, load it directly; else use the entry"
                f" that holds them (state.get('{case.given['key']}', state))"
            ),
            Advice(
                "or take the file that the program's own training saved, not exported or downloaded weights",
                when=lambda case: not _is_training_state(case),
            ),
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 281, in <module>\n'
                "    main()\n"
                '  File "train.py", line 67, in main\n'
                "    main_worker(configs.gpu_idx, configs)\n"
                '  File "train.py", line 132, in main_worker\n'
                "    optimizer.load_state_dict(utils_state_dict['optimizer'])\n"
                "KeyError: 'optimizer'",
                source="maudzung/SFA3D#48",
                says=("skip that line",),
            ),
            Example(
                "    scheduler=scheduler, pretrained=pretrained, model=model, criterion=criterion, batch_scheduler=batch_scheduler)\n"
                '  File "E:\\Pythonfiles\\hyperseg-main\\hyperseg\\train.py", line 227, in main\n'
                '    optimizer.load_state_dict(checkpoint["optimizer"])\n'
                "KeyError: 'optimizer'",
                source="YuvalNirkin/hyperseg#34",
            ),
            Example(
                '  File "test_models.py", line 142, in <module>\n'
                "    checkpoint = checkpoint['state_dict']\n"
                "KeyError: 'state_dict'",
                source="mit-han-lab/temporal-shift-module#81",
                says=("state.get('state_dict', state)",),
            ),
            Example(
                "    self.net.load_state_dict(latest_state['net'])\nKeyError: 'net'",
                source="gjy3035/C-3-Framework#58",
                says=("state.get('net', state)",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "train.py", line 281, in <module>\n'
                "    main()\n"
                '  File "train.py", line 67, in main\n'
                "    main_worker(configs.gpu_idx, configs)\n"
                '  File "train.py", line 132, in main_worker\n'
                "    optimizer.load_state_dict(utils_state_dict['optimizer'])\n"
                "KeyError: 'optimizer'",
                source="maudzung/SFA3D#48",
                says=("new optimizer",),
            ),
        ),
        near_misses=(
            "KeyError: 'labels'",
            "Traceback (most recent call last):\n"
            '  File "/w/train.py", line 9, in main\n'
            "    loss = net(x)\n"
            '  File "/e/lib/python3.11/site-packages/torch/utils/checkpoint.py", line 451, in checkpoint\n'
            "    ret = function(*args)\n  File \"/w/net.py\", line 5, in block\n    cfg['model']\nKeyError: 'model'",
        ),
        knowledge="PyTorch: saving and loading models",
    ),
    Failure(
        id="checkpoints.missing_entry",
        kind=LogClass.CRASHED,
        what="A checkpoint lacks an entry that the code which loads it asks for.",
        signs=(sign("KeyError", r"\AKeyError: '(?P<key>[\w.-]{1,60})'"),),
        when=lambda case: case.printed(
            rf"(?i)(?:check_?point|ckpt|state_?dict|\bstate|resume|loaded|saved|pretrained)\w{{0,30}}\[(?:f?['\"])"
            rf"{re.escape(case.lead.headline.partition(chr(39))[2].rstrip(chr(39)))}['\"]\]"
        ),
        headline="The checkpoint has no entry '{key}'",
        why="the file was written without it, such as weights that were published without the state of the optimizer, or by other"
        " code or another version; the file need not be damaged",
        next=(
            "look what it holds: print(torch.load(PATH, map_location='cpu').keys()). If it is a file of weights only, load only"
            " these and start the rest anew: if '{key}' in checkpoint: ...; or leave out the resume flag",
            "or resume from a checkpoint that this training itself has saved",
        ),
        check="the keys of the file beside the line of the traceback",
        examples=(
            Example(
                '  File "train.py", line 110, in load_checkpoint\n'
                "    iteration = checkpoint_dict['iteration']\n"
                "KeyError: 'iteration'",
                source="NVIDIA/flowtron#116",
                says=(
                    "'iteration'",
                    "keys()",
                ),
            ),
        ),
        near_misses=(
            'Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n    labels = batch["labels"]\n'
            "KeyError: 'labels'",
        ),
        knowledge="karpathy/llama2.c#148",
    ),
    Failure(
        id="checkpoints.state_instead_of_model",
        kind=LogClass.CRASHED,
        what="What was loaded is a state_dict and not a model, or the reverse.",
        signs=(
            sign("has no attribute", r"'(?:collections\.)?OrderedDict' object has no attribute '(?P<name>\w{1,40})'"),
            sign(
                "Expected state_dict to be dict-like",
                r"Expected state_dict to be dict-like, got <class '(?P<type>[\w.]{1,100})'>",
            ),
        ),
        headline=lambda case: (
            f"The file holds weights (a state_dict), not a model: it has no {case.given['name']}()"
            if case.given.get("name")
            else f"The file holds a whole object ({case.given['type'].rpartition('.')[2][:26]}), not a state_dict"
        ),
        why="torch.save stores what it is given: model.state_dict() is a dictionary of tensors, model is the whole object",
        next=(
            lambda case: (
                "build the model first, then model.load_state_dict(torch.load(path, map_location='cpu'))"
                if case.given.get("name")
                else "take its weights: torch.load(path, weights_only=False).state_dict()"
            ),
        ),
        examples=(
            Example(
                '  File "/usr/local/lib/python3.5/dist-packages/torch/jit/__init__.py", line 259, in _unique_state_dict\n'
                "    state_dict = module.state_dict(keep_vars=keep_vars)\n"
                "AttributeError: 'collections.OrderedDict' object has no attribute 'state_dict'",
                source="microsoft/MMdnn#604",
                says=("load_state_dict",),
            ),
        ),
        knowledge="PyTorch: saving and loading models",
        when=lambda case: (
            not case.given.get("name")
            or case.given["name"]
            in {
                "eval",
                "train",
                "to",
                "cuda",
                "cpu",
                "half",
                "float",
                "parameters",
                "named_parameters",
                "state_dict",
                "load_state_dict",
                "forward",
                "module",
                "modules",
                "zero_grad",
                "requires_grad_",
                "model",
                "generate",
                "predict",
                "config",
            }
        ),
        near_misses=("AttributeError: 'collections.OrderedDict' object has no attribute 'log_softmax'",),
    ),
    Failure(
        id="checkpoints.shared_tensors",
        kind=LogClass.CRASHED,
        what="Tensors that share memory, or that are not contiguous, cannot be saved as safetensors.",
        signs=(
            sign("share memory", r"[Ss]ome tensors share memory"),
            sign("non contiguous tensor", r"trying to save a non contiguous tensor: `(?P<name>[^`\n]{1,120})`"),
        ),
        headline=lambda case: (
            "safetensors cannot save tensors that share memory, such as tied weights"
            if "share memory" in text_of(case.lead)
            else f"safetensors cannot save a tensor that is not contiguous: {case.given['name'][-26:]}"
        ),
        why="the format holds each tensor once and in one piece",
        next=(
            Advice(
                "make them contiguous before the save: for p in model.parameters(): p.data = p.data.contiguous(); or"
                " update transformers, whose newer versions do it",
                when=lambda case: "share memory" not in text_of(case.lead),
            ),
            Advice(
                "save by model.save_pretrained(..., safe_serialization=True), which knows tied weights, or safetensors.torch.save_model(model,"
                " path)",
                when=lambda case: "share memory" in text_of(case.lead),
            ),
            Advice(
                "if the list names nearly all parameters, they are no tied weights but views of one buffer, or hold no data"
                " (ZeRO-3, FSDP, the meta device): gather them first, by the save of the trainer that wrapped the model",
                when=lambda case: "share memory" in text_of(case.lead),
            ),
            "or write no safetensors: save_safetensors=False in TrainingArguments, safe_serialization=False; a plain dictionary can be cloned:"
            " dict((k, v.clone().contiguous()) for k, v in state.items())",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/mnt/data/curiosity_redteam/ppo_gpt2_gpt2_imdb_toxicity_response.py", line 196, in <module>\n'
                "    main(hparams)\n"
                '  File "/mnt/data/curiosity_redteam/custom_trlx/trlx/trainer/accelerate_base_trainer.py", line 314, in save\n'
                "    self.accelerator.save_state(dst_dir, **kwargs)\n"
                "RuntimeError: \n"
                "            Some tensors share memory, this will lead to duplicate memory on disk and potential differences when loading them again: [{'base_model.lm_head.weight', 'base_model.transformer.wte.weight'}].\n"
                "            A potential way to correctly save your model is to use `save_model`.\n"
                "            More information at https://huggingface.co/docs/safetensors/torch_shared_tensors",
                source="Improbable-AI/curiosity_redteam#6",
                says=(
                    "save_model",
                    "tied",
                ),
            ),
            Example(
                "ValueError: You are trying to save a non contiguous tensor: `encoder.layer.0.attention.self.query.weight` which is not allowed. It either means you are trying to save tensors which are reference of each other in which case it's recommended to save only the full tensors, and reslice at load time, or simply call `.contiguous()` on your tensor to pack it before saving.",
                source="aphp/edsnlp#317",
                says=("contiguous",),
            ),
        ),
        knowledge="safetensors: torch shared tensors",
    ),
    Failure(
        id="checkpoints.rename_race",
        kind=LogClass.CRASHED,
        what="A folder of a checkpoint was gone or not empty when it was renamed or removed, most often by several ranks.",
        signs=(
            sign("tmp-checkpoint-", r"No such file or directory: '[^'\n]{0,300}tmp-checkpoint-\w+[/\w.]{0,40}'"),
            sign("Directory not empty", r"\[Errno 39\] Directory not empty: '[^'\n]{0,300}checkpoint"),
        ),
        headline=lambda case: (
            "A checkpoint folder could not be removed or replaced: it was not empty"
            if "not empty" in text_of(case.lead)
            else "A temporary checkpoint folder was gone: most often several ranks renamed it"
        ),
        why="most often several processes do the same work on one folder: all ranks, or the first one of each node on"
        " a file system that they share; NFS also keeps files there that are still open",
        next=(
            "update transformers (some versions had this fault) or the program's own Trainer, and let one process do"
            " it: save_on_each_node=False",
            "the checkpoint itself is complete in most cases: check the folder, and resume from it",
        ),
        examples=(
            Example(
                '  File "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", line 2279, in _maybe_log_save_evaluate\n'
                "    self._save_checkpoint(model, trial, metrics=metrics)\n"
                '  File "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", line 2395, in _save_checkpoint\n'
                "    os.rename(staging_output_dir, output_dir)\n"
                "FileNotFoundError: [Errno 2] No such file or directory: 'model/tmp-checkpoint-49' -> 'model/checkpoint-49'",
                source="axolotl-ai-cloud/axolotl#948",
                says=("save_on_each_node=False",),
            ),
            Example(
                "[rank2]: Traceback (most recent call last):\n"
                '[rank2]:   File "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", line 3157, in _save_checkpoint\n'
                "[rank2]:     os.renames(output_dir, checkpoint_dir)\n"
                '[rank2]:   File "/opt/conda/lib/python3.10/os.py", line 272, in renames\n'
                "[rank2]:     rename(old, new)\n"
                "[rank2]: OSError: [Errno 39] Directory not empty: '/home/user/results/tmp-checkpoint-s0yubqtr' -> '/home/user/results/checkpoint-50'\n"
                "\n"
                "[rank2]: During handling of the above exception, another exception occurred:",
                source="FanqingM/MM-Eureka-V0#8",
                says=("update transformers",),
            ),
            Example(
                '  File "/usr/local/lib/python3.9/dist-packages/transformers/trainer.py", line 2423, in _maybe_log_save_evaluate\n'
                "    self._save_checkpoint(model, trial, metrics=metrics)\n"
                '  File "/usr/local/lib/python3.9/dist-packages/transformers/trainer.py", line 2555, in _save_checkpoint\n'
                "    shutil.rmtree(staging_output_dir)\n"
                '  File "/usr/lib/python3.9/shutil.py", line 720, in rmtree\n'
                "    os.rmdir(path)\n"
                "FileNotFoundError: [Errno 2] No such file or directory: '/checkpoints_tmp/tmp-checkpoint-1'",
                source="FlagOpen/FlagEmbedding#584",
                says=("save_on_each_node=False",),
            ),
        ),
        knowledge="huggingface/transformers#27925",
    ),
    Failure(
        id="checkpoints.no_weights",
        kind=LogClass.CRASHED,
        what="A folder or a repository has no weights that can be loaded.",
        signs=(
            sign(
                "no file named",
                r"no file named [\w.,\- ]{0,200}?(?:model\.safetensors|pytorch_model\.bin)[\s\S]{0,200}? (?:found )?in (?:directory\s{1,4})?(?!directory)(?P<path>\S{1,200}?)\.?(?=\s|$)",
            ),
            sign(
                "does not appear to have a file named",
                r"(?P<path>\S{1,200}) does not appear to have (?:a file|files) named [^\n]{0,40}?(?:pytorch_model|model\.safetensors|model-0)",
            ),
        ),
        headline=lambda case: (
            f"No weights in {path if len(path := case.given['path'].strip(chr(39))) <= 60 else '…' + path[-58:]}"
        ),
        why="the folder holds something else: an adapter, shards of DeepSpeed or FSDP, weights in another format, an unfinished save",
        next=(
            "look into it (ls): for adapter_config.json load the base model and PeftModel.from_pretrained (LLaVA: --model-base); for global_stepN"
            " run zero_to_fp32.py; for FSDP shards run accelerate merge-weights",
            "consolidated.00.pth is Meta's format: convert it (convert_llama_weights_to_hf.py) or download the repository for transformers;"
            " several model-0000N files need model.safetensors.index.json; if it is empty, the save did not end or the path is wrong",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "test.py", line 347, in <module>\n'
                "    main()\n"
                '  File "./llm-cxr/training/generate.py", line 57, in load_model_tokenizer_for_generate_separate\n'
                "    model = AutoModelForCausalLM.from_pretrained(\n"
                '  File "../transformers/modeling_utils.py", line 2405, in from_pretrained\n'
                "    raise EnvironmentError(\n"
                "OSError: Error no file named pytorch_model.bin, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory \n"
                " ./checkpoints/llmcxr_origin_report__2023-06-19_00-13-51.",
                source="hyn2028/llm-cxr#5",
                says=(
                    "zero_to_fp32.py",
                    "llmcxr_origin",
                ),
            ),
            Example(
                "OSError: Error no file named pytorch_model.bin, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory /home/LLaVA/llava-v1.5-13b-lora.",
                source="haotian-liu/LLaVA#900",
                says=("--model-base",),
            ),
            Example(
                "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5, model.ckpt.index or flax_model.msgpack found in directory /home/user/.llama/checkpoints/Llama3.2-1B-Instruct.",
                source="meta-llama/llama-models#159",
                says=("convert_llama_weights_to_hf",),
            ),
        ),
        knowledge="transformers: PreTrainedModel.from_pretrained",
    ),
    Failure(
        id="checkpoints.deepspeed_no_files",
        kind=LogClass.CRASHED,
        what="DeepSpeed finds no files of model states in the folder that it is to load.",
        signs=(sign("AssertionError", r"^(?:\S+\s)?AssertionError:?\s*$"),),
        when=lambda case: (
            case.called(r"state_dict_factory\.py:\d+:check_ckpt_list")
            or case.printed(r"assert len\(self\.ckpt_list\) > 0")
        ),
        headline="DeepSpeed finds no model states in the folder of the checkpoint",
        why="it looks for files mp_rank_*_model_states.pt below the folder and the tag in the file `latest`, and there are none: the"
        " save was not finished, was pruned, or another strategy wrote it",
        next=(
            "list the folder (find PATH -name '*model_states.pt'), and resume from a step that has them; the file `latest` must name an"
            " existing subfolder",
            "without such files load the weights instead (model.safetensors, adapter_model.safetensors) and start a new run",
        ),
        examples=(
            Example(
                '[rank0]:   File "/opt/lib/python3.10/site-packages/deepspeed/runtime/state_dict_factory.py", line 191, in check_ckpt_list\n'
                "[rank0]:     assert len(self.ckpt_list) > 0\n"
                "[rank0]: AssertionError",
                source="allenai/open-instruct#330",
                says=("model_states.pt",),
            ),
        ),
        near_misses=("AssertionError",),
        knowledge="DeepSpeed's runtime/state_dict_factory.py",
    ),
    Failure(
        id="checkpoints.no_latest",
        kind=LogClass.CRASHED,
        what="A run is to be resumed, and there is no checkpoint in the folder.",
        signs=(
            sign(
                "No valid checkpoint found in output directory",
                r"No valid checkpoint found in output directory \((?P<path>[^)]{1,200})\)",
            ),
            sign("valid checkpoint at", r"Can't find a valid checkpoint at (?P<path>\S{1,200})"),
            sign("to find latest file at", r"[Uu]nable to find latest file at (?P<path>\S{1,200}?)(?:/latest)?,? "),
        ),
        headline=lambda case: (
            f"Nothing to resume from was found in {path if len(path := case.given['path']) <= 50 else '…' + path[-48:]}"
        ),
        why=lambda case: (
            "its files are not those that the program looks for: none was completed there yet, it has only weights (save_only_model), it"
            " was saved in another form (FSDP or DeepSpeed shards), or the path is another one"
            + (
                "; or it has only a LoRA adapter, and the script resumes a model without one"
                if "valid checkpoint at" in case.lead.message
                else ""
            )
        ),
        next=(
            Advice(
                "a LoRA run whose folder has adapter_model.safetensors: make the PeftModel (get_peft_model with the same LoraConfig)"
                " before trainer.train(resume_from_checkpoint=...), and update transformers",
                when=lambda case: "valid checkpoint at" in case.lead.message,
            ),
            "list the folder: a run of DeepSpeed resumes from global_stepN with the file `latest`, the Trainer from optimizer.pt beside"
            " trainer_state.json; take a checkpoint-N that has them",
            "if it has only weights, load them as the model (model_name_or_path) and start without resume_from_checkpoint; save the next with"
            " save_only_model=False",
            "if it has a folder pytorch_model_fsdp_0 (FSDP's SHARDED_STATE_DICT): update transformers and accelerate,"
            " which newer versions read, or save with fsdp_state_dict_type FULL_STATE_DICT",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ValueError: Can't find a valid checkpoint at /user/models/checkpoints/qwen2_vl-7b/sft_v3_exp9/checkpoint-4016",
                source="hiyouga/LlamaFactory#7614",
                says=("save_only_model",),
            ),
            Example(
                "[2025-08-19 23:19:36,234] [WARNING] [engine.py:2979:load_checkpoint] Unable to find latest file at /workspace/diffusion-pipe/output/20250819_21-21-13/latest, if trying to load latest checkpoint please ensure this file exists or pass an explicit checkpoint tag when loading a checkpoint.",
                source="tdrussell/diffusion-pipe#387",
                says=("20250819_21-21-13",),
            ),
            Example(
                "ValueError: No valid checkpoint found in output directory (out/llama)",
                says=("out/llama", "checkpoint-N"),
            ),
        ),
        knowledge="transformers: Trainer.train(resume_from_checkpoint=)",
    ),
)
