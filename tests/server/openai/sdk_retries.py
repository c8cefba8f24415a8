"""How the openai package handles the daemon's errors: which exception it raises, and what it
retries. The daemon has no model; its steps take a given time.

usage: sdk_retries.py FAKE_LATENTD
"""
import json
import os
import socket
import sys
import threading

import openai

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done, exchange, wait_until

fake = sys.argv[1]
ERRORS = {"message", "type", "param", "code"}


def client_of(d, tries=None, **options):
    """Returns a client. `tries`: a list that gets an entry for each request sent."""
    client = openai.OpenAI(base_url=f"http://{d.host}:{d.port}/v1", api_key="none", timeout=20, **options)
    send = client._client.send

    def count(request, **more):
        if tries is not None:
            tries.append(request.url.path)
        return send(request, **more)

    client._client.send = count
    return client


def raised(what, kind, code, sent, call, tries):
    tries.clear()
    try:
        call()
        check(False, f"{what} was answered")
    except kind as e:
        check(type(e) is kind and e.code == code and set(e.body) == ERRORS and e.request_id, f"{what}: {e!r} {e.body}")
    check(len(tries) == sent, f"{what}: sent {len(tries)} times")


def failures(d):
    tries = []
    client = client_of(d, tries)
    draw = lambda prompt, **options: client.images.generate(prompt=prompt, **options)
    raised("a wrong field", openai.BadRequestError, "invalid_value", 1, lambda: draw("a", n=11), tries)
    raised("a device's fault", openai.InternalServerError, "device_error", 3, lambda: draw("fail:device"), tries)
    raised("a deadline", openai.InternalServerError, "timeout", 1,
           lambda: draw("a", extra_body={"timeout_s": 0.02, "num_inference_steps": 900}), tries)
    raised("no data sets", openai.InternalServerError, "unsupported", 1, lambda: client.files.list(), tries)
    # In a stream an error is sent as an event.
    try:
        list(client.images.generate(prompt="fail:internal", stream=True))
        check(False, "a failed stream raises an error")
    except openai.APIError as e:
        check("NaN" in e.message and set(e.body) == ERRORS, f"{e!r} {e.body}")


def cancelled(d):
    """A cancelled request is not retried."""
    tries = []
    client = client_of(d, tries)

    def cancel():
        check(wait_until(lambda: d.request("POST", "/generate/mine/cancel").status == 200),
              "the request can be cancelled")

    thread = threading.Thread(target=cancel)
    thread.start()
    raised("a cancelled one", openai.APIStatusError, "cancelled", 1, lambda: client.images.generate(
        prompt="a", extra_body={"num_inference_steps": 900}, extra_headers={"X-Request-Id": "mine"}), tries)
    thread.join()


def full_queue():
    """The client waits for the time in Retry-After and is served in the end."""
    with Daemon(fake, "fake,step_ms=20,images=1", extra=["--max-queue", "1"]) as d:
        tries, answers = [], []
        client = client_of(d, tries, max_retries=30)

        def long():
            answers.append(d.generate({"prompt": "a", "num_inference_steps": 150}).status)
        threads = [threading.Thread(target=long) for _ in range(2)]
        for i, thread in enumerate(threads):
            thread.start()
            check(wait_until(lambda i=i: d.depth() > i), "one more request is accepted")
            check(d.is_drawing(), "one request is being drawn, so only the second waits")
        impatient = client_of(d, max_retries=0)
        try:
            impatient.images.generate(prompt="a")
            check(False, "a full queue refuses the request")
        except openai.RateLimitError as e:
            wait = int(e.response.headers["retry-after"])
            check(e.code == "rate_limit_exceeded" and 1 <= wait < 120, f"{e!r} {wait}")
        got = client.images.generate(prompt="a", extra_body={"num_inference_steps": 2})
        check(got.data[0].b64_json and len(tries) > 1,
              f"the client's retries succeed: {len(tries)} requests sent")
        for thread in threads:
            thread.join()
        check(answers == [200, 200], f"{answers}")


def signs_of_life():
    """During long steps the stream has comments, which the package skips. It has no ids and no
    other lines."""
    with Daemon(fake, "fake,step_ms=30,images=1", extra=["--heartbeat", "1"]) as d:
        body = {"prompt": "a", "num_inference_steps": 80, "stream": True}
        r = d.request("POST", "/v1/images/generations", json.dumps(body), {"Content-Type": "application/json"})
        blocks = r.body.decode().split("\n\n")
        comments = [b for b in blocks if b.startswith(":")]
        check(comments and blocks[-1] == "",
              f"the stream has comments while it waits, and ends with an empty line: {len(comments)}")
        for block in blocks[:-1]:
            fields = [line.partition(":")[0] for line in block.split("\n")]
            check(fields in ([""], ["event", "data"]), f"{block[:80]}")
        events = list(client_of(d).images.generate(prompt="a", stream=True, extra_body={"num_inference_steps": 80}))
        check([e.type for e in events] == ["image_generation.completed"], f"{len(events)} events")


def forms(d):
    """Forms as other clients write them, and broken ones."""
    image = b"\x89PNG\r\n\x1a\n"

    def post(path, body, boundary=b"XX"):
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=%s\r\n" \
               b"Content-Length: %d\r\n\r\n" % (path.encode(), boundary, len(body))
        return exchange(d, head + body)[0][0]

    part = b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    for what, body, words in (
            ("no end", part % (b"prompt", b"a"), "last boundary"),
            ("no part", b"--XX--\r\n", "no part"),
            ("JSON", b'{"prompt": "a"}', "no part"),
            ("a broken head", b"--XX\r\nContent-Disposition: form-data\r\n\r\na\r\n--XX--\r\n", "names"),
            ("no picture", part % (b"prompt", b"a") + b"--XX--\r\n", "required"),
            ("half a picture", part % (b"image", image) + part % (b"prompt", b"a") + b"--XX--\r\n", "PNG")):
        r = post("/v1/images/edits", body)
        check(r.status == 400 and words in r.error()["message"] and set(r.error()) == ERRORS, f"{what}: {r.body}")
    for type in ("multipart/form-data", "multipart/form-data; boundary=a b", "application/xml", "text/plain"):
        r = d.request("POST", "/v1/images/edits", b"{}", {"Content-Type": type})
        check(r.status == 415 and r.error()["code"] == "unsupported_media_type", f"{type}: {r.status} {r.body}")
    r = d.request("GET", "/v1/images/edits")
    check(r.status == 405 and r.headers["allow"] == "POST, OPTIONS" and set(r.error()) == ERRORS, f"{r.body}")
    # The bodies that Open WebUI sends, also with extra fields set by its administrator.
    for more in ({}, {"size": "64x64"}, {"response_format": "b64_json"}, {"steps": None, "seed": 3}, {"steps": 3}):
        body = {"model": "sd15", "prompt": "a cat", "n": 1, **more}
        r = d.request("POST", "/v1/images/generations", json.dumps(body),
                      {"Content-Type": "application/json", "Authorization": "Bearer none"})
        check(r.status == (400 if more.get("steps") else 200), f"{body}: {r.status} {r.body[:200]}")


with Daemon(fake, "fake,step_ms=5") as d:
    failures(d)
    cancelled(d)
    forms(d)
full_queue()
signs_of_life()
done()
