"""Writes tests/engine/data/starts.json: with which noise and latents an image begins, computed with torch by the formulas
of AUTOMATIC1111's modules/rng.py (a subseed, and a seed resized from another size) and modules/processing.py
(inpainting_fill 2 and 3, and resize_mode 3). Float32 on the CPU.

usage: python tests/reference/starts.py        (torch; the values do not depend on its version)
"""

import json
import pathlib

import torch
from torch.nn.functional import interpolate

SCALING = 0.18215
SHAPE = [4, 8, 9]
VARIATIONS = [
    {}, {"strength": 0.3}, {"strength": 1.0}, {"strength": 0.05, "subseed": 2**62}, {"strength": 0.7, "subseed": 5},
    {"from": [16, 17]}, {"from": [8, 12]}, {"from": [13, 8]}, {"from": [8, 8], "shape": [4, 11, 14]},
    {"from": [15, 12], "strength": 0.4}, {"from": [8, 9], "strength": 0.4}, {"from": [9, 9], "shape": [4, 16, 8],
                                                                           "strength": 0.9},
]
STARTS = [
    {"content": "original"}, {"content": "noise"}, {"content": "nothing"}, {"content": "noise", "strength": 0.25},
    {"content": "nothing", "from": [8, 8], "strength": 0.5}, {"latents": [12, 10]}, {"latents": [8, 16]},
    {"latents": [20, 21]}, {"latents": [8, 9]}, {"latents": [9, 8], "strength": 0.6},
]
BASE = {"shape": SHAPE, "seed": 5, "subseed": 11, "strength": 0.0, "from": [0, 0], "latents": None, "content": None}


def first(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(share, low, high):
    """The angle is that between the columns (dimension 1) of each channel."""
    cosine = (low / low.norm(dim=1, keepdim=True) * (high / high.norm(dim=1, keepdim=True))).sum(1, keepdim=True)
    if cosine.mean() > 0.9995:
        return share * low + (1 - share) * high
    angle = torch.acos(cosine)
    return (torch.sin((1 - share) * angle) * low + torch.sin(share * angle) * high) / torch.sin(angle)


def span(now, before):
    """Returns where the old noise goes, and which part of it."""
    offset = (now - before) // 2
    if offset >= 0:
        return slice(offset, offset + before), slice(0, before)
    return slice(0, before + 2 * offset), slice(-offset, before + offset)


def varied(case, plain):
    before = [case["shape"][0], *case["from"]] if all(case["from"]) else case["shape"]
    resized = before != case["shape"]
    noise = first(case["seed"], before) if resized else plain
    if case["strength"]:
        noise = turned(case["strength"], noise, first(case["subseed"], before))
    if resized:
        (to_y, from_y), (to_x, from_x) = (span(case["shape"][i], before[i]) for i in (1, 2))
        out = plain.clone()
        out[:, to_y, to_x] = noise[:, from_y, from_x]
        return out
    return noise


def mask(height, width):
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return ((x + 2 * y) % 3 == 0).float()


def start(case):
    """Begins with a picture, whose moments are a formula; the test has the same."""
    channels, height, width = case["shape"]
    size = case["latents"] or [height, width]
    generator = torch.Generator().manual_seed(case["seed"])
    moments = torch.arange(size[0] * size[1] * 2 * channels).float().reshape(*size, 2 * channels) * 37 % 101 / 25 - 2
    mean, log_variance = moments.permute(2, 0, 1).chunk(2)
    init = SCALING * (mean + (0.5 * log_variance).exp() * torch.randn([channels, *size], generator=generator))
    init = interpolate(init[None], [height, width], mode="bilinear")[0]
    noise = torch.randn(case["shape"], generator=generator)
    if case["content"] in ("noise", "nothing"):
        masked = mask(height, width)
        init = init * (1 - masked) + (noise * masked if case["content"] == "noise" else 0)
    return 0.6 * init + 0.8 * varied(case, noise)


def main():
    out = []
    for cases, make in ((VARIATIONS, lambda case: varied(case, first(case["seed"], case["shape"]))), (STARTS, start)):
        for changes in cases:
            case = BASE | changes
            values = make(case).flatten().double().tolist()
            out.append(case | {"begins": make is start, "values": [round(v, 7) for v in values]})
    path = pathlib.Path(__file__).parents[1] / "engine/data/starts.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n")
    print(f"{path.name}: {len(out)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
