"""Writes tests/engine/data/images/latents.safetensors: what diffusers'
StableDiffusionImg2ImgPipeline and StableDiffusionInpaintPipeline draw with the bundled checkpoint,
in float32 on the CPU. There are cases for every scheduler that diffusers has (image to image, and
inpainting by a UNet of 4 and of 9 channels), and for the other fields of such a request. For 9
channels, weights of five more input channels are added to the bundled UNet's conv_in: torch.randn
with seed 9, times 0.05.

The formulas below make picture and mask; the test has the same formulas. Each case says in `moved`
how far
diffusers' own latents move, as a share of their norm, when every value of the first sample moves by
one rounding, randomly up or down.

The cases are stored as JSON in the file's metadata. `weights_sum` there is a checksum of the
weights. Run this again whenever share/tiny-sd changes.

usage: python tests/reference/image_latents.py    (diffusers 0.42.1, torch 2.15.0)
"""

import dataclasses
import json
import warnings

import latents  # first: it restricts torch to AVX2
import numpy
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline, UNet2DConditionModel
from PIL import Image
from safetensors.torch import save_file
from schedulers import SCHEDULERS, make

OUT = latents.ROOT / "tests/engine/data/images/latents.safetensors"
BASE = {"kind": "img2img", "prompt": "a red house on green hills", "negative_prompt": "night", "seed": 5,
        "num_images": 1, "steps": 6, "guidance_scale": 4.0, "strength": None, "scheduler": "pndm",
        "options": {}, "picture": [64, 64], "size": [0, 0], "resize_mode": "none"}
KINDS = ("img2img", "inpaint", "inpaint9")


def cases():
    for name, row in SCHEDULERS.items():
        if row.sampler:
            continue  # k-diffusion's, without a diffusers pipeline
        for kind in KINDS:
            yield {"scheduler": name, "kind": kind, "strength": 0.7}
    for kind in KINDS:
        yield {"kind": kind}  # with diffusers' default strength
        yield {"kind": kind, "strength": 0.2, "steps": 9}  # one step
        yield {"kind": kind, "scheduler": "ddim", "options": {"eta": 0.5}, "num_images": 2}
        yield {"kind": kind, "scheduler": "euler_ancestral", "guidance_scale": 1.0, "strength": 0.5}
        yield {"kind": kind, "scheduler": "heun", "strength": 1.0,
               "options": {"prediction_type": "v_prediction"}}
        yield {"kind": kind, "scheduler": "dpmpp_2m", "strength": 0.6, "picture": [72, 64],
               "options": {"use_karras_sigmas": True, "solver_order": 3}}
        yield {"kind": kind, "scheduler": "ddim", "picture": [101, 83], "size": [72, 64],
               "resize_mode": "default"}
        yield {"kind": kind, "scheduler": "ddim", "picture": [101, 83], "resize_mode": "default"}
        yield {"kind": kind, "scheduler": "ddim", "picture": [101, 83], "size": [64, 72],
               "resize_mode": "crop"}
    yield {"scheduler": "lms", "strength": 0.5, "steps": 9, "options": {"use_karras_sigmas": True}}
    yield {"scheduler": "unipc", "strength": 0.5, "steps": 9, "options": {"solver_order": 3}}


