#!/usr/bin/env python3
"""What LoRAs cost a UNet step at full SD-1.5 size: the added share of time in latentd, compared
with diffusers + peft.

    bench_lora.py --tool BUILD/tests/reference/lora_tool --model FOLDER [--dtype f32|bf16]
                  [--rank 16] [--rows 2] [--adapters 1] [--rounds 5] [--threads 2]
                  [--peers latentd,diffusers]

Each peer is a separate process that keeps running and makes steps with and without adapters in
turn, all peers in one run. A share is computed in two ways: as the median of the rounds' ratios,
and from the fastest step without and the fastest with adapters, because a disturbance can only make
a step longer. Each of the two shares is given for wall-clock time and for the processor time of all
threads. The adapters
are random, for to_q,
to_k, to_v and to_out of all attentions. diffusers uses one adapter for all rows of a call
(--adapters applies to latentd only). peft's layers exist in all steps of diffusers; in those
without adapters they are disabled. 512x512, 77 tokens.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import sd15

TOKENS, LATENT = 77, 64


def say(**fields):
    print(json.dumps(fields), flush=True)


def run_diffusers(options):
    import diffusers
    import peft
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    unet = sd15.load(options.model, "unet", dtype).to(memory_format=torch.channels_last)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    unet.add_adapter(peft.LoraConfig(r=options.rank, target_modules=targets))
    for name, parameter in unet.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter).mul_(0.02).to(dtype)
    rows = options.rows
    latents = torch.randn(rows, 4, LATENT, LATENT).to(dtype, memory_format=torch.channels_last)
    context = torch.randn(rows, TOKENS, 768).to(dtype)
    modules = sum("lora_A" in name for name, _ in unet.named_parameters())
    software = f"diffusers {diffusers.__version__}, peft {peft.__version__}, torch {torch.__version__}"
    say(event="loaded", software=software, modules=modules)
    for line in sys.stdin:
        unet.enable_adapters() if line.strip() == "lora" else unet.disable_adapters()
        with torch.inference_mode():
            begin, busy = time.perf_counter(), time.process_time()
            unet(latents, torch.full((rows,), 801.0), encoder_hidden_states=context)
            say(
                event=line.strip(),
                seconds=time.perf_counter() - begin,
                busy=time.process_time() - busy,
            )


def start(peer, options):
    shared = ["--model", options.model, "--dtype", options.dtype, "--rank", str(options.rank)]
    shared += ["--rows", str(options.rows)]
    if peer == "latentd":
        command = [options.tool, *shared, "--adapters", str(options.adapters)]
    else:
        command = [sys.executable, __file__, "--worker", *shared, "--threads", str(options.threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    return process, json.loads(process.stdout.readline())


def ask(process, what):
    process.stdin.write(what + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tool")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--adapters", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", default="latentd,diffusers")
    options = parser.parse_args()
    if options.worker:
        run_diffusers(options)
        return
    peers = {name: start(name, options) for name in options.peers.split(",")}
    for process, about in peers.values():
        ask(process, "base"), ask(process, "lora")  # first calls, which are not counted
    steps = {name: {"base": [], "lora": []} for name in peers}
    for turn in range(options.rounds):
        for name, (process, about) in peers.items():
            for what in ("base", "lora") if turn % 2 == 0 else ("lora", "base"):
                steps[name][what].append(ask(process, what))
    print(
        f"rank {options.rank}, {options.rows} rows, {options.dtype}, {options.threads} threads, "
        f"medians of {options.rounds} rounds"
    )
    for name, (process, about) in peers.items():
        process.stdin.close()
        process.wait()
        adapters = options.adapters if name == "latentd" else 1
        print(f"{name}: {adapters} adapters of {about['modules']} modules; {about['software']}")
        for clock in ("seconds", "busy"):
            base = [sample[clock] for sample in steps[name]["base"]]
            lora = [sample[clock] for sample in steps[name]["lora"]]
            shares = [100 * (with_ / without - 1) for without, with_ in zip(base, lora)]
            print(
                f"  {clock:8} {statistics.median(base):8.3f} s a step, with them "
                f"{statistics.median(lora):8.3f} s: +{statistics.median(shares):.2f} % "
                f"({min(shares):.2f} to {max(shares):.2f}); fastest {min(base):.3f} and "
                f"{min(lora):.3f} s: +{100 * (min(lora) / min(base) - 1):.2f} %"
            )


if __name__ == "__main__":
    main()
