"""Writes tests/engine/data/schedulers.json: what diffusers' schedulers do with a small model.

For every scheduler, spacing, prediction type, eta and a few numbers of steps: the timesteps visited
and the sample after the last step, starting from torch.randn(16) with seed SEED, fresh noise from
the same generator. The model is output(x, t) = sin(3 x) / 2 + x (t + 1) / 2000, in float32. Also one
checksum of the spaced timesteps for every number of steps from 1 to 1000.

usage: python tests/reference/schedulers.py        (diffusers 0.42.1, torch 2.15.0)
"""

import itertools
import json
import pathlib

import torch
from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler

SEED = 11
STEPS = (1, 2, 3, 10, 25, 50)
# Stable Diffusion 1.5's own file.
SD15 = {
    "_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "beta_start": 0.00085, "clip_sample": False, "num_train_timesteps": 1000,
    "set_alpha_to_one": False, "skip_prk_steps": True, "steps_offset": 1, "trained_betas": None,
}
CLASSES = {"ddpm": DDPMScheduler, "ddim": DDIMScheduler, "pndm": PNDMScheduler}
SPACINGS = ("leading", "trailing", "linspace")


def model(x, t):
    return torch.sin(3 * x) / 2 + x * ((float(t) + 1) / 2000)


def make(name, file, options):
    # As a user switches: X.from_config(pipe.scheduler.config, ...).
    loaded = PNDMScheduler.from_config(dict(file))
    return CLASSES[name].from_config(loaded.config, **options)


def run(name, file, options, eta, steps):
    scheduler = make(name, file, options)
    scheduler.set_timesteps(steps)
    generator = torch.Generator().manual_seed(SEED)
    sample = torch.randn(16, generator=generator).reshape(1, 4, 2, 2)
    step = {"generator": generator} if name != "pndm" else {}
    if name == "ddim":
        step["eta"] = eta
    for t in scheduler.timesteps:
        sample = scheduler.step(model(sample, t), t, sample, **step).prev_sample
    return scheduler.timesteps.tolist(), sample.flatten().tolist()


def cases():
    """(scheduler, changes to the file, options of the request, steps)"""
    for spacing, steps in itertools.product(SPACINGS, STEPS):
        for prediction in ("epsilon", "v_prediction", "sample"):
            options = {"timestep_spacing": spacing, "prediction_type": prediction}
            yield "ddpm", {}, options, steps
            for eta in (0, 0.5, 1):
                yield "ddim", {}, options | {"eta": eta}, steps
            if prediction != "sample":
                yield "pndm", {}, options, steps
                if steps > 3:
                    yield "pndm", {"skip_prk_steps": False}, options, steps
        for prediction in ("v_prediction", "sample"):
            zero = {"timestep_spacing": spacing, "prediction_type": prediction,
                    "rescale_betas_zero_snr": True}
            yield "ddpm", {}, zero, steps
            yield "ddim", {}, zero | {"eta": 0}, steps
            yield "ddim", {}, zero | {"eta": 0.5}, steps
    for name, prediction in itertools.product(CLASSES, ("epsilon", "v_prediction")):
        base = {"prediction_type": prediction}
        for beta_schedule in ("linear", "squaredcos_cap_v2"):
            yield name, {}, base | {"beta_schedule": beta_schedule}, 10
        yield name, {}, base | {"steps_offset": 0}, 10
        yield name, {"num_train_timesteps": 40, "steps_offset": 1,
                     "trained_betas": [round(0.002 + 0.003 * i, 4) for i in range(40)]}, base, 7
        if name != "ddpm":
            yield name, {}, base | {"set_alpha_to_one": True}, 10
    for variance_type in ("fixed_small_log", "fixed_large"):
        yield "ddpm", {"variance_type": variance_type}, {}, 10
    for name in ("ddpm", "ddim"):
        yield name, {}, {"rescale_betas_zero_snr": True}, 10


def checksums():
    out = {}
    for spacing in SPACINGS:
        scheduler = make("ddim", SD15, {"timestep_spacing": spacing, "steps_offset": 0})
        sums = []
        for n in range(1, 1001):
            scheduler.set_timesteps(n)
            # Where there is a stray last entry of -1 (see engine/scheduler/noise_schedule.h) it is left out.
            sums.append(sum((i + 1) * t for i, t in enumerate(scheduler.timesteps.tolist()[:n])))
        out[spacing] = sums
    return out


def main():
    lines, skipped = [], 0
    for name, changes, options, steps in cases():
        file = SD15 | changes
        plain = {k: v for k, v in options.items() if k != "eta"}
        # Keys that PNDMScheduler does not have travel in the file as diffusers saves them.
        timesteps, final = run(name, file, plain | {k: v for k, v in changes.items()
                                                    if k == "variance_type"},
                               options.get("eta", 0), steps)
        if any(v != v for v in final):
            skipped += 1
            continue
        lines.append(json.dumps({"scheduler": name, "file": file, "options": options,
                                 "steps": steps, "timesteps": timesteps,
                                 "final": [float(f"{v:.8g}") for v in final]}))
    path = pathlib.Path(__file__).parents[1] / "engine/data/schedulers.json"
    path.write_text('{"checksums":\n' + json.dumps(checksums()) + ',\n"cases": [\n'
                    + ",\n".join(lines) + "\n]}\n")
    print(f"{len(lines)} cases, {skipped} left out because diffusers' result is NaN")


main()
