"""Training jobs while the checkpoint is switched: a job trains the checkpoint it was accepted
for, also if the switch happens while it waits, and keeps that model in memory. usage:
switch_train_http.py EXECUTABLE MODEL"""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from trainer import Trainer, executable, make_pictures, model, root  # noqa: E402

JSON = {"Content-Type": "application/json"}
models = os.path.join(root, "models")


def prepare():
    make_pictures()
    shutil.copytree(model, models + "/plain", ignore=shutil.ignore_patterns("loras"))
    subprocess.run([executable, "lora", "merge", model, models + "/merged", "--lora",
                    model + "/loras/rainbow.safetensors:1"], check=True, capture_output=True)


def numbers(d, id):
    """Returns the bytes of an adapter's weights, without the header, which contains its name."""
    r = d.get(f"/jobs/{id}/adapter")
    check(r.status == 200, f"{r.status} {r.body[:200]}")
    return r.body[8 + struct.unpack("<Q", r.body[:8])[0]:]


def switch(d, name):
    r = d.request("PUT", "/model", json.dumps({"name": name}), JSON)
    check(r.status == 202, f"{r.status} {r.body[:300]}")
    check(wait_until(lambda: d.get("/models").json()["current"] == name, 60),
          f"the daemon switches to {name}")


def limited(d, room):
    with open(f"/proc/{d.process.pid}/status") as f:
        used = int(re.search(r"VmData:\s+(\d+)", f.read())[1]) << 10
    resource.prlimit(d.process.pid, resource.RLIMIT_DATA, (used + room, resource.RLIM_INFINITY))


def running(d, id):
    return wait_until(lambda: d.job(id)["step"] >= 1, 150)


def a_job_keeps_the_model_that_would_have_to_go(d):
    if d.is_sanitized():
        return print("not limited: AddressSanitizer gives no memory back, and takes terabytes of addresses")
    id = d.start(max_train_steps=4000)
    check(running(d, id), f"the job is training: {d.job(id)}")
    limited(d, 16 << 20)
    r = d.request("PUT", "/model", '{"name": "merged"}', JSON)
    limited(d, 1 << 32)
    check(r.status == 409 and "the training job stripes" in r.error()["message"], f"{r.status} {r.body[:300]}")
    check(d.get("/health/ready").status == 200 and d.job(id)["state"] == "running",
          "a refused switch leaves the daemon ready and the job running")
    d.request("POST", f"/jobs/{id}/cancel")
    d.wait(id, "cancelled")


prepare()
with Trainer("--model-root", models, model=models + "/plain") as d:
    first, second = d.start(), d.start(name="second")
    check(running(d, first), "the first job is training")
    check(d.job(second)["request"]["model"] == "plain",
          "a job's request names the checkpoint of its acceptance")
    switch(d, "merged")
    third = d.start(name="third")
    check(d.job(third)["request"]["model"] == "merged",
          "a later job's request names the new checkpoint")
    fourth = d.start(name="fourth", model="plain")
    r = d.train(name="fifth", model="nothing")
    check(r.status == 400 and r.error()["param"] == "model" and "GET /models" in r.error()["message"], f"{r.body}")
    for id in (first, second, third, fourth):
        d.wait(id, seconds=200)
    told = [numbers(d, id) for id in (first, second, third, fourth)]
    check(told[0] == told[1] == told[3],
          "jobs that ran, waited or named the first checkpoint trained on it")
    check(told[2] != told[0], "the later job trained on the other checkpoint")
    check(wait_until(lambda: "the model plain is unloaded" in d.read_log(), 20),
          "the first checkpoint is unloaded when its last job is done")
with Trainer("--model-root", models, model=models + "/plain") as d:
    a_job_keeps_the_model_that_would_have_to_go(d)
shutil.rmtree(root)
done()
