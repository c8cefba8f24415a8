"""Writes tests/kernels/data/noise.json: what torch's CPU generator draws, in sequences that mix small
draws (one at a time, with a cached second half) and large ones (blocks of 16).

usage: python tests/reference/noise.py        (torch; the values do not depend on its version)
"""

import json
import pathlib

import torch

CASES = [
    (0, [4]), (0, [16]), (0, [17, 5, 3, 31, 1]), (7, [3, 17, 2, 5]), (42, [1, 1, 1, 20, 2]),
    (2**32 + 5, [15, 15, 33]), (2**64 - 1, [100]), (123456789, [48, 7]),
]


def main():
    out = []
    for seed, counts in CASES:
        # Generator.manual_seed takes a signed view of the same 64 bits.
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.randn(n, generator=generator).double().tolist() for n in counts]
        out.append({"seed": str(seed), "draws": [[round(v, 8) for v in d] for d in draws]})
    path = pathlib.Path(__file__).parents[1] / "kernels/data/noise.json"
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")


main()
