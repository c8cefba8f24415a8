"""Sends this daemon the requests of AUTOMATIC1111's own API tests (test/ of its repository at 1.10)
and expects the answers that those tests expect. Left out are the tests of hires fix, scripts and
captioning models, which latentd does not have. usage: webui_tests.py EXECUTABLE"""
import base64
import json
import sys

from daemon import Daemon, check, done

TXT2IMG = {"batch_size": 1, "cfg_scale": 7, "denoising_strength": 0, "enable_hr": False, "eta": 0,
           "firstphase_height": 0, "firstphase_width": 0, "height": 64, "n_iter": 1, "negative_prompt": "",
           "prompt": "example prompt", "restore_faces": False, "s_churn": 0, "s_noise": 1, "s_tmax": 0, "s_tmin": 0,
           "sampler_index": "Euler a", "seed": -1, "seed_resize_from_h": -1, "seed_resize_from_w": -1, "steps": 3,
           "styles": [], "subseed": -1, "subseed_strength": 0, "tiling": False, "width": 64}
IMG2IMG = {"batch_size": 1, "cfg_scale": 7, "denoising_strength": 0.75, "eta": 0, "height": 64, "include_init_images": False,
           "init_images": None, "inpaint_full_res": False, "inpaint_full_res_padding": 0, "inpainting_fill": 0,
           "inpainting_mask_invert": False, "mask": None, "mask_blur": 4, "n_iter": 1, "negative_prompt": "",
           "override_settings": {}, "prompt": "example prompt", "resize_mode": 0, "restore_faces": False, "s_churn": 0,
           "s_noise": 1, "s_tmax": 0, "s_tmin": 0, "sampler_index": "Euler a", "seed": -1, "seed_resize_from_h": -1,
           "seed_resize_from_w": -1, "steps": 3, "styles": [], "subseed": -1, "subseed_strength": 0, "tiling": False,
           "width": 64}
# What a test changes in TXT2IMG.
VARIATIONS = [
    {},
    {"negative_prompt": "example negative prompt"},
    {"prompt": "((emphasis)), (emphasis1:1.1), [to:1], [from::2], [from:to:0.3], [alt|alt1]"},
    {"height": 128},
    {"tiling": True},
    {"restore_faces": True},
    {"sampler_index": "PLMS"},
    {"sampler_index": "DDIM"},
    {"sampler_index": "UniPC"},
    {"n_iter": 2},
    {"batch_size": 2},
    # The other fields of a seed, a style that is not there, and an eta.
    {"seed": 5, "subseed": 6, "subseed_strength": 0.5},
    {"seed_resize_from_w": 128, "seed_resize_from_h": 128},
    {"styles": ["None"]},
    {"sampler_index": "DDIM", "eta": 0.5},
]
# What a test changes in IMG2IMG; the mask is the picture.
PICTURES = [
    {},
    {"mask": True},
    {"mask": True, "inpainting_mask_invert": True},
    *({"mask": True, "inpainting_fill": fill} for fill in (1, 2, 3)),
    *({"resize_mode": mode, "width": 128} for mode in (0, 1, 2, 3)),
]
LISTS = ["cmd-flags", "samplers", "upscalers", "sd-models", "hypernetworks", "face-restorers", "realesrgan-models",
         "prompt-styles", "embeddings"]


def post(d, name, body):
    return d.request("POST", f"/sdapi/v1/{name}", json.dumps(body), {"Content-Type": "application/json"})


def main(executable):
    with Daemon(executable, "fake,step_ms=1") as d:
        for change in VARIATIONS:
            r = post(d, "txt2img", {**TXT2IMG, **change})
            check(r.status == 200, f"txt2img {change}: {r.status} {r.body[:300]}")
        picture = post(d, "txt2img", TXT2IMG).json()["images"][0]
        for change in PICTURES:
            mask = picture if change.get("mask") else None
            r = post(d, "img2img", {**IMG2IMG, "init_images": [picture], **change, "mask": mask})
            check(r.status == 200, f"img2img {change}: {r.status} {r.body[:300]}")
        extras = {"resize_mode": 0, "show_extras_results": True, "gfpgan_visibility": 0, "codeformer_visibility": 0,
                  "codeformer_weight": 0, "upscaling_resize": 2, "upscaling_resize_w": 128, "upscaling_resize_h": 128,
                  "upscaling_crop": True, "upscaler_1": "Lanczos", "upscaler_2": "None", "extras_upscaler_2_visibility": 0,
                  "image": picture}
        r = post(d, "extra-single-image", extras)
        check(r.status == 200, f"extra-single-image: {r.status} {r.body[:300]}")
        check(base64.b64decode(r.json()["image"])[16:24] == bytes((0, 0, 0, 128)) * 2,
              "extra-single-image doubles the picture's size")
        r = post(d, "png-info", {"image": picture})
        check(r.status == 200 and "example prompt" in r.json()["info"], f"png-info: {r.status} {r.body[:300]}")
        options = d.get("/sdapi/v1/options")
        check(options.status == 200, f"options: {options.status}")
        before = options.json()["send_seed"]
        r = post(d, "options", {"send_seed": not before})
        check(r.status == 200, f"options are written: {r.status} {r.body[:300]}")
        check(d.get("/sdapi/v1/options").json()["send_seed"] is not before,
              "the written option is kept")
        for name in LISTS:
            check(d.get(f"/sdapi/v1/{name}").status == 200, name)
        print(f"compared: {len(VARIATIONS) + len(PICTURES)} drawings, {len(LISTS)} lists, extras, png-info and options")


if __name__ == "__main__":
    main(sys.argv[1])
    done()
