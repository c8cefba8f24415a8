"""Writes tests/engine/data/schedulers/NAME.json: the steps of the reference's schedulers with a
small model, and spacing.json: checksums of the spaced timesteps for every number of steps.

The first sample is torch.randn(16) with seed SEED ("start": its first values) times
init_noise_sigma. Fresh noise comes from the same generator. The model is output(x, t) = sin(3 x) /
10 + x (t + 1) / 1100, in float32. For every evaluation, a case keeps the timestep and four values
of the sample after it, in base64. So the test can begin each step with the reference's own sample.
Of a long run only a few evaluations in a row are kept, at about nine places. For the first
evaluation after each gap, UniPC's corrected sample is kept too. `moved` is how far the reference
itself moves in the whole run, relative to the sample's mean size, when every value of every sample
moves by one rounding, randomly up or down. A case says "refused" if the reference raises an error
or gives numbers that are not finite.

Classes with guidance of their own (ddim_cfgpp) have the model above as their prediction with the
prompt, and sin(2 x) / 10 + x (t + 1) / 1200 as the one without it; guidance_scale is 7.5.

SCHEDULERS has one row per class. The row says what the class supports, and so which options are
varied.

usage: python tests/reference/schedulers.py [--webui FOLDER] [NAME ...]    (diffusers 0.42.1, torch 2.15.0)
"""

import base64
import dataclasses
import inspect
import json
import pathlib
import warnings

import diffusers
import k_diffusion_samplers
from k_diffusion_samplers import k_diffusion, nudged
import numpy
import torch

SEED = 11
GUIDANCE_SCALE = 7.5
VALUES = 4  # values kept of each sample
IN_A_ROW = 6  # a step, and as many before it as any scheduler uses
STEPS = (1, 2, 3, 20, 1000)
# Stable Diffusion 1.5's own scheduler configuration.
SD15 = {
    "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "beta_start": 0.00085, "clip_sample": False, "num_train_timesteps": 1000,
    "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1, "trained_betas": None,
}
SPACINGS = ("leading", "trailing", "linspace")
ALL = ("epsilon", "v_prediction", "sample")
LISTS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas",
         "use_kl_optimal_sigmas")
# https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html
AYS = [14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029]
OUT = pathlib.Path(__file__).parents[1] / "engine/data/schedulers"


@dataclasses.dataclass
class Row:
    """One of our classes and its reference. `variants` are (changes to the file, options of the
    request), used besides the plain case. Each is combined with spacings, predictions and
    numbers of steps."""

    reference: str  # a class of diffusers
    predictions: tuple = ALL
    spacings: bool = True
    lists: bool = False  # has LISTS, and sgm_uniform if not `whole`
    whole: bool = False
    zero_snr: bool = False
    list_hook: str = "exponential"  # replaced to supply lists the class lacks
    variants: tuple = ()
    borrows_lists: bool = False  # uses EulerDiscreteScheduler's lists if it has none itself
    extra: dict = dataclasses.field(default_factory=dict)  # constructor arguments in every case
    # A sampler of k-diffusion or of AUTOMATIC1111's web UI over the sigmas of `reference`, and its
    # noise.
    sampler: str = ""
    noise: str = ""
    # For classes with many variants: each with one spacing only, and up to 20 steps.
    short: bool = False


MULTISTEP = (
    ({}, {"solver_order": 1}), ({}, {"solver_order": 3}), ({}, {"lower_order_final": False}),
    ({}, {"solver_order": 3, "lower_order_final": False}))
DPM = MULTISTEP + (
    ({}, {"solver_type": "heun"}), ({}, {"solver_type": "heun", "solver_order": 3}),
    ({}, {"euler_at_final": True, "final_sigmas_type": "sigma_min"}),
    ({}, {"solver_order": 3, "final_sigmas_type": "sigma_min"}),
    ({"solver_type": "bh2"}, {}), ({}, {"use_lu_lambdas": True}))
SDE = {"algorithm_type": "sde-dpmsolver++"}

