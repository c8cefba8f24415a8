"""What the daemon has acknowledged must survive a power cut, whether all unsynced data are left,
none, or some (disk.py). Without MODEL it tests jobs and their results. With MODEL, the
bundled checkpoint, it tests adapters, data sets, keys, and a training job's checkpoints,
adapter and fine-tuned model. usage: power_cut.py LIBRARY EXECUTABLE [MODEL [SEED]]"""
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import picture  # noqa: E402
from daemon import Daemon, check, done, wait_until  # noqa: E402
from disk import Disk, Kind, Some, Worst  # noqa: E402
from event_source import EventSource  # noqa: E402
from lora_file import kohya_lora  # noqa: E402

library, executable = sys.argv[1:3]
model = sys.argv[3] if len(sys.argv) > 3 else None
seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
draw = random.Random(seed)
JSON = {"Content-Type": "application/json"}
ROUNDS = 4


class Powered(Daemon):
    """A daemon with its state, adapters, data sets and keys in the watched folder."""

    def __init__(self, disk):
        self.disk = disk
        state, loras, sets = (os.path.join(disk.root, name) for name in ("state", "loras", "sets"))
        dtype = ["--dtype", "f32"] if model else []
        super().__init__(executable, model or "fake", extra=[
            "--state-dir", state, "--lora-dir", loras, "--dataset-root", sets, *dtype])
        self.command = disk.under(self.command)

    def cut(self):
        """Kills the daemon with SIGKILL and copies the folder as it is then."""
        self.process.kill()
        self.process.wait(20)
        self.disk.cut()

    def post(self, path, fields, status, key=None):
        r = self.request("POST", path, json.dumps(fields), {**JSON, **({"Idempotency-Key": key} if key else {})})
        check(r.status == status, f"{path}: {r.status} {r.body[:300]}")
        return r.json()

    def job(self, id):
        r = self.get("/jobs/" + id)
        return r.json() if check(r.status == 200, f"job {id}: {r.status} {r.body[:200]}") else {"state": "lost"}


def make_disk():
    root = os.path.join(tempfile.mkdtemp(), "disk")
    for name in ("loras", "sets"):
        os.makedirs(os.path.join(root, name))
    return Disk(library, root)


def remove(disk):
    shutil.rmtree(os.path.dirname(disk.root))


def after(disk, left, look):
    """Starts a daemon on what the cut has left, and calls `look` to check it."""
    disk.restore(left)
    d = Powered(disk)
    with d:
        look(d)
        d.process.kill()
        d.process.wait(20)


def all_ways(disk, look, coins=2):
    for left in (Kind(), *(Some(draw) for _ in range(coins)), Worst()):
        print(f"  left: {left}", flush=True)
        after(disk, left, look)


# --- jobs without a model ---

names = itertools.count()


def train_some(d, said, until):
    """Sends training jobs until the time `until`. Stores the name of each accepted job in
    said["accepted"], by the job's id."""
    while time.monotonic() < until:
        name = f"a-{next(names)}"
        fields = {"name": name, "dataset": "fake,step_ms=1", "max_train_steps": 3, "checkpointing_steps": 10}
        said["accepted"][d.post("/train", fields, 202, name)["id"]] = name


def draw_some(d, said, until):
    """Sends drawing jobs until the time `until`. Records the bytes of each picture whose job has
    succeeded."""
    while time.monotonic() < until:
        id = d.post("/generate?async=1", {"prompt": "a", "num_inference_steps": 1}, 202)["id"]
        said["accepted"][id] = None
        job = d.get(f"/jobs/{id}?wait=1").json()
        if job["state"] == "succeeded":
            url = job["result"]["images"][0]["url"]
            said["pictures"][url] = d.get(url).body
            said["ended"][id] = "succeeded"


