"""Clients of AUTOMATIC1111's API: the webuiapi package itself, and the bodies that SillyTavern
and Open WebUI send, with the bundled checkpoint. usage: scripts/client-env sdapi_clients.py
EXECUTABLE MODEL"""
import base64
import io
import json
import os
import shutil
import sys
import tempfile
import threading

import webuiapi
from PIL import Image, ImageChops, ImageDraw, ImageStat

from daemon import Daemon, check, done, wait_until

DRAWN = {"width": 128, "height": 128, "cfg_scale": 2.5, "steps": 20}


def mean_difference(a, b, box=None):
    d = ImageChops.difference(a.convert("RGB"), b.convert("RGB"))
    return sum(ImageStat.Stat(d.crop(box) if box else d).mean) / 3


def keep(name, picture):
    """Saves a picture for inspection if SDAPI_KEEP names a folder."""
    if os.environ.get("SDAPI_KEEP"):
        picture.save(os.path.join(os.environ["SDAPI_KEEP"], f"{name}.png"))


def draw(api):
    r = api.txt2img(prompt="a red house on green hills", negative_prompt="blurry", seed=7, batch_size=2, **DRAWN)
    check(len(r.images) == 2 and r.image.size == (128, 128), f"{r}")
    check(r.info["all_seeds"] == [7, 8] and r.info["sampler_name"] == "Euler a", f"{r.info}")
    check(r.parameters["prompt"] == "a red house on green hills", f"{r.parameters}")
    again = api.txt2img(prompt="a red house on green hills", negative_prompt="blurry", seed=8, **DRAWN)
    check(mean_difference(again.image, r.images[1]) == 0, "the same seed draws the same picture")
    keep("house", r.image)
    said = api.png_info(r.image)
    check(said.info == r.info["infotexts"][0],
          f"png-info of a picture returns its infotext: {said.info!r}")
    for sampler, scheduler in (("DPM++ 2M", "karras"), ("DDIM", "automatic"), ("UniPC", None), ("Heun", "beta")):
        other = api.txt2img(prompt="a red house on green hills", seed=7, sampler_name=sampler, scheduler=scheduler,
                            **DRAWN)
        red = ImageStat.Stat(other.image).mean
        keep(sampler.replace(" ", "_"), other.image)
        check(other.info["sampler_name"] == sampler and red[1] > red[0],
              f"{sampler}: the house is redder than the hills: {red}")
    weighted = api.txt2img(prompt="a (red:1.4) house on green hills <lora:snow:1>", seed=7, **DRAWN)
    check(mean_difference(weighted.image, r.image) > 5,
          "prompt weights and <lora:...> tags change the picture")
    check("<lora:snow:1>" in weighted.info["infotexts"][0], f"{weighted.info['infotexts']}")
    keep("snow", weighted.image)
    return r.image


def from_pictures(api, house):
    snow = api.img2img(images=[house], prompt="a red house in the snow", seed=8, denoising_strength=0.7, **DRAWN)
    check(snow.image.size == (128, 128) and mean_difference(snow.image, house) > 5,
          "image to image draws another picture of the same size")
    keep("img2img", snow.image)
    mask = Image.new("RGB", house.size)
    ImageDraw.Draw(mask).rectangle((8, 72, 56, 112), fill=(255, 255, 255))
    kept, drawn = (72, 0, 128, 128), (12, 76, 52, 108)
    for name, fields in (("whole", {"inpaint_full_res": False}), ("fill", {"inpaint_full_res": True}),
                         ("padded", {"inpaint_full_res": True, "inpaint_full_res_padding": 32, "inpainting_fill": 1})):
        r = api.img2img(images=[house], mask_image=mask, prompt="a blue boat on a lake", seed=3,
                        denoising_strength=0.9, mask_blur=2, **fields, **DRAWN)
        inside, outside = mean_difference(r.image, house, drawn), mean_difference(r.image, house, kept)
        print(f"inpainting, {name}: mean difference {inside:.1f} where it is drawn anew, {outside:.1f} elsewhere")
        check(outside == 0, f"{name}: the unmasked part does not change by a bit")
        check(inside > 4, f"{name}: the masked part is drawn anew")
        keep(f"inpaint_{name}", r.image)
    turned = api.img2img(images=[house], mask_image=mask, prompt="a red house in the snow", seed=3, mask_blur=0,
                         inpainting_mask_invert=1, inpaint_full_res=False, denoising_strength=0.9, **DRAWN)
    check(mean_difference(turned.image, house, drawn) == 0,
          "with an inverted mask the white part is kept")
    check(mean_difference(turned.image, house, kept) > 4,
          "with an inverted mask the rest is drawn anew")
    keep("inpaint_inverted", turned.image)
    large = house.resize((200, 160))
    r = api.img2img(images=[large], mask_image=mask.resize(large.size), prompt="a boat", seed=1, **DRAWN)
    check(r.image.size == (200, 160),
          f"inpainting \"only masked\" keeps the picture's size: {r.image.size}")


