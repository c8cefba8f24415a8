"""POST /generate?async=1: jobs that draw, with a pipeline without a model. Jobs are accepted,
cancelled, repeated or timed out. They survive a killed daemon, and their pictures expire.
usage: orders_http.py EXECUTABLE"""
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402
from event_source import EventSource  # noqa: E402
from png_file import gradient, png_base64  # noqa: E402

EXECUTABLE = sys.argv[1]


class Orders(Daemon):
    def __init__(self, folder, step_ms=5, extra=(), settings=""):
        super().__init__(EXECUTABLE, f"fake,step_ms={step_ms}{settings}",
                         extra=("--state-dir", folder, *extra))
        self.folder = folder

    def order(self, fields=(), headers=None, path="/generate?async=1", **more):
        body = {"prompt": "a", "num_inference_steps": 10, "scheduler": "ddim", **dict(fields), **more}
        return self.request("POST", path, json.dumps(body),
                            {"Content-Type": "application/json", **(headers or {})})

    def accepted(self, **fields):
        r = self.order(**fields)
        check(r.status == 202, f"{r.status} {r.body[:300]}")
        return r.json()["id"]

    def end(self, id):
        return self.get(f"/jobs/{id}?wait=60").json()

    def state(self, id):
        return self.get(f"/jobs/{id}").json()["state"]

    def files(self, id):
        folder = os.path.join(self.folder, "jobs", id)
        return sorted(os.path.relpath(os.path.join(at, name), folder)
                      for at, _, names in os.walk(folder) for name in names)


def a_job_draws_what_a_request_draws(d):
    fields = {"prompt": ["a", "b"], "num_inference_steps": 8, "scheduler": "ddim", "output": "jpeg", "quality": 70,
              "preview_every": 3}
    r = d.order(fields, {"Prefer": "wait=5, respond-async"}, "/generate")
    job = r.json()
    check(r.status == 202 and job["type"] == "generate", f"{r.status} {r.body[:300]}")
    check(isinstance(job["request"]["seed"], int), "the answer to the order has the job's seed")
    source = EventSource(d, f"/jobs/{job['id']}/events", last_id=0)
    source.open()
    events = source.all()
    end = d.end(job["id"])
    check(end["state"] == "succeeded" and end["step"] == end["steps"] == 16, f"{end}")
    images = end["result"]["images"]
    check([i["seed"] for i in images] == [job["request"]["seed"], job["request"]["seed"] + 1], f"{images}")
    for n, image in enumerate(images):
        check(image["url"] == f"/jobs/{job['id']}/images/{n}.jpeg", image["url"])
        r = d.get(image["url"])
        alone = d.generate({"prompt": "ab"[n], "num_inference_steps": 8, "scheduler": "ddim", "quality": 70,
                            "output": "jpeg", "seed": image["seed"]}, {"Accept": "image/jpeg"})
        check(r.status == 200 and r.headers["content-type"] == "image/jpeg" and len(r.body) == image["bytes"],
              f"{r.status} {r.headers}")
        # The metadata in the files differ, because they contain the image's index within its
        # request. So only the
        # last bytes are compared.
        check(r.body[-200:] == alone.body[-200:], "the job's picture equals the plain request's")
    check(events[-1].kind == "state" and events[-1].number == max(e.number for e in events),
          "the last event is the job's end")
    check(any(e.kind == "progress" for e in events), f"{[e.kind for e in events]}")
    previews = [json.loads(e.data) for e in events if e.kind == "preview"]
    check(previews and previews[0]["b64_json"] and previews[0]["step"] in (3, 6), f"{previews[:1]}")
    # Resumes the events from the middle, and from the end.
    again = EventSource(d, f"/jobs/{job['id']}/events", last_id=events[1].number)
    again.open()
    check([e.number for e in again.all()] == [e.number for e in events[2:]],
          "Last-Event-ID continues the events after that number")
    check(EventSource(d, f"/jobs/{job['id']}/events", last_id=events[-1].number).open() == 204,
          "a stream after the last event is a 204")
    for name in ("2.jpeg", "0.png", "..%2frequest.json", "x", "0"):
        check(d.get(f"/jobs/{job['id']}/images/{name}").status in (400, 404), name)
    check(d.request("DELETE", f"/jobs/{job['id']}").status == 200, "an ended job can be deleted")
    check(not os.path.exists(os.path.join(d.folder, "jobs", job["id"])),
          "deleting a job removes its pictures")


