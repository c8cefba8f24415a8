"""Jobs that draw and PUT /model, with a pipeline without a model. Before another checkpoint
replaces the loaded one, the accepted jobs are finished with it. No job is ever drawn with a
checkpoint other than the one for which it was accepted, even if the daemon stops during a
switch or starts again with another checkpoint. usage: orders_switch_http.py EXECUTABLE"""
import json
import os
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402

EXECUTABLE = sys.argv[1]
JSON = {"Content-Type": "application/json"}
OLD, NEW = "fake,step_ms=6", "fake,step_ms=1"
ENDLESS = {"num_inference_steps": 999, "num_images": 4}
HEAVY, HEAVIER, BROKEN = "fake,heavy,step_ms=6", "fake,heavy,step_ms=1", "fake,heavy,fail_load"
SLOW = "fake,heavy,load_ms=4000,step_ms=6"  # slow enough that no job ends before the switch does


class Switched(Daemon):
    def __init__(self, folder, model):
        self.models = os.path.join(folder, "models")
        super().__init__(EXECUTABLE, os.path.join(self.models, model),
                         extra=("--state-dir", folder + "/state", "--model-root", self.models))

    def order(self, headers=(), **fields):
        body = {"prompt": "a", "num_inference_steps": 12, "scheduler": "ddim", **fields}
        return self.request("POST", "/generate?async=1", json.dumps(body), {**JSON, **dict(headers)})

    def accepted(self, **fields):
        r = self.order(**fields)
        check(r.status == 202, f"{r.status} {r.body[:300]}")
        return r.json()["id"]

    def job(self, id, wait=0):
        return self.get(f"/jobs/{id}?wait={wait}").json()

    def ask(self, id, what):
        r = self.request("POST", f"/jobs/{id}/{what}")
        check(r.status == 200, f"{what}: {r.status} {r.body[:300]}")

    def put(self, name):
        r = self.request("PUT", "/model", json.dumps({"name": name}), JSON)
        check(r.status == 202, f"{name}: {r.status} {r.body[:300]}")
        return r.json()["switch"]

    def switch(self):
        return self.get("/models").json()["switch"]

    def over(self, state="done"):
        check(wait_until(lambda: self.switch()["state"] in ("done", "failed"), 60),
              f"the switch ends: {self.switch()}")
        check(self.switch()["state"] == state, f"{self.switch()}")

    def drawn_by(self, ids):
        """Returns the checkpoints that the jobs were drawn with, or the reasons why they were
        not drawn."""
        jobs = [self.job(id, 60) for id in ids]
        return {job["result"]["model"] if job["state"] == "succeeded" else str(job["error"]) for job in jobs}


def prepare():
    folder = tempfile.mkdtemp(dir=root)
    for model in (OLD, NEW, HEAVY, HEAVIER, BROKEN, SLOW):
        os.makedirs(f"{folder}/models/{model}/unet")
        for name in ("config.json", "w.safetensors"):
            with open(f"{folder}/models/{model}/unet/{name}", "w", encoding="utf-8") as f:
                f.write("{}")
    return folder


def what_was_accepted_is_finished(old, new):
    """A switch waits for all accepted jobs. Eight of them are drawn at a time until they are
    cancelled, and the others wait."""
    with Switched(prepare(), old) as d:
        paused = d.accepted(num_inference_steps=999)
        check(wait_until(lambda: d.job(paused)["step"] > 0), "the job is being drawn")
        d.ask(paused, "pause")
        check(d.job(paused, 30)["state"] == "paused", "the job is paused")
        long = [d.accepted(**ENDLESS) for _ in range(8)]
        known = d.order({"Idempotency-Key": "k"}, seed=1, priority=-3).json()["id"]
        ids = [known] + [d.accepted(seed=i) for i in range(2)]
        told = d.put(new)
        check(told["waits_for_jobs"] == 11 and told["unloads_first"] == (old == HEAVY),
              f"the answer says how many jobs the switch waits for: {told}")
        check(wait_until(lambda: d.switch()["state"] == "draining"), f"{d.switch()}")
        r = d.order()
        check(r.status == 503 and f"the switch to {new} waits" in r.error()["message"] and "retry-after" in r.headers,
              f"no new job is accepted during the switch: {r.status} {r.body[:300]}")
        r = d.order({"Idempotency-Key": "k"}, seed=1, priority=-3)
        check(r.status == 202 and r.json()["id"] == known,
              f"an accepted job's Idempotency-Key is still answered: {r.status} {r.body[:300]}")
        r = d.generate({"prompt": "a", "num_inference_steps": 1})
        check(r.status == 200 and r.json()["model"] == old,
              f"plain requests are drawn by the old checkpoint: {r.status} {r.body[:300]}")
        r = d.generate({"prompt": "a", "model": new})
        check(r.status == 503 and "is being loaded" in r.error()["message"], f"{r.status} {r.body[:300]}")
        for id in long[1:]:
            d.ask(id, "cancel")
        check(d.drawn_by(ids) == {old}, f"{d.drawn_by(ids)}")
        check(wait_until(lambda: d.switch()["waits_for_jobs"] == 1),
              f"the switch waits for one last job: {d.switch()}")
        check(d.switch()["state"] == "draining", f"the switch is still draining: {d.switch()}")
        d.ask(long[0], "cancel")
        d.over()
        check(d.switch()["waits_for_jobs"] == 0, f"{d.switch()}")
        check(wait_until(lambda: f"the model {old} is unloaded" in d.read_log()),
              "the old checkpoint is unloaded")
        check(d.drawn_by([d.accepted()]) == {new}, "a new job is drawn by the new checkpoint")
        one_that_comes_too_late(d, paused, old, new)


