"""Sharpens the decoder once the latents are settled.

The UNet's training fixes the encoder; the decoder may go on learning. It is
given a little noise with the latents, as what the UNet makes is never exact.
"""
import os
import sys

import numpy as np
import torch
from diffusers import AutoencoderKL

from make_scenes import attributes_of
from run import Run, in_parallel
from train_unet import encode_scenes
from train_vae import STRIP, picture_loss, pixel_counts, strip_at, test, to_tensor

BATCH = 4  # a worker's strips a step
NOISE = .03  # of the latents' spread


def batch(latents, pictures, attributes, r):
    strips, counts, codes = [], [], []
    for i in r.integers(len(latents), size=BATCH):
        left = strip_at(attributes[i], r) // 8 * 8
        picture = pictures[i]
        strips.append(picture[:, left:left + STRIP])
        counts.append(pixel_counts(picture)[None, :, left:left + STRIP])
        codes.append(latents[i][:, :, left // 8:(left + STRIP) // 8])
    counts = torch.from_numpy(np.stack(counts)).float()
    codes = torch.stack(codes)
    codes = codes + NOISE * torch.randn_like(codes)
    return codes, to_tensor(np.stack(strips)), counts / counts.mean()


def train(folder, minutes):
    vae = AutoencoderKL.from_pretrained(os.path.join(folder, 'vae')).train()
    parts = [*vae.post_quant_conv.parameters(), *vae.decoder.parameters()]
    run = Run(os.path.join(folder, 'decoder.pt'), parts, minutes, 1e-3, 50)
    latents = encode_scenes(folder)
    pictures = np.load(os.path.join(folder, 'scenes.npy'), mmap_mode='r')
    attributes = attributes_of(folder)
    r = np.random.default_rng([run.step, run.rank])
    while not run.done():
        codes, x, counts = batch(latents, pictures, attributes, r)
        y = vae.decoder(vae.post_quant_conv(codes / vae.config.scaling_factor))
        run.learn(picture_loss(y, x, counts))
    run.save()
    if run.rank == 0:
        run.put_average()
        test(vae.eval())
        vae.save_pretrained(os.path.join(folder, 'vae-sharp'))


def main(folder, minutes):
    in_parallel(train, folder, minutes)


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
