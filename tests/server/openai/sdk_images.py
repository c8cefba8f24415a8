"""The openai package against the daemon with the bundled checkpoint: pictures, edits, variations,
streams, errors, and which errors the package retries.

usage: sdk_images.py LATENTD MODEL [FOLDER]      FOLDER: where to save the pictures
"""
import asyncio
import base64
import io
import json
import os
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import openai
from PIL import Image, ImageDraw

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done

latentd, model = sys.argv[1:3]
folder = sys.argv[3] if len(sys.argv) > 3 else None
name = os.path.basename(model.rstrip("/"))
PROMPT = "a red house on green hills"
FEW = {"seed": 7, "guidance_scale": 2.5, "num_inference_steps": 8}


def client_of(d, kind=openai.OpenAI, **options):
    return kind(base_url=f"http://{d.host}:{d.port}/v1", api_key="none", timeout=120, **options)


def picture(item, what):
    image = Image.open(io.BytesIO(base64.b64decode(item.b64_json)))
    image.load()
    if folder:
        image.save(os.path.join(folder, what + ".png"))
    return image


def pixels(image):
    return np.asarray(image.convert("RGB")).astype(int)


def native(d, **fields):
    r = d.generate({"prompt": PROMPT, **FEW, **fields})
    return Image.open(io.BytesIO(base64.b64decode(r.json()["images"][0]["b64_json"])))


def generations(d, client):
    got = client.images.generate(model=name, prompt=PROMPT, n=2, size="128x128", extra_body=FEW)
    check(all(i.url and i.b64_json for i in got.data),
          "without response_format the answer has url and b64_json")
    check(len(got.data) == 2 and got.size == "128x128" and got.output_format == "png", f"{got.size}")
    check(abs(got.created - time.time()) < 120 and got.background == "opaque", f"{got.created}")
    check(got.quality == "auto" and got.usage.output_tokens == 0, f"{got.quality}")
    check(got.usage.input_tokens == got.usage.input_tokens_details.text_tokens == 6, f"{got.usage}")
    check([i.seed for i in got.data] == [7, 8], f"seeds {[i.seed for i in got.data]}")
    check(got._request_id, "the request's id reaches the client")
    first, second = (picture(i, f"generate{k}") for k, i in enumerate(got.data))
    check(first.format == "PNG" and first.size == (128, 128), f"{first.format} {first.size}")
    check((pixels(first) == pixels(native(d))).all(),
          "the first picture equals that of POST /generate")
    check((pixels(second) == pixels(native(d, seed=8))).all(),
          "the second picture equals that of POST /generate with the next seed")
    check("latentd" in first.info and "parameters" in first.info, "the PNG holds the parameters")

    web = client.images.generate(prompt=PROMPT, response_format="url", output_format="webp",
                                 output_compression=60, quality="low", extra_body={"seed": 1})
    url = web.data[0].url
    with urllib.request.urlopen(url) as answer:
        data, kind = answer.read(), answer.headers["Content-Type"]
    check(kind == "image/webp" and web.data[0].b64_json is None, f"{url}: {kind}")
    check(d.get(urllib.parse.urlparse(url).path).body == data, "the address can be fetched again")
    image = Image.open(io.BytesIO(data))
    check(image.format == "WEBP" and image.size == (128, 128), f"{image.format}")
    check(web.quality == "low" and web.output_format == "webp", f"{web.quality}")
    jpeg = client.images.generate(prompt=PROMPT, output_format="jpeg", extra_body=FEW)
    check(picture(jpeg.data[0], "jpeg").format == "JPEG", "output_format jpeg gives a JPEG")
    # All further fields that OpenAI's clients may send; the package sends None as null.
    hints = client.images.generate(prompt=PROMPT, model="sd15", background="auto", moderation="low",
                                   style="natural", user="me", size=None, n=None, quality="standard",
                                   extra_body=FEW)
    check((pixels(picture(hints.data[0], "hints")) == pixels(first)).all(),
          "fields without an effect do not change the picture")


