"""AUTOMATIC1111's API over HTTP with the fake pipeline: every route, the shape of the answers,
errors, progress and interrupting. usage: sdapi_http.py EXECUTABLE"""
import base64
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from daemon import Daemon, check, done, wait_until
from png_file import gradient, left_half, png_base64, png_of_rows

JSON = {"Content-Type": "application/json"}
SMALL = {"width": 64, "height": 64, "steps": 4}
INFO_KEYS = """prompt all_prompts negative_prompt all_negative_prompts seed all_seeds subseed all_subseeds
subseed_strength width height sampler_name cfg_scale steps batch_size restore_faces face_restoration_model
sd_model_name sd_model_hash sd_vae_name sd_vae_hash seed_resize_from_w seed_resize_from_h denoising_strength
extra_generation_params index_of_first_image infotexts styles job_timestamp clip_skip
is_using_inpainting_conditioning version""".split()
EMPTY_LISTS = """latent-upscale-modes sd-vae sd-modules hypernetworks face-restorers
realesrgan-models prompt-styles script-info extensions""".split()


def post(d, path, body=None, headers=None):
    text = None if body is None else body if isinstance(body, str) else json.dumps(body)
    return d.request("POST", path, text, {**(JSON if body is not None else {}), **(headers or {})})


def txt2img(d, fields, headers=None):
    return post(d, "/sdapi/v1/txt2img", {**SMALL, **fields}, headers)


def lists(d):
    for name in EMPTY_LISTS:
        r = d.get(f"/sdapi/v1/{name}")
        check((r.status, r.json()) == (200, []), f"{name}: {r.status} {r.body}")
    for name, expected in (("cmd-flags", {}), ("scripts", {"txt2img": [], "img2img": []}),
                           ("embeddings", {"loaded": {}, "skipped": {}}), ("loras", [])):
        r = d.get(f"/sdapi/v1/{name}")
        check((r.status, r.json()) == (200, expected), f"{name}: {r.status} {r.body}")
    samplers = d.get("/sdapi/v1/samplers").json()
    check(all(set(s) == {"name", "aliases", "options"} for s in samplers), f"{samplers[0]}")
    names = [s["name"] for s in samplers]
    check(len(set(names)) == len(names) >= 16 and {"Euler a", "DPM++ 2M", "DDIM"} <= set(names), f"{names}")
    schedulers = d.get("/sdapi/v1/schedulers").json()
    check(all(set(s) == {"name", "label", "aliases", "default_rho", "need_inner_model"} for s in schedulers),
          f"{schedulers[0]}")
    check({"automatic", "karras", "sgm_uniform"} <= {s["name"] for s in schedulers}, f"{schedulers}")
    for sampler in names:  # txt2img must accept every sampler
        r = txt2img(d, {"sampler_name": sampler, "send_images": False})
        check(r.status == 200, f"{sampler}: {r.status} {r.body[:200]}")
    models = d.get("/sdapi/v1/sd-models").json()
    check(len(models) >= 1 and set(models[0]) == {"title", "model_name", "hash", "sha256", "filename", "config"},
          f"{models}")
    memory = d.get("/sdapi/v1/memory").json()
    check(set(memory) == {"ram", "cuda"} and 0 < memory["ram"]["used"] < memory["ram"]["total"], f"{memory}")
    r = post(d, "/sdapi/v1/refresh-loras")
    check((r.status, r.body) == (200, b"null"), f"{r.status} {r.body}")


