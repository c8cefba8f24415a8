"""Writes tests/engine/data/latents.safetensors: what diffusers' StableDiffusionPipeline draws with the
bundled checkpoint, in float32 on the CPU: final latents for every scheduler, spacing and prediction
type, for the other fields of a request, and one decoded picture.

`moved` of each case is the largest distance by which diffusers' own latents move when every value
of the start moves by one rounding, randomly up or down. The test allows a multiple of it, because a
drawing that amplifies roundings cannot be reproduced more exactly.

The cases are stored as JSON in the file's metadata. `weights_sum` there is a checksum of the
weights, which the test compares. So run this again whenever share/tiny-sd changes (it takes a few
minutes). Torch is restricted to AVX2, so that every x86 processor since Haswell draws the same
bits.

Every scheduler except ddpm, ddim and pndm also has a file of its own,
tests/engine/data/latents/NAME.safetensors. It has cases for every spacing and list of sigmas,
v-prediction, other betas and zero terminal SNR. `latents.py NAME ...` writes only the files of
these schedulers. Schedulers that are defined by a sampler of k-diffusion or of AUTOMATIC1111's web
UI are drawn with that sampler, and with the rest of diffusers' pipeline.

usage: python tests/reference/latents.py [--webui FOLDER] [NAME ...]
(diffusers 0.42.1, transformers 5.23.0, torch 2.15.0, k-diffusion 0.1.1.post1)
"""

import dataclasses
import json
import os
import pathlib
import warnings

# torch reads these when it is loaded.
os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
               "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import k_diffusion_samplers
import numpy
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import save_file
from schedulers import SCHEDULERS, make, ways_down

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "share/tiny-sd"
FIRST = ("ddpm", "ddim", "pndm")
MOVES = 4  # how many random sets of roundings are tried
WEIGHTS = ("text_encoder/model", "unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model")
BASE = {"prompts": ["a red house on green hills at sunset"], "negative_prompt": "", "seed": 7,
        "num_images": 1, "steps": 25, "guidance_scale": 7.5, "guidance_rescale": 0.0, "clip_skip": 0,
        "width": 0, "height": 0, "scheduler": "pndm", "options": {}, "init": False, "long_prompt": "truncate"}


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
    yield {"long_prompt": "chunk", "prompts": ["a red house on green hills at sunset, " * 12],
           "negative_prompt": "a boat on the sea", "num_images": 2}
    yield {"long_prompt": "chunk", "negative_prompt": "night, " * 90, "clip_skip": 1, "steps": 8,
           "scheduler": "ddim", "width": 136, "height": 72}


def cases_of(name):
    row = SCHEDULERS[name]
    yield {"scheduler": name, "steps": 8}
    options = {"use_karras_sigmas": True} if row.lists else {}
    if row.spacings:
        options["timestep_spacing"] = "trailing"
    if not options:
        options = {"eta": 0.5} if row.sampler else {"original_inference_steps": 100}
    yield {"scheduler": name, "steps": 12, "options": options, "guidance_scale": 4.0}
    predicts_v = {"prediction_type": "v_prediction"}
    spacings, lists = ways_down(row)
    # What the two cases above do not cover: the other spacings and lists of sigmas, predictions and
    # betas.
    ways = [way for way in spacings[2:] + lists if not set(way) & {"use_karras_sigmas"}]
    for index, way in enumerate(ways):
        yield {"scheduler": name, "steps": 9, "seed": 20 + index, "options": way}
    yield {"scheduler": name, "steps": 10, "options": predicts_v}
    yield {"scheduler": name, "steps": 10, "options": predicts_v | {"beta_schedule": "linear"} | (
        {"use_exponential_sigmas": True} if row.lists else {})}
    if row.zero_snr:
        trailing = {"timestep_spacing": "trailing"} if row.spacings else {}
        yield {"scheduler": name, "steps": 10, "guidance_rescale": 0.7,
               "options": predicts_v | trailing | {"rescale_betas_zero_snr": True}}


def weights_sum(folder):
    total = 0
    for name in WEIGHTS:
        data = (folder / f"{name}.safetensors").read_bytes()
        words = numpy.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")
        total += int(words.sum(dtype=numpy.uint64))
    return total % 2**32


class Moved:
    """In a `with` block, `pipe` starts from latents in which every value is off by one rounding."""

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


def encode_chunks(pipe, text, clip_skip):
    """Encodes as AUTOMATIC1111 does without emphasis: chunks of 75 tokens, each with its own
    begin and end tokens."""
    tokenizer = pipe.tokenizer
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    rows = []
    for at in range(0, max(len(tokens), 1), 75):
        row = [tokenizer.bos_token_id] + tokens[at:at + 75] + [tokenizer.eos_token_id]
        rows.append(row + [tokenizer.pad_token_id] * (77 - len(row)))
    encoded = pipe.text_encoder(torch.tensor(rows), output_hidden_states=True)
    if clip_skip:
        hidden = encoded.hidden_states[-(clip_skip + 1)]
        encoded = (pipe.text_encoder.text_model.final_layer_norm(hidden),)
    return encoded[0].flatten(0, 1)[None]


