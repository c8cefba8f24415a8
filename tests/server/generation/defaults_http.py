"""The defaults of a checkpoint and those of the daemon: they apply in every API and on the command
line, and GET /info shows them. A value that a client sends takes precedence, even if it equals the
built-in default. usage: defaults_http.py EXECUTABLE MODEL"""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402
from generate_http import png_texts  # noqa: E402

executable, model = sys.argv[1:3]
WORDS = {"prompt": "a red house", "seed": 1, "num_inference_steps": 2}


def post(d, path, body, **headers):
    return d.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})


def checkpoint(folder, defaults):
    """Makes a copy of the bundled checkpoint with these defaults (None: without a file of
    defaults). Returns its folder."""
    path = os.path.join(folder, f"model-{len(os.listdir(folder))}")
    os.mkdir(path)
    for name in os.listdir(model):
        if name != "latentd.json":
            os.symlink(os.path.join(os.path.abspath(model), name), os.path.join(path, name))
    if defaults is not None:
        with open(os.path.join(path, "latentd.json"), "w") as f:
            f.write(defaults if isinstance(defaults, str) else json.dumps({"defaults": defaults}))
    return path


def used(d, **fields):
    r = post(d, "/generate", {**WORDS, **fields})
    check(r.status == 200, f"{fields}: {r.body[:300]}")
    return r.json()["parameters"]


def infotext(picture):
    text = png_texts(picture)["parameters"]
    return {name: re.search(rf"{name}: ([^,\n]+)", text)[1] for name in ("Steps", "CFG scale", "Size")}


def the_scheduler(path):
    """A default scheduler replaces the checkpoint's, and a client's own choice replaces both."""
    own = {"name": "dpmpp_2m", "use_karras_sigmas": True}
    with Daemon(executable, path, extra=["--dtype", "f32"]) as d:
        told = d.get("/info").json()["model"]
        check(told["defaults"]["scheduler"] == own and told["default_scheduler"] == "dpmpp_2m", f"{told}")
        check(told["default_scheduler_options"]["use_karras_sigmas"]["default"] is True,
              "the default scheduler's options are shown")
        check(d.get("/schedulers").json()["default"] == "dpmpp_2m", "GET /schedulers")
        named = used(d, scheduler=own)["scheduler"]
        check(named["name"] == "dpmpp_2m" and named["use_karras_sigmas"] is True, f"{named}")
        open_ = post(d, "/generate", {**WORDS, "output": "latent"})
        same = post(d, "/generate", {**WORDS, "output": "latent", "scheduler": own})
        check(open_.json()["images"] == same.json()["images"],
              "latents with the default scheduler equal those with the scheduler named")
        check(used(d)["scheduler"] == named,
              f"a request without a scheduler uses the default: {used(d)['scheduler']}")
        check(used(d, scheduler={"use_karras_sigmas": False})["scheduler"]["use_karras_sigmas"] is False,
              "an option without a name applies to the default scheduler")
        kept = used(d, scheduler={"timestep_spacing": "trailing"})["scheduler"]
        check((kept["name"], kept["use_karras_sigmas"], kept["timestep_spacing"]) == ("dpmpp_2m", True, "trailing"),
              f"an option without a name leaves the default's other options: {kept}")
        check(used(d, scheduler="ddim")["scheduler"]["name"] == "ddim",
              "a request's own scheduler is used")
        drawn = [json.loads(post(d, "/sdapi/v1/txt2img", {"prompt": "a", "steps": 2, "width": 64, "height": 64, **more}
                                 ).json()["info"]) for more in ({}, {"sampler_name": "Euler"})]
        check([one["sampler_name"] for one in drawn] == ["DPM++ 2M", "Euler"], f"{drawn}")
        check([re.search("Sampler: ([^,]+), Schedule type: ([^,]+)", one["infotexts"][0]).groups() for one in drawn] ==
              [("DPM++ 2M", "Karras"), ("Euler", "Uniform")], f"AUTOMATIC1111's names: {drawn}")
    with Daemon(executable, path, extra=["--dtype", "f32", "--default", "scheduler=euler_ancestral"]) as d:
        check(used(d)["scheduler"]["name"] == "euler_ancestral",
              "the daemon's --default overrides the checkpoint's")


def without_any(path):
    with Daemon(executable, path, extra=["--dtype", "f32"]) as d:
        p = used(d)
        check((p["guidance_scale"], p["width"], p["negative_prompt"]) == (7.5, 128, ""),
              f"the built-in defaults apply: {p}")
        told = d.get("/info").json()["model"]["defaults"]
        check(told["guidance_scale"] == 7.5 and told["num_inference_steps"] == 25 and "width" not in told, f"{told}")
        r = post(d, "/sdapi/v1/txt2img", {"prompt": "a", "width": 64, "height": 64})
        found = infotext(base64.b64decode(r.json()["images"][0]))
        check((found["Steps"], found["CFG scale"]) == ("50", "7"),
              f"AUTOMATIC1111's route uses AUTOMATIC1111's defaults: {found}")


