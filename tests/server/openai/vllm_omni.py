"""The requests of vLLM-Omni's own tests of its image API, against the daemon, with what those tests
expect of the answers (tests/entrypoints/openai_api/test_image_server.py of vllm-project/vllm-omni
at 00a3619). As there, no model draws. Its pictures of 16 and 24 pixels are 8 times as large here.
LIMITS has what only vLLM-Omni's models can do, and `otherwise` what only the daemon can do.

usage: vllm_omni.py FAKE_LATENTD
"""
import base64
import io
import json
import os
import sys

import httpx
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done

fake = sys.argv[1]
same = 0


def expect(condition, what):
    """Checks what vLLM-Omni's test expects."""
    global same
    same += bool(check(condition, what))


def png(size):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    return file.getvalue()


def draw(client, **fields):
    return client.post("/v1/images/generations", json=fields)


def edit(client, *pictures, name="image", **fields):
    return client.post("/v1/images/edits", files=[(name, p) for p in pictures], data=fields)


def pictures(answer, what):
    """Returns the pictures of an answer of 200."""
    expect(answer.status_code == 200, f"{what}: {answer.status_code} {answer.text[:300]}")
    if answer.status_code != 200:
        return []
    return [Image.open(io.BytesIO(base64.b64decode(i["b64_json"]))) for i in answer.json()["data"]]


def drawn_with(image):
    """Returns the parameters that a picture's file holds."""
    return json.loads(image.info["latentd"])


def health_and_models(client):
    expect(client.get("/health").status_code == 200, "GET /health answers 200")
    listed = client.get("/v1/models")
    data = listed.json()
    expect(listed.status_code == 200 and data["object"] == "list", f"GET /v1/models: {listed.text}")
    expect(data["data"][0]["id"] == "fake" and data["data"][0]["object"] == "model",
           f"the loaded model is the first one: {listed.text}")


def generations(client):
    answer = draw(client, prompt="a cat", n=1, size="1024x1024")
    drawn = pictures(answer, "a single picture")
    expect(isinstance(answer.json().get("created"), int), "`created` is an integer")
    expect([i.size for i in drawn] == [(1024, 1024)], f"one picture of 1024x1024: {drawn}")
    drawn = pictures(draw(client, prompt="a dog", n=3, size="512x512"), "three pictures")
    expect([i.format for i in drawn] == ["PNG"] * 3, f"three PNG files: {drawn}")
    negative = pictures(draw(client, prompt="beautiful landscape", negative_prompt="blurry, low quality",
                             size="1024x1024"), "a negative prompt")
    expect([drawn_with(i)["negative_prompt"] for i in negative] == ["blurry, low quality"],
           "the negative prompt is used")
    for size in ("256x256", "512x512", "1024x1024", "1792x1024", "1024x1792"):
        drawn = pictures(draw(client, prompt="a test image", size=size), size)
        expect(["%dx%d" % i.size for i in drawn] == [size], f"the picture has the size {size}")
    pictures(draw(client, prompt="test", size="1024x1024"), "a request without `model`")
    pictures(draw(client, prompt="a tree", size="1024x1024", flow_shift=None, infer_align_image_size=None),
             "a request without flow_shift and infer_align_image_size")


def parameters(client):
    for seed in (42, 0):
        answer = draw(client, prompt="a tree", seed=seed, size="1024x1024")
        drawn = pictures(answer, f"seed {seed}")
        expect([drawn_with(i)["seed"] for i in drawn] == [seed], f"the seed {seed} is used")
    for fields, wanted in (
            ({"size": "1024x1024", "num_inference_steps": 100, "true_cfg_scale": 5.5, "seed": 123},
             {"num_inference_steps": 100, "guidance_scale": 5.5, "seed": 123}),
            ({"num_inference_steps": 100, "guidance_scale": 7.5, "true_cfg_scale": 3.0, "seed": 42},
             {"num_inference_steps": 100, "guidance_scale": 7.5, "seed": 42}),
            ({"n": 2, "size": "256x256", "seed": 7}, {"width": 256, "height": 256, "seed": 7}),
            ({"n": 2, "size": "128x256", "seed": 7, "num_inference_steps": 12, "guidance_scale": 6.5},
             {"width": 128, "height": 256, "seed": 7, "num_inference_steps": 12, "guidance_scale": 6.5})):
        answer = draw(client, prompt="a mountain", **fields)
        drawn = pictures(answer, f"{fields}")
        expect(len(drawn) == fields.get("n", 1), f"{fields}: {len(drawn)} pictures")
        used = drawn_with(drawn[0]) if drawn else {}
        expect({k: used.get(k) for k in wanted} == wanted, f"{fields}: drawn with {used}")
        warnings = answer.json().get("warnings", [])
        check(("true_cfg_scale has no effect" in " ".join(warnings)) == ({"guidance_scale", "true_cfg_scale"} <= set(fields)),
              f"the answer warns only of a true_cfg_scale beside another guidance_scale: {warnings}")