SCHEDULERS = {
    "dpmpp_2m": Row("DPMSolverMultistepScheduler", lists=True, whole=True, zero_snr=True, short=True,
                    list_hook="karras", variants=DPM + (({}, SDE), ({"algorithm_type": "deis"}, {}))),
    "dpmpp_2m_sde": Row("DPMSolverMultistepScheduler", lists=True, whole=True, zero_snr=True, short=True,
                        list_hook="karras", variants=DPM, extra=SDE),
    "dpmpp_3m_sde": Row("EulerDiscreteScheduler", lists=True, short=True, sampler="dpmpp_3m_sde",
                        noise="brownian", variants=(({}, {"eta": 0}), ({}, {"eta": 0.5}))),
    "dpmpp_sde": Row("DPMSolverSDEScheduler", predictions=ALL[:2], lists=True, short=True,
                     extra={"noise_sampler_seed": [SEED]}),
    "dpmpp_2s_ancestral": Row("EulerDiscreteScheduler", lists=True, short=True, sampler="dpmpp_2s_ancestral",
                              noise="fresh", variants=(({}, {"eta": 0}), ({}, {"eta": 0.5}))),
    "unipc": Row("UniPCMultistepScheduler", lists=True, whole=True, zero_snr=True, short=True,
                 list_hook="karras", variants=MULTISTEP + (
                     ({}, {"solver_type": "bh1"}), ({}, {"solver_type": "bh1", "solver_order": 3}),
                     ({}, {"final_sigmas_type": "sigma_min"}),
                     ({}, {"final_sigmas_type": "sigma_min", "predict_x0": False}),
                     ({"solver_type": "midpoint"}, {}))),
    "deis": Row("DEISMultistepScheduler", lists=True, whole=True, short=True, list_hook="karras",
                variants=MULTISTEP + (({"solver_type": "midpoint"}, {}),
                                      ({"algorithm_type": "dpmsolver++"}, {}))),
    "ddpm": Row("DDPMScheduler", zero_snr=True, variants=(
        ({"variance_type": "fixed_small_log"}, {}), ({"variance_type": "fixed_large"}, {}))),
    "ddim": Row("DDIMScheduler", zero_snr=True, variants=(
        ({}, {"eta": 0.5}), ({}, {"eta": 1}), ({}, {"set_alpha_to_one": True}))),
    "ddim_cfgpp": Row("DDIMScheduler", sampler="ddim_cfgpp", variants=(
        ({}, {"eta": 0.5}), ({}, {"eta": 1}), ({}, {"set_alpha_to_one": True}))),
    "pndm": Row("PNDMScheduler", predictions=ALL[:2], variants=(
        ({"skip_prk_steps": False}, {}), ({}, {"set_alpha_to_one": True}))),
    "euler": Row("EulerDiscreteScheduler", lists=True, zero_snr=True, variants=(
        ({"interpolation_type": "log_linear"}, {}),)),
    "euler_ancestral": Row("EulerAncestralDiscreteScheduler", predictions=ALL[:2], lists=True,
                           zero_snr=True, borrows_lists=True),
    "heun": Row("HeunDiscreteScheduler", lists=True),
    "restart": Row("EulerDiscreteScheduler", lists=True, sampler="restart", noise="fresh"),
    "lms": Row("LMSDiscreteScheduler", lists=True),
    "dpm2": Row("KDPM2DiscreteScheduler", predictions=ALL[:2], lists=True),
    "dpm2_ancestral": Row("KDPM2AncestralDiscreteScheduler", predictions=ALL[:2], lists=True),
    "dpm_fast": Row("EulerDiscreteScheduler", spacings=False, sampler="dpm_fast", noise="fresh",
                    variants=(({}, {"eta": 0}), ({}, {"eta": 0.5}))),
    "lcm": Row("LCMScheduler", spacings=False, zero_snr=True, variants=(
        ({}, {"original_inference_steps": 100}), ({"timestep_scaling": 0.01}, {}))),
    "tcd": Row("TCDScheduler", spacings=False, zero_snr=True, variants=(
        ({}, {"original_inference_steps": 100}), ({}, {"eta": 0.3}), ({}, {"eta": 1}))),
}


def round_square_roots():
    """Replaces torch's square root by IEEE's. MKL's vector library is only right within one
    rounding, which the schedules of zero terminal SNR amplify strongly."""
    power = torch.Tensor.__pow__

    def sqrt(x):
        return torch.from_numpy(numpy.sqrt(x.numpy())) if x.dim() else torch.tensor(numpy.sqrt(x.numpy()))

    torch.Tensor.sqrt = torch.sqrt = sqrt
    torch.Tensor.__pow__ = lambda x, exponent: sqrt(x) if exponent == 0.5 else power(x, exponent)


