"""Jobs over HTTP, run by a trainer that only counts (fake_training.c): a job from its request to
its end, the changes that a client may ask for, clients that follow a job, and what survives a
restart. usage: jobs_http.py EXECUTABLE api|faults [PROMISE...]"""
import itertools
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

from daemon import Daemon, check, done, wait_until
from event_source import EventSource
from metrics import read

executable = sys.argv[1]
JSON = {"Content-Type": "application/json"}
ENDS = ("succeeded", "failed", "cancelled")


names = itertools.count()


def order(fields, name):
    """Returns a training job with this many steps; other fields are passed to the fake trainer."""
    named = {"name": name, "max_train_steps": fields.get("steps", 10),
             "checkpointing_steps": fields.get("checkpoint_every", 10)}
    rest = {"step_ms": 5, **fields}
    pace = [f"{key}={rest[key]}" for key in ("step_ms", "fail_at", "kill_at", "talk") if key in rest]
    return {**named, "dataset": ",".join(["fake", *pace])}


class Jobs(Daemon):
    def __init__(self, folder, extra=(), listen="127.0.0.1:0"):
        super().__init__(executable, "fake", listen=listen, extra=["--state-dir", folder, *extra])

    def train(self, fields, key=None):
        name = f"a-{key or next(names)}"
        return self.request("POST", "/train", json.dumps(order(fields, name)),
                            {**JSON, **({"Idempotency-Key": key} if key else {})})

    def start(self, fields):
        r = self.train(fields)
        check(r.status == 202, f"{r.status} {r.body}")
        return r.json()["id"]

    def job(self, job_id, query=""):
        r = self.get(f"/jobs/{job_id}{query}")
        check(r.status == 200, f"{r.status} {r.body}")
        return r.json()

    def ask(self, job_id, what, status=200):
        r = self.request("POST", f"/jobs/{job_id}/{what}")
        check(r.status == status, f"{what}: {r.status} {r.body}")
        return r.json()

    def reaches(self, job_id, state, seconds=20):
        ok = wait_until(lambda: self.job(job_id)["state"] == state, seconds)
        return check(ok, f"{self.job(job_id)['state']}, not {state}")

    def gets_to_step(self, job_id, step):
        return check(wait_until(lambda: self.job(job_id)["step"] >= step), f"no step {step}")


def a_job_goes_from_the_request_to_its_end(folder):
    with Jobs(folder) as d:
        before = time.time()
        r = d.train({"steps": 150, "step_ms": 20})
        job, accepted = r.json(), time.time()
        check(r.status == 202 and job["state"] == "queued" and job["type"] == "train", f"{r.body}")
        asked = order({"steps": 150, "step_ms": 20}, job["request"]["name"])
        check(asked.items() <= job["request"].items() and job["request"]["rank"] == 16 and
              job["request"]["seed"] >= 0,
              f"the job has the sent fields and a value for each other field: {job['request']}")
        check(before - 0.01 <= job["created_at"] <= accepted + 0.01,
              f"created at {job['created_at']}, between {before} and {accepted}")
        second = d.start({"steps": 3, "step_ms": 1})
        check(d.job(second)["position"] == 1, "the second job is the next in the queue")
        d.gets_to_step(job["id"], 5)
        now = d.job(job["id"])
        most_s = (time.time() - now["started_at"]) / now["step"] * (150 - now["step"])
        check(now["state"] == "running" and now["steps"] == 150 and 0 < now["eta_s"] <= most_s and
              now["position"] is None and now["attempts"] == 1, f"{now}, at most {most_s} s")
        check(now["metrics"] == {"loss": round(1 / now["step"], 4)}, f"{now['metrics']}")
        end = d.job(job["id"], "?wait=50")
        check(end["state"] == "succeeded", f"{end['state']}")
        check(end["step"] == 150 and end["result"] == {"adapter": "pretended", "file": "none"} and end["error"] is None,
              f"{end}")
        check(2.9 < end["seconds"] <= time.time() - before and
              end["created_at"] <= end["started_at"] < end["finished_at"], f"{end}")
        check(d.job(second, "?wait=20")["state"] == "succeeded",
              "the second job succeeds after the first")
        begun = time.monotonic()
        third = d.start({"steps": 1000, "step_ms": 20})
        check(d.job(third, "?wait=1")["state"] == "running", "?wait=1 answers before the job ends")
        check(time.monotonic() - begun >= 1, "?wait=1 waits for one second")
        check(d.job(end["id"], "?wait=20")["state"] == "succeeded",
              "?wait=20 of an ended job is answered")
        values = read(d)
        check(values['latentd_jobs{state="succeeded"}'] == 2 and values['latentd_jobs{state="running"}'] == 1 and
              values["latentd_jobs_accepted_total"] == 3 and
              values['latentd_jobs_ended_total{state="succeeded"}'] == 2, f"{values}")


