"""Uploads, unloads, loads and deletes adapters CYCLES times while clients draw. Every picture
must be, bit for bit, what the adapter version named in the answer draws alone; requests
without an adapter must draw the plain picture. Memory must stay flat, apart from the cache of
encoded texts: each version has its own texts, and a limit bounds them all. usage:
loras_soak.py EXECUTABLE MODEL CYCLES"""
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done  # noqa: E402
from lora_file import kohya_lora  # noqa: E402

executable, model, cycles = sys.argv[1], sys.argv[2], int(sys.argv[3])
CLIENTS = 3
NAMES = ("left", "right")
FILES = [kohya_lora(model, seed, rank=rank) for seed, rank in ((1, 4), (2, 8), (3, 2))]
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 2,
        "guidance_scale": 2.5, "output": "latent"}


class Soak:
    def __init__(self, daemon):
        self.daemon = daemon
        self.file_of = {}  # version: index into FILES
        self.answers = {}  # (version, weight), or None: set of latents seen
        self.counted = {"drawn": 0, "refused": 0}
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def change(self, method, name, body=None, wanted=(200, 201, 204)):
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        r = self.daemon.request(method, "/loras/" + name, body, {"Content-Type": kind} if body else {})
        check(r.status in wanted, f"{method} {name}: {r.status} {r.body[:200]}")
        return r

    def put(self, name, index):
        version = self.change("PUT", name, FILES[index]).json()["version"]
        with self.lock:
            self.file_of[version] = index

    def draw(self, **fields):
        """Returns the picture's latents and the adapter it was drawn with: None or (version,
        weight). Returns (response, None) on an error."""
        r = self.daemon.generate({**DRAW, **fields})
        if r.status != 200:
            return r, None
        answer = r.json()
        used = [(used["version"], used["weight"]) for used in answer.get("loras") or []]
        return answer["images"][0]["b64_latent"], used[0] if used else None

    def client(self, number):
        try:
            self.draw_on(number)
        except Exception as e:  # a thread would not report it
            check(False, f"client {number}: {e!r}")

    def draw_on(self, number):
        """Draws with the first adapter, with the second, and without one, in turn. Only "right"
        may be refused, because only "right" is deleted."""
        turn = number
        while not self.stop.is_set():
            turn += 1
            name = (*NAMES, None)[turn % 3]
            latents, used = self.draw(loras=[{"name": name, "weight": 0.8}] if name else [])
            with self.lock:
                if isinstance(latents, str):
                    self.counted["drawn"] += 1
                    self.answers.setdefault(used, set()).add(latents)
                else:
                    self.counted["refused"] += 1
                    error = latents.error()
                    check(latents.status == 400 and error.get("param") == "loras[0].name" and
                          name == "right", f"{name}: {latents.status} {latents.body[:300]}")

    def cycle(self, turn):
        """Replaces one adapter. In some turns also unloads or loads it, rescans the folder, or
        deletes it and uploads it again."""
        name = NAMES[turn % 2]
        self.put(name, turn % len(FILES))
        if turn % 3 == 0:
            self.change("POST", name, json.dumps({"loaded": False}))
        if turn % 4 == 1:
            self.change("POST", name, json.dumps({"loaded": True}))
        if turn % 7 == 0:
            check(self.daemon.request("POST", "/loras/rescan").status == 200, "rescan")
        if turn % 10 == 9:  # these turns are odd, so this is "right"
            self.change("DELETE", name)
            self.put(name, turn % len(FILES))


def memory(daemon):
    """Returns the KiB of cached texts and the KiB of all other resident memory."""
    metrics = daemon.get("/metrics").body.decode()
    texts = int(re.search(r"^latentd_text_cache_bytes (\d+)$", metrics, re.M)[1]) // 1024
    return texts, daemon.rss_kb() - texts


def main():
    folder = tempfile.mkdtemp()
    with Daemon(executable, model, extra=["--dtype", "f32", "--lora-dir", folder,
                                          "--lora-memory", "64"]) as daemon:
        soak = Soak(daemon)
        alone = []
        for index in range(len(FILES)):
            soak.put("left", index)
            alone.append(soak.draw(loras=[{"name": "left", "weight": 0.8}])[0])
        plain = soak.draw(loras=[])[0]
        check(len({plain, *alone}) == 1 + len(FILES), "each file draws its own picture")
        soak.put("right", 0)
        clients = [threading.Thread(target=soak.client, args=(i,)) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        begun, resident = time.monotonic(), []
        for turn in range(cycles):
            # Limits the cycles to the pace of the drawing, so that a fast disk does not run ahead.
            while soak.counted["drawn"] * 5 < turn and all(client.is_alive() for client in clients):
                time.sleep(0.001)
            soak.cycle(turn)
            if turn % (cycles // 5) == cycles // 5 - 1:
                resident.append(memory(daemon))
        soak.stop.set()
        for client in clients:
            client.join()
        wrong = sum(seen != {plain if used is None else alone[soak.file_of[used[0]]]}
                    for used, seen in soak.answers.items())
        loaded = [lora for lora in daemon.get("/loras").json()["loras"] if lora["users"]]
        print(f"{cycles} cycles in {time.monotonic() - begun:.0f} s, {soak.counted['drawn']} pictures "
              f"of {len(soak.answers)} versions and none, {wrong} of these wrong, "
              f"{soak.counted['refused']} refused while their name was away; after each fifth "
              f"{', '.join(f'{texts} KiB of texts + {rest}' for texts, rest in resident)} resident")
        check(wrong == 0 and soak.counted["drawn"] > cycles // 10,
              "every picture is of the version that its answer names")
        check(soak.draw(loras=[])[0] == plain, "the base model draws as at the beginning")
        check(not loaded, f"no unused adapter stays loaded: {loaded}")
        # In the first fifth the heap of every thread grows to its full size. After that nothing may
        # grow.
        check(resident[4][1] <= resident[0][1] + 4096,
              "memory without the encoded texts does not grow")
        check(resident[4][0] <= 64 * 1024, "the encoded texts take at most TEXT_CACHE_BYTES")
    shutil.rmtree(folder)
    done()


main()
