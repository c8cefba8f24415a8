"""Loads adapters written by train/save_adapter.c into diffusers, and compares the result with
latentd's own drawing. Also checks that programs which read kohya's files find every layer by its
name. Run it by hand, after work on the formats.

usage: python tests/reference/load_adapter.py BUILD [CHECKPOINT]
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2)

kohya's names are compared with four independent sources: sd-scripts (networks/lora.py: the prefix,
and the layer's name with underscores), diffusers' own convert_state_dict_to_kohya, AUTOMATIC1111
(extensions-builtin/Lora/networks.py), which turns a name into the single-file checkpoint's layer,
and stable-diffusion.cpp (name_conversion.cpp), which puts the dots of the diffusers name back.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.utils import convert_state_dict_to_kohya
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import CLIPTextModel

import sd15

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


# --- names ---

# Words in which stable-diffusion.cpp keeps underscores, for the names of Stable Diffusion 1 and 2.
SDCPP_KEEPS = ("self_attn", "out_proj", "q_proj", "k_proj", "v_proj", "to_k", "to_q", "to_v", "to_out", "text_model",
               "down_blocks", "mid_block", "up_block", "proj_in", "proj_out", "transformer_blocks", "conv_in", "conv_out",
               "time_emb_proj", "conv_shortcut", "time_embedding")
A1111_RESNET = {"conv1": "in_layers_2", "conv2": "out_layers_3", "time_emb_proj": "emb_layers_1",
                "conv_shortcut": "skip_connection"}


def sdcpp_name(name):
    """Returns the layer's name with dots. The words of SDCPP_KEEPS keep their underscores
    wherever they occur."""
    kept = {at.start() + i for token in SDCPP_KEEPS for at in re.finditer(token, name)
            for i, letter in enumerate(token) if letter == "_"}
    return "".join("." if letter == "_" and i not in kept else letter for i, letter in enumerate(name))


def a1111_name(name):
    """Returns the single-file checkpoint's layer, with underscores."""
    def part(kind, layer):
        return f"{int(kind == 'attentions')}_{A1111_RESNET.get(layer, layer) if kind == 'resnets' else layer}"

    def middle(kind, number, layer):
        block = 1 if kind == "attentions" else 2 * int(number)
        return f"middle_block_{block}_{A1111_RESNET.get(layer, layer) if kind == 'resnets' else layer}"

    rules = [
        (r"lora_unet_conv_in$", lambda: "input_blocks_0_0"),
        (r"lora_unet_conv_out$", lambda: "out_2"),
        (r"lora_unet_time_embedding_linear_(\d)$", lambda n: f"time_embed_{2 * int(n) - 2}"),
        (r"lora_unet_down_blocks_(\d+)_(attentions|resnets)_(\d+)_(.+)$",
         lambda i, kind, j, layer: f"input_blocks_{1 + 3 * int(i) + int(j)}_{part(kind, layer)}"),
        (r"lora_unet_up_blocks_(\d+)_(attentions|resnets)_(\d+)_(.+)$",
         lambda i, kind, j, layer: f"output_blocks_{3 * int(i) + int(j)}_{part(kind, layer)}"),
        (r"lora_unet_mid_block_(attentions|resnets)_(\d+)_(.+)$", middle),
        (r"lora_unet_down_blocks_(\d+)_downsamplers_0_conv$", lambda i: f"input_blocks_{3 + 3 * int(i)}_0_op"),
        (r"lora_unet_up_blocks_(\d+)_upsamplers_0_conv$",
         lambda i: f"output_blocks_{2 + 3 * int(i)}_{2 if int(i) else 1}_conv"),
    ]
    for pattern, rule in rules:
        found = re.match(pattern, name)
        if found:
            return "diffusion_model_" + rule(*found.groups())
    found = re.match(r"lora_te_text_model_encoder_layers_(\d+)_(.+)$", name)
    return f"transformer_text_model_encoder_layers_{found[1]}_{found[2]}" if found else None