def picture(width, height):
    y, x = numpy.mgrid[0:height, 0:width]
    return Image.fromarray(numpy.stack([x * 5 % 256, y * 3 % 256, x * y // 16 % 256], -1).astype("uint8"))


def mask(width, height):
    y, x = numpy.mgrid[0:height, 0:width]
    inside = (x - width // 2) ** 2 + (y - height // 3) ** 2 <= 18**2
    return Image.fromarray((inside * 255).astype("uint8"))


def moved_by(seed):
    generator = torch.Generator().manual_seed(seed)

    def move(start):
        up = torch.rand(start.shape, generator=generator) < 0.5
        return torch.nextafter(start, torch.where(up, torch.inf, -torch.inf))

    return move


def draw(pipe, config, case, move=None):
    seeds = [case["seed"] + k for k in range(case["num_images"])]
    row = SCHEDULERS[case["scheduler"]]
    image, white = picture(*case["picture"]), mask(*case["picture"])
    width, height = (a or b - b % 8 for a, b in zip(case["size"], case["picture"]))
    if case["kind"] == "img2img":
        image = pipe.image_processor.preprocess(
            image, height, width, resize_mode="crop" if case["resize_mode"] == "crop" else "default")
    elif case["resize_mode"] == "crop":
        image, white = (pipe.image_processor.resize(i.convert("RGB"), height, width, resize_mode="crop")
                        for i in (image, white))
    drawn = []
    for seed in seeds:  # each seed drawn alone
        own = row
        if "noise_sampler_seed" in row.extra:
            own = dataclasses.replace(row, extra={"noise_sampler_seed": [seed]})
        pipe.scheduler = make(own, config, case["options"])
        arguments = {} if case["strength"] is None else {"strength": case["strength"]}
        if case["kind"] != "img2img":
            arguments |= {"mask_image": white, "width": width, "height": height}
        prepare = pipe.prepare_latents
        if move:
            def moved(*args, **kwargs):
                start = prepare(*args, **kwargs)
                return (move(start[0]), *start[1:]) if isinstance(start, tuple) else move(start)
            pipe.prepare_latents = moved
        try:
            drawn.append(pipe(
                case["prompt"], image, negative_prompt=case["negative_prompt"],
                num_inference_steps=case["steps"], guidance_scale=case["guidance_scale"],
                eta=case["options"].get("eta", 0.0), generator=torch.Generator().manual_seed(seed),
                output_type="latent", **arguments).images)
        finally:
            if move:
                del pipe.prepare_latents
    return torch.cat(drawn)


def with_nine_channels(unet):
    config = dict(unet.config) | {"in_channels": 9}
    wide = UNet2DConditionModel.from_config(config)
    weights = dict(unet.state_dict())
    first = weights["conv_in.weight"]
    more = torch.randn(first.shape[0], 5, 3, 3, generator=torch.Generator().manual_seed(9)) * 0.05
    weights["conv_in.weight"] = torch.cat([first, more], 1)
    wide.load_state_dict(weights)
    return wide.eval()


def main():
    torch.set_num_threads(1)
    latents.k_diffusion_samplers.round_rightly()
    warnings.filterwarnings("ignore", module="torchsde")
    first = StableDiffusionImg2ImgPipeline.from_pretrained(latents.FOLDER, dtype=torch.float32)
    pipes = {"img2img": first, "inpaint": StableDiffusionInpaintPipeline(**first.components)}
    pipes["inpaint9"] = StableDiffusionInpaintPipeline(
        **first.components | {"unet": with_nine_channels(first.unet)})
    for pipe in pipes.values():
        pipe.set_progress_bar_config(disable=True)
    config = first.scheduler.config
    tensors, listed = {}, []
    for index, changes in enumerate(cases()):
        case = BASE | changes
        if case["strength"] == 0.7 and case["kind"] == "inpaint9" and index % 2:
            case["strength"] = 1.0
        drawn = draw(pipes[case["kind"]], config, case).contiguous()
        case["moved"] = max(
            ((draw(pipes[case["kind"]], config, case, moved_by(seed)) - drawn).norm() / drawn.norm()).item()
            for seed in range(2))
        tensors[f"latents_{index:02}"] = drawn
        listed.append(case)
        print(index, case["kind"], case["scheduler"], case["moved"], flush=True)
    OUT.parent.mkdir(exist_ok=True)
    save_file(tensors, OUT, metadata={"cases": json.dumps(listed, separators=(",", ":")),
                                      "weights_sum": str(latents.weights_sum(latents.FOLDER))})
    print(f"{OUT.name}: {len(listed)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
