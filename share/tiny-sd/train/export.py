"""Puts the trained parts together as a diffusers folder in half precision.

The averaged weights of unfinished parts are taken from their trainings' checkpoints, so that a
model can be tried early:

  export.py WORK_FOLDER OUT
"""
import json
import os
import shutil
import sys

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from train_text import new_text_encoder
from train_unet import new_unet
from train_vae import new_vae, test

# The values that latentd uses for fields missing from a request.
DEFAULTS = {'defaults': {'guidance_scale': 2.5, 'width': 128, 'height': 128}}
INDEX = {
    '_class_name': 'StableDiffusionPipeline', '_diffusers_version': '0.6.0',
    'feature_extractor': [None, None],
    'safety_checker': [None, None],
    'requires_safety_checker': False,
    'scheduler': ['diffusers', 'PNDMScheduler'],
    'text_encoder': ['transformers', 'CLIPTextModel'],
    'tokenizer': ['transformers', 'CLIPTokenizer'],
    'unet': ['diffusers', 'UNet2DConditionModel'],
    'vae': ['diffusers', 'AutoencoderKL'],
}
# The scheduler of Stable Diffusion 1.5.
SCHEDULER = {
    '_class_name': 'PNDMScheduler', '_diffusers_version': '0.6.0',
    'beta_schedule': 'scaled_linear', 'beta_start': 0.00085, 'beta_end': 0.012,
    'num_train_timesteps': 1000, 'trained_betas': None, 'prediction_type': 'epsilon',
    'clip_sample': False, 'set_alpha_to_one': False, 'skip_prk_steps': True, 'steps_offset': 1,
}


def averaged(model, checkpoint):
    """Returns the model, with the averaged weights of an unfinished training if there is a
    checkpoint of one."""
    if os.path.exists(checkpoint):
        average = torch.load(checkpoint, weights_only=True)['average']
        with torch.no_grad():
            for p, mean in zip(model.parameters(), average):
                p.copy_(mean)
    return model.eval()


def part(work, name, kind, fresh):
    """Loads a part from its folder if it is finished, else from its training's checkpoint."""
    folder = os.path.join(work, name)
    if os.path.isdir(folder):
        return kind.from_pretrained(folder)
    torch.manual_seed(0)
    return averaged(fresh(), os.path.join(work, {'text_encoder': 'text'}.get(name, name) + '.pt'))


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as f:
        f.write(json.dumps(value, indent=2) + '\n')


def export(work, out):
    new = out + '.part'
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(os.path.join(work, 'tokenizer'), os.path.join(new, 'tokenizer'))
    tokens = len(CLIPTokenizer.from_pretrained(os.path.join(new, 'tokenizer')))
    vae = part(work, 'vae', AutoencoderKL, new_vae)
    if not os.path.isdir(os.path.join(work, 'vae')):  # unfinished: its std is not yet 1
        vae.register_to_config(scaling_factor=round(1 / test(vae)[2].std().item(), 5))
    unet = part(work, 'unet', UNet2DConditionModel, new_unet)
    text = part(work, 'text_encoder', CLIPTextModel, lambda: new_text_encoder(tokens))
    parts = {'vae': vae, 'unet': unet, 'text_encoder': text}
    for name, model in parts.items():
        model.half().save_pretrained(os.path.join(new, name))
        config = os.path.join(new, name, 'config.json')
        with open(config) as f:
            values = json.load(f)
        values.pop('_name_or_path', None)  # the local path is private
        write_json(config, values)
    # transformers computes in the dtype of the stored weights unless the config names another one;
    # diffusers does not. If only the text encoder computed in half precision, the pipeline could
    # not run.
    config = os.path.join(new, 'text_encoder', 'config.json')
    with open(config) as f:
        write_json(config, dict(json.load(f), dtype='float32'))
    write_json(os.path.join(new, 'model_index.json'), INDEX)
    write_json(os.path.join(new, 'latentd.json'), DEFAULTS)
    write_json(os.path.join(new, 'scheduler', 'scheduler_config.json'), SCHEDULER)
    shutil.rmtree(out + '.old', ignore_errors=True)
    if os.path.exists(out):
        os.rename(out, out + '.old')
    os.rename(new, out)
    shutil.rmtree(out + '.old', ignore_errors=True)
    files = [os.path.join(d, f) for d, _, names in os.walk(out) for f in names]
    for f in files:
        os.chmod(f, 0o644)
    size = sum(os.path.getsize(f) for f in files)
    print(f'{out}: {size / 1e6:.1f} MB')


if __name__ == '__main__':
    export(sys.argv[1], sys.argv[2])