def answers(d):
    r = txt2img(d, {"prompt": "a cat, sitting", "negative_prompt": "a dog", "seed": 7, "batch_size": 2, "n_iter": 2,
                    "sampler_name": "DPM++ 2M", "scheduler": "automatic", "cfg_scale": 6.5,
                    "override_settings": {"CLIP_stop_at_last_layers": 2}, "unheard_of": {"a": 1}})
    check(r.status == 200, f"{r.status} {r.body[:300]}")
    a = r.json()
    check(set(a) == {"images", "parameters", "info"}, f"{set(a)}")
    check(len(a["images"]) == 4 and all(base64.b64decode(i, validate=True)[:4] == b"\x89PNG" for i in a["images"]),
          "the answer has four PNGs in base64")
    check(a["parameters"]["prompt"] == "a cat, sitting" and a["parameters"]["n_iter"] == 2 and
          a["parameters"]["hr_scale"] == 2 and "unheard_of" not in a["parameters"], f"{a['parameters']}")
    check(isinstance(a["info"], str), "`info` is JSON in a string")
    info = json.loads(a["info"])
    check(list(info) == INFO_KEYS, f"{set(info) ^ set(INFO_KEYS)}")
    check(info["all_seeds"] == [7, 8, 9, 10] and info["seed"] == 7, f"{info['all_seeds']}")
    check(info["all_prompts"] == ["a cat, sitting"] * 4 and info["clip_skip"] == 2, f"{info}")
    check(info["sampler_name"] == "DPM++ 2M" and info["batch_size"] == 2, f"{info}")
    check(info["extra_generation_params"] == {"Schedule type": "Karras"}, f"{info['extra_generation_params']}")
    lines = info["infotexts"][1].split("\n")
    check(lines[0] == "a cat, sitting" and lines[1] == "Negative prompt: a dog", f"{lines}")
    check(lines[2].startswith("Steps: 4, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 6.5, Seed: 8, "
                              "Size: 64x64, Model: ") and ", Clip skip: 2, RNG: NV, Version: latentd" in lines[2],
          f"{lines[2]}")
    back = post(d, "/sdapi/v1/png-info", {"image": a["images"][1]}).json()
    check(back["info"] == info["infotexts"][1], f"{back['info']}")
    check(back["parameters"]["Seed"] == "8" and back["parameters"]["Size-1"] == "64", f"{back['parameters']}")
    check(json.loads(back["items"]["latentd"])["scheduler"]["use_karras_sigmas"] is True, f"{back['items']}")
    check({k: v for k, v in back["scheduler"].items() if v is not False} ==
          {"name": "dpmpp_2m", "timestep_spacing": "linspace", "use_karras_sigmas": True},
          f"png-info names the scheduler in latentd's own terms: {back['scheduler']}")
    # The second picture is drawn again by a request of its own with the same seed, and by POST
    # /generate.
    one = txt2img(d, {"prompt": "a cat, sitting", "negative_prompt": "a dog", "seed": 8, "sampler_name": "DPM++ 2M",
                      "cfg_scale": 6.5, "override_settings": {"CLIP_stop_at_last_layers": 2}}).json()
    check(pixels(one["images"][0]) == pixels(a["images"][1]),
          "picture k equals the single picture of seed + k")
    ours = d.generate(json.loads(back["items"]["latentd"])).json()
    check(pixels(ours["images"][0]["b64_json"]) == pixels(a["images"][1]),
          "the `latentd` text of a picture draws the same picture")
    check(txt2img(d, {"send_images": False}).json()["images"] == [],
          "send_images false leaves the images out")
    seeds = [json.loads(txt2img(d, {"seed": -1}).json()["info"])["seed"] for _ in range(3)]
    check(len(set(seeds)) == 3 and all(0 <= s < 2**32 for s in seeds), f"random seeds: {seeds}")


def variations(d):
    """Images of a request with a subseed have one seed, and their subseeds count up."""
    a = txt2img(d, {"seed": 7, "subseed": 3, "subseed_strength": 0.4, "batch_size": 2, "seed_resize_from_w": 128,
                    "seed_resize_from_h": 192}).json()
    info = json.loads(a["info"])
    check((info["all_seeds"], info["all_subseeds"]) == ([7, 7], [3, 4]), f"{info['all_seeds']} {info['all_subseeds']}")
    check((info["subseed"], info["subseed_strength"], info["seed_resize_from_w"]) == (3, 0.4, 128), f"{info}")
    check(", Variation seed: 4, Variation seed strength: 0.4, Seed resize from: 128x192" in info["infotexts"][1],
          info["infotexts"][1])
    back = post(d, "/sdapi/v1/png-info", {"image": a["images"][1]}).json()
    said = back["parameters"]
    check((said["Seed"], said["Variation seed"], said["Variation seed strength"], said["Seed resize from-1"]) ==
          ("7", "4", "0.4", "128"), f"{said}")
    ours = json.loads(back["items"]["latentd"])
    check(ours.items() >= {"seed": 7, "subseed": 4, "subseed_strength": 0.4, "seed_resize_from_w": 128,
                           "seed_resize_from_h": 192}.items(), f"the native request: {ours}")
    again = d.generate(ours).json()
    check(pixels(again["images"][0]["b64_json"]) == pixels(a["images"][1]), "which draws it again")
    subseeds = [json.loads(txt2img(d, {"subseed_strength": 1}).json()["info"])["subseed"] for _ in range(3)]
    check(len(set(subseeds)) == 3 and all(0 <= s < 2**32 for s in subseeds), f"random ones: {subseeds}")
    plain = json.loads(txt2img(d, {"subseed": 3, "seed": 7, "batch_size": 2}).json()["info"])
    check(plain["all_seeds"] == [7, 8] and "Variation" not in plain["infotexts"][0], f"none without a strength: {plain}")


