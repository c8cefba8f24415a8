"""Writes tests/engine/data/latents.safetensors: what diffusers' StableDiffusionPipeline draws with the
bundled checkpoint, in float32 on the CPU: final latents for every scheduler, spacing and prediction
type, for the other fields of a request, and one decoded picture.

Each case says in `moved` how far diffusers' own latents move, at most, when every value of the start
moves by one rounding, up or down by lot: a drawing that amplifies roundings cannot be asked for more.

The cases travel as JSON in the file's metadata; `weights_sum` there ties the file to the weights, so
run this again whenever share/tiny-sd changes (it takes a few minutes). Torch is held to AVX2, so that
every x86 processor since Haswell draws the same bits.

usage: python tests/reference/latents.py [MODEL_FOLDER]
(diffusers 0.42.1, transformers 5.23.0, torch 2.15.0)
"""

import json
import os
import pathlib
import sys

# Read when torch is loaded.
os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
               "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import numpy
import torch
from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler, StableDiffusionPipeline
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).parents[2]
CLASSES = {"ddpm": DDPMScheduler, "ddim": DDIMScheduler, "pndm": PNDMScheduler}
MOVES = 4  # draws of the roundings
WEIGHTS = ("text_encoder/model", "unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model")
BASE = {"prompts": ["a red house on green hills at sunset"], "negative_prompt": "", "seed": 7,
        "num_images": 1, "steps": 25, "guidance_scale": 7.5, "guidance_rescale": 0.0, "clip_skip": 0,
        "width": 0, "height": 0, "scheduler": "pndm", "options": {}, "init": False}


def cases():
    for prediction in ("epsilon", "v_prediction"):
        for spacing in ("leading", "trailing", "linspace"):
            options = {"timestep_spacing": spacing, "prediction_type": prediction}
            for name, eta in (("ddpm", 0), ("ddim", 0), ("ddim", 0.5), ("ddim", 1), ("pndm", 0)):
                extra = {"eta": eta} if name == "ddim" else {}
                yield {"scheduler": name, "options": options | extra}
    yield {"scheduler": "ddim", "options": {"prediction_type": "v_prediction", "eta": 0.5,
                                            "timestep_spacing": "trailing",
                                            "rescale_betas_zero_snr": True},
           "guidance_rescale": 0.7}
    yield {"steps": 1}
    yield {"steps": 2, "seed": 2**32 + 3}
    yield {"guidance_scale": 1.0}
    yield {"guidance_rescale": 0.7, "negative_prompt": "a boat on the sea"}
    yield {"clip_skip": 1, "negative_prompt": "night"}
    yield {"width": 136, "height": 72, "scheduler": "ddim"}
    yield {"init": True, "scheduler": "ddpm", "steps": 10}
    yield {"prompts": ["a boat on the sea at night", "two trees " * 60], "num_images": 3,
           "scheduler": "ddim", "options": {"eta": 1.0}, "steps": 8}


def weights_sum(folder):
    total = 0
    for name in WEIGHTS:
        data = (folder / f"{name}.safetensors").read_bytes()
        words = numpy.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")
        total += int(words.sum(dtype=numpy.uint64))
    return total % 2**32


class Moved:
    """In a `with` block, `pipe` starts from latents whose every value is one rounding off."""

    def __init__(self, pipe, seed):
        self.pipe, self.generator = pipe, torch.Generator().manual_seed(seed)

    def __enter__(self):
        prepare = self.pipe.prepare_latents

        def moved(*args, **kwargs):
            start = prepare(*args, **kwargs)
            up = torch.rand(start.shape, generator=self.generator) < 0.5
            return torch.nextafter(start, torch.where(up, torch.inf, -torch.inf))

        self.pipe.prepare_latents = moved

    def __exit__(self, *_):
        del self.pipe.prepare_latents


def draw(pipe, config, case, output_type):
    options = {k: v for k, v in case["options"].items() if k != "eta"}
    pipe.scheduler = CLASSES[case["scheduler"]].from_config(config, **options)
    images = len(case["prompts"]) * case["num_images"]
    generators = [torch.Generator().manual_seed(case["seed"] + k) for k in range(images)]
    latents = None
    if case["init"]:
        latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(99))
    result = pipe(
        case["prompts"], negative_prompt=[case["negative_prompt"]] * len(case["prompts"]),
        width=case["width"] or None, height=case["height"] or None,
        num_inference_steps=case["steps"], guidance_scale=case["guidance_scale"],
        guidance_rescale=case["guidance_rescale"], clip_skip=case["clip_skip"] or None,
        num_images_per_prompt=case["num_images"], eta=case["options"].get("eta", 0.0),
        generator=generators, latents=latents, output_type=output_type)
    return result.images


def main():
    torch.set_num_threads(1)  # small tensors: threads only wait for each other
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "share/tiny-sd"
    pipe = StableDiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    # diffusers 0.42.1 looks for the last norm under its old name when clip_skip is set.
    if not hasattr(pipe.text_encoder, "text_model"):
        object.__setattr__(pipe.text_encoder, "text_model", pipe.text_encoder)
    config = pipe.scheduler.config
    tensors, listed = {}, []
    for index, changes in enumerate(cases()):
        case = BASE | changes
        latents = draw(pipe, config, case, "latent").contiguous()
        case["moved"] = 0.0
        for seed in range(MOVES):
            with Moved(pipe, seed):
                distance = (draw(pipe, config, case, "latent") - latents).abs().max().item()
            case["moved"] = max(case["moved"], distance)
        tensors[f"latents_{index:02}"] = latents
        listed.append(case)
    picture = draw(pipe, config, BASE, "np")[0]
    tensors["picture"] = torch.from_numpy((picture * 255).round().astype("float32")).contiguous()
    path = ROOT / "tests/engine/data/latents.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps(listed),
                                       "weights_sum": str(weights_sum(folder))})
    print(f"{len(listed)} cases, {path.stat().st_size} bytes, largest value "
          f"{max(t.abs().max().item() for k, t in tensors.items() if k != 'picture'):.1f}")


if __name__ == "__main__":
    main()
