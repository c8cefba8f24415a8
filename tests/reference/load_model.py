"""Fine-tunes a checkpoint with `latentd train`, loads the resulting folder into diffusers, and
compares its drawing with latentd's own. Run it by hand, after work on saving.

usage: python tests/reference/load_model.py BUILD [CHECKPOINT]
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0)
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from PIL import Image
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = "a red house on green hills"
COMMON = {"name": "check", "dataset": "pictures", "method": "full", "max_train_steps": 6, "seed": 5, "resolution": 64,
          "learning_rate": 3e-4, "report_to": "none"}
JOBS = {
    "the UNet": {},
    "an average of the UNet, in fp16": {"use_ema": True, "ema_decay": 0.5, "save_precision": "fp16"},
    "the text encoder too, trained and saved in bf16": {"train_text_encoder": True, "mixed_precision": "bf16",
                                                       "save_precision": "bf16"},
}


def make_pictures(folder):
    folder.mkdir()
    for i in range(3):
        pixels = numpy.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=numpy.uint8)
        Image.fromarray(pixels.repeat(8, 0).repeat(8, 1)).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(f"picture number {i}")


def theirs(checkpoint):
    pipe = StableDiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    return pipe(PROMPT, num_inference_steps=5, guidance_scale=2.5, output_type="latent",
                generator=torch.Generator().manual_seed(7)).images


def ours(build, checkpoint, folder):
    out = folder / "latents.safetensors"
    subprocess.run([build / "latentd", "generate", "--model", checkpoint, "--prompt", PROMPT, "--steps", "5",
                    "--guidance-scale", "2.5", "--seed", "7", "--scheduler", "ddim", "--dtype", "f32", "-q",
                    "--save-latents", out, "-o", folder / "out.png"], check=True)
    return load_file(out)["latents"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    checkpoint = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT / "share/tiny-sd"
    plain, worst = theirs(checkpoint), 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_pictures(folder / "pictures")
        for number, (what, fields) in enumerate(JOBS.items()):
            (folder / "job.json").write_text(json.dumps(COMMON | fields))
            trained = subprocess.run(
                [build / "latentd", "train", "--model", checkpoint, "--config", folder / "job.json", "--dataset-root",
                 folder, "--out", folder / str(number)], check=True, capture_output=True,
                text=True).stdout.splitlines()[-1]
            reference = theirs(trained)
            error = ((ours(build, trained, folder) - reference).norm() / reference.norm()).item()
            moved = ((reference - plain).norm() / plain.norm()).item()
            worst = max(worst, error)
            print(f"{what}: {error:.1e} from diffusers, {moved:.2f} from the checkpoint", flush=True)
            assert moved > 0.01, "the job changes nothing"
    print(f"worst: {worst:.1e}")
    sys.exit(worst > 1e-3)


if __name__ == "__main__":
    main()
