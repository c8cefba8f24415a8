"""Makes one of the bundled adapters: a LoRA of the checkpoint's UNet.

  train_adapter.py CHECKPOINT STYLE OUT.safetensors [STEPS [--kohya]]

STYLE is a name in styles.py. The adapter is trained on pictures of scenes with the style, and on
captions of the plain scenes. It is written in diffusers' format; with --kohya, under kohya's names
and with an alpha of half the rank.
"""
import argparse
import random

import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import CLIPTextModel, CLIPTokenizer

import numpy as np

from captions import caption
from scenes import held_out, scene
from styles import STYLES
from train_text import LENGTH
from train_unet import SCHEDULE, loss_weights, predict, spread_times
from train_vae import to_tensor

RANK, BATCH, SCENES, RATE = 8, 12, 1200, 2e-3
TARGETS = ['to_q', 'to_k', 'to_v', 'to_out.0', 'proj_in', 'proj_out', 'conv1', 'conv2']


def lessons(checkpoint, style):
    """Returns the latents of scenes with the style, and the text encoder's states for captions
    of the plain scenes."""
    vae = AutoencoderKL.from_pretrained(checkpoint, subfolder='vae').eval()
    tokenizer = CLIPTokenizer.from_pretrained(checkpoint, subfolder='tokenizer')
    text = CLIPTextModel.from_pretrained(checkpoint, subfolder='text_encoder').eval()
    pictures, words, seed = [], [], 1 << 20
    while len(pictures) < SCENES:
        seed += 1
        attributes, picture = scene(seed)
        if held_out(attributes):
            continue
        r = random.Random(seed)
        pictures.append(np.asarray(STYLES[style](picture, r)))
        words.append('' if r.random() < .1 else caption(attributes, r)[0])
    with torch.no_grad():
        latents = torch.cat([vae.encode(to_tensor(np.stack(pictures[i:i + 16]))).latent_dist.mean
                             for i in range(0, SCENES, 16)]) * vae.config.scaling_factor
        ids = tokenizer(words, padding='max_length', max_length=LENGTH, truncation=True).input_ids
        states = torch.cat([text(torch.tensor(ids[i:i + 64]))[0] for i in range(0, SCENES, 64)])
    return latents, states


def learn(unet, latents, states, steps):
    """Trains the adapter: noise prediction weighted as in the UNet's own training, and a rate
    that follows a cosine."""
    parameters = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(.9, .99), weight_decay=0)
    average = [p.detach().clone() for p in parameters]
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE * .02)
    schedule = DDPMScheduler(**SCHEDULE)
    weights = loss_weights(schedule.alphas_cumprod)
    mean = None
    for step in range(steps):
        picked = torch.randint(len(latents), (BATCH,))
        clean, noise, times = latents[picked], torch.randn(BATCH, *latents.shape[1:]), spread_times(BATCH)
        seen = predict(unet, schedule.add_noise(clean, noise, times), times, states[picked])
        loss = ((seen - noise).pow(2).mean((1, 2, 3)) * weights[times]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1)
        optimizer.step()
        rates.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in parameters], max(.01, 1 / (1 + step / 8)))
        mean = loss.item() if mean is None else .98 * mean + .02 * loss.item()
        if step % 50 == 49:
            print(f'step {step + 1} of {steps}  loss {mean:.4f}', flush=True)
    with torch.no_grad():
        torch._foreach_copy_(parameters, average)


def as_kohya(tensors):
    """Renames the tensors as kohya does. Alpha is half the rank, which halves the change, so
    `up` is stored doubled."""
    out = {}
    for key, tensor in tensors.items():
        module, factor = key.removesuffix('.weight').rsplit('.', 1)
        name = 'lora_unet_' + module.replace('.', '_')
        down = factor == 'lora_A'
        out[f'{name}.{"lora_down" if down else "lora_up"}.weight'] = tensor if down else tensor * 2
        out[f'{name}.alpha'] = torch.tensor(RANK / 2)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('checkpoint')
    parser.add_argument('style', choices=list(STYLES))
    parser.add_argument('out')
    parser.add_argument('steps', type=int, nargs='?', default=450)
    parser.add_argument('--kohya', action='store_true')
    a = parser.parse_args()
    torch.manual_seed(15)
    latents, states = lessons(a.checkpoint, a.style)
    unet = UNet2DConditionModel.from_pretrained(a.checkpoint, subfolder='unet', torch_dtype=torch.float32)
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS))
    learn(unet, latents, states, a.steps)
    tensors = {k: v.detach().half().contiguous() for k, v in get_peft_model_state_dict(unet).items()}
    if a.kohya:
        named = {k: v.half() for k, v in as_kohya(tensors).items()}
        save_file(named, a.out, metadata={'ss_network_module': 'networks.lora', 'ss_network_dim': str(RANK),
                                          'ss_network_alpha': str(RANK / 2), 'ss_output_name': a.style})
    else:
        save_file({f'unet.{k}': v for k, v in tensors.items()}, a.out, metadata={'format': 'pt'})


if __name__ == '__main__':
    main()
