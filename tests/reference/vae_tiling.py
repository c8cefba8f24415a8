"""Runs diffusers' tiled VAE with the bundled checkpoint, for
tests/engine/drawing/vae_tiling_test.c. It makes a decode and an encode whose last tiles are cut in
both directions (in one direction, the last two tiles). It stores every nth number of each result,
and how far each is from the untiled result.

usage: vae_tiling.py CHECKPOINT OUT.safetensors
"""
import sys

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

from small_models import signal

LATENTS, STRIDES = (1, 4, 34, 26), (7, 5)


def compare(tiled, whole):
    return torch.tensor([((tiled - whole).norm() / whole.norm()).item(), (tiled - whole).abs().max().item()])


def main(checkpoint, out):
    vae = AutoencoderKL.from_pretrained(checkpoint + "/vae").eval()
    latents = signal("latents", LATENTS)
    image = torch.tanh(signal("image", (1, 34 * 8, 26 * 8, 3))).permute(0, 3, 1, 2)
    told = {}
    with torch.no_grad():
        z = latents / vae.config.scaling_factor
        whole = {"decode": vae.decode(z).sample, "encode": vae.encode(image).latent_dist.parameters}
        vae.enable_tiling()
        print("tiles of", vae.tile_latent_min_size, "latents,", vae.tile_sample_min_size, "px")
        tiled = {"decode": vae.decode(z).sample, "encode": vae.encode(image).latent_dist.parameters}
    for name in whole:
        rows, columns = STRIDES if name == "decode" else (2, 2)
        told[name] = tiled[name][0].permute(1, 2, 0)[::rows, ::columns].contiguous()
        told[name + ".seam"] = compare(tiled[name], whole[name])
        print(name, tuple(tiled[name].shape), "seam:", told[name + ".seam"].tolist())
    save_file(told, out)


main(*sys.argv[1:])
