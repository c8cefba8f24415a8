"""Runs the samplers of k-diffusion and of AUTOMATIC1111's web UI over the sigmas of a diffusers
scheduler, for tests/reference/schedulers.py and latents.py. Also float32 functions that do not
depend on the processor. (k-diffusion 0.1.1.post1, web UI 1.10.1)"""

import argparse
import contextlib
import importlib.util
import pathlib
import sys
import types
import unittest.mock

import numpy
import torch

# Packages that k-diffusion imports only for training and its metrics; its samplers and wrappers do
# not use them.
ABSENT = ("clip", "cleanfid", "cleanfid.inception_torchscript", "dctorch", "einops", "jsonmerge",
          "skimage", "torchvision", "torchvision.transforms")


@contextlib.contextmanager
def made_up_modules():
    """In a `with` block, packages of ABSENT that are not installed can be imported as dummies."""
    roots = {name for name in ABSENT if "." not in name and not importlib.util.find_spec(name)}
    names = [name for name in ABSENT if name.split(".")[0] in roots]
    sys.modules.update((name, unittest.mock.MagicMock()) for name in names)
    yield
    for name in names:
        del sys.modules[name]


with made_up_modules():
    import k_diffusion


def round_rightly():
    """Makes float32 square roots, logarithms and exponentials the nearest float32 to the true value.

    torch uses MKL or SLEEF for them, whose last bit is sometimes wrong on some processors (on AMD's
    for 18 % of the square roots, including sigmas). So diffusers' results differ by one rounding
    between processors. A thousand steps, or a difference of logarithms, amplify it. The results
    differ more where Brownian noise depends on the millionths of a sigma."""

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
    # DEIS calls numpy's logarithm with float32 tensors of torch.
    numpy.log = lambda x, *rest, **named: (
        x.log() if isinstance(x, torch.Tensor) else logarithm(x, *rest, **named))


class SampleDenoiser(k_diffusion.external.DiscreteEpsDDPMDenoiser):
    """For a model that predicts the picture itself; the package has no wrapper for it."""

    def forward(self, x, sigma):
        _, c_in = self.get_scalings(sigma)
        return self.get_eps(x * k_diffusion.utils.append_dims(c_in, x.ndim), self.sigma_to_t(sigma))


class Denoiser:
    """The denoiser that a sampler calls: the package's own wrapper of model(scaled sample,
    timestep), but with the scheduler's own timestep at the start of a step. has_middle(i)
    says whether step i calls the denoiser a second time; without it every timestep is that of the
    sigma. If `lots`, a random generator, is given, every value of every sample is moved by one
    rounding, randomly up or down."""

    WRAPPERS = {"epsilon": k_diffusion.external.DiscreteEpsDDPMDenoiser,
                "v_prediction": k_diffusion.external.DiscreteVDDPMDenoiser, "sample": SampleDenoiser}

    def __init__(self, scheduler, model, has_middle, lots):
        self.scheduler, self.model, self.lots = scheduler, model, lots
        steps = range(len(scheduler.sigmas) - 1)
        self.starts = has_middle and [
            step for i in steps for step in ([i, None] if has_middle(i) else [i])]
        self.samples, self.timesteps = [], []
        wrapper = self.WRAPPERS[scheduler.config.prediction_type]
        self.wrapper = wrapper(self.call_model, scheduler.alphas_cumprod, quantize=False)
        self.timestep_of, self.wrapper.sigma_to_t = self.wrapper.sigma_to_t, self.choose_timestep

    def choose_timestep(self, sigma):
        step = self.starts[len(self.timesteps)] if self.starts else None
        if step is None:
            return self.timestep_of(sigma)
        return self.scheduler.timesteps[step].expand(len(sigma))

    def call_model(self, x, t):
        self.timesteps.append(t[0].item())
        return self.model(x, self.timesteps[-1])

    def __call__(self, x, sigma):
        if self.lots:
            x.copy_(nudged(x, self.lots))
        self.samples.append(x.clone())
        return self.wrapper(x, sigma)


def nudged(sample, lots):
    """Moves every value by one rounding."""
    up = torch.rand(sample.shape, generator=lots) < 0.5
    return torch.nextafter(sample, torch.where(up, torch.inf, -torch.inf))


WEBUI = None


def arguments():
    """Returns the names on the command line, and notes the web UI's folder."""
    global WEBUI
    parser = argparse.ArgumentParser()
    parser.add_argument("--webui", type=pathlib.Path, metavar="FOLDER",
                        help="a checkout of AUTOMATIC1111's web UI, whose samplers restart and ddim_cfgpp are")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    WEBUI = options.webui
    return options.names


