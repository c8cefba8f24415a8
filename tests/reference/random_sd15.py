#!/usr/bin/env python3
"""Writes a full-size Stable Diffusion 1.5 with random weights.

    random_sd15.py OUT --layout folder|single [--dtype f32|f16|bf16] [--tokenizer DIR] [--seed N]

OUT is a folder in the diffusers layout, or one .safetensors file with the names that the original
single-file checkpoint has. Every number depends on (seed, tensor name) alone, and is rounded to
float16 whatever the dtype on disk, so that the f32 and f16 files of both layouts hold the same
model.

The scale is that of a trained network, so that speed and rounding errors mean something: matrices
as torch initialises them, query and key projections larger (attention that looks at few places
instead of averaging everything), norms around 1 and 0 but no two channels alike, so that a
swapped or forgotten gain, shift or bias shows.
"""

import argparse
import math
import os
import shutil
import sys
import zlib

import torch
from safetensors.torch import save_file

import sd15

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
QUERY_KEY_GAIN = 2.0  # gives scores a standard deviation of 1.3, not 0.33
TOKENIZER_FILES = ("vocab.json", "merges.txt")


def is_norm(name):
    return "norm" in name.rsplit(".", 2)[-2]


def random_tensor(name, shape, fan_in, seed):
    """Returns one tensor in float32, rounded to float16."""
    generator = torch.Generator().manual_seed((seed << 32) | zlib.crc32(name.encode()))
    if "embedding" in name and name.startswith("text_model."):
        value = torch.randn(shape, generator=generator) * 0.02
    elif is_norm(name):
        value = torch.randn(shape, generator=generator)
        value = 1 + 0.2 * value if name.endswith(".weight") else 0.1 * value
    else:
        bound = 1 / math.sqrt(fan_in)
        if name.endswith((".to_q.weight", ".to_k.weight", ".q_proj.weight", ".k_proj.weight")):
            bound *= QUERY_KEY_GAIN
        value = (torch.rand(shape, generator=generator) * 2 - 1) * bound
    return value.half().float()


def component_tensors(component, seed, dtype):
    """Returns {diffusers name: tensor in dtype}."""
    shapes = sd15.shapes(component)
    out = {}
    for name, shape in shapes.items():
        weight = shapes[name.rsplit(".", 1)[0] + ".weight"]
        fan_in = math.prod(weight[1:])  # a bias uses the fan-in of its weight
        out[name] = random_tensor(name, shape, fan_in, seed).to(dtype)
    return out


def write_folder(out, dtype, tokenizer, seed):
    sd15.write_json(os.path.join(out, "model_index.json"), sd15.MODEL_INDEX)
    sd15.write_json(os.path.join(out, "scheduler/scheduler_config.json"), sd15.SCHEDULER_CONFIG)
    for component in sd15.COMPONENTS:
        folder = os.path.join(out, component)
        sd15.write_json(os.path.join(folder, "config.json"), sd15.CONFIGS[component])
        path = os.path.join(folder, sd15.FILES[component])
        save_file(component_tensors(component, seed, dtype), path + ".part", {"format": "pt"})
        os.replace(path + ".part", path)
    if tokenizer:
        sd15.write_json(
            os.path.join(out, "tokenizer/tokenizer_config.json"), sd15.TOKENIZER_CONFIG
        )
        for name in TOKENIZER_FILES:
            shutil.copy(os.path.join(tokenizer, name), os.path.join(out, "tokenizer", name))


def write_single(out, dtype, seed):
    tensors = {}
    for component in sd15.COMPONENTS:
        for name, tensor in component_tensors(component, seed, dtype).items():
            shape = sd15.ldm_shape(component, name, tensor.shape)
            tensors[sd15.ldm_name(component, name)] = tensor.reshape(shape)
    # Leftovers of training, which real files contain and a reader must ignore.
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    tensors["betas"] = betas.float()
    tensors["alphas_cumprod"] = torch.cumprod(1 - betas, 0).float()
    tensors["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(
        sd15.TEXT_CONFIG["max_position_embeddings"]
    )[None]
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    save_file(tensors, out + ".part", {"format": "pt"})
    os.replace(out + ".part", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--layout", choices=("folder", "single"), required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="f16")
    parser.add_argument("--tokenizer", help="folder with CLIP's vocab.json and merges.txt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--list", action="store_true", help="print component, both names and shape; write nothing"
    )
    options = parser.parse_args()
    if options.list:
        for component in sd15.COMPONENTS:
            for name, shape in sd15.shapes(component).items():
                size = "x".join(map(str, shape))
                print(component, name, sd15.ldm_name(component, name), size, sep="\t")
        return 0
    if options.layout == "folder":
        write_folder(options.out, DTYPES[options.dtype], options.tokenizer, options.seed)
    else:
        write_single(options.out, DTYPES[options.dtype], options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