def remember_coefficients():
    """Caches coefficients: LMS integrates the same polynomials numerically in every run with a
    list of sigmas."""
    integrate, known = diffusers.LMSDiscreteScheduler.get_lms_coefficient, {}

    def get_lms_coefficient(self, order, t, current_order):
        key = self.sigmas[max(0, t - order):t + 2].numpy().tobytes(), order, min(t, order), current_order
        if key not in known:
            known[key] = integrate(self, order, t, current_order)
        return known[key]

    diffusers.LMSDiscreteScheduler.get_lms_coefficient = get_lms_coefficient


def model(x, t):
    """The sine is rounded to the nearest float32, because torch's own sine is not rounded so on
    every processor."""
    return torch.sin((3 * x).double()).float() / 10 + x * ((float(t) + 1) / 1100)


def model_without_prompt(x, t):
    return torch.sin((2 * x).double()).float() / 10 + x * ((float(t) + 1) / 1200)


def interpolated_ays(steps):
    """Interpolates the AYS sigmas as their authors do, but leaves out the last one, which the
    scheduler replaces by its final sigma."""
    at = numpy.linspace(0, 1, steps + 1)
    logs = numpy.interp(at, numpy.linspace(0, 1, len(AYS)), numpy.log(AYS[::-1]))
    return numpy.exp(logs)[::-1][:-1].copy()


def kl_optimal(sigmas, steps):
    """Returns kl_optimal of AUTOMATIC1111's modules/sd_schedulers.py between the ends of `sigmas`,
    without its last sigma. In double: in float32 its tangent enlarges roundings 200 times."""
    low, high = (numpy.arctan(numpy.float64(sigma)) for sigma in (sigmas[-1], sigmas[0]))
    return numpy.tan(high + numpy.arange(steps) * ((low - high) / steps))


def sgm_uniform(scheduler, steps):
    """Returns k-diffusion's sigmas of evenly spaced timesteps, without the last one, 0."""
    sigmas = ((1 - scheduler.alphas_cumprod) / scheduler.alphas_cumprod) ** 0.5
    table = k_diffusion.external.DiscreteSchedule(sigmas, quantize=False)
    return table.t_to_sigma(torch.linspace(len(table.sigmas) - 1, 0, steps + 1)[:-1]).numpy()


def make(row, file, options):
    # Switches schedulers as a user does: X.from_config(pipe.scheduler.config, ...).
    loaded = diffusers.PNDMScheduler.from_config(dict(file))
    config = dict(loaded.config) if file.get("_class_name") else {}
    options = {k: v for k, v in options.items() if k != "eta"} | row.extra
    if row.borrows_lists:
        plain = {k: v for k, v in options.items() if not k.startswith("use_")}
        scheduler = getattr(diffusers, row.reference).from_config(config, **plain | (
            {"timestep_spacing": "linspace"} if plain.get("timestep_spacing") == "sgm_uniform" else {}))
        lender = make(SCHEDULERS["euler"], file, options)
        choose = scheduler.set_timesteps

        def set_timesteps(steps, device=None):
            choose(steps)
            lender.set_timesteps(steps)
            scheduler.sigmas, scheduler.timesteps = lender.sigmas, lender.timesteps
        scheduler.set_timesteps = set_timesteps
        return scheduler
    stand_in = None
    if options.pop("use_ays_sigmas", False):
        stand_in = lambda sigmas, steps: interpolated_ays(steps)
    if options.pop("use_kl_optimal_sigmas", False):
        stand_in = kl_optimal
    if options.get("timestep_spacing") == "sgm_uniform":
        options["timestep_spacing"] = "linspace"
        stand_in = lambda sigmas, steps: sgm_uniform(scheduler, steps)
    if stand_in:
        options[f"use_{row.list_hook}_sigmas"] = True
    scheduler = getattr(diffusers, row.reference).from_config(config, **options)
    if stand_in:
        def listed(in_sigmas, num_inference_steps=None):
            return stand_in(in_sigmas, num_inference_steps or scheduler.num_inference_steps)
        setattr(scheduler, f"_convert_to_{row.list_hook}", listed)
    return scheduler


