"""GET /models and PUT /model with the fake pipeline: the names listed, the requests refused, and
which checkpoint draws a request during a switch. usage: models_http.py EXECUTABLE"""
import json
import os
import shutil
import sys
import tempfile
import threading

from daemon import Daemon, check, done, wait_until

executable = sys.argv[1]
JSON = {"Content-Type": "application/json"}
FAST, SLOW, BROKEN = "fake,step_ms=3", "fake,load_ms=1500", "fake,broken"
FAILS = "fake,load_ms=400,fail_load"


def checkpoint(folder, *path):
    os.makedirs(os.path.join(folder, *path, "unet"))
    with open(os.path.join(folder, *path, "unet", "config.json"), "w") as f:
        f.write("{}")
    with open(os.path.join(folder, *path, "unet", "w.safetensors"), "wb") as f:
        f.write(b"x" * 100)


class Models(Daemon):
    """A daemon with a folder of checkpoints."""

    def __init__(self, *extra):
        self.folder = tempfile.mkdtemp()
        self.root = os.path.join(self.folder, "root")
        for path in ((FAST,), (SLOW,), (BROKEN,), (FAILS,), ("deep", "er", "fake"), ("a", "b", "c", "d", "fake")):
            checkpoint(self.root, *path)
        checkpoint(self.folder, "outside", "fake")
        with open(self.root + "/fake-file.safetensors", "wb") as f:
            f.write(b"y" * 7)
        with open(self.root + "/fake,broken.safetensors", "wb") as f:
            f.write(b"z")
        checkpoint(self.root, ".hidden")
        os.symlink(self.folder + "/outside/fake", self.root + "/fake-out")
        os.symlink(self.folder + "/outside/fake/unet/w.safetensors", self.root + "/fake-link.safetensors")
        os.symlink("deep/er/fake", self.root + "/fake-in")
        checkpoint(self.root, "fake-leaks")
        os.symlink("/etc/passwd", self.root + "/fake-leaks/unet/vocab.json")
        os.symlink(self.root, self.root + "/deep/loop")
        with open(self.root + "/notes.txt", "w") as f:
            f.write("no checkpoint")
        super().__init__(executable, os.path.join(self.root, FAST), extra=["--model-root", self.root, *extra])

    def __exit__(self, *args):
        result = super().__exit__(*args)
        shutil.rmtree(self.folder)
        return result

    def put(self, body):
        body = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.request("PUT", "/model", body, JSON)

    def models(self):
        r = self.get("/models")
        check(r.status == 200, f"{r.status} {r.body[:200]}")
        return r.json()

    def over(self, name, state="done"):
        """Waits until the switch ends. Checks its name and state."""
        check(wait_until(lambda: self.models()["switch"]["state"] in ("done", "failed")),
              "the switch ends")
        s = self.models()["switch"]
        check(s["name"] == name and s["state"] == state, f"{s}")
        return s


def refused(r, status, words, param=None):
    error = r.error()
    check(r.status == status and words in error["message"] and (not param or error.get("param") == param),
          f"{status} with {words!r}, not {r.status}: {r.body[:300]}")


def names(d):
    told = d.models()
    listed = {m["name"]: m for m in told["models"]}
    expected = {FAST, SLOW, BROKEN, FAILS, "deep/er/fake", "fake-file", BROKEN + ".safetensors", "fake-out",
                "fake-link", "fake-in", "fake-leaks"}
    check(set(listed) == expected, f"names: {sorted(listed)}")
    check(told["current"] == FAST and listed[FAST]["current"] and not listed[SLOW]["current"],
          "the loaded checkpoint is marked as current")
    check(told["can_switch"] and told["switch"] is None, f"{told}")
    check(listed[FAST]["bytes"] == 100 and listed["fake-file"]["bytes"] == 7,
          "the list shows the bytes of the weight files")
    check(listed["fake-file"]["layout"] == "single_file" and listed[FAST]["layout"] == "diffusers",
          "the list shows each checkpoint's layout")
    out = {n for n, m in listed.items() if m["error"]}
    check(out == {"fake-out", "fake-link", "fake-leaks"},
          f"links that lead out of the folder are refused: {out}")
    check(d.get("/info").json()["model"]["name"] == FAST, "GET /info has the name")


def as_openai_lists_them(d):
    """GET /v1/models lists the names that PUT /model takes, the loaded checkpoint first."""
    listed = [m["id"] for m in d.get("/v1/models").json()["data"]]
    rest = {m["name"] for m in d.models()["models"] if not m["error"]} - {FAST}
    check(listed[0] == FAST and len(listed) == len(set(listed)) and set(listed[1:]) == rest, f"{listed}")
    for id, status in (("deep/er/fake", 200), ("fake-file", 200), ("fake-out", 404), ("nothing", 404)):
        r = d.get("/v1/models/" + id)
        check(r.status == status and (status == 404 or r.json()["id"] == id), f"{id}: {r.body}")
    r = d.request("POST", "/v1/images/generations", json.dumps({"prompt": "a", "model": SLOW}), JSON)
    refused(r, 404, "PUT /model", "model")


