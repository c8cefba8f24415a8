"""Checks the daemon's answers against its own /openapi.json. Runs other tests once more, and
validates each of their requests and answers against the schemas of its route with the
jsonschema package. A key that no schema lists is a failure. So is a route, a method or a
status below 400 that is in the document but was not answered in any test. usage:
answers_typed.py FAKE LATENTD MODEL PICTURES"""
import collections
import json
import os
import re
import runpy
import shutil
import sys

import httpx2
import jsonschema

import daemon
from daemon import Daemon, Response, check, done

FAKE, LATENTD, MODEL, PICTURES = sys.argv[1:5]
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WALKS = [["jobs_http.py", FAKE, "api"], ["models_http.py", FAKE], ["generate_http.py", FAKE],
         ["operation/callers_http.py", FAKE], ["operation/operation_http.py", FAKE], ["page/page_http.py", FAKE],
         ["sdapi/sdapi_http.py", FAKE], ["training/datasets_http.py", FAKE, PICTURES],
         ["loras/loras_http.py", LATENTD, MODEL], ["loras/embeddings_http.py", LATENTD, MODEL],
         ["training/train_files_http.py", LATENTD, MODEL], ["training/train_validation_http.py", LATENTD, MODEL],
         ["openai/models_clients.py", LATENTD, MODEL], ["openai/sdk_images.py", LATENTD, MODEL],
         ["openai/sdk_fine_tuning.py", LATENTD, MODEL]]
with Daemon(FAKE) as d:
    DOCUMENT = d.get("/openapi.json").json()


def pattern(path):
    """Returns the regular expression for a path as OpenAPI writes it. A parameter at the end may
    contain slashes."""
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.sub(r"\\{\w+\\}$", ".+", re.escape(path))) + r"\Z")


ROUTES = [(pattern(path), path) for path in DOCUMENT["paths"]]
validators = {}
seen = collections.Counter()
wrong = set()


def complain(what):
    if what not in wrong:
        wrong.add(what)
        check(False, what)


def validate(schema, value, what):
    key = json.dumps(schema)
    if key not in validators:
        validators[key] = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    for e in validators[key].iter_errors(value):
        complain(f"{what}: {'/'.join(map(str, e.absolute_path))}: {e.message[:300]}")


def is_json(kind):
    return (kind or "").split(";")[0] == "application/json"


def hold(method, target, answer, body, kind):
    """Checks one exchange against the document. `kind`: the media type of the request's body."""
    path = target.partition("?")[0]
    route = next((route for at, route in ROUTES if at.match(path)), None)
    said = DOCUMENT["paths"].get(route, {}).get(method.lower())
    if not said:  # HEAD, OPTIONS, 404 and 405
        return complain(f"{method} {path}: {answer.status}") if method == "GET" and answer.status < 400 else None
    what = f"{method} {route} {answer.status}"
    expected = said["responses"].get(str(answer.status) if answer.status < 400 else f"{answer.status // 100}XX")
    if not expected:
        return complain(f"{what}: the status is not in the document")
    if "$ref" in expected:
        expected = DOCUMENT["components"]["responses"][expected["$ref"].rpartition("/")[2]]
    if answer.status < 400:
        seen[method, route, str(answer.status)] += 1
    media = answer.headers.get("content-type", "").split(";")[0]
    content = expected.get("content", {})
    if (media or None) not in (content or {None}):
        return complain(f"{what}: {media} is not in the document")
    if is_json(media):
        validate(content[media]["schema"], json.loads(answer.body), what)
    if body and is_json(kind) and answer.status < 300:
        validate(said["requestBody"]["content"]["application/json"]["schema"], json.loads(body), f"{what}: the body")


def watch_daemon(request):
    def watched(self, method, path, body=None, headers=None):
        answer = request(self, method, path, body, headers)
        kinds = [v for k, v in (headers or {}).items() if k.lower() == "content-type"]
        hold(method, path, answer, body, kinds[0] if kinds else None)
        return answer
    return watched


def watch_httpx(send):
    def watched(self, request, **options):
        r = send(self, request, **options)
        if not options.get("stream") or is_json(r.headers.get("content-type")):
            body = request.read() if is_json(request.headers.get("content-type")) else None
            hold(request.method, request.url.raw_path.decode(), Response(r.status_code, r.headers, r.read()), body,
                 request.headers.get("content-type"))
        return r
    return watched


def the_rest():
    """Makes the requests that none of the other tests makes. The trainer module reads sys.argv,
    which is still that of the last test."""
    sys.modules.pop("trainer")
    import trainer

    trainer.make_pictures()
    with trainer.Trainer() as d:
        job = d.start(save_format="both", max_train_steps=1)
        d.wait(job)
        last = re.findall(rb"^id: (\d+)", d.get(f"/jobs/{job}/events").body, re.M)[-1].decode()
        statuses = [d.get(f"/jobs/{job}/{what}").status for what in ("adapter/kohya", f"events?after={last}")]
        statuses += [d.request("PUT", "/loras/again", d.file(job)).status for _ in range(2)]
        statuses += [d.request("POST", "/loras/rescan").status]
        check(statuses == [200, 204, 201, 200, 200], f"{statuses}")
    shutil.rmtree(trainer.root)


Daemon.request = watch_daemon(Daemon.request)
httpx2.Client.send = watch_httpx(httpx2.Client.send)
for script, *arguments in WALKS:
    before = daemon.failed
    sys.argv = [script, *arguments]
    sys.modules.pop("trainer", None)  # importing it again makes a new folder
    sys.path.insert(0, os.path.dirname(os.path.join(HERE, script)))
    try:
        runpy.run_path(os.path.join(HERE, script), run_name="__main__")
    except SystemExit:  # done()
        check(daemon.failed == before, f"{script} fails")
the_rest()
documented = {(method.upper(), path, status) for path, item in DOCUMENT["paths"].items()
              for method, said in item.items() for status in said["responses"] if not status.endswith("XX")}
check(documented == set(seen),
      f"documented answers that no test got: {sorted(documented - set(seen))}")
print(f"{sum(seen.values())} answers, with {len(seen)} of {len(documented)} documented combinations of method, path "
      "and status")
done()
