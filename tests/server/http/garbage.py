"""Two hundred kinds of garbage, sent many times: the daemon continues to serve, and neither its
memory nor its open files grow. usage: garbage.py EXECUTABLE"""
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, generate_bytes, wait_until  # noqa: E402

KINDS = 200
GROWTH_MAX_KB = 1024  # growth of resident memory over all rounds
GROWTH_MAX_KB_ASAN = 65536  # AddressSanitizer holds back freed memory

VALID = {"prompt": "a cat", "negative_prompt": "b", "width": 64, "height": 64,
         "num_inference_steps": 3, "guidance_scale": 7.5, "seed": 1, "num_images": 1,
         "scheduler": {"name": "ddim", "eta": 0.5}, "output": "png"}
WRONG = [None, True, -1, 0, 1e308, 2 ** 62, "", "x", "\u0001", [], [[]], [1], {}, {"a": {"b": 1}}, "y" * 3000]


def wrong_field(r):
    body = dict(VALID)
    body[r.choice([*VALID, "unknown", "loras", "prompt "])] = r.choice(WRONG)
    return generate_bytes(json.dumps(body).encode())


def flipped_body(r):
    body = bytearray(json.dumps(VALID).encode())
    for _ in range(r.randint(1, 8)):
        body[r.randrange(len(body))] = r.randrange(256)
    return generate_bytes(bytes(body))


def cut_body(r):
    body = json.dumps(VALID).encode()
    return generate_bytes(body[:r.randrange(len(body))])


def nested(r):
    n = r.choice([15, 17, 100, 5000])
    return generate_bytes(b'{"prompt":' + b"[" * n + b"]" * n + b"}")


def random_bytes(r):
    return r.randbytes(r.randrange(1, 4000))


def random_body(r):
    return generate_bytes(r.randbytes(r.randrange(1, 4000)))


def random_header(r):
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + r.randbytes(r.randrange(1, 200)) + \
        b"\r\n\r\n"


def flipped_head(r):
    data = bytearray(generate_bytes(VALID))
    end = data.index(b"\r\n\r\n")
    for _ in range(r.randint(1, 4)):
        data[r.randrange(end)] = r.randrange(256)
    return bytes(data)


def cut_request(r):
    data = generate_bytes(VALID)
    return data[:r.randrange(1, len(data))]


def promised_body(r):
    """Announces a large Content-Length, then leaves."""
    return generate_bytes(VALID, b"").replace(b"Content-Length: ", b"Content-Length: 99999")


MAKERS = [wrong_field, flipped_body, cut_body, nested, random_bytes, random_body, random_header,
          flipped_head, cut_request, promised_body]


def throw(d, data):
    """Sends the bytes, reads what is answered at once, and disconnects."""
    with d.connect() as s:
        s.settimeout(0.05)
        try:
            s.sendall(data)
            while s.recv(65536):
                pass
        except (TimeoutError, ConnectionError):
            pass


def kind(n):
    return MAKERS[n % len(MAKERS)](random.Random(n))


with Daemon(sys.argv[1]) as d:
    def quiet():
        return d.depth() == 0

    sizes, files = [], []
    for n in range(4):
        for k in range(KINDS):
            throw(d, kind(k))
        check(wait_until(quiet), "the queue becomes empty")
        check(d.generate(VALID).status == 200, f"the daemon draws after round {n}")
        sizes.append(d.rss_kb())
        files.append(d.open_files())
    print(f"{KINDS} kinds, 4 rounds: resident {sizes} KB, open files {files}")
    limit = GROWTH_MAX_KB_ASAN if d.is_sanitized() else GROWTH_MAX_KB
    check(sizes[-1] - sizes[0] <= limit, f"memory grew by {sizes[-1] - sizes[0]} KB")
    check(files[-1] <= files[0] + 4, f"open files grew from {files[0]} to {files[-1]}")
done()
