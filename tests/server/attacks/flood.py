"""One caller floods the daemon with 200 requests while another asks for one picture at a time.
The second is never refused and waits at most three times as long as alone. Tried with two
keys (also with a flood that repeats refused requests), with two addresses without keys, and
with jobs of pictures. usage: flood.py EXECUTABLE"""
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from bystander import FLOOR_S, PATIENCE, ends_in_time  # noqa: E402
from daemon import Daemon, check, done, wait_until  # noqa: E402

FLOOD = 200
ROUNDS = 5
TIMES_ALONE = 3
DRAIN_S = 5
DRAWING = {"prompt": "a boat", "num_inference_steps": 12, "width": 64, "height": 64, "seed": 1}
EXECUTABLE = sys.argv[1]


class Caller:
    """A client with an API key or with its own address."""

    def __init__(self, daemon, key=None, address="127.0.0.1"):
        self.daemon, self.address = daemon, address
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def request(self, method, path, fields=None):
        c = http.client.HTTPConnection(self.daemon.host, self.daemon.port, timeout=120,
                                       source_address=(self.address, 0))
        try:
            c.request(method, path, json.dumps(fields) if fields else None, self.headers)
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def draws(self):
        status, _, body = self.request("POST", "/generate", DRAWING)
        check(status == 200, f"{status} {body[:200]}")

    def orders(self):
        status, _, body = self.request("POST", "/generate?async=1", DRAWING)
        check(status == 202, f"{status} {body[:200]}")
        job = json.loads(self.request("GET", f"/jobs/{json.loads(body)['id']}?wait=120")[2])
        check(job["state"] == "succeeded", f"the job is {job['state']}")


class Flood:
    """200 requests at once. With `again`, refused ones are repeated until the flood ends."""

    def __init__(self, caller, again):
        self.caller, self.again, self.ended = caller, again, False
        self.refused, self.longest_s = 0, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run) for _ in range(FLOOD)]

    def run(self):
        while not self.ended:
            try:
                status, headers, _ = self.caller.request("POST", "/generate", DRAWING)
            except OSError:  # the daemon made room for a newer connection, or is ending
                status, headers = 0, {}
            with self.lock:
                if status == 429:
                    self.refused += 1
                    self.longest_s = max(self.longest_s, int(headers["Retry-After"]))
            if not self.again and status != 200:
                return
            if status != 200:
                time.sleep(0.5)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *error):
        self.ended = True
        for t in self.threads:
            t.join()
        return False


def timed(ask):
    times = []
    for _ in range(ROUNDS):
        begun = time.monotonic()
        ask()
        times.append(time.monotonic() - begun)
    return times


def judge(name, alone, beside):
    bar = TIMES_ALONE * PATIENCE * max(statistics.median(alone), FLOOR_S / TIMES_ALONE)
    text = (f"{name}: alone {statistics.median(alone):.3f} s, beside the flood {statistics.median(beside):.3f} s "
            f"(worst {max(beside):.3f}), at most {bar:.3f}")
    print(text, flush=True)
    check(statistics.median(beside) <= bar, text)


def key_of(folder, name, *more):
    return subprocess.run([EXECUTABLE, "key", name, "--api-keys", f"{folder}/keys", *more], capture_output=True,
                          text=True, check=True).stdout.strip()


def drawings(name, daemon, one, other, again):
    alone = timed(one.draws)
    with Flood(other, again) as flood:
        wait_until(lambda: flood.refused >= FLOOD // 4)
        judge(name, alone, timed(one.draws))
        ends_in_time(daemon, DRAIN_S, name)
    check(flood.refused > 0, f"{name}: some requests of the flood are refused")
    # 64 requests are waiting, each of 12 steps of 10 ms, and the two callers take turns. So
    # Retry-After must be several seconds.
    print(f"{name}: {flood.refused} refusals, Retry-After up to {flood.longest_s} s")
    check(flood.longest_s >= 3,
          f"{name}: Retry-After grows with the queue, to at least 3 s, not {flood.longest_s} s")


def daemon(*more):
    return Daemon(EXECUTABLE, "fake,step_ms=10", extra=["--drain-timeout", str(DRAIN_S), *more])


with tempfile.TemporaryDirectory() as folder:
    alice, bob = key_of(folder, "alice"), key_of(folder, "bob")
    keys = ("--api-keys", f"{folder}/keys")
    for again in (False, True):
        with daemon(*keys) as d:
            drawings(f"two keys{', sent again' if again else ''}", d, Caller(d, alice), Caller(d, bob), again)
    with daemon() as d:
        drawings("two addresses", d, Caller(d), Caller(d, address="127.0.0.2"), True)
    with daemon(*keys, "--state-dir", f"{folder}/state") as d:
        one, other = Caller(d, alice), Caller(d, bob)
        alone = timed(one.orders)
        ids = [json.loads(other.request("POST", "/generate?async=1", DRAWING)[2])["id"] for _ in range(FLOOD)]
        judge("jobs of two keys", alone, timed(one.orders))
        states = [json.loads(other.request("GET", f"/jobs/{i}")[2])["state"] for i in ids]
        print(f"of the flood's {FLOOD} jobs {states.count('succeeded')} are done by then")
        check(states.count("queued") > FLOOD // 4,
              f"over a quarter of the flood's jobs still wait: {states.count('queued')}")
        ends_in_time(d, DRAIN_S, "jobs of two keys")
done()
