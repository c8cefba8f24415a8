"""Writes tests/engine/data/brownian.json: the draws of torchsde's Brownian tree between the sigmas
of a run, when it is called as diffusers' DPMSolverSDEScheduler and k-diffusion's SDE samplers call
it.

usage: python tests/reference/brownian.py        (torchsde 0.2.6, diffusers 0.42.1, torch 2.15.0)
"""

import json
import pathlib
import warnings

import numpy
import torch
from diffusers.schedulers.scheduling_dpmsolver_sde import BrownianTreeNoiseSampler

SD15 = (0.029167532920837402, 14.614646911621094)


def karras(low, high, n):
    ramp = numpy.linspace(0, 1, n)
    return (high ** (1 / 7) + ramp * (low ** (1 / 7) - high ** (1 / 7))) ** 7


def exponential(low, high, n):
    return numpy.exp(numpy.linspace(numpy.log(high), numpy.log(low), n))


def steps(sigmas):
    """Spans from each sigma to the next."""
    return list(zip(sigmas, sigmas[1:]))


def with_midpoints(sigmas):
    """The spans of DPM++ SDE: from each sigma to the middle in log sigma, then from the same
    sigma to the next one."""
    out = []
    for a, b in zip(sigmas, sigmas[1:]):
        t, t_next = a.log().neg(), b.log().neg()
        t_middle = t + (t_next - t) * 0.5
        start = t.neg().exp()
        out += [(start, t_middle.neg().exp()), (start, t_next.neg().exp())]
    return out


# seed, shape of one image's latents, sigmas, function that makes the spans, the generators' device
CASES = [
    (0, (4, 2, 2), karras(*SD15, 5), steps),
    (7, (4, 3, 5), karras(*SD15, 12), with_midpoints),
    (2**32 + 3, (4, 1, 3), exponential(*SD15, 8), with_midpoints),
    (2**62 + 11, (4, 3, 3), karras(0.002, 700.0, 9), steps),
    (42, (4, 2, 2), numpy.linspace(14.6, 0.03, 60), steps),
    (123456789, (4, 2, 2), karras(0.03125, 14.5, 4), with_midpoints),
    (99, (4, 16, 16), exponential(*SD15, 4), with_midpoints),
]


def main():
    warnings.simplefilter("ignore")  # rounding may move a sigma out of range
    out = []
    for seed, shape, sigmas, ask in CASES:
        sigmas = torch.tensor(sigmas, dtype=torch.float32)
        sampler = BrownianTreeNoiseSampler(
            torch.zeros(1, *shape), sigmas.min().item(), sigmas.max().item(), [seed])
        asked = ask(sigmas)
        draws = [sampler(a, b)[0].flatten() for a, b in asked]
        out.append({"seed": str(seed), "count": draws[0].numel(),
                    "low": sigmas.min().item(), "high": sigmas.max().item(),
                    "spans": [[a.item(), b.item()] for a, b in asked],
                    # The first values of each draw, and the sum of all its values.
                    "draws": [[float(f"{v:.9g}") for v in d[:16].tolist()] for d in draws],
                    "sums": [d.double().sum().item() for d in draws]})
    sequences = []
    for entropy, key, pool in ((0, (), 4), (0, (), 24), (7, (0, 0), 24), (2**32 + 3, (5, 3), 24),
                               (2**63 - 1, (2**33 + 1, 34), 24), (1, (1, 1), 8)):
        sequence = numpy.random.SeedSequence(entropy=entropy, spawn_key=key, pool_size=pool)
        sequences.append({"entropy": str(entropy), "key": [str(k) for k in key], "pool": pool,
                          "state": sequence.generate_state(4).tolist()})
    path = pathlib.Path(__file__).parents[1] / "engine/data/brownian.json"
    path.write_text('{"seed_sequences": [\n' + ",\n".join(json.dumps(s) for s in sequences)
                    + '\n],\n"trees": [\n' + ",\n".join(json.dumps(c) for c in out) + "\n]}\n")
    print(f"{len(out)} trees, {sum(len(c['draws']) for c in out)} draws, {path.stat().st_size} bytes")


main()