def one_that_comes_too_late(d, id, old, new):
    d.ask(id, "resume")
    error = d.job(id, 30)["error"]
    check(error and error["code"] == "conflict" and f"for the model {old}, but {new} is in use" in error["message"],
          f"the job's error names both checkpoints: {error}")
    d.put(old)
    d.over()
    d.ask(id, "resume")
    check(d.drawn_by([id]) == {old}, "the job is drawn after a switch back to its checkpoint")


def a_load_that_fails():
    """If the new checkpoint cannot be loaded, the old one, which was unloaded before, is loaded
    again."""
    with Switched(prepare(), HEAVY) as d:
        ids = [d.accepted(seed=i) for i in range(9)]
        long = d.accepted(**ENDLESS)
        told = d.put(BROKEN)
        check(told["unloads_first"] and told["waits_for_jobs"] > 0, f"{told}")
        check(d.drawn_by(ids) == {HEAVY} and d.switch()["state"] == "draining", f"{d.switch()}")
        d.ask(long, "cancel")
        d.over("failed")
        check("cut short" in d.switch()["error"]["message"], f"{d.switch()}")
        check(f"the model {HEAVY} is unloaded" in d.read_log(), "the old checkpoint was unloaded")
        check(d.get("/health/ready").status == 200 and d.get("/models").json()["current"] == HEAVY,
              "the old checkpoint is loaded again")
        check(d.drawn_by([d.accepted()]) == {HEAVY}, "the old checkpoint draws a new job")
        d.put(HEAVIER)
        d.over()


def what_waits_has_not_ended():
    """A job that finds no checkpoint is tried again until there is one."""
    with Switched(prepare(), HEAVY) as d:
        paused = d.accepted(num_inference_steps=999)
        check(wait_until(lambda: d.job(paused)["step"] > 0), "the job is being drawn")
        d.ask(paused, "pause")
        check(d.job(paused, 30)["state"] == "paused", "the job is paused")

        def completed(id):
            return d.request("POST", "/internal/progress", json.dumps({"id_task": id}), JSON).json()["completed"]

        check(not completed(paused), "/internal/progress shows the paused job as not completed")
        finished = d.accepted()
        check(d.job(finished, 60)["state"] == "succeeded", "another job succeeds")
        d.put(SLOW)
        check(wait_until(lambda: f"the model {HEAVY} is unloaded" in d.read_log(), 60),
              "no checkpoint is loaded")
        d.ask(paused, "resume")
        check(wait_until(lambda: d.job(paused)["state"] == "running"), "the resumed job is begun")
        looks = []
        while d.switch()["state"] == "loading":
            looks.append([completed(id) for id in (paused, finished)])
        print(f"{len(looks)} looks while the next checkpoint was loaded: {sum(a for a, _ in looks)} said that the one "
              f"that waits is completed, {sum(b for _, b in looks)} that the other one is")
        check(looks and not any(a for a, _ in looks),
              "/internal/progress never shows a waiting job as completed")
        check(all(b for _, b in looks),
              "/internal/progress keeps showing an ended job as completed")
        d.over()


def it_stops_meanwhile():
    """The daemon is told to stop while a switch waits for jobs, and while a client waits for the
    end of the switch."""
    folder = prepare()
    with Switched(folder, OLD) as d:
        ids = [d.accepted(seed=i, **ENDLESS) for i in range(10)]
        answers = []
        asked = threading.Thread(target=lambda: answers.append(d.request(
            "POST", "/sdapi/v1/options", json.dumps({"sd_model_checkpoint": NEW}), JSON)))
        asked.start()
        check(wait_until(lambda: (d.switch() or {}).get("state") == "draining"), f"{d.switch()}")
        d.process.terminate()
        check(d.process.wait(30) == 0, "SIGTERM ends the daemon with status 0")
        asked.join()
        check(answers[0].status == 503 and b"the daemon is stopping" in answers[0].body, f"{answers[0].body}")
    with Switched(folder, OLD) as d:
        check(all(d.job(id)["state"] in ("queued", "running") for id in ids), "no job has ended")
        check(wait_until(lambda: any(d.job(id)["step"] > 0 for id in ids)),
              "the jobs are drawn after the restart")
        for id in ids:
            d.ask(id, "cancel")
        d.put(NEW)
        d.over()  # the switch does not wait for cancelled jobs


def it_comes_back_with_another(folder):
    with Switched(folder, OLD) as d:
        d.put(NEW)
        d.over()
        ids = [d.accepted(seed=i, **ENDLESS) for i in range(9)] + [d.accepted()]
        d.process.kill()
        d.process.wait()
    with Switched(folder, OLD) as d:
        errors = [d.job(id, 30)["error"] for id in ids]
        check(all(e and f"for the model {NEW}, but {OLD} is in use" in e["message"] for e in errors), f"{errors}")
        d.put(NEW)
        d.over()
        d.ask(ids[-1], "resume")
        check(d.drawn_by(ids[-1:]) == {NEW},
              "the job is drawn by the checkpoint it was accepted for")


root = tempfile.mkdtemp()
try:
    what_was_accepted_is_finished(OLD, NEW)
    what_was_accepted_is_finished(HEAVY, HEAVIER)
    a_load_that_fails()
    what_waits_has_not_ended()
    it_stops_meanwhile()
    it_comes_back_with_another(prepare())
finally:
    shutil.rmtree(root)
done()