def layers_of(checkpoint):
    """Returns {kohya's name: (diffusers name, single-file name, shape of its weight)} for all
    possible layers."""
    out = {}
    unet = UNet2DConditionModel.from_pretrained(checkpoint, subfolder="unet")
    text = CLIPTextModel.from_pretrained(checkpoint, subfolder="text_encoder")
    for model, prefix, kohya in ((unet, "unet.", "lora_unet_"), (text, "te.", "lora_te_")):
        for name, module in model.named_modules():
            if not isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                continue
            if model is text:
                name = "text_model." + name.removeprefix("text_model.")
            single = (sd15.ldm_name("unet", name + ".weight").removeprefix("model.").removesuffix(".weight")
                      if model is unet else "transformer." + name)
            out[kohya + name.replace(".", "_")] = (prefix + name, single.replace(".", "_"), module.weight.shape)
    return out


def names_fit(layers, files):
    """Checks the kohya file's names and shapes. Returns the problems and the number of layers
    checked."""
    tensors = load_file(files["kohya"])
    problems = []
    names = sorted({key.split(".", 1)[0] for key in tensors})
    for name in names:
        if name not in layers:
            problems.append(f"{name} is no layer's name")
            continue
        dotted, single, shape = layers[name]
        parts = {key.split(".", 1)[1]: value for key, value in tensors.items() if key.split(".", 1)[0] == name}
        rank = parts["lora_down.weight"].shape[0]
        ones = (1,) * (len(shape) - 2)
        wanted = {"lora_down.weight": (rank, *shape[1:]), "lora_up.weight": (shape[0], rank, *ones), "alpha": ()}
        if {key: tuple(value.shape) for key, value in parts.items()} != wanted:
            problems.append(f"{name} has {parts.keys()}, wanted {wanted}")
        if a1111_name(name) != single:
            problems.append(f"AUTOMATIC1111 takes {name} for {a1111_name(name)}, not {single}")
        if sdcpp_name(name.removeprefix("lora_")) != dotted:
            problems.append(f"stable-diffusion.cpp takes {name} for {sdcpp_name(name)}, not {dotted}")
    converted = convert_state_dict_to_kohya(
        {re.sub(r"lora(_linear_layer)?\.(down|up)", lambda m: "lora_" + "AB"[m[2] == "up"], key): value
         for key, value in load_file(files["diffusers"]).items()})
    # diffusers gives the text encoder a number, as in SDXL.
    converted = {key.replace("lora_te1_", "lora_te_") for key in converted}
    if converted != set(tensors):
        problems.append(f"diffusers' converter names others: {sorted(converted ^ set(tensors))[:4]}")
    with safe_open(files["kohya"], "pt") as file:
        metadata = file.metadata()
    for key, value in (("ss_network_module", "networks.lora"), ("ss_network_dim", str(COMMON["rank"]))):
        if metadata.get(key) != value:
            problems.append(f"{key} is {metadata.get(key)}, not {value}")
    return problems, len(names)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    checkpoint = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "share/tiny-sd"
    plain = draw(checkpoint, None)
    layers = layers_of(checkpoint)
    worst, problems = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for what, fields in JOBS.items():
            (folder / "job.json").write_text(json.dumps(COMMON | fields))
            files = {form: folder / f"{form}.safetensors" for form in ("diffusers", "kohya")}
            for form, file in files.items():
                subprocess.run([build / "tests/reference/adapter_tool", checkpoint, form, file, folder / "job.json"],
                               check=True)
                theirs = draw(checkpoint, file)
                error = ((ours(build, checkpoint, file, folder) - theirs).norm() / theirs.norm()).item()
                moved = ((theirs - plain).norm() / plain.norm()).item()
                worst = max(worst, error)
                print(f"{what}, {form}: {error:.1e} from diffusers, {moved:.2f} from no adapter")
                assert moved > 0.01, "the adapter changes nothing"
            found, looked = names_fit(layers, files)
            print(f"{what}: {looked} layers are named for kohya's readers, {len(found)} problems")
            problems += found
    print(*problems, sep="\n", end="\n" * bool(problems))
    print(f"worst: {worst:.1e}")
    sys.exit(worst > 1e-3 or bool(problems))


main()