def a_job_can_be_told_to_pause_and_go_on(folder):
    with Jobs(folder) as d:
        job_id = d.start({"steps": 60, "step_ms": 10, "checkpoint_every": 0})
        d.gets_to_step(job_id, 8)
        asked = d.ask(job_id, "pause")
        check(asked["state"] == "paused" or asked["asked_to"] == "pause", f"{asked}")
        begun = time.monotonic()
        paused = d.job(job_id, "?wait=60")
        check(time.monotonic() - begun < 30, "?wait= is answered when the job pauses")
        check(paused["state"] == "paused" and 8 <= paused["step"] < 60, f"{paused}")
        time.sleep(0.1)
        check(d.job(job_id)["step"] == paused["step"], "a paused job makes no steps")
        d.ask(job_id, "resume")
        end = d.job(job_id, "?wait=20")
        check(end["state"] == "succeeded" and end["attempts"] == 2, f"{end}")
        steps = [json.loads(e.data)["step"] for e in follow(d, job_id) if e.kind == "progress"]
        check(steps == sorted(set(steps)) and steps[-1] == 60, f"no step was made twice: {steps}")
        r = d.request("POST", f"/jobs/{job_id}/pause")
        check(r.status == 409 and r.headers["x-should-retry"] == "false" and
              r.error()["code"] == "conflict" and "its state is succeeded" in r.error()["message"],
              f"{r.status} {r.body}")


def follow(d, job_id, after=0):
    """Returns all events of a job that has ended."""
    return EventSource(d, f"/jobs/{job_id}/events", after).follow()


def a_job_can_be_cancelled_and_deleted(folder):
    with Jobs(folder) as d:
        running = d.start({"steps": 10000, "step_ms": 5})
        waiting = d.start({})
        d.gets_to_step(running, 2)
        check(d.ask(waiting, "cancel")["state"] == "cancelled", "a queued job is cancelled at once")
        check(d.request("DELETE", f"/jobs/{running}").status == 409,
              "a running job cannot be deleted")
        d.ask(running, "cancel")
        check(d.job(running, "?wait=20")["state"] == "cancelled",
              "a running job is cancelled after its step")
        d.ask(running, "cancel")  # a second time changes nothing
        d.ask(running, "resume", 409)
        r = d.request("DELETE", f"/jobs/{running}")
        check(r.status == 200 and r.json() == {"id": running, "deleted": True, "stays": {"adapter": None}},
              f"{r.status} {r.body}")
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", ""),
                             ("GET", "?wait=1")):
            r = d.request(method, f"/jobs/{running}{path}")
            check(r.status == 404 and running in r.error()["message"], f"{method} {path}: {r.status}")
        failed = d.start({"steps": 20, "step_ms": 1, "fail_at": 12})
        end = d.job(failed, "?wait=20")
        check(end["state"] == "failed" and end["error"] == {
            "code": "internal_error", "message": "the loss of step 12 is not a number"}, f"{end}")
        d.ask(failed, "resume")
        check(d.job(failed, "?wait=20")["attempts"] == 2, "a failed job can be resumed")


