"""Records how kohya's sd-scripts choose buckets, how torchvision resizes and crops, and how
diffusers' inpainting script draws masks.

usage: datasets.py FILE        (tests/train/datasets/datasets.json)

make_bucket_resolutions, BucketManager.select_bucket, Resize, CenterCrop and random_mask are copied
here from their sources; Python's random, numpy and Pillow (13.0.0 was used) are the real libraries.
"""
import json
import math
import random
import sys

import numpy as np
from PIL import Image, ImageDraw


def bucket_list(resolution, low, high, step):
    area = resolution * resolution
    found = {(int(math.sqrt(area) // step) * step,) * 2}
    for width in range(low, high + 1, step):
        height = min(high, int((area // width) // step) * step)
        if height >= low:
            found |= {(width, height), (height, width)}
    return sorted(found)


def steps(x, step):
    x = int(x + 0.5)
    return x - x % step


def select(resolution, low, high, step, no_upscale, width, height):
    area, aspect = resolution * resolution, width / height
    if not no_upscale:
        sizes = bucket_list(resolution, low, high, step)
        if (width, height) in sizes:
            size = (width, height)
        else:
            size = sizes[np.abs(np.array([w / h for w, h in sizes]) - aspect).argmin()]
        scale = size[1] / height if aspect > size[0] / size[1] else size[0] / width
        return [*size, int(width * scale + 0.5), int(height * scale + 0.5)]
    resized = (width, height)
    if width * height > area:
        exact_width = math.sqrt(area * aspect)
        exact_height = area / exact_width
        w = steps(exact_width, step)
        h_in_w = steps(w / aspect, step)
        h = steps(exact_height, step)
        w_in_h = steps(h * aspect, step)
        if abs(w / h_in_w - aspect) < abs(w_in_h / h - aspect):
            resized = (w, int(w / aspect + 0.5))
        else:
            resized = (int(h * aspect + 0.5), h)
    return [resized[0] - resized[0] % step, resized[1] - resized[1] % step, *resized]


def plain(size, width, height):
    """Returns [resized width, height, top and left of the centre crop]."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = size, int(size * long / short)
    w, h = (new_short, new_long) if width <= height else (new_long, new_short)
    return [w, h, int(round((h - size) / 2.0)), int(round((w - size) / 2.0))]


def random_mask(shape):
    mask = Image.new("L", shape, 0)
    draw = ImageDraw.Draw(mask)
    size = (random.randint(0, int(shape[0])), random.randint(0, int(shape[1])))
    limits = (shape[0] - size[0] // 2, shape[1] - size[1] // 2)
    centre = (random.randint(size[0] // 2, limits[0]), random.randint(size[1] // 2, limits[1]))
    kind = random.randint(0, 1)
    box = (centre[0] - size[0] // 2, centre[1] - size[1] // 2, centre[0] + size[0] // 2,
           centre[1] + size[1] // 2)
    (draw.rectangle if kind == 0 else draw.ellipse)(box, fill=255)
    return [*box, kind], mask


def fnv1a(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def main():
    draws = random.Random(5)
    out = {"lists": [], "places": [], "plain": [], "masks": [], "choices": []}
    options = [(512, 256, 1024, 64), (768, 384, 1536, 64), (512, 256, 1024, 8), (128, 64, 256, 8),
               (640, 320, 960, 32), (1024, 512, 2048, 128)]
    for o in options:
        sizes = bucket_list(*o)
        out["lists"].append([*o, sizes if o[3] > 8 else sizes[:20] + sizes[-20:], len(sizes)])
        for no_upscale in False, True:
            for i in range(40):
                width, height = draws.randint(o[3] * 2, 4000), draws.randint(o[3] * 2, 4000)
                if i % 8 == 0:
                    width, height = draws.choice(sizes)
                out["places"].append([*o, int(no_upscale), width, height,
                                      *select(*o, no_upscale, width, height)])
    tied = (160, 64, 320, 64)  # 500x400 is equally far from 128x128 and 192x128
    out["places"].append([*tied, 0, 500, 400, *select(*tied, False, 500, 400)])
    for size in 512, 128, 640:
        for _ in range(20):
            width, height = draws.randint(64, 5000), draws.randint(64, 5000)
            out["plain"].append([size, width, height, *plain(size, width, height)])
    for seed, shape in (0, (64, 64)), (7, (97, 61)), (2**40 + 3, (61, 128)), (123456789, (33, 33)):
        random.seed(seed)
        shapes = []
        for _ in range(40):
            numbers, mask = random_mask(shape)
            shapes.append([numbers, fnv1a(bytes(np.asarray(mask).reshape(-1) // 255))])
        out["masks"].append([str(seed), *shape, shapes])
    for seed in 0, 1, 2**32 - 1, 2**32, 2**63 - 1:
        random.seed(seed)
        out["choices"].append([str(seed), [random.choice(range(n)) for n in
                                           [1, 2, 3, 5, 7, 100, 1000, 2**20, 2**31 - 1] * 4]])
    with open(sys.argv[1], "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