def roll(row, file, options, steps, moved=None):
    """Returns (timestep, sample, last_sample) for every evaluation."""
    scheduler = make(row, file, options)
    scheduler.set_timesteps(steps)
    generator = torch.Generator().manual_seed(SEED)
    sample = torch.randn(16, generator=generator).reshape(1, 4, 2, 2) * (
        k_diffusion_samplers.sigma_table(scheduler)[-1] if row.sampler == "dpm_fast"  # whatever the steps
        else scheduler.init_noise_sigma)
    lots = None if moved is None else torch.Generator().manual_seed(moved)
    if row.sampler == "ddim_cfgpp":
        pair = lambda x, t: (model_without_prompt(x, t), model(x, t))
        return check_finite([(t, x.flatten(), None) for t, x in k_diffusion_samplers.sample_cfgpp(
            scheduler, pair, GUIDANCE_SCALE, sample, [generator], options.get("eta", 0.0), lots)])
    if row.sampler:
        return check_finite([(t, x.flatten(), None) for t, x in k_diffusion_samplers.sample(
            row.sampler, row.noise, scheduler, model, sample, [generator], [SEED],
            options.get("eta", 1.0), lots)])
    takes = inspect.signature(scheduler.step).parameters
    given = {"generator": generator, "eta": options.get("eta", 0.0)}
    given = {k: v for k, v in given.items() if k in takes}
    trace = []
    for t in scheduler.timesteps[:length(scheduler, steps)]:
        if lots:
            sample = nudged(sample, lots)
            if last_sample(scheduler) is not None:
                scheduler.last_sample = nudged(scheduler.last_sample, lots)
        output = model(scheduler.scale_model_input(sample, t), t)
        sample = scheduler.step(output, t, sample, **given).prev_sample
        trace.append((float(t), sample.flatten(), last_sample(scheduler)))
        if not torch.isfinite(sample).all():
            raise ValueError("not finite")
    return trace


def last_sample(scheduler):
    """Returns UniPC's corrected sample: UniPC continues from it, not from the sample that it is
    given."""
    return getattr(scheduler, "last_sample", None)


def check_finite(trace):
    if not all(torch.isfinite(sample).all() for _, sample, _ in trace):
        raise ValueError("not finite")
    return trace


def length(scheduler, steps):
    """Returns the number of timesteps without the stray last one of -1, which numpy's arange
    sometimes gives with trailing spacing (see engine/scheduler/noise_schedule.h)."""
    stray = scheduler.timesteps[-1] < 0
    return len(scheduler.timesteps) - int(stray)


