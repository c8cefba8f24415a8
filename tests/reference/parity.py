#!/usr/bin/env python3
"""Compares every component of latentd with diffusers at full size, on identical inputs.

    scripts/parity [--work DIR] [--models DIR] [--tool build/tests/reference/model_tool]
                   [--only text,unet,"vae-decode 512x512",...] [--no-bf16] [--skip-layouts]

Prints a table of relative errors, norm(ours - theirs) / norm(theirs) over the whole output, and
exits with 1 if one exceeds its limit:
  f32      latentd f32 against diffusers f32: at most 2e-5
  bf16     latentd bf16 against diffusers f32: at most 1.1 times diffusers' own bf16 against its f32
  layouts  folder and single file, f32 and f16 on disk: the same bits

diffusers' results are kept in DIR, so that a second run needs only latentd. At most one full-size
model is in memory at a time. On a processor without bf16 instructions diffusers takes minutes for a
full-size bf16 result, so the bf16 cases are smaller there.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file, save_file

import sd15
from parity_reference import (
    CASES,
    HERE,
    OUTPUTS,
    Reference,
    bf16_cases,
    channels_last,
    make_inputs,
    note,
)

F32_BAR = 2e-5
BF16_FACTOR = 1.1
LAYOUT_CASES = ("text", "unet 520x456", "vae-decode 520x456", "vae-encode 520x456")


def relative_error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    if ours.shape != theirs.shape:
        raise SystemExit(f"parity: shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}")
    if not torch.isfinite(ours).all():
        return float("inf")
    return ((ours - theirs).norm() / theirs.norm()).item()


def run_latentd(tool, model, dtype_name, component, cases, folder):
    """Returns {case name: output} from one process that loads the component once."""
    if not cases:
        return {}
    command = [tool, "--model", model, "--dtype", dtype_name, "--component", component]
    outputs = {}
    for name, inputs in cases:
        base = os.path.join(folder, name.replace(" ", "-"))
        save_file({key: channels_last(value) for key, value in inputs.items()}, base + "-in.st")
        command += ["--input", base + "-in.st", "--output", base + "-out.st"]
        outputs[name] = base + "-out.st"
    start = time.monotonic()
    subprocess.run(command, check=True)
    note(f"latentd {dtype_name} {component}: {time.monotonic() - start:.0f} s")
    return {name: load_file(path)[OUTPUTS[component]] for name, path in outputs.items()}


def ensure_model(path, layout, dtype_name):
    last = os.path.join(path, "vae", sd15.FILES["vae"]) if layout == "folder" else path
    if not os.path.exists(last):
        note(f"writing {path}")
        subprocess.run(
            [sys.executable, os.path.join(HERE, "random_sd15.py"), path]
            + ["--layout", layout, "--dtype", dtype_name],
            check=True,
        )
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", required=True, help="the built model_tool")
    parser.add_argument("--work", required=True, help="folder for cached results and inputs")
    parser.add_argument("--models", help="folder of the random checkpoints (default: WORK/models)")
    parser.add_argument("--only", help="components or cases, comma separated")
    parser.add_argument("--no-bf16", action="store_true")
    parser.add_argument("--skip-layouts", action="store_true")
    parser.add_argument("--reference-only", action="store_true", help="fill the cache and stop")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = options.models or os.path.join(options.work, "models")
    os.makedirs(options.work, exist_ok=True)
    os.makedirs(models, exist_ok=True)
    all_cases = CASES if options.no_bf16 else CASES + bf16_cases()
    wanted = options.only.split(",") if options.only else list(OUTPUTS)
    known = set(OUTPUTS) | {name for name, *_ in all_cases}
    if set(wanted) - known:
        parser.error(f"--only takes {', '.join(sorted(known))}")

    folder = ensure_model(os.path.join(models, "folder-f32"), "folder", "f32")
    reference = Reference(options.work, folder)
    rows, missed = [], 0

    def add(name, check, error, bar, text):
        nonlocal missed
        missed += not error <= bar
        rows.append((name, check, error, bar, "ok" if error <= bar else "MISSED", text))

    for component in OUTPUTS:
        plain, low = [
            [
                (name, make_inputs(component, size, count))
                for name, kind, size, count in group
                if kind == component and (kind in wanted or name in wanted)
            ]
            for group in (CASES, bf16_cases() if not options.no_bf16 else ())
        ]
        truth = {
            name: reference.output(name, component, inputs, "f32") for name, inputs in plain + low
        }
        own = {name: reference.output(name, component, inputs, "bf16") for name, inputs in low}
        reference.drop()
        if options.reference_only or not truth:
            continue
        ours = run_latentd(options.tool, folder, "f32", component, plain, options.work)
        for name in ours:
            add(name, "f32", relative_error(ours[name], truth[name]), F32_BAR, "")
        ours_low = run_latentd(options.tool, folder, "bf16", component, low, options.work)
        for name in ours_low:
            bar = relative_error(own[name], truth[name])
            error = relative_error(ours_low[name], truth[name])
            text = f"diffusers bf16 {bar:.2e}, ratio {error / bar:.2f}"
            add(name, "bf16", error, BF16_FACTOR * bar, text)
        if not options.skip_layouts:
            picked = [(name, inputs) for name, inputs in plain if name in LAYOUT_CASES]
            for layout, dtype_name in (("single", "f32"), ("folder", "f16"), ("single", "f16")):
                path = f"{layout}-{dtype_name}" + (".safetensors" if layout == "single" else "")
                path = ensure_model(os.path.join(models, path), layout, dtype_name)
                got = run_latentd(options.tool, path, "f32", component, picked, options.work)
                for name, _ in picked:
                    same = torch.equal(got[name], ours[name])
                    text = f"{layout}, {dtype_name} on disk: {'same bits' if same else 'DIFFERS'}"
                    add(name, "layouts", 0.0 if same else float("inf"), 0.0, text)

    if options.reference_only:
        return 0
    print("| case | check | relative error | at most | | |")
    print("|---|---|---|---|---|---|")
    for name, check, error, bar, verdict, text in rows:
        print(f"| {name} | {check} | {error:.2e} | {bar:.2e} | {verdict} | {text} |")
    keys = ("case", "check", "error", "bar", "verdict", "note")
    with open(os.path.join(options.work, "parity.json"), "w") as file:
        json.dump([dict(zip(keys, row)) for row in rows], file, indent=2)
    print(f"{len(rows) - missed} of {len(rows)} within their bars")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