def refusals(d):
    before = len(os.listdir(os.path.join(d.folder, "jobs")))
    for fields, param in (({"width": 65}, "width"), ({"stream": True}, "stream"), ({"prompts": 1}, "prompts"),
                          ({"quality": 5}, "quality"), ({"init_image": "AAAA"}, "init_image"),
                          ({"timeout_s": -1}, "timeout_s")):
        r = d.order(fields)
        check(r.status == 400 and r.error()["param"] == param, f"{fields}: {r.status} {r.body}")
    r = d.order(path="/generate?async=2")
    check(r.status == 400 and r.error()["param"] == "async", f"{r.status} {r.body}")
    r = d.order(path="/generate?later=1")
    check(r.status == 400 and r.error()["param"] == "query", f"{r.status} {r.body}")
    r = d.order(headers={"Idempotency-Key": "a b"})
    check(r.status == 400 and r.error()["param"] == "Idempotency-Key", f"{r.status} {r.body}")
    check(len(os.listdir(os.path.join(d.folder, "jobs"))) == before,
          "refused orders leave no folder")


def keys(d):
    r = [d.order({"seed": 4}, {"Idempotency-Key": "k"}) for _ in range(2)]
    check(r[0].status == r[1].status == 202 and r[0].json()["id"] == r[1].json()["id"],
          "two orders with one Idempotency-Key are one job")
    r.append(d.order({"seed": 5}, {"Idempotency-Key": "k"}))
    check(r[2].status == 409 and "Idempotency-Key k was" in r[2].error()["message"], f"{r[2].body}")
    d.end(r[0].json()["id"])
    after = d.order({"seed": 4}, {"Idempotency-Key": "k"}).json()
    check(after["id"] == r[0].json()["id"] and after["state"] == "succeeded",
          "the key stands for the job also after its end")


def pictures_in_are_kept(d):
    fields = {"init_image": png_base64(64, 64, gradient), "strength": 0.5, "seed": 3}
    id = d.accepted(**fields)
    job = d.end(id)
    check(job["state"] == "succeeded", f"{job}")
    check(list(job["request"]["init_image"]) == ["characters"], f"{job['request']}")
    alone = d.generate({"prompt": "a", "num_inference_steps": 10, "scheduler": "ddim", **fields},
                       {"Accept": "image/png"})
    check(d.get(f"/jobs/{id}/images/0.png").body == alone.body,
          "the job draws from its init_image as a plain request does")


def latents_are_a_file(d):
    job = d.end(d.accepted(output="latent", seed=9))
    image = job["result"]["images"][0]
    r = d.get(image["url"])
    check(image["format"] == "latent" and image["shape"] == [4, 8, 8] and len(r.body) == 4 * 4 * 8 * 8,
          f"{image}")


def cancels_and_pauses(folder):
    with Orders(folder, step_ms=20) as d:
        running = [d.accepted(num_inference_steps=800) for _ in range(8)]
        check(wait_until(lambda: all(d.state(id) == "running" for id in running)),
              "eight jobs are drawn at once")
        queued = d.accepted(num_inference_steps=5)
        check(d.state(queued) == "queued", "the ninth job waits")
        r = d.request("POST", f"/jobs/{queued}/cancel")
        check(r.status == 200 and r.json()["state"] == "cancelled",
              "a queued job is cancelled at once")
        begun = time.monotonic()
        check(d.request("POST", f"/jobs/{running[0]}/cancel").status == 200,
              "cancelling a running job is accepted")
        check(d.end(running[0])["state"] == "cancelled", "the running job is cancelled")
        took_s = time.monotonic() - begun
        # A job can also be cancelled by the id of its request.
        check(d.request("POST", f"/generate/{running[1]}/cancel").status == 200,
              "POST /generate/ID/cancel takes a job's id")
        check(d.end(running[1])["state"] == "cancelled", "that job is cancelled")
        check(d.request("POST", f"/jobs/{running[2]}/pause").status == 200,
              "pausing a running job is accepted")
        check(d.end(running[2])["state"] == "paused", "the running job is paused")
        fresh = d.accepted(num_inference_steps=3, priority=3)
        check(d.end(fresh)["state"] == "succeeded",
              "a new job is drawn in the place of a stopped one")
        check(d.request("DELETE", f"/jobs/{running[3]}").status == 409,
              "a running job cannot be deleted")
        check(not d.files(running[0])[1:] and d.get(f"/jobs/{running[0]}/images/0.png").status == 404,
              "a cancelled job has no pictures")
        print(f"cancelled within {took_s:.3f} s of 20 ms a step, beside seven others")
        for id in running[2:]:
            d.request("POST", f"/jobs/{id}/cancel")
        for id in running[2:]:
            check(d.end(id)["state"] == "cancelled", "every job ends as cancelled")