def wrong_ones(d):
    for name in ("nothing", "../outside/fake", "/etc/passwd", d.root + "/" + SLOW, ".hidden", "deep", "a/b/c/d/fake",
                 "fake-file.safetensors", "./" + SLOW, "notes.txt", "x" * 255):
        refused(d.put({"name": name}), 404, "GET /models")
    for name in ("fake-out", "fake-link", "fake-leaks"):
        refused(d.put({"name": name}), 400, "leads out")
    for body in ({}, {"name": ""}, {"name": 7}, {"name": "x" * 256}, {"name": None}):
        refused(d.put(body), 400, "GET /models", "name")
    refused(d.put({"name": FAST, "path": "/x"}), 400, "no such field", "path")
    refused(d.put("[]"), 400, "JSON object")
    refused(d.put("{"), 400, "the body")
    refused(d.request("PUT", "/model?x=1", "{}", JSON), 400, "no query", "query")
    check(d.request("POST", "/model", "{}", JSON).status == 405, "POST /model is a 405")
    check(d.put({"name": FAST}).status == 200,
          "a switch to the current checkpoint is answered at once")
    refused(d.put({"name": BROKEN}), 400, "a tensor is missing")
    s = d.models()["switch"]
    check(s["state"] == "failed" and "a tensor is missing" in s["error"]["message"], f"{s}")
    check(d.generate({"prompt": "a"}).json()["model"] == FAST,
          "the old checkpoint serves after a failed switch")


def named_in_a_request(d):
    check(d.generate({"prompt": "a", "model": FAST}).status == 200,
          "a request may name the current checkpoint")
    refused(d.generate({"prompt": "a", "model": SLOW}), 400, "PUT /model", "model")
    refused(d.generate({"prompt": "a", "model": 3}), 400, "a string", "model")


def draws_on(d, steps, answers):
    r = d.generate({"prompt": "a", "num_inference_steps": steps})
    answers.append(r.json().get("model") if r.status == 200 else r.status)


def while_it_draws(d):
    """Both checkpoints fit in memory: the old one serves until the new one is loaded, and
    finishes the requests it has begun."""
    long, during, answers = [], [], []
    drawing = threading.Thread(target=draws_on, args=(d, 800, long))  # takes longer than the load
    drawing.start()
    check(d.is_drawing(), "the request is being drawn")
    r = d.put({"name": SLOW})
    s = r.json()["switch"]
    check(r.status == 202 and s["state"] == "loading" and not s["unloads_first"], f"{r.status} {r.body}")
    r = d.put({"name": SLOW})
    check(r.status == 202,
          f"a repeated switch to the same checkpoint is accepted: {r.status} {r.body}")
    refused(d.put({"name": "fake-file"}), 409, SLOW)
    refused(d.generate({"prompt": "a", "model": SLOW}), 503, "is being loaded")
    check(d.get("/health/ready").status == 200, "ready while it loads")
    draws_on(d, 1, during)
    check(during == [FAST], f"a request during the switch is drawn by the old checkpoint: {during}")
    entry = {m["name"]: m for m in d.models()["models"]}
    check(entry[SLOW]["loading"] and entry[FAST]["current"], "GET /models shows the switch")
    d.over(SLOW)
    draws_on(d, 1, answers)
    drawing.join()
    check(answers == [SLOW] and long == [FAST], f"{answers} {long}")
    told = (d.get("/info").json()["model"]["name"], d.get("/sdapi/v1/options").json()["sd_model_checkpoint"],
            d.get("/v1/models").json()["data"][0]["id"])
    check(told == (SLOW, SLOW, SLOW),
          f"all routes that name the current checkpoint name the new one: {told}")
    check(wait_until(lambda: "is unloaded" in d.read_log()),
          "the old checkpoint is unloaded when its last request has ended")
    check(d.generate({"prompt": "a", "model": SLOW}).status == 200,
          "a request may name the new checkpoint")


def a_load_that_fails(d):
    check(d.put({"name": FAILS}).status == 202,
          "a switch to a checkpoint with valid headers is accepted")
    s = d.over(FAILS, "failed")
    check("cut short" in s["error"]["message"] and s["error"]["code"], f"{s}")
    check(d.generate({"prompt": "a"}).json()["model"] == SLOW, "the old checkpoint serves on")
    check(d.put({"name": "fake-in"}).status == 202 and d.over("fake-in"),
          "a checkpoint behind a link within the folder can be loaded")
    check(d.put({"name": "fake-file"}).status == 404 or d.over("fake-file"),
          "a checkpoint in a single file can be loaded, if it is listed")


def without_a_root():
    with Daemon(executable, "fake,step_ms=1") as d:
        told = d.get("/models").json()
        check([m["name"] for m in told["models"]] == ["fake,step_ms=1"] and not told["can_switch"], f"{told}")
        refused(d.request("PUT", "/model", '{"name": "x"}', JSON), 404, "--model-root")
        refused(d.generate({"prompt": "a", "model": "x"}), 400, "fake,step_ms=1", "model")


def from_outside():
    """The checkpoint given at the start lies outside of --model-root. It is listed too, and can
    be switched back to."""
    with Models() as inner:
        with Daemon(executable, inner.folder + "/outside/fake", extra=["--model-root", inner.root]) as d:
            told = d.get("/models").json()
            check(told["models"][0]["name"] == "fake" and told["current"] == "fake", f"{told}")
            for name in (FAST, "fake"):
                check(d.request("PUT", "/model", json.dumps({"name": name}), JSON).status == 202, name)
                check(wait_until(lambda: d.get("/models").json()["current"] == name), name)


def told_to_stop():
    with Models() as d:
        check(d.put({"name": SLOW}).status == 202, "a switch is in progress when the daemon stops")


with Models() as d:
    names(d)
    as_openai_lists_them(d)
    wrong_ones(d)
    named_in_a_request(d)
    while_it_draws(d)
    a_load_that_fails(d)
without_a_root()
from_outside()
told_to_stop()
done()