def no_job_is_lost(disk, said):
    with Powered(disk) as d:
        until = time.monotonic() + draw.uniform(0.3, 0.8)
        threads = [threading.Thread(target=send, args=(d, said, until)) for send in (train_some, draw_some)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for id in said["accepted"]:
            job = d.job(id)
            if job["state"] in ("succeeded", "failed"):
                said["ended"][id] = job["state"]
        d.cut()

    def look(d):
        for id, name in said["accepted"].items():
            job = d.job(id)
            check(job["state"] != "lost" and (not name or job["request"]["name"] == name), f"job {id}: {job}")
            if id in said["ended"]:
                check(job["state"] == said["ended"][id], f"job {id} was {said['ended'][id]}, is {job['state']}")
        for url, body in said["pictures"].items():
            r = d.get(url)
            check(r.status == 200 and r.body == body, f"the picture {url}: {r.status}, {len(r.body)} bytes")

    all_ways(disk, look)
    disk.begin()


def without_a_model():
    said = {"accepted": {}, "ended": {}, "pictures": {}}
    disk = make_disk()
    for _ in range(ROUNDS):
        no_job_is_lost(disk, said)
    print(f"{ROUNDS} power cuts, {len(said['accepted'])} jobs accepted, {len(said['ended'])} of them said to "
          f"have ended, {len(said['pictures'])} pictures fetched: all there, each time in 4 ways")
    check(len(said["accepted"]) > 20 and len(said["ended"]) > 5 and len(said["pictures"]) > 2,
          "enough jobs were accepted and ended before the cut")
    remove(disk)


# --- with the bundled checkpoint ---

JOB = {"dataset": "stripes", "resolution": 64, "train_batch_size": 1, "learning_rate": 1e-3, "seed": 5,
       "max_train_steps": 12, "checkpointing_steps": 2}


def archive():
    """Returns a data set of four pictures as a tar file, and its {path: bytes}."""
    files = {}
    for i in range(4):
        def pixel(x, y, i=i):
            return (60 * i, 200 if (x + y * i) // 8 % 2 else 60, 120)
        files[f"{i}.png"] = picture.encode(64, 64, pixel)
        files[f"{i}.txt"] = f"stripes number {i}\n".encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue(), files


def files_in(folder):
    found = {}
    for path, _, below in os.walk(folder):
        for name in below:
            with open(os.path.join(path, name), "rb") as f:
                found[os.path.relpath(os.path.join(path, name), folder)] = f.read()
    return found


def put(d, path, body, kind, statuses=(200, 201)):
    r = d.request("PUT", path, body, {"Content-Type": kind})
    check(r.status in statuses, f"PUT {path}: {r.status} {r.body[:200]}")


def fill(d, disk):
    """Uploads adapters, data sets and a key. Returns the function that checks them."""
    snow, ink = kohya_lora(model, 1), kohya_lora(model, 2)
    tar, files = archive()
    for name, body in ("snow", snow), ("again", snow), ("gone", snow), ("again", ink):
        put(d, f"/loras/{name}", body, "application/octet-stream")
    for name in ("stripes", "old"):
        put(d, f"/datasets/{name}", tar, "application/x-tar")
    for path in ("/loras/gone", "/datasets/old"):
        r = d.request("DELETE", path)
        check(r.status in (200, 204), f"DELETE {path}: {r.status} {r.body[:200]}")
    keys = os.path.join(disk.root, "keys")
    p = subprocess.run(disk.under([executable, "key", "alice", "--api-keys", keys]), capture_output=True)
    check(p.returncode == 0, f"latentd key: {p.stderr}")

    def look(d):
        listed = {l["name"]: l for l in d.get("/loras").json()["loras"]}
        check({"snow", "again"} <= {*listed} and "gone" not in listed,
              f"the listed adapters are those that were acknowledged: {sorted(listed)}")
        loras = files_in(os.path.join(disk.root, "loras"))
        for name, body in ("snow", snow), ("again", ink):
            check(loras.get(f"{name}.safetensors") == body, f"the bytes of the adapter {name}")
        sets = d.get("/datasets").json()["datasets"]
        check(sets == ["stripes"], f"the data sets are those that were acknowledged: {sets}")
        check(files_in(os.path.join(disk.root, "sets", "stripes")) == files,
              "the data set has all its files")
        check(os.path.exists(keys) and open(keys, encoding="utf-8").read().startswith("alice "),
              "the created key is in the key file")

    return look


def last_checkpoint(d, id, step):
    """Waits until the job has reported a checkpoint of this step or a later one. Returns its
    step."""
    source = EventSource(d, f"/jobs/{id}/events")
    source.open()
    for event in source:
        if event.kind == "checkpoint" and event.json()["step"] >= step:
            return event.json()["step"]
    check(False, f"no checkpoint of step {step}")
    return step


def finish(d, id):
    job = d.get(f"/jobs/{id}?wait=60").json()
    check(job["state"] == "succeeded", f"job {id}: {job['state']} {job['error']}")
    return job


def results_stay(disk, jobs):
    """The results of jobs reported as succeeded have the same bytes after another cut."""
    with Powered(disk) as d:
        ends = {id: finish(d, id) for id in jobs}
        d.cut()
    adapter = os.path.join(disk.root, "state", "jobs", jobs[0], "small.safetensors")
    whole = ends[jobs[1]]["result"]["model"]
    before = open(adapter, "rb").read(), files_in(whole)

    def look(d):
        for id in jobs:
            check(d.job(id)["state"] == "succeeded", f"job {id}: {d.job(id)['state']}")
        check("small" in [l["name"] for l in d.get("/loras").json()["loras"]], "the trained adapter is listed")
        check(os.path.exists(adapter) and open(adapter, "rb").read() == before[0], "the trained adapter's bytes")
        check(files_in(whole) == before[1], f"the trained model: {sorted(files_in(whole))} of {sorted(before[1])}")

    all_ways(disk, look)
    print(f"an adapter of {len(before[0])} bytes and a model of {len(before[1])} files stay")


def with_the_model():
    disk = make_disk()
    with Powered(disk) as d:
        look_for_files = fill(d, disk)
        small = d.post("/train", {**JOB, "name": "small", "rank": 4}, 202)["id"]
        full = d.post("/train", {**JOB, "name": "whole", "method": "full", "learning_rate": 1e-5,
                                 "max_train_steps": 4}, 202)["id"]
        step = last_checkpoint(d, small, 4)
        d.cut()

    def look(d):
        look_for_files(d)
        kept = [k["step"] for k in d.get(f"/jobs/{small}/checkpoints").json()["checkpoints"]]
        check(step in kept, f"a checkpoint that was reported exists: {step} of {kept}")
        went_on = wait_until(lambda: "small: 4 pictures, 12 steps, going on" in d.read_log(), 60)
        check(went_on and "passed over" not in d.read_log(),
              f"the job resumes at step {step} or later")
        check(d.job(full)["state"] in ("queued", "running", "succeeded"), "the queued job is kept")

    print(f"cut after checkpoint {step} was reported", flush=True)
    all_ways(disk, look)
    disk.begin()
    results_stay(disk, [small, full])
    remove(disk)


print(f"seed {seed}", flush=True)
if model:
    with_the_model()
else:
    without_a_model()
done()
