"""The walk of docs/training.md: its commands, run as they stand, from a folder of 20 pictures to an adapter in use;
then pictures of prompts that the job never saw are drawn with the adapter and without it, and scored. The style is a
green frame around scenes that the daemon draws; held out are scenes that the bundled checkpoint never saw either.
usage: training_walk.py EXECUTABLE MODEL"""
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import picture
from daemon import Daemon, check, done, wait_until

executable, model = (os.path.abspath(path) for path in sys.argv[1:3])
DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/training.md")
sys.path.append(os.path.join(model, "train"))

import captions  # noqa: E402
import palette  # noqa: E402

SIZE, FRAME, GREEN = 128, 12, palette.COLOURS["green"]
TRAINED, HELD_OUT = 20, 12
# A frame's median distance from its colour; skies are 190 and more away from it.
FRAMED = 150
# Shares of the held-out pictures, in percent.
FRAMED_BAR, COLOUR_BAR, BEFORE_BAR = 80, 75, 30


# --- scenes, in words and in pictures ---

def scenes():
    """(prompts to learn from, held-out scenes), each {"prompt", "seed", attributes}; always the same ones."""
    draw, trained, held_out = random.Random(5), [], []
    while len(trained) < TRAINED or len(held_out) < HELD_OUT:
        ground = draw.choice(list(palette.GROUNDS))
        scene = {"sky": draw.choice(list(palette.SKIES)), "ground": ground,
                 "object": draw.choice(("boat", "lighthouse") if ground == "sea" else ("house", "castle")),
                 # No white house in the snow, no green one on the hills.
                 "colour": draw.choice(("red", "blue", "yellow", "purple", "orange")),
                 "place": draw.choice(list(palette.PLACES)), "body": "none", "side": "none", "trees": 0, "clouds": 0,
                 "mountains": 0}
        scene["prompt"], _ = captions.caption(scene, draw, whole=True)
        scene["seed"] = len(trained) + 100 * len(held_out)
        key = " ".join((scene["sky"], ground, scene["colour"], scene["place"]))
        # share/tiny-sd/train/scenes.py: these were not trained on.
        kept = held_out if zlib.crc32(key.encode()) % 10 == 0 else trained
        if len(kept) < (HELD_OUT if kept is held_out else TRAINED):
            kept.append(scene)
    return trained, held_out


def is_frame(x, y):
    return min(x, y, SIZE - 1 - x, SIZE - 1 - y) < FRAME


def distance(a, b):
    return sum(abs(p - q) for p, q in zip(a, b))


def draw(daemon, prompt, seed, loras=()):
    r = daemon.generate({"prompt": prompt, "seed": seed, "guidance_scale": 2.5, "width": SIZE, "height": SIZE,
                         "loras": list(loras)}, {"Accept": "image/png"})
    check(r.status == 200, f"{prompt}: {r.status} {r.body[:200]}")
    return r.body


def make_pictures(daemon, folder, trained):
    for i, scene in enumerate(trained):
        _, _, rows = picture.decode(draw(daemon, scene["prompt"], scene["seed"]))
        framed = picture.encode(SIZE, SIZE, lambda x, y, rows=rows: GREEN if is_frame(x, y) else rows[y][x])
        with open(os.path.join(folder, f"{i + 1}.png"), "wb") as f:
            f.write(framed)
        with open(os.path.join(folder, f"{i + 1}.txt"), "w", encoding="utf-8") as f:
            f.write(scene["prompt"] + ", in a green frame\n")


def judge(png, scene):
    """(how far the frame is from its colour, in the median; whether the thing in it has the colour asked for)"""
    width, height, rows = picture.decode(png)
    assert (width, height) == (SIZE, SIZE)
    pixels = [(x, y, rows[y][x]) for y in range(SIZE) for x in range(SIZE)]
    frame = statistics.median(distance(p, GREEN) for x, y, p in pixels if is_frame(x, y))
    colour = palette.object_colour(scene["colour"], scene["sky"])
    inside = sum(distance(p, colour) < 80 for x, y, p in pixels if not is_frame(x, y))
    return frame, inside >= 50


# --- the document's commands ---

def blocks(text):
    return text.split("```\n")[1::2]


def curl_commands(text):
    return [c.strip() for b in blocks(text) if b.startswith("curl") for c in re.split(r"^(?=curl)", b, flags=re.M) if c]


def commands():
    """(what comes before the daemon, its command, those of curl in the walk, the one without a daemon, the order for a
    whole model)"""
    with open(DOCUMENT, encoding="utf-8") as f:
        walk, rest = f.read().split("## Without a daemon\n")
    alone, whole = rest.split("## All of a model\n")
    serve = [b.strip().split("\n") for b in blocks(walk) if "latentd serve" in b]
    curls, alone, whole = curl_commands(walk), [b.strip() for b in blocks(alone)], curl_commands(whole)
    check(len(serve) == len(alone) == len(whole) == 1 and len(curls) >= 5,
          f"docs/training.md has them: {serve} {curls} {alone} {whole}")
    return serve[0][:-1], serve[0][-1], curls, alone[0], whole[0]


