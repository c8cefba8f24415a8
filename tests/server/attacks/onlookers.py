"""Half of all connections follow one paused job and read nothing. Meanwhile drawings are
streamed, and other clients wait for jobs and follow their events. usage: onlookers.py
EXECUTABLE"""
import contextlib
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from bystander import DRAWING, ends_in_time, judge, measure  # noqa: E402
from daemon import Daemon, check, done, wait_until  # noqa: E402
from event_source import EventSource, Stream  # noqa: E402
from metrics import read  # noqa: E402

CONNECTIONS = 256  # base/limits.h: HTTP_CONNECTIONS
SHARE = CONNECTIONS // 4
DRAIN_S = 10


def paused_job(daemon):
    r = daemon.request("POST", "/generate?async=1", json.dumps({**DRAWING, "num_inference_steps": 900}),
                       {"Content-Type": "application/json"})
    job_id = r.json()["id"]
    check(daemon.request("POST", f"/jobs/{job_id}/pause").status == 200,
          "pausing the job is accepted")
    check(wait_until(lambda: daemon.get(f"/jobs/{job_id}").json()["state"] == "paused"),
          "the job pauses")
    return job_id


def follow(daemon, job_id, count):
    """Returns `count` onlookers that read nothing."""
    sockets = []
    for _ in range(count):
        sockets.append(daemon.connect())
        with contextlib.suppress(OSError):
            sockets[-1].sendall(f"GET /jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return sockets


def others_hear_of_theirs(daemon, job_id):
    stream = Stream(daemon, {**DRAWING, "stream": True})
    kinds = [event.kind for event in stream] if stream.streams else [stream.status, stream.body]
    check(kinds[0] == "queued" and kinds[-1] == "result",
          f"a drawing's events reach their client: {kinds}")
    other = daemon.request("POST", "/generate?async=1", json.dumps(DRAWING),
                           {"Content-Type": "application/json"}).json()["id"]
    r = daemon.get(f"/jobs/{other}?wait=60")
    check(r.status == 200 and r.json()["state"] == "succeeded",
          f"GET /jobs/ID?wait= of another job is answered: {r.status} {r.body[:99]}")
    source = EventSource(daemon, f"/jobs/{other}/events")
    check(source.open() == 200 and source.all()[0].json()["state"] == "succeeded",
          "the events of another job reach their client")
    check(daemon.get(f"/jobs/{job_id}?wait=1").status == 200,
          "GET /jobs/ID?wait= of the watched job is answered")
    print(f"a drawing's stream beside the onlookers: {kinds}")


with tempfile.TemporaryDirectory() as folder, \
        Daemon(sys.argv[1], "fake,step_ms=5",
               extra=["--state-dir", folder + "/state", "--drain-timeout", str(DRAIN_S)]) as d:
    alone = measure(d)
    followed = paused_job(d)
    onlookers = follow(d, followed, CONNECTIONS // 2)
    check(wait_until(lambda: read(d)["latentd_job_watchers"] == SHARE),
          f"{SHARE} of {len(onlookers)} onlookers stay connected")
    others_hear_of_theirs(d, followed)
    judge("onlookers", alone, measure(d))
    check(wait_until(lambda: read(d)["latentd_job_watchers"] <= SHARE),
          f"at most {SHARE} onlookers are connected in the end")
    ends_in_time(d, DRAIN_S, "onlookers")
    for s in onlookers:
        s.close()
done()
