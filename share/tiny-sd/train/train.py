"""Makes the whole checkpoint: scenes, words, autoencoder, text encoder, UNet.

  train.py WORK_FOLDER OUT [VAE_MINUTES TEXT_MINUTES UNET_MINUTES]

To resume, run this again: parts that are already in the work folder are kept, and a training that
was killed continues from its checkpoint.
"""
import os
import sys

import make_scenes
import make_tokenizer
import train_text
import train_unet
import train_vae
from export import export

SCENES = 40_000


def main(work, out, vae='60', text='6', unet='90'):
    os.makedirs(work, exist_ok=True)
    make_scenes.make(work, SCENES)
    make_tokenizer.build(os.path.join(work, 'tokenizer'))
    for name, training, minutes in (('vae', train_vae, vae), ('text_encoder', train_text, text),
                                    ('unet', train_unet, unet)):
        if not os.path.isdir(os.path.join(work, name)):
            print(f'{name}: {minutes} minutes', flush=True)
            training.main(work, float(minutes))
    export(work, out)


if __name__ == '__main__':
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    main(*sys.argv[1:])
