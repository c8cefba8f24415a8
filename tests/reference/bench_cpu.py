#!/usr/bin/env python3
"""Times latentd beside diffusers and OpenVINO on this CPU, at full SD-1.5 size, in one run.

    scripts/bench-cpu [--peers latentd,diffusers,openvino] [--dtypes bf16,f32] [--rounds 5]
                      [--limit 300] [--skip diffusers-bf16] [--threads 2] [--work DIR]
                      [--models DIR] [--out DIR]

Every peer is a process of its own that stays up; each round asks each for one UNet step (two rows,
CFG, 512x512, 77 tokens a row) and one VAE decode, in an order that rotates, so that whatever else
the machine does hits all alike. Random weights of realistic scale, the same ones for all. Medians
of the rounds; the first call after loading is reported apart. A call that has not ended within
--limit seconds is stopped with its process, and its figure says "over" so many seconds: torch has
no fast bf16 on a processor without instructions for it, and one such step takes minutes. Peak
memory is the process's VmHWM (Linux), file mappings included.

Prints a table and whether the bars are met, and writes OUT/cpu-<model>.md and .json.
"""

import argparse
import datetime
import json
import os
import platform
import re
import select
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Multiplications and additions of one UNet step with two rows and of one decode, as the plain
# algorithm counts them (not as a faster algorithm would).
STEP_TFLOP, DECODE_TFLOP = 1.6065, 2.5145
BARS = (  # (action, peer, dtype, latentd is at least this many times as fast)
    ("step", "diffusers", "bf16", 1.2),
    ("step", "openvino", "bf16", 1.05),
    ("decode", "openvino", "bf16", 1.15),
)
PEAK_BAR_BYTES = 3.5e9
FIRST_STEP_BAR = 1.5


class PeerEnded(Exception):
    """A worker process ended before it should."""


class PeerSlow(Exception):
    """A call did not end within its limit."""


class Peer:
    """A worker process and the seconds it reported."""

    def __init__(self, name, dtype, command, environment, options):
        self.name, self.dtype = name, dtype
        self.samples = {"step": [], "decode": []}
        self.first, self.stopped = {}, set()
        self.command, self.environment, self.peak_bytes = command, environment, 0
        self.log = open(os.path.join(options.work, f"bench-{name}-{dtype}.log"), "w")
        self.load_s = self._start()
        for action in ("text", "step", "decode"):
            try:
                self.first[action] = self._call(action, options.limit)
            except PeerSlow:
                self.first[action] = options.limit
                self.stopped.add(action)
                self._end(kill=True)
                self._start()
        self.ready_s = self.load_s + self.first["text"] + self.first["step"]

    def _start(self):
        """Starts the worker; the seconds until it has loaded."""
        begin = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=self.environment,
        )
        loaded = self._read(None)
        self.software, self.precision = loaded["software"], loaded["precision"]
        return time.monotonic() - begin

    def _end(self, kill):
        with open(f"/proc/{self.process.pid}/status") as file:
            peak = int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)) * 1024
        self.peak_bytes = max(self.peak_bytes, peak)
        if kill:
            self.process.kill()
        self.process.communicate()

    def _read(self, limit):
        # One line answers one call, so nothing is ever left in the pipe's buffer.
        if limit and not select.select([self.process.stdout], [], [], limit)[0]:
            raise PeerSlow
        line = self.process.stdout.readline()
        if not line:
            raise PeerEnded(f"{self.name} {self.dtype} ended early; see {self.log.name}")
        return json.loads(line)

    def _call(self, action, limit=None):
        self.process.stdin.write(action.encode() + b"\n")
        self.process.stdin.flush()
        return self._read(limit)["seconds"]

    def measure(self, action):
        self.samples[action].append(self._call(action))

    def finish(self):
        """Ends the process and returns its figures."""
        self._end(kill=False)
        out = {
            "peer": self.name,
            "dtype": self.dtype,
            "software": self.software,
            "precision": self.precision,
            "load_s": self.load_s,
            "ready_s": self.ready_s,
            "text_s": self.first["text"],
            "peak_bytes": self.peak_bytes,
        }
        for action, samples in self.samples.items():
            # Slow peers are measured once, with the call that warms others up.
            used = samples or [self.first[action]]
            out[action] = {
                "first_s": self.first[action],
                "median_s": statistics.median(used),
                "min_s": min(used),
                "max_s": max(used),
                "count": len(samples),
                # Stopped at the limit: the seconds are a lower bound.
                "stopped": action in self.stopped,
            }
        return out