def kept(count):
    """Returns the evaluations of a run that a case keeps; the test has the same rule."""
    stride = 2 * ((count + 15) // 16)  # even: some schedulers evaluate twice a step
    return [k for k in range(count) if count <= 41 or k % stride < IN_A_ROW or k >= count - IN_A_ROW]


def record(row, file, options, steps):
    try:
        trace = roll(row, file, options, steps)
    except (ValueError, IndexError, RuntimeError, UnboundLocalError, AssertionError, ZeroDivisionError, NotImplementedError) as why:
        return {"refused": True}, f"{type(why).__name__}: {str(why)[:80]}"
    distance = 0.0
    for seed in range(1 if len(trace) > 100 else 2):
        for (_, a, _), (_, b, _) in zip(trace, roll(row, file, options, steps, moved=seed)):
            distance = max(distance, ((a - b).abs().max() / a.abs().mean()).item())
    rows = kept(len(trace))
    alone = {}
    after_gaps = [k for k in rows if k and k - 1 not in rows]
    if after_gaps and trace[0][2] is not None:
        alone["last_samples"] = packed(trace[k][2].flatten() for k in after_gaps)
    return {"count": len(trace), "moved": float(f"{distance:.2g}")} | alone | {
            "timesteps": [float(f"{trace[k][0]:.8g}") for k in rows],
            "samples": packed(trace[k][1] for k in rows)}, None


def packed(samples):
    """Returns the kept values of each sample, float32 in base64."""
    values = numpy.stack([sample[:VALUES].numpy() for sample in samples]).astype("<f4")
    return base64.b64encode(values.tobytes()).decode()


BETAS = ("linear", "squaredcos_cap_v2")
FEW_BETAS = {"num_train_timesteps": 40, "trained_betas": [round(0.002 + 0.003 * i, 4) for i in range(40)]}


def ways_down(row):
    """Returns every spacing and every list of sigmas, as options of the request."""
    names = (SPACINGS + ("sgm_uniform",) * (row.lists and not row.whole)) if row.spacings else ()
    spacings = [{"timestep_spacing": s} for s in names] or [{}]
    return spacings, [{name: True} for name in LISTS if row.lists]


def cases(row):
    """Yields (changes to the file, options of the request, steps)."""
    yield from cases_of_every_way_down(row)
    yield from cases_of_variants(row)
    spacings, lists = ways_down(row)
    if row.spacings:
        yield {}, {"timestep_spacing": "leading", "steps_offset": 0}, 10
        if not row.sampler:  # a sampler's last two sigmas may both be 0
            yield {"beta_start": 0}, {"timestep_spacing": "linspace"}, 10
    if "final_sigmas_type" in inspect.signature(getattr(diffusers, row.reference)).parameters and not row.sampler:
        for listed in [{}] + lists:
            yield {}, listed | {"final_sigmas_type": "sigma_min"}, 10


def cases_of_every_way_down(row):
    spacings, lists = ways_down(row)
    first, second = ({"prediction_type": p} for p in row.predictions[:2])
    zero_snr = {"rescale_betas_zero_snr": True}
    for way in spacings + lists:
        for steps in STEPS:
            yield {}, way | first, steps
            yield {}, way | second, steps
            for schedule in BETAS:
                yield {}, way | second | {"beta_schedule": schedule}, steps
            if steps < FEW_BETAS["num_train_timesteps"]:
                yield FEW_BETAS, way | second, steps
            if row.zero_snr:
                yield {}, way | second | zero_snr, steps
        for schedule in BETAS:
            yield {}, way | first | {"beta_schedule": schedule}, 20
        yield FEW_BETAS, way | first, 20
        for prediction in row.predictions:
            yield {}, way | {"prediction_type": prediction}, 20
            if row.zero_snr:
                yield {}, way | {"prediction_type": prediction} | zero_snr, 20
    for prediction in row.predictions if row.zero_snr else ():
        for steps in STEPS:
            yield {}, spacings[min(1, len(spacings) - 1)] | {"prediction_type": prediction} | zero_snr, steps


def cases_of_variants(row):
    spacings, _ = ways_down(row)
    predictions = [{"prediction_type": p} for p in row.predictions]
    for changes, variant in row.variants:
        for spacing in spacings[:1 if row.short else None]:
            for prediction in predictions:
                yield changes, spacing | prediction | variant, 20
        for steps in STEPS[:len(STEPS) - row.short]:
            yield changes, predictions[1] | variant, steps
        # Not with eta 1: the reference would take the root of a difference that is 0, or slightly
        # negative because of rounding.
        if row.zero_snr and not row.short and variant.get("eta") != 1:
            for prediction in predictions:
                for spacing in spacings[:3]:
                    yield changes, spacing | prediction | variant | {"rescale_betas_zero_snr": True}, 20


def write(name, row):
    lines, refused, seen = [], {}, set()
    for changes, options, steps in cases(row):
        key = json.dumps([changes, options, steps], sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        file = SD15 | changes
        # If PNDMScheduler does not have a changed key, diffusers saves it only in the file of a
        # scheduler that has it. The reference gets such keys as options.
        foreign = {k: v for k, v in changes.items() if k not in SD15}
        result, why = record(row, file, options | foreign, steps)
        if why:
            refused.setdefault(why, []).append(f"{changes | options} {steps}")
        lines.append(json.dumps({"changes": changes, "options": options, "steps": steps} | result,
                                separators=(",", ":")))
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    start = packed([torch.randn(16, generator=torch.Generator().manual_seed(SEED))])
    path.write_text(f'{{"name": "{name}",\n"file": {json.dumps(SD15)},\n"start": "{start}",\n"cases": [\n'
                    + ",\n".join(lines) + "\n]}\n")
    print(f"{name}: {len(lines)} cases, {path.stat().st_size} bytes")
    for why, where in refused.items():
        print(f"  {len(where)} refused: {why}; the first: {where[0]}")


def write_spacing():
    sums = {}
    for spacing in SPACINGS:
        scheduler = make(SCHEDULERS["ddim"], SD15, {"timestep_spacing": spacing, "steps_offset": 0})
        sums[spacing] = []
        for n in range(1, 1001):
            scheduler.set_timesteps(n)
            timesteps = scheduler.timesteps.tolist()[:n]
            sums[spacing].append(sum((i + 1) * t for i, t in enumerate(timesteps)))
    (OUT / "spacing.json").write_text(json.dumps(sums) + "\n")


def main():
    round_square_roots()
    remember_coefficients()
    warnings.filterwarnings("ignore", module="torchsde")  # a sigma out of range by one rounding
    k_diffusion_samplers.round_rightly()
    names = k_diffusion_samplers.arguments()
    for name in names or SCHEDULERS:
        write(name, SCHEDULERS[name])
    if not names:
        write_spacing()


if __name__ == "__main__":
    main()
