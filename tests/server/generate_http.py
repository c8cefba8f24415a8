"""POST /generate and the daemon's other answers over HTTP, as documented by the API. usage:
generate_http.py EXECUTABLE"""
import base64
import http.client
import json
import socket
import struct
import sys
import threading
import zlib

from daemon import (Daemon, check, done, exchange, generate_bytes, read_responses,
                    wait_until)
from png_file import gradient, left_half, png_base64

LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")  # of the CPU
MULTIPLE = "an integer that is a multiple of 8 from 64 to 2048; leave it out for the model's size"


def png_chunks(data):
    """Returns {type: [data]} for a PNG. Asserts that its checksums are right (computed with
    zlib)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0]
        chunks.setdefault(kind.decode(), []).append(body)
        at += 12 + size
    return chunks


def png_texts(data):
    texts = {}
    for body in png_chunks(data).get("tEXt", []):
        keyword, _, text = body.partition(b"\0")
        texts[keyword.decode()] = text.decode("latin-1")
    for body in png_chunks(data).get("iTXt", []):
        keyword, _, rest = body.partition(b"\0")
        texts[keyword.decode()] = rest.split(b"\0", 4)[4].decode("utf-8")
    return texts


def json_answer(d):
    r = d.generate({"prompt": ["a cat", "a dog"], "num_images": 2, "seed": 7, "width": 128,
                    "guidance_scale": 7.1, "scheduler": {"name": "ddim", "eta": 0.5}},
                   {"X-Request-Id": "my.id-1"})
    check(r.status == 200, f"200, not {r.status}: {r.body[:200]}")
    a = r.json()
    check(set(a) == {"id", "created", "images", "parameters", "loras", "timings",
                      "warnings", "model", "vae_tiled"} and a["model"].startswith("fake"), f"{set(a)}")
    check(a["id"] == "my.id-1" == r.headers["x-request-id"],
          "the answer has the client's request id")
    check([i["seed"] for i in a["images"]] == [7, 8, 9, 10],
          "the images' seeds count up from the request's")
    for image in a["images"]:
        check(set(image) == {"b64_json", "seed", "nsfw", "width", "height"}, f"{set(image)}")
        check((image["width"], image["height"]) == (128, 64), "size")
        header = png_chunks(base64.b64decode(image["b64_json"], validate=True))["IHDR"][0]
        check(struct.unpack(">IIBBBBB", header) == (128, 64, 8, 2, 0, 0, 0),
              "the file is an 8-bit RGB PNG of the requested size")
    p = a["parameters"]
    check(p["seed"] == 7 and p["height"] == 64 and p["num_inference_steps"] == 25, f"resolved: {p}")
    check(p["scheduler"] == {"name": "ddim", "timestep_spacing": "leading", "prediction_type": "epsilon",
                             "eta": 0.5, "beta_schedule": "scaled_linear", "steps_offset": 1,
                             "set_alpha_to_one": False, "rescale_betas_zero_snr": False},
          f"scheduler {p['scheduler']}")
    check(a["timings"]["steps"] == 4 * 25 and a["timings"]["total_s"] >= 0, f"{a['timings']}")
    check(a["warnings"] == [], "no warnings")
    texts = png_texts(base64.b64decode(a["images"][2]["b64_json"]))
    lines = texts["parameters"].split("\n")
    check(lines[0] == "a dog", "image 2 of 2x2 is the second prompt's")
    check(lines[1].startswith("Steps: 25, Sampler: DDIM, CFG scale: 7.1, Seed: 9, Size: 128x64, "),
          lines[1])
    check("Eta: 0.5" in lines[1] and "RNG: CPU" in lines[1], lines[1])
    return texts["latentd"], a["images"][2]["b64_json"]


def a_picture_is_its_own_request(d, body, b64):
    """The `latentd` text of a picture, posted unchanged, draws the same picture."""
    r = d.request("POST", "/generate", body, {"Content-Type": "application/json"})
    check(r.status == 200,
          f"the picture's `latentd` text is accepted as a request: {r.status} {r.body[:300]}")
    check(r.json()["images"][0]["b64_json"] == b64, "that request draws the same bytes")


def png_answer(d):
    r = d.generate({"prompt": "caf\u00e9, \u732b", "negative_prompt": "bad", "seed": 3, "clip_skip": 1,
                    "rng": "cuda"}, {"Accept": "image/png"})
    check(r.status == 200 and r.headers["content-type"] == "image/png", f"{r.status}")
    check(r.headers["x-seed"] == "3", "the header X-Seed has the seed")
    check(len(r.headers["x-request-id"]) == 24, "a request without an id gets one of 24 characters")
    texts = png_texts(r.body)
    check(texts["parameters"].startswith("caf\u00e9, \u732b\nNegative prompt: bad\nSteps: 25, "),
          texts["parameters"])
    check("Clip skip: 2" in texts["parameters"] and "RNG: NV" in texts["parameters"],
          "clip skip and noise source are written as AUTOMATIC1111 writes them")
    check(json.loads(texts["latentd"])["prompt"] == "caf\u00e9, \u732b",
          "the `latentd` text has the prompt in JSON")
    for fields, param in (({"num_images": 2}, "num_images"), ({"prompt": ["a", "b"]}, "prompt"),
                          ({"output": "latent"}, "output")):
        r = d.generate({"prompt": "a", **fields}, {"Accept": "image/png"})
        check(r.status == 400 and r.error()["param"] == param, f"{fields}: {r.status} {r.body[:200]}")
    check(d.generate({"prompt": "a"}, {"Accept": "text/html"}).status == 406, "406")


EMBEDS = {"b64": base64.b64encode(bytes(2 * 768 * 4)).decode(), "shape": [2, 768]}
PICTURE, MASK = png_base64(64, 64, gradient), png_base64(64, 64, left_half(64))


def picture_to_begin_with(d):
    r = d.generate({"prompt": "a", "init_image": PICTURE, "mask_image": "data:image/png;base64," + MASK,
                    "strength": 0.5, "num_inference_steps": 10})
    p = r.json()["parameters"]
    check(r.status == 200 and p["strength"] == 0.5 and p["resize_mode"] == "none", f"{r.body[:300]}")
    check(p["init_image"] == {"bytes": len(base64.b64decode(PICTURE))} and "mask_image" in p, f"{p}")
    check(r.json()["timings"]["steps"] == 6,
          "PNDM makes the last 6 of its 11 evaluations, as in diffusers")
    check("Denoising strength: 0.5" in png_texts(base64.b64decode(
        r.json()["images"][0]["b64_json"]))["parameters"],
        "the strength is written under AUTOMATIC1111's name")
    for fields, size in (({}, None), ({"resize_mode": "default"}, (96, 80)),
                         ({"resize_mode": "crop", "width": 64, "height": 128}, (64, 128)),
                         ({"resize_mode": "fill", "width": 64, "height": 128}, (64, 128))):
        r = d.generate({"prompt": "a", "init_image": png_base64(100, 83, gradient), **fields})
        if size:
            image = r.json()["images"][0]
            check((image["width"], image["height"]) == size, f"{fields}: {image['width']}x{image['height']}")
        else:
            check(r.status == 400 and r.error()["param"] == "init_image" and
                  r.error()["value"] == "100x83 px", f"{r.body}")
    info = d.get("/info").json()["model"]
    check(info["needs_mask_image"] is False, f"{info}")


def other_formats(d):
    """JPEG and WebP, selected by Accept or by a field. Their texts are in the EXIF data."""
    fields = {"prompt": "caf\u00e9", "seed": 3, "quality": 70}
    for word, magic in (("jpeg", b"\xff\xd8\xff\xe0"), ("webp", b"RIFF")):
        r = d.generate(fields, {"Accept": f"image/{word}"})
        check(r.status == 200 and r.headers["content-type"] == f"image/{word}" and
              r.headers["x-seed"] == "3" and r.body.startswith(magic), f"{word}: {r.status} {r.body[:60]}")
        check("caf\u00e9\nSteps: 25".encode("utf-16-be") in r.body and b'"prompt":"caf\\u00E9"' in r.body,
              f"the {word} file holds the parameters")
        a = d.generate(fields | {"output": word}).json()
        check(base64.b64decode(a["images"][0]["b64_json"]) == r.body,
              "the JSON answer holds the same file")
        check(a["parameters"]["output"] == word and a["parameters"]["quality"] == 70, f"{a['parameters']}")
        r = d.generate(fields | {"output": word}, {"Accept": "image/*"})
        check(r.headers["content-type"] == f"image/{word}",
              "the field `output` decides if Accept allows every type")
        r = d.generate({"prompt": "a", "output": word}, {"Accept": "image/png"})
        check(r.status == 400 and r.error()["param"] == "output", f"{r.body}")
    check(d.generate({"prompt": "a"}, {"Accept": "image/*"}).headers["content-type"] == "image/png",
          "Accept: image/* is answered with a PNG")
    default_quality(d)


def quantization(jpeg):
    """Returns the quantization tables of a JPEG, from its DQT segments."""
    at, tables = 2, []
    while jpeg[at + 1] != 0xda:  # the scan
        size = struct.unpack(">H", jpeg[at + 2:at + 4])[0]
        if jpeg[at + 1] == 0xdb:
            tables += jpeg[at + 4:at + 2 + size]
        at += 2 + size
    return tables


def vp8(webp):
    """Returns a WebP file without its metadata."""
    at = 12
    while webp[at:at + 4] != b"VP8 ":
        size = struct.unpack("<I", webp[at + 4:at + 8])[0]
        at += 8 + size + size % 2
    return webp[at:at + 8 + struct.unpack("<I", webp[at + 4:at + 8])[0]]


def default_quality(d):
    """The default quality is 90, as in docs/images.md. For JPEG, the first entry of the
    standard's table is 16. libjpeg multiplies it by (200 - 2 * quality) percent, which gives
    3."""
    for word, of in (("jpeg", quantization), ("webp", vp8)):
        def drawn(**quality):
            r = d.generate({"prompt": "a", "seed": 3, **quality}, {"Accept": f"image/{word}"})
            check(r.status == 200, f"{r.body[:200]}")
            return of(r.body)
        default = drawn()
        same = [q for q in (70, 80, 85, 90, 95, 100) if drawn(quality=q) == default]
        print(f"{word}: the default is that of quality {same}")
        check(same == [90], f"{word}: {same}")
        check(word != "jpeg" or default[1] == (16 * (200 - 2 * 90) + 50) // 100, f"{default[:4]}")


def latent_answer(d):
    r = d.generate({"prompt": "a", "seed": 5, "output": "latent", "width": 64, "height": 128})
    image = r.json()["images"][0]
    check(image["shape"] == [4, 16, 8] and image["dtype"] == "float32", f"{image}"[:200])
    values = struct.unpack("<512f", base64.b64decode(image["b64_latent"]))
    check(values == tuple(float(5 + k) for k in range(512)), "latents are little-endian floats")


def errors(d):
    r = d.generate({"prompt": "a", "width": 511})
    check(r.status == 400 and r.error() == {
        "code": "invalid_request", "param": "width", "value": "511",
        "allowed": MULTIPLE, "message": f"width: 511 is not allowed; {MULTIPLE}"}, f"{r.body}")
    r = d.generate({"prompt": "a", "stream": "yes"})
    check(r.status == 400 and r.error()["param"] == "stream", "stream must be true or false")
    r = d.generate({"prompt": "a", "preview_every": 2})
    check(r.status == 400 and r.error()["param"] == "preview_every",
          "previews without a stream are refused")
    r = d.generate({"prompt": "a", "scheduler": {"name": "pndm", "eta": 0.5}})
    check(r.status == 400 and r.error()["param"] == "scheduler.eta" and
          "pndm has no such option" in r.error()["allowed"], f"PNDM has no option eta: {r.body}")
    r = d.generate({"prompt": "a", "num_images": 3, "prompt\u00e9\u732b" * 20: 1})
    check(r.status == 400 and "there is no such field" in r.error()["allowed"],
          "a long unknown key is refused")
    key = "prompt\u00e9\u732b" * 20
    check(len(r.error()["param"]) > 40 and key.startswith(r.error()["param"]) and
          r.error()["message"].startswith(r.error()["param"] + ": 1 is not"),
          f"the error quotes the beginning of the long key: {r.error()}")
    r = d.request("POST", "/generate?later=1", "{}", {"Content-Type": "application/json"})
    check(r.status == 400 and r.error()["param"] == "query", f"{r.status}")
    r = d.generate({"prompt": "a"}, {"Idempotency-Key": "a b"})
    check(r.status == 400 and r.error()["param"] == "Idempotency-Key", f"{r.status}")
    r = d.request("POST", "/generate", "", {"Content-Type": "application/json"})
    check(r.status == 400 and "empty" in r.error()["message"],
          f"an empty body is a 400: {r.status}")
    for prompt, status in (("fail:device", 500), ("fail:memory", 507), ("fail:internal", 500)):
        r = d.generate({"prompt": prompt})
        check(r.status == status and r.error()["message"], f"{prompt}: {r.status}")
        check(r.headers.get("x-request-id"), "an error answer has a request id")
    r = d.generate({"prompt": "warn:the prompt was cut: \"rest\""})
    check(r.json()["warnings"] == ["the prompt was cut: \"rest\""],
          "the engine's warnings are in the answer")
    r = d.generate({"prompt": "a", "num_inference_steps": 900, "timeout_s": 0.2})
    check(r.status == 504 and r.error()["code"] == "timeout", f"timeout_s: {r.status} {r.body}")


def routes(d):
    check(d.get("/health").json() == {"status": "ok", "state": "ready"}, "health")
    check(d.get("/health/ready").json() == {"status": "ready"}, "ready")
    info = d.get("/info").json()
    check(info["model"]["default_width"] == 64 and info["queue"] == {"depth": 0, "max": 64}, f"{info}")
    used = info["implementations"]
    check(used["level"] in LEVELS and used["linear"] == used["attention"] == "f32" and
          used["conv 3x3"] == used["upsampling"] == "f32, Winograd's form", f"weights are f32: {used}")
    schedulers = d.get("/schedulers").json()
    options = {s["name"]: s["options"] for s in schedulers["schedulers"]}
    check({"ddpm", "ddim", "pndm"} <= set(options) and schedulers["default"] == "pndm", f"{options}")
    check(options["ddim"]["eta"].items() >= {"type": "number", "minimum": 0, "maximum": 1,
                                             "default": 0}.items(), f"{options['ddim']['eta']}")
    check(options["pndm"]["steps_offset"]["maximum"] == 999,
          "steps_offset is below the model's 1000 timesteps")
    check(options["pndm"]["prediction_type"]["enum"] == ["epsilon", "v_prediction"] and
          options["ddim"]["prediction_type"]["enum"] == ["epsilon", "v_prediction", "sample"],
          "each scheduler lists the prediction types that it supports")
    check("eta" not in options["pndm"] and "skip_prk_steps" not in options["pndm"],
          "PNDM lists none of the options that it does not have")
    check(info["model"]["default_scheduler_options"] == options["pndm"],
          "GET /info shows the default scheduler's options as GET /schedulers does")
    for name in options:
        resolved = d.generate({"prompt": "a", "scheduler": name}).json()["parameters"]["scheduler"]
        check(resolved == {"name": name} | {k: v["default"] for k, v in options[name].items()},
              f"{name}'s defaults are what it uses: {resolved}")
    for path in ("/nope", "/web/nope", "/health/", "/healthx", "/generate/", "/%68ealth", "/HEALTH"):
        check(d.get(path).status == 404, f"404 for {path}")
    check(d.request("POST", "/nope", "{}", {"Content-Type": "application/json"}).status == 404, "POST")
    error = d.get("/v1/nope").error()  # in OpenAI's form
    check(error == {"message": "there is no such path here", "type": "invalid_request_error", "param": None,
                    "code": "not_found"}, f"/v1/nope: {error}")
    r = d.request("POST", "/health", "{}", {"Content-Type": "application/json"})
    check(r.status == 405 and r.headers["allow"] == "GET, HEAD, OPTIONS", f"405: {r.status}")
    r = d.get("/generate")
    check(r.status == 405 and r.headers["allow"] == "POST, OPTIONS", f"405: {r.status}")
    check(d.request("DELETE", "/generate").status == 405, "DELETE")
    check(d.request("PROPFIND", "/health").status == 405, "PROPFIND is a 405")
    r = d.request("OPTIONS", "/generate")
    check(r.status == 204 and r.headers["allow"] == "POST, OPTIONS" and r.body == b"", "OPTIONS")
    get, head = d.get("/info"), d.request("HEAD", "/info")
    check(head.status == 200 and head.body == b"" and
          head.headers["content-length"] == get.headers["content-length"],
          "HEAD answers like GET, without the body")
    check(d.request("HEAD", "/generate").status == 405, "HEAD of a POST route is a 405")
    responses, _ = exchange(d, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check([r.status for r in responses] == [204], "OPTIONS *")


def two_requests_share_a_connection(d):
    c = http.client.HTTPConnection(d.host, d.port, timeout=20)
    c.connect()
    port = c.sock.getsockname()[1]
    for n in range(3):
        c.request("POST", "/generate", json.dumps({"prompt": "a", "seed": n}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        check(r.status == 200 and json.loads(r.read())["images"][0]["seed"] == n, f"request {n}")
        check(c.sock and c.sock.getsockname()[1] == port, "all requests used one connection")
    c.close()
    # Pipelined: both requests are sent before the first answer.
    data = generate_bytes({"prompt": "a", "seed": 1}) + generate_bytes({"prompt": "a", "seed": 2})
    responses, closed = exchange(d, data, count=2)
    check([r.json()["images"][0]["seed"] for r in responses] == [1, 2],
          "pipelined requests are answered in order")
    check(not closed, "the connection stays open after pipelined requests")


def a_body_may_come_in_pieces(d):
    data = generate_bytes({"prompt": "a", "seed": 4}, b"Expect: 100-continue\r\n")
    with d.connect() as s:
        head, _, body = data.partition(b"\r\n\r\n")
        s.sendall(head + b"\r\n\r\n")
        check(s.recv(100).startswith(b"HTTP/1.1 100 "), "100 Continue")
        for i in range(len(body)):
            s.sendall(body[i:i + 1])
        responses, _ = read_responses(s)
        check([r.status for r in responses] == [200], "a request sent byte by byte is answered")


def a_large_body_is_refused_before_it_is_sent(d):
    size = 40 << 20
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
           b"Content-Length: %d\r\n" % size
    responses, closed = exchange(d, head + b"Expect: 100-continue\r\n\r\n", close=True)
    check([r.status for r in responses] == [413] and closed,
          "an announced body over the limit is a 413 instead of a 100")
    body = json.dumps({"prompt": "a" * 20000}).encode()
    r = d.request("POST", "/generate", body, {"Content-Type": "application/json"})
    check(r.status == 400 and "16384 bytes" in r.error()["allowed"], "a long prompt is a 400")
    body = b'{"prompt": "a"' + b" " * (20 << 20) + b"}"
    r = d.request("POST", "/generate", body, {"Content-Type": "application/json"})
    check(r.status == 200, f"a body with 20 MB of white space is accepted: {r.status}")


def bomb(width, height):
    data = bytearray(base64.b64decode(PICTURE))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return base64.b64encode(data).decode()


# Requests that this model cannot draw, and the field that the error names. The rows of the lower
# half are valid for other models: this one has 12 layers of text encoder, 1000 timesteps, and a
# scheduler without that option.
UNDRAWABLE = [
    ({"prompt": 1}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": "a" * 16385}, "prompt"),
    ({"negative_prompt": "a" * 16385}, "negative_prompt"),
    ({"width": 511}, "width"),
    ({"height": 4096}, "height"),
    ({"num_inference_steps": 0}, "num_inference_steps"),
    ({"guidance_scale": 101}, "guidance_scale"),
    ({"guidance_rescale": -0.5}, "guidance_rescale"),
    ({"scheduler": "unknown"}, "scheduler"),
    ({"scheduler": {"eta": "x"}}, "scheduler.eta"),
    ({"seed": -1}, "seed"),
    ({"subseed": -1}, "subseed"),
    ({"subseed_strength": 1.5}, "subseed_strength"),
    ({"seed_resize_from_w": 100, "seed_resize_from_h": 64}, "seed_resize_from_w"),
    ({"seed_resize_from_w": 128}, "seed_resize_from_h"),
    ({"masked_content": "noise"}, "masked_content"),
    ({"init_image": PICTURE, "mask_image": MASK, "resize_mode": "latent"}, "resize_mode"),
    ({"rng": "gpu"}, "rng"),
    ({"num_images": 17}, "num_images"),
    ({"prompt": ["a", "b"], "num_images": 9}, "num_images"),
    ({"clip_skip": -1}, "clip_skip"),
    ({"long_prompt": "cut"}, "long_prompt"),
    ({"prompt_syntax": "comfy"}, "prompt_syntax"),
    ({"prompt_syntax": "a1111", "long_prompt": "truncate"}, "long_prompt"),
    ({"output": "jpg"}, "output"),
    ({"quality": 80}, "quality"),
    ({"output": "webp", "quality": 0}, "quality"),
    ({"timeout_s": 86401}, "timeout_s"),
    ({"loras": {}}, "loras"),
    ({"priority": 4}, "priority"),
    ({"model": 7}, "model"),
    ({"vae_tiling": "yes"}, "vae_tiling"),
    ({"unknown": 1}, "unknown"),
    ({"strength": 0.5}, "strength"),
    ({"mask_image": MASK}, "mask_image"),
    ({"resize_mode": "stretch", "init_image": PICTURE}, "resize_mode"),
    ({"init_image": "http://localhost/a.png"}, "init_image"),
    ({"init_image": PICTURE[:-8]}, "init_image"),
    ({"init_image": base64.b64encode(b"GIF89a" + bytes(100)).decode()}, "init_image"),
    ({"init_image": PICTURE, "strength": 1.01}, "strength"),
    ({"init_image": PICTURE, "strength": 0.03}, "strength"),
    ({"init_image": PICTURE, "width": 128}, "init_image"),
    ({"init_image": PICTURE, "mask_image": png_base64(64, 72, gradient)}, "mask_image"),
    ({"init_image": PICTURE, "mask_image": "AAAA"}, "mask_image"),
    # Files whose header claims too large a picture; nothing is decoded.
    ({"init_image": bomb(2056, 64)}, "init_image"),
    ({"init_image": bomb(100000, 100000)}, "init_image"),
    ({"init_image": bomb(4104, 64), "resize_mode": "default"}, "init_image"),

    ({"clip_skip": 12}, "clip_skip"),
    ({"prompt": "a b " * 301, "long_prompt": "chunk"}, "prompt"),
    ({"loras": [{"name": "snow"}]}, "loras[0].name"),
    ({"prompt_syntax": "a1111", "prompt": "a <lora:snow:0.5> house"}, "prompt"),
    ({"prompt_syntax": "a1111", "prompt": "[" + "|".join(map(str, range(129))) + "]",
      "num_inference_steps": 150}, "prompt"),
    ({"prompt_syntax": "a1111", "prompt": "a house AND a boat", "guidance_scale": 1}, "prompt"),
    ({"prompt_syntax": "a1111", "prompt": " AND ".join("abcdefghi"), "guidance_scale": 2}, "prompt"),
    ({"prompt_syntax": "a1111", "prompt": "(" * 65}, "prompt"),
    ({"prompt_syntax": "a1111", "prompt": "a house:1.2", "guidance_scale": 1}, "prompt"),
    ({"prompt_syntax": "a1111", "negative_prompt": "(a:1.2.3)"}, "negative_prompt"),
    ({"prompt_embeds": EMBEDS}, "prompt_embeds"),
    ({"negative_prompt": "a", "negative_prompt_embeds": EMBEDS}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": EMBEDS | {"shape": [2, 1, 768]}}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": "AAAA"}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": EMBEDS | {"shape": [1, 2, 3]}}, "negative_prompt_embeds.b64"),
    ({"negative_prompt_embeds": EMBEDS | {"shape": [1, 1536]}}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": EMBEDS | {"shape": [2, -768]}}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": EMBEDS | {"dtype": "float16"}}, "negative_prompt_embeds"),
    ({"negative_prompt_embeds": EMBEDS | {"b64": "AAA"}}, "negative_prompt_embeds.b64"),
    ({"num_inference_steps": 1000}, "num_inference_steps"),
    ({"num_inference_steps": 1000, "scheduler": "ddim"}, "num_inference_steps"),
    ({"scheduler": {"name": "pndm", "eta": 0.5}}, "scheduler.eta"),
    ({"scheduler": {"name": "pndm", "rescale_betas_zero_snr": True}}, "scheduler.rescale_betas_zero_snr"),
    ({"scheduler": {"name": "pndm", "prediction_type": "sample"}}, "scheduler.prediction_type"),
    ({"scheduler": {"name": "ddim", "steps_offset": 1000}}, "scheduler.steps_offset"),
]


def what_cannot_be_drawn_is_refused_at_once(d, depth):
    """Requests that cannot be drawn are refused even while `depth` other requests are ahead of
    them."""
    for fields, param in UNDRAWABLE:
        r = d.generate({"prompt": "a", **fields})
        check(r.status == 400 and r.error()["param"] == param and r.error()["allowed"],
              f"{str(fields)[:80]}: {r.status} {r.body[:300]}")
    check(d.depth() == depth, f"none of the refused requests was queued")


def every_field_can_be_refused(d):
    """The table above has a row for every field."""
    fields = set(d.generate({"prompt": "a", "timeout_s": 9, "output": "jpeg", "quality": 80, "init_image": PICTURE,
                             "mask_image": MASK}).json()["parameters"])
    missing = fields - {param for _, param in UNDRAWABLE}
    check(len(fields) >= 14 and not missing, f"fields without a row of wrong values: {missing}")


def a_full_queue_is_a_429(executable):
    with Daemon(executable, "fake,step_ms=1000") as d:
        waiting = [d.connect() for _ in range(66)]  # one is drawn, 64 wait, one is refused
        body = generate_bytes({"prompt": "a", "num_inference_steps": 20})
        waiting[0].sendall(body)
        check(d.is_drawing(), "one request is being drawn")
        for s in waiting[1:65]:
            s.sendall(body)
        check(d.gets_to_depth(65), "64 requests wait")
        waiting[65].sendall(body)
        responses, closed = read_responses(waiting[65])
        check([r.status for r in responses] == [429], f"{[r.status for r in responses]}")
        check(responses[0].error()["code"] == "queue_full", "queue_full")
        check(int(responses[0].headers["retry-after"]) >= 1, "Retry-After")
        check(not closed, "the connection may be used again")
        what_cannot_be_drawn_is_refused_at_once(d, 65)
        for s in waiting:
            s.close()
        check(d.gets_to_depth(0),
              "the queue is empty after all clients left")


def a_client_that_leaves_cancels(executable):
    with Daemon(executable, "fake,step_ms=20") as d:
        long = generate_bytes({"prompt": "a", "num_inference_steps": 900})  # 18 s
        with d.connect() as s:
            s.sendall(long)
            check(d.is_drawing(), "the request is being drawn")
        check(d.gets_to_depth(0, 5), "a client that leaves cancels its request")
        # A waiting request is cancelled too, while the one before it continues.
        with d.connect() as first, d.connect() as second:
            first.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 200}))
            check(d.is_drawing(), "one request is being drawn")
            second.sendall(long)
            check(d.gets_to_depth(2), "another request waits")
            second.close()
            check(d.gets_to_depth(1, 5), "the waiting request of a client that left is removed")
            responses, _ = read_responses(first)
            check([r.status for r in responses] == [200],
                  "the request that is being drawn is not disturbed")
        check("the client went away" in d.read_log(), "the log says that the client went away")
        # A client that closes only its sending side counts as gone too, but can read the reason.
        with d.connect() as s:
            s.sendall(long)
            check(d.is_drawing(), "the request is being drawn")
            s.shutdown(socket.SHUT_WR)
            responses, _ = read_responses(s)
            check([r.status for r in responses] == [499] and
                  "closed its side" in responses[0].error()["message"],
                  f"{[(r.status, r.body) for r in responses]}")


def many_at_once(executable):
    with Daemon(executable, "fake,step_ms=1") as d:
        results = []

        def client(n):
            for k in range(4):
                seed = n * 10 + k
                r = d.generate({"prompt": "a", "seed": seed, "num_inference_steps": 3},
                               {"X-Request-Id": f"c{n}-{k}"})
                results.append(r.status == 200 and r.json()["images"][0]["seed"] == seed and
                               r.json()["id"] == f"c{n}-{k}")
        threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(results == [True] * 48, f"{sum(results)} of 48 got their own answer")


if __name__ == "__main__":
    executable = sys.argv[1]
    with Daemon(executable, "fake,step_ms=1") as daemon:
        text, picture = json_answer(daemon)
        a_picture_is_its_own_request(daemon, text, picture)
        png_answer(daemon)
        latent_answer(daemon)
        picture_to_begin_with(daemon)
        other_formats(daemon)
        errors(daemon)
        what_cannot_be_drawn_is_refused_at_once(daemon, 0)
        every_field_can_be_refused(daemon)
        routes(daemon)
        two_requests_share_a_connection(daemon)
        a_body_may_come_in_pieces(daemon)
        a_large_body_is_refused_before_it_is_sent(daemon)
    a_full_queue_is_a_429(executable)
    a_client_that_leaves_cancels(executable)
    many_at_once(executable)
    done()
