"""The safety checker in the daemon and on the command line: a tiny checker in the bundled
checkpoint that flags everything or nothing, and a checkpoint without one. usage:
safety_http.py EXECUTABLE MODEL CHECKER"""
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

from daemon import Daemon, check, done, wait_until
from generate_http import png_chunks

executable, bundled, checker = sys.argv[1:4]
JSON = {"Content-Type": "application/json"}
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 2, "guidance_scale": 2.5}
folder = tempfile.mkdtemp()


def half(value):
    return struct.pack("<e", value)


def set_thresholds(path, value):
    """Sets the thresholds of all concepts in the checker's f16 weights."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    for name in ("concept_embeds_weights", "special_care_embeds_weights"):
        begin, end = header[name]["data_offsets"]
        data[8 + size + begin:8 + size + end] = half(value) * ((end - begin) // 2)
    with open(path, "wb") as f:
        f.write(data)


def prepare(name, threshold):
    path = f"{folder}/{name}"
    shutil.copytree(bundled, path, ignore=shutil.ignore_patterns("loras"))
    if threshold is None:
        return
    for part in ("safety_checker", "feature_extractor"):
        shutil.copytree(f"{checker}/{part}", f"{path}/{part}")
    set_thresholds(path + "/safety_checker/model.safetensors", threshold)
    with open(path + "/model_index.json") as f:
        index = json.load(f)
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    index["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
    with open(path + "/model_index.json", "w") as f:
        json.dump(index, f)


def is_black(png):
    chunks = png_chunks(png)
    return not any(zlib.decompress(b"".join(chunks["IDAT"])).translate(None, b"\1\2\3\4"))


def images(d, **fields):
    r = d.generate({**DRAW, **fields})
    check(r.status == 200, f"{r.status} {r.body[:300]}")
    return r.json()["images"]


def drawn(d):
    return [(i["nsfw"], is_black(base64.b64decode(i["b64_json"]))) for i in images(d, num_images=2)]


def as_openai(d):
    """Returns the flags that OpenAI's clients get."""
    r = d.request("POST", "/v1/images/generations", json.dumps({**DRAW, "n": 1}), JSON)
    return [(i.get("nsfw"), is_black(base64.b64decode(i["b64_json"]))) for i in r.json()["data"]]


def serve(name, *extra):
    return Daemon(executable, f"{folder}/{name}", extra=["--dtype", "f32", *extra])


def fails(name, *extra):
    p = subprocess.run([executable, "serve", "--model", f"{folder}/{name}", "--listen", "127.0.0.1:0", *extra],
                       capture_output=True, text=True, timeout=60)
    check(p.returncode == 1, f"{p.returncode} {p.stderr}")
    return p.stderr


prepare("strict", -2)
prepare("lax", 2)
prepare("none", None)
with serve("strict", "--model-root", folder, "--safety-checker", "on") as d:
    check(drawn(d) == [(True, True)] * 2, "flagged pictures are black")
    check(as_openai(d) == [(True, True)], "OpenAI's clients get the flag and a black picture")
    check(d.get("/info").json()["model"]["safety_checker"], "GET /info shows the safety checker")
    latent = images(d, output="latent")
    check(latent[0]["nsfw"] is None, "latents are not checked")
    r = d.generate(DRAW, {"Accept": "image/png"})
    check(r.status == 200 and is_black(r.body) and r.headers.get("x-nsfw") == "true",
          f"a plain picture answer is black and has the flag in a header: {r.headers}")
    r = d.request("POST", "/hf", '{"inputs": "a", "parameters": {"num_inference_steps": 2, "seed": 7}}',
                  {**JSON, "Accept": "image/png"})
    check(is_black(r.body) and r.headers.get("x-nsfw") == "true",
          f"Hugging Face's route answers a black picture with the flag: {r.status} {r.headers}")
    r = d.request("PUT", "/model", '{"name": "none"}', JSON)
    check(r.status == 404 and "no safety checker" in r.error()["message"], f"{r.status} {r.body}")
    check(d.request("PUT", "/model", '{"name": "lax"}', JSON).status == 202,
          "a switch to a checkpoint with a safety checker is accepted")
    check(wait_until(lambda: d.get("/models").json()["current"] == "lax", 60),
          "the checkpoint is switched to")
    check(drawn(d) == [(False, False)] * 2, "a checker with high thresholds flags nothing")
with serve("strict", "--safety-checker", "off") as d:
    check(drawn(d) == [(None, False)] * 2, "--safety-checker off checks nothing")
    check(as_openai(d) == [(None, False)], "OpenAI's clients get no flag either")
with serve("none") as d:
    check(drawn(d) == [(None, False)] * 2,
          "--safety-checker auto checks nothing if the checkpoint has no checker")
    check(not d.get("/info").json()["model"]["safety_checker"], "GET /info shows no safety checker")
check("no safety checker" in fails("none", "--safety-checker", "on"),
      "--safety-checker on needs a checker")
os.truncate(folder + "/lax/safety_checker/model.safetensors", 20000)
check("--safety-checker off" in fails("lax"),
      "the error of a damaged checker names the option to draw without it")
os.remove(folder + "/strict/feature_extractor/preprocessor_config.json")
check("preprocessor_config.json" in fails("strict"), "the error names the missing file")
out = folder + "/out.png"
prepare("again", -2)
subprocess.run([executable, "generate", "--model", folder + "/again", "--prompt", "a boat", "--steps", "1", "-q", "-o",
                out], check=True)
check(is_black(open(out, "rb").read()), "latentd generate writes a black picture too")
shutil.rmtree(folder)
done()
