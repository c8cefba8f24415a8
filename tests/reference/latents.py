"""Writes tests/engine/data/latents.safetensors: what diffusers' StableDiffusionPipeline draws with the
bundled checkpoint, in float32 on the CPU: final latents for every scheduler, spacing and prediction
type, for the other fields of a request, and one decoded picture.

The cases travel as JSON in the file's metadata; `weights_sum` there ties the file to the weights, so
run this again whenever share/tiny-sd changes (it takes under a minute).

usage: python tests/reference/latents.py [MODEL_FOLDER]
(diffusers 0.42.1, transformers 5.23.0, torch 2.15.0)
"""

import json
import pathlib
import sys

import numpy
import torch
from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler, StableDiffusionPipeline
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).parents[2]
CLASSES = {"ddpm": DDPMScheduler, "ddim": DDIMScheduler, "pndm": PNDMScheduler}
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
        tensors[f"latents_{index:02}"] = draw(pipe, config, case, "latent").contiguous()
        listed.append(case)
    picture = draw(pipe, config, BASE, "np")[0]
    tensors["picture"] = torch.from_numpy((picture * 255).round().astype("float32")).contiguous()
    path = ROOT / "tests/engine/data/latents.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps(listed),
                                       "weights_sum": str(weights_sum(folder))})
    print(f"{len(listed)} cases, {path.stat().st_size} bytes, largest value "
          f"{max(t.abs().max().item() for k, t in tensors.items() if k != 'picture'):.1f}")


main()