class OwnTexts:
    """In a `with` block the UNet takes the unconditional rows, then the conditional rows, each
    with texts of its own length. diffusers itself cannot do that in one call."""

    def __init__(self, unet, texts):
        self.unet, self.texts = unet, texts

    def __enter__(self):
        whole = self.unet.forward

        def by_text(sample, timestep, encoder_hidden_states=None, return_dict=True, **kwargs):
            rows = sample.chunk(len(self.texts))
            outputs = [whole(x, timestep, text.expand(len(x), -1, -1), return_dict=False, **kwargs)[0]
                       for x, text in zip(rows, self.texts)]
            return (torch.cat(outputs),)

        self.unet.forward = by_text

    def __exit__(self, *_):
        del self.unet.forward


@torch.no_grad()
def draw_chunks(pipe, case, **arguments):
    negative = encode_chunks(pipe, case["negative_prompt"], 0)
    prompt = encode_chunks(pipe, case["prompts"][0], case["clip_skip"])
    with OwnTexts(pipe.unet, [negative, prompt]):
        # The pipeline uses only the batch size of these embeddings.
        return pipe(prompt_embeds=prompt, negative_prompt_embeds=torch.zeros_like(prompt),
                    **arguments).images


@torch.no_grad()
def draw_with_sampler(pipe, row, case, seeds, generators):
    """Draws latents of the pipeline's own size, with a sampler of k-diffusion instead of the
    pipeline's loop."""
    pipe.scheduler.set_timesteps(case["steps"])
    prompt, negative = pipe.encode_prompt(case["prompts"], "cpu", case["num_images"], True,
                                          [case["negative_prompt"]] * len(case["prompts"]))
    texts = torch.cat([negative, prompt])

    def pair(x, t):
        return pipe.unet(torch.cat([x, x]), t, encoder_hidden_states=texts).sample.chunk(2)

    def model(x, t):
        without, with_text = pair(x, t)
        return without + case["guidance_scale"] * (with_text - without)

    size = pipe.unet.config.sample_size * pipe.vae_scale_factor
    start = pipe.prepare_latents(len(seeds), pipe.unet.config.in_channels, size, size, torch.float32,
                                 "cpu", generators)
    if row.sampler == "ddim_cfgpp":
        return k_diffusion_samplers.sample_cfgpp(pipe.scheduler, pair, case["guidance_scale"], start,
                                                 generators, case["options"].get("eta", 0.0))[-1][1]
    return k_diffusion_samplers.sample(row.sampler, row.noise, pipe.scheduler, model, start, generators,
                                       seeds, case["options"].get("eta", 1.0))[-1][1]


def draw(pipe, config, case, output_type):
    images = len(case["prompts"]) * case["num_images"]
    seeds = [case["seed"] + k for k in range(images)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    row = SCHEDULERS[case["scheduler"]]
    if "noise_sampler_seed" in row.extra:
        row = dataclasses.replace(row, extra={"noise_sampler_seed": seeds})
    pipe.scheduler = make(row, config, case["options"])
    if row.sampler:
        return draw_with_sampler(pipe, row, case, seeds, generators)
    latents = None
    if case["init"]:
        latents = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(99))
    arguments = dict(
        width=case["width"] or None, height=case["height"] or None,
        num_inference_steps=case["steps"], guidance_scale=case["guidance_scale"],
        guidance_rescale=case["guidance_rescale"], num_images_per_prompt=case["num_images"],
        eta=case["options"].get("eta", 0.0), generator=generators, latents=latents,
        output_type=output_type)
    if case["long_prompt"] == "chunk":
        return draw_chunks(pipe, case, **arguments)
    return pipe(
        case["prompts"], negative_prompt=[case["negative_prompt"]] * len(case["prompts"]),
        clip_skip=case["clip_skip"] or None, **arguments).images


def write(pipe, config, path, listed, moves, picture=False):
    tensors, cases = {}, []
    for index, changes in enumerate(listed):
        case = BASE | changes
        latents = draw(pipe, config, case, "latent").contiguous()
        case["moved"] = 0.0
        for seed in range(moves):
            with Moved(pipe, seed):
                distance = (draw(pipe, config, case, "latent") - latents).abs().max().item()
            case["moved"] = max(case["moved"], distance)
        tensors[f"latents_{index:02}"] = latents
        cases.append(case)
    largest = max(t.abs().max().item() for t in tensors.values())
    if picture:
        drawn = draw(pipe, config, BASE, "np")[0]
        tensors["picture"] = torch.from_numpy((drawn * 255).round().astype("float32")).contiguous()
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path, metadata={"cases": json.dumps(cases), "weights_sum": str(weights_sum(FOLDER))})
    print(f"{path.name}: {len(cases)} cases, {path.stat().st_size} bytes, largest value {largest:.1f}")


def main():
    torch.set_num_threads(1)  # for small tensors one thread is faster
    k_diffusion_samplers.round_rightly()
    warnings.filterwarnings("ignore", module="torchsde")  # a sigma out of range by one rounding
    pipe = StableDiffusionPipeline.from_pretrained(FOLDER, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    # With clip_skip, diffusers 0.42.1 looks for the last norm under its old name.
    if not hasattr(pipe.text_encoder, "text_model"):
        object.__setattr__(pipe.text_encoder, "text_model", pipe.text_encoder)
    config = pipe.scheduler.config
    data = ROOT / "tests/engine/data"
    names = k_diffusion_samplers.arguments()
    for name in names or (name for name in SCHEDULERS if name not in FIRST):
        write(pipe, config, data / f"latents/{name}.safetensors", cases_of(name), 2)
    if not names:
        write(pipe, config, data / "latents.safetensors", cases(), MOVES, picture=True)


if __name__ == "__main__":
    main()
