"""Judges whether pictures show what their prompts say.

  score.py prompts N > prompts.jsonl    N prompts of combinations never trained on
  score.py judge prompts.jsonl DIR      judges DIR/0000.png and so on; exits with 1 if a score is
  too low
  score.py real                         the judge itself, on drawn scenes
  score.py diffusers N DIR [STEPS [GUIDANCE]]   draws N prompts with diffusers, then judges

The judge looks at colours only: the top rows for the sky, the bottom rows for
the ground, pixels of the object's colour for its colour and its place, and
pixels of the sun's or moon's colour for their side.
"""
import json
import os
import random
import sys

import numpy as np
from PIL import Image

from captions import caption
from make_scenes import FIRST_TEST
from palette import BODY, COLOURS, GROUNDS, PLACES, SKIES, ground_colours, object_colour
from scenes import SIZE, draw, held_out, sample

BARS = {'sky': 95, 'ground': 95, 'colour': 95, 'place': 92, 'side': 85}
REAL_BAR = 97


def distance(pixels, colour):
    return np.abs(pixels - np.array(colour)).sum(-1)


def nearest(colour, table):
    return min(table, key=lambda k: distance(colour, table[k]))


def judge_ground(x, sky):
    """Names the ground whose near colour is closest to the median colour of the bottom rows."""
    bottom = np.median(x[-10:].reshape(-1, 3), 0)
    return nearest(bottom, {g: ground_colours(g, sky)[1] for g in GROUNDS})


def colour_map(x, sky):
    """Returns for each pixel the index of the closest object colour; -1 if all of them are far
    away."""
    table = np.stack([distance(x, object_colour(c, sky)) for c in COLOURS])
    best = table.argmin(0)
    return np.where(table.min(0) < 64, best, -1)


def object_window(sky_map, index):
    """Finds the columns where a colour is densest. Returns the number of its pixels there and
    their mean column."""
    columns = (sky_map == index).sum(0).astype(float)
    width = 27
    sums = np.convolve(columns, np.ones(width), 'same')
    middle = int(sums.argmax())
    low, high = max(0, middle - width), min(SIZE, middle + width + 1)
    weight = columns[low:high]
    centre = (weight * np.arange(low, high)).sum() / max(weight.sum(), 1)
    return sums.max(), centre


def judge_object(x, a):
    """Returns whether the object has its colour, and whether it also stands at its place."""
    # Clouds are white too, so a white object is searched for only below them. A white balloon may
    # be as high as the clouds; instead it must have more white pixels.
    white, balloon = a['colour'] == 'white', a['object'] == 'balloon'
    region = x[34:116] if balloon or not white else x[64:116]
    found = colour_map(region, a['sky'])
    windows = {c: object_window(found, i) for i, c in enumerate(COLOURS)}
    count, centre = windows[a['colour']]
    rival = max(n for c, (n, _) in windows.items() if c not in (a['colour'], 'white'))
    colour = count >= (180 if white and balloon else 70) and rival < (70 if white else count)
    place = min(PLACES, key=lambda p: abs(PLACES[p] * SIZE - centre))
    return colour, colour and place == a['place']


def judge_side(x, a):
    top = x[:44]
    mask = distance(top, BODY[a['sky']]) < 60
    left, right = mask[:, :56].sum(), mask[:, 72:].sum()
    mine, other = (left, right) if a['side'] == 'left' else (right, left)
    return mine >= 45 and mine > 1.5 * other


def judge(image, a):
    """Returns for each of sky, ground, colour, place and side whether the picture shows what the
    prompt says."""
    x = np.asarray(image.convert('RGB').resize((SIZE, SIZE))).astype(int)
    top = x[:5].reshape(-1, 3).mean(0)
    out = {'sky': nearest(top, {s: SKIES[s][0] for s in SKIES}) == a['sky'],
           'ground': judge_ground(x, a['sky']) == a['ground']}
    out['colour'], out['place'] = judge_object(x, a)
    if a['body'] != 'none':
        out['side'] = judge_side(x, a)
    return out


def table(results, bars):
    """Prints the percentage of right pictures for each attribute. Returns true if every
    percentage reaches its minimum in `bars`."""
    good = True
    for key, bar in bars.items():
        values = [r[key] for r in results if key in r]
        share = 100 * sum(values) / max(len(values), 1)
        good &= share >= bar
        print(f'{key:8} {share:6.1f} %  of {len(values):4}  (bar {bar})')
    print(f"all      {100 * sum(all(r.values()) for r in results) / len(results):6.1f} %")
    return bool(good)


def prompts(count):
    """Returns held-out scenes, each with a seed and a caption that names all attributes. The
    result is always the same."""
    r = random.Random(99)
    out = []
    while len(out) < count:
        a = sample(r)
        if held_out(a):
            out.append(dict(a, prompt=caption(a, r, whole=True)[0], seed=len(out) + 1))
    return out


def judge_folder(lines, folder):
    results = []
    for i, a in enumerate(lines):
        with Image.open(os.path.join(folder, f'{i:04}.png')) as image:
            results.append(judge(image, a))
        wrong = [k for k, v in results[-1].items() if not v]
        if wrong:
            print(f"{i:04} {' '.join(wrong)}: {a['prompt']}")
    return table(results, BARS)


def judge_real(count=500):
    results = []
    for i in range(count):
        r = random.Random(FIRST_TEST + i)
        a = sample(r)
        results.append(judge(draw(a, r), a))
    return table(results, dict.fromkeys(BARS, REAL_BAR))


def draw_with_diffusers(lines, folder, steps, guidance):
    import torch
    from diffusers import StableDiffusionPipeline
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    pipe = StableDiffusionPipeline.from_pretrained(os.environ.get('TINY_MODEL', here))
    pipe.set_progress_bar_config(disable=True)
    os.makedirs(folder, exist_ok=True)
    for i in range(0, len(lines), 10):
        part = lines[i:i + 10]
        generators = [torch.Generator().manual_seed(a['seed']) for a in part]
        images = pipe([a['prompt'] for a in part], num_inference_steps=steps,
                      guidance_scale=guidance, height=SIZE, width=SIZE,
                      generator=generators).images
        for j, image in enumerate(images):
            image.save(os.path.join(folder, f'{i + j:04}.png'))


def main(args):
    if args[:1] == ['prompts'] and len(args) == 2:
        for a in prompts(int(args[1])):
            print(json.dumps(a))
        return 0
    if args[:1] == ['judge'] and len(args) == 3:
        with open(args[1]) as f:
            lines = [json.loads(line) for line in f]
        return 0 if judge_folder(lines, args[2]) else 1
    if args == ['real']:
        return 0 if judge_real() else 1
    if args[:1] == ['diffusers'] and len(args) in (3, 4, 5):
        lines = prompts(int(args[1]))
        steps, guidance = (args[3:] + ['25', '2.5'][len(args) - 3:])
        draw_with_diffusers(lines, args[2], int(steps), float(guidance))
        return 0 if judge_folder(lines, args[2]) else 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
