"""OpenAI's and vLLM's clients list and load models and adapters, and huggingface_hub draws
pictures, with the daemon and the bundled checkpoint.

usage: models_clients.py LATENTD MODEL [FOLDER]      FOLDER: where to save the pictures
"""
import base64
import io
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import openai
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done

latentd, model = sys.argv[1:3]
folder = sys.argv[3] if len(sys.argv) > 3 else None
name = os.path.basename(model.rstrip("/"))
FIELDS = {"seed": 7, "guidance_scale": 2.5, "num_inference_steps": 6}
PROMPT = "a red house on green hills"
SERVED = ["dall-e-2", "gpt-image-1"]


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def native(d, **fields):
    return d.generate({"prompt": PROMPT, **FIELDS, **fields}, {"Accept": "image/png"}).body


def post(d, path, body):
    return d.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})


def models(d, client):
    listed = client.models.list().data
    check([m.id for m in listed] == [name, *SERVED, f"{name}:rainbow", f"{name}:snow", "other"],
          f"{[m.id for m in listed]}")
    check(all(m.object == "model" and m.owned_by == "latentd" and m.created > 1e9 for m in listed),
          "each entry has OpenAI's fields")
    check([m.created for m in listed if m.id == f"{name}:snow"] == [1600000000],
          "an adapter's `created` is its file's time")
    check(listed[3].parent == name and listed[3].root == "rainbow",
          "an adapter's entry has vLLM's parent and root")
    check(all(m.root == name for m in listed[1:3]), "a served name's root is the checkpoint")
    for asked, found in ((name, name), ("sd15", name), (f"{name}:snow", f"{name}:snow"), ("snow", f"{name}:snow"),
                         ("other", "other"), ("dall-e-2", "dall-e-2"), ("dall-e-2:snow", f"{name}:snow")):
        check(client.models.retrieve(asked).id == found, asked)
    for asked in ("dall-e-3", f"{name}:nobody", "a b", "x" * 600):
        try:
            client.models.retrieve(asked)
            check(False, asked)
        except openai.NotFoundError as e:
            check(e.code == "model_not_found" and e.param == "model", f"{asked}: {e.body}")
    try:
        client.images.generate(model="other", prompt=PROMPT)
        check(False, "a model that is not loaded is refused")
    except openai.NotFoundError as e:
        check(e.code == "model_not_found" and "PUT /model" in e.message,
              f"the error says how to load the model: {e.body}")
    one = client.images.generate(model=f"{name}:snow", prompt=PROMPT, response_format="b64_json", extra_body=FIELDS)
    two = client.images.generate(model="snow", prompt=PROMPT, extra_body=FIELDS)
    check(one.data[0].b64_json == two.data[0].b64_json,
          "both names of an adapter draw the same picture")
    check((pixels(base64.b64decode(one.data[0].b64_json)) == pixels(native(d, loras=[{"name": "snow"}]))).all(),
          "an adapter's name draws as POST /generate with that adapter")
    for asked, extra in (("gpt-image-1", {}), ("dall-e-2:snow", {"loras": [{"name": "snow"}]})):
        got = client.images.generate(model=asked, prompt=PROMPT, extra_body=FIELDS)
        check((pixels(base64.b64decode(got.data[0].b64_json)) == pixels(native(d, **extra))).all(), asked)


