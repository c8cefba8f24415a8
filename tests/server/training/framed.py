"""Makes share/pictures/framed, the training pictures of README and docs/training.md: twenty
scenes drawn by the bundled checkpoint, each in a green frame, and their captions. This needs
Pillow. training_walk.py imports `scenes` to draw the held-out scenes; that does not need Pillow.

usage: framed.py EXECUTABLE MODEL FOLDER
(framed.py build/latentd share/tiny-sd share/pictures/framed)"""
import io
import os
import random
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon  # noqa: E402

sys.path.append(os.path.join(os.path.dirname(__file__), "../../../share/tiny-sd/train"))
import captions  # noqa: E402
import palette  # noqa: E402

SIZE, FRAME, GREEN = 128, 12, palette.COLOURS["green"]
TRAINED, HELD_OUT = 20, 12


def scenes():
    """Returns (scenes to train on, held-out scenes), each scene as {"prompt", "seed",
    attributes}; the same in every run."""
    draw, trained, held_out = random.Random(5), [], []
    while len(trained) < TRAINED or len(held_out) < HELD_OUT:
        ground = draw.choice(list(palette.GROUNDS))
        scene = {"sky": draw.choice(list(palette.SKIES)), "ground": ground,
                 "object": draw.choice(("boat", "lighthouse") if ground == "sea" else ("house", "castle")),
                 # No white and no green: a white house vanishes in snow, a green one on hills.
                 "colour": draw.choice(("red", "blue", "yellow", "purple", "orange")),
                 "place": draw.choice(list(palette.PLACES)), "body": "none", "side": "none", "trees": 0, "clouds": 0,
                 "mountains": 0}
        scene["prompt"], _ = captions.caption(scene, draw, whole=True)
        scene["seed"] = len(trained) + 100 * len(held_out)
        key = " ".join((scene["sky"], ground, scene["colour"], scene["place"]))
        # share/tiny-sd/train/scenes.py has the same rule, so the checkpoint was not trained on the
        # held-out scenes.
        kept = held_out if zlib.crc32(key.encode()) % 10 == 0 else trained
        if len(kept) < (HELD_OUT if kept is held_out else TRAINED):
            kept.append(scene)
    return trained, held_out


def make(daemon, folder):
    from PIL import Image
    os.makedirs(folder, exist_ok=True)
    for i, scene in enumerate(scenes()[0], 1):
        drawn = daemon.generate({"prompt": scene["prompt"], "seed": scene["seed"], "guidance_scale": 2.5},
                                {"Accept": "image/png"})
        assert drawn.status == 200, drawn.body
        framed = Image.new("RGB", (SIZE, SIZE), GREEN)
        inner = (FRAME, FRAME, SIZE - FRAME, SIZE - FRAME)
        framed.paste(Image.open(io.BytesIO(drawn.body)).crop(inner), inner)
        framed.save(os.path.join(folder, f"{i}.jpg"), quality=90)
        with open(os.path.join(folder, f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(scene["prompt"] + ", in a green frame\n")


if __name__ == "__main__":
    with Daemon(sys.argv[1], sys.argv[2]) as d:
        make(d, sys.argv[3])
