"""Bodies that are expensive to parse: JSON with millions of values, keys and escapes, and
pictures of 4096 x 4096 in files of a few KB. Several clients send them in every dialect
without a pause. Others are served meanwhile. usage: bodies.py LATENTD MODEL"""
import base64
import contextlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from bystander import ends_in_time, judge, measure, real_drawing  # noqa: E402
from daemon import Daemon, check, done  # noqa: E402
from png_file import png_of_rows  # noqa: E402

LATENTD, MODEL = sys.argv[1:]
DRAIN_S = 10
# Pause of a client that leaves. With four such clients the daemon gets 10 bodies a second of up to
# 32 MB, 2.5 Gbit/s. Receiving four times as much would use most of a processor.
LEAVERS_PAUSE_S = 0.4
SIDE = 4096  # base/limits.h: INIT_IMAGE_MAX_PX
JSON = "application/json"
FORM = "multipart/form-data; boundary=xyz"
LIMIT = 64 << 10  # HTTP_READ_AT_ONCE_BYTES: the limit of routes without pictures or long prompts

KEYS = b"{" + b",".join(b'"%x":1' % i for i in range(1900000)) + b"}"
VALUES = b'{"prompt":[' + b"0," * 1900000 + b"0]}"
ESCAPES = b'{"prompt":"' + b"\\u0041" * 5200000 + b'"}'
LONG = b'{"prompt":"' + b"a" * (31 << 20) + b'"}'

PICTURE = png_of_rows(SIDE, [bytes(3 * SIDE)] * SIDE)
LINE = png_of_rows(SIDE, [bytes(3 * SIDE)] * (SIDE // 2) + [b"\xff" * (3 * SIDE)] + [bytes(3 * SIDE)] * (SIDE // 2 - 1))
BASE64 = base64.b64encode(PICTURE).decode()
DRAW = {"num_inference_steps": 1, "width": 64, "height": 64, "guidance_scale": 1, "seed": 1, "strength": 1,
        "resize_mode": "default"}


def part(name, data, file_name=""):
    file_name = f'; filename="{file_name}"' if file_name else ""
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{file_name}\r\n\r\n'.encode() + data + b"\r\n"


EDIT = (part("image", PICTURE, "a.png") + part("prompt", b"a") + part("size", b"64x64") +
        part("num_inference_steps", b"1") + part("strength", b"1") + b"--xyz--\r\n")
JSON_BODIES = [
    ("/generate", JSON, KEYS), ("/generate", JSON, VALUES), ("/generate", JSON, ESCAPES), ("/generate", JSON, LONG),
    ("/generate?async=1", JSON, ESCAPES), ("/sdapi/v1/txt2img", JSON, ESCAPES),
    ("/v1/images/generations", JSON, ESCAPES), ("/hf", JSON, ESCAPES), ("/sdapi/v1/png-info", JSON, ESCAPES),
]
PICTURES = [
    ("/generate", JSON, json.dumps({"prompt": "a", "init_image": BASE64, **DRAW}).encode()),
    ("/generate", JSON, json.dumps({"prompt": "a", "init_image": BASE64, "mask_image": BASE64, **DRAW}).encode()),
    ("/generate?async=1", JSON, json.dumps({"prompt": "a", "init_image": BASE64, **DRAW}).encode()),
    ("/hf", JSON, json.dumps({"inputs": "a", "parameters": {"init_image": BASE64, **DRAW}}).encode()),
    ("/sdapi/v1/img2img", JSON, json.dumps({"prompt": "a", "init_images": [BASE64], "mask": BASE64, "steps": 1,
                                            "width": 64, "height": 64}).encode()),
    # The mask is blurred with the largest radius, and the result is composed over the whole
    # picture.
    ("/sdapi/v1/img2img", JSON, json.dumps({"prompt": "a", "init_images": [BASE64], "steps": 1,
                                            "mask": base64.b64encode(LINE).decode(), "mask_blur": 64,
                                            "inpainting_fill": 0, "width": 64, "height": 64}).encode()),
    ("/v1/images/edits", FORM, EDIT),
]
SHORT = ["/sdapi/v1/options", "/loras/one", "/internal/progress", "/v1/load_lora_adapter"]


def post(daemon, path, kind, body):
    """Returns the status and the beginning of the answer; (0, the reason) if there is no answer."""
    c = http.client.HTTPConnection(daemon.host, daemon.port, timeout=120)
    try:
        c.request("POST", path, body, {"Content-Type": kind})
        r = c.getresponse()
        return r.status, r.read()[:200]
    except OSError as e:
        return 0, repr(e).encode()
    finally:
        c.close()


class Attack:
    """Clients that send these bodies again and again, each client starting with a different
    body. With `leaves` they hang up as soon as a body is sent."""

    def __init__(self, daemon, bodies, clients=4, leaves=False):
        self.daemon, self.bodies, self.leaves = daemon, bodies, leaves
        self.stop, self.statuses = threading.Event(), {}
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(clients)]

    def run(self, k):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # real attackers have their own processors
        while not self.stop.is_set():
            path, kind, body = self.bodies[k % len(self.bodies)]
            k += 1
            if self.leaves:
                with contextlib.suppress(OSError), self.daemon.connect() as s:
                    s.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" %
                              (path.encode(), kind.encode(), len(body)) + body)
                time.sleep(LEAVERS_PAUSE_S)
                continue
            status = post(self.daemon, path, kind, body)[0]
            self.statuses[status] = self.statuses.get(status, 0) + 1
            if status == 0:
                time.sleep(0.1)  # the daemon has ended

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stop.set()
        for t in self.threads:
            t.join()


