"""Measure how many step logs of other trainers are read correctly: steps, losses, times, tokens and memory.

    python -m benchmarks.step_logs.formats [--part tuned|kept|all] [NAME ...]

Each case writes a file as a trainer would, from known numbers, and compares them with what `analyzers.steps` reads from
it. The formats follow the trainers' published sources; files that real packages wrote are in
`tests/fixtures/other_trainers` and are cases as well. A third of the cases, selected by a hash of the name, is kept
back: no rule is tuned on it (`--part kept`).
"""

import argparse
import gzip
import hashlib
import json
import math
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "fixtures" / "other_trainers"
GIB = 1 << 30
Series = dict[str, list[float]]
MEASURES = ("loss", "grad_norm", "learning_rate", "dur_s", "tokens_per_s", "memory_gib")


@dataclass
class Truth:
    """The values that a reader must return, by measure and step; `rejected`: the file is not a step log."""

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=lambda: [0])
    rejected: bool = False
    column_map: tuple[str, ...] = ()


@dataclass
class Run:
    """Numbers of a training run, one per logged step."""

    steps: list[int]
    loss: list[float]
    lr: list[float]
    gnorm: list[float]
    time_s: list[float]
    tps: list[float]
    gib: list[float]

    @classmethod
    def made(cls, name: str, count: int = 40, every: int = 1, first: int | None = None) -> "Run":
        chance = random.Random(name)
        first = every if first is None else first
        return cls(
            [first + every * n for n in range(count)],
            [8 * (n + 1) ** -0.3 * (1 + 0.02 * chance.gauss(0, 1)) + 1 for n in range(count)],
            [3e-4 * min(1, (n + 1) / 10) for n in range(count)],
            [1 + chance.random() for _ in range(count)],
            [0.4 + 0.02 * chance.random() for _ in range(count)],
            [20_000 + 500 * chance.random() for _ in range(count)],
            [31.5 + n / 100 for n in range(count)],
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row per step, with the values that templates use."""
        for n, step in enumerate(self.steps):
            seconds = int(1000 + sum(self.time_s[: n + 1]))
            yield {
                "n": n, "step": step, "loss": self.loss[n], "lr": self.lr[n], "gnorm": self.gnorm[n],
                "s": self.time_s[n], "ms": 1e3 * self.time_s[n], "tps": self.tps[n], "gib": self.gib[n],
                "mib": 1024 * self.gib[n], "bytes": round(GIB * self.gib[n]), "epoch": step / 1000,
                "clock": f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}", "total": 10_000,
            }  # fmt: skip

    def truth(self, *measures: str, **more: Any) -> Truth:
        """Return the values of these measures that must be read."""
        known = dict(zip(MEASURES, (self.loss, self.gnorm, self.lr, self.time_s, self.tps, self.gib), strict=True))
        values = {name: dict(zip(self.steps, known[name], strict=True)) for name in measures}
        return Truth(values, self.steps, **more)


Case = Callable[[Path], tuple[Path, Truth]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


def template(name: str, file: str, line: str, measures: str, **options: Any) -> None:
    """Register a case whose file has a line from this template for each step; `around` adds lines before it."""
    every, first = options.pop("every", 1), options.pop("first", None)
    head, before, tail, newline = (options.pop(key, "") for key in ("head", "before", "tail", "newline"))

    def write(folder: Path) -> tuple[Path, Truth]:
        made = Run.made(name, every=every, first=first)
        newline_ = newline or "\n"
        parts = [head]
        for row in made.rows():
            parts.append(before.format(**row) if row["n"] % 10 == 9 else "")
            parts.append(line.format(**row) + newline_)
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join([*parts, tail]).encode())
        return path, made.truth(*measures.split(), **options)

    CASES[name] = write


# Hugging Face and its relatives
V5 = "{{'loss': '{loss:.4g}', 'grad_norm': '{gnorm:.4g}', 'learning_rate': '{lr:.4g}', 'epoch': '{epoch:.4g}'}}"
V4 = "{{'loss': {loss:.4f}, 'grad_norm': {gnorm}, 'learning_rate': {lr}, 'epoch': {epoch:.2f}}}"
BAR = "\r  1%|1         | {step}/10000 [00:05<1:23:20,  2.00it/s]"
HF_EVAL = "{{'eval_loss': 9.99, 'eval_runtime': 1.2, 'eval_samples_per_second': 80.1, 'epoch': {epoch:.2f}}}\n"
HF_END = "{'train_runtime': 100.2, 'train_samples_per_second': 3.1, 'train_loss': 7.77, 'epoch': 1.0}\n"
template("hf_console_v5_bar", "train.log", BAR + " " * 20 + "\r" + " " * 60 + "\r" + V5, "loss grad_norm learning_rate",
         every=10, before=HF_EVAL, tail=HF_END)  # fmt: skip
template("hf_console_v4_bar", "slurm-1.out", BAR + "\n" + V4, "loss grad_norm learning_rate", every=10, tail=HF_END)
template("hf_console_v4_no_bar", "out.txt", V4, "loss grad_norm learning_rate", before=HF_EVAL, tail=HF_END)
template("hf_console_v5_no_bar", "out.log", V5, "loss grad_norm learning_rate", tail=HF_END)
template("llamafactory_jsonl", "trainer_log.jsonl",
         '{{"current_steps": {step}, "total_steps": {total}, "loss": {loss}, "lr": {lr}, "epoch": {epoch},'
         ' "percentage": 0.6, "elapsed_time": "0:00:29", "remaining_time": "1:00:00"}}',
         "loss learning_rate", every=10)  # fmt: skip
template("trl_console", "grpo.log",
         "{{'loss': {loss}, 'grad_norm': {gnorm}, 'learning_rate': {lr}, 'num_tokens': 1024.0, 'completions/mean_length':"
         " 12.5, 'rewards/format/mean': 0.25, 'reward': 0.5, 'kl': 0.01, 'epoch': {epoch}}}",
         "loss grad_norm learning_rate")  # fmt: skip


# Karpathy's trainers
NANO = "iter {step}: loss {loss:.4f}, time {ms:.2f}ms, mfu 17.85%"
NANO_EVAL = "step {step}: train loss 9.9731, val loss 9.9912\nsaving checkpoint to out\n"
NANO_HEAD = "tokens per iteration will be: 16,384\nfound vocab_size = 65 (inside data/shakespeare_char/meta.pkl)\n"
template("nanogpt", "train.log", NANO, "loss dur_s", every=10, first=0, head=NANO_HEAD)
template("nanogpt_evaluations", "stdout.log", NANO, "loss dur_s", every=10, first=0, head=NANO_HEAD, before=NANO_EVAL)
template("build_nanogpt", "log.out", "step {step:5d} | loss: {loss:.6f} | lr {lr:.4e} | norm: {gnorm:.4f} |"
         " dt: {ms:.2f}ms | tok/sec: {tps:.2f}", "loss learning_rate grad_norm dur_s tokens_per_s", first=0)  # fmt: skip
template("nanochat", "base.log", "step {step:05d}/21400 (0.05%) | loss: {loss:.6f} | lrm: 1.00 | dt: {ms:.2f}ms |"
         " tok/sec: {tps:,.0f} | mfu: 47.10 | total time: 0.10m", "loss dur_s tokens_per_s", first=0)  # fmt: skip
template("llm_c", "main.log", "step {step:4d}/19560 | loss {loss:.6f} (+nanz)| norm {gnorm:.4f} (+nanz)| lr {lr:.2e} |"
         " {ms:.2f} ms | 49.2% bf16 MFU | {tps:.0f} tok/s", "loss grad_norm learning_rate dur_s tokens_per_s")  # fmt: skip
template("modded_nanogpt", "speedrun.txt", "step:{step}/1770 train_loss:{loss:.4f} train_time:12345ms step_avg:{ms:.2f}ms",
         "loss dur_s")  # fmt: skip

# Megatron-LM and what descends from it
MEGATRON = (
    " iteration {step:8d}/   10000 | consumed samples: {step:12d} | elapsed time per iteration (ms): {ms:.1f} |"
    " throughput per GPU (TFLOP/s/GPU): 180.2 | learning rate: {lr:.6E} | global batch size:   512 |"
    " lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {gnorm:.3f} | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
)
MEGATRON_TIMES = (
    "(min, max) time across ranks (ms):\n    forward-backward ...............................: (1176.08, 1180.11)\n"
)
MEGATRON_EVAL = (
    "-" * 80
    + "\n validation loss at iteration {step} | lm loss value: 9.983E+00 | lm loss PPL: 1.7E+04 | \n"
    + "-" * 80
    + "\n"
)
ALL_OF_MEGATRON = "loss learning_rate grad_norm dur_s"
template("megatron", "train.log", " [2026-03-02 {clock}.331120]" + MEGATRON, ALL_OF_MEGATRON, every=10)
template("megatron_old", "log.txt", MEGATRON, ALL_OF_MEGATRON, before=MEGATRON_EVAL, head="setting TP to 1\n" * 50)
template("megatron_timers", "pretrain.out", " [2026-03-02 {clock}]" + MEGATRON + "\n" + MEGATRON_TIMES.strip("\n"),
         ALL_OF_MEGATRON, before=MEGATRON_EVAL)  # fmt: skip
template("megatron_rank_prefix", "main_log.txt", "[default7]:" + MEGATRON, ALL_OF_MEGATRON, ranks=[7])
template("megatron_deepspeed_seconds", "bloom.log",
         "[default3]: iteration {step:8d}/  115311 | consumed samples: {step:12d} | consumed tokens: 32768 |"
         " elapsed time per iteration (s): {s:.3f} | learning rate: {lr:.3E} | global batch size:    16 |"
         " lm loss: {loss:.6E} | grad norm: {gnorm:.3f} | num zeros: 0.0 | number of skipped iterations:   0 |"
         " number of nan iterations:   0 | samples per second: 0.205 | TFLOPs: 1.93 |", ALL_OF_MEGATRON, ranks=[3])  # fmt: skip
template("gpt_neox", "neox.log", " samples/sec: 10.5 | iteration {step:8d}/  320000 | elapsed time per iteration (ms):"
         " {ms:.1f} | learning rate: {lr:.3E} | approx flops per GPU: 50.1TFLOPS | lm_loss: {loss:.6E} | loss scale:"
         " 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |", "loss learning_rate dur_s",
         every=2)  # fmt: skip
template("nemo2", "nemo.log", "Training epoch 0, iteration {step}/9999 | lr: {lr:.4g} | global_batch_size: 512 |"
         " global_step: {step} | peak_memory: {gib} | reduced_train_loss: {loss:.4g} |"
         " train_step_timing in s: {s:.4g} | consumed_samples: 6144", "loss learning_rate dur_s", first=0)  # fmt: skip

# DeepSpeed
DS = "[2026-03-02 {clock},123] [INFO] [logging.py:107:log_dist] [Rank 0] "
DS_STEP = DS + "step={step}, skipped=0, lr=[{lr}], mom=[[0.9, 0.95]]"
DS_SPEED = (
    "[2026-03-02 {clock},124] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}0/global_step={step},"
    " RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.5, MemAllocated=3.2GB, MaxMemAllocated={gib:.2f}GB"
)
template("deepspeed", "ds.log", DS_STEP + "\n" + DS_SPEED, "learning_rate memory_gib", every=10)
template("deepspeed_with_losses", "ds_train.log", "step {step} loss {loss:.4f}\n" + DS_STEP + "\n" + DS_SPEED,
         "loss learning_rate memory_gib", every=10)  # fmt: skip
template("deepspeed_pipeline", "pipe.log",
         DS_STEP + "\nsteps: {step} loss: {loss:.4f} iter time (s): {s:.3f} samples/sec: 62.500",
         "loss dur_s learning_rate", every=10)  # fmt: skip

# Composer and llm-foundry
COMPOSER = (
    "\t Train time/sample: 1024\n\t Train time/token: 2097152\n\t Train memory/current_allocated_mem: 5.7173\n"
    "\t Train memory/peak_allocated_mem: 12.5\n\t Train memory/peak_reserved_mem: {gib:.4f}\n"
    "\t Train trainer/device_train_microbatch_size: 16\n\t Train loss/train/total: {loss:.4f}\n"
    "\t Train metrics/train/LanguageCrossEntropy: 99.9\n\t Train throughput/device/tokens_per_sec: 1.5\n"
    "\t Train throughput/tokens_per_sec: {tps:.4f}\n\t Train time/train: 0.0081\n\t Train time/total: 0.0081\n"
    "\t Train lr-DecoupledAdamW/group0: {lr:.6f}"
)
COMPOSER_EVAL = (
    "[Eval batch=1/10] Eval on eval data\n[Eval batch=10/10] Eval on eval data:\n"
    "\t Eval metrics/eval/LanguageCrossEntropy: 9.9\n"
)
template("composer_batches", "composer.log", "[batch={step}/4800]:\n\t Train time/batch: {n}\n" + COMPOSER, "loss",
         before=COMPOSER_EVAL)  # fmt: skip


@case
def composer_epochs(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("composer_epochs")
    lines = []
    for row in made.rows():
        epoch, batch = row["n"] // 10 + 1, row["n"] % 10 + 1
        lines += [f"[epoch={epoch}][batch={batch}/10]:", f"\t Train time/batch: {row['n']}"]
        lines += [COMPOSER.format(**row)]
    path = folder / "run.log"
    path.write_text("\n".join(lines))
    return path, made.truth("loss")


@case
def composer_file_logger(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("composer_file_logger")
    lines = ["[hyperparameter]: seed: 17 "]
    for row in made.rows():
        lines += [f"[metric][batch={row['step']}]: time/batch: {row['n']} "]
        lines += [f"[metric][batch={row['step']}]: loss/train/total: {row['loss']:.4f} "]
    path = folder / "logs-rank0.txt"
    path.write_text("\n".join(lines) + "\n")
    return path, made.truth("loss")


# torchtune, torchtitan's neighbours, vision
template("torchtune_disk", "log_1700000000.txt", "Step {step} | loss:{loss} lr:{lr} tokens_per_second_per_gpu:{tps}"
         " grad_norm:{gnorm} peak_memory_active:{gib} ", "loss learning_rate tokens_per_s grad_norm")  # fmt: skip
template("torchtune_single_metrics", "log_1700000001.txt", "Step {step} | loss:{loss}\nStep {step} | lr:{lr}",
         "loss learning_rate")  # fmt: skip
template("litgpt_console", "lit.log", "Epoch 1 | iter {step} step {step} | loss train: {loss:.3f}, val: n/a |"
         " iter time: {ms:.2f} ms (step) remaining time: 0:10:00", "loss dur_s")  # fmt: skip
template("litgpt_csv", "metrics.csv", "{epoch},{step},{step},{s},{loss},0.5", "loss dur_s",
         head="epoch,iter,step,iter_time,loss,remaining_time\n")  # fmt: skip
template("mmengine_text", "20230501.log", "2023/05/01 {clock} - mmengine - INFO - Iter(train) [{step:5d}/160000]  base_lr:"
         " 1.0e-04 lr: {lr:.4e}  eta: 13:01:10  time: {s:.4f}  data_time: 0.0070  memory: {mib:.0f}"
         "  loss: {loss:.4f}  decode.loss_ce: 0.1", "loss learning_rate dur_s", every=50)  # fmt: skip
template("mmengine_json", "vis_data/scalars.json", '{{"lr": {lr}, "data_time": 0.007, "loss": {loss}, "decode.loss_ce":'
         ' 0.1, "time": {s}, "iter": {step}, "memory": {mib:.0f}, "step": {step}}}', "loss learning_rate dur_s",
         every=50)  # fmt: skip
template("detectron2_json", "metrics.json", '{{"data_time": 0.01, "iteration": {step}, "loss_box_reg": 0.3, "loss_cls":'
         ' 0.5, "lr": {lr}, "time": {s}, "total_loss": {loss}}}', "loss learning_rate dur_s", every=20)  # fmt: skip
template("detectron2_console", "log.txt", "[09/01 {clock} d2.utils.events]:  eta: 0:10:00  iter: {step}  total_loss:"
         " {loss:.4f}  loss_cls: 1.2  time: {s:.4f}  last_time: 0.5  data_time: 0.0136  lr: {lr:.5g}  max_mem: {mib:.0f}M",
         "loss learning_rate dur_s memory_gib", every=20)  # fmt: skip
template("imagenet_example", "imagenet.log", "Epoch: [0][{step:5d}/50000]\tTime  {s:.3f} (  9.923)\tData  0.001 ( 0.301)\t"
         "Loss {loss:.4e} (7.0e+00)\tAcc@1   0.39 (  0.15)\tAcc@5   0.39 (  0.60)", "loss dur_s", every=10)  # fmt: skip
template(
    "mnist_example", "mnist.out", "Train Epoch: 1 [{step}/60000 (1%)]\tLoss: {loss:.6f}", "loss", every=640, first=0
)
template("tutorial_print", "cifar.out", "[1, {step:5d}] loss: {loss:.3f}", "loss", every=2000)

# fairseq, OLMo, verl
template("fairseq_json", "fairseq.log", '2026-05-01 {clock} | INFO | train_inner | {{"epoch": 1, "update": {epoch},'
         ' "loss": "{loss:.3f}", "ppl": "100.5", "wps": "{tps:.1f}", "ups": "2.5", "wpb": "4096", "num_updates":'
         ' "{step}", "lr": "{lr:.6g}", "gnorm": "{gnorm:.3f}", "train_wall": "12"}}',
         "loss learning_rate grad_norm tokens_per_s", every=100)  # fmt: skip
template("fairseq_simple", "train.log", "2026-05-01 {clock} | INFO | train_inner | epoch 001:    {n} / 3000 loss={loss:.3f},"
         " ppl=99.1, wps={tps:.1f}, ups=2.5, wpb=4096, bsz=16, num_updates={step}, lr={lr:.6g}, gnorm={gnorm:.3f},"
         " train_wall=12, gb_free=10.1, wall=60", "loss learning_rate grad_norm", every=100)  # fmt: skip
template("olmo_console", "olmo.log", "2026-05-01 {clock}.123 n1:0 olmo.train:967 INFO [step={step}/739328,epoch=0]\n"
         "    optim/total_grad_norm={gnorm:.4f}\n    train/CrossEntropyLoss={loss:.4f}\n    train/Perplexity=9,999\n"
         "    throughput/total_tokens=8,388,608\n    throughput/device/tokens_per_second={tps:,.0f}\n"
         "    System/Peak GPU Memory (MB)={mib:,.0f}", "loss grad_norm tokens_per_s")  # fmt: skip
template("verl_console", "verl.log", "(TaskRunner pid=71) step:{step} - global_seqlen/min:1000 - actor/pg_loss:{loss:.5f}"
         " - actor/grad_norm:{gnorm:.5f} - actor/lr:{lr:.3e} - timing_s/gen:0.1 - timing_s/step:{s:.4f} -"
         " perf/throughput:100.1", "grad_norm learning_rate dur_s")  # fmt: skip

# Generic console lines
template(
    "key_value",
    "job.log",
    "INFO:root:step={step} loss={loss:.5f} lr={lr:.3e} step_time={s:.4f}s",
    "loss learning_rate dur_s",
)
template("prefixed_dict", "app.log", "2026-05-01 {clock},001 INFO {{'step': {step}, 'loss': {loss}, 'lr': {lr}}}",
         "loss learning_rate")  # fmt: skip
template("tqdm_postfix", "stderr.log", "\rtraining:  12%|#2   | {step}/2710 [10:10<30:44,  {s:.2f}s/it, loss={loss:.4f}, lr={lr:.2e}]",
         "loss dur_s", newline="", tail="\n")  # fmt: skip
template("lightning_bar", "lightning.log", "\rEpoch 0:  45%|####5    | {step}/270 [00:03<00:04,  3.50it/s, v_num=0, train_loss={loss:.3f}]",
         "loss", newline="", tail="\n")  # fmt: skip
template("json_in_console", "svc.log", '2026-05-01T{clock}Z worker-0 {{"event": "train", "step": {step}, "loss": {loss}}}',
         "loss")  # fmt: skip
template("ranks_in_console", "all.log", "[rank0]:step {step} loss {loss:.4f}\n[rank1]:step {step} loss {loss:.4f}",
         "loss", ranks=[0, 1])  # fmt: skip
template("epoch_step_words", "words.log", "Epoch 1/3, Step {step}/2000, Loss: {loss:.4f}, LR: {lr:.3e}, Time: {ms:.1f} ms",
         "loss learning_rate dur_s")  # fmt: skip


# wandb
@case
def wandb_panel_csv(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("wandb_panel_csv", every=10)
    lines = ['"Step","brisk-sun-3 - train/loss","brisk-sun-3 - train/loss__MIN","brisk-sun-3 - train/loss__MAX"']
    lines += [f'"{row["step"]}","{row["loss"]}","{row["loss"]}","{row["loss"]}"' for row in made.rows()]
    path = folder / "wandb_export_2026-05-01T10_00_00.000+02_00.csv"
    path.write_text("\n".join(lines))
    return path, made.truth("loss")


template("wandb_history_jsonl", "history.jsonl", '{{"_step": {step}, "_runtime": {epoch}, "_timestamp": 17000{step:05d}.5,'
         ' "train/loss": {loss}, "train/grad_norm": {gnorm}, "train/learning_rate": {lr}, "train/epoch": {epoch}}}',
         "loss grad_norm learning_rate", first=0)  # fmt: skip
template("wandb_history_csv", "history.csv", "{n},{step},{epoch},17000{step:05d}.5,{loss},,{gnorm},{lr}\n{n},{step},{epoch},,,9.9,,",
         "loss grad_norm learning_rate",
         head=",_step,_runtime,_timestamp,train/loss,eval/loss,train/grad_norm,train/learning_rate\n")  # fmt: skip

# Generic tables
template("csv_plain", "log.csv", "{step},{loss},{lr}", "loss learning_rate", head="step,loss,lr\n")
template("csv_units_in_names", "perf.csv", "{step},{loss},{ms},{mib},{tps}", "loss dur_s memory_gib tokens_per_s",
         head="iteration,train_loss,step_time_ms,peak_memory_mib,tokens_per_sec\n")  # fmt: skip
template("csv_spaced_names", "spaced.csv", "{step}, {loss}, {s}, {gib}", "loss dur_s memory_gib",
         head="Global Step, Train Loss, Step Time (s), Max GPU Memory (GiB)\n")  # fmt: skip
template(
    "csv_memory_bytes",
    "mem.csv",
    "{step},{loss},{bytes}",
    "loss memory_gib",
    head="step,loss,max_memory_allocated_bytes\n",
)
template("tsv", "progress.tsv", "{step}\t{loss}\t{gnorm}", "loss grad_norm", head="step\tloss\tgrad_norm\n")
template("csv_bom_crlf", "excel.csv", "{step},{loss}", "loss", head="\ufeffStep,Loss\r\n", newline="\r\n")
template("csv_comments", "commented.csv", "{step},{loss}", "loss", head="# run 17\n# host a\nstep,loss\n")
template(
    "tensorboard_csv", "run-tag-loss.csv", "17000{step:05d}.5,{step},{loss}", "loss", head="Wall time,Step,Value\n"
)
template("csv_no_step", "losses.csv", "{loss},{lr}", "loss learning_rate", head="loss,lr\n")
template("keras_csv", "training.csv", "{n},0.5,{loss},9.9", "", head="epoch,accuracy,loss,val_loss\n", first=0)
template("csv_many_columns", "wide.csv", ",".join(["{step}", *["0.5"] * 90, "{loss}"]), "loss",
         head=",".join(["step", *[f"layer{n}/norm" for n in range(90)], "loss"]) + "\n")  # fmt: skip
template(
    "csv_formulas", "formula.csv", "{step},{loss},\"=cmd|' /C calc'!A0\",@SUM(1)", "loss", head="step,loss,note,=1+1\n"
)
template("csv_ranks", "ranks.csv", "0,{step},{loss}\n1,{step},{loss}", "loss", head="rank,step,loss\n", ranks=[0, 1])
template("csv_quoted_thousands", "thousands.csv", '"{step}","{loss}","{tps:,.1f}"', "loss tokens_per_s", head="step,loss,tokens/s\n",
         every=1000)  # fmt: skip
template("jsonl_plain", "metrics.jsonl", '{{"step": {step}, "train_loss": {loss}, "lr": {lr}, "grad_norm": {gnorm}}}',
         "loss learning_rate grad_norm")  # fmt: skip
template("jsonl_nested", "nested.jsonl", '{{"type": "train", "step": {step}, "metrics": {{"loss": {loss}, "optim": {{"lr": {lr}}}}}}}',
         "loss learning_rate")  # fmt: skip
template(
    "jsonl_mapped", "odd.jsonl", '{{"i": {step}, "train/nll": {loss}}}', "loss", column_map=("loss=train/nll", "step=i")
)
template("csv_mapped", "odd.csv", "{step},{loss},{ms}", "loss dur_s", head="tick,objective,took_ms\n",
         column_map=("loss=objective", "step=tick", "step_time=took_ms"))  # fmt: skip


@case
def csv_semicolons_decimal_commas(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("csv_semicolons_decimal_commas")
    rows = (f"{row['step']};{row['loss']:.6f};{row['lr']:.8f}".replace(".", ",") for row in made.rows())
    path = folder / "deutsch.csv"
    path.write_text("\n".join(["Schritt;loss;lr".replace("Schritt", "step"), *rows]))
    return path, made.truth("loss", "learning_rate")


@case
def csv_resumed_repeated_header(folder: Path) -> tuple[Path, Truth]:
    first, again = Run.made("first"), Run.made("again", count=30, first=21)
    lines = ["step,loss"] + [f"{row['step']},{row['loss']}" for row in first.rows()]
    lines += ["step,loss"] + [f"{row['step']},{row['loss']}" for row in again.rows()]
    path = folder / "resumed.csv"
    path.write_text("\n".join(lines))
    loss = dict(zip(first.steps, first.loss, strict=True)) | dict(zip(again.steps, again.loss, strict=True))
    return path, Truth({"loss": loss}, sorted(loss))


@case
def csv_nonfinite(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("csv_nonfinite")
    made.loss[30:] = [math.nan, math.inf, -math.inf] + [math.nan] * 7
    texts = {0: "NaN", 1: "inf", 2: "-Infinity"}
    lines = ["step,loss,lr"]
    lines += [
        f"{r['step']},{r['loss'] if r['n'] < 30 else texts.get(r['n'] - 30, 'nan')},{r['lr']}" for r in made.rows()
    ]
    path = folder / "broken.csv"
    path.write_text("\n".join(lines))
    return path, made.truth("loss", "learning_rate")


@case
def csv_gzip(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("csv_gzip")
    text = "step,loss\n" + "".join(f"{row['step']},{row['loss']}\n" for row in made.rows())
    path = folder / "log.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path, made.truth("loss")


@case
def json_rows(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("json_rows")
    path = folder / "history.json"
    path.write_text(json.dumps([{"step": r["step"], "loss": r["loss"], "lr": r["lr"]} for r in made.rows()], indent=2))
    return path, made.truth("loss", "learning_rate")


@case
def json_columns(folder: Path) -> tuple[Path, Truth]:
    made = Run.made("json_columns")
    path = folder / "history.json"
    path.write_text(json.dumps({"step": made.steps, "loss": made.loss, "grad_norm": made.gnorm}))
    return path, made.truth("loss", "grad_norm")


def recorded(name: str, file: str) -> None:
    """Register a case with a file that a real package wrote; the logged values are in `truth.json` next to it."""

    def find(_: Path) -> tuple[Path, Truth]:
        path = next(RECORDED.glob(f"{name}/{file}"))
        truth = json.loads((RECORDED / name / "truth.json").read_text())
        values = {measure: {int(step): value for step, value in by.items()} for measure, by in truth["values"].items()}
        return path, Truth(values, truth["steps"])

    CASES[f"recorded_{name}"] = find


for name_, file_ in (
    ("hf_state", "trainer_state.json"), ("hf_console", "console.log"), ("hf_console_no_bar", "console.log"),
    ("hf_tensorboard", "events*"), ("lightning_csv", "metrics.csv"), ("lightning_csv_epochs", "metrics.csv"),
    ("lightning_tensorboard", "events*"), ("lightning_console", "console.log"), ("accelerate_jsonl", "metrics.jsonl"),
    ("accelerate_json", "metrics.json"), ("accelerate_tensorboard", "events*"),
):  # fmt: skip
    recorded(name_, file_)

NO_STEP_LOGS = {
    "config.json": '{"hidden_size": 768, "vocab_size": 50257, "steps": 100, "lr": 0.001}',
    "results.json": '{"results": {"arc_easy": {"acc": 0.51}}, "n-shot": {"arc_easy": 0}}',
    "people.csv": "name,age,height\nann,31,1.7\nbob,40,1.8\n",
    "prices.csv": "date,open,close\n2026-01-01,1.5,2.5\n2026-01-02,1.6,2.4\n",
    "data.jsonl": '{"text": "step 1 is a loss for us", "id": 1}\n{"text": "loss", "id": 2}\n',
    "tokenizer.json": '{"version": "1.0", "model": {"type": "BPE", "vocab": {"loss": 1, "step": 2}}}',
    "requirements.txt": "torch==2.13\ntransformers\n",
    "notes.txt": "step 1: install torch\nstep 2: run\nthe loss was 5 points\n",
    "train.py": "for step in range(10):\n    print(f'step {step} loss {loss}')\n",
}


def rejects(file: str, text: str) -> None:
    """Register a case with a file that is not a step log and must not be read as one."""

    def write(folder: Path) -> tuple[Path, Truth]:
        path = folder / file
        path.write_text(text)
        return path, Truth(rejected=True)

    CASES["no_step_log_" + file.replace(".", "_")] = write


for file_, text_ in NO_STEP_LOGS.items():
    rejects(file_, text_)


def is_kept_back(name: str) -> bool:
    """Return whether a case is kept back, so that no rule is tuned on it: a third, by a hash of the name."""
    return hashlib.sha256(name.encode()).digest()[0] % 3 == 0


def wrong(path: Path, truth: Truth) -> str:
    """Return the differences between the values read from a file and the truth; empty if there are none."""
    from analyzers import run, store
    from analyzers.errors import WorkbenchError
    from analyzers.steps import views
    from analyzers.steps.mapping import parsed_map

    options = store.Options(columns=parsed_map(truth.column_map))
    try:
        table = views.series([a for a in run.discover(path).artefacts if a.kind in run.TIMED], options)
    except WorkbenchError as error:
        return "" if truth.rejected else f"{error.message} ({error.hint})"
    if truth.rejected:
        return f"read as {len(table)} steps"
    if sorted(set(table["rank"])) != truth.ranks:
        return f"ranks {sorted(set(table['rank']))}"
    problems = (wrong_rank(table[table["rank"] == rank].set_index("step"), truth) for rank in truth.ranks)
    return next(filter(None, problems), "")


def wrong_rank(own: Any, truth: Truth) -> str:
    """Return the differences in the rows of a rank."""
    import numpy as np

    if own.index.tolist() != truth.steps:
        return f"{len(own)} steps {own.index.tolist()[:4]}..., not {len(truth.steps)} {truth.steps[:4]}..."
    for measure, by_step in truth.values.items():
        column = own["memory_bytes"] / GIB if measure == "memory_gib" else own.get(measure)
        if column is None:
            return f"no {measure}"
        expected = np.array([by_step.get(step, math.nan) for step in truth.steps])
        finite = np.isfinite(expected)
        if not np.allclose(column.to_numpy(dtype=float)[finite], expected[finite], rtol=2e-2, atol=1e-6):
            return f"{measure} {column.to_numpy()[finite][:3]}, not {expected[finite][:3]}"
    return ""


def checked(name: str) -> str:
    """Return what a reader gets wrong in case `name`; empty if it is all right."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return wrong(*CASES[name](Path(folder)))
        except StopIteration:
            return "not recorded here"
        except Exception:  # noqa: BLE001  # a crash is a wrong answer too
            return "crashed: " + traceback.format_exc().strip().splitlines()[-1]


def main() -> int:
    """Print each case and the score of each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tuned", "kept", "all"), default="all")
    parser.add_argument("--scores", action="store_true", help="print the scores only")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    parts = {"tuned": (False,), "kept": (True,), "all": (False, True)}[options.part]
    scores = {False: [0, 0], True: [0, 0]}
    for name in options.names or CASES:
        kept = is_kept_back(name)
        if kept not in parts and not options.names:
            continue
        problem = checked(name)
        scores[kept][0] += not problem
        scores[kept][1] += 1
        if not options.scores:
            print(f"{'kept ' if kept else 'tuned'} {name:34} {problem or 'right'}", flush=True)
    for kept, (right, count) in scores.items():
        print(f"{'kept back' if kept else 'tuned'}: {right} of {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
