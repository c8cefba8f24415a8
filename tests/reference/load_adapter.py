"""Loads adapters that train/save_adapter.c wrote in diffusers, and compares what they draw with latentd's
own drawing: by hand, after work on the formats.

usage: python tests/reference/load_adapter.py BUILD [CHECKPOINT]
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2)
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = "a red house on green hills"
COMMON = {"name": "check", "dataset": "none", "max_train_steps": 1, "seed": 5, "rank": 4}
ATTENTION = {"alpha": 2}
JOBS = {
    "the UNet's attention": ATTENTION,
    "attention of both, in fp16": ATTENTION | {"train_text_encoder": True, "save_precision": "fp16"},
    "everything": {"alpha": 6, "train_text_encoder": True,
                   "target_modules": ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj",
                                      "ff.net.2", "conv1", "conv2", "conv_shortcut", "conv", "time_emb_proj",
                                      "conv_in", "conv_out"],
                   "text_encoder_target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]},
}


def draw(checkpoint, file):
    pipe = StableDiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, safety_checker=None)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    if file:
        pipe.load_lora_weights(file.parent, weight_name=file.name)
    return pipe(PROMPT, num_inference_steps=5, guidance_scale=2.5, output_type="latent",
                generator=torch.Generator().manual_seed(7)).images


def ours(build, checkpoint, file, folder):
    out = folder / "latents.safetensors"
    subprocess.run([build / "latentd", "generate", "--model", checkpoint, "--prompt", PROMPT, "--steps", "5",
                    "--guidance-scale", "2.5", "--seed", "7", "--scheduler", "ddim", "--dtype", "f32", "-q",
                    "--lora", file, "--save-latents", out, "-o", folder / "out.png"], check=True)
    return load_file(out)["latents"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    checkpoint = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "share/tiny-sd"
    plain = draw(checkpoint, None)
    worst = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for what, fields in JOBS.items():
            (folder / "job.json").write_text(json.dumps(COMMON | fields))
            for form in ("diffusers", "kohya"):
                file = folder / f"{form}.safetensors"
                subprocess.run([build / "tests/reference/adapter_tool", checkpoint, form, file, folder / "job.json"],
                               check=True)
                theirs = draw(checkpoint, file)
                error = ((ours(build, checkpoint, file, folder) - theirs).norm() / theirs.norm()).item()
                moved = ((theirs - plain).norm() / plain.norm()).item()
                worst = max(worst, error)
                print(f"{what}, {form}: {error:.1e} from diffusers, {moved:.2f} from no adapter")
                assert moved > 0.01, "the adapter changes nothing"
    print(f"worst: {worst:.1e}")
    sys.exit(worst > 1e-3)


main()
