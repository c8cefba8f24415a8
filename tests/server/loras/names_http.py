"""LoRA files with unusual names (spaces, brackets, other scripts, folders) in every API, with the
bundled checkpoint: they are listed, used, uploaded, given defaults and deleted. usage:
names_http.py LATENTD MODEL"""
import base64
import json
import os
import sys
import tempfile
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done  # noqa: E402
from lora_file import kohya_lora  # noqa: E402

latentd, model = sys.argv[1:3]
NAMES = ["my lora", "add_detail(v1.0)", "a+b", "snow&x", "100%", "a,b", "comma:colon", "[style] x", "-dash",
         "été", "日本語", "sub/insub", "GhostMix_V2.0-BakedVAE", "UPPER", "v1.2"]
OCTETS = {"Content-Type": "application/octet-stream"}
DRAW = {"prompt": "a red house", "seed": 3, "num_inference_steps": 1, "guidance_scale": 2.5, "width": 64,
        "height": 64}
PNG = {"Accept": "image/png"}
sent = kohya_lora(model, 99)


def quoted(name):
    return urllib.parse.quote(name, safe="")


def post(d, path, body, status=200):
    r = d.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    check(r.status == status, f"{path} {body}: {r.status} {r.body[:300]}")
    return r.json() if r.body.startswith((b"{", b"[")) else r.body


def png(d, **fields):
    r = d.generate({**DRAW, **fields}, PNG)
    check(r.status == 200, f"{fields}: {r.status} {r.body[:300]}")
    return r.body


def listed(d):
    check([one["name"] for one in d.get("/loras").json()["loras"]] == sorted(NAMES, key=str.encode), "GET /loras")
    ids = [one["id"] for one in d.get("/v1/models").json()["data"]]
    checkpoint = ids[0]
    check(set(ids[1:]) == {f"{checkpoint}:{name}" for name in NAMES}, f"GET /v1/models: {ids}")
    theirs = d.get("/sdapi/v1/loras").json()
    check({one["alias"]: one["name"] for one in theirs} ==
          {name: name.rsplit("/")[-1] for name in NAMES}, f"GET /sdapi/v1/loras: {theirs}")
    check(all(os.path.exists(one["path"]) for one in theirs), "each listed path exists")
    for name in NAMES:
        check(d.get("/loras/" + quoted(name)).json()["name"] == name, f"GET /loras/{name}")
        check(d.get("/v1/models/" + quoted(name)).json()["root"] == name, f"GET /v1/models/{name}")
        check(d.get("/v1/models/" + quoted(f"{checkpoint}:{name}")).status == 200,
              f"CHECKPOINT:NAME names an adapter: {name}")
    check(d.get("/loras/sub/insub").json()["name"] == "sub/insub",
          "an adapter in a subfolder is named with a slash")
    check(d.get("/v1/models/insub").json()["root"] == "sub/insub",
          "the last part of the name is enough for /v1/models")


def used(d):
    plain, pictures = png(d), {}
    for name in NAMES:
        own = png(d, loras=[{"name": name, "weight": 2}])
        pictures[pixels(own)] = name
        check(pixels(own) != pixels(plain), f"{name} changes the picture")
        tagged = post(d, "/generate", {**DRAW, "prompt": f"a red house<lora:{name}:2>", "prompt_syntax": "a1111",
                                       "output": "latent"})
        same = post(d, "/generate", {**DRAW, "prompt_syntax": "a1111", "loras": [{"name": name, "weight": 2}],
                                     "output": "latent"})
        check(tagged["images"] == same["images"] and tagged["loras"] == same["loras"], f"<lora:{name}:2>")
        check(tagged["loras"][0]["name"] == name, f"{tagged['loras']}")
        one = png(d, loras=[{"name": name}])
        answer = post(d, "/v1/images/generations", {
            "model": name, "prompt": DRAW["prompt"], "seed": 3, "guidance_scale": 2.5, "num_inference_steps": 1,
            "size": "64x64", "response_format": "b64_json", "output_format": "png"})
        check(pixels(base64.b64decode(answer["data"][0]["b64_json"])) == pixels(one), f"model {name}")
        stem = name.rsplit("/")[-1]
        answers = [post(d, "/sdapi/v1/txt2img", {"prompt": f"a red house<lora:{asked}:2>", "seed": 3, "steps": 1,
                                                 "width": 64, "height": 64, "cfg_scale": 2.5})
                   for asked in {name, stem}]
        theirs = [pixels(base64.b64decode(a["images"][0])) for a in answers]
        check(theirs[0] == theirs[-1], f"AUTOMATIC1111's routes take {name} also as {stem}")
        pictures[theirs[0]] = name
    check(len(pictures) == 2 * len(NAMES), f"{len(pictures)} different pictures, not {2 * len(NAMES)}")
    metrics = d.get("/metrics").body.decode()
    check(all(f'\nlatentd_lora_requests_total{{lora="{name}"}} ' in metrics for name in NAMES),
          "the metrics count each adapter by its name")
    print(f"compared: {len(pictures)} pictures with {len(NAMES)} names")


def pixels(data):
    """Returns the picture's compressed pixels, without the texts beside them."""
    at, found = 8, b""
    while at < len(data):
        length, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        found += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return found


def changed(d, folder):
    for name in NAMES:
        path = "/loras/" + quoted(name)
        r = d.request("PUT", path, sent, OCTETS)
        check(r.status == 200 and r.json()["name"] == name, f"PUT {name}: {r.status} {r.body[:300]}")
        with open(f"{folder}/{name}.safetensors", "rb") as f:
            check(f.read() == sent, f"{name}: the stored file is the sent one")
        told = post(d, path, {"pinned": True, "default_weight": 0.5})
        check(told["pinned"] and told["default_weight"] == 0.5, f"{told}")
        post(d, path, {"pinned": False, "default_weight": None})
        check(post(d, "/v1/unload_lora_adapter", {"lora_name": name}).decode().count(f"'{name}'"),
              "the adapter is unloaded by its name")
        post(d, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": name + ".safetensors"})
        check(d.get(path).json()["state"] == "loaded", "the adapter is loaded again by its name")
        r = d.request("DELETE", path)
        check(r.status == 204 and d.get(path).status == 404, f"DELETE {name}: {r.status} {r.body[:300]}")
    check(os.listdir(folder) == [], f"no files are left: {os.listdir(folder)}")
    for name in NAMES:
        r = d.request("PUT", "/loras/" + (name if name == "sub/insub" else quoted(name)), sent, OCTETS)
        check(r.status == 201, f"PUT {name}, new: {r.status} {r.body[:300]}")
    r = d.request("PUT", "/loras/" + quoted("e\u0301te\u0301"), sent, OCTETS)
    check(r.status == 409 and "été" in r.error()["message"], f"{r.status} {r.body}")
    r = d.request("PUT", "/loras/upper", sent, OCTETS)
    check(r.status == 409 and r.error()["param"] == "name" and "UPPER" in r.error()["message"], f"{r.body}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/sub")
        for i, name in enumerate(NAMES):
            with open(f"{folder}/{name}.safetensors", "wb") as f:
                f.write(kohya_lora(model, i + 1))
        with Daemon(latentd, model, extra=["--dtype", "f32", "--lora-dir", folder]) as d:
            listed(d)
            used(d)
            changed(d, folder)
            log = d.read_log()
            check("warning" not in log, log)


main()
done()
