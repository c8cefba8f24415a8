"""Requests, streams and jobs that end at random moments in every phase, because they are
cancelled or their client leaves. Each stops at the next unit of work and leaves nothing
behind. usage: cancels_soak.py EXECUTABLE MODEL COUNT [SEED]"""
import base64
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402
from png_file import gradient, png_base64  # noqa: E402

EXECUTABLE, MODEL, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
BASE = {"prompt": "a red house", "guidance_scale": 2.5, "scheduler": "ddim", "seed": 1}
PICTURE = png_base64(512, 512, gradient)
# For each phase, a request that spends most of its time in it.
PHASES = {
    "queued": {"num_inference_steps": 6, "priority": -3},
    "resolving": {"num_inference_steps": 2, "init_image": PICTURE, "resize_mode": "default", "strength": 0.5,
                  "loras": [{"name": "snow", "weight": 0.5}]},
    "encoding": {"num_inference_steps": 2, "init_image": PICTURE, "resize_mode": "crop", "width": 256,
                 "height": 256, "strength": 0.5},
    "step": {"num_inference_steps": 12},
    "preview": {"num_inference_steps": 8, "preview_every": 1, "preview": "vae"},
    "decode": {"num_inference_steps": 1, "num_images": 8, "width": 256, "height": 256},
    "encode": {"num_inference_steps": 1, "num_images": 12, "output": "webp", "quality": 100},
}
HOW = ("leave", "leave the stream", "cancel", "cancel the stream", "cancel the job")
HOW_SEEN = ("leave the stream", "cancel the stream", "cancel the job")  # for requests with previews


class Watched(Daemon):
    def metrics(self):
        lines = self.get("/metrics").body.decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines
                                                       if line and line[0] != "#")}

    def depth(self):
        return self.get("/info").json()["queue"]["depth"]

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


def post(d, fields, id, path="/generate"):
    """Sends the request and returns the connection."""
    c = http.client.HTTPConnection(d.host, d.port, timeout=60)
    c.request("POST", path, json.dumps(fields), {"Content-Type": "application/json", "X-Request-Id": id})
    return c


def occupy(d, stop):
    """Keeps sending another client's requests, so that there is a queue."""
    while not stop.is_set():
        d.generate({**BASE, "num_inference_steps": 4, "priority": 3})


def jobs_left(d):
    return d.get("/jobs?state=queued,running&limit=1").json()["jobs"]


def end_one(d, phase, how, draw, n, longest_s):
    """Begins a request and ends it at a random moment. Returns whether it was ended before it
    was done, and a number of UNet calls, None for a job. After a cancel this is the number of
    calls since the cancel. If the client left, it is the number of all calls of the daemon up
    to then; more may follow."""
    id = f"soak-{n}"
    fields = {**BASE, **PHASES[phase], "seed": n}
    delay = draw.random() * longest_s[phase]
    if how == "cancel the job":
        r = d.request("POST", "/generate?async=1", json.dumps(fields), {"Content-Type": "application/json"})
        check(r.status == 202, f"{r.status} {r.body[:200]}")
        id = r.json()["id"]
        time.sleep(delay)
        met = d.request("POST", f"/jobs/{id}/cancel").status == 200
        state = d.get(f"/jobs/{id}?wait=30").json()
        check(state["state"] in ("cancelled", "succeeded"), f"{phase}: {state['state']} {state['error']}")
        return met and state["state"] == "cancelled", None
    if "stream" in how:
        fields["stream"] = True
    c = post(d, fields, id)
    time.sleep(delay)
    if how.startswith("leave"):
        met = d.request("GET", "/info").json()["queue"]["depth"] > 0
        c.close()
        return met, d.metrics()["latentd_unet_calls_total"]
    met = d.request("POST", f"/generate/{id}/cancel").status == 200
    calls = d.metrics()["latentd_unet_calls_total"]
    r = c.getresponse()
    body = r.read().decode(errors="replace")
    c.close()
    if "stream" in how and r.status == 200:
        check(("event: error" in body and '"cancelled"' in body) or "event: result" in body, f"{phase}: {body[-200:]}")
        met = met and "event: error" in body
    else:
        check(r.status in (200, 499), f"{phase}: {r.status} {body[:200]}")
        met = met and r.status == 499
    return met, d.metrics()["latentd_unet_calls_total"] - calls