def etas(d):
    """An eta that draws is in the infotext; one that does not is said to have no effect."""
    rows = ({"sampler_name": "DDIM", "eta": 0.5}, "Eta DDIM: 0.5", None), \
        ({"sampler_name": "DPM++ 2S a", "eta": 0.5}, ", Eta: 0.5", None), ({"sampler_name": "DDIM"}, None, None), \
        ({"sampler_name": "Euler a", "eta": 0}, None, "eta: 0 has no effect: Euler a draws with 1"), \
        ({"sampler_name": "DPM++ 2M SDE", "eta": 0.5}, None, "eta: 0.5 has no effect: DPM++ 2M SDE draws with 1"), \
        ({"sampler_name": "Euler a", "eta": 1}, None, None), ({"sampler_name": "Euler", "eta": 0.5}, None, None)
    for fields, told, comment in rows:
        a = txt2img(d, fields).json()
        info = json.loads(a["info"])
        check(info.get("comments", []) == ([comment] if comment else []), f"{fields}: {info.get('comments')}")
        text = info["infotexts"][0]
        check(told in text if told else "Eta" not in text, f"{fields}: {text}")
        if told:
            back = post(d, "/sdapi/v1/png-info", {"image": a["images"][0]}).json()
            check(back["scheduler"]["eta"] == 0.5, f"{fields}: {back['scheduler']}")


STYLES = b'\xef\xbb\xbfname,prompt,negative_prompt\r\noil,"oil on canvas, {prompt}",photo\r\nlow,low quality,\r\n'


def styles(executable):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/styles.csv", "wb") as f:
            f.write(STYLES)
        with Daemon(executable, "fake,step_ms=1", extra=("--styles", f"{folder}/styles.csv")) as d:
            check(d.get("/sdapi/v1/prompt-styles").json() == [
                {"name": "oil", "prompt": "oil on canvas, {prompt}", "negative_prompt": "photo"},
                {"name": "low", "prompt": "low quality", "negative_prompt": ""}], "they are listed")
            a = txt2img(d, {"prompt": "a cat", "negative_prompt": "dog", "styles": ["oil", "nope", "low"]}).json()
            info = json.loads(a["info"])
            check((info["prompt"], info["negative_prompt"]) == ("oil on canvas, a cat, low quality", "dog, photo"),
                  f"{info}")
            check(info["styles"] == ["oil", "nope", "low"] and len(info["comments"]) == 1 and
                  '"nope"' in info["comments"][0], f"{info['comments']}")
            check(info["infotexts"][0].startswith("oil on canvas, a cat, low quality\nNegative prompt: dog, photo\n"),
                  info["infotexts"][0])
            check(a["parameters"]["prompt"] == "a cat", "the parameters are as they were sent")
        with open(f"{folder}/styles.csv", "wb") as f:
            f.write(b"title,text\na,b\n")
        ran = subprocess.run([executable, "serve", "--model", "fake", "--listen", "127.0.0.1:0", "--styles",
                              f"{folder}/styles.csv"], capture_output=True, text=True, timeout=60)
        check(ran.returncode == 1 and "--styles: " in ran.stderr and 'columns "name" and "prompt"' in ran.stderr,
              f"{ran.returncode} {ran.stderr}")


def too_many_extras(executable):
    """As many pictures are upscaled at a time as requests may wait to be drawn."""
    with Daemon(executable, "fake", extra=("--max-queue", "1")) as d:
        answers = []
        body = {"image": png_base64(64, 64, gradient), "upscaler_1": "Lanczos", "upscaling_resize": 60}

        def ask():
            answers.append(post(d, "/sdapi/v1/extra-single-image", body))
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = sorted(r.status for r in answers)
        check(told[0] == 200 and told[-1] == 429 and set(told) == {200, 429}, f"{told}")
        refused = next(r for r in answers if r.status == 429)
        check("try again later" in refused.json()["detail"] and int(refused.headers["retry-after"]) >= 1,
              f"{refused.body[:200]} {refused.headers}")
        small = {**body, "upscaling_resize": 2}
        check(wait_until(lambda: post(d, "/sdapi/v1/extra-single-image", small).status == 200), "and later there is room")


