"""k-diffusion's samplers over the sigmas of a scheduler of diffusers, for tests/reference/schedulers.py
and latents.py, and float32 functions that do not depend on the processor. (k-diffusion 0.1.1.post1)"""

import importlib
import importlib.util
import sys
import types

import numpy
import torch


def round_rightly():
    """Makes float32 square roots, logarithms and exponentials the nearest float32 to the true value.

    torch leaves them to MKL or SLEEF, which miss the last bit of some on some processors (on AMD's
    even of 18 % of the square roots, sigmas among them), so that what diffusers draws depends on the
    processor: by a rounding, which 1,000 steps or a difference of logarithms amplify, and by more
    where Brownian noise hangs on a sigma's millionths."""

    def rounded(function):
        def call(x, *rest):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float32:
                return function(x.double(), *rest).float()
            return function(x, *rest)
        return call

    for name in ("sqrt", "log", "exp", "expm1"):
        setattr(torch, name, rounded(getattr(torch, name)))
        setattr(torch.Tensor, name, rounded(getattr(torch.Tensor, name)))
    power, root, logarithm = torch.Tensor.__pow__, rounded(torch.Tensor.__pow__), numpy.log
    torch.Tensor.__pow__ = lambda x, y: root(x, y) if y == 0.5 else power(x, y)
    # DEIS gives numpy its float32 tensors.
    numpy.log = lambda x, *rest, **named: (
        x.log() if isinstance(x, torch.Tensor) else logarithm(x, *rest, **named))


def load():
    """Its samplers alone: the package as a whole wants what drawing does not."""
    if "k_diffusion.sampling" not in sys.modules:
        found = importlib.util.find_spec("k_diffusion")
        package, utils = types.ModuleType("k_diffusion"), types.ModuleType("k_diffusion.utils")
        package.__path__, package.utils = found.submodule_search_locations, utils
        utils.append_dims = lambda x, rank: x[(...,) + (None,) * (rank - x.ndim)]
        sys.modules |= {"k_diffusion": package, "k_diffusion.utils": utils}
    return importlib.import_module("k_diffusion.sampling")


def sample(name, noise, scheduler, model, start, generators, seeds, eta, lots=None):
    """sample_NAME from `start` with fresh noise of the generators, or Brownian of the seeds. Its
    denoiser is model(scaled sample, timestep) as the scheduler's prediction_type means it, with the
    scheduler's own timestep where a step starts. `lots` moves every value of every sample by one
    rounding, up or down. [(timestep, sample after the evaluation), ...]"""
    samplers, sigmas = load(), scheduler.sigmas
    table = numpy.array(((1 - scheduler.alphas_cumprod) / scheduler.alphas_cumprod) ** 0.5)
    per_step = 2 if name == "dpmpp_2s_ancestral" else 1
    asked, timesteps = [], []

    def denoise(x, sigma):
        sigma = sigma[0]
        step, within = divmod(len(asked), per_step)
        t = scheduler.timesteps[step].item()
        if within:
            t = float(scheduler._sigma_to_t(numpy.float64(sigma.item()), numpy.log(table)))
        if lots:
            up = torch.rand(x.shape, generator=lots) < 0.5
            x.copy_(torch.nextafter(x, torch.where(up, torch.inf, -torch.inf)))
        asked.append(x.clone())
        timesteps.append(t)
        output = model(x / ((sigma**2 + 1) ** 0.5), t)
        kind = scheduler.config.prediction_type
        if kind == "sample":
            return output
        if kind == "v_prediction":
            return output * (-sigma / (sigma**2 + 1) ** 0.5) + x / (sigma**2 + 1)
        return x - sigma * output

    def fresh(sigma, sigma_next):
        return torch.cat([torch.randn(start[:1].shape, generator=g) for g in generators])

    sampler = fresh
    if noise == "brownian":
        sampler = samplers.BrownianTreeNoiseSampler(
            start, sigmas[sigmas > 0].min(), sigmas.max(), seed=seeds)
    last = getattr(samplers, f"sample_{name}")(
        denoise, start.clone(), sigmas, noise_sampler=sampler, eta=eta, disable=True)
    return list(zip(timesteps, asked[1:] + [last]))