def a_pause_that_is_taken_back_ends_no_job(folder):
    """Each pause is revoked before the drawing has stopped. That is possible because a drawing
    stops only between two steps."""
    with Orders(folder, step_ms=100, settings=",images=4") as d:
        running = [d.accepted(num_inference_steps=10) for _ in range(4)]
        check(wait_until(lambda: all(d.state(id) == "running" for id in running)),
              "all jobs are being drawn")
        for id in running:
            for change in ("pause", "resume"):
                r = d.request("POST", f"/jobs/{id}/{change}")
                check(r.status == 200 and r.json()["state"] == "running", f"{change}: {r.body[:300]}")
        ends = [d.end(id) for id in running]
        for job in ends:
            check(job["state"] == "succeeded", f"{job['state']} after {job['attempts']} attempts: {job['error']}")
        again = sum(job["attempts"] > 1 for job in ends)
        print(f"4 pauses taken back at once, {again} jobs began anew: {[job['state'] for job in ends]}")


def deadlines(folder):
    with Orders(folder, step_ms=20) as d:
        job = d.end(d.accepted(num_inference_steps=800, timeout_s=3))
        check(job["state"] == "failed" and job["error"]["code"] == "timeout" and "steps" in job["error"]["message"],
              f"{job['error']}")
        blocked = [d.accepted(num_inference_steps=800) for _ in range(8)]
        late = d.accepted(timeout_s=0.2)
        time.sleep(0.3)
        for id in blocked:
            d.request("POST", f"/jobs/{id}/cancel")
        job = d.end(late)
        check(job["state"] == "failed" and "waited" in job["error"]["message"], f"{job['error']}")


def a_failure_has_its_reason(d):
    job = d.end(d.accepted(prompt="fail:internal"))
    check(job["state"] == "failed" and job["error"]["code"] == "internal_error", f"{job['error']}")


def kills_lose_nothing(folder):
    with Orders(folder, step_ms=20) as d:
        ids = [d.accepted(seed=i, num_inference_steps=8) for i in range(12)]
        check(wait_until(lambda: d.get(f"/jobs/{ids[0]}").json()["step"] > 1),
              "the job is drawn after the restart")
        d.process.kill()
        d.process.wait()
    left = os.path.join(folder, "jobs", "0123456789abcdef")
    os.makedirs(left)
    with open(os.path.join(left, "request.json"), "w") as f:
        f.write("{}")
    with Orders(folder, step_ms=20) as d:
        check(not os.path.exists(left), "a folder that belongs to no job is removed at the start")
        for i, id in enumerate(ids):
            job = d.end(id)
            check(job["state"] == "succeeded" and job["result"]["images"][0]["seed"] == i, f"{job['error']}")
            check(d.files(id)[0] == "images/0.png", f"{d.files(id)}")
        check(any(d.get(f"/jobs/{id}").json()["attempts"] == 2 for id in ids),
              "at least one job was begun twice")
    # A daemon that is told to stop puts its jobs back.
    with Orders(folder, step_ms=20) as d:
        id = d.accepted(num_inference_steps=60)
        check(wait_until(lambda: d.state(id) == "running"), "the job runs")
    with Orders(folder, step_ms=20) as d:
        check(d.end(id)["state"] == "succeeded", "the job succeeds after the restart")