def unread_extras(executable):
    """A client that does not read its answer keeps no place from others."""
    with Daemon(executable, "fake", extra=("--max-queue", "1")) as d, socket.socket() as s:
        noise = random.Random(1)  # hardly compressed
        body = json.dumps({"image": png_base64(256, 256, lambda x, y: tuple(noise.randbytes(3))),
                           "upscaler_1": "Lanczos", "upscaling_resize": 10}).encode()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", d.port))
        s.sendall(b"POST /sdapi/v1/extra-single-image HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = s.recv(4000)
        size = int(head.lower().split(b"content-length: ")[1].split()[0])
        check(head.startswith(b"HTTP/1.1 200") and size > 8 << 20, f"an answer of {size} bytes is under way")
        small = {"image": png_base64(8, 8, gradient), "upscaler_1": "Nearest"}
        check(wait_until(lambda: post(d, "/sdapi/v1/extra-single-image", small).status == 200),
              "and there is room for another request")


def pixels(b64):
    """Returns the compressed pixels of a PNG that the daemon wrote."""
    data, at, found = base64.b64decode(b64), 8, b""
    while at < len(data):
        size = int.from_bytes(data[at:at + 4], "big")
        found += data[at + 8:at + 8 + size] if data[at + 4:at + 8] == b"IDAT" else b""
        at += size + 12
    return found


def formats(d):
    for name, magic in (("jpg", b"\xff\xd8"), ("webp", b"RIFF"), ("png", b"\x89PNG")):
        a = txt2img(d, {"override_settings": {"samples_format": name}}).json()
        check(base64.b64decode(a["images"][0]).startswith(magic), name)
        back = post(d, "/sdapi/v1/png-info", {"image": f"data:image/{name};base64," + a["images"][0]}).json()
        check(back["info"] == json.loads(a["info"])["infotexts"][0], f"{name}: {back['info']}")
        ours = json.loads(back["items"]["latentd" if name == "png" else "ImageDescription"])
        check(ours["seed"] == json.loads(a["info"])["seed"],
              f"{name}: the `latentd` text has the picture's seed: {ours}")
    r = post(d, "/sdapi/v1/png-info", {"image": png_base64(8, 8, gradient)})
    check(r.json()["info"] == "" and r.json()["items"] == {} and r.json()["scheduler"] is None,
          "png-info of a picture without texts is empty")


def img2img(d):
    init = png_base64(64, 64, gradient)
    r = post(d, "/sdapi/v1/img2img", {**SMALL, "prompt": "x", "seed": 3, "denoising_strength": 0.5, "steps": 10,
                                      "init_images": ["data:image/png;base64," + init]})
    check(r.status == 200, f"{r.status} {r.body[:300]}")
    a = r.json()
    info = json.loads(a["info"])
    check(info["denoising_strength"] == 0.5 and "Denoising strength: 0.5" in info["infotexts"][0], f"{info}")
    check(a["parameters"]["init_images"] is None and "include_init_images" not in a["parameters"],
          "the answer leaves out init_images")
    wanted = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": [init], "include_init_images": True}).json()
    check(wanted["parameters"]["init_images"] == [init],
          "include_init_images puts init_images into the answer")
    other = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": [png_base64(100, 60, gradient)], "resize_mode": 1})
    check(other.status == 200,
          f"resize_mode 1 crops a picture of another size: {other.status} {other.body[:200]}")
    for mask in (None, png_base64(100, 60, left_half(100))):
        other = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": [png_base64(100, 60, gradient)], "resize_mode": 2,
                                              "mask": mask, "inpaint_full_res": False})
        check(other.status == 200 and size_of(other.json()["images"][0]) == (64, 64),
              f"another size is filled: {other.status} {other.body[:200]}")
    for size in ((104, 72), (64, 64)):
        other = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": [png_base64(*size, gradient)], "resize_mode": 3})
        check(other.status == 200 and size_of(other.json()["images"][0]) == (64, 64),
              f"latents of another size: {other.status} {other.body[:200]}")
    for fill, name in enumerate(("fill", "original", "latent noise", "latent nothing")):
        other = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": [init], "mask": png_base64(64, 64, left_half(64)),
                                              "inpainting_fill": fill, "denoising_strength": 1})
        text = json.loads(other.json()["info"])["infotexts"][0] if other.status == 200 else other.body
        check(f"Masked content: {name}," in text, f"{fill}: {other.status} {text}")