def write_embedding(path, model):
    """Writes an embedding of two zero vectors in AUTOMATIC1111's format."""
    with open(f"{model}/text_encoder/config.json") as f:
        width = json.load(f)["hidden_size"]
    head = json.dumps({"emb_params": {"dtype": "F32", "shape": [2, width], "data_offsets": [0, 8 * width]}}).encode()
    with open(path, "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + bytes(8 * width))


def lists(api):
    check("Euler a" in api.util_get_sampler_names() and "karras" in api.util_get_scheduler_names(),
          "samplers and schedulers are listed")
    check(api.util_get_model_names() == ["one", "two"], f"{api.util_get_model_names()}")
    loras = api.get_loras()
    check([x["name"] for x in loras] == ["rainbow", "snow"], f"{loras}")
    check(all(set(x) == {"name", "alias", "path", "metadata"} and x["alias"] == x["name"] and
              os.path.isfile(x["path"]) for x in loras), f"{loras}")
    check(api.get_scripts() == {"txt2img": [], "img2img": []}, "the list of scripts is empty")
    check([x["name"] for x in api.get_upscalers()] == ["None", "Lanczos", "Nearest"], f"{api.get_upscalers()}")
    api.refresh_checkpoints()
    for name in ("get_sd_vae", "get_latent_upscale_modes", "get_hypernetworks", "get_face_restorers",
                 "get_realesrgan_models", "get_prompt_styles"):
        check(getattr(api, name)() == [], name)
    check(api.get_cmd_flags() == {} and api.get_embeddings()["skipped"].keys() == {"broken"},
          "command line flags are empty, and the broken embedding is listed as skipped")
    check(api.get_embeddings()["loaded"]["two-words"]["vectors"] == 2, f"{api.get_embeddings()}")


def upscaling(api):
    """webuiapi's two methods, against Pillow's resizing, which AUTOMATIC1111 uses."""
    picture = Image.effect_noise((48, 32), 90).convert("RGB")
    for name, filter in (("Lanczos", Image.Resampling.LANCZOS), ("Nearest", Image.Resampling.NEAREST)):
        got = api.extra_single_image(image=picture, upscaler_1=name, upscaling_resize=2)
        check(got.image.tobytes() == picture.resize((96, 64), filter).tobytes(), f"{name}: Pillow's bytes")
        check(got.info == f"<p>Postprocess upscale by: 2.0, Postprocess upscaler: {name}</p>", f"{got.info}")
    got = api.extra_batch_images(images=[picture, picture.resize((16, 16))], upscaler_1="Nearest", upscaling_resize=3)
    check([i.size for i in got.images] == [(144, 96), (48, 48)], f"{[i.size for i in got.images]}")


def models(api):
    check(api.util_get_current_model() == "one", f"{api.util_get_current_model()}")
    api.util_set_model("two")
    api.util_wait_for_ready(check_interval=0.1)
    check(api.util_get_current_model() == "two", f"{api.util_get_current_model()}")
    r = api.txt2img(prompt="a boat", seed=1, **DRAWN)
    check(r.info["sd_model_name"] == "two", f"{r.info['sd_model_name']}")
    api.set_options({"samples_format": "jpg"})
    check(api.txt2img(prompt="a boat", seed=1, **DRAWN).image.format == "JPEG",
          "samples_format set by an option is used")
    api.set_options({"samples_format": "png", "sd_model_checkpoint": "one"})


def interrupting(api):
    failed = []

    def long_one():
        try:
            api.txt2img(prompt="a boat", seed=1, **{**DRAWN, "steps": 1000})
        except RuntimeError as e:
            failed.append(e.args[0])
    thread = threading.Thread(target=long_one)
    thread.start()
    check(wait_until(lambda: 0 < api.get_progress()["progress"] < 1),
          "GET /progress shows progress")
    check(wait_until(lambda: api.get_progress()["current_image"]), "GET /progress shows a preview")
    preview = Image.open(io.BytesIO(base64.b64decode(api.get_progress()["current_image"])))
    check(preview.size[0] >= 8, f"{preview.size}")
    check(api.interrupt() == {}, "interrupt answers an empty object")
    thread.join()
    check(failed == [499], f"the interrupted request is a 499: {failed}")
    api.util_wait_for_ready(check_interval=0.1)


def refusals(api):
    for fields, status in (({"sampler_name": "DPM adaptive"}, 400), ({"enable_hr": True}, 422),
                           ({"script_name": "x/y/z plot"}, 422),
                           ({"adetailer": [webuiapi.ADetailer(ad_model="face_yolov8n.pt")]}, 422)):
        try:
            api.txt2img(**fields, **DRAWN)
            check(False, f"{fields} is accepted, but should be refused")
        except RuntimeError as e:
            check(e.args[0] == status and "detail" in json.loads(e.args[1]), f"{fields}: {e}")


def silly_tavern(d):
    """Sends the requests of src/endpoints/stable-diffusion.js and
    extensions/stable-diffusion/index.js in the same order."""
    def get(path):
        return d.get(f"/sdapi/v1/{path}", {"Authorization": "Basic Og=="})
    ping = get("options")
    check(ping.status == 200 and "forge_preset" not in ping.json(),
          "SillyTavern's ping is answered")
    upscalers = [x["name"] for x in get("upscalers").json()]
    upscalers[1:1] = [x["name"] for x in get("latent-upscale-modes").json()]
    check(upscalers == ["None", "Lanczos", "Nearest"] and get("sd-vae").json() == [] and get("sd-modules").json() == [],
          "the lists of upscalers, VAEs and modules have no choices of models")
    check("DDIM" in [x["name"] for x in get("samplers").json()], "samplers")
    check("normal" in [x["name"] for x in get("schedulers").json()], "schedulers")
    title = get("sd-models").json()[0]["title"]
    check(get("options").json()["sd_model_checkpoint"] == title, "get-model")
    r = d.request("POST", "/sdapi/v1/options", json.dumps({"sd_model_checkpoint": title}),
                  {"Content-Type": "application/json", "Authorization": "Basic Og=="})
    check(r.status == 200, f"set-model: {r.status} {r.body}")
    state = get("progress").json()
    check(state["progress"] == 0 and state["state"]["job_count"] == 0,
          "the daemon is idle after the drawing")
    body = {"url": "http://localhost:7860", "auth": "", "prompt": "a red house on green hills",
            "negative_prompt": "blurry", "sampler_name": "DDIM", "scheduler": "normal", "steps": 20, "cfg_scale": 2.5,
            "width": 128, "height": 128, "restore_faces": False, "enable_hr": False, "hr_upscaler": "Latent",
            "hr_scale": 2, "hr_additional_modules": [], "denoising_strength": 0.7, "hr_second_pass_steps": 0,
            "override_settings": {"CLIP_stop_at_last_layers": 1}, "override_settings_restore_afterwards": True,
            "clip_skip": 1, "save_images": True, "send_images": True, "do_not_save_grid": False,
            "do_not_save_samples": False}
    r = d.request("POST", "/sdapi/v1/txt2img", json.dumps(body),
                  {"Content-Type": "application/json", "Authorization": "Basic Og=="})
    check(r.status == 200 and r.json()["images"][0].startswith("iVBOR"), f"{r.status} {r.body[:200]}")
    body["alwayson_scripts"] = {"ADetailer": {"args": [True, True, {"ad_model": "face_yolov8n.pt"}]}}
    r = d.request("POST", "/sdapi/v1/txt2img", json.dumps(body), {"Content-Type": "application/json"})
    check(r.status == 422 and "ADetailer" in r.json()["detail"][0]["input"], f"{r.status} {r.body[:200]}")
    # When SillyTavern's user stops, it sends an interrupt and drops the request.
    del body["alwayson_scripts"]
    ended = []
    long = threading.Thread(target=lambda: ended.append(d.request(
        "POST", "/sdapi/v1/txt2img", json.dumps({**body, "steps": 900}), {"Content-Type": "application/json"})))
    long.start()
    check(wait_until(lambda: get("progress").json()["state"]["job_count"] == 1),
          "the request is being drawn")
    check(d.request("POST", "/sdapi/v1/interrupt", None, {"Authorization": "Basic Og=="}).status == 200,
          "interrupt with an empty password is accepted")
    long.join()
    check(ended[0].status == 499, f"the interrupted request ends with a 499: {ended[0].status}")


def open_webui(d):
    """Sends exactly the fields of routers/images.py."""
    headers = {"Authorization": "Basic Og=="}
    check(d.get("/sdapi/v1/options", headers).status == 200,
          "Open WebUI's check of the options is answered")
    models = [{"id": m["title"], "name": m["model_name"]} for m in d.get("/sdapi/v1/sd-models", headers).json()]
    check(models[0] == {"id": "one", "name": "one"}, f"{models}")
    options = d.get("/sdapi/v1/options", headers).json()
    options["sd_model_checkpoint"] = "one"  # Open WebUI sends all options back
    r = d.request("POST", "/sdapi/v1/options", json.dumps(options), {**headers, "Content-Type": "application/json"})
    check(r.status == 200, f"{r.status} {r.body}")
    body = {"prompt": "a blue boat", "batch_size": 1, "width": 128, "height": 128, "steps": 20,
            "negative_prompt": "blurry", "cfg_scale": 2.5, "sampler_name": "DPM++ 2M", "scheduler": "Karras"}
    r = d.request("POST", "/sdapi/v1/txt2img", json.dumps(body), {**headers, "Content-Type": "application/json"})
    a = r.json()
    picture = Image.open(io.BytesIO(base64.b64decode(a["images"][0])))
    check(picture.size == (128, 128) and json.loads(a["info"])["steps"] == 20, f"{a['info']}")
    keep("open_webui", picture)


executable, model = sys.argv[1:3]
with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as folder:
    for name in ("one", "two"):
        shutil.copytree(model, f"{root}/{name}", ignore=shutil.ignore_patterns("loras"))
    write_embedding(f"{folder}/two-words.safetensors", model)
    with open(f"{folder}/broken.safetensors", "wb") as f:
        f.write(b"nothing")
    with Daemon(executable, f"{root}/one", extra=("--model-root", root, "--lora-dir", f"{model}/loras",
                                                    "--embeddings-dir", folder)) as daemon:
        client = webuiapi.WebUIApi(host=daemon.host, port=daemon.port)
        picture = draw(client)
        from_pictures(client, picture)
        for test in (lists, upscaling, models, interrupting, refusals):
            test(client)
        silly_tavern(daemon)
        open_webui(daemon)
done()