def edits(d, client):
    begin = native(d)
    file = io.BytesIO()
    begin.save(file, "PNG")
    mask = Image.new("RGBA", (128, 128), (0, 0, 0, 255))
    ImageDraw.Draw(mask).rectangle((64, 0, 127, 127), fill=(0, 0, 0, 0))
    hole = io.BytesIO()
    mask.save(hole, "PNG")
    white = Image.new("L", (128, 128), 0)
    ImageDraw.Draw(white).rectangle((64, 0, 127, 127), fill=255)
    white_file = io.BytesIO()
    white.save(white_file, "PNG")
    prompt = "a yellow house on green hills"
    extra = {"seed": 3, "guidance_scale": 2.5, "num_inference_steps": 10}
    got = client.images.edit(image=("a.png", file.getvalue(), "image/png"), prompt=prompt,
                             mask=("m.png", hole.getvalue(), "image/png"), n=2, extra_body=extra)
    check(len(got.data) == 2 and got.size == "128x128", f"{len(got.data)} pictures")
    edited = pixels(picture(got.data[0], "edit"))
    picture(got.data[1], "edit1")
    away = np.abs(edited - pixels(begin)).mean(axis=(0, 2))
    print(f"masked half {away[72:].mean():.1f} levels from the picture, the other {away[:56].mean():.1f}")
    check(away[72:].mean() > 2 * away[:56].mean(), "the mask's transparent part is drawn anew")
    fields = dict(prompt=prompt, init_image=base64.b64encode(file.getvalue()).decode(),
                  mask_image=base64.b64encode(white_file.getvalue()).decode(), **extra)
    check((edited == pixels(native(d, **fields))).all(),
          "the edit equals POST /generate with a mask that is white in the same half")
    # The same edit as JSON, as the published EditImageBodyJsonParam has it.
    def url(data):
        return {"image_url": "data:image/png;base64," + base64.b64encode(data).decode()}
    r = d.request("POST", "/v1/images/edits", json.dumps({"prompt": prompt, "images": [url(file.getvalue())],
                  "mask": url(hole.getvalue()), "n": 2, **extra}), {"Content-Type": "application/json; charset=utf-8"})
    check(r.status == 200 and [i["b64_json"] for i in r.json()["data"]] == [i.b64_json for i in got.data],
          f"an edit in JSON draws the same as the form: {r.status} {r.body[:200]}")
    # A picture that is transparent itself is its own mask, as dall-e-2 has it.
    begin.putalpha(mask.getchannel("A"))
    own = io.BytesIO()
    begin.save(own, "PNG")
    alone = client.images.edit(image=("a.png", own.getvalue()), prompt=prompt, n=2, extra_body=extra)
    check(all((pixels(picture(a, "own_mask")) == pixels(picture(b, "edit"))).all() for a, b in zip(alone.data, got.data)),
          "a picture's own alpha is used as its mask")
    begin.putalpha(255)
    begin.save(own := io.BytesIO(), "PNG")
    opaque, none = (client.images.edit(image=("a.png", data.getvalue()), prompt=prompt, extra_body=extra).data[0]
                    for data in (own, file))
    check((pixels(picture(opaque, "opaque")) == pixels(picture(none, "no_mask"))).all(),
          "an opaque alpha channel is no mask")
    # An edit without a mask: the picture is sent as a list (the newer models' form), resized, and
    # drawn at another strength.
    alone = client.images.edit(image=[("a.png", file.getvalue())], prompt=prompt, size="64x128",
                               input_fidelity="high", extra_body=extra)
    check(alone.size == "64x128", alone.size)
    fields = dict(prompt=prompt, init_image=base64.b64encode(file.getvalue()).decode(), strength=0.5,
                  width=64, height=128, resize_mode="crop", **extra)
    check((pixels(picture(alone.data[0], "edit_alone")) == pixels(native(d, **fields))).all(),
          "an edit without a mask equals POST /generate with init_image")
    varied = client.images.create_variation(image=("a.png", file.getvalue()), n=1,
                                            extra_body={"strength": 0.6, "seed": 4})
    check(picture(varied.data[0], "variation").size == (128, 128),
          "a variation has the picture's size")
    for what, options, words in (
            ("a mask without transparency", {"mask": ("m.png", white_file.getvalue())}, "transparent"),
            ("a mask of another size", {"mask": ("m.png", png_of(64, 64))}, "128x128"),
            ("no picture", {"image": ("a.png", b"nothing")}, "PNG, JPEG or WebP"),
            ("two pictures", {"image": [("a.png", file.getvalue())] * 2}, "one picture"),
            ("a wrong number", {"n": 11}, "1 to 10"),
            ("a wrong field", {"extra_body": {"colour": "red"}}, "no such field")):
        try:
            client.images.edit(**{"image": ("a.png", file.getvalue()), "prompt": prompt, **options})
            check(False, f"{what} was taken")
        except openai.BadRequestError as e:
            check(words in e.message, f"{what}: {e.message}")
    return file.getvalue()


