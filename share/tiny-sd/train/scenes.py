"""Draws a scene from its attributes: 128x128, drawn twice as large and shrunk.

Nothing is drawn thinner than about two pixels of the final picture, because an f=8 autoencoder
loses thinner things anyway.
"""
import math
import random
import zlib

import numpy as np
from PIL import Image, ImageDraw

from objects import PAINTERS
from palette import (BODY, COLOURS, GROUNDS, LIGHT, OBJECT_LIGHT, PLACES, SKIES,
                     ground_colours, mix, object_colour, times)

SIZE = 128
S = 2 * SIZE
LAND_OBJECTS = ('house', 'house', 'castle', 'balloon')
SEA_OBJECTS = ('boat', 'boat', 'lighthouse', 'balloon')


def sample(r):
    """Returns the attributes of a random scene."""
    a = {'sky': r.choice(list(SKIES)), 'ground': r.choice(list(GROUNDS))}
    sea = a['ground'] == 'sea'
    a['object'] = r.choice(SEA_OBJECTS if sea else LAND_OBJECTS)
    # No white objects in the snow: they could not be seen.
    a['colour'] = r.choice([c for c in COLOURS if (c, a['ground']) != ('white', 'snow')])
    a['place'] = r.choice(list(PLACES))
    a['body'] = 'none'
    if a['sky'] != 'grey' and r.random() < .75:
        a['body'] = 'sun' if a['sky'] != 'night' else r.choice(('full moon', 'crescent moon'))
    a['side'] = r.choice(('left', 'right')) if a['body'] != 'none' else 'none'
    a['trees'] = 0 if sea else r.choice((0, 0, 1, 2, 3))
    a['clouds'] = r.choice((0, 0, 1, 2, 3)) if a['sky'] != 'night' else 0
    a['mountains'] = int(r.random() < .3)
    return a


def held_out(a):
    """Whether the scene is used for the score, and so never for training the UNet. This is so
    for one in ten combinations of sky, ground, colour and place."""
    key = ' '.join((a['sky'], a['ground'], a['colour'], a['place']))
    return zlib.crc32(key.encode()) % 10 == 0


class Brush:
    """Draws shapes. Coordinates are from 0 to 1, x to the right and y down."""

    def __init__(self, image):
        self.draw = ImageDraw.Draw(image)

    def disc(self, x, y, rx, ry, colour):
        self.draw.ellipse(((x - rx) * S, (y - ry) * S, (x + rx) * S, (y + ry) * S), fill=colour)

    def box(self, x0, y0, x1, y1, colour):
        self.draw.rectangle((x0 * S, y0 * S, x1 * S, y1 * S), fill=colour)

    def shape(self, points, colour):
        self.draw.polygon([(x * S, y * S) for x, y in points], fill=colour)

    def below(self, f, colour):
        """Fills everything below the line y = f(x)."""
        xs = [i / 64 for i in range(65)]
        self.shape([(0, 1.1)] + [(x, f(x)) for x in xs] + [(1, 1.1)], colour)


def wave(base, height, speed, phase):
    return lambda x: base + height * math.sin(x * speed + phase)


def paint_sky(a, horizon, body):
    """Paints the sky's gradient, with the glow of the sun or the moon."""
    top, middle, low = (np.array(c, np.float32) for c in SKIES[a['sky']])
    t = np.clip((np.arange(S, dtype=np.float32) / S / horizon), 0, 1)[:, None]
    column = np.where(t < .5, top + (middle - top) * t * 2, middle + (low - middle) * (t * 2 - 1))
    image = np.repeat(column[:, None], S, 1)
    if body:
        ys, xs = np.mgrid[0:S, 0:S].astype(np.float32) / S
        distance = np.hypot(xs - body[0], ys - body[1])
        glow = .75 * np.exp(-(distance / .115) ** 2) + .25 * np.exp(-(distance / .3) ** 2)
        strength = .5 if a['sky'] == 'night' else .7
        image += (np.array(BODY[a['sky']], np.float32) - image) * glow[..., None] * strength
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def crescent(x, y, radius):
    """Returns the outline of a moon lit from the lower left: along half of its rim, and back
    along the edge of the shadow."""
    points = []
    for i in range(48):
        angle = math.pi / 2 + math.pi * (i if i < 24 else 47 - i) / 23
        across = math.cos(angle) * (1 if i < 24 else .2)
        u, v = radius * across, radius * math.sin(angle)
        points.append((x + .91 * u + .42 * v, y - .42 * u + .91 * v))
    return points


def paint_body(brush, a, body):
    x, y = body
    colour = BODY[a['sky']]
    if a['body'] == 'sun':
        brush.disc(x, y, .078, .078, colour)
    elif a['body'] == 'crescent moon':
        brush.shape(crescent(x, y, .084), colour)
    else:
        brush.disc(x, y, .075, .075, colour)
        for dx, dy, q in ((-.025, -.018, .017), (.024, .02, .02), (.012, -.036, .011)):
            brush.disc(x + dx, y + dy, q, q, times(colour, .84))


def paint_stars(brush, r, horizon, body):
    for _ in range(16):
        x, y, q = r.uniform(.02, .98), r.uniform(.02, horizon - .1), r.uniform(.0065, .0105)
        if not body or math.hypot(x - body[0], y - body[1]) > .15:
            brush.disc(x, y, q, q, (232, 232, 250))


def paint_clouds(brush, a, r):
    if a['sky'] == 'grey':
        colour = (226, 230, 233)
    else:
        colour = mix((255, 255, 255), SKIES[a['sky']][2], .3)
    x = r.uniform(.12, .3) if a['clouds'] > 1 else r.uniform(.15, .85)
    for _ in range(a['clouds']):
        y, k = r.uniform(.31, .41), r.uniform(.85, 1.15)
        for layer, tone in ((.014, times(colour, .88)), (0, colour)):
            for dx, dy, q in ((-.062, .008, .042), (0, -.014, .058), (.06, .004, .046)):
                brush.disc(x + dx * k, y + (dy + layer) * k, q * k, q * k * .68, tone)
        x += r.uniform(.27, .33)


