"""Jobs that draw with LoRAs: what is fixed when a job is accepted, and what happens if a file is
then replaced or deleted. usage: orders_loras_http.py EXECUTABLE MODEL"""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402

EXECUTABLE, MODEL = sys.argv[1:3]
FIELDS = {"prompt": "a red house", "guidance_scale": 2.5, "scheduler": "ddim", "num_inference_steps": 4, "seed": 3}
JSON = {"Content-Type": "application/json"}


def order(d, **fields):
    r = d.request("POST", "/generate?async=1", json.dumps({**FIELDS, **fields}), JSON)
    check(r.status == 202, f"{r.status} {r.body[:300]}")
    return r.json()["id"]


def end(d, id):
    return d.get(f"/jobs/{id}?wait=100").json()


def blocked(d):
    """Orders eight long jobs, behind which others must wait."""
    ids = [order(d, num_inference_steps=900, priority=-3, loras=[]) for _ in range(8)]
    check(wait_until(lambda: all(d.get(f"/jobs/{id}").json()["state"] == "running" for id in ids)),
          "all eight jobs are running")
    return ids


def main(root):
    loras = os.path.join(root, "loras")
    shutil.copytree(os.path.join(MODEL, "loras"), loras)
    with Daemon(EXECUTABLE, MODEL, extra=("--state-dir", os.path.join(root, "state"), "--lora-dir", loras)) as d:
        check(d.request("POST", "/loras/snow", '{"default_weight": 0.6}', JSON).status == 200,
              "snow becomes a default adapter")
        plain = d.generate(FIELDS, {"Accept": "image/png"}).body
        before = blocked(d)
        default = order(d)
        named = order(d, loras=[{"name": "rainbow", "weight": 0.5}])
        gone = order(d, loras=[{"name": "rainbow", "weight": 0.4}, {"name": "snow", "weight": 0.1}])
        check(d.request("POST", "/loras/snow", '{"default_weight": null}', JSON).status == 200,
              "snow is no longer a default adapter")
        with open(os.path.join(loras, "snow.safetensors"), "rb") as f:
            snow = f.read()
        check(d.request("PUT", "/loras/rainbow", snow,
                        {"Content-Type": "application/octet-stream"}).status in (200, 201),
              "rainbow is replaced by another file")
        for id in before:
            d.request("POST", f"/jobs/{id}/cancel")
        job = end(d, default)
        check(job["request"]["loras"][0]["name"] == "snow" and job["state"] == "succeeded", f"{job['error']}")
        check(d.get(f"/jobs/{default}/images/0.png").body == plain,
              "the job used the default adapter of its acceptance")
        for id in (named, gone):
            job = end(d, id)
            check(job["state"] == "failed" and job["error"]["code"] == "conflict" and
                  "adapter rainbow was replaced" in job["error"]["message"], f"{job['state']} {job['error']}")
        before = blocked(d)
        gone = order(d, loras=[{"name": "rainbow"}])
        check(d.request("DELETE", "/loras/rainbow").status in (200, 204), "rainbow is deleted")
        for id in before:
            d.request("POST", f"/jobs/{id}/cancel")
        job = end(d, gone)
        check(job["state"] == "failed" and "rainbow" in job["error"]["message"], f"{job['state']} {job['error']}")
        print(f"gone: {job['error']['message']}")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
    main(root)
done()
