"""Trains the UNet to predict the noise in latents, given the text encoder's states for a caption.

For a model this small, it matters how much each noise level weighs in the loss. At high noise it is
decided where things are, but the plain loss hardly depends on that; at low noise only details
change. So the loss is weighted by min-SNR at low noise and by 1/sqrt(alpha) at high noise. Within a
picture, the pixels around the object weigh most.
"""
import os
import random
import sys

import numpy as np
import torch
from torch import distributed as dist
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from captions import caption, clutter
from make_scenes import attributes_of
from palette import PLACES
from run import WORKERS, Run, in_parallel
from scenes import held_out
from train_text import LENGTH, WIDTH
from train_vae import to_tensor

BATCH = 12  # scenes per worker and step
SCENES = 20_000  # few enough to be seen a few times in 1-2 h
GAMMA, NOISY_MOST = 5, 2
SCHEDULE = dict(beta_schedule='scaled_linear', beta_start=.00085, beta_end=.012,
                num_train_timesteps=1000)


def new_unet():
    # attention_head_dim is in fact the number of heads, as in SD 1.5's config. With narrower heads
    # than these, fused attention is slow on a CPU.
    return UNet2DConditionModel(
        sample_size=16, cross_attention_dim=WIDTH, attention_head_dim=2,
        block_out_channels=(48, 96, 128, 128), layers_per_block=1, norm_num_groups=16,
        down_block_types=('CrossAttnDownBlock2D',) * 3 + ('DownBlock2D',),
        up_block_types=('UpBlock2D',) + ('CrossAttnUpBlock2D',) * 3)


def encode_share(folder):
    """Computes one worker's share of the latents: those of every WORKERS-th scene."""
    rank = dist.get_rank()
    vae = AutoencoderKL.from_pretrained(os.path.join(folder, 'vae')).eval()
    pictures = np.load(os.path.join(folder, 'scenes.npy'), mmap_mode='r')[:SCENES][rank::WORKERS]
    with torch.no_grad():
        parts = [vae.encode(to_tensor(pictures[i:i + 16])).latent_dist.mean
                 for i in range(0, len(pictures), 16)]
    share = torch.cat(parts) * vae.config.scaling_factor
    torch.save(share, os.path.join(folder, f'latents-{rank}.pt'))


def encode_scenes(folder):
    """Returns the latents of the first SCENES scenes. They are computed once and stored."""
    path = os.path.join(folder, 'latents.pt')
    if not os.path.exists(path):
        in_parallel(encode_share, folder)
        shares = [torch.load(os.path.join(folder, f'latents-{rank}.pt'), weights_only=True)
                  for rank in range(WORKERS)]
        torch.save(torch.stack(shares, 1).flatten(0, 1), path + '.part')
        os.replace(path + '.part', path)
    return torch.load(path, weights_only=True)


class Lessons:
    """Makes batches of latents, each with the text encoder's states for a new caption."""

    def __init__(self, folder, seed):
        self.latents = encode_scenes(folder)
        self.attributes = attributes_of(folder)[:len(self.latents)]
        self.allowed = [i for i, a in enumerate(self.attributes) if not held_out(a)]
        self.tokenizer = CLIPTokenizer.from_pretrained(os.path.join(folder, 'tokenizer'))
        self.text = CLIPTextModel.from_pretrained(os.path.join(folder, 'text_encoder')).eval()
        self.random = random.Random(seed)
        self.order = []

    def words(self, a):
        r = self.random
        if r.random() < .1:
            return ''  # classifier-free guidance's empty prompt
        text = caption(a, r)[0]
        return clutter(text, r) if r.random() < .2 else text

    def focus(self, a):
        """Returns each latent pixel's weight in the loss. The pixels around the object weigh
        more: it is small, but most of the prompt is about it."""
        counts = torch.ones(1, 16, 16)
        middle = round(PLACES[a['place']] * 16)
        counts[:, 4:14, middle - 3:middle + 3] = 3
        return counts / counts.mean()

    def batch(self, count):
        if len(self.order) < count:
            self.order = self.random.sample(self.allowed, len(self.allowed))
        picked, self.order = self.order[:count], self.order[count:]
        words = [self.words(self.attributes[i]) for i in picked]
        ids = self.tokenizer(words, padding='max_length', max_length=LENGTH,
                             truncation=True).input_ids
        with torch.no_grad():
            states = self.text(torch.tensor(ids))[0]
        counts = torch.stack([self.focus(self.attributes[i]) for i in picked])
        return self.latents[picked], states, counts


def loss_weights(alphas):
    snr = alphas / (1 - alphas)
    weights = torch.clamp(GAMMA / snr, max=1) * alphas.rsqrt().clamp(max=NOISY_MOST)
    return weights / weights.mean()


def spread_times(count):
    """Divides the timesteps into `count` equal parts and draws one at random from each. The loss
    then varies less than with independent draws."""
    return ((torch.arange(count) + torch.rand(count)) / count * 1000).long().clamp(max=999)


def predict(unet, noisy, times, states):
    return unet(noisy, times, encoder_hidden_states=states, return_dict=False)[0]


def train(folder, minutes):
    torch.manual_seed(3)
    unet = new_unet().train()
    run = Run(os.path.join(folder, 'unet.pt'), unet.parameters(), minutes, 1e-3, 100)
    lessons = Lessons(folder, 2 * run.step + run.rank)
    schedule = DDPMScheduler(**SCHEDULE)
    weights = loss_weights(schedule.alphas_cumprod)
    while not run.done():
        latents, states, counts = lessons.batch(BATCH)
        noise, times = torch.randn_like(latents), spread_times(BATCH)
        noise_seen = predict(unet, schedule.add_noise(latents, noise, times), times, states)
        each = ((noise_seen - noise).pow(2) * counts).mean((1, 2, 3))
        run.learn((each * weights[times]).mean())
    run.save()
    if run.rank == 0:
        run.put_average()
        unet.save_pretrained(os.path.join(folder, 'unet'))


def main(folder, minutes):
    encode_scenes(folder)  # here, so that it is not done in every worker
    in_parallel(train, folder, minutes)


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