def lists_come_in_pages(folder):
    with Jobs(folder) as d:
        first = d.start({"steps": 10000, "step_ms": 20})
        ids = [first] + [d.start({}) for _ in range(6)]
        d.ask(ids[2], "pause")
        d.ask(ids[3], "cancel")
        check(wait_until(lambda: d.job(first)["state"] == "running"), "the first job runs")
        seen, after = [], ""
        while True:
            page = d.get(f"/jobs?limit=3{after}").json()
            seen += [job["id"] for job in page["jobs"]]
            if not page["has_more"]:
                break
            after = f"&after={seen[-1]}"
        check(seen == ids[::-1], f"the pages list each job once, the newest first: {seen}")

        def listed(query):
            return [ids.index(job["id"]) for job in d.get("/jobs?" + query).json()["jobs"]]
        check(listed("state=queued") == [6, 5, 4, 1], f"{listed('state=queued')}")
        check(listed("state=paused%2Ccancelled") == [3, 2], "the list can be limited to two states")
        check(listed("state=running&type=train") == [0] and listed("type=draw") == [],
              "the list can be limited to a type")
        positions = [job["position"] for job in d.get("/jobs").json()["jobs"]]
        check(positions == [4, 3, 2, None, None, 1, None], f"{positions}")
        for path in ("/jobs", f"/jobs/{first}"):
            r = d.request("HEAD", path)
            check(r.status == 200 and r.body == b"" and int(r.headers["content-length"]) > 300, f"HEAD {path}")
        check("request" not in d.get("/jobs").json()["jobs"][0],
              "the list leaves out the jobs' requests")