def errors(d):
    rows = [
        ({"sampler_name": "Nobody's"}, 400, "Sampler not found"),
        ({"steps": "x"}, 422, ["body", "steps"]),
        ({"width": 63}, 422, ["body", "width"]),
        ({"subseed_strength": 2}, 422, ["body", "subseed_strength"]),
        ({"lora": [{"path": "nobody"}]}, 422, ["body", "lora"]),
        ({"enable_hr": True}, 422, ["body", "enable_hr"]),
        ({"script_name": "x"}, 422, ["body", "script_name"]),
        ({"alwayson_scripts": {"x": {"args": [{"enabled": True}]}}}, 422, ["body", "alwayson_scripts"]),
        ({"override_settings": {"sd_model_checkpoint": "nothing"}}, 422,
         ["body", "override_settings.sd_model_checkpoint"]),
        ({"override_settings": {"CLIP_stop_at_last_layers": 32}}, 422, ["body", "CLIP_stop_at_last_layers"]),
    ]
    for fields, status, expected in rows:
        r = txt2img(d, fields)
        detail = r.json()["detail"]
        check((r.status, detail if isinstance(expected, str) else detail[0]["loc"]) == (status, expected),
              f"{fields}: {r.status} {r.body}")
        if not isinstance(expected, str):
            check(set(detail[0]) == {"type", "loc", "msg", "input"}, f"{detail}")
    for body, status, expected in ((SMALL, 404, "Init image not found"),
                                   ({"init_images": ["%%"]}, 400, "Invalid encoded image"),
                                   ({"init_images": ["https://example.com/x"]}, 400, "Requests not allowed")):
        r = post(d, "/sdapi/v1/img2img", body)
        check((r.status, r.json()["detail"]) == (status, expected), f"{body}: {r.status} {r.body}")
    r = post(d, "/sdapi/v1/img2img", {**SMALL, "init_images": ["AAAA"]})
    check((r.status, r.json()["detail"][0]["loc"]) == (422, ["body", "init_images"]), f"{r.status} {r.body}")
    for side in (4097, 2056):
        r = txt2img(d, {"height": side})
        told = r.json()["detail"][0]
        check(r.status == 422 and told["input"] == str(side) and "from 64 to 2048" in told["msg"], f"{r.body}")
    r = post(d, "/sdapi/v1/txt2img", "{")
    check((r.status, r.json()["detail"][0]["loc"]) == (422, ["body"]), f"{r.status} {r.body}")
    for path, status in (("/sdapi/v1/nothing", 404), ("/sdapi/v1/server-kill", 404), ("/internal/x", 404),
                         ("/sdapi/v1/progress", 405), ("/sdapi/v1/interrogate", 404)):
        r = post(d, path, {})
        check(r.status == status and isinstance(r.json()["detail"], str), f"{path}: {r.status} {r.body}")
    r = d.request("POST", "/sdapi/v1/txt2img", "prompt=x", {"Content-Type": "application/x-www-form-urlencoded"})
    check(r.status == 415 and isinstance(r.json()["detail"], str), f"{r.status} {r.body}")
    for path in ("txt2img", "img2img"):
        r = post(d, f"/sdapi/v1/{path}", SMALL, {"Idempotency-Key": "a"})
        check((r.status, r.json()["detail"][0]["loc"]) == (422, ["header", "Idempotency-Key"]),
              f"an Idempotency-Key is refused: {r.status} {r.body[:200]}")
    r = post(d, "/sdapi/v1/png-info", {"image": base64.b64encode(b"GIF89a").decode()})
    check((r.status, r.json()["detail"]) == (400, "Invalid encoded image"), f"{r.status} {r.body}")
    r = post(d, "/sdapi/v1/png-info", {})
    check((r.status, r.json()["detail"][0]["loc"]) == (422, ["body", "image"]), f"{r.status} {r.body}")
    r = txt2img(d, {"prompt": "fail:device"})
    check((r.status, r.json()) == (500, {"detail": "the device does not answer"}), f"{r.status} {r.body}")


def options(d):
    before = d.get("/sdapi/v1/options").json()
    check(before["samples_format"] == "png" and before["CLIP_stop_at_last_layers"] == 1 and
          before["sd_model_checkpoint"] == d.get("/sdapi/v1/sd-models").json()[0]["title"], f"{before}")
    r = post(d, "/sdapi/v1/options", before)
    check((r.status, r.body) == (200, b"null"),
          f"the options as read are accepted as written: {r.status} {r.body}")
    r = post(d, "/sdapi/v1/options", {"samples_format": "webp", "CLIP_stop_at_last_layers": 2, "outdir_samples": "x"})
    check(r.status == 200, f"{r.status} {r.body}")
    a = txt2img(d, {}).json()
    check(base64.b64decode(a["images"][0])[:4] == b"RIFF" and json.loads(a["info"])["clip_skip"] == 2,
          "written options apply to later requests")
    a = txt2img(d, {"override_settings": {"samples_format": "png"}}).json()
    check(base64.b64decode(a["images"][0])[:4] == b"\x89PNG",
          "override_settings apply to their request")
    check(d.get("/sdapi/v1/options").json()["samples_format"] == "webp",
          "override_settings do not change the options")
    r = post(d, "/sdapi/v1/options", {"sd_model_checkpoint": "nothing", "samples_format": "png"})
    check(r.status == 404 and "nothing" in r.json()["detail"], f"no such checkpoint: {r.status} {r.body}")
    for body in ({"sd_model_checkpoint": 1}, {"samples_format": "gif"}, {"eta_noise_seed_delta": 31337},
                 {"CLIP_stop_at_last_layers": "x", "samples_format": "png"}, {"no_such_option": 1}):
        r = post(d, "/sdapi/v1/options", body)
        name = next(iter(body))
        check((r.status, r.json()["detail"][0]["loc"]) == (422, ["body", name]), f"{body}: {r.status} {r.body}")
    check(d.get("/sdapi/v1/options").json()["samples_format"] == "webp",
          "refused options are not changed")
    kept = {"send_seed": False, "samples_filename_pattern": "[seed]", "upcast_attn": True, "sd_vae": "x.pt",
            "cross_attention_optimization": "xformers"}
    check(post(d, "/sdapi/v1/options", kept).status == 200,
          "options without an effect on pictures are accepted")
    now = d.get("/sdapi/v1/options").json()
    check({name: now[name] for name in kept} == kept,
          f"options without an effect on pictures are returned: {now}")
    check("x.pt" in json.loads(txt2img(d, {}).json()["info"])["comments"][0],
          "a comment names the VAE that does not exist")
    check(post(d, "/sdapi/v1/options", before).status == 200,
          "the first options are accepted again")
    check(d.get("/sdapi/v1/options").json() == before, "all options are as at the beginning")
    title = before["sd_model_checkpoint"]
    for name in (title + ".safetensors", title + " [0123456789]", title + ".ckpt [0123456789]"):
        r = post(d, "/sdapi/v1/options", {"sd_model_checkpoint": name})
        check((r.status, r.body) == (200, b"null"), f"{name}: {r.status} {r.body}")
        r = txt2img(d, {"override_settings": {"sd_model_checkpoint": name}})
        check(r.status == 200, f"{name}: {r.status} {r.body[:200]}")
    check(d.get("/sdapi/v1/options").json()["sd_model_checkpoint"] == title,
          "the current checkpoint is the same")