def paint_mountains(brush, a, r, horizon):
    light = LIGHT[a['sky']]
    rock = mix(times((120, 128, 168), light), SKIES[a['sky']][2], .25)
    cap = mix(times((244, 247, 252), light), SKIES[a['sky']][2], .2)
    x = r.uniform(-.05, .1)
    while x < 1.05:
        top, half = horizon - r.uniform(.11, .19), r.uniform(.17, .23)
        brush.shape([(x - half, horizon + .06), (x, top), (x + half, horizon + .06)], rock)
        brush.shape([(x, top), (x + .052, top + .055), (x + .02, top + .045),
                     (x - .01, top + .06), (x - .052, top + .055)], cap)
        x += r.uniform(.2, .3)


def paint_sea(image, brush, a, r, horizon, body):
    far, near = ground_colours('sea', a['sky'])
    far = mix(far, SKIES[a['sky']][2], .2)
    for row in range(int(horizon * S), S):
        t = (row / S - horizon) / (1 - horizon)
        brush.box(0, row / S, 1, row / S, mix(far, near, min(1, t * 1.15)))
    foam = mix(far, (255, 255, 255), .35)
    for _ in range(13):
        x, y, w = r.uniform(0, 1), r.uniform(horizon + .05, .98), r.uniform(.03, .07)
        brush.disc(x, y, w, .0065, foam)
    if body:
        # The sun or the moon glitters in the water below itself.
        shine = mix(far, BODY[a['sky']], .75)
        for i in range(7):
            y = horizon + .022 + i * .05
            w = r.uniform(.025, .045) + .006 * i
            brush.disc(body[0] + r.uniform(-.012, .012), y, w, .009, shine)


def paint_land(brush, a, r, horizon):
    """Paints three waves of land. Returns the height of the front one, on which things stand."""
    far, near = ground_colours(a['ground'], a['sky'])
    height = .018 if a['ground'] == 'desert' else .03
    phase = [r.uniform(0, 6.3) for _ in range(3)]
    haze = mix(far, SKIES[a['sky']][2], .3)
    brush.below(wave(horizon, height, 7, phase[0]), haze)
    brush.below(wave(horizon + .05, height, 6, phase[1]), far)
    front = wave(horizon + .11, height * .8, 4.5, phase[2])
    brush.below(front, near)
    return front


def paint_trees(brush, a, r, front, x_object):
    light = LIGHT[a['sky']] if a['sky'] != 'night' else (.42, .5, .6)
    spots = [x for x in (.07, .36, .64, .93) if a['object'] == 'balloon' or abs(x - x_object) > .12]
    r.shuffle(spots)
    for x in spots[:a['trees']]:
        x += r.uniform(-.015, .015)
        y = front(x) + r.uniform(.035, .07)
        if a['ground'] == 'desert':
            leaf, shade = times((54, 112, 66), light), times((40, 90, 54), light)
            for dx, top, low in ((-.034, .085, .045), (.034, .105, .06)):
                brush.box(min(x, x + dx), y - low - .012, max(x, x + dx), y - low + .006, shade)
                brush.box(x + dx - .009, y - top, x + dx + .009, y - low + .006, shade)
            brush.box(x - .013, y - .14, x + .013, y, leaf)
            brush.disc(x, y - .14, .013, .013, leaf)
        else:
            leaf = times((32, 98, 66) if a['ground'] == 'hills' else (62, 112, 104), light)
            brush.box(x - .012, y - .05, x + .012, y, times((96, 66, 44), light))
            for j in range(3):
                w, low = .066 - .014 * j, y - .042 - .047 * j
                brush.shape([(x - w, low), (x + w, low), (x, low - .085)], times(leaf, 1 + .14 * j))


def scene_places(a, r):
    """Chooses where the object and the sun or moon are."""
    x = PLACES[a['place']] + r.uniform(-.025, .025)
    body = None
    if a['body'] != 'none':
        across = r.uniform(.14, .28) if a['side'] == 'left' else r.uniform(.72, .86)
        body = (across, r.uniform(.13, .19))
    return x, body


def draw(a, r):
    """Draws a scene. The random generator `r` decides whatever the attributes leave open."""
    horizon = r.uniform(.57, .62)
    x, body = scene_places(a, r)
    image = paint_sky(a, horizon, body)
    brush = Brush(image)
    if a['sky'] == 'night':
        paint_stars(brush, r, horizon, body)
    if body:
        paint_body(brush, a, body)
    paint_clouds(brush, a, r)
    if a['mountains']:
        paint_mountains(brush, a, r, horizon)
    if a['ground'] == 'sea':
        paint_sea(image, brush, a, r, horizon, body)
        stand = horizon + .17 + r.uniform(-.02, .03)
    else:
        front = paint_land(brush, a, r, horizon)
        paint_trees(brush, a, r, front, x)
        stand = front(x) + .1
    if a['object'] == 'balloon':
        stand = horizon - .13 + r.uniform(-.02, .02)
    lit = a['sky'] in ('night', 'sunset', 'grey')
    PAINTERS[a['object']](brush, x, stand, object_colour(a['colour'], a['sky']),
                          OBJECT_LIGHT[a['sky']], lit)
    return image.resize((SIZE, SIZE), Image.LANCZOS)


def scene(seed):
    """Returns the attributes and the picture of the scene with this number."""
    r = random.Random(seed)
    a = sample(r)
    return a, draw(a, r)
