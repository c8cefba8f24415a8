#!/usr/bin/env python3
"""Compares the UNet with adapters at full SD-1.5 size with diffusers and peft, on identical inputs.

    scripts/parity loras [--model FOLDER] [--work DIR] [--tool build/tests/reference/model_tool]
                         [--only lora,both,...] [--size 512]

The adapters are random, for the layers of a random checkpoint. Two are LoRAs of rank 16 for linear
layers and convolutions, one in kohya's format and one in peft's. Each is used alone, and the two
together with weights 0.7 and -0.3. The others are LoHa, LoKr and DoRA as peft writes them. Each
changes its layers by about a fifth of their weights' norm.
All in f32. Prints norm(ours - theirs) / norm(theirs) over the output, and how far the adapters
moved the output. The limit is the same as without adapters; exits with 1 if an error is larger.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import sd15
from parity import F32_BAR, ensure_model, relative_error
from parity_reference import channels_last, make_inputs, note

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
CONV = ["conv1", "conv2", "conv_shortcut", "downsamplers.0.conv", "upsamplers.0.conv"]
OTHER = ["conv_in", "proj_in", "proj_out", "time_emb_proj", "ff.net.0.proj", "ff.net.2"]
FEW = ["attn2.to_k", "attn1.to_out.0", "conv1", "ff.net.0.proj", "conv_shortcut"]
SHARE = 0.2
ADAPTERS = {
    "kohya": LoraConfig(r=16, lora_alpha=8, target_modules=ATTENTION + CONV + OTHER),
    "peft": LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION + CONV),
    "loha": LoHaConfig(r=8, alpha=4, target_modules=FEW),
    "lokr": LoKrConfig(r=8, alpha=16, target_modules=FEW),
    "dora": LoraConfig(r=16, lora_alpha=16, use_dora=True, target_modules=FEW),
}
CASES = {
    "none": [],
    "kohya": [("kohya", 1.0)],
    "peft": [("peft", 0.8)],
    "both": [("kohya", 0.7), ("peft", -0.3)],
    "loha": [("loha", 0.8)],
    "lokr": [("lokr", 0.8)],
    "dora": [("dora", 1.0)],
}
FACTORS = ("lora_B", "hada_w1_a", "lokr_w1")  # the change is linear in each of these


def randomize(model, name):
    """Fills the adapter with random numbers, and scales them so that the norm of its change is
    SHARE of the norm of the layer's weights."""
    generator = torch.Generator().manual_seed(len(name) + sum(name.encode()))
    layers = {}
    for key, parameter in model.named_parameters():
        if f".{name}" not in key:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "magnitude" in key:
            parameter.data *= 1 + 0.1 * noise
        else:
            parameter.data = noise / parameter[0].numel() ** 0.5
        layer, _, factor = key.removesuffix(".weight").removesuffix(f".{name}").rpartition(".")
        if factor.startswith(FACTORS):
            layers[layer] = parameter
    for layer, parameter in layers.items():
        module = model.get_submodule(layer)
        change = module.get_delta_weight(name).norm()
        parameter.data *= SHARE * module.get_base_layer().weight.norm() / change
    return len(layers)


def write_kohya(model, name, path):
    config, tensors = ADAPTERS[name], {}
    for key, parameter in model.named_parameters():
        for part, kohya in (("lora_A", "lora_down"), ("lora_B", "lora_up")):
            if key.endswith(f".{part}.{name}.weight"):
                layer = key.removeprefix("base_model.model.").removesuffix(f".{part}.{name}.weight")
                module = "lora_unet_" + layer.replace(".", "_")
                tensors[f"{module}.{kohya}.weight"] = parameter.detach().contiguous()
                tensors[f"{module}.alpha"] = torch.tensor(float(config.lora_alpha))
    save_file(tensors, path)


