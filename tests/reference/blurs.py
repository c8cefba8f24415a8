"""Writes blurred masks and filled pictures: tests/pictures/blurs/*.png. The Gaussian is OpenCV's
formula in float64; the fill is Pillow's own GaussianBlur and alpha_composite. usage: blurs.py"""
import os

import numpy as np
from PIL import Image, ImageFilter, ImageOps

folder = os.path.join(os.path.dirname(__file__), "../pictures/blurs")
os.makedirs(folder, exist_ok=True)
W, H = 96, 64


def gaussian(values, sigma, axis):
    radius = int(2.5 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    pad = [(0, 0), (0, 0)]
    pad[axis] = (radius, radius)
    padded = np.pad(values.astype(np.float64), pad, mode="reflect")  # mirrors without repeating the edge
    out = sum(w * np.take(padded, np.arange(i, i + values.shape[axis]), axis) for i, w in enumerate(weights))
    return np.floor(out + 0.5).astype(np.uint8)


mask = np.zeros((H, W), np.uint8)
mask[20:44, 0:30] = 255
mask[8:24, 60:90] = 255
mask[50:64, 40:41] = 128
Image.fromarray(mask).save(f"{folder}/mask.png")
for x, y in ((4, 4), (1, 0), (0, 9), (12, 3)):
    blurred = mask
    if x:
        blurred = gaussian(blurred, x, 1)
    if y:
        blurred = gaussian(blurred, y, 0)
    Image.fromarray(blurred).save(f"{folder}/mask_{x}_{y}.png")

ys, xs = np.mgrid[0:H, 0:W]
colours = np.stack([128 + 100 * np.sin(xs / 9), 128 + 100 * np.cos(ys / 7), (2 * xs + ys) % 256], -1).astype(np.uint8)
picture = Image.fromarray(colours)
picture.save(f"{folder}/picture.png")


def fill(picture, mask):
    whole = Image.new("RGBA", picture.size)
    rest = Image.new("RGBa", picture.size)
    rest.paste(picture.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask))
    for radius, times in ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1)):
        blurred = rest.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            whole.alpha_composite(blurred)
    return whole.convert("RGB")


for name in ("mask", "mask_4_4"):
    fill(picture, Image.open(f"{folder}/{name}.png")).save(f"{folder}/filled_{name}.png")
print(sorted(os.listdir(folder)))