def refusals(client):
    """vLLM-Omni refuses these with 422 or 400; here it is 400, as at OpenAI, or 404 for a model."""
    for fields, words in (({"prompt": "a cat", "size": "invalid"}, "size"),
                          ({"prompt": "a cat", "size": "1024x"}, "size"),
                          ({"prompt": "a cat", "size": "x1024"}, "size"),
                          ({"prompt": "a cat", "size": "1024"}, "size"),
                          ({"prompt": "a cat", "size": "0x1024"}, "size"),
                          ({"prompt": "a cat", "size": "-1024x1024"}, "size"),
                          ({"prompt": "a cat", "size": ""}, "size"),
                          ({"prompt": "a cat", "size": "abc x def"}, "size"),
                          ({"prompt": "a cat", "size": "1024.5x768.5"}, "size"),
                          ({"prompt": "a cat", "size": "1024 1024"}, "size"),
                          ({"size": "1024x1024"}, "prompt"),
                          ({"prompt": "a cat", "n": 0}, "n:"),
                          ({"prompt": "a cat", "n": 11}, "n:"),
                          ({"prompt": "test", "num_inference_steps": 0}, "num_inference_steps"),
                          ({"prompt": "test", "guidance_scale": -1.0}, "guidance_scale")):
        answer = draw(client, **fields)
        expect(answer.status_code == 400 and words in answer.json()["error"]["message"],
               f"{fields}: {answer.status_code} {answer.text[:200]}")
    for answer in (draw(client, prompt="test", model="Qwen/Qwen-Image-2512", size="1024x1024"),
                   edit(client, png((128, 128)), prompt="edit me", model="Qwen/Qwen-Image-Edit")):
        expect(answer.status_code == 404 and "Qwen/Qwen-Image" in answer.json()["error"]["message"],
               f"another model than the loaded one: {answer.status_code} {answer.text[:200]}")
    two = edit(client, png((128, 128)), png((256, 256)), prompt="hello world.")
    expect(two.status_code == 400 and "one picture" in two.text,
           f"two pictures, where the model takes one: {two.status_code} {two.text[:200]}")


def edits(client):
    for fields in ({}, {"size": "auto"}):
        answer = edit(client, png((192, 128)), prompt="hello world.", **fields)
        drawn = pictures(answer, f"an edit {fields}")
        expect([i.size for i in drawn] == [(192, 128)], f"an edit {fields} has the picture's size: {drawn}")
        expect(answer.json().get("size") == "192x128", f"the answer tells the size: {answer.json().get('size')}")
    drawn = pictures(edit(client, png((128, 128)), name="image[]", prompt="hello world."), "image[]")
    expect(len(drawn) == 1, f"the picture may be called image[]: {len(drawn)} pictures")
    drawn = pictures(edit(client, png((128, 128)), prompt="edit this image", seed=0), "an edit with seed 0")
    expect([drawn_with(i)["seed"] for i in drawn] == [0], "an edit's seed 0 is used")
    answer = edit(client, png((128, 128)), prompt="hello world.", size="128x192", output_format="jpeg",
                  num_inference_steps=20, guidance_scale=8.0, seed=1234, negative_prompt="negative", n=2)
    drawn = pictures(answer, "an edit with all its fields")
    expect([(i.format, i.size) for i in drawn] == [("JPEG", (128, 192))] * 2, f"two JPEG files of 128x192: {drawn}")
    expect((answer.json()["output_format"], answer.json()["size"]) == ("jpeg", "128x192"),
           f"the answer tells format and size: {answer.text[-300:]}")
    answer = edit(client, png((128, 128)), prompt="hello world.", size="128x192", num_inference_steps=20,
                  guidance_scale=8.0, seed=1234, negative_prompt="negative", n=2)
    used = [drawn_with(i) for i in pictures(answer, "the same edit as PNG")]
    expect([(u["num_inference_steps"], u["guidance_scale"], u["seed"], u["negative_prompt"]) for u in used] ==
           [(20, 8.0, 1234, "negative"), (20, 8.0, 1235, "negative")], f"the edit's parameters are used: {used}")


