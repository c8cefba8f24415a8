"""Runs `latentd train` alone and as several ranks of mpirun, on pictures of its own."""
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "cluster"))
import mpirun  # noqa: E402

executable, model, module = sys.argv[1:4]
mpirun.skip_without(module)
root = tempfile.mkdtemp(prefix="latentd-ranks-")
ENVIRONMENT = mpirun.environment(module)
# Some of them do not have the shape of their bucket, so that they are cropped at random.
SIZES = [(64, 64), (96, 64), (64, 96), (70, 64), (100, 64), (64, 64), (80, 80), (64, 100), (96, 64), (64, 64)]


def png(width, height, numbers):
    rows = b"".join(b"\0" + numbers.randbytes(3 * width) for _ in range(height))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)),
              (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)


def make_pictures(name, seed=1):
    folder = os.path.join(root, "sets", name)
    os.makedirs(folder)
    numbers = random.Random(seed)
    for i, (width, height) in enumerate(SIZES):
        with open(os.path.join(folder, f"{i}.png"), "wb") as f:
            f.write(png(width, height, numbers))
        with open(os.path.join(folder, f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(f"picture {i}, of noise")


make_pictures("noise")
# What draws, and what depends on all gradients at once. An epoch is shorter than two steps, and its last step is short.
JOB = {"name": "ranks", "dataset": "noise", "seed": 7, "resolution": 64, "enable_bucket": True, "min_bucket_reso": 64,
       "max_bucket_reso": 96, "bucket_reso_steps": 32, "train_batch_size": 2, "gradient_accumulation_steps": 4,
       "max_train_steps": 4, "checkpointing_steps": 2, "caption_dropout": 0.3, "random_flip": True, "noise_offset": 0.1,
       "snr_gamma": 5, "use_ema": True, "max_grad_norm": 0.5, "shuffle_caption": True, "learning_rate": 1e-3,
       "lr_scheduler": "linear", "report_to": "none"}
LORA = {**JOB, "rank": 4, "dropout": 0.2}
FULL = {**JOB, "method": "full"}
HELD_OUT = {"validation_share": 0.2, "validation_steps": 2}


def arguments(job, out, *more):
    """Writes the job; returns a command line. `more` may replace options."""
    path = os.path.join(root, f"{out}.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(job, f)
    given = {"--model": model, "--config": path, "--dataset-root": os.path.join(root, "sets"),
             "--out": os.path.join(root, out), "--device": "cpu", "--cluster-timeout": "120"}
    given.update(zip(more[::2], more[1::2]))
    return [executable, "train", *[word for pair in given.items() for word in pair], "--quiet"]


def start(command):
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, seconds=300):
    try:
        out, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, log = process.communicate()
        return -1, f"not done after {seconds} s: {log}"
    return process.returncode, log + out


def run(ranks, job, out, *more):
    """Trains; 1 rank is a process without mpirun. Returns the exit status and what was printed."""
    command = arguments(job, out, *more)
    return finish(start(command if ranks == 1 else mpirun.command(ranks, *command)))


def run_unlike(job, out, ranks):
    """One process for each element of `ranks`: (arguments for mpirun, arguments for latentd that replace others)."""
    command = mpirun.command(1)
    for i, (launcher, more) in enumerate(ranks):
        command += [*([":", "-n", "1"] if i else []), *launcher, *arguments(job, out, *more)]
    return finish(start(command))


def sha(path):
    """The digest of a file, or of all files of a folder and their names."""
    digest = hashlib.sha256()
    if os.path.isdir(path):
        for folder, _, names in sorted(os.walk(path)):
            for name in sorted(names):
                digest.update(os.path.relpath(os.path.join(folder, name), path).encode())
                digest.update(sha(os.path.join(folder, name)).encode())
    else:
        with open(path, "rb") as f:
            digest.update(f.read())
    return digest.hexdigest()[:16]


def metrics(out):
    """The lines of metrics.jsonl, without what was measured by a clock."""
    with open(os.path.join(root, out, "metrics.jsonl"), encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [{k: v for k, v in line.items() if k not in ("images_per_s", "eta_s")} for line in lines]


def result_of(out, job):
    """What a job has left: the digests of its states and of its result, and its metrics."""
    folder = os.path.join(root, out)
    states = {name: sha(os.path.join(folder, name, "state.safetensors"))
              for name in sorted(os.listdir(folder)) if name.startswith("checkpoint-")}
    result = "model" if job.get("method") == "full" else f"{job['name']}.safetensors"
    return {"states": states, "result": sha(os.path.join(folder, result)), "metrics": metrics(out)}


def last_state(out, step):
    return sha(os.path.join(root, out, f"checkpoint-{step}", "state.safetensors"))


def clean(out):
    shutil.rmtree(os.path.join(root, out), ignore_errors=True)


def end():
    shutil.rmtree(root)
