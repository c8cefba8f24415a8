"""Two callers, each with an API key. On every route and query that takes an id, one caller's
requests and jobs look to the other as if they did not exist, and each caller has its own
Idempotency-Keys. A third caller, an operator with the right to all jobs, sees and controls
both callers' jobs. The routes come from GET /openapi.json. The test fails if it does not know
a route with an id, a query, or a POST route. usage: callers_http.py EXECUTABLE"""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon, check, done, wait_until
from png_file import gradient, png_file

EXECUTABLE = sys.argv[1]
NOBODYS = "0123456789abcdef"
# Routes whose names all callers share (docs/operation.md).
SHARED = ("/datasets/{name}", "/loras/{name}", "/v1/files/{id}", "/v1/files/{id}/content",
          "/v1/images/files/{id}", "/v1/models/{id}", "/web/{name}")
# Query names of the routes with an id; each is tried with this value.
QUERIES = {"after": "1", "wait": "1", "limit": "1"}
# Queries of the routes without an id. In LISTS and TASKS the value names something that a caller
# has made, in NO_IDS it does not.
LISTS = {("/jobs", "after"), ("/v1/fine_tuning/jobs", "after")}
TASKS = {("/sdapi/v1/progress", "task_id"), ("/sdapi/v1/interrupt", "task_id"), ("/sdapi/v1/skip", "task_id")}
NO_IDS = {("/generate", "async"), ("/jobs", "state"), ("/jobs", "type"), ("/jobs", "limit"), ("/v1/files", "after"),
          ("/v1/files", "limit"), ("/v1/files", "order"), ("/v1/files", "purpose"),
          ("/v1/fine_tuning/jobs", "limit"), ("/v1/images/generations", "api-version"),
          ("/v1/images/edits", "api-version"), ("/v1/images/variations", "api-version"), ("/sdapi/v1/progress", "skip_current_image")}
# POST routes without an id in the path: those that take an Idempotency-Key, those with an id in
# their body, those that refuse a key (tested in sdapi_http.py, models_clients.py, sdk_images.py),
# and those where repeating a request changes nothing.
KEYED = {"/generate", "/train", "/v1/fine_tuning/jobs"}
NAMES_A_TASK = {"/internal/progress"}
UNKEYED = {"/hf", "/v1/images/generations", "/v1/images/edits", "/v1/images/variations", "/sdapi/v1/img2img",
           "/sdapi/v1/txt2img"}
SAME_AGAIN = {"/embeddings/rescan", "/loras/rescan", "/v1/files", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
              "/sdapi/v1/interrupt", "/sdapi/v1/skip", "/sdapi/v1/options", "/sdapi/v1/png-info",
              "/sdapi/v1/refresh-loras", "/sdapi/v1/refresh-embeddings", "/sdapi/v1/refresh-checkpoints",
              "/sdapi/v1/refresh-vae", "/sdapi/v1/unload-checkpoint", "/sdapi/v1/reload-checkpoint",
              "/sdapi/v1/extra-single-image", "/sdapi/v1/extra-batch-images", "/tokens"}

SHORT = {"prompt": "a boat", "num_inference_steps": 2}
LONG = {"prompt": "a boat", "num_inference_steps": 900, "seed": 1}
SLOW = "fake,step_ms=20"
MODEL = "fake,step_ms=5,images=4"  # draws four pictures at a time