def compression(client):
    sizes = []
    for quality in (100, 50, 10):
        answer = edit(client, png((128, 128)), prompt="hello world.", output_format="jpeg", output_compression=quality)
        expect([i.format for i in pictures(answer, f"quality {quality}")] == ["JPEG"], f"quality {quality} is a JPEG")
        sizes.append(len(answer.json()["data"][0]["b64_json"]))
    expect(sizes[2] < sizes[1] < sizes[0], f"a lower output_compression gives a smaller JPEG: {sizes}")


# What vLLM-Omni's models or settings have and this one does not have: the daemon names what it refuses.
# (what vLLM-Omni's test does, route, fields, what the refusal says)
LIMITS = [
    ("the flow shift of its own models", "generations", {"flow_shift": 10.0}, "flow_shift"),
    ("its models align a picture's size", "generations", {"infer_align_image_size": True}, "infer_align_image_size"),
    ("its models draw layers", "edits", {"layers": "4"}, "layers"),
    ("its models choose a size for a resolution", "edits", {"resolution": "1024"}, "resolution"),
    ("a text model of its own thinks first", "edits", {"bot_task": "think"}, "bot_task"),
    ("a second guidance of video models", "edits", {"guidance_scale_2": "2.0"}, "guidance_scale_2"),
    ("it answers with a file or a zip archive", "generations", {"response_format": "file"}, "response_format"),
    ("it compresses PNG files less well for a higher number", "edits",
     {"output_format": "png", "output_compression": "50"}, "output_compression"),
    ("it knows PNG in capitals", "edits", {"output_format": "PNG"}, "output_format"),
    ("it is started with a limit of 1024x1024; here it is 2048x2048", "generations", {"size": "2056x2048"}, "2048"),
]


def limits(client):
    for what, route, fields, words in LIMITS:
        answer = (draw(client, prompt="test", **fields) if route == "generations" else
                  edit(client, png((128, 128)), prompt="test", **fields))
        check(answer.status_code == 400 and words in answer.json()["error"]["message"],
              f"{what}: {answer.status_code} {answer.text[:200]}")
    # An edit whose pictures are addresses is a form without files there; here it is JSON.
    form = client.post("/v1/images/edits", data={"prompt": "test", "url": "data:image/png;base64,AAAA"})
    check(form.status_code == 415, f"a form without files: {form.status_code} {form.text[:200]}")


def otherwise(client):
    """What vLLM-Omni refuses and the daemon can do."""
    url = draw(client, prompt="a cat", response_format="url")
    check(url.status_code == 200 and client.get(url.json()["data"][0]["url"]).status_code == 200,
          f"response_format url: {url.status_code} {url.text[:200]}")
    stream = edit(client, png((128, 128)), prompt="edit me", stream="true")
    check(stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream") and
          "event: image_edit.completed" in stream.text, f"a streamed edit: {stream.status_code} {stream.text[:200]}")
    steps = draw(client, prompt="test", num_inference_steps=201)
    check(steps.status_code == 200, f"201 steps: {steps.status_code} {steps.text[:200]}")


with Daemon(fake, "fake") as d:
    with httpx.Client(base_url=f"http://{d.host}:{d.port}", timeout=120) as c:
        for part in (health_and_models, generations, parameters, refusals, edits, compression, limits, otherwise):
            part(c)
print(f"compared: {same} expectations of vLLM-Omni's tests, {len(LIMITS) + 1} refusals of what only it has")
done()
