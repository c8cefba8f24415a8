"""At least forty wrong requests to each API, about its newest fields. Each is refused in the API's
own form of an error, which names the field, the value and what is allowed. The requests stand in
wrong_requests.txt, one a line: STATUS FIELD METHOD PATH BODY. usage: wrong_requests.py EXECUTABLE
REQUESTS"""
import collections
import json
import os
import sys
import tempfile

from daemon import Daemon, check, done

FORTY = 40


def native(body):
    error = body["error"]
    check(error["code"] and error["message"].startswith(f"{error['param']}: "), f"{error}")
    return error["param"], error["message"]


def openai(body):
    error = body["error"]
    check(set(error) == {"message", "type", "param", "code"},
          f"the error has OpenAI's four keys: {error}")
    return error["param"], error["message"]


def sdapi(body):
    one = body["detail"][0]
    check(set(one) == {"type", "loc", "msg", "input"} and one["loc"][0] == "body",
          f"the error has FastAPI's keys: {one}")
    field = ".".join(map(str, one["loc"][1:]))
    return field, f"{field}: {one['msg']}"


def hugging_face(body):
    return body["error"].split(":")[0], body["error"]


FORMS = {"/v1/": openai, "/sdapi/": sdapi, "/hf": hugging_face, "/": native}


def main(executable, path):
    counts = collections.Counter()
    with open(path, encoding="utf-8") as f:
        requests = [line.rstrip("\n").split(" ", 4) for line in f]
    with tempfile.TemporaryDirectory() as folder:
        options = []
        for name in ("lora-dir", "dataset-root", "state-dir"):
            os.mkdir(os.path.join(folder, name))
            options += [f"--{name}", os.path.join(folder, name)]
        with Daemon(executable, "fake,step_ms=0", extra=options) as d:
            for status, field, method, target, *body in requests:
                text = body[0] if body else None
                r = d.request(method, target, text, {"Content-Type": "application/json"} if text else {})
                what = f"{method} {target} {text}"
                check(r.status == int(status), f"{what}: {r.status}, not {status}: {r.body[:300]}")
                form = next(form for prefix, form in FORMS.items() if target.startswith(prefix))
                named, message = form(json.loads(r.body))
                value, _, allowed = message.partition(" is not allowed; ")
                check(named == field, f"{what}: the error names {named}, not {field}")
                check(value.startswith(f"{field}: ") and len(value) > len(f"{field}: ") and allowed,
                      f"{what}: the error says the value and what is allowed: {message}")
                counts[form.__name__] += 1
            check(d.get("/health").status == 200, "the daemon answers at the end")
    check(all(counts[form.__name__] >= FORTY for form in FORMS.values()),
          f"each API has at least forty wrong requests: {counts}")
    print(f"compared: {dict(counts)} refusals")


if __name__ == "__main__":
    main(*sys.argv[1:])
    done()