def a_key_makes_a_request_safe_to_repeat(folder):
    with Jobs(folder) as d:
        first = d.train({"steps": 5, "step_ms": 100}, key="k1")
        otherwise = json.dumps(dict(reversed(order({"steps": 5, "step_ms": 100}, "a-k1").items())), indent=1)
        again = d.request("POST", "/train", otherwise, {**JSON, "Idempotency-Key": "k1"})
        check(again.json()["request"]["seed"] == first.json()["request"]["seed"],
              "the repeated order is answered with the first one's seed")
        check(again.status == 202 and again.json()["id"] == first.json()["id"], f"{again.body}")
        other = d.train({"steps": 6}, key="k1")
        check(other.status == 409 and other.error()["code"] == "conflict" and
              other.headers["x-should-retry"] == "false" and "k1" in other.error()["message"],
              f"{other.status} {other.body}")
        check(d.train({"steps": 5}, key="k2").json()["id"] != first.json()["id"],
              "another key makes another job")
        check(d.train({}).json()["id"] != d.train({}).json()["id"],
              "two orders without a key are two jobs")
        body = json.dumps(order({"steps": 400, "step_ms": 100}, "twice"))
        one = d.request("POST", "/train", body, JSON).json()["id"]
        r = d.request("POST", "/train", body, JSON)
        check(r.status == 409 and r.error()["param"] == "name" and one in r.error()["message"], f"{r.body}")
        d.ask(one, "cancel")
        d.reaches(one, "cancelled")
        check(d.request("POST", "/train", body, JSON).status == 202,
              "the name can be used again once the job has ended")
        results = []

        def repeat():
            results.append(d.train({"steps": 7}, key="k3").json()["id"])
        threads = [threading.Thread(target=repeat) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(len(results) == 8 and len(set(results)) == 1,
              f"eight simultaneous orders with one key are one job: {results}")
    with Jobs(folder) as d:
        check(d.train({"steps": 5, "step_ms": 100}, key="k1").json()["id"] == first.json()["id"],
              "the key still stands for its job after a restart")


def events_tell_everything_once(folder):
    with Jobs(folder, extra=["--heartbeat", "1"]) as d:
        job_id = d.start({"steps": 100, "step_ms": 10, "checkpoint_every": 20})
        source = EventSource(d, f"/jobs/{job_id}/events")
        check(source.open() == 200, "the event stream opens")
        head = source.response.headers
        check(head["Content-Type"] == "text/event-stream" and head["Cache-Control"] == "no-store",
              f"{dict(head)}")
        live = source.all()
        check(source.retry_ms == 2000, f"retry: {source.retry_ms}")
        job = json.loads(live[0].data)
        check(live[0].kind == "job" and job["id"] == job_id and job["state"] in ("queued", "running"),
              f"the first event is the job as it is: {live[0].data}")
        numbers = [e.number for e in live]
        check(numbers == list(range(numbers[0], numbers[0] + len(live))),
              f"events are numbered without gaps: {numbers}")
        check(live[-1].kind == "state" and json.loads(live[-1].data)["state"] == "succeeded",
              f"the last event is the job's end: {live[-1].data}")
        kept = follow(d, job_id)
        check([e.number for e in kept] == list(range(1, live[-1].number + 1)),
              "a stream of an ended job has all its events")
        tail = {e.number: e.data for e in kept}
        check(all(tail[e.number] == e.data for e in live[1:]),
              "events of an ended job equal those that were sent live")
        check([e.data for e in kept if e.kind == "checkpoint"] ==
              [f'{{"step":{n}}}' for n in range(20, 101, 20)], "each checkpoint is an event")
        half = follow(d, job_id, 4)
        check([e.number for e in half] == list(range(5, live[-1].number + 1)),
              "Last-Event-ID sends only the later events")
        source.last_id = live[-1].number
        check(source.open() == 204,
              "a stream after the last event is a 204, at which an EventSource stops")
        r = d.get(f"/jobs/{job_id}/events?after=3")
        check(r.body.decode().startswith("retry: 2000\nid: 4\n"), f"{r.body[:60]}")
        r = d.request("HEAD", f"/jobs/{job_id}/events")
        check(r.status == 200 and r.body == b"", f"HEAD: {r.status} {r.body}")


def a_quiet_stream_shows_life_and_a_dead_client_is_noticed(folder):
    with Jobs(folder, extra=["--heartbeat", "1"]) as d:
        job_id = d.start({"steps": 10000, "step_ms": 1})
        d.gets_to_step(job_id, 1)
        d.ask(job_id, "pause")
        d.reaches(job_id, "paused")
        source = EventSource(d, f"/jobs/{job_id}/events")
        source.open()
        check(source.next().kind == "job", "the first event is the job as it is")
        check(read(d)["latentd_job_watchers"] == 1, "the metric counts one watcher")
        begun = time.monotonic()
        source.response.readline()  # ":"
        took = time.monotonic() - begun
        check(0.5 < took < 10, f"a comment is sent after {took} s without events")
        source.close()
    with Jobs(folder) as d:
        source = EventSource(d, f"/jobs/{job_id}/events")
        source.open()
        check(source.next().kind == "job" and read(d)["latentd_job_watchers"] == 1,
              "another stream opens and stays quiet")
        source.close()
        check(wait_until(lambda: read(d)["latentd_job_watchers"] == 0, 5),
              "a client that left is no longer counted")
        d.ask(job_id, "resume")
        with d.connect() as s:
            s.sendall(f"GET /jobs/{job_id}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            check(wait_until(lambda: read(d)["latentd_job_watchers"] == 1, 5),
                  "the metric counts a client that waits with ?wait=")
        check(wait_until(lambda: read(d)["latentd_job_watchers"] == 0, 5),
              "a client with ?wait= that left is no longer counted")


def waiting_clients_cost_no_threads_and_are_bounded(folder):
    with Jobs(folder, extra=["--max-connections", "60"]) as d:
        job_id = d.start({"steps": 10000, "step_ms": 20})
        d.reaches(job_id, "running")

        def threads():
            return len(os.listdir(f"/proc/{d.process.pid}/task"))
        before = threads()
        sources = [EventSource(d, f"/jobs/{job_id}/events") for _ in range(10)]
        for source in sources:
            check(source.open() == 200, "an event stream opens")
        waits = [d.connect() for _ in range(5)]
        for s in waits:
            s.sendall(f"GET /jobs/{job_id}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        check(wait_until(lambda: read(d)["latentd_job_watchers"] == 15),
              "fifteen clients watch, a quarter of the connections")
        check(threads() == before, f"{before} threads became {threads()}")
        late = EventSource(d, f"/jobs/{job_id}/events")
        check(late.open() == 200, "one more stream opens")
        given_up = sources.pop(0).all()
        check(json.loads(given_up[0].data)["state"] == "running",
              f"the oldest stream is ended to make room: {given_up[-1].kind}")
        check(d.get(f"/jobs/{job_id}?wait=1").json()["state"] == "running",
              "another client can wait with ?wait=1")
        sources.pop(0).all()
        sources.append(late)
        check(wait_until(lambda: read(d)["latentd_job_watchers"] == 14),
              "fourteen watchers are left: two were ended to make room, and one's wait is over")
        check(d.job(job_id)["state"] == "running" and d.generate({"prompt": "a"}).status == 200,
              "other requests are served")
        d.ask(job_id, "cancel")
        for source in sources:
            events = source.all()
            check(json.loads(events[-1].data)["state"] == "cancelled",
                  "each stream ends with the job's end")
        for s in waits:
            check(b'"cancelled"' in s.recv(65536), "each client with ?wait= is answered")
            s.close()


def a_slow_client_costs_one_buffer(folder):
    # Freed memory that AddressSanitizer holds back must not count.
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"
    with Jobs(folder) as d:
        job_id = d.start({"steps": 900, "step_ms": 2, "talk": 16000, "checkpoint_every": 0})
        d.gets_to_step(job_id, 5)
        before = d.rss_kb()
        slow = [d.connect() for _ in range(20)]
        for s in slow:
            s.setsockopt(1, 8, 4096)  # SOL_SOCKET, SO_RCVBUF
            s.sendall(f"GET /jobs/{job_id}/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        end = d.job(job_id, "?wait=60")
        check(end["state"] == "succeeded", f"{end['state']}")
        grown = d.rss_kb() - before
        said = 900 * 16
        print(f"20 clients that read nothing of {said} kB: the daemon grew by {grown} kB")
        check(grown < 4 * said, f"the daemon's memory grew by {grown} kB for clients that do not read")  # a copy per client would be 20 times that
        quick = follow(d, job_id)
        logs = sum(e.kind == "log" for e in quick)
        check(logs == 900, f"a client that reads gets all 900 log events: {logs}")
        for s in slow:
            s.close()


def a_client_is_told_what_it_missed(folder):
    with Jobs(folder) as d:
        job_id = d.start({"steps": 1100, "step_ms": 0, "talk": 10, "checkpoint_every": 0})
        d.job(job_id, "?wait=60")
        events = follow(d, job_id)
        missed = json.loads(events[0].data)["missed"]
        check(events[0].kind == "gap" and missed >= 100, f"{events[0].kind} {events[0].data}")
        check(len(events) == 1001 and events[1].number == missed + 1, f"{len(events)} events")


def wrong_requests_say_what_is_wrong(folder):
    with Jobs(folder) as d:
        job_id = d.start({"steps": 10000, "step_ms": 20})
        table = [
            ("GET", "/jobs?state=done", 400, "state: done is not allowed; queued, running"),
            ("GET", "/jobs?state=", 400, "state: (empty) is not allowed"),
            ("GET", "/jobs?state=queued,,", 400, "state"),
            ("GET", "/jobs?limit=0", 400, "limit: 0 is not allowed; an integer from 1 to 100"),
            ("GET", "/jobs?limit=101", 400, "limit"), ("GET", "/jobs?limit=1.5", 400, "limit"),
            ("GET", "/jobs?limit=99999999999999999999", 400, "limit"),
            ("GET", "/jobs?limit=1&limit=2", 400, "given twice"),
            ("GET", "/jobs?after=nope", 400, "after: nope is not allowed; the id of a job"),
            ("GET", "/jobs?page=2", 400, "query: page is not allowed; one of state, type, limit, after"),
            ("GET", "/jobs?type=" + "x" * 300, 400, "at most 255 bytes"),
            ("GET", f"/jobs/{job_id}?wait=301", 400, "wait: 301 is not allowed; an integer from 0 to"),
            ("GET", f"/jobs/{job_id}?wait=-1", 400, "wait"), ("GET", f"/jobs/{job_id}?foo", 400, "query"),
            ("GET", f"/jobs/{job_id}/events?after=x", 400, "after: x is not allowed"),
            ("POST", f"/jobs/{job_id}/cancel?now", 400, "no query here"),
            ("GET", "/jobs/", 404, "there is no job"), ("GET", "/jobs/" + "a" * 500, 404, "no job aaaa"),
            ("GET", f"/jobs/{job_id}/nope", 404, "there is no job"),
            ("GET", f"/jobs/{job_id}/nope/events", 404, "there is no job"),
            ("GET", "/jobs//events", 404, "there is no job"),
            ("POST", f"/jobs/{job_id}", 405, "does not have this method"), ("POST", "/jobs", 405, "does not have this method"),
            ("GET", f"/jobs/{job_id}/cancel", 405, "does not have this method"),
            ("GET", "/train", 405, "does not have this method"),
        ]
        for method, path, status, words in table:
            r = d.request(method, path)
            check(r.status == status and words in r.error()["message"], f"{path}: {r.status} {r.body}")
        r = d.get(f"/jobs/{job_id}/events", {"Last-Event-ID": "1x"})
        check(r.status == 400 and r.error()["param"] == "Last-Event-ID", f"{r.status} {r.body}")
        bodies = [
            ('{"name": "a", "dataset": "fake", "rnk": 1}', {}, 400, "rnk"), ('{}', {}, 400, "name"),
            ('{"name": "a", "dataset": "fake", "rank": 0}', {}, 400, "rank: 0 is not allowed"),
            ('{"name": "a", "dataset": "fake", "mixed_precision": "fp8"}', {}, 501, "fp8"),
            ('{"name": "a", "dataset": "b", "max_train_steps": 1}', {}, 400, "dataset: b is not allowed"),
            ('{"name": "a"', {}, 400, "not valid JSON"), ("", {}, 400, "JSON"), ("[]", {}, 400, "object"),
            ('{"name": "a", "name": "b"}', {}, 400, "duplicate"),
            ('{"name": "a"}', {"Content-Type": "text/plain"}, 415, "Content-Type"),
            ('{"name": "a"}', {"Idempotency-Key": "a b"}, 400, "Idempotency-Key: a b is not allowed"),
            ('{"name": "a"}', {"Idempotency-Key": "k" * 256}, 400, "at most 255"),
            ('{"name": "%s"}' % ("x" * (1 << 20)), {}, 413, "at most 1048576 bytes"),
        ]
        for body, headers, status, words in bodies:
            r = d.request("POST", "/train", body, {**JSON, **headers})
            check(r.status == status and words in r.error()["message"], f"{body[:30]}: {r.status} {r.body}")
        check(len(d.get("/jobs").json()["jobs"]) == 1, "refused orders make no job")
        print(f"{len(table) + len(bodies) + 1} wrong requests")


def sigterm_gives_back_and_ends_streams(folder):
    with Jobs(folder) as d:
        job_id = d.start({"steps": 600, "step_ms": 5, "checkpoint_every": 0})
        d.gets_to_step(job_id, 20)
        source = EventSource(d, f"/jobs/{job_id}/events")
        source.open()
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(d.job(job_id, "?wait=60")))
        waiter.start()
        check(wait_until(lambda: read(d)["latentd_job_watchers"] == 2), "both clients wait")
        begun = time.monotonic()
        d.process.terminate()
        source.all()
        waiter.join(30)
        check(answers and answers[0]["state"] in ("running", "queued"),
              f"the waiting client is answered when the daemon stops: {answers}")
        check(d.process.wait(30) == 0, "SIGTERM ends the daemon with status 0")
        took = time.monotonic() - begun
        check(took < 30,
              f"the daemon stopped after {took} s, although a client waited with ?wait=60")
    with Jobs(folder) as d:
        end = d.job(job_id, "?wait=30")
        check(end["state"] == "succeeded" and end["attempts"] == 2, f"{end}")
        steps = [json.loads(e.data)["step"] for e in follow(d, job_id) if e.kind == "progress"]
        check(steps == sorted(set(steps)), f"no step was made twice: {steps}")


def last_event_id_works_across_restarts(folder):
    """One EventSource follows a job through a regular end of the daemon, kills, and a broken
    connection."""
    port = None
    events, source = [], None
    thread = None
    for restart in range(4):
        with Jobs(folder, listen=f"127.0.0.1:{port or 0}") as d:
            port = d.port
            if restart == 0:
                job_id = d.start({"steps": 120, "step_ms": 15, "checkpoint_every": 10})
                source = EventSource(d, f"/jobs/{job_id}/events", 0)
                thread = threading.Thread(target=lambda: events.extend(source.follow(60)))
                thread.start()
            source.daemon = d
            if restart < 3:
                d.gets_to_step(job_id, 20 * (restart + 1) + 5)
                if restart == 1:
                    d.process.terminate()
                else:
                    d.process.kill()
                d.process.wait()
            else:
                thread.join(60)
                kept = follow(d, job_id)
                end = d.job(job_id)
    numbers = [e.number for e in events]
    check(numbers == list(range(1, len(numbers) + 1)),
          f"each event came once and in order: {numbers}")
    check([(e.number, e.kind, e.data) for e in events] == [(e.number, e.kind, e.data) for e in kept],
          "the streamed events equal the stored ones")
    check(end["state"] == "succeeded" and end["attempts"] == 4, f"{end}")
    print(f"{len(events)} events through {end['attempts'] - 1} restarts, none missed, none twice")


def kill9_loses_nothing_acknowledged(folder, rounds=8):
    """Clients enqueue while one job is running. The daemon is killed at random moments."""
    rng = random.Random(20261122)
    acknowledged = []
    with Jobs(folder) as d:
        long = d.start({"steps": 400, "step_ms": 2, "checkpoint_every": 5})
        acknowledged.append(long)
        port = d.port
        d.process.kill()
        d.process.wait()
    for n in range(rounds):
        with Jobs(folder, listen=f"127.0.0.1:{port}") as d:
            def enqueue():
                try:
                    while True:
                        r = d.train({"steps": 1, "step_ms": 1})
                        if r.status != 202:
                            break
                        acknowledged.append(r.json()["id"])
                        time.sleep(0.01)
                except (OSError, ValueError):
                    pass  # it is dead
                except Exception as e:  # an incomplete answer does not count
                    if "IncompleteRead" not in repr(e) and "RemoteDisconnected" not in repr(e) and \
                            "BadStatusLine" not in repr(e):
                        raise
            threads = [threading.Thread(target=enqueue) for _ in range(3)]
            for t in threads:
                t.start()
            time.sleep(rng.uniform(0.02, 0.25))
            d.process.kill()
            d.process.wait()
            for t in threads:
                t.join()
    with Jobs(folder) as d:
        for job_id in acknowledged:
            check(d.job(job_id, "?wait=30")["state"] == "succeeded", f"{job_id}")
        check(d.job(long)["step"] == 400, "the long job made all its steps")
    print(f"{rounds} kills, {len(acknowledged)} acknowledged jobs, all done")


def a_job_that_kills_the_daemon_is_given_up(folder):
    with Jobs(folder) as d:
        # Step 15 comes after 0.6 s, so that POST /train is answered before the daemon is killed.
        job_id = d.start({"steps": 100, "step_ms": 40, "checkpoint_every": 10, "kill_at": 15})
        check(wait_until(lambda: d.process.poll() is not None), "the job kills the daemon")
        command = d.command
    kills, strikes = 1, 0
    while strikes < 5 and kills < 50:  # a report of a new highest step resets them
        p = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        check(p.returncode == -9, f"the job kills the restarted daemon, status {p.returncode}")
        kills += 1
        db = sqlite3.connect(folder + "/jobs.sqlite")
        strikes = db.execute("SELECT strikes FROM job").fetchone()[0]
        db.close()
    with Jobs(folder) as d:
        end = d.job(job_id)
        check(end["state"] == "failed" and "the daemon ended 5 times" in end["error"]["message"], f"{end}")
        check(d.job(d.start({"steps": 1}), "?wait=20")["state"] == "succeeded",
              "other jobs are run")
    print(f"given up after {kills} kills")
    check(5 <= kills < 50, f"{kills} kills")


def no_folder_no_jobs(_):
    with Daemon(executable) as d:
        for method, path in (("GET", "/jobs"), ("GET", "/jobs/a"), ("POST", "/jobs/a/cancel"),
                             ("GET", "/jobs/a/events")):
            r = d.request(method, path)
            check(r.status == 404 and "--state-dir" in r.error()["message"], f"{path}: {r.body}")
        r = d.request("POST", "/train", "{}", JSON)
        check(r.status == 404 and "--state-dir" in r.error()["message"], f"{r.body}")


def refused(folder):
    p = subprocess.run([executable, "serve", "--model", "fake", "--listen", "127.0.0.1:0", "--state-dir",
                        folder], capture_output=True, text=True, timeout=30)
    return p.returncode, p.stderr


def two_daemons_never_share_a_folder(folder):
    with Jobs(folder) as d:
        status, log = refused(folder)
        check(status == 1 and f"in use by another daemon, process {d.process.pid}" in log, f"{status} {log}")
        check(d.start({"steps": 1}), "the first daemon still accepts jobs")
    with open(folder + "/file", "w"):
        pass
    for path, words in ((folder + "/file", "is not a folder"), ("/proc/self/none", "/proc/self/none"),
                        (folder + "/a/b", "No such file")):
        status, log = refused(path)
        check(status == 1 and words in log and "--state-dir" in log, f"{path}: {status} {log}")


def a_damaged_file_leaves_the_pictures(folder):
    with Jobs(folder) as d:
        d.start({"steps": 1})
    with open(folder + "/jobs.sqlite", "r+b") as f:
        f.write(b"x" * 5000)
    with Jobs(folder) as d:
        check(d.generate({"prompt": "a"}).status == 200, "the daemon draws")
        r = d.get("/jobs")
        check(r.status == 500 and "jobs.sqlite is damaged" in r.error()["message"], f"{r.status} {r.body}")
        check(d.train({}).status == 500, "no job is accepted")
        check("no jobs are taken" in d.read_log(), "the log says that no jobs are accepted")


def a_full_disk_is_survived(folder):
    with Jobs(folder) as d:
        running = d.start({"steps": 100, "step_ms": 10, "checkpoint_every": 50})
        d.gets_to_step(running, 3)
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        r = d.train({})
        check(r.status == 507 and r.error()["code"] == "disk_full" and "jobs.sqlite" in r.error()["message"],
              f"{r.status} {r.body}")
        check(d.generate({"prompt": "a"}).status == 200,
              "pictures are drawn while the disk is full")
        check(d.job(running)["state"] == "running",
              "a stored job can be read while the disk is full")
        # The job fails at its checkpoint, half a second after its start. There is no room to write
        # the failure to the job's row or to the log.
        time.sleep(5)
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        end = d.job(running, "?wait=20")
        check(end["state"] == "failed" and end["error"]["code"] == "disk_full" and ".step" in
              end["error"]["message"], f"{end}")
        d.ask(running, "resume")
        check(d.job(running, "?wait=20")["state"] == "succeeded",
              "once the disk has space, the failed job can be resumed")


def a_cancel_is_heard_while_the_disk_is_full(folder):
    with Jobs(folder) as d:
        running = d.start({"steps": 100000, "step_ms": 10, "checkpoint_every": 100000})
        d.gets_to_step(running, 3)
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        r = d.request("POST", f"/jobs/{running}/cancel")
        check(r.status == 507 and "is asked to stop" in r.error()["message"], f"{r.status} {r.body}")
        job = d.job(running)
        check(job["state"] == "running" and job["asked_to"] == "cancel", f"{job}")
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        end = d.job(running, "?wait=20")
        check(end["state"] == "cancelled" and end["step"] < 100000, f"{end['state']} at step {end['step']}")


GROUPS = {
    "api": [
        a_job_goes_from_the_request_to_its_end,
        a_job_can_be_told_to_pause_and_go_on,
        a_job_can_be_cancelled_and_deleted,
        lists_come_in_pages,
        a_key_makes_a_request_safe_to_repeat,
        events_tell_everything_once,
        waiting_clients_cost_no_threads_and_are_bounded,
        a_client_is_told_what_it_missed,
        wrong_requests_say_what_is_wrong,
        no_folder_no_jobs,
    ],
    "faults": [
        a_quiet_stream_shows_life_and_a_dead_client_is_noticed,
        a_slow_client_costs_one_buffer,
        sigterm_gives_back_and_ends_streams,
        last_event_id_works_across_restarts,
        kill9_loses_nothing_acknowledged,
        a_job_that_kills_the_daemon_is_given_up,
        two_daemons_never_share_a_folder,
        a_damaged_file_leaves_the_pictures,
        a_full_disk_is_survived,
        a_cancel_is_heard_while_the_disk_is_full,
    ],
}
memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
for promise in GROUPS[sys.argv[2]]:
    if len(sys.argv) > 3 and promise.__name__ not in sys.argv[3:]:
        continue
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=memory) as state:
        promise(state)
    print(f"{promise.__name__}: {time.monotonic() - began:.1f} s", flush=True)
done()