def goes_on(d):
    """Where AUTOMATIC1111 leaves out or changes a value instead of refusing it, the daemon does the
    same and says so."""
    a = txt2img(d, {"prompt": "a cat <lora:nope:1>", "styles": ["string"], "width": 100, "restore_faces": True,
                    "override_settings": {"sd_vae": "vae-ft-mse.safetensors"}}).json()
    info = json.loads(a["info"])
    check(list(info) == INFO_KEYS + ["comments"], f"{info}")
    comments = "\n".join(info["comments"])
    check(len(info["comments"]) == 5 and all(word in comments for word in (
        "<lora:nope>", "string", "100 is rounded down to 96", "restore_faces", "vae-ft-mse")), comments)
    check(info["width"] == 96 and a["parameters"]["width"] == 100, f"{info}")
    plain = txt2img(d, {"prompt": "a cat ", "width": 96, "seed": info["seed"]}).json()
    check(pixels(plain["images"][0]) == pixels(a["images"][0]),
          "fields with a comment do not change the picture")
    check("comments" not in json.loads(plain["info"]),
          "a request without such fields has no comments")


def stubs(d):
    for name, answer in (("refresh-checkpoints", b"null"), ("refresh-vae", b"null"), ("refresh-embeddings", b"null"),
                         ("unload-checkpoint", b"{}"), ("reload-checkpoint", b"{}")):
        for body in (None, {}):
            r = post(d, f"/sdapi/v1/{name}", body)
            check((r.status, r.body) == (200, answer), f"{name}: {r.status} {r.body}")
    r = d.get("/internal/ping")
    check((r.status, r.json()) == (200, {}), f"{r.status} {r.body}")
    check([u["name"] for u in d.get("/sdapi/v1/upscalers").json()] == ["None", "Lanczos", "Nearest"], "upscalers")


def size_of(b64):
    data = base64.b64decode(b64)
    return tuple(int.from_bytes(data[at:at + 4], "big") for at in (16, 20))


def extras(d):
    picture, drawn = png_base64(30, 20, gradient), txt2img(d, {"seed": 5}).json()["images"][0]
    single, batch = "/sdapi/v1/extra-single-image", "/sdapi/v1/extra-batch-images"
    r = post(d, single, {"image": picture, "upscaler_1": "Lanczos", "upscaling_resize": 4})
    check(r.status == 200 and set(r.json()) == {"html_info", "image"}, f"{r.status} {r.body[:200]}")
    check(size_of(r.json()["image"]) == (120, 80), f"{size_of(r.json()['image'])}")
    check(r.json()["html_info"] == "<p>Postprocess upscale by: 4.0, Postprocess upscaler: Lanczos</p>", f"{r.json()}")
    r = post(d, single, {"image": "data:image/png;base64," + picture})
    check(size_of(r.json()["image"]) == (30, 20) and r.json()["html_info"] == "<p></p>",
          "the default upscaler is None")
    r = post(d, single, {"image": drawn, "resize_mode": 1, "upscaling_resize_w": 100, "upscaling_resize_h": 50,
                         "upscaler_1": "Nearest", "upscaler_2": "Lanczos", "extras_upscaler_2_visibility": 0.5})
    check(size_of(r.json()["image"]) == (100, 50), f"{r.json()['html_info']}")
    told = [post(d, "/sdapi/v1/png-info", {"image": image}).json()["info"] for image in (drawn, r.json()["image"])]
    check(told[0] and told[0] == told[1], f"the upscaled picture keeps its infotext: {told}")
    r = post(d, batch, {"imageList": [{"data": picture, "name": "a.png"}, {"data": drawn, "name": "b.png"}],
                        "upscaler_1": "Nearest"})
    check(r.status == 200 and [size_of(i) for i in r.json()["images"]] == [(56, 40), (128, 128)], f"{r.body[:200]}")
    large = png_base64(64, 64, gradient)
    for path, body, status, expected in (
            (single, {}, 422, "image"), (single, {"image": 1}, 422, "image"), (single, {"image": "?"}, 400, None),
            (single, {"image": "AAAA"}, 422, "image"), (single, {"image": picture, "upscaler_1": "ESRGAN_4x"}, 422,
                                                        "upscaler_1"),
            (single, {"image": picture, "upscaler_1": "Lanczos", "upscaling_resize": 1000}, 422, "upscaling_resize"),
            (single, {"image": picture, "upscaling_resize": 0}, 422, "upscaling_resize"),
            (single, {"image": picture, "resize_mode": 2}, 422, "resize_mode"),
            (single, {"image": picture, "upscaling_resize_w": 5000}, 422, "upscaling_resize_w"),
            (single, {"image": picture, "gfpgan_visibility": 1}, 422, "gfpgan_visibility"),
            (batch, {"imageList": []}, 422, "imageList"), (batch, {"imageList": [{"name": "a"}]}, 422, "imageList"),
            (batch, {"imageList": [{"data": large, "name": "a"}] * 2, "upscaler_1": "Nearest",
                     "upscaling_resize": 64}, 422, "imageList")):
        r = post(d, path, body)
        detail = r.json()["detail"]
        check(r.status == status and (not expected or detail[0]["loc"] == ["body", expected]),
              f"{str(body)[:100]}: {r.status} {r.body[:300]}")


