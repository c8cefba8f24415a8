"""Tests that `latentd generate`, with any number of --lora options by name or by file, draws the
same pixels as the daemon does for the same request. usage: generate_loras.py EXECUTABLE MODEL"""
import os
import subprocess
import sys
import tempfile

import picture
from daemon import Daemon, check, done
from lora_file import kohya_loha, kohya_lora

executable, model = sys.argv[1:3]
DRAW = {"prompt": "a red house on green hills", "seed": 11, "num_inference_steps": 3, "guidance_scale": 2.5,
        "width": 96, "height": 64}
# The values of --lora, and the same adapters as a request lists them. ALL is replaced by a folder
# of all adapters; --lora-dir holds only snow and ink.
CASES = [
    ([], []),
    (["snow"], [{"name": "snow"}]),
    (["snow:0.7"], [{"name": "snow", "weight": 0.7}]),
    (["snow:0.7:0.2"], [{"name": "snow", "weight": 0.7, "text_encoder_weight": 0.2}]),
    (["ALL/dense.safetensors:0.7:0"], [{"name": "dense", "weight": 0.7, "text_encoder_weight": 0}]),
    (["snow:0.7:0.2", "ALL/dense.safetensors:-0.3:1.5"],
     [{"name": "snow", "weight": 0.7, "text_encoder_weight": 0.2},
      {"name": "dense", "weight": -0.3, "text_encoder_weight": 1.5}]),
    (["ALL/dense.safetensors:0.4", "ink:-1:0.5", "snow"],
     [{"name": "dense", "weight": 0.4}, {"name": "ink", "weight": -1, "text_encoder_weight": 0.5}, {"name": "snow"}]),
]


class Folders:
    def __init__(self, root):
        self.all, self.some, self.out = (os.path.join(root, name) for name in ("all", "some", "out.png"))
        for folder, names in ((self.all, ("snow", "ink", "dense")), (self.some, ("snow", "ink"))):
            os.mkdir(folder)
            for name in names:
                with open(f"{folder}/{name}.safetensors", "wb") as f:
                    f.write(FILES[name])


def generate(folders, loras, flags):
    """Runs `latentd generate`. Returns the finished process and the bytes of its picture, or
    None."""
    given = [part for lora in loras for part in ("--lora", lora.replace("ALL", folders.all))]
    r = subprocess.run([executable, "generate", "--model", model, "--dtype", "f32", "--lora-dir", folders.some, "-q",
                        "-o", folders.out, *flags, *given], capture_output=True, text=True, timeout=250)
    if not os.path.exists(folders.out):
        return r, None
    with open(folders.out, "rb") as f:
        data = f.read()
    os.remove(folders.out)
    return r, data


def same_pixels(folders):
    flags = [part for name, value in DRAW.items()
             for part in ("--" + name.replace("num_inference_", "").replace("_", "-"), str(value))]
    seen = {}
    with Daemon(executable, model, extra=["--dtype", "f32", "--lora-dir", folders.all]) as d:
        for given, asked in CASES:
            answer = d.generate({**DRAW, "loras": asked}, {"Accept": "image/png"})
            check(answer.status == 200, f"{asked}: {answer.status} {answer.body[:300]}")
            r, data = generate(folders, given, flags)
            check(r.returncode == 0 and data, f"{given}: {r.returncode} {r.stderr}")
            if answer.status == 200 and data:
                there = picture.decode(answer.body)
                check(picture.decode(data) == there, f"{given}: the pixels of {asked}")
                seen[str(there)] = given
    check(len(seen) == len(CASES), f"each draws its own picture: {list(seen.values())}")
    print(f"compared: the pixels of {len(seen)} different pictures, drawn by flags and over HTTP")


def refusals(folders):
    for given, words in ((["nobody"], "one of ink, snow"),
                         (["snow", "ALL/snow.safetensors"], "each adapter at most once"),
                         (["snow:a"], "snow:a"), (["snow:101"], "a number from -100 to 100"),
                         (["ALL/snow.safetensors"], f"another of that name in {folders.some}"),
                         (["ALL/none.safetensors"], "none.safetensors")):
        r, data = generate(folders, given, ["--prompt", "a"])
        check(r.returncode != 0 and words in r.stderr and not data, f"{given}: {r.returncode} {r.stderr}")


FILES = {"snow": kohya_lora(model, 1), "ink": kohya_lora(model, 2, rank=8), "dense": kohya_loha(model, 3)}
with tempfile.TemporaryDirectory() as root:
    at = Folders(root)
    same_pixels(at)
    refusals(at)
done()
