"""Jobs with DoRA, LoHa, LoKr, rsLoRA, Prodigy, Lion, Adafactor and shuffled captions over HTTP with the bundled checkpoint. Each
adapter has the bytes of `latentd train`, although the daemon was killed in the middle; it is listed as
what it is and changes what is drawn, and without it the daemon draws as before. usage:
train_adapters_http.py EXECUTABLE MODEL"""
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from trainer import JOB, Trainer, executable, make_pictures, model, root  # noqa: E402

PLAIN = {key: value for key, value in JOB.items() if key != "dropout"} | {"learning_rate": 1e-2}
JOBS = {  # fields, and the kind at GET /loras
    "dora": ({"use_dora": True, "save_format": "kohya", "target_modules": ["to_q", "to_v", "conv1"]}, "DoRA"),
    "loha": ({"adapter_type": "loha", "rank": 2}, "LyCORIS LoHa"),
    "lokr": ({"adapter_type": "lokr", "rank": 2, "train_text_encoder": True}, "LyCORIS LoKr"),
    "prodigy": ({"optimizer": "prodigy", "learning_rate": 1, "prodigy_d0": 1e-3, "shuffle_caption": True,
                 "caption_separator": " ", "use_rslora": True, "center_crop": True}, "LoRA"),  # lets the VAE go
    "lion": ({"optimizer": "lion", "learning_rate": 1e-3}, "LoRA"),
    "adafactor": ({"optimizer": "adafactor", "adafactor_scale_parameter": True,
                   "target_modules": ["to_q", "conv1", "conv_shortcut"]}, "LoRA"),
}


def trained_alone(name, fields):
    """Runs `latentd train` and returns the adapter's bytes."""
    config, out = os.path.join(root, name + ".json"), os.path.join(root, "alone", name)
    with open(config, "w", encoding="utf-8") as f:
        json.dump(PLAIN | fields | {"name": name}, f)
    p = subprocess.run([executable, "train", "--model", model, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out], capture_output=True, text=True)
    check(p.returncode == 0, f"latentd train: {p.stderr}")
    with open(os.path.join(out, name + ".safetensors"), "rb") as f:
        return f.read()


def trained_by_a_daemon_that_was_killed(name, fields, kind):
    d = Trainer()
    with d:
        before = d.picture()
        id = d.start(**PLAIN | fields | {"name": name, "dropout": None})
        check(wait_until(lambda: d.job(id)["step"] >= 6, 60), "the job has made six steps")
        d.kill()
    with Trainer(state=d.state) as d:
        d.wait(id)
        listed = next(lora for lora in d.get("/loras").json()["loras"] if lora["name"] == name)
        check(kind in listed["kinds"], f"{name} is listed as {kind}: {listed}")
        check(d.picture() == before, "without the trained adapter the daemon draws as before")
        check(d.picture(loras=[{"name": name, "weight": 1}]) != before, f"{name} changes what is drawn")
        return d.file(id, name)


try:
    make_pictures()
    for name, (fields, kind) in JOBS.items():
        alone = trained_alone(name, fields)
        killed = trained_by_a_daemon_that_was_killed(name, fields, kind)
        print(f"{name}: {len(alone)} bytes")
        check(killed == alone, f"{name}: a killed and resumed job writes the same bytes")
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