def the_checkpoints_own(path):
    state = tempfile.mkdtemp()
    with Daemon(executable, path, extra=["--dtype", "f32", "--state-dir", state,
                                         "--default", "negative_prompt=grey, dull", "--default", "clip_skip=1",
                                         "--default", "guidance_scale=3.5"]) as d:
        told = d.get("/info").json()["model"]["defaults"]
        check(told == {"negative_prompt": "grey, dull", "width": 64, "height": 72, "num_inference_steps": 3,
                       "guidance_scale": 3.5, "guidance_rescale": 0.25, "clip_skip": 1, "long_prompt": "chunk",
                       "vae_tiling": "auto"},
                       f"the daemon's defaults override the checkpoint's: {told}")
        p = post(d, "/generate", {"prompt": "a", "seed": 1}).json()["parameters"]
        check({name: p[name] for name in told if name != "vae_tiling"} ==
              {name: told[name] for name in told if name != "vae_tiling"},
              f"a request without these fields gets the defaults: {p}")
        sent = {"negative_prompt": "", "width": 128, "height": 128, "guidance_scale": 7.5, "guidance_rescale": 0,
                "clip_skip": 0, "long_prompt": "truncate", "num_inference_steps": 25}
        p = used(d, **sent)
        check({name: p[name] for name in sent} == sent,
              f"values that a request sends are used, also if they equal the built-in defaults: {p}")
        p = used(d, init_image=base64.b64encode(picture_of(d, 128, 64)).decode(), strength=1)
        check((p["width"], p["height"]) == (128, 64),
              f"a request with init_image has the picture's size: {p}")
        for name, body, found in apis(d):
            check(found == {"Steps": "3", "CFG scale": "3.5", "Size": "64x72"}, f"{name}: {found}")
            found = infotext(body(True))
            check(found == {"Steps": "5", "CFG scale": "7.5", "Size": "128x64"},
                  f"{name}, with fields of the request: {found}")
        job = post(d, "/generate?async=1", {"prompt": "a", "seed": 1}).json()["id"]
        check(wait_until(lambda: d.get(f"/jobs/{job}").json()["state"] == "succeeded", 60),
              "the job succeeds")
        request = d.get(f"/jobs/{job}").json()["request"]
        check(request.get("guidance_scale") == 3.5 and request.get("num_inference_steps") == 3,
              f"a stored job has the defaults of its acceptance: {request}")


def picture_of(d, width, height):
    return post(d, "/generate", {**WORDS, "width": width, "height": height}, Accept="image/png").body


def apis(d):
    """Yields (API, function that draws a PNG, what the PNG's infotext says if no field is
    given). The function's argument says whether all fields are given."""
    def openai(given):
        more = {"guidance_scale": 7.5, "num_inference_steps": 5, "size": "128x64"} if given else {}
        r = post(d, "/v1/images/generations", {"prompt": "a", **more})
        return base64.b64decode(r.json()["data"][0]["b64_json"])

    def sdapi(given):
        more = {"cfg_scale": 7.5, "steps": 5, "width": 128, "height": 64} if given else {}
        return base64.b64decode(post(d, "/sdapi/v1/txt2img", {"prompt": "a", **more}).json()["images"][0])

    def hugging_face(given):
        more = {"guidance_scale": 7.5, "num_inference_steps": 5, "width": 128, "height": 64} if given else {}
        return post(d, "/hf", {"inputs": "a", "parameters": more}, Accept="image/png").body

    for function in (openai, sdapi, hugging_face):
        yield function.__name__, function, infotext(function(False))


def wrong_files_are_named(folder):
    for text, words in (('{"defaults": {"guidance_scale": 300}}', ("guidance_scale", "300", "from 0 to 100")),
                        ('{"defaults": {"seed": 3}}', ("seed", "num_inference_steps, guidance_scale")),
                        ('{"defaults": {"glow": 3}}', ("glow",)), ('{"defaults": 7}', ("defaults", "7")),
                        ('{"defaults": {"scheduler": "glow"}}', ("scheduler", "glow", "ddim")),
                        ('{"defaults": {"scheduler": {"name": "ddim", "eta": 1}}}', ("scheduler.eta", "only a request")),
                        ('{"defaults": {"scheduler": {"name": "ddim", "use_karras_sigmas": true}}}',
                         ("scheduler.use_karras_sigmas",)),
                        ('{}', ("defaults",)),
                        ('{"defaults": {}, "guidance_scale": 3}', ("guidance_scale", "only key")), ('{"defaults": {', ("JSON",))):
        path = checkpoint(folder, text)
        r = subprocess.run([executable, "generate", "--model", path, "--prompt", "a", "-o", "/dev/null"],
                           capture_output=True, text=True, timeout=120)
        check(r.returncode == 1 and all(word in r.stderr for word in ("latentd.json", *words)),
              f"{text}: {r.returncode} {r.stderr}")
    for text, words in (("guidance_scale", "FIELD=VALUE"), ("glow=1", "a field that can have a default:"),
                        ("clip_skip=x", "an integer from 0"), ("scheduler=glow", "ddim"),
                        ("scheduler={", "JSON")):
        r = subprocess.run([executable, "serve", "--model", model, "--listen", "127.0.0.1:0", "--default", text],
                           capture_output=True, text=True, timeout=60)
        check(r.returncode == 2 and "--default" in r.stderr and words in r.stderr, f"{text}: {r.stderr}")


with tempfile.TemporaryDirectory() as work:
    without_any(checkpoint(work, None))
    own = checkpoint(work, {"guidance_scale": 2, "width": 64, "height": 72, "num_inference_steps": 3,
                            "guidance_rescale": 0.25, "long_prompt": "chunk"})
    the_checkpoints_own(own)
    drawn = os.path.join(work, "drawn.png")
    subprocess.run([executable, "generate", "--model", own, "--prompt", "a", "-o", drawn, "--quiet"], check=True)
    with open(drawn, "rb") as f:
        found = infotext(f.read())
    check(found == {"Steps": "3", "CFG scale": "2", "Size": "64x72"}, f"latentd generate: {found}")
    the_scheduler(checkpoint(work, {"scheduler": {"name": "dpmpp_2m", "use_karras_sigmas": True}}))
    wrong_files_are_named(work)
done()
