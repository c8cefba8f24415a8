"""Switches the checkpoint without a restart, between the bundled one and one with a LoRA merged
in. Each must draw the same latents as in a daemon of its own, also with an adapter, before
and after a switch and while other requests are drawn. If both do not fit, the old checkpoint
is unloaded first. usage: switch_http.py EXECUTABLE MODEL"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon, check, done, wait_until

executable, bundled = sys.argv[1:3]
JSON = {"Content-Type": "application/json"}
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 3, "guidance_scale": 2.5,
        "output": "latent"}
SNOW = [{"name": "snow", "weight": 0.8}]
folder = tempfile.mkdtemp()
root = folder + "/root"


def latents(d, **fields):
    r = d.generate({**DRAW, **fields})
    check(r.status == 200, f"{fields}: {r.status} {r.body[:300]}")
    return (r.json()["model"], r.json()["images"][0]["b64_latent"]) if r.status == 200 else None


def switch(d, name, state="done"):
    r = d.request("PUT", "/model", json.dumps({"name": name}), JSON)
    check(r.status == 202, f"{name}: {r.status} {r.body[:300]}")
    told = r.json()["switch"]
    check(wait_until(lambda: d.get("/models").json()["switch"]["state"] in ("done", "failed"), 60),
          "the switch ends")
    check(d.get("/models").json()["switch"]["state"] == state, f"{d.get('/models').body}")
    return told


def serve(model, *extra):
    return Daemon(executable, f"{root}/{model}", extra=["--dtype", "f32", "--lora-dir", folder + "/loras", *extra])


def prepare():
    """Makes two checkpoints, one of them a folder deeper, and a third that is cut short."""
    shutil.copytree(bundled, root + "/plain", ignore=shutil.ignore_patterns("loras"))
    os.mkdir(folder + "/loras")
    shutil.copy(bundled + "/loras/snow.safetensors", folder + "/loras")
    os.mkdir(root + "/more")
    subprocess.run([executable, "lora", "merge", bundled, root + "/more/merged", "--lora",
                    bundled + "/loras/rainbow.safetensors:1"], check=True, capture_output=True)
    shutil.copytree(root + "/plain", root + "/cut")
    weights = root + "/cut/unet/diffusion_pytorch_model.safetensors"
    with open(weights, "rb+") as f:
        f.truncate(os.path.getsize(weights) - 4096)


def alone(model):
    with serve(model) as d:
        return latents(d)[1], latents(d, loras=SNOW)[1]


def drawn_meanwhile(d, stop, wrong):
    while not stop.is_set():
        told = latents(d)
        if not told or told[1] != truth[told[0]][0]:
            wrong.append(told and told[0])


def to_and_fro():
    with serve("plain", "--model-root", root) as d:
        stop, wrong = threading.Event(), []
        others = [threading.Thread(target=drawn_meanwhile, args=(d, stop, wrong)) for _ in range(2)]
        for t in others:
            t.start()
        check(latents(d, loras=SNOW) == ("plain", truth["plain"][1]),
              "the adapter works before the switch")
        sizes = []
        for name in ("more/merged", "plain") * 3:
            check(not switch(d, name)["unloads_first"], "both checkpoints fit into memory together")
            check(d.get("/health/ready").status == 200, "the daemon is ready after the switch")
            check(latents(d) == (name, truth[name][0]), f"{name} draws as in a daemon of its own")
            check(latents(d, loras=SNOW) == (name, truth[name][1]),
                  f"{name} with the adapter draws as in a daemon of its own")
            snow = d.get("/loras/snow").json()
            check(snow["state"] == "loaded" and snow["matched"] > 0 and not snow["unmatched"], f"{snow}")
            sizes.append(d.rss_kb())
        stop.set()
        for t in others:
            t.join()
        check(not wrong, f"{len(wrong)} requests beside it were wrong: {wrong[:3]}")
        print(f"resident after each switch: {[s >> 10 for s in sizes]} MiB")
        check("error" not in d.get("/loras/snow").json() or d.get("/loras/snow").json()["error"] is None,
              "the adapter has no error after the switch")
        r = d.request("PUT", "/model", '{"name": "cut"}', JSON)
        check(r.status == 400 and "diffusion_pytorch_model.safetensors" in r.error()["message"], f"{r.status} {r.body}")
        check(latents(d) == ("plain", truth["plain"][0]),
              "after a switch to a broken checkpoint the old one draws")


def writable_memory(d):
    with open(f"/proc/{d.process.pid}/status") as f:
        return int(re.search(r"VmData:\s+(\d+)", f.read())[1]) << 10


def limit(d, room):
    resource.prlimit(d.process.pid, resource.RLIMIT_DATA, (writable_memory(d) + room, resource.RLIM_INFINITY))


def ask_without_room(d):
    """Asks for the other checkpoint during a drawing, with too little memory to load it beside
    the old one. Returns (thread of the drawing, list that gets its result)."""
    slow = []
    drawing = threading.Thread(target=lambda: slow.append(latents(d, num_inference_steps=40)))
    drawing.start()
    check(d.is_drawing(), "the request is being drawn")
    limit(d, 24 << 20)
    r = d.request("PUT", "/model", '{"name": "more/merged"}', JSON)
    limit(d, 1 << 32)  # generous: released heap pages still count
    told = r.json()["switch"]
    check(r.status == 202 and told["unloads_first"] and told["state"] == "draining" and
          told["needed_bytes"] > told["available_bytes"],
          f"the answer says that the old checkpoint is unloaded first: {r.status} {r.body[:300]}")
    print(f"{told['needed_bytes'] >> 20} MiB needed, {told['available_bytes'] >> 20} MiB available")
    return drawing, slow


def old_goes_first(d):
    """From the PUT until the new checkpoint is loaded, the daemon accepts no requests. It
    finishes those accepted before."""
    check(latents(d, loras=SNOW) == ("plain", truth["plain"][1]),
          "the old checkpoint draws with the adapter before the switch")
    drawing, slow = ask_without_room(d)
    check(d.get("/health/ready").status == 503 and d.generate(DRAW).status == 503,
          "no request is accepted during the switch")
    drawing.join()
    check(slow[0] and slow[0][0] == "plain",
          "a request that was accepted before the switch is finished")
    check(wait_until(lambda: d.get("/models").json()["switch"]["state"] == "done", 60),
          "the switch succeeds")
    log = d.read_log()
    gone, there = log.find("the model plain is unloaded"), log.find("drawing with more/merged")
    check(0 < gone < there, "the old checkpoint is unloaded before the new one is loaded")
    check(latents(d) == ("more/merged", truth["more/merged"][0]), "the new checkpoint draws")
    check(latents(d, loras=SNOW) == ("more/merged", truth["more/merged"][1]),
          "the new checkpoint draws with the adapter")


def old_comes_back(d):
    """The new checkpoint's files disappear before it is loaded: the old one, already unloaded,
    is loaded again."""
    latents(d, loras=SNOW)
    drawing, slow = ask_without_room(d)
    os.rename(root + "/more/merged/unet", root + "/more/merged/away")
    drawing.join()
    check(slow[0] and slow[0][0] == "plain",
          "a request that was accepted before the switch is finished")
    check(wait_until(lambda: d.get("/models").json()["switch"]["state"] == "failed", 60),
          "the switch fails")
    os.rename(root + "/more/merged/away", root + "/more/merged/unet")
    error = d.get("/models").json()["switch"]["error"]
    check("unet" in error["message"], f"{error}")
    log = d.read_log()
    check(0 < log.find("the model plain is unloaded") < log.find("loading " + root + "/plain again"),
          "the old checkpoint was unloaded and is loaded again")
    check(d.get("/health/ready").status == 200, "the daemon is ready after the failed switch")
    check(latents(d) == ("plain", truth["plain"][0]), "the old checkpoint draws as before")
    check(latents(d, loras=SNOW) == ("plain", truth["plain"][1]),
          "the old checkpoint draws with the adapter as before")


def with_little_memory(use):
    with serve("plain", "--model-root", root) as d:
        if d.is_sanitized():
            return print("not limited: AddressSanitizer gives no memory back, and takes terabytes of addresses")
        use(d)


prepare()
truth = {name: alone(name) for name in ("plain", "more/merged")}
check(truth["plain"][0] != truth["more/merged"][0] and truth["plain"][0] != truth["plain"][1],
      "checkpoints and adapter draw different pictures")
to_and_fro()
with_little_memory(old_goes_first)
with_little_memory(old_comes_back)
shutil.rmtree(folder)
done()