class Walk(Daemon):
    """The document's daemon in a folder of its own."""

    def __init__(self, serve, folder):
        super().__init__(executable, model)
        self.folder = folder
        words = serve.split()
        self.command = [executable, *words[1:], "--listen", "127.0.0.1:0"]

    def __enter__(self):
        here = os.getcwd()
        os.chdir(self.folder)  # where the daemon starts
        try:
            return super().__enter__()
        finally:
            os.chdir(here)

    def shell(self, command, id="", seconds=200):
        """A line of the document with the job's id; what it printed."""
        text = command.replace("localhost:8188", f"{self.host}:{self.port}").replace("/ID", "/" + id)
        text = text.replace("curl ", "curl --fail-with-body -S ", 1)
        p = subprocess.run(["bash", "-c", text], cwd=self.folder, capture_output=True, text=True, timeout=seconds)
        check(p.returncode == 0, f"{text}: {p.returncode} {p.stdout[-300:]} {p.stderr[-300:]}")
        return p.stdout


def pick(curls, words):
    """Takes the command with these words out of the list."""
    found = [c for c in curls if words in c]
    check(len(found) == 1, f"one command with {words}: {found}")
    curls.remove(found[0])
    return found[0]


def train(d, curls):
    """Orders the job and follows it in every way the document tells; the ended job."""
    id = json.loads(d.shell(pick(curls, "/train ")))["id"]
    events = []
    wait, pause = pick(curls, "?wait="), pick(curls, "/pause")
    listen = pick(curls, "/events")
    listener = threading.Thread(target=lambda: events.append(d.shell(listen, id)))
    listener.start()
    check(wait_until(lambda: d.get(f"/jobs/{id}").json()["step"] >= 10, 60), "it is under way")
    d.shell(pause, id)
    check(wait_until(lambda: d.get(f"/jobs/{id}").json()["state"] == "paused", 20), "it pauses")
    d.shell(pause.replace("/pause", "/resume"), id)
    end = time.monotonic() + 200
    while time.monotonic() < end:
        job = json.loads(d.shell(wait, id))
        if job["state"] not in ("queued", "running"):
            break
    listener.join(20)
    check(job["state"] == "succeeded", f"{job}")
    check(events and events[0].count("event: progress") >= 10, f"events tell of it: {events[:1]}")
    return id, job


def without_a_daemon(alone, folder):
    """The document's other command, on a job of three steps."""
    with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as f:
        json.dump({"name": "three", "dataset": "framed", "resolution": SIZE, "max_train_steps": 3}, f)
    p = subprocess.run([executable, *alone.split()[1:]], cwd=folder, capture_output=True, text=True)
    out = alone.split("--out ")[1].split()[0]
    check(p.returncode == 0 and os.path.exists(os.path.join(folder, out, "three.safetensors")), f"{alone}: {p.stderr}")


def whole_model(d, whole):
    """The document's job that trains all of the model, but of three steps."""
    id = json.loads(d.shell(re.sub(r'"max_train_steps": \d+', '"max_train_steps": 3', whole)))["id"]
    job = d.get(f"/jobs/{id}?wait=60").json()
    check(job["state"] == "succeeded" and job["step"] == 3, f"{job}")
    check(os.path.exists(os.path.join(d.folder, "state/jobs", id, "model/model_index.json")), "a checkpoint is there")


def score(d, held_out, name):
    """The shares of framed and of rightly coloured pictures, with the adapter and without it."""
    framed = {}
    for how, loras in (("with", [{"name": name}]), ("without", [])):
        judged = [judge(draw(d, s["prompt"] + ", in a green frame", s["seed"], loras), s) for s in held_out]
        distances = [frame for frame, _ in judged]
        framed[how] = 100 * sum(frame < FRAMED for frame in distances) / len(judged)
        right = 100 * sum(ok for _, ok in judged) / len(judged)
        print(f"{how:7} the adapter: framed {framed[how]:5.1f} % (distance {statistics.mean(distances):.0f}, "
              f"{min(distances):.0f} to {max(distances):.0f}), the colour asked for {right:5.1f} % of {len(judged)} "
              "held-out pictures")
        check(right >= COLOUR_BAR, f"obeys the prompt {how} the adapter: {right} %, wanted {COLOUR_BAR}")
    check(framed["with"] >= FRAMED_BAR, f"framed with the adapter: {framed['with']} %, wanted {FRAMED_BAR}")
    check(framed["without"] <= BEFORE_BAR, f"framed without it: {framed['without']} %")


def main():
    begin, (before, serve, curls, alone, whole) = time.monotonic(), commands()
    trained, held_out = scenes()
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "share"))
        os.symlink(model, os.path.join(folder, "share/tiny-sd"))
        pictures = os.path.join(folder, "pictures/framed")
        os.makedirs(pictures)
        for command in before:
            subprocess.run(command, shell=True, cwd=folder, check=True)
        with Walk(serve, folder) as d:
            make_pictures(d, pictures, trained)
            made = time.monotonic()
            id, job = train(d, curls)
            steps, name = job["steps"], job["result"]["adapter"]
            print(f"{len(trained)} pictures made in {made - begin:.1f} s, {steps} steps in "
                  f"{time.monotonic() - made:.1f} s")
            for command in curls:  # uses the adapter, asks what else there is
                d.shell(command, id)
            drawn = [f for f in os.listdir(folder) if f.endswith(".png")]
            check(drawn, "a picture was drawn as the document has it")
            print(f"from pictures to a picture: {time.monotonic() - made:.1f} s; 300 are promised")
            score(d, held_out, name)
            whole_model(d, whole)
        without_a_daemon(alone, folder)
    print(f"{time.monotonic() - begin:.1f} s in all")


if shutil.which("curl"):
    main()
else:
    print("no curl here: docs/training.md is not walked")
done()