def over(stopped):
    """What to write before a figure that is a lower bound."""
    return "over " if stopped else ""


def note(text):
    print(text, file=sys.stderr, flush=True)


def commands(options):
    """{peer: argument list without the dtype}"""
    python, worker = sys.executable, os.path.join(HERE, "bench_peer.py")
    folder = os.path.join(options.models, "folder-f16")
    threads = ["--threads", str(options.threads)]
    return {
        "latentd": [options.tool, "--serve", "--model", folder],
        "diffusers": [python, worker, "diffusers", "--model", folder, *threads],
        "openvino": [python, worker, "openvino", "--model", options.ir, *threads],
    }


def run_group(options, dtype, names, failures):
    """All peers of one dtype, interleaved. One that does not come up is left out, and said."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), PYTHONWARNINGS="ignore")
    peers = []
    for name in names:
        command = commands(options)[name] + ["--dtype", dtype]
        try:
            peer = Peer(name, dtype, command, environment, options)
        except (PeerEnded, BrokenPipeError) as failure:
            failures.append(str(failure))
            note(f"bench-cpu: {failure}")
            continue
        peers.append(peer)
        first = f"{over('step' in peer.stopped)}{peer.first['step']:.2f}"
        note(f"{name} {dtype}: loaded in {peer.load_s:.1f} s, first step {first} s")
    for turn in range(options.rounds):
        for action in ("step", "decode"):
            order = peers[turn % len(peers) :] + peers[: turn % len(peers)]
            for peer in order:
                if peer.first[action] <= options.slow and action not in peer.stopped:
                    peer.measure(action)
                    note(f"  {action} {peer.name} {dtype}: {peer.samples[action][-1]:.3f} s")
    return [peer.finish() for peer in peers]


def run_generate(options, dtype):
    """The product itself: process start to PNG, two steps. None where it is not built."""
    if not os.path.exists(options.latentd):
        return None
    png = os.path.join(options.work, "bench.png")
    command = [options.latentd, "generate", "--model", os.path.join(options.models, "folder-f16")]
    command += ["--dtype", dtype, "--steps", "2", "--prompt", "a photo of a cat", "-o", png]
    command += ["--scheduler", "ddim", "--width", "512", "--height", "512"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    begin = time.monotonic()
    log_path = os.path.join(options.work, "bench-generate.log")
    with open(log_path, "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench-cpu: latentd generate failed; see {log_path}")
    return {"seconds": time.monotonic() - begin, "peak_bytes": usage.ru_maxrss * 1024}


def machine(options):
    with open("/proc/cpuinfo") as file:
        text = file.read()
    model = re.search(r"model name\s*:\s*(.*)", text).group(1).strip()
    flags = re.search(r"flags\s*:\s*(.*)", text).group(1).split()
    family = [re.search(rf"{key}\s*:\s*(\d+)", text).group(1) for key in ("cpu family", "model")]
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")
    with open("/proc/meminfo") as file:
        memory = int(re.search(r"MemTotal:\s+(\d+)", file.read()).group(1)) * 1024
    return {
        "cpu": model,
        "family_model": "/".join(family),
        "instructions": [flag for flag in known if flag in flags],
        "threads": options.threads,
        "memory_bytes": memory,
        "kernel": platform.release(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average_at_start": os.getloadavg()[0],
    }


def find(results, peer, dtype):
    return next((r for r in results if (r["peer"], r["dtype"]) == (peer, dtype)), None)


def check_bars(results, generated):
    """[(text, figure, met)]; a bar whose peers were not measured is left out."""
    out = []
    for action, peer, dtype, factor in BARS:
        ours, theirs = find(results, "latentd", dtype), find(results, peer, dtype)
        if ours and theirs:
            ratio = theirs[action]["median_s"] / ours[action]["median_s"]
            text = f"{dtype} {action}: at least {factor}x as fast as {peer}"
            figure = f"{over(theirs[action]['stopped'])}{ratio:.2f}x"
            out.append((text, figure, ratio >= factor))
    ours = find(results, "latentd", "bf16")
    if ours:
        peak = max(ours["peak_bytes"], generated["peak_bytes"] if generated else 0)
        text = "bf16 peak memory of the whole pipeline: at most 3.5 GB"
        out.append((text, f"{peak / 1e9:.2f} GB", peak <= PEAK_BAR_BYTES))
        if ours["step"]["count"]:
            ratio = ours["step"]["first_s"] / ours["step"]["median_s"]
            text = f"bf16 first step: at most {FIRST_STEP_BAR}x a later one"
            out.append((text, f"{ratio:.2f}x", ratio <= FIRST_STEP_BAR))
    return out


def spread(action):
    if action["stopped"]:
        return f"over {action['median_s']:.0f} (stopped)"
    if action["count"] < 2:
        return f"{action['median_s']:.2f} (once)"
    return f"{action['median_s']:.2f} ({action['min_s']:.2f} to {action['max_s']:.2f})"


def rate(action, tflop):
    """GFLOP/s in words."""
    return f"{'under ' if action['stopped'] else ''}{tflop / action['median_s'] * 1e3:.0f}"


def report(about, results, generated, bars, rounds):
    lines = [
        f"# SD-1.5 on {about['cpu']}, {about['threads']} threads",
        "",
        f"Measured by `scripts/bench-cpu` on {about['date']}: {about['cpu']} (family/model "
        f"{about['family_model']}; {', '.join(about['instructions'])}), "
        f"{about['memory_bytes'] / 1e9:.0f} GB, Linux {about['kernel']}, load average "
        f"{about['load_average_at_start']:.2f} at the start.",
        "",
        "512x512, classifier-free guidance (two rows a step), 77 tokens a row, random weights of "
        f"realistic scale, median of {rounds} interleaved rounds (least to most); the first call "
        "after loading stands apart. GFLOP/s counts the plain algorithm's operations (1.6065 "
        "TFLOP a step, 2.5145 a decode). Ready: process start to the end of the first step.",
        "",
        "| | asked for | runs as | s per step | GFLOP/s | first step | s per decode | GFLOP/s "
        "| s to load | s to ready | peak GB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        step, decode = r["step"], r["decode"]
        late = over(step["stopped"])
        lines.append(
            f"| {r['software']} | {r['dtype']} | {r['precision']} | {spread(step)} "
            f"| {rate(step, STEP_TFLOP)} | {late}{step['first_s']:.2f} "
            f"| {spread(decode)} | {rate(decode, DECODE_TFLOP)} "
            f"| {r['load_s']:.1f} | {late}{r['ready_s']:.1f} | {r['peak_bytes'] / 1e9:.2f} |"
        )
    if not {"avx512_bf16", "amx_bf16"} & set(about["instructions"]):
        lines += ["", "This processor has no bf16 instructions: what was asked for in bf16 runs as "]
        lines[-1] += "something else, and the bars for bf16 mean little here; compare in f32."
    ratios = []
    for r in results:
        ours = find(results, "latentd", r["dtype"])
        if ours and r is not ours:
            both = [
                f"{over(r[a]['stopped'])}{r[a]['median_s'] / ours[a]['median_s']:.2f}x"
                for a in ("step", "decode")
            ]
            ratios.append(
                f"| {r['peer']} {r['dtype']} | {both[0]} | {both[1]} "
                f"| {r['peak_bytes'] / ours['peak_bytes']:.2f}x |"
            )
    if ratios:
        lines += ["", "latentd in the same dtype is this many times as fast, and needs this many "]
        lines[-1] += "times less memory:"
        lines += ["", "| than | step | decode | memory |", "|---|---|---|---|", *ratios]
    if generated:
        lines += [
            "",
            f"`latentd generate` ({generated['dtype']}, 2 steps, process start to PNG): "
            f"{generated['seconds']:.1f} s, peak {generated['peak_bytes'] / 1e9:.2f} GB.",
        ]
    if bars:
        lines += ["", "| bar | measured | |", "|---|---|---|"]
        for text, figure, met in bars:
            lines.append(f"| {text} | {figure} | {'met' if met else 'MISSED'} |")
    return "\n".join(lines) + "\n"


def ensure_inputs(options, names):
    """The random checkpoint and OpenVINO's files, made once."""
    if not os.path.exists(os.path.join(options.models, "folder-f16/vae/config.json")):
        note("writing the random checkpoint")
        script = os.path.join(HERE, "random_sd15.py")
        out = os.path.join(options.models, "folder-f16")
        command = [sys.executable, script, out, "--layout", "folder", "--dtype", "f16"]
        if options.tokenizer:
            command += ["--tokenizer", options.tokenizer]
        subprocess.run(command, check=True)
    if "openvino" in names and not os.path.exists(os.path.join(options.ir, "vae_decoder.xml")):
        note("converting to OpenVINO's format")
        script = os.path.join(HERE, "bench_peer.py")
        folder = os.path.join(options.models, "folder-f16")
        command = [sys.executable, script, "prepare-openvino", "--model", folder]
        subprocess.run(command + ["--out", options.ir], check=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", required=True, help="the built model_tool")
    parser.add_argument("--latentd", default="", help="the built latentd")
    parser.add_argument("--work", required=True, help="folder for logs and converted models")
    parser.add_argument("--models", help="folder of the random checkpoints (default: WORK/models)")
    parser.add_argument("--ir", help="folder of OpenVINO's files (default: WORK/openvino)")
    parser.add_argument("--tokenizer", help="folder with CLIP's vocab.json and merges.txt")
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("--peers", default="latentd,diffusers,openvino")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--skip", default="", help="for example diffusers-bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--slow", type=float, default=60, help="a first call over so many seconds is the only one"
    )
    parser.add_argument(
        "--limit", type=float, default=300, help="a first call over so many seconds is stopped"
    )
    options = parser.parse_args()
    options.models = options.models or os.path.join(options.work, "models")
    options.ir = options.ir or os.path.join(options.work, "openvino")
    os.makedirs(options.work, exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    names = options.peers.split(",")
    unknown = set(names) - {"latentd", "diffusers", "openvino"}
    if unknown or set(options.dtypes.split(",")) - {"bf16", "f32"}:
        parser.error("--peers: latentd, diffusers, openvino; --dtypes: bf16, f32")
    ensure_inputs(options, names)

    about = machine(options)
    results, failures = [], []
    for dtype in options.dtypes.split(","):
        chosen = [name for name in names if f"{name}-{dtype}" not in options.skip.split(",")]
        results += run_group(options, dtype, chosen, failures)
    generated = None
    if "latentd" in names:
        dtype = options.dtypes.split(",")[0]
        generated = run_generate(options, dtype)
        if generated:
            generated["dtype"] = dtype
    in_bf16 = generated if generated and generated["dtype"] == "bf16" else None
    bars = check_bars(results, in_bf16)
    text = report(about, results, generated, bars, options.rounds)
    text += "".join(f"\nNot measured: {failure}\n" for failure in failures)
    print(text)
    slug = re.sub(r"[^a-z0-9]+", "-", about["cpu"].lower()).strip("-")
    base = os.path.join(options.out, f"cpu-{slug}")
    with open(base + ".md", "w") as file:
        file.write(text)
    with open(base + ".json", "w") as file:
        record = {"machine": about, "results": results, "generate": generated}
        record["bars"] = [dict(zip(("bar", "measured", "met"), bar)) for bar in bars]
        json.dump(record, file, indent=2)
        file.write("\n")
    return 0 if all(met for _, _, met in bars) and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
