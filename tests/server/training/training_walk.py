"""Follows docs/training.md: runs its commands unchanged, from a folder of 20 pictures
(framed.py) to an adapter in use. Then draws pictures of prompts that the job never saw, with
and without the adapter, and scores them. The trained style is a green frame around scenes.
The bundled checkpoint was not trained on the held-out scenes either. usage: training_walk.py
EXECUTABLE MODEL"""
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import picture  # noqa: E402
from daemon import check, done, wait_until  # noqa: E402
from document import Document, commands  # noqa: E402

from framed import FRAME, GREEN, SIZE, palette, scenes  # noqa: E402

executable, model = (os.path.abspath(path) for path in sys.argv[1:3])
# The largest median distance of a frame's pixels from green. Skies are 190 and more away from it.
FRAMED = 150
# Limits in percent of the held-out pictures.
FRAMED_BAR, COLOUR_BAR, BEFORE_BAR = 80, 75, 30


# --- pictures ---

def is_frame(x, y):
    return min(x, y, SIZE - 1 - x, SIZE - 1 - y) < FRAME


def distance(a, b):
    return sum(abs(p - q) for p, q in zip(a, b))


def draw(daemon, prompt, seed, loras=()):
    r = daemon.generate({"prompt": prompt, "seed": seed, "guidance_scale": 2.5, "width": SIZE, "height": SIZE,
                         "loras": list(loras)}, {"Accept": "image/png"})
    check(r.status == 200, f"{prompt}: {r.status} {r.body[:200]}")
    return r.body


def judge(png, scene):
    """Returns (median distance of the frame's pixels from green, whether the object has the
    prompt's colour)."""
    width, height, rows = picture.decode(png)
    assert (width, height) == (SIZE, SIZE)
    pixels = [(x, y, rows[y][x]) for y in range(SIZE) for x in range(SIZE)]
    frame = statistics.median(distance(p, GREEN) for x, y, p in pixels if is_frame(x, y))
    colour = palette.object_colour(scene["colour"], scene["sky"])
    inside = sum(distance(p, colour) < 80 for x, y, p in pixels if not is_frame(x, y))
    return frame, inside >= 50


# --- the document's commands ---

def is_taken(d, block, **fields):
    """Checks that a job with the fields that the document shows is accepted."""
    job = {"name": "shown", "dataset": "framed", "resolution": SIZE, "max_train_steps": 50, **json.loads(f"{{{block}}}")}
    r = d.request("POST", "/train", json.dumps({**job, **fields}), {"Content-Type": "application/json"})
    check(r.status == 202, f"{block}: {r.status} {r.body[:300]}")
    d.request("POST", f"/jobs/{r.json()['id']}/cancel")
    check(wait_until(lambda: d.get(f"/jobs/{r.json()['id']}").json()["state"] == "cancelled", 60),
          "the job is cancelled")


def train(page, d):
    """Orders the job and follows it in every way that the document shows. Returns the ended job."""
    page.run("curl -s localhost:8188/train")
    wait, listen, pause = commands(page.take("curl -s  'localhost:8188/jobs/ID?wait=60'"))
    events = []
    listener = threading.Thread(target=lambda: events.append(page.command(listen, 400)))
    listener.start()
    check(wait_until(lambda: d.get(f"/jobs/{page.job}").json()["step"] >= 10, 60),
          "the job has made ten steps")
    page.command(pause)
    check(wait_until(lambda: d.get(f"/jobs/{page.job}").json()["state"] == "paused", 20),
          "the job is paused")
    page.command(pause.replace("/pause", "/resume"))
    end = time.monotonic() + 200
    while time.monotonic() < end:
        job = json.loads(page.command(wait))
        if job["state"] not in ("queued", "running"):
            break
    listener.join(20)
    check(job["state"] == "succeeded", f"{job}")
    check(events and events[0].count("event: progress") >= 10,
          f"the events show the job's progress: {events[:1]}")
    return job


def without_a_daemon(page):
    page.run("echo")
    for name in ("framed.safetensors", "cache"):
        check(os.path.exists(page.at("state/framed/" + name)), f"{name} exists")


def whole_model(page, d):
    """Runs the document's full fine-tune."""
    page.run("curl -s localhost:8188/train")
    check(wait_until(lambda: d.get(f"/jobs/{page.job}").json()["state"] not in ("queued", "running"), 200),
          "the job ends")
    job = d.get(f"/jobs/{page.job}").json()
    check(job["state"] == "succeeded" and job["step"] == 20, f"{job}")
    check(os.path.exists(page.at(f"state/jobs/{page.job}/model/model_index.json")),
          "the trained checkpoint exists")


def score(d, held_out, name):
    """Measures how many pictures have the frame and the right colour, with and without the
    adapter, and checks the limits."""
    framed = {}
    for how, loras in (("with", [{"name": name}]), ("without", [])):
        judged = [judge(draw(d, s["prompt"] + ", in a green frame", s["seed"], loras), s) for s in held_out]
        distances = [frame for frame, _ in judged]
        framed[how] = 100 * sum(frame < FRAMED for frame in distances) / len(judged)
        right = 100 * sum(ok for _, ok in judged) / len(judged)
        print(f"{how:7} the adapter: framed {framed[how]:5.1f} % (distance {statistics.mean(distances):.0f}, "
              f"{min(distances):.0f} to {max(distances):.0f}), the colour asked for {right:5.1f} % of {len(judged)} "
              "held-out pictures")
        check(right >= COLOUR_BAR,
              f"pictures follow the prompt {how} the adapter: {right} %, wanted {COLOUR_BAR}")
    check(framed["with"] >= FRAMED_BAR, f"framed with the adapter: {framed['with']} %, wanted {FRAMED_BAR}")
    check(framed["without"] <= BEFORE_BAR, f"framed without it: {framed['without']} %")


def main(page):
    begin = time.monotonic()
    _, held_out = scenes()
    page.leave("share/pictures/framed/1.jpg", "shows a folder")
    page.run("mkdir -p loras")
    d = page.daemon
    job = train(page, d)
    print(f"{job['steps']} steps in {time.monotonic() - begin:.1f} s")
    is_taken(d, page.take('  "validation_prompts"'))
    page.run("curl -s localhost:8188/generate")
    check(page.read("framed.png")[:4] == b"\x89PNG", "the document's command draws a picture")
    print(f"from pictures to a picture: {time.monotonic() - begin:.1f} s; 300 are promised")
    score(d, held_out, job["result"]["adapter"])
    is_taken(d, page.take('"with_prior_preservation"'), instance_prompt="a photo of sks dog")
    without_a_daemon(page)
    whole_model(page, d)
    print(f"{time.monotonic() - begin:.1f} s in all")


with Document(executable, model, "docs/training.md") as page:
    main(page)
done()
