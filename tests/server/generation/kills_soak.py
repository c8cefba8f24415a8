"""A daemon that is killed at random moments under load, and started again each time. Every
accepted job is finished exactly once, with the picture of its seed, or fails with a reason.
usage: kills_soak.py EXECUTABLE MODEL KILLS [SEED]"""
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done  # noqa: E402
from event_source import EventSource  # noqa: E402

EXECUTABLE, MODEL, KILLS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
BASE = {"prompt": "a blue boat", "guidance_scale": 2.5, "scheduler": "ddim", "num_inference_steps": 3}
ORDERS_MAX = 800  # fewer than the queue keeps


class Load:
    """Sends orders, each with a key, and plain requests, until the daemon has ended."""

    def __init__(self):
        self.lock = threading.Lock()
        self.accepted = {}  # id: seed
        self.keys = {}      # seed: id
        self.next_seed = 0

    def order(self, d):
        with self.lock:
            if self.next_seed >= ORDERS_MAX:
                return False
            seed = self.next_seed
            self.next_seed += 1
        r = d.request("POST", "/generate?async=1", json.dumps({**BASE, "seed": seed}),
                      {"Content-Type": "application/json", "Idempotency-Key": f"seed-{seed}"})
        if r.status == 202:
            with self.lock:
                self.accepted[r.json()["id"]] = seed
                self.keys[seed] = r.json()["id"]
        return True

    def run(self, d, draw_seed):
        draw = random.Random(draw_seed)
        try:
            while True:
                if draw.random() < 0.7:
                    if not self.order(d):
                        return
                else:
                    d.generate({**BASE, "seed": 1})
                time.sleep(draw.random() * 0.05)
        except (OSError, http.client.HTTPException, ValueError):
            pass  # the daemon was killed


def follow_to_the_end(d, load):
    pictures, states = {}, {}
    for id, seed in load.accepted.items():
        job = d.get(f"/jobs/{id}?wait=300").json()
        states[job["state"]] = states.get(job["state"], 0) + 1
        check(job["state"] == "succeeded" or (job["state"] == "failed" and job["error"]["message"]),
              f"{id}: {job['state']} {job.get('error')}")
        if job["state"] != "succeeded":
            print(f"  {id} failed after {job['attempts']} attempts: {job['error']['message']}")
            continue
        source = EventSource(d, f"/jobs/{id}/events", last_id=0)
        source.open()
        ends = [e for e in source.all() if e.kind == "state" and json.loads(e.data)["state"] == "succeeded"]
        check(len(ends) == 1, f"{id}: succeeded {len(ends)} times")
        images = job["result"]["images"]
        r = d.get(images[0]["url"])
        check(len(images) == 1 and r.status == 200 and len(r.body) == images[0]["bytes"], f"{id}: {images}")
        pictures[seed] = r.body
    return pictures, states


def main(root):
    print(f"seed {SEED}", flush=True)
    draw, load, moments = random.Random(SEED), Load(), []
    state = os.path.join(root, "state")
    for kill in range(KILLS):
        with Daemon(EXECUTABLE, MODEL, extra=("--state-dir", state)) as d:
            threads = [threading.Thread(target=load.run, args=(d, draw.random())) for _ in range(4)]
            for t in threads:
                t.start()
            moments.append(draw.random() * 1.2)
            time.sleep(moments[-1])
            d.process.kill()
            d.process.wait()
            for t in threads:
                t.join()
    with Daemon(EXECUTABLE, MODEL, extra=("--state-dir", state), patience_s=400) as d:
        for seed, id in list(load.keys.items())[::10]:
            r = d.request("POST", "/generate?async=1", json.dumps({**BASE, "seed": seed}),
                          {"Content-Type": "application/json", "Idempotency-Key": f"seed-{seed}"})
            check(r.status == 202 and r.json()["id"] == id,
                  f"the Idempotency-Key still stands for job {id}: {r.status}")
        known = [job["id"] for job in listed(d)]
        check(len(known) == len(set(known)) and set(load.accepted) <= set(known),
              "no accepted job is lost")
        pictures, states = follow_to_the_end(d, load)
        folders = os.listdir(os.path.join(state, "jobs"))
        check(set(folders) <= set(known), f"folders without a job: {set(folders) - set(known)}")
        left = [name for at, _, names in os.walk(os.path.join(state, "jobs")) for name in names
                if at.endswith("images") and name != "0.png"]
        for seed in random.Random(SEED).sample(sorted(pictures), min(25, len(pictures))):
            plain = d.generate({**BASE, "seed": seed}, {"Accept": "image/png"})
            check(plain.body == pictures[seed],
                  f"the plain request of seed {seed} got that seed's picture")
        attempts = sorted(job["attempts"] for job in listed(d))
        print(f"{KILLS} kills, {min(moments):.2f} to {max(moments):.2f} s after the start; {len(load.accepted)} jobs "
              f"accepted, in the end {states}; begun up to {attempts[-1]} times; {len(known) - len(load.accepted)} "
              f"more that were written down and never answered; {len(left)} half-written files")


def listed(d):
    jobs, after = [], ""
    while True:
        page = d.get(f"/jobs?limit=100{after}").json()
        jobs += page["jobs"]
        if not page["has_more"]:
            return jobs
        after = f"&after={jobs[-1]['id']}"


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
    main(root)
done()
