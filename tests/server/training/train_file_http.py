"""A full fine-tune of a single-file checkpoint: the result is also a single file, with the
original code's tensor names and the same numbers as a fine-tune of the same checkpoint as a
folder. usage: train_file_http.py EXECUTABLE MODEL SMALL_CHECKPOINT LDM_NAMES.tsv"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import lora_file  # noqa: E402
from daemon import Daemon, check, done, wait_until  # noqa: E402
from trainer import DRAW, JOB, Trainer, executable, make_pictures, root  # noqa: E402

FULL = {key: value for key, value in JOB.items() if key not in ("rank", "dropout")} | {
    "method": "full", "learning_rate": 1e-3, "use_ema": True, "train_text_encoder": True, "save_precision": "bf16",
    "max_train_steps": 4, "checkpointing_steps": 2}
FILES = {"unet": ("diffusion_pytorch_model", "model.diffusion_model."),
         "text_encoder": ("model", "cond_stage_model.transformer."),
         "vae": ("diffusion_pytorch_model", "first_stage_model.")}
METADATA = {"modelspec.title": "small", "modelspec.hash_sha256": "0x12", "format": "pt"}


def tensors_of(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    metadata = header.pop("__metadata__", {})
    return {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}, metadata


def renamed(folder):
    """Returns the folder's tensors with the original code's names, by a table from outside of
    this project."""
    found = {}
    for component, (file, prefix) in FILES.items():
        tensors, _ = tensors_of(os.path.join(folder, component, file + ".safetensors"))
        with open(sys.argv[4], encoding="utf-8") as f:
            rows = [line.split("\t") for line in f if line[0] != "#"]
        names = {name: name if ldm == "=" else ldm for of, name, ldm, *_ in rows if of == component}
        for name, tensor in tensors.items():
            module, leaf = name.rsplit(".", 1)
            found[f"{prefix}{names[module]}.{leaf}"] = tensor
    return found


def make_checkpoint():
    """Makes a checkpoint as a folder and as a file. The file also has what published files have:
    an EMA entry, a step counter, metadata. Returns the folder and the file's tensors."""
    folder = os.path.join(root, "small")
    subprocess.run([sys.argv[3], sys.argv[4], "49408", folder], check=True)
    tensors, _ = tensors_of(folder + ".safetensors")
    tensors = {"global_step": ("I64", [], struct.pack("<q", 7)), **tensors,
               "model_ema.decay": ("F16", [2], bytes(4))}
    with open(folder + ".safetensors", "wb") as f:
        f.write(lora_file.join(tensors, METADATA))
    return folder, tensors


def trained_alone(checkpoint, **fields):
    config, out = os.path.join(root, "job.json"), os.path.join(root, "alone-" + os.path.basename(checkpoint))
    shutil.rmtree(out, ignore_errors=True)
    with open(config, "w", encoding="utf-8") as f:
        json.dump({**FULL, **fields}, f)
    p = subprocess.run([executable, "train", "--model", checkpoint, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out], capture_output=True, text=True)
    check(p.returncode == 0, f"latentd train: {p.stderr}")
    return p.stdout.splitlines()[-1]


def the_file_has_the_folders_numbers(folder, before):
    path = trained_alone(folder + ".safetensors")
    check(os.path.basename(path) == "model.safetensors" and os.path.isfile(path),
          f"the command prints the model's path: {path}")
    after, metadata = tensors_of(path)
    expected = renamed(trained_alone(folder))
    same = [name for name in expected if (after[name][0], after[name][2]) == (expected[name][0], expected[name][2])]
    check(len(same) == len(expected) > 900, f"{len(same)} of {len(expected)} tensors have the folder's numbers")
    check(all(after[name][1] == before[name][1] for name in expected),
          "the tensors have the shapes of the original file")
    moved = [name for name in expected if after[name][2] != before[name][2]]
    vae = [name for name in expected if name.startswith(FILES["vae"][1])]
    check(len(moved) == len(expected) - len(vae), f"{len(moved)} of {len(expected)} were trained, all but the VAE's")
    check(after.keys() - expected.keys() == {"global_step"} and after["global_step"] == before["global_step"],
          f"tensors that the model does not know are kept: {after.keys() - expected.keys()}")
    check(metadata == {"modelspec.title": "small", "format": "pt"}, f"{metadata}")
    print(f"{len(same)} of {len(expected)} tensors of the file are the folder's, {len(moved)} of them trained")
    return path


