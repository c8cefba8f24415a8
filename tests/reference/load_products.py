"""Trains a few steps of each kind of adapter that is no plain LoRA, loads the files into diffusers and
LyCORIS, and compares what they draw with latentd's own drawing. Run it by hand, after work on the
formats.

usage: python tests/reference/load_products.py BUILD
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2, lycoris-lora 4.1.3; the bundled checkpoint)

diffusers loads rsLoRA and DoRA in its own format. LyCORIS makes its modules from the files in kohya's format and its
own, layer by layer, and computes with their forward: its merge_to multiplies LoHa by its scale twice if alpha is not
the rank. Every layer of a file must be one of the model's. A LoKr module is made with the job's factor, as when its
training goes on: LyCORIS 4.1.3 guesses the factor from the shapes in a file, wrongly for convolutions of 3x3."""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from lycoris.modules import get_module, make_module
from lycoris.modules.lokr import LokrModule
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "share/tiny-sd"
PROMPT = "a red house on green hills"
COMMON = {"name": "check", "dataset": "framed", "resolution": 128, "max_train_steps": 8, "seed": 5, "rank": 4,
          "alpha": 2, "learning_rate": 2e-2, "train_batch_size": 2, "report_to": "none",
          "target_modules": ["to_q", "to_v", "to_out.0", "ff.net.2", "proj_in", "conv1"]}
BOTH = {"train_text_encoder": True}
JOBS = {  # fields, and who reads the file
    "rsLoRA": ({"use_rslora": True} | BOTH, "diffusers"),
    "rsLoRA, kohya": ({"use_rslora": True, "save_format": "kohya"} | BOTH, "lycoris"),
    "DoRA": ({"use_dora": True}, "diffusers"),
    "DoRA, kohya": ({"use_dora": True, "save_format": "kohya"} | BOTH, "lycoris"),
    "LoHa": ({"adapter_type": "loha"} | BOTH, "lycoris"),
    "LoKr": ({"adapter_type": "lokr"} | BOTH, "lycoris"),
    "LoKr, both decomposed": ({"adapter_type": "lokr", "lokr_decompose_both": True, "lokr_factor": 8, "rank": 1},
                              "lycoris"),
}


def module_of(state, name, layer, fields):
    if fields.get("adapter_type") != "lokr":
        return make_module(*get_module(state, name), name, layer)
    own = {key.split(".", 1)[1]: value for key, value in state.items() if key.split(".")[0] == name}
    module = LokrModule(name, layer, 1.0, lora_dim=fields.get("rank", COMMON["rank"]), alpha=own["alpha"].item(),
                        factor=fields.get("lokr_factor", -1), decompose_both=fields.get("lokr_decompose_both", False))
    found = module.load_state_dict(own, strict=False)
    assert not found.unexpected_keys and set(found.missing_keys) <= {"scalar"}, found
    return module


def apply_lycoris(file, pipe, fields):
    """Returns the modules, which must live as long as the models are used."""
    state, layers, modules = load_file(file), {}, []
    for name, layer in pipe.unet.named_modules():
        layers["lora_unet_" + name.replace(".", "_")] = layer
    for name, layer in pipe.text_encoder.named_modules():
        layers["lora_te_text_model_" + name.removeprefix("text_model.").replace(".", "_")] = layer
    for name in sorted({key.split(".")[0] for key in state}):
        module = module_of(state, name, layers[name], fields)
        assert module is not None, f"{name} is no module"
        module.eval().apply_to()
        modules.append(module)
    return modules


def draw(file, reader, fields):
    pipe = StableDiffusionPipeline.from_pretrained(MODEL, torch_dtype=torch.float32, safety_checker=None)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    if reader == "diffusers":
        pipe.load_lora_weights(file.parent, weight_name=file.name)
    if reader == "lycoris":
        modules = apply_lycoris(file, pipe, fields)
        assert modules
    return pipe(PROMPT, num_inference_steps=5, guidance_scale=2.5, height=128, width=128, output_type="latent",
                generator=torch.Generator().manual_seed(7)).images


def train(build, folder, fields):
    (folder / "job.json").write_text(json.dumps(COMMON | fields))
    out = folder / "out"
    subprocess.run([build / "latentd", "train", "--model", MODEL, "--config", folder / "job.json", "--dataset-root",
                    ROOT / "share/pictures", "--out", out, "--cache", folder.parent / "cache", "-q"], check=True)
    return out / "check.safetensors"


def ours(build, folder, file):
    out = folder / "latents.safetensors"
    subprocess.run([build / "latentd", "generate", "--model", MODEL, "--prompt", PROMPT, "--steps", "5",
                    "--guidance-scale", "2.5", "--seed", "7", "--scheduler", "ddim", "--dtype", "f32", "-q",
                    "--lora", file, "--save-latents", out, "-o", folder / "out.png"], check=True)
    return load_file(out)["latents"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    plain, worst = draw(None, None, {}), 0
    with tempfile.TemporaryDirectory() as name:
        for number, (what, (fields, reader)) in enumerate(JOBS.items()):
            folder = pathlib.Path(name) / str(number)
            folder.mkdir()
            file = train(build, folder, fields)
            theirs = draw(file, reader, fields)
            error = ((ours(build, folder, file) - theirs).norm() / theirs.norm()).item()
            moved = ((theirs - plain).norm() / plain.norm()).item()
            worst = max(worst, error)
            print(f"{what}: {error:.1e} from {reader}, {moved:.2f} from no adapter")
            assert moved > 0.01, "the adapter changes nothing"
    print(f"worst: {worst:.1e}")
    sys.exit(worst > 1e-3)


main()