class Caller:
    def __init__(self, folder, name, *rights):
        made = subprocess.run([EXECUTABLE, "key", name, "--api-keys", f"{folder}/keys", *rights], capture_output=True,
                              text=True, check=True)
        self.name, self.key, self.daemon = name, made.stdout.strip(), None

    def ask(self, method, path, body=None, **headers):
        own = {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            own["Content-Type"] = "application/json"
        own.update({k.replace("_", "-"): v for k, v in headers.items()})
        return self.daemon.request(method, path, None if body is None else json.dumps(body), own)

    def job(self, job):
        return self.ask("GET", f"/jobs/{job}").json()


def told(response, *ids):
    """Returns an answer's status and text, with these ids and the request id replaced so that
    answers can be compared."""
    text = response.body.decode(errors="replace")
    for name in ids:
        text = text.replace(name, "ID")
    return response.status, re.sub(r'("request_id": ?)"[^"]*"', r"\1ID", text)


def every_route_is_known(alice):
    paths = alice.ask("GET", "/openapi.json").json()["paths"]
    queries, posts = set(), set()
    for path, methods in paths.items():
        for method, said in methods.items():
            names = [p["name"] for p in said.get("parameters", ()) if p["in"] == "query"]
            if "{" not in path:
                queries |= {(path, name) for name in names}
                posts |= {path} if method == "post" else set()
            elif path not in SHARED:
                check(set(names) <= set(QUERIES), f"{path}: a query without a value here: {names}")
    for what, found, known in (("query", queries, LISTS | TASKS | NO_IDS),
                               ("POST", posts, KEYED | NAMES_A_TASK | UNKEYED | SAME_AGAIN)):
        check(found == known, f"{what}: no row for {found - known}; no route for {known - found}")
    print(f"{len(queries)} queries and {len(posts)} POSTs without an id in their path, all known")
    return paths


def routes_with_ids(paths, alice, bob, ids):
    """Tries every route with an id. `ids`: start of a path -> (alice's id, an id that does not
    exist); "all": alice's jobs, which must not change."""
    before = {job: alice.job(job) for job in ids["all"]}
    rows, used = 0, set()
    for path, methods in paths.items():
        if "{" not in path or path in SHARED:
            continue
        begin = max((b for b in ids if path.startswith(b)), key=len, default=None)
        if not check(begin, f"{path} has no row here that says whether it belongs to its caller"):
            continue
        used.add(begin)
        own, nobodys = ids[begin]
        for method, said in methods.items():
            queries = [f"?{p['name']}={QUERIES[p['name']]}" for p in said.get("parameters", ()) if p["in"] == "query"]
            for query in ["", *queries]:
                def asked(caller, name):
                    url = path.replace("{id}", name).replace("{file}", "0.png") + query
                    return told(caller.ask(method.upper(), url), own, nobodys)
                others, none = asked(bob, own), asked(bob, nobodys)
                rows += 1
                what = f"{method} {path}{query}"
                check(others == none and others[0] == 404,
                      f"{what}: another caller's object is answered like one that does not exist: {others}, {none}")
                if method == "get" and not path.endswith("/events"):
                    mine = asked(alice, own)
                    check(mine != none, f"{what}: the caller's own object is found: {mine}")
    for job, was in before.items():
        now = alice.job(job)
        check(now["state"] == was["state"] and now["asked_to"] is None, f"{job} was {was['state']}: {now}")
    print(f"{rows} requests with an id: another's is as if it were not there")
    check(used == set(ids) - {"all"}, f"rows without a route: {set(ids) - used}")


def drawings_are_their_callers(alice, bob):
    """Two callers draw with the same X-Request-Id, and each can cancel only its own drawing."""
    answers = {}

    def draw(caller):
        answers[caller.name] = caller.ask("POST", "/generate", LONG, X_Request_Id="drawing-7")

    threads = {}
    for caller, drawing in ((alice, 1), (bob, 2)):
        none = told(bob.ask("POST", "/generate/drawing-7/cancel"), "drawing-7")
        nobodys = told(bob.ask("POST", "/generate/drawing-8/cancel"), "drawing-8")
        check(none == nobodys and none[0] == 404,
              f"another caller's drawing is answered like one that does not exist: {none}, {nobodys}")
        threads[caller.name] = threading.Thread(target=draw, args=(caller,))
        threads[caller.name].start()
        check(alice.daemon.is_drawing(drawing), f"{caller.name} draws")
    check(bob.ask("POST", "/generate/drawing-7/cancel").status == 200,
          "bob cancels his own drawing")
    threads["bob"].join()
    check(answers["bob"].status == 499, f"bob's drawing is a 499: {answers['bob'].status}")
    check(threads["alice"].is_alive() and bob.ask("POST", "/generate/drawing-7/cancel").status == 404,
          "alice's drawing goes on, and bob cannot cancel it by its id")
    check(alice.ask("POST", "/generate/drawing-7/cancel").status == 200,
          "alice cancels her own drawing")
    threads["alice"].join()
    check(answers["alice"].status == 499, f"alice's drawing is a 499: {answers['alice'].status}")


def tasks_are_their_callers(alice, bob):
    """AUTOMATIC1111's routes. Without an id they mean the caller's oldest request."""
    answer = []
    drawing = threading.Thread(target=lambda: answer.append(alice.ask("POST", "/sdapi/v1/txt2img", {
        "prompt": "a boat", "steps": 140, "width": 64, "height": 64, "force_task_id": "task(alices)"})))
    drawing.start()
    check(alice.daemon.is_drawing(), "alice draws")
    rows = 0
    for method, path, body in [("GET", "/sdapi/v1/progress", None), ("GET", "/internal/pending-tasks", None),
                               ("POST", "/sdapi/v1/interrupt", {}), ("POST", "/sdapi/v1/skip", {}),
                               *(("GET" if "progress" in path else "POST", f"{path}?task_id=", None)
                                 for path, _ in sorted(TASKS)),
                               ("POST", "/internal/progress", {"id_task": "", "live_preview": False})]:
        def asked(name):
            tail = name if path.endswith("=") else ""
            own = {**body, "id_task": name} if body and "id_task" in body else body
            return told(bob.ask(method, path + tail, own), name)
        others, none = asked("task(alices)"), asked("task(nobodys)")
        rows += 1
        check(others == none and others[0] == 200 and "task(alices)" not in others[1],
              f"{path}: another caller's task is answered like one that does not exist: {others}, {none}")
    seen = alice.ask("POST", "/internal/progress", {"id_task": "task(alices)", "live_preview": False}).json()
    check(drawing.is_alive() and seen["active"], f"alice's task goes on: {seen}")
    check(alice.ask("GET", "/sdapi/v1/progress?task_id=task(alices)").json()["progress"] > 0,
          "alice sees her task's progress")
    alice.ask("POST", "/sdapi/v1/interrupt?task_id=task(alices)")
    drawing.join()
    ended = [c.ask("POST", "/internal/progress", {"id_task": "task(alices)"}).json()["completed"] for c in (alice, bob)]
    check(ended == [True, False], f"only alice sees that her task has ended: {ended}")
    print(f"{rows} questions about another's task")


def keys_are_their_callers(alice, bob, file, model):
    """Returns what each caller ordered: [(path, alice's id, bob's id)]."""
    def tuning(caller):
        return {"model": model, "training_file": file, "suffix": f"tuned-{caller.name}"}

    def training(caller):
        return {"name": f"trained-{caller.name}", "dataset": SLOW, "max_train_steps": 5000}

    # For training jobs both routes share one set of keys.
    rows = (("/generate", "monday", lambda caller: SHORT), ("/generate?async=1", "monday", lambda caller: SHORT),
            ("/train", "monday", training), ("/v1/fine_tuning/jobs", "tuesday", tuning))
    ordered = []
    check({path.partition("?")[0] for path, *_ in rows} == KEYED,
          "the test tries all routes that take an Idempotency-Key")
    for path, key, body in rows:
        answers = []
        for caller in (alice, bob, alice, bob):
            r = caller.ask("POST", path, body(caller), Idempotency_Key=key)
            check(r.status in (200, 202), f"{path}: {caller.name}: {r.status} {r.body[:300]}")
            answers.append(r.json().get("id"))  # a job's id, or the request's
        check(answers[:2] == answers[2:] and answers[0] != answers[1], f"{path}: {answers}")
        # Another body with this key is an error for bob, but only because of bob's own earlier
        # request.
        other = bob.ask("POST", path, {**body(bob), "seed": 99}, Idempotency_Key=key)
        check(other.status == 409 and f"Idempotency-Key {key} was sent before" in other.json()["error"]["message"],
              f"{path}: the same key with another body is a 409: {other.status} {other.body[:300]}")
        ordered.append((path, *answers[:2]))
    print(f"{len(ordered)} routes: alice's key is not bob's")
    return ordered


def lists_are_their_callers(alice, bob, jobs, tunings):
    """`jobs`, `tunings`: (alice's ids, bob's ids)."""
    for path, ids, listed in (("/jobs", jobs, lambda r: [j["id"] for j in r["jobs"]]),
                              ("/v1/fine_tuning/jobs", tunings, lambda r: [j["id"] for j in r["data"]])):
        for caller, own, others in ((alice, *ids), (bob, *reversed(ids))):
            found = listed(caller.ask("GET", f"{path}?limit=50").json())
            check(set(own) <= set(found) and not set(others) & set(found),
                  f"{path}: {caller.name} has {own}, sees {found}")
        behind = [told(bob.ask("GET", f"{path}?after={job}"), job) for job in (ids[0][0], ids[0][0][:-16] + NOBODYS)]
        check(behind[0] == behind[1] and behind[0][0] == 400,
              f"{path}: ?after= another caller's job is refused like a job that does not exist: {behind}")
    owners = {j["owner"] for j in alice.ask("GET", "/jobs").json()["jobs"]}
    check(owners == {"alice"}, f"alice's list has only her own jobs: {owners}")


def names_are_everybodys(alice, bob, trained, tuned):
    """Data sets are shared. Each caller is told that a job of alice's has taken a name, but only
    alice is told which job."""
    for path in ("/datasets/fake", "/v1/files/file-fake"):
        seen = [told(c.ask("GET", path)) for c in (alice, bob)]
        check(seen[0] == seen[1] and seen[0][0] == 200, f"{path}: {seen}")
    for caller, shows in ((alice, True), (bob, False)):
        for job, r in ((trained, caller.ask("POST", "/train", {
                           "name": "trained-alice", "dataset": SLOW, "max_train_steps": 3})),
                       (tuned, caller.ask("DELETE", "/datasets/fake")),
                       (tuned, caller.ask("DELETE", "/v1/files/file-fake"))):
            said = r.json()["error"]["message"]
            check(r.status == 409 and (job in said) == shows and ("another caller" in said) != shows,
                  f"{caller.name}: {r.status} {said}")


def an_operator_has_all(paths, alice, operator, ids):
    """A key with the right to all jobs gets the same statuses as alice."""
    rows = 0
    for path, methods in paths.items():
        if "{" not in path or path in SHARED or path.endswith("/events") or "get" not in methods:
            continue
        begin = max((b for b in ids if path.startswith(b)), key=len)
        url = path.replace("{id}", ids[begin][0]).replace("{file}", "0.png")
        statuses = [c.ask("GET", url).status for c in (alice, operator)]
        rows += 1
        check(statuses[0] == statuses[1], f"{path}: {statuses}")
        check(statuses[0] == 200 or path.endswith(("/adapter", "/adapter/kohya", "/validation/{file}")), f"{path}: {statuses}")
    print(f"{rows} routes with an id answer an operator as they answer its caller")


def an_operator_controls_all(alice, operator, model):
    """The operator controls all jobs by id. Without an id AUTOMATIC1111's routes mean the
    operator's own requests, and its Idempotency-Keys are its own."""
    answer = []
    drawing = threading.Thread(target=lambda: answer.append(
        alice.ask("POST", "/generate", LONG, X_Request_Id="drawing-9")))
    drawing.start()
    check(alice.daemon.is_drawing(), "alice draws")
    for path in ("/sdapi/v1/interrupt", "/sdapi/v1/interrupt?task_id=drawing-9"):
        operator.ask("POST", path)
    check(operator.ask("POST", "/generate/drawing-9/cancel").status == 200,
          "an operator cancels alice's drawing")
    drawing.join()
    check(answer[0].status == 499, f"alice's drawing is a 499: {answer[0].status}")
    job = alice.ask("POST", "/generate?async=1", LONG, Idempotency_Key="wednesday").json()["id"]
    other = operator.ask("POST", "/generate?async=1", LONG, Idempotency_Key="wednesday").json()["id"]
    check(job != other, "another caller's job does not share the Idempotency-Key")
    tuned = alice.ask("POST", "/v1/fine_tuning/jobs", {"model": model, "training_file": "file-fake", "suffix": "w"},
                      Idempotency_Key="wednesday").json()["id"]
    for path in (f"/jobs/{job}/pause", f"/jobs/{job}/resume", f"/jobs/{job}/cancel", f"/jobs/{other}/cancel",
                 f"/v1/fine_tuning/jobs/{tuned}/cancel"):
        r = operator.ask("POST", path)
        check(r.status == 200, f"{path}: {r.status} {r.body[:200]}")
    check(wait_until(lambda: alice.job(job)["state"] == "cancelled"), f"{alice.job(job)}")
    check(operator.ask("DELETE", f"/jobs/{job}").status == 200 and alice.ask("GET", f"/jobs/{job}").status == 404,
          "an operator deletes alice's job")
    owners = {j["owner"] for j in operator.ask("GET", "/jobs?limit=50").json()["jobs"]}
    check({"alice", "bob", "operator"} <= owners,
          f"an operator's list has the jobs of all callers: {owners}")
    tunings = [t["id"] for t in operator.ask("GET", "/v1/fine_tuning/jobs?limit=50").json()["data"]]
    check(tuned in tunings, f"{tunings}")


def start(daemon, *callers):
    for caller in callers:
        caller.daemon = daemon
    daemon.get = lambda path, headers=None: callers[0].ask("GET", path)  # for is_drawing


def main(work):
    os.makedirs(f"{work}/loras")
    os.makedirs(f"{work}/data/fake")
    with open(f"{work}/data/fake/0.png", "wb") as f:
        f.write(png_file(16, 16, gradient))
    plain = ["--state-dir", f"{work}/state", "--lora-dir", f"{work}/loras", "--dataset-root", f"{work}/data"]
    alice, bob = Caller(work, "alice"), Caller(work, "bob", "--may", "priority")
    operator = Caller(work, "operator", "--may", "all-jobs")
    with Daemon(EXECUTABLE, MODEL, extra=[*plain, "--api-keys", f"{work}/keys"]) as daemon:
        start(daemon, alice, bob, operator)
        paths = every_route_is_known(alice)
        model = alice.ask("GET", "/v1/models").json()["data"][0]["id"]
        ordered = {path: ids for path, *ids in keys_are_their_callers(alice, bob, "file-fake", model)}
        trained, tuned = ordered["/train"], ordered["/v1/fine_tuning/jobs"]
        names_are_everybodys(alice, bob, trained[0], tuned[0].rpartition("-")[2])
        drawings_are_their_callers(alice, bob)
        tasks_are_their_callers(alice, bob)
        drawn = ordered["/generate?async=1"][0]
        check(alice.ask("GET", f"/jobs/{drawn}?wait=30").json()["state"] == "succeeded",
              "alice's job has drawn its pictures")
        drawing = alice.ask("POST", "/generate?async=1", {**LONG, "preview_every": 1}).json()["id"]
        check(wait_until(lambda: alice.ask("GET", f"/jobs/{drawing}/preview").status == 200),
              "alice's second job is being drawn")
        check(wait_until(lambda: alice.job(trained[0])["state"] == "running"),
              "alice's training job runs")
        ids = {"all": (trained[0], drawn, drawing), "/generate/": (drawing, NOBODYS), "/jobs/": (trained[0], NOBODYS),
               "/jobs/{id}/images": (drawn, NOBODYS), "/jobs/{id}/preview": (drawing, NOBODYS),
               "/v1/fine_tuning/jobs/": (f"ftjob-{trained[0]}", f"ftjob-{NOBODYS}")}
        routes_with_ids(paths, alice, bob, ids)
        an_operator_has_all(paths, alice, operator, ids)
        check(alice.ask("GET", f"/jobs/{drawn}/images/0.png").status == 200,
              "alice gets her picture")
        check(alice.ask("DELETE", f"/jobs/{drawing}").status == 409,
              "alice cannot delete her running job")
        check(alice.ask("POST", f"/jobs/{drawing}/cancel").status == 200,
              "alice cancels her running job")
        an_operator_controls_all(alice, operator, model)
        lists_are_their_callers(alice, bob, ([trained[0], drawn], [trained[1]]), ([tuned[0]], [tuned[1]]))
    with Daemon(EXECUTABLE, MODEL, extra=[*plain, "--api-keys", f"{work}/keys"]) as daemon:
        start(daemon, alice, bob)
        lists_are_their_callers(alice, bob, ([trained[0], drawn], [trained[1]]), ([tuned[0]], [tuned[1]]))
        again = alice.ask("POST", "/train", {"name": "trained-alice", "dataset": SLOW, "max_train_steps": 5000},
                          Idempotency_Key="monday").json()
        check(again["id"] == trained[0],
              f"alice's Idempotency-Key stands for her job after the restart: {again}")
    # Without keys everybody who reaches the daemon controls all jobs, and new jobs have no owner.
    with Daemon(EXECUTABLE, MODEL, extra=plain) as daemon:
        listed = {j["id"]: j["owner"] for j in daemon.get("/jobs?limit=50").json()["jobs"]}
        check(listed[trained[0]] == "alice" and listed[trained[1]] == "bob",
              f"a daemon without keys lists all jobs with their owners: {listed}")
        r = daemon.request("POST", f"/jobs/{trained[0]}/cancel")
        check(r.status == 200, f"a daemon without keys lets everybody cancel the jobs: {r.status}")
        nobodys = daemon.request("POST", "/train", json.dumps({"name": "n", "dataset": SLOW, "max_train_steps": 5000}),
                                 {"Content-Type": "application/json"}).json()
        check(nobodys["owner"] == "", f"{nobodys}")
    with Daemon(EXECUTABLE, MODEL, extra=[*plain, "--api-keys", f"{work}/keys"]) as daemon:
        start(daemon, alice, bob, operator)
        statuses = [c.ask("GET", f"/jobs/{nobodys['id']}").status for c in (alice, bob, operator)]
        check(statuses == [404, 404, 200],
              f"a job without an owner is found only by an operator: {statuses}")
        check(operator.ask("POST", f"/jobs/{nobodys['id']}/cancel").status == 200,
              "an operator cancels the job without an owner")


with tempfile.TemporaryDirectory() as folder:
    main(folder)
done()
