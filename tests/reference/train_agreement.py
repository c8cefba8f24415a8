"""How far latentd's training is from diffusers + peft's: a table, computed with the installed
packages.

usage: python tests/reference/train_agreement.py BUILD [CASE...]
(torch 2.15.0, diffusers 0.42.1, peft 0.21.2, accelerate 1.15.0; the bundled checkpoint in float32 on the CPU)

1. Schedules, loss scalers, averages, min-SNR weights, draws, orders, factors and optimizer: the
   numbers of training.py are computed again, and the tests of tests/train compare latentd's with them.
2. Accumulation windows: after which batches accelerate's Accelerator lets the optimizer step,
  compared with the rule of train_losses.py (ends_window).
3. latentd and diffusers + peft train 200 steps of each case of train_losses.py on the same
  pictures. Then each draws latents with the adapter that it trained. The two results may differ by
  1e-2, or if that is more, by ten times the change in the reference's latents when the initial
  values of its factors change by one rounding. latentd's adapter is also loaded into diffusers; the
  latents drawn there may differ from those of latentd by 1e-3.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from accelerate import Accelerator
from diffusers import DDIMScheduler, StableDiffusionPipeline
from PIL import Image
from safetensors.torch import load_file

import train_losses
import training

STEPS, BAR, LOADED_BAR, SIZE = 200, 1e-2, 1e-3, 64
PROMPTS = ["a red house on green hills", "a white castle in the snow at night, a full moon in the upper left"]
DRAWN = {"steps": 10, "guidance": 2.5, "seed": 7}


def quantized(item):
    """Returns the picture as in an 8-bit PNG file: [h][w][3], 0 to 255."""
    return (train_losses.picture(item, SIZE) * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)


def picture(item):
    """Returns the same picture as quantized(), after ToTensor and Normalize."""
    return (quantized(item).float() / 255 - 0.5) / 0.5


# --- 1 ---

def parts_agree(build, folder):
    failed = 0
    for maker in training.MAKERS:
        name = maker.__name__
        try:
            training.write(folder, maker)
        except ImportError as missing:
            print(f"{name:14} not computed again: {missing}")
            folder_of = training.DATA
        else:
            folder_of = folder
        got = subprocess.run([build / f"tests/train/{name}_test", folder_of / f"{name}.json"], text=True,
                             stdout=subprocess.PIPE, check=False)
        failed += got.returncode != 0
        for line in got.stdout.splitlines():
            print(f"{name:14} {line}")
    return failed


# --- 2 ---

def windows_of_accelerate(batches, accumulation):
    """Returns for each batch of two epochs whether the optimizer steps after it."""
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, cpu=True)
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(range(batches), batch_size=1)
    model, loader = accelerator.prepare(model, loader)
    out = []
    for _ in range(2):
        for _ in loader:
            with accelerator.accumulate(model):
                out.append(accelerator.sync_gradients)
    return out


def windows_agree():
    different = compared = 0
    for batches in range(1, 9):
        for accumulation in range(1, 6):
            rule = [train_losses.ends_window(i, batches, accumulation) for i in range(batches)] * 2
            compared += len(rule)
            different += sum(a != b for a, b in zip(rule, windows_of_accelerate(batches, accumulation)))
    print(f"accumulation   {compared} batches in epochs of 1 to 8, windows of 1 to 5: at {different} of them "
          "the rule and accelerate disagree on whether a window ends")
    return different


# --- 3 ---

def pipeline(trained=None):
    pipe = StableDiffusionPipeline.from_pretrained(train_losses.MODEL, torch_dtype=torch.float32, safety_checker=None,
                                                   **(trained or {}))
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(trained=None, file=None):
    """Draws the latents of all prompts with diffusers, with trained components or a file of
    factors."""
    pipe = pipeline(trained)
    if file:
        pipe.load_lora_weights(file.parent, weight_name=file.name)
    return torch.cat([pipe(prompt, num_inference_steps=DRAWN["steps"], guidance_scale=DRAWN["guidance"], height=SIZE,
                           width=SIZE, output_type="latent",
                           generator=torch.Generator().manual_seed(DRAWN["seed"])).images for prompt in PROMPTS])


def draw_with_latentd(build, adapter, folder):
    out = []
    for prompt in PROMPTS:
        subprocess.run([build / "latentd", "generate", "--model", train_losses.MODEL, "--prompt", prompt,
                        "--steps", str(DRAWN["steps"]), "--guidance-scale", str(DRAWN["guidance"]),
                        "--seed", str(DRAWN["seed"]), "--width", str(SIZE), "--height", str(SIZE), "--scheduler",
                        "ddim", "--dtype", "f32", "-q", "--lora", adapter, "--save-latents", folder / "latents.safetensors",
                        "-o", folder / "out.png"], check=True)
        out.append(load_file(folder / "latents.safetensors")["latents"])
    return torch.cat(out)


def train_with_latentd(build, config, folder):
    """Returns the adapter's file and the losses."""
    job = config | {"name": "adapter", "dataset": "pictures", "resolution": SIZE, "seed": 7, "learning_rate": 1e-3,
                    "center_crop": True, "max_train_steps": STEPS, "checkpointing_steps": 0, "report_to": "none"}
    (folder / "job.json").write_text(json.dumps(job))
    out = folder / "out"
    subprocess.run([build / "latentd", "train", "--model", train_losses.MODEL, "--config", folder / "job.json",
                    "--dataset-root", folder.parent, "--out", out, "--device", "cpu", "-q"], check=True)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return out / "adapter.safetensors", [json.loads(line)["loss"] for line in lines]


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def adapters_agree(build, folder, name):
    config = train_losses.CASES[name]
    file, ours_losses = train_with_latentd(build, config, folder)
    losses, _, _, trained = train_losses.run(config, steps=STEPS, picture=picture)
    _, _, _, moved = train_losses.run(config, nudge=train_losses.ROUNDING, steps=STEPS, picture=picture)
    reference = draw(trained)
    ours = draw_with_latentd(build, file, folder)
    difference = relative(ours, reference)
    loaded = relative(draw(file=file), ours)
    own = relative(draw(moved), reference)
    first, last = (max(abs(a / b - 1) for a, b in list(zip(ours_losses, losses))[part])
                   for part in (slice(0, 20), slice(20, None)))
    bar = max(BAR, 10 * own)
    met = difference <= bar and loaded <= LOADED_BAR
    verdict = "met" if met else "MISSED"
    print(f"{name:7} the losses of steps 1 to 20 differ by {first:.1e}, those to {STEPS} by {last:.1e}; "
          f"the latents by {difference:.1e} (at most {bar:.1e} is allowed; one rounding changes the reference "
          f"by {own:.1e}, the adapter by {relative(reference, draw()):.2f}); with latentd's file in diffusers, the "
          f"latents differ from those of latentd by {loaded:.1e} (at most {LOADED_BAR:g}): {verdict}", flush=True)
    return not met or len(ours_losses) != STEPS


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or [name for name, config in train_losses.CASES.items()
                             if not any(key[0] == "_" for key in config)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "parts").mkdir()
        (folder / "pictures").mkdir()
        for item, caption in enumerate(train_losses.CAPTIONS):
            Image.fromarray(quantized(item).numpy()).save(folder / f"pictures/{item}.png")
            (folder / f"pictures/{item}.txt").write_text(caption)
        failed = 0
        if len(sys.argv) == 2:
            failed += parts_agree(build, folder / "parts") + windows_agree()
        print(f"\n{STEPS} steps on the bundled checkpoint at {SIZE}x{SIZE}, relative differences:", flush=True)
        for case in names:
            (folder / case).mkdir()
            failed += adapters_agree(build, folder / case, case)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
