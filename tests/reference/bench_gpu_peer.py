#!/usr/bin/env python3
"""What scripts/bench-gpu needs diffusers for, in a process of its own; prints one line of JSON.

    bench_gpu_peer.py parity   --model FOLDER --tool MODEL_TOOL
    bench_gpu_peer.py eager|compiled --model FOLDER --steps N

parity: each component of latentd on the GPU against diffusers in float32 (TF32 off) on the same
inputs: relative errors, beside diffusers' own in bf16 and f16. eager, compiled: seconds of an image
of N steps with guidance, of a step and of a decode, for diffusers in bf16 with channels-last
weights; compiled by torch.compile(max-autotune) with fused QKV. The weights are those of the model
folder. --wheels FOLDER: wheels to unpack and import where the system has no diffusers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
CASES = (("text", None, 2), ("unet", (512, 512), 2), ("vae-decode", (512, 512), 1))


def say(**fields):
    print(json.dumps(fields), flush=True)
    sys.exit(0)


def add_wheels(folder):
    target = tempfile.mkdtemp(prefix="wheels-")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".whl"):
            with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                wheel.extractall(target)
    sys.path.insert(0, target)


def parity(options):
    import torch
    from safetensors.torch import load_file, save_file

    import sd15
    from parity import relative_error
    from parity_reference import OUTPUTS, channels_last, make_inputs, run_diffusers

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    out = {}
    for component, size, rows in CASES:
        part = {"text": "text_encoder", "unet": "unet"}.get(component, "vae")
        inputs = make_inputs(component, size, rows)
        on_gpu = {key: value.cuda() for key, value in inputs.items()}
        truth, theirs = None, {}
        for name in ("float32", "bfloat16", "float16"):
            dtype = getattr(torch, name)
            module = sd15.load(options.model, part, dtype).cuda()
            result = run_diffusers(module, component, on_gpu, dtype).cpu()
            truth = result if truth is None else truth
            theirs[name] = relative_error(result, truth)
            del module
            torch.cuda.empty_cache()
        row = {"diffusers_bf16": theirs["bfloat16"], "diffusers_f16": theirs["float16"]}
        libraries = (os.environ.get("LD_LIBRARY_PATH"), os.environ.get("LATENTD_BENCH_LIBRARIES"))
        environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(filter(None, libraries)))
        with tempfile.TemporaryDirectory() as folder:
            files = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
            save_file({key: channels_last(value) for key, value in inputs.items()}, files[0])
            for dtype in ("f32", "bf16", "f16"):
                subprocess.run([options.tool, "--model", options.model, "--dtype", dtype, "--device",
                                "cuda", "--component", component, "--input", files[0], "--output",
                                files[1]], check=True, env=environment)
                row[f"latentd_{dtype}"] = relative_error(
                    load_file(files[1])[OUTPUTS[component]], truth)
        row["met"] = (row["latentd_f32"] <= 1e-4 and
                      row["latentd_bf16"] <= 1.1 * row["diffusers_bf16"] and
                      row["latentd_f16"] <= 1.1 * row["diffusers_f16"])
        out[component] = row
    missed = [name for name, row in out.items() if not row["met"]]
    if missed:
        out["failed"] = "missed by " + ", ".join(missed)
    say(**out)


def median_s(torch, action, repeats):
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times)[repeats // 2]


def peer(options):
    import torch

    import sd15

    ready = time.perf_counter()
    modules = {}
    for part in sd15.COMPONENTS:
        module = sd15.load(options.model, part, torch.bfloat16).cuda()
        modules[part] = module.to(memory_format=torch.channels_last) if part != "text_encoder" else module
    unet, vae, text = modules["unet"], modules["vae"], modules["text_encoder"]
    decode = vae.decode
    if options.mode == "compiled":
        unet.fuse_qkv_projections()
        unet = torch.compile(unet, mode="max-autotune", fullgraph=True)
        decode = torch.compile(vae.decode, mode="max-autotune", fullgraph=True)
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(**{k: v for k, v in sd15.SCHEDULER_CONFIG.items() if k[0] != "_"
                                 and k != "skip_prk_steps"})
    ids = torch.full((2, 77), 49407, device="cuda")

    def step(latents, t, context):
        both = torch.cat([latents, latents]).to(memory_format=torch.channels_last)
        noise = unet(both, t, encoder_hidden_states=context, return_dict=False)[0]
        unconditional, conditional = noise.chunk(2)
        return unconditional + 7.5 * (conditional - unconditional)

    def image(count=None):
        scheduler.set_timesteps(count or options.steps, device="cuda")
        context = text(ids).last_hidden_state
        latents = torch.randn((1, 4, 64, 64), device="cuda", dtype=torch.bfloat16)
        for t in scheduler.timesteps:
            latents = scheduler.step(step(latents, t, context), t, latents, return_dict=False)[0]
        pixels = decode((latents / 0.18215).to(memory_format=torch.channels_last),
                        return_dict=False)[0]
        return (pixels / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).cpu()

    with torch.inference_mode():
        image(3)
        ready = time.perf_counter() - ready
        context, latents = text(ids).last_hidden_state, torch.randn(
            (1, 4, 64, 64), device="cuda", dtype=torch.bfloat16)
        t = torch.tensor(500, device="cuda")
        say(ready_s=ready, torch=torch.__version__,
            step_s=median_s(torch, lambda: step(latents, t, context), 20),
            decode_s=median_s(torch, lambda: decode(latents, return_dict=False), 10),
            image_s=median_s(torch, image, 3), steps=options.steps,
            peak_memory_bytes=torch.cuda.max_memory_allocated())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("mode", choices=("parity", "eager", "compiled"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--tool")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--wheels")
    parser.add_argument("--dry-run", action="store_true", help="look whether it could run, no more")
    options = parser.parse_args()
    if options.wheels:
        add_wheels(options.wheels)
    try:
        import diffusers  # noqa: F401
        import safetensors  # noqa: F401
        import torch
    except ImportError as e:
        say(skipped=f"python has no {e.name}")
    if options.dry_run or not torch.cuda.is_available():
        say(skipped="a dry run" if options.dry_run else "torch finds no GPU")
    parity(options) if options.mode == "parity" else peer(options)


if __name__ == "__main__":
    main()
