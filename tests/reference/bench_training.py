#!/usr/bin/env python3
"""How fast LoRAs are trained: `latentd train` beside the same loop in diffusers + peft, on one machine in one
run, rank 16 on the attention layers.

    bench_training.py --latentd BUILD/latentd --model FOLDER [--resolution 256] [--precision no|bf16]
                      [--peer-precision no|bf16] [--batch 1] [--steps 6] [--checkpointing] [--threads 2]

Each is a process of its own, one after the other; latents and texts are encoded before the steps that count.
Images a second are the median of the steps but the first, memory is the process's peak (VmHWM).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
CAPTION = "a red house on green hills"


def peak_mb(pid="self"):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024


def run_diffusers(options):
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from peft import LoraConfig
    from transformers import CLIPTextModel, CLIPTokenizer

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = {"no": torch.float32, "bf16": torch.bfloat16}[options.peer_precision]
    with torch.no_grad():  # what both do once, before the steps
        tokenizer = CLIPTokenizer.from_pretrained(options.model, subfolder="tokenizer")
        text = CLIPTextModel.from_pretrained(options.model, subfolder="text_encoder", torch_dtype=dtype)
        ids = tokenizer([CAPTION], padding="max_length", max_length=77, return_tensors="pt").input_ids
        context = text(ids)[0].repeat(options.batch, 1, 1)
        vae = AutoencoderKL.from_pretrained(options.model, subfolder="vae")
        pixels = torch.rand(1, 3, options.resolution, options.resolution) * 2 - 1
        posterior = vae.encode(pixels).latent_dist
        del text, vae
    unet = UNet2DConditionModel.from_pretrained(options.model, subfolder="unet", torch_dtype=dtype)
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=16, lora_alpha=16, init_lora_weights="gaussian", target_modules=TARGETS))
    if options.checkpointing:
        unet.enable_gradient_checkpointing()
    unet.train()
    params = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4)
    scheduler = DDPMScheduler.from_pretrained(options.model, subfolder="scheduler")
    rates = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        latents = (posterior.sample().repeat(options.batch, 1, 1, 1) * 0.18215).to(dtype)
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (options.batch,))
        noisy = scheduler.add_noise(latents, noise, timesteps)
        prediction = unet(noisy, timesteps, context).sample
        loss = torch.nn.functional.mse_loss(prediction.float(), noise.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rates.append(options.batch / (time.perf_counter() - begin))
    print(json.dumps({"rates": rates, "peak_mb": peak_mb()}))


def make_pictures(folder, options):
    import numpy
    from PIL import Image

    os.makedirs(folder)
    for i in range(options.batch):
        pixels = numpy.random.default_rng(i).integers(0, 256, (options.resolution, options.resolution, 3))
        Image.fromarray(pixels.astype(numpy.uint8)).save(os.path.join(folder, f"{i}.png"))
        with open(os.path.join(folder, f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(CAPTION)


def run_latentd(options, work):
    make_pictures(os.path.join(work, "pictures"), options)
    job = {"name": "bench", "dataset": "pictures", "resolution": options.resolution, "rank": 16,
           "target_modules": TARGETS, "train_batch_size": options.batch, "max_train_steps": options.steps,
           "mixed_precision": options.precision, "gradient_checkpointing": options.checkpointing,
           "checkpointing_steps": 0, "report_to": "none", "seed": 0}
    config = os.path.join(work, "job.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(job, f)
    out = os.path.join(work, "out")
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    p = subprocess.Popen([options.latentd, "train", "--model", options.model, "--config", config,
                          "--dataset-root", work, "--out", out, "--device", "cpu", "-q"], env=environment)
    peak = 0
    while p.poll() is None:
        try:
            peak = max(peak, peak_mb(p.pid))
        except (OSError, StopIteration):
            pass
        time.sleep(0.2)
    if p.returncode:
        raise SystemExit(f"latentd train ended with {p.returncode}")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        return {"rates": [json.loads(line)["images_per_s"] for line in f], "peak_mb": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--latentd")
    parser.add_argument("--model", required=True)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--peer-precision", choices=("no", "bf16"), default="no")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.worker:
        run_diffusers(options)
        return
    with tempfile.TemporaryDirectory() as work:
        ours = run_latentd(options, work)
    got = subprocess.run([sys.executable, __file__, "--worker", *sys.argv[1:]], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    theirs = json.loads(got.splitlines()[-1])
    rates = {}
    print(f"{options.model} at {options.resolution}x{options.resolution}, batch {options.batch}, rank 16 on "
          f"attention, {'checkpointed, ' if options.checkpointing else ''}{options.threads} threads")
    for name, precision, r in (("latentd", options.precision, ours),
                               ("diffusers + peft", options.peer_precision, theirs)):
        rates[name] = statistics.median(r["rates"][1:])
        precision = {"no": "f32"}.get(precision, precision)
        print(f"  {name:17} {precision:4} {rates[name]:8.3f} images/s, peak {r['peak_mb']:7.0f} MB")
    print(f"  images/s {rates['latentd'] / rates['diffusers + peft']:.2f}x, "
          f"memory {ours['peak_mb'] / theirs['peak_mb']:.2f}x")


if __name__ == "__main__":
    main()