def vllm(d, loras):
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "snow", "lora_path": "snow.safetensors"})
    check(r.status == 400 and r.error()["param"] == "lora_name", f"loaded already: {r.body}")
    r = post(d, "/v1/unload_lora_adapter", {"lora_name": "snow"})
    check(r.status == 200 and r.body == b"Success: LoRA adapter 'snow' removed successfully.", f"{r.body}")
    check(d.get("/loras/snow").json()["state"] == "on_disk", "the removed adapter is not in memory")
    path = os.path.join(loras, "snow.safetensors")
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "snow", "lora_path": path})
    check(r.status == 200 and r.body == b"Success: LoRA adapter 'snow' added successfully." and
          r.headers["content-type"].startswith("text/plain"), f"{r.status} {r.body} {r.headers}")
    check(d.get("/loras/snow").json()["state"] == "loaded", "the added adapter is in memory")
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "snow", "lora_path": path, "load_inplace": True})
    check(r.status == 200, f"load_inplace loads an adapter again: {r.body}")
    # A file added while the daemon runs, and the same file under another name.
    shutil.copy(path, os.path.join(loras, "later.safetensors"))
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "later", "lora_path": "later.safetensors"})
    check(r.status == 200, f"an adapter from a new file is accepted: {r.body}")
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "other", "lora_path": "later.safetensors"})
    check(r.status == 200 and os.path.exists(os.path.join(loras, "other.safetensors")), f"{r.body}")
    r = post(d, "/v1/unload_lora_adapter", {"lora_name": "other"})
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "other", "lora_path": "rainbow.safetensors"})
    check(r.status == 400 and r.error()["param"] == "lora_name",
          f"an existing adapter is not overwritten by another file: {r.body}")
    outside = os.path.join(os.path.dirname(loras), "outside.safetensors")
    shutil.copy(path, outside)
    os.symlink(outside, os.path.join(loras, "link.safetensors"))
    for lora_path in (outside, "../outside.safetensors", "link.safetensors", "/etc/passwd", ".", loras):
        r = post(d, "/v1/load_lora_adapter", {"lora_name": "evil", "lora_path": lora_path})
        check(r.status == 400 and r.error()["param"] == "lora_path", f"{lora_path}: {r.status} {r.body}")
    r = post(d, "/v1/load_lora_adapter", {"lora_name": "evil", "lora_path": "nothing.safetensors"})
    check(r.status == 404 and r.error()["param"] == "lora_path", f"{r.status} {r.body}")
    r = post(d, "/v1/unload_lora_adapter", {"lora_name": "nobody"})
    check(r.status == 404, f"{r.status} {r.body}")
    for what, body, param in (("load", {"lora_path": "a"}, "lora_name"), ("load", {"lora_name": "a"}, "lora_path"),
                              ("load", {"lora_name": "../b", "lora_path": "a"}, "lora_name"),
                              ("load", {"lora_name": "a", "lora_path": "a", "load_inplace": 1}, "load_inplace"),
                              ("load", {"lora_name": "a", "lora_path": "a", "x": 1}, "x"),
                              ("unload", {"lora_name": 3}, "lora_name"), ("unload", {}, "lora_name"),
                              ("unload", [], None)):
        r = post(d, f"/v1/{what}_lora_adapter", body)
        check(r.status == 400 and r.error()["param"] == param, f"{what} {body}: {r.body}")


def picture_to_picture(d, client):
    """image_to_image sends the picture as "inputs" and the prompt as a parameter."""
    begin = native(d)
    fields = {"num_inference_steps": 6, "guidance_scale": 2.5}
    for target, size in ((None, {}), ({"width": 64, "height": 128}, {"width": 64, "height": 128, "resize_mode": "crop"})):
        image = client.image_to_image(begin, prompt="a blue house", target_size=target, seed=3, **fields)
        expected = native(d, prompt="a blue house", init_image=base64.b64encode(begin).decode(), **fields, seed=3, **size)
        check((np.asarray(image.convert("RGB")) == pixels(expected)).all(),
              f"image to image equals POST /generate with the same picture: {target}")
    webp = io.BytesIO()
    Image.open(io.BytesIO(begin)).save(webp, "WEBP")
    image = client.image_to_image(webp.getvalue(), prompt="a blue house", strength=0.5, **fields)
    check(image.size == (128, 128), f"{image.size}")