def a_daemon_trains_and_serves_it(folder, alone):
    d = Trainer(model=folder + ".safetensors")
    with d:
        plain = d.latents()
        id = d.start(**FULL, rank=None, dropout=None)
        check(wait_until(lambda: d.job(id)["step"] >= 2, 150), "the job has made two steps")
        d.kill()
    with Trainer(state=d.state, model=folder + ".safetensors") as d:
        trained = d.wait(id)["result"]["model"]
    check(trained == os.path.join(d.state, "jobs", id, "model.safetensors"),
          f"the job's result has the model's path: {trained}")
    with open(trained, "rb") as f, open(alone, "rb") as g:
        check(f.read() == g.read(), "the killed and resumed job writes the bytes of latentd train")
    drawn = []
    for checkpoint in trained, os.path.join(root, "alone-small", "model"):
        with Daemon(executable, checkpoint, extra=["--dtype", "f32"]) as daemon:
            answer = daemon.generate({**DRAW, "output": "latent"})
            check(answer.status == 200, f"{checkpoint} is served: {answer.status} {answer.body[:200]}")
            drawn.append(answer.json()["images"][0]["b64_latent"])
    check(drawn[0] == drawn[1], "the trained file draws the same as the trained folder")
    check(drawn[0] != plain, "the trained file draws another picture than the original")


def what_it_predicts_is_said(folder):
    path = trained_alone(folder + ".safetensors", prediction_type="v_prediction", max_train_steps=1)
    check(tensors_of(path)[1].get("modelspec.prediction_type") == "v",
          "the metadata has the prediction type")
    said = subprocess.run([executable, "inspect", path], capture_output=True, text=True, check=True).stdout
    check("v_prediction" in said, f"latentd inspect shows the prediction type: {said}")


def as_open_clip(tensors):
    """Renames the text encoder's tensors as SD-2 files have them (OpenCLIP), with q, k and v
    joined into one."""
    clip, layers = "cond_stage_model.transformer.text_model.", {}
    for name, tensor in tensors.items():
        new = name.replace(clip, "cond_stage_model.model.") if name.startswith(clip) else name
        if new != name:
            for old, ours in (("embeddings.token_embedding", "token_embedding"), ("final_layer_norm", "ln_final"),
                              ("embeddings.position_embedding.weight", "positional_embedding"),
                              ("encoder.layers", "transformer.resblocks"), ("layer_norm", "ln_"), ("mlp.fc1", "mlp.c_fc"),
                              ("mlp.fc2", "mlp.c_proj"), ("self_attn.out", "attn.out")):
                new = new.replace(old, ours)
        match = re.fullmatch(r"(.*)self_attn\.([qkv])_proj\.(weight|bias)", new)
        if match:
            layers.setdefault(f"{match[1]}attn.in_proj_{match[3]}", {})[match[2]] = tensor
        else:
            layers[new] = tensor
    for name, tensor in layers.items():
        if isinstance(tensor, dict):
            (dtype, (n, *rest), _) = tensor["q"]
            layers[name] = dtype, [3 * n, *rest], b"".join(tensor[letter][2] for letter in "qkv")
    return layers


def stacked_tensors_are_saved(folder, before):
    """SD-2 files have a last text encoder layer that is not used, so the folder is made without
    it."""
    with open(folder + ".safetensors", "wb") as f:
        before = as_open_clip(before)
        f.write(lora_file.join(before))
    weights, config = (os.path.join(folder, "text_encoder", name) for name in ("model.safetensors", "config.json"))
    tensors, _ = tensors_of(weights)
    with open(weights, "wb") as f:
        f.write(lora_file.join({name: t for name, t in tensors.items() if ".layers.1." not in name}))
    with open(config, encoding="utf-8") as f:
        fields = json.load(f)
    with open(config, "w", encoding="utf-8") as f:
        json.dump({**fields, "hidden_act": "gelu", "num_hidden_layers": 1}, f)
    after, _ = tensors_of(trained_alone(folder + ".safetensors"))
    expected = as_open_clip(renamed(trained_alone(folder)))
    clip = [name for name in expected if name.startswith("cond_stage_model.")]
    check(len(clip) == 16 and all(after[name] == expected[name] and after[name] != before[name] for name in clip),
          f"{[name for name in clip if after[name] != expected[name]]} of {clip}")
    left = [name for name in after if ".resblocks.1." in name]
    check(len(left) == 12 and all(after[name] == before[name] for name in left),
          f"the unused last layer keeps its numbers: {left}")
    print(f"{len(clip)} tensors of OpenCLIP's layout are the folder's, 2 of them of q, k and v")


try:
    make_pictures()
    small, tensors = make_checkpoint()
    alone = the_file_has_the_folders_numbers(small, tensors)
    a_daemon_trains_and_serves_it(small, alone)
    what_it_predicts_is_said(small)
    stacked_tensors_are_saved(small, tensors)
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
