"""Trains the autoencoder: 128x128x3 to 16x16x4 and back.

The loss is the sum of four terms. The first is the absolute and squared error of the picture. The
second is the error of its slopes, so that edges stay sharp without a discriminator. The third is a
little KL, which keeps the latents smooth enough for the UNet. The fourth pulls the latents' first
three channels towards the picture's own colours, at an eighth of its size and scaled to the same
variance in all directions of colour. Without the fourth term the autoencoder put the objects' seven
colours on one line in the space of latents, and the UNet confused colours that were neighbours on
that line. Most of a scene is smooth sky and ground, which is learnt in minutes. So the training
uses strips of full height, mostly around the object, and a pixel weighs more the more it differs
from the median of its row.
"""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from make_scenes import FIRST_TEST, attributes_of
from palette import PLACES
from run import Run, in_parallel
from scenes import SIZE, scene

BATCH, STRIP = 3, 64  # strips per worker and step, their width
# The mean of the scenes' colours (-1 to 1, averaged over 8x8 blocks), and the square root of the
# inverse of their covariance, measured on 400 scenes.
MEAN_COLOUR = (.065, .055, .111)
SPREAD = ((2.509, -1.441, .099), (-1.441, 4.161, -1.344), (.099, -1.344, 2.791))


def new_vae():
    return AutoencoderKL(in_channels=3, out_channels=3, latent_channels=4,
                         block_out_channels=(16, 24, 48, 96), layers_per_block=1,
                         down_block_types=('DownEncoderBlock2D',) * 4,
                         up_block_types=('UpDecoderBlock2D',) * 4,
                         norm_num_groups=8, sample_size=128, scaling_factor=1.0)


def to_tensor(pictures):
    x = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2)
    return x.contiguous().float().div(127.5).sub(1)


def pixel_counts(picture):
    """Returns each pixel's weight in the loss. The weight grows with the pixel's difference from
    the median of its row."""
    row = np.median(picture, axis=1, keepdims=True)
    return 1 + 4 * np.minimum(np.abs(picture - row).mean(-1) / 90, 1)


def strip_at(a, r):
    """Returns the left edge of a strip, in most cases one around the object."""
    middle = PLACES[a['place']] if r.random() < .7 else r.random()
    return int(np.clip(middle * SIZE + r.integers(-16, 17) - STRIP / 2, 0, SIZE - STRIP))


def batch(pictures, attributes, r):
    """Returns strips of scenes, and the weight of each of their pixels in the loss."""
    strips, counts = [], []
    for i in r.integers(len(pictures), size=BATCH):
        picture = pictures[i]
        left = strip_at(attributes[i], r)
        strips.append(picture[:, left:left + STRIP])
        counts.append(pixel_counts(picture)[None, :, left:left + STRIP])
    counts = torch.from_numpy(np.stack(counts)).float()
    return to_tensor(np.stack(strips)), counts / counts.mean()


def slopes(a):
    return a[..., 1:] - a[..., :-1], a[..., 1:, :] - a[..., :-1, :]


def picture_loss(y, x, counts):
    loss = (((y - x).abs() + 2 * (y - x).pow(2)) * counts).mean()
    for a, b in zip(slopes(y), slopes(x)):
        loss = loss + (a - b).abs().mean()
    return loss


def spread_colours(x):
    """Returns the picture's colours at an eighth of its size, scaled to variance 1 in every
    direction of colour."""
    small = F.avg_pool2d(x, 8) - torch.tensor(MEAN_COLOUR).view(1, 3, 1, 1)
    return torch.einsum('ij,bjhw->bihw', torch.tensor(SPREAD), small)


def passes(vae, x, counts):
    moments = vae.quant_conv(vae.encoder(x))
    mean, log_var = moments.chunk(2, 1)
    log_var = log_var.clamp(-20, 10)
    z = mean + torch.exp(.5 * log_var) * torch.randn_like(mean)
    y = vae.decoder(vae.post_quant_conv(z))
    kl = .5 * (mean.pow(2) + log_var.exp() - 1 - log_var).mean()
    colours = (mean[:, :3] - spread_colours(x)).pow(2).mean()
    return picture_loss(y, x, counts) + 5e-4 * kl + .1 * colours


def test(vae, count=32):
    """Draws unseen scenes, and prints the peak signal-to-noise ratio of the decoded pictures and
    the mean and standard deviation of the latents. Returns the pictures, the decoded pictures
    and the latents."""
    x = to_tensor(np.stack([np.asarray(scene(FIRST_TEST + i)[1]) for i in range(count)]))
    with torch.no_grad():
        z = vae.encode(x).latent_dist.mean
        y = vae.decode(z).sample.clamp(-1, 1)
    psnr = -10 * torch.log10(((y - x) / 2).pow(2).mean()).item()
    off = (z[:, :3] - spread_colours(x)).pow(2).mean().sqrt().item()
    print(f'unseen scenes: {psnr:.2f} dB, latents: mean {z.mean().item():.3f}, '
          f'std {z.std().item():.3f}, off their colours by {off:.3f}')
    return x, y, z


def balance(vae, z):
    """Scales each latent channel to mean 0 and standard deviation 1, by changing the weights of the
    1x1 convolutions on both sides.

    Otherwise the fourth channel, which is not tied to colours, would vary more than the others, and
    the UNet would attend to it most.
    """
    mean, std = z.mean((0, 2, 3)), z.std((0, 2, 3))
    to_latents, from_latents = vae.quant_conv, vae.post_quant_conv
    with torch.no_grad():
        to_latents.weight[:4] /= std.view(4, 1, 1, 1)
        to_latents.bias[:4] = (to_latents.bias[:4] - mean) / std
        to_latents.bias[4:] -= 2 * std.log()
        from_latents.bias += from_latents.weight[:, :, 0, 0] @ mean
        from_latents.weight *= std.view(1, 4, 1, 1)


def train(folder, minutes):
    torch.manual_seed(1)
    vae = new_vae().train()
    run = Run(os.path.join(folder, 'vae.pt'), vae.parameters(), minutes, 1.4e-3, 100, (.9, .98))
    pictures = np.load(os.path.join(folder, 'scenes.npy'), mmap_mode='r')
    attributes = attributes_of(folder)
    r = np.random.default_rng([run.step, run.rank])
    while not run.done():
        run.learn(passes(vae, *batch(pictures, attributes, r)))
    run.save()
    if run.rank:
        return
    run.put_average()
    vae.eval()
    balance(vae, test(vae)[2])
    test(vae)
    vae.save_pretrained(os.path.join(folder, 'vae'))


def main(folder, minutes):
    in_parallel(train, folder, minutes)


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