def png_of(width, height):
    file = io.BytesIO()
    Image.new("RGBA", (width, height)).save(file, "PNG")
    return file.getvalue()


def streams(d, client, begin):
    events = list(client.images.generate(prompt=PROMPT, stream=True, partial_images=2,
                                         extra_body={**FEW, "num_inference_steps": 12}))
    kinds = [e.type for e in events]
    check(kinds == ["image_generation.partial_image"] * 2 + ["image_generation.completed"], f"{kinds}")
    check([e.partial_image_index for e in events[:-1]] == [0, 1],
          "partial images are numbered from 0")
    last = pixels(picture(events[-1], "stream"))
    check((last == pixels(native(d, num_inference_steps=12))).all(),
          "the streamed picture equals the one without a stream")
    previous = 1e9
    for e in events[:-1]:
        image = picture(e, f"partial{e.partial_image_index}")
        away = np.abs(pixels(image.resize((128, 128))) - last).mean()
        check(image.format.lower() == e.output_format and away < previous,
              f"partial {e.partial_image_index}: {image.format} {away:.1f} levels away")
        print(f"partial image {e.partial_image_index}: {image.size}, {away:.1f} levels from the last")
        previous = away
    check(events[-1].usage.input_tokens == 6 and events[-1].size == "128x128",
          "the last event has usage and size")
    none = list(client.images.generate(prompt=PROMPT, stream=True, extra_body=FEW))
    check([e.type for e in none] == ["image_generation.completed"], "one event without partial images")
    edit = list(client.images.edit(image=("a.png", begin), prompt=PROMPT, stream=True, partial_images=1,
                                   extra_body=FEW))
    check([e.type for e in edit] == ["image_edit.partial_image", "image_edit.completed"],
          f"{[e.type for e in edit]}")


def raw_stream(d):
    """Checks the bytes of the stream: each block is a comment, or an event line and a data line.
    The package's decoder fails on anything else."""
    r = d.request("POST", "/v1/images/generations",
                  json.dumps({"prompt": PROMPT, "stream": True, "partial_images": 1, **FEW}),
                  {"Content-Type": "application/json"})
    text = r.body.decode()
    check(r.headers["content-type"].startswith("text/event-stream"), r.headers["content-type"])
    for block in text.split("\n\n")[:-1]:
        lines = block.split("\n")
        comment = all(line.startswith(":") for line in lines)
        check(comment or [line.partition(":")[0] for line in lines] == ["event", "data"], block[:60])


def errors(d, client):
    for what, options, kind, status, param, code in (
            ("size", {"size": "100x100"}, openai.BadRequestError, 400, "size", "invalid_value"),
            ("model", {"model": "dall-e-3"}, openai.NotFoundError, 404, "model", "model_not_found"),
            ("lora", {"model": name + ":nobody"}, openai.NotFoundError, 404, "model",
             "model_not_found"),
            ("field", {"extra_body": {"colour": 1}}, openai.BadRequestError, 400, "colour",
             "unknown_parameter")):
        try:
            client.images.generate(**{"prompt": PROMPT, **options})
            check(False, f"{what} was taken")
        except openai.APIStatusError as e:
            check(type(e) is kind and e.status_code == status and e.code == code and e.request_id,
                  f"{what}: {e!r} {e.code}")
            check(e.param == param, f"{what}: {e.param}")
            check(set(e.body) == {"message", "type", "param", "code"}, f"{e.body}")
    try:
        client.post("/nope", cast_to=object, body={})
        check(False, "/v1/nope")
    except openai.NotFoundError as e:
        check(e.code == "not_found", f"{e.body}")


async def at_once(d):
    client = client_of(d, openai.AsyncOpenAI)
    one, two, listed = await asyncio.gather(
        client.images.generate(prompt=PROMPT, extra_body=FEW),
        client.images.generate(prompt=PROMPT, stream=True, partial_images=1, extra_body=FEW),
        client.models.list())
    events = [e async for e in two]
    check(events[-1].type == "image_generation.completed",
          "the asynchronous client gets the stream's last event")
    check(events[-1].b64_json == one.data[0].b64_json,
          "the asynchronous stream draws the same picture")
    check([m.id async for m in listed][0] == name, "the asynchronous client lists the models")
    await client.close()


with Daemon(latentd, model, extra=("--lora-dir", os.path.join(model, "loras"))) as d:
    client = client_of(d)
    generations(d, client)
    begin = edits(d, client)
    streams(d, client, begin)
    raw_stream(d)
    errors(d, client)
    asyncio.run(at_once(d))
done()