def curl(d):
    """A POST as curl users send it, without a body and without Content-Length."""
    url = f"http://{d.host}:{d.port}/sdapi/v1/interrupt"
    ran = subprocess.run(["curl", "-s", "-X", "POST", url], capture_output=True, text=True)
    check(ran.stdout == "{}", f"curl -X POST: {ran.stdout} {ran.stderr}")
    check(post(d, "/sdapi/v1/interrupt", {}).json() == {}, "interrupt accepts an empty object")


IDLE = {"skipped": False, "interrupted": False, "stopping_generation": False, "job": "", "job_count": 0,
        "job_timestamp": "0", "job_no": 0, "sampling_step": 0, "sampling_steps": 0}


def progress_and_interrupt(executable):
    with Daemon(executable, "fake,step_ms=50") as d:
        check(d.get("/sdapi/v1/progress").json() == {
            "progress": 0, "eta_relative": 0, "state": IDLE, "current_image": None, "textinfo": None,
            "current_task": None},
              f"the progress of an idle daemon: {d.get('/sdapi/v1/progress').body}")
        answers = {}

        def ask(name, fields):
            answers[name] = txt2img(d, fields)
        slow = threading.Thread(target=ask, args=("slow", {"steps": 300, "force_task_id": "task(slow)"}))
        slow.start()
        seen = []
        check(wait_until(lambda: seen.append(d.get("/sdapi/v1/progress?skip_current_image=true&_=1").json()) or
                         seen[-1]["state"]["sampling_step"] >= 2),
              f"the drawing makes steps: {seen[-1]}")
        p = seen[-1]
        check(0.01 < p["progress"] < 1 and p["state"]["job_count"] == 1 and p["state"]["sampling_steps"] == 300,
              f"{p}")
        check(abs(p["progress"] - 0.01 - p["state"]["sampling_step"] / 300) < 1e-9, f"{p}")
        check(p["current_task"] == "task(slow)" and p["current_image"] is None, f"{p}")
        check(all(s["progress"] >= 0.01 for s in seen if s["state"]["job_count"]),
              "progress begins at 0.01")
        waits = threading.Thread(target=ask, args=("other", {"steps": 300, "force_task_id": "task(other)"}))
        waits.start()
        check(wait_until(lambda: d.get("/sdapi/v1/progress?task_id=task%28other%29").json()["current_task"] ==
                         "task(other)"), "?task_id= shows the progress of that task")
        r = post(d, "/internal/progress", {"id_task": "task(slow)", "id_live_preview": -1, "live_preview": True}).json()
        check(r["active"] and not r["queued"] and not r["completed"] and 0 < r["progress"] < 1, f"{r}")
        check(set(r) == {"active", "queued", "completed", "progress", "eta", "live_preview", "id_live_preview",
                         "textinfo"}, f"{set(r)}")
        check(post(d, "/sdapi/v1/interrupt?task_id=task(other)").json() == {},
              "?task_id= interrupts that task")
        waits.join()
        check(answers["other"].status == 499 and "detail" in answers["other"].json(),
              f"{answers['other'].status} {answers['other'].body}")
        check(post(d, "/internal/progress", {"id_task": "task(other)"}).json()["completed"],
              "/internal/progress shows the interrupted task as completed")
        check(d.get("/sdapi/v1/progress").json()["current_task"] == "task(slow)",
              "the other task is still drawn")
        check(post(d, "/sdapi/v1/skip").json() == {}, "skip is accepted")
        slow.join()
        check(answers["slow"].status == 499, f"{answers['slow'].status}")
        check(wait_until(lambda: d.get("/sdapi/v1/progress").json()["state"]["job_count"] == 0),
              "the daemon becomes idle")
        check(d.get("/internal/pending-tasks").json() == {"size": 0, "tasks": []},
              "no task is pending")
        # This API neither shows nor interrupts a native request.
        native = threading.Thread(target=lambda: answers.update(native=d.generate({"prompt": "x"})))
        native.start()
        time.sleep(0.2)
        check(d.get("/sdapi/v1/progress").json()["state"]["job_count"] == 0,
              "a native request is not shown by /sdapi/v1/progress")
        post(d, "/sdapi/v1/interrupt")
        native.join()
        check(answers["native"].status == 200,
              "a native request is not interrupted by /sdapi/v1/interrupt")


