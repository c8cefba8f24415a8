"""Measures how an attack on the daemon affects everybody else, and defines the limits for all
attacks.

A test of this folder starts a daemon, measures a bystander alone, begins its attack, measures the
bystander again and compares:

    with Daemon(...) as d:
        alone = measure(d)
        with_attack_under_way(...)
        judge("half-sent bodies", alone, measure(d))

GET /health must answer within a second, and a plain drawing and an order of a job may take twice as
long as alone. PATIENCE multiplies both limits. It is 1 on a quiet machine (scripts/soak attacks).
scripts/test runs other tests at the same time, so there it is 10: a busy machine passes, but a
daemon that hangs, refuses or starves clients does not.
"""
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check  # noqa: E402

HEALTH_S = 1.0
TIMES_ALONE = 2.0
FLOOR_S = 0.25  # shorter drawing times are mostly noise; twice this is always allowed
PATIENCE = float(os.environ.get("PATIENCE", "10"))
ROUNDS = 5 if PATIENCE < 2 else 3  # with wide limits fewer rounds suffice
DRAWING = {"prompt": "a boat", "num_inference_steps": 4, "width": 64, "height": 64, "seed": 1}


def real_drawing():
    """For a daemon with the bundled checkpoint. If PATIENCE is 1, a drawing may take only twice
    as long as alone. So drawings are made so long that noise cannot double their time."""
    if PATIENCE < 2:
        DRAWING["num_inference_steps"] = 60


class Times:
    def __init__(self):
        self.health, self.drawing, self.order = [], [], []
        self.refused = []  # answers other than 200 or 202

    def __str__(self):
        return ", ".join(f"{name} median {statistics.median(times):.3f} s, worst {max(times):.3f} s"
                         for name, times in (("/health", self.health), ("drawing", self.drawing),
                                             ("order", self.order)) if times)


def timed(times, refused, wanted, ask):
    begun = time.monotonic()
    try:
        r = ask()
        answer = r.status, r.body[:120]
    except OSError as e:
        r, answer = None, repr(e)
    times.append(time.monotonic() - begun)
    if not r or r.status != wanted:
        refused.append(answer)
    return r


def order(daemon):
    """Orders a drawing as a job and waits until it is done. Returns the answer to the order."""
    r = daemon.request("POST", "/generate?async=1", json.dumps(DRAWING),
                       {"Content-Type": "application/json"})
    if r.status == 202:
        job = daemon.get(f"/jobs/{r.json()['id']}?wait=60").json()
        check(job["state"] == "succeeded", f"the bystander's job is {job['state']}")
    return r


def measure(daemon, rounds=ROUNDS, orders=True):
    """Makes `rounds` rounds of requests, one after the other: GET /health, a drawing and, with
    `orders`, a job."""
    times = Times()
    for _ in range(rounds):
        timed(times.health, times.refused, 200, lambda: daemon.get("/health"))
        timed(times.drawing, times.refused, 200, lambda: daemon.generate(DRAWING))
        if orders:
            timed(times.order, times.refused, 202, lambda: order(daemon))
    return times


def judge(name, alone, during):
    """Checks the limits for the bystander and prints the times."""
    print(f"{name}: alone {alone}\n{name}: during {during}", flush=True)
    check(not during.refused,
          f"{name}: the bystander's requests are not refused: {during.refused[:3]}")
    check(max(during.health) < HEALTH_S * PATIENCE,
          f"{name}: GET /health takes at most {HEALTH_S * PATIENCE} s, not {max(during.health):.2f}")
    for what in ("drawing", "order"):
        before, now = getattr(alone, what), getattr(during, what)
        if not now:
            continue
        bar = TIMES_ALONE * PATIENCE * max(statistics.median(before), FLOOR_S)
        check(statistics.median(now) <= bar,
              f"{name}: a {what} takes {statistics.median(now):.2f} s; allowed: {bar:.2f}")


def ends_in_time(daemon, drain_timeout_s, name):
    """Sends SIGTERM during the attack: the process must end within --drain-timeout plus two
    seconds."""
    begun = time.monotonic()
    daemon.process.terminate()
    limit_s = drain_timeout_s + 2 * PATIENCE
    try:
        status = daemon.process.wait(limit_s + 60)
    except subprocess.TimeoutExpired:
        status = "still there"
    took = time.monotonic() - begun
    print(f"{name}: SIGTERM with --drain-timeout {drain_timeout_s}: {status} after {took:.1f} s")
    check(status == 0 and took < limit_s,
          f"{name}: SIGTERM ends the daemon within {limit_s} s with status 0, not {status} after {took:.1f} s")