def hugging_face(d):
    client = InferenceClient(model=f"http://{d.host}:{d.port}/hf", token="none")
    image = client.text_to_image(PROMPT, guidance_scale=2.5, num_inference_steps=6, seed=7)
    check((np.asarray(image.convert("RGB")) == pixels(native(d))).all(),
          "text to image equals POST /generate")
    if folder:
        image.save(os.path.join(folder, "hugging_face.png"))
    image = client.text_to_image(PROMPT, negative_prompt="a cloud", width=64, height=128, scheduler="ddim",
                                 num_inference_steps=6, extra_body={"loras": [{"name": "snow"}]})
    check(image.size == (64, 128), f"{image.size}")
    try:
        client.text_to_image(PROMPT, width=65)
        check(False, "a wrong width is refused")
    except HfHubHTTPError as e:
        check("multiple of 8" in str(e) and e.response.status_code == 400, str(e))
    picture_to_picture(d, client)
    for body, words in (({}, "inputs"), ({"inputs": 3}, "inputs"), ({"inputs": "a", "x": 1}, "x"), ([], "inputs"),
                        ({"inputs": "a", "parameters": 3}, "parameters"),
                        ({"inputs": "a", "parameters": {"steps": 3}}, "steps"),
                        ({"inputs": "a", "parameters": {"num_images": 2}}, "num_images"),
                        ({"inputs": "a", "parameters": {"prompt": "b"}}, "inputs: "),
                        ({"inputs": 3, "parameters": {"prompt": "b"}}, "inputs: 3"),
                        ({"inputs": "AAAA", "parameters": {"prompt": ["b"]}}, "prompt: "),
                        ({"inputs": "AAAA", "parameters": {"prompt": "b", "init_image": "AAAA"}}, "init_image: "),
                        ({"inputs": "AAAA", "parameters": {"prompt": "b", "target_size": {"width": 64}}}, "target_size: "),
                        ({"inputs": "AAAA", "parameters": {"prompt": "b", "width": 64, "target_size": {
                            "width": 64, "height": 64}}}, "target_size: "),
                        ({"inputs": "AAAA", "parameters": {"prompt": "b", "target_size": {
                            "width": 65, "height": 64}}}, "width: 65"),
                        ({"inputs": "AAAA", "parameters": {"prompt": "b"}}, "PNG, JPEG or WebP"),
                        ({"inputs": "a", "parameters": {"output": "png"}}, "Accept")):
        r = post(d, "/hf", body)
        check(r.status == 400 and words in r.json()["error"], f"{body}: {r.body}")
    r = d.request("POST", "/hf", '{"inputs": "a", "parameters": {"num_inference_steps": 2}}',
                  {"Content-Type": "application/json", "Accept": "image/webp", "Idempotency-Key": "a"})
    check(r.status == 400 and "Idempotency-Key" in r.json()["error"], f"a key is not ignored: {r.status} {r.body[:200]}")
    r = d.request("POST", "/hf", '{"inputs": "a", "parameters": {"num_inference_steps": 2, "seed": 7}}',
                  {"Content-Type": "application/json", "Accept": "image/webp"})
    check(r.headers.get("x-seed") == "7" and "x-nsfw" not in r.headers,
          f"the headers have the seed, and no flag without a safety checker: {r.headers}")
    check(r.headers["content-type"] == "image/webp" and Image.open(io.BytesIO(r.body)).format == "WEBP",
          "Accept: image/webp is answered with a WebP")
    check(post(d, "/hf", "x" * 9).status == 400, "a body that is no JSON object is a 400")


with tempfile.TemporaryDirectory() as scratch:
    loras = os.path.join(scratch, "loras")
    shutil.copytree(os.path.join(model, "loras"), loras)
    for file in os.listdir(loras):
        if not file.endswith(".safetensors"):
            os.remove(os.path.join(loras, file))
    os.utime(os.path.join(loras, "snow.safetensors"), (1600000000, 1600000000))
    root = os.path.join(scratch, "models")  # with a second checkpoint, never loaded
    os.makedirs(os.path.join(root, "other/unet"))
    for file in ("config.json", "weights.safetensors"):
        open(os.path.join(root, "other/unet", file), "w").close()
    with Daemon(latentd, model, extra=("--lora-dir", loras, "--model-root", root,
                                         *(f"--served-model-name={other}" for other in SERVED))) as d:
        client = openai.OpenAI(base_url=f"http://{d.host}:{d.port}/v1", api_key="none")
        models(d, client)
        vllm(d, loras)
        hugging_face(d)
done()
