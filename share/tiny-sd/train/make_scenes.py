"""Draws the training scenes into one numpy file, and writes their attributes to a JSON file
beside it."""
import json
import os
from multiprocessing import Pool

import numpy as np

from scenes import SIZE, scene

FIRST_TEST = 10_000_000  # training never uses scenes from this number on


def numbered(i):
    a, image = scene(i)
    return a, np.asarray(image)


def make(folder, count, workers=2):
    pictures = os.path.join(folder, 'scenes.npy')
    words = os.path.join(folder, 'scenes.json')
    if os.path.exists(words):
        return
    out = np.lib.format.open_memmap(pictures, 'w+', np.uint8, (count, SIZE, SIZE, 3))
    attributes = []
    with Pool(workers) as pool:
        for i, (a, image) in enumerate(pool.imap(numbered, range(count), 100)):
            out[i] = image
            attributes.append(a)
    out.flush()
    with open(words + '.part', 'w') as f:
        json.dump(attributes, f)
    os.replace(words + '.part', words)  # last: it marks the pictures as complete


def attributes_of(folder):
    with open(os.path.join(folder, 'scenes.json')) as f:
        return json.load(f)
