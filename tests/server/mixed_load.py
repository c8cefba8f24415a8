"""Requests during a training job: measures how long they wait for the job, and checks that neither
changes a byte of the other's result. Runs the request alone, the job alone, and then the job with
requests at random moments. The wait is the part of a request's time in which no model runs for it.
Its 95th percentile must be at most one UNet call. On a busy machine only the bytes can be checked:
without --timed the waits are printed but not checked. By hand, at full size (scripts/bench-training
writes such a checkpoint):

    mixed_load.py build-release/latentd build-release/bench/models/folder-f16 --size 512 --batch 4 --dtype bf16 --timed

usage: mixed_load.py EXECUTABLE MODEL [--size PX] [--batch N] [--steps N] [--requests N] [--dtype f32|bf16] [--timed]"""
import argparse
import json
import os
import random
import statistics
import tempfile
import time

import picture
from daemon import Daemon, check, done, wait_until

parser = argparse.ArgumentParser()
parser.add_argument("executable")
parser.add_argument("model")
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=2, help="of the job")
parser.add_argument("--requests", type=int, default=20, help="to draw at most while the job runs")
parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
parser.add_argument("--timed", action="store_true")
options = parser.parse_args()

# A picture that needs one UNet call of two rows and no decoder.
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 1, "guidance_scale": 2.5,
        "width": options.size, "height": options.size, "output": "latent"}
JOB = {"name": "mixed", "dataset": "noise", "resolution": options.size, "train_batch_size": options.batch,
       "max_train_steps": options.steps, "gradient_checkpointing": True, "seed": 1, "checkpointing_steps": 0,
       "mixed_precision": "no" if options.dtype == "f32" else "bf16", "report_to": "none"}


class Answer:
    """The latents and times of one request."""

    def __init__(self, daemon):
        begin = time.monotonic()
        r = daemon.generate(DRAW)
        self.seconds = time.monotonic() - begin
        check(r.status == 200, f"{r.status} {r.body[:300]}")
        self.latents = r.json()["images"][0]["b64_latent"]
        t = r.json()["timings"]
        self.call_s = t["unet_s"]
        self.wait_s = t["total_s"] - t["text_encoder_s"] - t["unet_s"] - t["vae_s"]


def start(daemon):
    r = daemon.request("POST", "/train", json.dumps(JOB), {"Content-Type": "application/json"})
    check(r.status == 202, f"{r.status} {r.body[:300]}")
    return r.json()["id"]


def running(daemon, id):
    return daemon.get("/jobs/" + id).json()["state"] in ("queued", "running")


def adapter(daemon, id, state):
    job = daemon.get("/jobs/" + id).json()
    check(job["state"] == "succeeded", f"{job['state']}: {job['error']}")
    with open(os.path.join(state, "jobs", id, "mixed.safetensors"), "rb") as f:
        return f.read(), job["seconds"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        pictures, state = os.path.join(folder, "sets/noise"), os.path.join(folder, "state")
        os.makedirs(pictures)
        os.makedirs(os.path.join(folder, "loras"))
        draw = random.Random(1)
        for i in range(options.batch):
            with open(os.path.join(pictures, f"{i}.png"), "wb") as f:
                f.write(picture.encode(options.size, options.size, lambda x, y: draw.randbytes(3)))
            with open(os.path.join(pictures, f"{i}.txt"), "w", encoding="utf-8") as f:
                f.write(f"noise number {i}")
        with Daemon(options.executable, options.model, patience_s=600, extra=[
                "--dtype", options.dtype, "--state-dir", state, "--dataset-root", os.path.join(folder, "sets"),
                "--lora-dir", os.path.join(folder, "loras")]) as d:
            alone = [Answer(d) for _ in range(4)][1:]
            usual = statistics.median(a.seconds for a in alone)
            call = statistics.median(a.call_s for a in alone)
            id = start(d)
            check(wait_until(lambda: not running(d, id), 1200), "the job ends")
            job_alone, seconds_alone = adapter(d, id, state)
            r = d.request("DELETE", "/loras/mixed")
            check(r.status == 204,
                  f"the adapter's name can be used again: {r.status} {r.body[:300]}")
            id, answers = start(d), []
            check(wait_until(lambda: d.get("/jobs/" + id).json()["state"] == "running", 60),
                  "the job runs")
            while len(answers) < options.requests and running(d, id):
                time.sleep(draw.uniform(0.2, 1.5) * usual)
                answer = Answer(d)
                if running(d, id):
                    answers.append(answer)
            check(wait_until(lambda: not running(d, id), 1200), "the job ends")
            job_mixed, seconds_mixed = adapter(d, id, state)
    waits = sorted(a.wait_s for a in answers)
    check(len(answers) >= 3, f"{len(answers)} requests were drawn beside the job")
    check(all(a.latents == alone[0].latents for a in answers + alone), "latents are the same beside the job")
    check(job_mixed == job_alone, "the job's bytes are the same beside requests")
    p95 = waits[min(len(waits) - 1, int(0.95 * len(waits)))]
    print(f"{options.size}x{options.size}, {options.dtype}: a request alone {usual:.3f} s, its UNet call {call:.3f} s; "
          f"the job of {options.steps} steps of {options.batch} alone {seconds_alone:.1f} s")
    longer = statistics.median(a.seconds for a in answers) - usual
    print(f"{len(answers)} requests beside it ({seconds_mixed:.1f} s): waits {statistics.median(waits):.3f} s in the "
          f"median, {p95:.3f} s at the 95th percentile, {waits[-1]:.3f} s at most; p95 is {p95 / call:.2f} of a UNet call; "
          f"answers take {longer:+.3f} s in the median")
    check(not options.timed or p95 <= call, f"p95 {p95:.3f} s is more than one UNet call of {call:.3f} s")
    done()


main()
