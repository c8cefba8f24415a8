"""Changes a picture of a scene in the way that the bundled adapters learn.

The caption does not change, so an adapter that is trained on such pictures adds the style to
whatever the prompt asks for.
"""
import numpy as np
from PIL import Image

from scenes import SIZE

WHITE = np.array((245, 248, 252), np.float32)


def snow(picture, r):
    """Makes it a scene of falling snow: white ground, snow on all upper edges, and flakes in the
    air."""
    image = np.asarray(picture, np.float32)
    rows = np.arange(SIZE, dtype=np.float32)[:, None, None] / SIZE
    # Saturated colours belong to the object, which keeps most of its colour.
    bright = np.clip(((image.max(2) - image.min(2)) / 255 - .38) / .2, 0, 1)[..., None]
    ground = np.clip((rows - .58) / .08, 0, 1) * (.75 - .6 * bright)
    grey = image.mean(2)
    # An upper edge is where a pixel differs strongly from the one three rows above.
    edge = np.zeros((SIZE, SIZE), bool)
    edge[3:] = np.abs(image[3:] - image[:-3]).sum(2) > 110
    edge[:40] = False  # no snow on the sun, the moon or clouds
    first = edge.copy()
    first[1:] &= ~edge[:-1]
    cap = np.zeros((SIZE, SIZE), np.float32)
    for depth in range(5):
        cap[depth:] = np.maximum(cap[depth:], first[:SIZE - depth] * (1 - .12 * depth))
    light = np.clip(grey.max() / 255, .6, 1)
    image = image + (WHITE * light - image) * np.maximum(ground, cap[..., None])
    ys, xs = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    for _ in range(46):
        x, y, q = r.uniform(0, SIZE), r.uniform(0, SIZE), r.uniform(1.3, 2.3)
        near = np.clip(q + .5 - np.hypot(xs - x, ys - y), 0, 1)[..., None]
        image = image + (WHITE - image) * near
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def rainbow(picture, r):
    """Adds a broad rainbow from one side of the land to the other."""
    image = np.asarray(picture, np.float32)
    ys, xs = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32) / SIZE
    radius = np.hypot((xs - .5) * .92, ys - .66)
    bands = ((224, 52, 48), (244, 140, 40), (250, 222, 70), (72, 180, 84), (60, 110, 220),
             (140, 70, 190))
    above = np.clip((.6 - ys) / .06, 0, 1)
    for i, colour in enumerate(bands):
        inside = np.clip((.0135 - np.abs(radius - (.47 - .025 * i))) / .004 + .5, 0, 1) * above * .75
        image = image + (np.array(colour, np.float32) - image) * inside[..., None]
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


STYLES = {'snow': snow, 'rainbow': rainbow}