def start(folder):
    return Daemon(LATENTD, MODEL, extra=["--state-dir", f"{folder}/state", "--lora-dir", folder,
                                         "--drain-timeout", str(DRAIN_S)])


def all_are_answered(daemon):
    for path, kind, body in JSON_BODIES:
        status, text = post(daemon, path, kind, body)
        print(f"{path}: {len(body) >> 20} MiB of JSON: {status} {text.decode()[:100]}", flush=True)
        check(status in (400, 422), f"{path}: an invalid body is a 400 or 422, not {status} {text}")
    for path, kind, body in PICTURES:
        status, text = post(daemon, path, kind, body)
        print(f"{path}: {len(body)} bytes, {SIDE} x {SIDE} pixels: {status}", flush=True)
        check(status in (200, 202), f"{path}: {status} {text}")
    for path in SHORT:
        over = post(daemon, path, JSON, b'{"a":"' + b"a" * LIMIT + b'"}')
        check(over[0] == 413 and str(LIMIT).encode() in over[1],
              f"{path}: a body over {LIMIT} bytes is a 413, not {over}")
        fits = post(daemon, path, JSON, b'{"a":"' + b"a" * (LIMIT - 8) + b'"}')
        check(fits[0] not in (0, 413), f"{path}: a body of {LIMIT} bytes is read, not {fits}")


def others_are_served(daemon, name, bodies, leaves=False):
    alone = measure(daemon)
    with Attack(daemon, bodies, leaves=leaves) as attack:
        judge(name, alone, measure(daemon))
    print(f"{name}: the attackers' answers: {attack.statuses}")
    check(leaves or sum(attack.statuses.values()) > 0,
          f"{name}: the attackers' requests were answered")
    check(0 not in attack.statuses, f"{name}: each attacker gets an answer: {attack.statuses}")


real_drawing()
with tempfile.TemporaryDirectory() as work:
    with start(work) as d:
        all_are_answered(d)
        others_are_served(d, "large JSON", JSON_BODIES)
        others_are_served(d, "large JSON of clients that leave", JSON_BODIES, leaves=True)
        others_are_served(d, "large pictures", PICTURES)
        with Attack(d, JSON_BODIES):
            measure(d, 1)
            ends_in_time(d, DRAIN_S, "large JSON")
    with start(work) as d, Attack(d, PICTURES, clients=8):
        measure(d, 1)
        ends_in_time(d, DRAIN_S, "large pictures")
done()
