"""Does everything at once for MINUTES: clients that wait for pictures, follow streams or fetch
them later, adapters that are replaced, checkpoints that are switched, one training job after
the other, clients that send garbage, send slowly or disconnect. Every picture must be, bit
for bit, what its checkpoint and its adapter version draw alone. Memory, threads and open
files must stay flat; they are measured in pauses without clients. usage: everything.py
EXECUTABLE MODEL MINUTES"""
import base64
import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import picture
from daemon import Daemon, check, done, generate_bytes, wait_until
from lora_file import kohya_lora

executable, bundled, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3])
PHASES = 6  # after each, all clients pause and the daemon is measured
GROWTH_MAX_KB = 24 << 10  # growth of resident memory without cached texts, second pause to last
JSON = {"Content-Type": "application/json"}
MODELS = ("plain", "merged")
FILES = [kohya_lora(bundled, seed, rank=rank) for seed, rank in ((1, 4), (2, 8), (3, 2))]
LONG = {"prompt": "a boat that nobody waits for", "num_inference_steps": 400, "width": 128, "height": 128}


def requests():
    """Returns request bodies that differ in every field that matters. Those with an adapter use
    the name "swapped"."""
    schedulers = ("ddim", "euler_ancestral", {"name": "dpmpp_2m", "use_karras_sigmas": True}, "unipc", "lcm", "heun")
    sizes = ((64, 64), (128, 64), (64, 128))
    for i in range(18):
        width, height = sizes[i % 3]
        yield {"prompt": ("a red house on green hills", "a blue boat at night", "")[i // 2 % 3] + " " * (i % 2),
               "negative_prompt": "snow" if i % 4 == 3 else "", "seed": i, "width": width, "height": height,
               "num_inference_steps": 1 + i % 5, "guidance_scale": (2.5, 1.0, 6.0)[i % 3],
               "scheduler": schedulers[i % 6], "output": "latent",
               "loras": [{"name": "swapped", "weight": 0.8}] if i % 2 else []}


REQUESTS = list(requests())


def pixels(png):
    """Returns a hash of a PNG's pixels, whatever its text chunks."""
    return hashlib.sha256(repr(picture.decode(png)).encode()).hexdigest()


class Truth:
    """What each request draws in a daemon that does nothing else. `latents` and `pictures` are
    {(checkpoint, index of the request, index of the adapter's file or None): result}."""

    def __init__(self, root):
        self.latents, self.pictures = {}, {}
        for model in MODELS:
            loras = tempfile.mkdtemp(dir=root)
            with Daemon(executable, f"{root}/models/{model}", extra=["--dtype", "f32", "--lora-dir", loras]) as d:
                for index, body in enumerate(REQUESTS):
                    for file in range(len(FILES)) if body["loras"] else (None,):
                        if file is not None:
                            d.request("PUT", "/loras/swapped", FILES[file], {"Content-Type": "application/octet-stream"})
                        for output, kept in (("latent", self.latents), ("png", self.pictures)):
                            r = d.generate({**body, "output": output})
                            check(r.status == 200, f"{body}: {r.status} {r.body[:300]}")
                            image = r.json()["images"][0]
                            kept[model, index, file] = image["b64_latent"] if output == "latent" else pixels(
                                base64.b64decode(image["b64_json"]))
        for kept in (self.latents, self.pictures):
            check(len(set(kept.values())) == len(kept), "no two requests draw the same picture")


class Everything:
    def __init__(self, daemon, truth, root):
        self.d, self.truth, self.root = daemon, truth, root
        self.go, self.over = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.busy = 0  # the number of clients in a turn
        self.counts = {}
        self.file_of = {}  # adapter version: index into FILES
        self.latest = 0    # the version uploaded last
        self.odd = {}      # the first wrong answer of each kind

    def count(self, what, wrong=None):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1
            if wrong:
                self.counts[what + ", wrong"] = self.counts.get(what + ", wrong", 0) + 1
                self.odd.setdefault(what, wrong)

    def repeat(self, turn, number, pause_s):
        """Starts a thread that calls turn(its random numbers) until the end, except in pauses."""
        dice = random.Random(number)

        def run():
            while not self.over.is_set():
                if not self.go.wait(0.2):
                    continue
                with self.lock:
                    self.busy += 1
                try:
                    turn(dice)
                except Exception as e:  # a thread would not report it
                    self.count(turn.__name__ + " raised", repr(e))
                with self.lock:
                    self.busy -= 1
                self.over.wait(pause_s * dice.random())
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def file_used(self, version):
        """Returns the index of the file that a version was made from. When another checkpoint is
        loaded, the last uploaded file gets a new version."""
        wait_until(lambda: version in self.file_of or self.latest > version, 10)
        with self.lock:
            return self.file_of[max(v for v in self.file_of if v <= version)]

    def judge(self, what, index, answer, truth, drawn):
        """Checks that the result is what the answer's checkpoint and adapter version draw."""
        used = answer.get("loras") or []
        file = self.file_used(used[0]["version"]) if used else None
        right = drawn == truth.get((answer["model"], index, file))
        self.count(what, None if right else f"request {index} on {answer['model']}, file {file}, {used}")

    def judge_latents(self, what, index, answer):
        self.judge(what, index, answer, self.truth.latents, answer["images"][0]["b64_latent"])

    def refused(self, what, status, body):
        """Checks that a valid request was refused only with an error that may happen during this
        test."""
        allowed = status in (429, 503) or (status == 400 and b"loras[0].name" in body)
        self.count(f"{what} refused", None if allowed else f"{status} {body[:300]}")

    # --- Clients that want pictures ---

    def drawn(self, dice):
        index = dice.randrange(len(REQUESTS))
        r = self.d.generate({**REQUESTS[index], "priority": dice.randint(-3, 3)})
        if r.status == 200:
            self.judge_latents("drawn", index, r.json())
        else:
            self.refused("drawn", r.status, r.body)

    def followed(self, dice):
        index = dice.randrange(len(REQUESTS))
        r = self.d.generate({**REQUESTS[index], "stream": True, "preview_every": dice.randint(0, 2)})
        if r.status != 200:
            return self.refused("followed", r.status, r.body)
        events = [dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
                  for block in r.body.decode().split("\n\n") if block and not block.startswith(":")]
        last = events[-1]
        if last["event"] == "result":
            self.judge_latents("followed", index, json.loads(last["data"]))
        else:
            self.refused("followed", json.loads(last["data"])["error"].get("status", 503), last["data"].encode())

    def come_back(self, dice):
        """Orders a drawing as a job and fetches the picture later. It must be of the checkpoint
        named in the order, whatever is loaded meanwhile. The job may fail only because its
        adapter was replaced or deleted before it began."""
        index = dice.randrange(len(REQUESTS))
        body = {**REQUESTS[index], "output": "png"}
        r = self.d.request("POST", "/generate?async=1", json.dumps(body), JSON)
        if r.status != 202:
            return self.refused("jobs", r.status, r.body)
        accepted = r.json()
        job = self.ended(accepted["id"], 180)
        if job["state"] != "succeeded":
            gone = job["state"] == "failed" and "swapped" in job["error"]["message"]
            return self.count("jobs failed", None if gone else json.dumps(job))
        r = self.d.get(f"/jobs/{job['id']}/images/0.png")
        if job["result"]["model"] != accepted["request"]["model"] or r.status != 200:
            return self.count("jobs", f"{accepted} became {job}, {r.status} {r.body[:300]}")
        self.judge("jobs", index, job["result"], self.truth.pictures, pixels(r.body))

    def ended(self, id, seconds):
        """Returns a job once it has ended, or as it is after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            job = self.d.get(f"/jobs/{id}?wait=10").json()
            if job["state"] not in ("queued", "running") or time.monotonic() > end:
                return job

    # --- Changes of adapters and checkpoints ---

    def swapped(self, dice):
        index = dice.randrange(len(FILES))
        r = self.d.request("PUT", "/loras/swapped", FILES[index], {"Content-Type": "application/octet-stream"})
        if r.status in (200, 201):
            with self.lock:
                self.latest = r.json()["version"]
                self.file_of[self.latest] = index
        self.count("swapped", None if r.status in (200, 201, 503) else f"{r.status} {r.body[:300]}")
        if dice.random() < 0.1:
            r = self.d.request("DELETE", "/loras/swapped")
            self.count("taken away", None if r.status in (200, 204) else f"{r.status} {r.body[:300]}")

    def switched(self, dice):
        name = dice.choice(MODELS)
        r = self.d.request("PUT", "/model", json.dumps({"name": name}), JSON)
        ended = wait_until(self.switch_is_over, 180)
        last = self.d.get("/models").json()
        right = r.status in (200, 202) and ended and last["current"] == name
        self.count("switched", None if right else f"{r.status} {r.body[:300]} {last['switch']}")

    def switch_is_over(self):
        last = self.d.get("/models").json()["switch"]
        return last is None or last["state"] in ("done", "failed")

    def trained(self, dice):
        name = f"trained{self.counts.get('trained', 0)}"
        job = {"name": name, "dataset": "stripes", "resolution": 64, "rank": 4, "train_batch_size": 2,
               "max_train_steps": 40, "seed": 5, "checkpointing_steps": 15, "report_to": "none"}
        r = self.d.request("POST", "/train", json.dumps(job), JSON)
        if r.status != 202:
            return self.refused("trained", r.status, r.body)
        id = r.json()["id"]
        told = self.ended(id, 600)  # it is slow while requests are drawn
        usable = told["state"] == "succeeded" and self.d.generate(
            {**REQUESTS[0], "loras": [{"name": name}]}).status in (200, 429, 503)
        self.count("trained", None if usable else json.dumps(told)[:400])
        self.d.request("POST", f"/jobs/{id}/cancel")  # in case it still runs
        self.d.request("DELETE", "/loras/" + name)
        self.d.request("DELETE", "/jobs/" + id)

    # --- Clients that misbehave ---

    def send(self, data, seconds):
        try:
            with self.d.connect() as s:
                s.sendall(data)
                s.settimeout(max(seconds, 0.001))
                s.recv(4096)
        except (socket.timeout, ConnectionError):
            pass

    def left(self, dice):
        self.send(generate_bytes({**LONG, "stream": dice.random() < 0.3}), 0.4 * dice.random())
        self.count("left")

    def garbage(self, dice):
        body = bytearray(json.dumps(dice.choice(REQUESTS)).encode())
        for _ in range(dice.randint(1, 8)):
            body[dice.randrange(len(body))] = dice.randrange(256)
        paths = (b"/generate", b"/train", b"/model", b"/loras/swapped", b"/sdapi/v1/txt2img", b"/v1/images/generations")
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        whole = head % (dice.choice(paths), len(body)) + bytes(body)
        cut = whole[:dice.randrange(len(whole))]
        self.send(dice.choice((whole, whole, cut, dice.randbytes(dice.randrange(1, 3000)))), 0.3)
        self.count("garbage")

    def trickled(self, dice):
        data = generate_bytes(REQUESTS[0])
        try:
            with self.d.connect() as s:
                for byte in data[:dice.randrange(10, 60)]:
                    s.sendall(bytes([byte]))
                    time.sleep(0.05)
        except ConnectionError:
            pass
        self.count("trickled")

    # --- Measuring ---

    def settle(self):
        """Brings the daemon into the same state before each measurement: a checkpoint just
        loaded that has drawn one picture. Otherwise its memory depends on the pictures drawn
        before."""
        for name in reversed(MODELS):
            self.d.request("PUT", "/model", json.dumps({"name": name}), JSON)
            check(wait_until(self.switch_is_over, 60),
                  f"the switch to {name} ends: {self.d.get('/models').body}")
        check(self.d.generate(REQUESTS[0]).status == 200, "the new checkpoint draws")

    def measure(self):
        self.go.clear()
        quiet = wait_until(lambda: self.busy == 0 and self.d.depth() == 0, 300)
        check(quiet,
              f"all clients and the queue come to an end: {self.busy} clients work, {self.d.get('/info').json()['queue']}")
        self.settle()
        time.sleep(2)  # until leftover connections are closed
        metrics = self.d.get("/metrics").body.decode()
        texts = int(re.search(r"^latentd_text_cache_bytes (\d+)$", metrics, re.M)[1]) // 1024
        with open(f"/proc/{self.d.process.pid}/status") as f:
            threads = int(re.search(r"Threads:\s+(\d+)", f.read())[1])
        return self.d.rss_kb() - texts, threads, self.d.open_files(), texts


def prepare(root):
    shutil.copytree(bundled, root + "/models/plain", ignore=shutil.ignore_patterns("loras", "train"))
    subprocess.run([executable, "lora", "merge", bundled, root + "/models/merged", "--lora",
                    bundled + "/loras/rainbow.safetensors:1"], check=True, capture_output=True)
    os.makedirs(root + "/sets/stripes")
    os.mkdir(root + "/loras")
    for i in range(4):
        with open(f"{root}/sets/stripes/{i}.png", "wb") as f:
            f.write(picture.encode(64, 64, lambda x, y, i=i: (40 * i, 200 if (x + i * y) // 8 % 2 else 60, 90)))
        with open(f"{root}/sets/stripes/{i}.txt", "w", encoding="utf-8") as f:
            f.write(f"stripes number {i}\n")


def main():
    root = tempfile.mkdtemp()
    prepare(root)
    truth = Truth(root)
    with Daemon(executable, root + "/models/plain", extra=[
            "--dtype", "f32", "--lora-dir", root + "/loras", "--model-root", root + "/models", "--state-dir",
            root + "/state", "--dataset-root", root + "/sets", "--max-queue", "24"]) as d:
        e = Everything(d, truth, root)
        crowd = [(e.drawn, 0.2), (e.drawn, 0.2), (e.drawn, 0.5), (e.followed, 0.5), (e.come_back, 1), (e.swapped, 1),
                 (e.switched, 20), (e.trained, 3), (e.left, 1), (e.left, 1), (e.garbage, 0.3), (e.trickled, 1)]
        threads = [e.repeat(turn, number, pause) for number, (turn, pause) in enumerate(crowd)]
        measured = []
        for phase in range(PHASES):
            e.go.set()
            time.sleep(60 * minutes / PHASES)
            measured.append(e.measure())
            rss, count, files, texts = measured[-1]
            print(f"{(phase + 1) * minutes / PHASES:.1f} min: {rss} KiB resident beside {texts} of texts, {count} "
                  f"threads, {files} open files", flush=True)
        e.over.set()
        for thread in threads:
            thread.join()
        print("; ".join(f"{what} {count}" for what, count in sorted(e.counts.items())))
        for what, wrong in e.odd.items():
            check(False, f"{what}: {wrong}")
        for what in ("drawn", "followed", "jobs", "swapped", "switched", "trained", "left", "garbage", "trickled"):
            check(e.counts.get(what, 0) > 0, f"{what} happened")
        check(measured[-1][0] <= measured[1][0] + GROWTH_MAX_KB,
              f"memory does not grow: {[m[0] for m in measured]} KiB")
        check(max(m[1] for m in measured[1:]) <= measured[1][1],
              f"the number of threads does not grow: {[m[1] for m in measured]}")
        check(max(m[2] for m in measured[1:]) <= measured[1][2] + 1,
              f"the number of open files does not grow: {[m[2] for m in measured]}")
    shutil.rmtree(root)
    done()


main()
