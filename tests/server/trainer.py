"""A daemon with a small data set to train on, for tests of training jobs. sys.argv: EXECUTABLE
MODEL"""
import json
import os
import signal
import sys
import tempfile
import time

import picture
from daemon import Daemon, check

executable, model = sys.argv[1:3]
root = tempfile.mkdtemp()
STEPS = 16
JOB = {"name": "stripes", "dataset": "stripes", "resolution": 64, "rank": 4, "train_batch_size": 2,
       "max_train_steps": STEPS, "learning_rate": 2e-3, "seed": 5, "checkpointing_steps": 4,
       "random_flip": True, "caption_dropout": 0.1, "dropout": 0.1}
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 4, "guidance_scale": 2.5,
        "width": 64, "height": 64}


def make_pictures():
    folder = os.path.join(root, "sets", "stripes")
    os.makedirs(folder)
    os.makedirs(os.path.join(root, "sets", "empty"))
    for i in range(5):
        def pixel(x, y, i=i):
            on = (x + (i + 1) * y) // 8 % 2
            return (40 * i + 30, 200 if on else 60, 220 - 30 * i)
        with open(os.path.join(folder, f"{i}.png"), "wb") as f:
            f.write(picture.encode(96 if i % 2 else 64, 80, pixel))
        with open(os.path.join(folder, f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(f"stripes number {i}\n")


class Trainer(Daemon):
    """A daemon with a new state folder, or with `state`, the folder of an earlier daemon."""

    def __init__(self, *extra, state=None, model=model):
        self.keep = state
        self.state = state or tempfile.mkdtemp(dir=root)
        self.loras = os.path.join(self.state, "loras")
        os.makedirs(self.loras, exist_ok=True)
        super().__init__(executable, model, extra=["--state-dir", self.state, "--dataset-root",
                                                   os.path.join(root, "sets"), "--lora-dir", self.loras,
                                                   "--dtype", "f32", *extra])

    def train(self, **fields):
        job = {k: v for k, v in {**JOB, **fields}.items() if v is not None}
        return self.request("POST", "/train", json.dumps(job), {"Content-Type": "application/json"})

    def start(self, **fields):
        r = self.train(**fields)
        check(r.status == 202, f"the job is accepted: {r.status} {r.body[:300]}")
        return r.json()["id"]

    def forget(self, name="stripes"):
        """Deletes the adapter, so that another job can use its name."""
        check(self.request("DELETE", "/loras/" + name).status in (200, 204),
              f"the adapter {name} is deleted")

    def kill(self):
        """Kills the daemon with SIGKILL; its state folder stays for another one."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def job(self, id):
        return self.get("/jobs/" + id).json()

    def wait(self, id, state="succeeded", seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.get(f"/jobs/{id}?wait=5").json()
            if job["state"] in ("succeeded", "failed", "cancelled", "paused"):
                break
        check(job["state"] == state, f"{state}, not {job['state']}: {job['error']}")
        return job

    def picture(self, **fields):
        r = self.generate({**DRAW, **fields}, {"Accept": "image/png"})
        check(r.status == 200, f"the picture is drawn: {r.status} {r.body[:200]}")
        return r.body

    def latents(self, **fields):
        r = self.generate({**DRAW, "output": "latent", **fields})
        check(r.status == 200, f"the latents are drawn: {r.status} {r.body[:200]}")
        return r.json()["images"][0]["b64_latent"]

    def file(self, id, name="stripes"):
        with open(os.path.join(self.state, "jobs", id, name + ".safetensors"), "rb") as f:
            return f.read()