def column(folder, id, name):
    db = sqlite3.connect(os.path.join(folder, "jobs.sqlite"))
    value = db.execute(f"SELECT {name} FROM job WHERE id = ?", (id,)).fetchone()[0]
    db.close()
    return value


def who_only_waited_is_not_to_blame(folder):
    """A job that only waits behind another one does not fail, even if the daemon is killed
    several times."""
    with Orders(folder, step_ms=20) as d:
        first = d.accepted(num_inference_steps=500, priority=3)
        check(wait_until(lambda: d.get(f"/jobs/{first}").json()["step"] > 0),
              "the first job is drawn")
        waiting = d.accepted(num_inference_steps=999)
        check(wait_until(lambda: d.state(waiting) == "running"),
              "the second job is begun and waits")
        d.process.kill()
        d.process.wait()
    with sqlite3.connect(os.path.join(folder, "jobs.sqlite")) as db:
        db.execute("UPDATE job SET strikes = 3 WHERE id = ?", (waiting,))
    db.close()
    furthest = column(folder, first, "furthest")
    for _ in range(2):
        with Orders(folder, step_ms=20) as d:
            check(wait_until(lambda: d.state(waiting) == "running"), f"{d.get('/jobs/' + waiting).body}")
            time.sleep(1.5)
            check(wait_until(lambda: d.get(f"/jobs/{first}").json()["step"] > furthest),
                  "the first job makes further steps")
            d.process.kill()
            d.process.wait()
        furthest = column(folder, first, "furthest")
        print(f"at step {furthest} of the first the daemon ends; the other: {column(folder, waiting, 'strikes')} "
              f"strikes, {column(folder, waiting, 'attempts')} attempts")
    with Orders(folder, step_ms=20) as d:
        job = d.get(f"/jobs/{waiting}").json()
        check(job["state"] in ("queued", "running"), f"{job['state']} {job['error']}")


def a_lost_device_loses_no_job(folder):
    with Orders(folder, step_ms=10) as d:
        ids = [d.accepted(seed=i, num_inference_steps=300) for i in range(9)]
        check(wait_until(lambda: d.get(f"/jobs/{ids[0]}").json()["step"] > 0),
              "one job is drawn, eight are begun")
        r = d.generate({"prompt": "fail:lost", "num_inference_steps": 1})
        check(r.status == 500 and r.error()["code"] == "device_lost", f"{r.status} {r.body[:200]}")
        check(d.process.wait(20) == 70, "status 70")
    check([column(folder, id, "state") for id in ids] == 8 * ["running"] + ["queued"],
          "no job has ended")
    with Orders(folder, step_ms=10) as d:
        jobs = [d.get(f"/jobs/{id}").json() for id in ids]
        check(all(job["state"] in ("queued", "running") for job in jobs), f"{[job['error'] for job in jobs]}")
        for id in ids:
            d.request("POST", f"/jobs/{id}/cancel")


def a_job_that_loses_the_device_is_given_up(folder):
    with Orders(folder) as d:
        id = d.accepted(prompt="fail:lost", num_inference_steps=1)
        check(d.process.wait(20) == 70, "status 70")
    starts = 1
    while column(folder, id, "strikes") < 5 and starts < 9:  # the first start may have made progress
        check(subprocess.run(d.command, capture_output=True, timeout=60).returncode == 70, "status 70")
        starts += 1
    with Orders(folder) as d:
        job = d.get(f"/jobs/{id}").json()
        check(job["state"] == "failed" and "the daemon ended 5 times" in job["error"]["message"], f"{job}")
    print(f"given up after {starts} starts")


