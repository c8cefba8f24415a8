"""POST /generate with an Idempotency-Key, with a pipeline without a model: the same request gets
one drawing and one answer, another request with that key gets a 409. usage: repeats_http.py
EXECUTABLE"""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, generate_bytes, wait_until  # noqa: E402
from event_source import Stream  # noqa: E402

EXECUTABLE = sys.argv[1]
FIELDS = {"prompt": "a", "num_inference_steps": 20, "scheduler": "ddim"}  # its seed is random


def drawn(d):
    for line in d.get("/metrics").body.decode().splitlines():
        if line.startswith("latentd_images_total "):
            return int(float(line.split()[1]))


def together(d, count, fields, headers):
    answers = [None] * count

    def ask(i):
        answers[i] = d.generate(fields, headers)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def one_answer_for_one_key(d):
    before = drawn(d)
    answers = together(d, 5, FIELDS, {"Idempotency-Key": "one"})
    answers.append(d.generate(dict(reversed(FIELDS.items())), {"Idempotency-Key": "one"}))
    check(all(r.status == 200 for r in answers), f"{[r.status for r in answers]}")
    check(len({r.body for r in answers}) == 1, "all get the same answer, also with a random seed")
    check(drawn(d) - before == 1, f"{drawn(d) - before} pictures for {len(answers)} requests")
    check(len({r.headers["x-request-id"] for r in answers}) == 6,
          "each answer has its own request id")
    png = [d.generate(FIELDS, {"Idempotency-Key": "png", "Accept": "image/png"}) for _ in range(2)]
    check(png[0].body == png[1].body and png[0].headers["x-seed"] == png[1].headers["x-seed"] and
          png[1].headers["content-type"] == "image/png",
          "repeated requests for a PNG get the same file and seed")


def another_request_is_refused(d):
    for fields, headers in (({**FIELDS, "seed": 1}, {}), (FIELDS, {"Accept": "image/png"})):
        r = d.generate(fields, {"Idempotency-Key": "one", **headers})
        check(r.status == 409 and r.error()["code"] == "conflict" and r.headers["x-should-retry"] == "false",
              f"{r.status} {r.body}")
    s = Stream(d, {**FIELDS, "stream": True}, headers={"Idempotency-Key": "s"})
    check(s.status == 400 and b"Idempotency-Key" in s.body, f"{s.status} {s.body}")
    check(d.generate(FIELDS, {"Idempotency-Key": "two"}).json()["images"] !=
          d.generate(FIELDS, {"Idempotency-Key": "one"}).json()["images"],
          "requests with another key draw another picture")


def what_failed_can_be_tried_again(d):
    for _ in range(2):
        r = d.generate({"prompt": "fail:internal"}, {"Idempotency-Key": "bad"})
        check(r.status == 500, f"{r.status}")
    check(d.generate(FIELDS, {"Idempotency-Key": "bad"}).status == 200,
          "the key of a failed request can be used again")
    check(d.generate({**FIELDS, "width": 65}, {"Idempotency-Key": "w"}).status == 400,
          "a wrong field is a 400")
    check(d.generate(FIELDS, {"Idempotency-Key": "w"}).status == 200,
          "the key of a refused request can be used again")


def who_left_takes_it_along_unless_others_wait(d):
    long = {**FIELDS, "num_inference_steps": 300}
    with d.connect() as s:
        s.sendall(generate_bytes(long, b"Idempotency-Key: left\r\n"))
        check(d.is_drawing(), "the request is being drawn")
    check(d.gets_to_depth(0, 5), "the drawing is cancelled when its last client leaves")
    check(d.generate(FIELDS, {"Idempotency-Key": "left"}).status == 200,
          "the key of a cancelled request can be used again")
    before, result = drawn(d), {}
    with d.connect() as s:
        s.sendall(generate_bytes(long, b"Idempotency-Key: held\r\n"))
        check(d.is_drawing(), "the request is being drawn")
        other = threading.Thread(target=lambda: result.update(r=d.generate(long, {"Idempotency-Key": "held"})))
        other.start()
        check(not wait_until(lambda: d.depth() != 1, 0.3),
              "two requests with one key are one drawing")
    other.join()
    check(result["r"].status == 200 and drawn(d) - before == 1,
          f"the drawing goes on for the client that stayed: {result['r'].status}")


with Daemon(EXECUTABLE, "fake,step_ms=10") as d:
    one_answer_for_one_key(d)
    another_request_is_refused(d)
    what_failed_can_be_tried_again(d)
    who_left_takes_it_along_unless_others_wait(d)
done()
