#!/usr/bin/env python3
"""How fast LoRAs are trained, and with how much memory: `latentd train` compared with the same loop
in diffusers + peft (rank 16 on the attention layers), and the cost at full size.

    scripts/bench-training [--parts small,256,512,memory,full] [--quick] [--rounds N] [--steps N]
                           [--dtypes f32,bf16] [--model FOLDER] [--threads 2]

Each round asks latentd (a new process each time, whose first step does not count) and diffusers +
peft (a process that keeps running and is idle in between) for a few steps in f32 and in bf16, in a
rotating order. Latents and texts are encoded before the counted steps. Images a second are the
median of all steps; memory is
the process's peak, loading, encoding and file mappings included.

The parts can be measured one at a time: OUT/training-<processor>.json keeps the others, and the report is made
from all of them. --quick takes one round of one step and writes nothing. Exits with 1 if a limit is
not met.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench_cpu import machine, note, processor_slug
from bench_training_report import MEMORY, PARTS, check_bars, report

HERE = os.path.dirname(os.path.abspath(__file__))
BUNDLED = os.path.join(os.path.dirname(os.path.dirname(HERE)), "share/tiny-sd")
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
CAPTION = "a red house on green hills"
PRECISION = {"f32": "no", "bf16": "bf16"}


# --- diffusers + peft, in a separate process ---

def worker(what):
    """Prints its versions. Then for each input line with a number, makes that many steps and
    prints their seconds and the peak memory."""
    import diffusers
    import peft
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from peft import LoraConfig
    from transformers import CLIPTextModel, CLIPTokenizer

    torch.set_num_threads(what["threads"])
    torch.manual_seed(0)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[what["dtype"]]
    model, batch = what["model"], what["batch"]
    with torch.no_grad():  # done once before the steps, as latentd does
        tokenizer = CLIPTokenizer.from_pretrained(model, subfolder="tokenizer")
        text = CLIPTextModel.from_pretrained(model, subfolder="text_encoder", dtype=dtype)
        ids = tokenizer([CAPTION], padding="max_length", max_length=77, return_tensors="pt").input_ids
        context = text(ids)[0].repeat(batch, 1, 1)
        vae = AutoencoderKL.from_pretrained(model, subfolder="vae", torch_dtype=torch.float32)
        pixels = torch.rand(1, 3, what["resolution"], what["resolution"]) * 2 - 1
        posterior = vae.encode(pixels).latent_dist
        del text, vae
    unet = UNet2DConditionModel.from_pretrained(model, subfolder="unet", torch_dtype=dtype)
    unet.requires_grad_(False)
    unet.to(memory_format=torch.channels_last)
    unet.add_adapter(LoraConfig(r=16, lora_alpha=16, init_lora_weights="gaussian", target_modules=TARGETS))
    if what["checkpointing"]:
        unet.enable_gradient_checkpointing()
    unet.train()
    params = [p.requires_grad_() for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4)
    scheduler = DDPMScheduler.from_pretrained(model, subfolder="scheduler")

    def step():
        latents = posterior.sample().repeat(batch, 1, 1, 1) * 0.18215
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (batch,))
        noisy = scheduler.add_noise(latents, noise, timesteps).to(dtype)
        # As in diffusers' script with accelerate: factors in f32, frozen weights and products in
        # bf16.
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            prediction = unet(noisy, timesteps, context).sample
        torch.nn.functional.mse_loss(prediction.float(), noise.float()).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    print(json.dumps({"software": f"diffusers {diffusers.__version__} + peft {peft.__version__} on torch "
                                  f"{torch.__version__.split('+')[0]}"}), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        with open("/proc/self/status", encoding="ascii") as f:
            peak = int(next(row for row in f if row.startswith("VmHWM")).split()[1]) * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


class Diffusers:
    """The worker process, loaded and after its first step."""

    def __init__(self, part, dtype, options):
        what = {**vars(part), "dtype": dtype, "model": options.model_of(part), "threads": options.threads}
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", json.dumps(what)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.software = self._answer()["software"]
        self.steps(1)

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"diffusers ended with {self.process.wait()}")
        return json.loads(line)

    def steps(self, count):
        """Makes `count` steps. Returns (the seconds of each, the peak memory so far)."""
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        got = self._answer()
        return got["seconds"], got["peak_bytes"]

    def end(self):
        self.process.communicate()


# --- latentd ---

def make_pictures(folder, count, resolution):
    import numpy
    from PIL import Image

    os.makedirs(folder)
    for i in range(count):
        pixels = numpy.random.default_rng(i).integers(0, 256, (resolution, resolution, 3))
        Image.fromarray(pixels.astype(numpy.uint8)).save(os.path.join(folder, f"{i}.png"))
        with open(os.path.join(folder, f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(CAPTION)


class Latentd:
    """Runs `latentd train` on random pictures, in a new process for each call."""

    def __init__(self, part, dtype, options):
        self.part, self.options = part, options
        self.work = tempfile.mkdtemp(prefix="bench-training-")
        make_pictures(os.path.join(self.work, "pictures"), part.batch, part.resolution)
        job = {"name": "bench", "dataset": "pictures", "resolution": part.resolution, "train_batch_size": part.batch,
               "mixed_precision": PRECISION[dtype], "gradient_checkpointing": part.checkpointing,
               "checkpointing_steps": 0, "report_to": "none", "seed": 0, "method": part.method}
        if part.method == "lora":
            job |= {"rank": 16, "target_modules": TARGETS}
        self.job = job

    def steps(self, count):
        """Returns (the seconds of each step but the first, the peak memory)."""
        out = os.path.join(self.work, "out")
        shutil.rmtree(out, ignore_errors=True)
        config = os.path.join(self.work, "job.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(self.job | {"max_train_steps": count + 1}, f)
        command = [self.options.latentd, "train", "--model", self.options.model_of(self.part), "--config", config,
                   "--dataset-root", self.work, "--out", out, "--device", "cpu", "-q"]
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": str(self.options.threads)})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"latentd train ended with {process.returncode}")
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
            rates = [json.loads(line)["images_per_s"] for line in f]
        return [self.part.batch / rate for rate in rates[1:]], used.ru_maxrss * 1024

    def end(self):
        shutil.rmtree(self.work)


# --- measuring ---

def summary(seconds, peak, batch, software):
    rates = [batch / s for s in seconds]
    return {"software": software, "images_per_s": statistics.median(rates), "least": min(rates), "most": max(rates),
            "seconds": seconds, "peak_bytes": peak}


def measure_part(part, options):
    """Returns {"latentd f32": figures, "diffusers f32": ...}."""
    rounds, steps = options.rounds or part.rounds, options.steps or part.steps
    peers = {f"{name} {dtype}": kind(part, dtype, options) for dtype in options.dtypes
             for name, kind in (("latentd", Latentd), ("diffusers", Diffusers))}
    seconds, peaks = {name: [] for name in peers}, dict.fromkeys(peers, 0)
    for number in range(rounds):
        names = list(peers)
        for name in names[number % len(names):] + names[:number % len(names)]:
            got, peak = peers[name].steps(steps)
            seconds[name] += got
            peaks[name] = max(peaks[name], peak)
            note(f"{part.title}, round {number + 1} of {rounds}, {name}: "
                 f"{', '.join(f'{s:.3f}' for s in got)} s, {peak / 1e6:.0f} MB")
    for peer in peers.values():
        peer.end()
    return {name: summary(seconds[name], peaks[name], part.batch, getattr(peers[name], "software", "latentd"))
            for name in peers}


def measure_memory(part, options):
    job = Latentd(part, part.dtype, options)
    seconds, peak = job.steps(1)
    job.end()
    note(f"{part.title}: {seconds[0]:.1f} s a step, {peak / 1e9:.2f} GB")
    return {"seconds": seconds, "peak_bytes": peak}


def ensure_model(options):
    if not os.path.exists(os.path.join(options.model, "vae/config.json")):
        note("writing the random checkpoint")
        subprocess.run([sys.executable, os.path.join(HERE, "random_sd15.py"), options.model, "--layout", "folder",
                        "--dtype", "f16", "--tokenizer", os.path.join(BUNDLED, "tokenizer")], check=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latentd", required=True)
    parser.add_argument("--work", required=True, help="folder of the random checkpoint")
    parser.add_argument("--model", help="a full-size checkpoint instead of WORK/models/folder-f16")
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("--parts", default="small,256,512,memory,full")
    parser.add_argument("--dtypes", help="f32,bf16; without bf16 instructions f32")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if set(options.parts) - set(PARTS) - {p.group for p in MEMORY.values()}:
        parser.error("--parts: small, 256, 512, memory, full")
    options.model = options.model or os.path.join(options.work, "models/folder-f16")
    options.model_of = lambda part: BUNDLED if part.bundled else options.model
    options.about = machine(options)
    fast = {"avx512_bf16", "amx_bf16"} & set(options.about["instructions"])
    options.dtypes = (options.dtypes or ("f32,bf16" if fast else "f32")).split(",")
    if options.quick:
        options.rounds = options.steps = 1
    return options


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(json.loads(sys.argv[2]))
        return 0
    options = parse_options()
    ensure_model(options)
    base = os.path.join(options.out, f"training-{processor_slug(options.about)}")
    record = {"parts": {}, "memory": {}}
    if os.path.exists(base + ".json") and not options.quick:
        with open(base + ".json", encoding="utf-8") as f:
            record = json.load(f)
    record["machine"] = options.about
    for name, part in PARTS.items():
        if name in options.parts:
            record["parts"][name] = {"date": options.about["date"], "figures": measure_part(part, options)}
    for name, part in MEMORY.items():
        if part.group in options.parts:
            record["memory"][name] = {"date": options.about["date"], **measure_memory(part, options)}
    record["bars"] = check_bars(record)
    if not options.quick:
        os.makedirs(options.out, exist_ok=True)
        for ending, text in ((".md", report(record)), (".json", json.dumps(record, indent=1) + "\n")):
            with open(base + ending, "w", encoding="utf-8") as f:
                f.write(text)
    print(report(record))
    return 0 if all(bar["met"] for bar in record["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