def how_long(d):
    """Returns the seconds that each phase's request takes alone, plus a tenth."""
    longest_s = {}
    for phase, fields in PHASES.items():
        begun = time.monotonic()
        check(d.generate({**BASE, **fields, "stream": "preview" in fields}).status == 200, phase)
        longest_s[phase] = 1.1 * (time.monotonic() - begun)
    return longest_s


def main(root):
    print(f"seed {SEED}", flush=True)
    draw = random.Random(SEED)
    loras = os.path.join(root, "loras")
    shutil.copytree(os.path.join(MODEL, "loras"), loras)
    with Watched(EXECUTABLE, MODEL, extra=("--state-dir", os.path.join(root, "state"), "--lora-dir", loras)) as d:
        first = d.generate({**BASE, "num_inference_steps": 4}).json()["images"][0]["b64_json"]
        longest_s = how_long(d)
        met, calls, calls_left, slowest_s = {}, [], {"leave": [0], "leave the stream": [0]}, 0
        before = None
        for n in range(COUNT):
            if n == COUNT // 4:
                before = d.rss_kb(), d.threads(), d.open_files()
            phase = draw.choice(list(PHASES))
            how = draw.choice(HOW_SEEN if "preview" in PHASES[phase] else HOW)
            others = phase == "queued"
            stop, other = threading.Event(), None
            if others:
                other = threading.Thread(target=occupy, args=(d, stop))
                other.start()
            elif phase == "resolving":
                d.request("POST", "/loras/snow", '{"loaded": false}', {"Content-Type": "application/json"})
            hit, more = end_one(d, phase, how, draw, n, longest_s)
            stop.set()
            if other:
                other.join()
            elif more is not None and hit and not how.startswith("leave"):
                calls.append(more)
            begun = time.monotonic()
            check(wait_until(lambda: d.depth() == 0 and not jobs_left(d), 30), f"{n}: {phase}, {how}: it goes on")
            slowest_s = max(slowest_s, time.monotonic() - begun)
            if how.startswith("leave") and hit and not others:
                calls_left[how].append(d.metrics()["latentd_unet_calls_total"] - more)
            met.setdefault((phase, how), []).append(hit)
        check(max(calls, default=0) <= 1, f"{max(calls, default=0)} UNet calls after a cancel")
        left, left_stream = (max(c) for c in calls_left.values())
        # Allowed are the call in progress, and the calls until the daemon notices that the client
        # has left.
        check(max(left, left_stream) <= 3, f"{left} and {left_stream} UNet calls after a client left")
        check(wait_until(lambda: d.open_files() <= before[2] and d.threads() <= before[1], 20),
              f"descriptors {before[2]} -> {d.open_files()}, threads {before[1]} -> {d.threads()}")
        check(d.rss_kb() < 1.15 * before[0], f"memory {before[0]} -> {d.rss_kb()} KB")
        check(d.generate({**BASE, "num_inference_steps": 4}).json()["images"][0]["b64_json"] == first,
              "a picture after all cancels equals the first one")
        pictures = [name for at, _, names in os.walk(os.path.join(root, "state", "jobs")) for name in names
                    if name.endswith((".png", ".webp")) and
                    d.get(f"/jobs/{os.path.basename(os.path.dirname(at))}").json()["state"] == "cancelled"]
        check(not pictures, f"cancelled jobs have pictures: {pictures}")
        for phase in PHASES:
            row = [hit for (p, _), hits in met.items() if p == phase for hit in hits]
            print(f"{phase}: {len(row)} ended, {sum(row)} before they were done")
        print(f"{COUNT} in all; UNet calls after a cancel: at most {max(calls, default=0):.0f}, after a client "
              f"left: {left:.0f}, a stream's: {left_stream:.0f}; all was quiet after {slowest_s:.2f} s at most; memory "
              f"{before[0]} -> {d.rss_kb()} KB, threads {before[1]} -> {d.threads()}, "
              f"descriptors {before[2]} -> {d.open_files()}")


# AddressSanitizer holds back freed memory, which must not look like growth.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
    main(root)
done()
