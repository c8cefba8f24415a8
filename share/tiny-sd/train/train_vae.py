"""The autoencoder: 128x128x3 to 16x16x4 and back.

The loss is of the picture (absolute and squared), of its slopes (so that
edges stay sharp without a discriminator), and a little KL, which keeps the
latents smooth enough for the UNet.
"""
import os
import sys

import numpy as np
import torch
from diffusers import AutoencoderKL

from make_scenes import FIRST_TEST
from run import Run, threads
from scenes import scene

BATCH = 6


def new_vae():
    return AutoencoderKL(in_channels=3, out_channels=3, latent_channels=4,
                         block_out_channels=(16, 24, 48, 96), layers_per_block=1,
                         down_block_types=('DownEncoderBlock2D',) * 4,
                         up_block_types=('UpDecoderBlock2D',) * 4,
                         norm_num_groups=8, sample_size=128, scaling_factor=1.0)


def to_tensor(pictures):
    x = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2)
    return x.contiguous().float().div(127.5).sub(1)


def slopes(a):
    return a[..., 1:] - a[..., :-1], a[..., 1:, :] - a[..., :-1, :]


def passes(vae, x, noise):
    moments = vae.quant_conv(vae.encoder(x))
    mean, log_var = moments.chunk(2, 1)
    log_var = log_var.clamp(-20, 10)
    z = mean + torch.exp(.5 * log_var) * noise
    y = vae.decoder(vae.post_quant_conv(z))
    kl = .5 * (mean.pow(2) + log_var.exp() - 1 - log_var).mean()
    loss = (y - x).abs().mean() + 2 * (y - x).pow(2).mean() + 1e-3 * kl
    for a, b in zip(slopes(y), slopes(x)):
        loss = loss + (a - b).abs().mean()
    return loss


def test(vae, count=32):
    """Peak signal to noise on scenes never seen, and the latents' spread."""
    x = to_tensor(np.stack([np.asarray(scene(FIRST_TEST + i)[1]) for i in range(count)]))
    with torch.no_grad():
        z = vae.encode(x).latent_dist.mean
        y = vae.decode(z).sample.clamp(-1, 1)
    psnr = -10 * torch.log10(((y - x) / 2).pow(2).mean()).item()
    print(f'unseen scenes: {psnr:.2f} dB, latents: mean {z.mean().item():.3f}, '
          f'std {z.std().item():.3f}')
    return x, y, z


def main(folder, minutes):
    threads()
    torch.manual_seed(1)
    vae = new_vae().train()
    run = Run(os.path.join(folder, 'vae.pt'), vae.parameters(), minutes, 1.6e-3, 200, (.9, .98))
    pictures = np.load(os.path.join(folder, 'scenes.npy'), mmap_mode='r')
    while not run.done():
        picked = torch.randint(len(pictures), (BATCH,)).sort().values.numpy()
        run.learn(passes(vae, to_tensor(pictures[picked]), torch.randn(BATCH, 4, 16, 16)))
    run.save()
    run.put_average()
    vae.eval()
    z = test(vae)[2]
    vae.register_to_config(scaling_factor=round(1 / z.std().item(), 5))
    vae.save_pretrained(os.path.join(folder, 'vae'))


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