def large_pictures_that_wait(executable):
    """Inpaints in pictures of 4096x4096 px. Four requests fill the memory for kept pictures. A
    fifth is refused, and is accepted once one of the four has ended."""
    def square(side, first):
        rows = [first + bytes(3 * side - 3)] + [bytes(3 * side)] * (side - 1)
        return base64.b64encode(png_of_rows(side, rows)).decode()
    fields = {**SMALL, "init_images": [square(4096, bytes(3))], "mask": square(64, b"\xff" * 3), "mask_blur": 0,
              "inpainting_fill": 1, "steps": 1000, "denoising_strength": 1, "send_images": False}
    with Daemon(executable, "fake,step_ms=50") as d:
        answers = []

        def ask():
            answers.append(post(d, "/sdapi/v1/img2img", fields))
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        check(wait_until(lambda: answers, 60), "one of five large requests is answered at once")
        r = answers[0]
        check(r.status == 429 and "of 256 MiB" in r.json()["detail"] and "64 MiB" in r.json()["detail"] and
              int(r.headers["retry-after"]) >= 1, f"{r.status} {r.body[:300]} {r.headers}")
        check(len(answers) == 1, f"only one of the five is refused: {[a.status for a in answers]}")
        post(d, "/sdapi/v1/skip")
        check(wait_until(lambda: len(answers) == 2) and answers[1].status == 499,
              "an interrupt ends one of the other four")

        def ask_until_taken():
            """Repeats until accepted: the memory may be released shortly after the answer."""
            while (r := post(d, "/sdapi/v1/img2img", fields)).status == 429:
                time.sleep(0.05)
            answers.append(r)
        again = threading.Thread(target=ask_until_taken)
        again.start()
        while any(t.is_alive() for t in [*threads, again]):
            post(d, "/sdapi/v1/skip")
            time.sleep(0.05)
        check([a.status for a in answers] == [429] + [499] * 5,
              f"all requests but the refused one are interrupted: {[a.status for a in answers]}")


def callers(executable):
    """A caller with a key sees and interrupts only its own requests."""
    with tempfile.TemporaryDirectory() as folder:
        alice, bob = ({"Authorization": "Basic " + base64.b64encode(f"user:{key}".encode()).decode()}
                      for key in (subprocess.run([executable, "key", name, "--api-keys", f"{folder}/keys"],
                                                 capture_output=True, text=True).stdout.strip()
                                  for name in ("alice", "bob")))
        with Daemon(executable, "fake,step_ms=50", extra=("--api-keys", f"{folder}/keys")) as d:
            r = d.get("/sdapi/v1/options")
            check(r.status == 401 and isinstance(r.json()["detail"], str), f"{r.status} {r.body}")
            check(r.headers.get("www-authenticate", "").startswith("Basic"), f"{r.headers}")
            check(d.get("/sdapi/v1/options", bob).status == 200,
                  "an API key is accepted as a password")
            ended = []
            thread = threading.Thread(target=lambda: ended.append(txt2img(d, {"steps": 150}, alice)))
            thread.start()

            def jobs(who):
                return d.get("/sdapi/v1/progress", who).json()["state"]["job_count"]
            check(wait_until(lambda: jobs(alice) == 1), "alice sees her own task")
            check(jobs(bob) == 0, "bob does not see alice's task")
            check(post(d, "/sdapi/v1/interrupt", None, bob).status == 200,
                  "bob's interrupt is accepted")
            time.sleep(0.2)
            check(jobs(alice) == 1 and not ended, "bob's interrupt does not end alice's task")
            check(post(d, "/sdapi/v1/interrupt", None, alice).status == 200,
                  "alice's interrupt is accepted")
            thread.join()
            check(ended[0].status == 499, f"{ended[0].status}")


executable = sys.argv[1]
with Daemon(executable) as daemon:
    for test in (lists, answers, variations, etas, formats, img2img, errors, options, goes_on, stubs, extras, curl):
        test(daemon)
progress_and_interrupt(executable)
large_pictures_that_wait(executable)
styles(executable)
too_many_extras(executable)
unread_extras(executable)
callers(executable)
done()