def webui_module(name):
    """Loads modules/NAME.py of the web UI. What it imports from there, and does not use here, is a
    dummy."""
    if not WEBUI:
        raise SystemExit("--webui FOLDER: its samplers are needed")
    others = ("modules", "modules.shared", "modules.models.diffusion.uni_pc", "modules.torch_utils")
    stand_ins = {other: unittest.mock.MagicMock() for other in others}
    stand_ins["modules.torch_utils"].float64 = lambda _: torch.float64
    spec = importlib.util.spec_from_file_location(name, WEBUI / f"modules/{name}.py")
    module = importlib.util.module_from_spec(spec)
    with unittest.mock.patch.dict(sys.modules, stand_ins):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def drawing(fresh):
    """In a `with` block, k-diffusion's randn_like is fresh(): the web UI replaces it likewise."""
    class Torch(types.SimpleNamespace):
        def __getattr__(self, name):
            return getattr(torch, name)

    with unittest.mock.patch.object(k_diffusion.sampling, "torch", Torch(randn_like=lambda x: fresh())):
        yield


class NoiseModel:
    """The model that the web UI's ddim_cfgpp calls: predicts the noise, with guidance. pair(sample,
    timestep) returns the predictions without and with the prompt. The last of its alphas_cumprod is
    that of timestep -1, where a run ends."""

    def __init__(self, scheduler, pair, guidance_scale, dtype):
        self.pair, self.guidance_scale = pair, guidance_scale
        self.prediction = scheduler.config.prediction_type
        self.cond_scale_miltiplier = 1.0  # their spelling
        table = torch.cat([scheduler.alphas_cumprod, scheduler.final_alpha_cumprod[None]]).to(dtype)
        self.inner_model = types.SimpleNamespace(inner_model=types.SimpleNamespace(alphas_cumprod=table))

    def noise(self, x, t, output):
        alpha = self.inner_model.inner_model.alphas_cumprod[t]
        if self.prediction == "v_prediction":
            return alpha.sqrt() * output + (1 - alpha).sqrt() * x
        if self.prediction == "sample":
            return (x - alpha.sqrt() * output) / (1 - alpha).sqrt()
        return output

    def __call__(self, x, timesteps):
        t = int(timesteps[0])
        without, with_prompt = (self.noise(x, t, output) for output in self.pair(x.float(), t))
        self.last_noise_uncond = without
        return without + self.guidance_scale * self.cond_scale_miltiplier * (with_prompt - without)


def sample_cfgpp(scheduler, pair, guidance_scale, start, generators, eta, lots=None):
    """Runs the web UI's ddim_cfgpp, step by step through diffusers' timesteps. Returns what sample()
    does. In double: in float32, the way from v to the noise and from there to x0 enlarges roundings
    up to 20,000 times under cosine betas. With `lots` in float32, to show how far."""
    steps = webui_module("sd_samplers_timesteps_impl").ddim_cfgpp
    dtype = torch.float32 if lots else torch.float64
    model, x, trace = NoiseModel(scheduler, pair, guidance_scale, dtype), start.clone(), []
    stride = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    for t in scheduler.timesteps[:scheduler.num_inference_steps].tolist():
        x = nudged(x, lots) if lots else x
        # numpy warns of the eta of timestep 0 in the pair, which is not used.
        with drawing(lambda: fresh_noise(start, generators)), numpy.errstate(invalid="ignore"):
            x = steps(model, x.to(dtype), torch.tensor([max(t - stride, -1), t]), eta=eta, disable=True).float()
        trace.append((float(t), x))
    return trace


def fresh_noise(start, generators):
    return torch.cat([torch.randn(start[:1].shape, generator=g) for g in generators])


def sigma_table(scheduler):
    return ((1 - scheduler.alphas_cumprod) / scheduler.alphas_cumprod) ** 0.5


def sample(name, noise, scheduler, model, start, generators, seeds, eta, lots=None):
    """Runs sample_NAME, or the web UI's `restart`, from `start` through the scheduler's sigmas, with
    fresh noise from the generators or Brownian noise from the seeds. sample_dpm_fast gets only the
    ends of the table and the number of steps. Returns [(timestep, sample after the evaluation),
    ...]."""
    samplers, sigmas = k_diffusion.sampling, scheduler.sigmas

    def has_middle(i):
        return name == "dpmpp_2s_ancestral" and samplers.get_ancestral_step(
            sigmas[i], sigmas[i + 1], eta=eta)[0] != 0

    own_timesteps = name in ("restart", "dpm_fast")
    denoise = Denoiser(scheduler, model, None if own_timesteps else has_middle, lots)

    def fresh(sigma, sigma_next):
        return fresh_noise(start, generators)

    sampler = fresh
    if noise == "brownian":
        sampler = samplers.BrownianTreeNoiseSampler(
            start, sigmas[sigmas > 0].min(), sigmas.max(), seed=seeds)
    if name == "restart":
        restart = webui_module("sd_samplers_extra").restart_sampler
        with drawing(lambda: fresh_noise(start, generators)):
            last = restart(denoise, start.clone(), sigmas, disable=True)
    elif name == "dpm_fast":
        table = sigma_table(scheduler)
        last = samplers.sample_dpm_fast(denoise, start.clone(), table[0].item(), table[-1].item(),
                                        len(sigmas) - 1, noise_sampler=sampler, eta=eta, disable=True)
    else:
        last = getattr(samplers, f"sample_{name}")(
            denoise, start.clone(), sigmas, noise_sampler=sampler, eta=eta, disable=True)
    return list(zip(denoise.timesteps, denoise.samples[1:] + [last]))