def write(model, name, work):
    """Writes kohya's adapter as a file, or any other as peft's folder. Returns the path."""
    path = os.path.join(work, f"lora-{name}" + (".safetensors" if name == "kohya" else ""))
    if name == "kohya":
        write_kohya(model, name, path)
    else:
        shutil.rmtree(path, ignore_errors=True)
        model.save_pretrained(path, selected_adapters=[name])
        inner = os.path.join(path, name)  # peft's place for names other than "default"
        for file in os.listdir(inner) if os.path.isdir(inner) else ():
            os.replace(os.path.join(inner, file), os.path.join(path, file))
    return path


def reference(model_folder, names, cases, inputs, work):
    """Adds the adapters `names` to one model. Returns {case: the output of diffusers and peft}
    and {adapter: file}."""
    unet = sd15.load(model_folder, "unet", torch.float32)
    model, files, out = None, {}, {}
    for name in names:
        if model is None:
            model = get_peft_model(unet, ADAPTERS[name], adapter_name=name)
        else:
            model.add_adapter(name, ADAPTERS[name])
        count = randomize(model, name)
        files[name] = write(model, name, work)
        note(f"{name}: {count} layers")
    for case in cases:
        for module in unet.modules():
            if hasattr(module, "set_adapter") and hasattr(module, "scaling"):
                module.set_adapter([n for n, _ in CASES[case] if n in module.scaling])
                for name, weight in CASES[case]:
                    if name in module.scaling:
                        module.set_scale(name, weight)
        start = time.monotonic()
        with torch.inference_mode():
            y = unet(inputs["latents"], inputs["timesteps"], encoder_hidden_states=inputs["context"])
        out[case] = channels_last(y.sample).clone()
        note(f"diffusers with {case}: {time.monotonic() - start:.0f} s")
    return out, files


def run_latentd(tool, model, case, files, inputs, work):
    given, made = os.path.join(work, "lora-in.st"), os.path.join(work, "lora-out.st")
    save_file({key: channels_last(value) for key, value in inputs.items()}, given)
    command = [tool, "--model", model, "--dtype", "f32", "--component", "unet"]
    for name, weight in CASES[case]:
        command += ["--lora", f"{files[name]}:{weight}"]
    start = time.monotonic()
    subprocess.run(command + ["--input", given, "--output", made], check=True)
    note(f"latentd with {case}: {time.monotonic() - start:.0f} s")
    return load_file(made)["noise_pred"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", required=True, help="the built model_tool")
    parser.add_argument("--work", required=True, help="folder for files")
    parser.add_argument("--model", help="a full-size folder (default: WORK/models/folder-f32)")
    parser.add_argument("--only", help="cases, comma separated")
    parser.add_argument("--size", type=int, default=512, help="px")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(CASES)
    if set(wanted) - set(CASES):
        parser.error(f"--only takes {', '.join(CASES)}")
    os.makedirs(options.work, exist_ok=True)
    model = options.model or ensure_model(
        os.path.join(options.work, "models", "folder-f32"), "folder", "f32"
    )
    inputs = make_inputs("unet", (options.size, options.size), 1)
    with torch.inference_mode():
        unet = sd15.load(model, "unet", torch.float32)
        base = unet(inputs["latents"], inputs["timesteps"], encoder_hidden_states=inputs["context"])
    base = channels_last(base.sample).clone()
    del unet
    print("| adapters | relative error | at most | | the adapters' own share |")
    print("|---|---|---|---|---|")
    missed = 0
    for names in (["kohya", "peft"], ["loha"], ["lokr"], ["dora"]):
        cases = [c for c in wanted if {n for n, _ in CASES[c]} & set(names)]
        theirs, files = reference(model, names, cases, inputs, options.work) if cases else ({}, {})
        if names[0] == "kohya" and "none" in wanted:
            theirs = {"none": base} | theirs
        for case, truth in theirs.items():
            ours = run_latentd(options.tool, model, case, files, inputs, options.work)
            error, share = relative_error(ours, truth), relative_error(truth, base)
            missed += not error <= F32_BAR
            verdict = "ok" if error <= F32_BAR else "MISSED"
            text = " and ".join(f"{n} at {w}" for n, w in CASES[case]) or "none"
            print(f"| {text} | {error:.2e} | {F32_BAR:.0e} | {verdict} | {share:.2f} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