def pictures_expire(folder):
    with Orders(folder, extra=("--results-max-bytes", "1500")) as d:
        ids = [d.accepted(seed=i) for i in range(5)]
        jobs = [d.end(id) for id in ids]
        each = jobs[0]["result"]["images"][0]["bytes"]
        keep = 1500 // each
        check(1 <= keep < 5, f"{each} bytes each")
        newest = sorted(range(5), key=lambda i: jobs[i]["finished_at"])[-1]
        check(wait_until(lambda: sum(bool(d.files(id)) for id in ids) <= keep, 10),
              "the oldest pictures are removed")
        check(d.get(f"/jobs/{ids[newest]}/images/0.png").status == 200,
              "the newest picture is kept")
        gone = next(id for id in ids if not d.files(id))
        r = d.get(f"/jobs/{gone}/images/0.png")
        check(r.status == 404 and "not any more" in r.error()["message"], f"{r.body}")
        check(d.state(gone) == "succeeded", "the job whose pictures were removed is still known")
    with Orders(folder, extra=("--results-max-age", "0.0005")) as d:
        id = d.accepted()
        check(d.end(id)["state"] == "succeeded", "the job is drawn")
        check(wait_until(lambda: not d.files(id), 10), "its pictures are removed after two seconds")


def what_cannot_begin_again_keeps_no_request(folder):
    fields = {"init_image": png_base64(64, 64, gradient), "strength": 0.9, "num_inference_steps": 800}
    with Orders(folder, step_ms=20, extra=("--results-max-age", "0.0005")) as d:
        failed = d.accepted(prompt="fail:internal")
        check(d.end(failed)["state"] == "failed", "the job fails")
        ids = [d.accepted(**fields) for _ in range(9)]
        check(wait_until(lambda: d.state(ids[0]) == "running"), "the first job is being drawn")
        check(all(d.files(id) == ["request.json"] for id in ids),
              "each waiting job's folder holds its request")
        for id in (ids[8], ids[0]):
            check(d.request("POST", f"/jobs/{id}/cancel").status == 200 and d.end(id)["state"] == "cancelled", id)
        check(d.request("POST", f"/jobs/{ids[1]}/pause").status == 200,
              "pausing the second job is accepted")
        check(d.end(ids[1])["state"] == "paused", "the second job is paused")
        check(wait_until(lambda: not d.files(ids[0]) and not d.files(ids[8]), 10),
              "the files of cancelled jobs are removed, since they cannot be resumed")
        check(d.files(ids[1]) == d.files(failed) == ["request.json"],
              "the files of paused and failed jobs are kept")
        for id in ids[2:8]:
            d.request("POST", f"/jobs/{id}/cancel")


def a_stop_waits_quietly(folder):
    with Orders(folder, step_ms=3000, extra=("--results-max-age", "0.0005")) as d:
        id = d.accepted()
        check(wait_until(lambda: d.state(id) == "running"), "the job runs")
        d.process.terminate()
        time.sleep(1.3)  # longer than the second between two checks of the pictures' ages
        before_s = cpu_s(d)
        time.sleep(0.7)
        used_s = cpu_s(d) - before_s
        print(f"{used_s:.2f} s of work in 0.7 s of waiting for a step to end")
        check(used_s < 0.3, f"waiting takes less than 0.3 s of processor time, not {used_s:.2f} s")
        check(d.process.wait(30) == 0, "SIGTERM ends the daemon with status 0")


def cpu_s(d):
    with open(f"/proc/{d.process.pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def without_a_folder():
    with Daemon(EXECUTABLE) as d:
        r = d.request("POST", "/generate?async=1", '{"prompt": "a"}', {"Content-Type": "application/json"})
        check(r.status == 404 and "--state-dir" in r.error()["message"], f"{r.status} {r.body}")


root = tempfile.mkdtemp()
try:
    with Orders(os.path.join(root, "one")) as d:
        a_job_draws_what_a_request_draws(d)
        refusals(d)
        keys(d)
        pictures_in_are_kept(d)
        latents_are_a_file(d)
        a_failure_has_its_reason(d)
    cancels_and_pauses(os.path.join(root, "two"))
    a_pause_that_is_taken_back_ends_no_job(os.path.join(root, "two-b"))
    deadlines(os.path.join(root, "three"))
    kills_lose_nothing(os.path.join(root, "four"))
    pictures_expire(os.path.join(root, "five"))
    a_stop_waits_quietly(os.path.join(root, "six"))
    who_only_waited_is_not_to_blame(os.path.join(root, "seven"))
    what_cannot_begin_again_keeps_no_request(os.path.join(root, "eight"))
    a_lost_device_loses_no_job(os.path.join(root, "nine"))
    a_job_that_loses_the_device_is_given_up(os.path.join(root, "ten"))
    without_a_folder()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
