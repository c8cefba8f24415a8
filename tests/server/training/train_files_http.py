"""The files of a training job over HTTP: metrics, plot, checkpoints that can be used by name,
the adapter's file and events. Also checks which files are deleted with the job. usage:
train_files_http.py EXECUTABLE MODEL"""
import glob
import json
import os
import shutil
import sys
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from event_source import EventSource  # noqa: E402
from trainer import STEPS, Trainer, make_pictures, root  # noqa: E402


def names(d, prefix="stripes@"):
    return [l["name"] for l in d.get("/loras").json()["loras"] if l["name"].startswith(prefix)]


def everything_of_a_job_can_be_had(d, id):
    job = d.wait(id)
    lines = d.get(f"/jobs/{id}/metrics")
    records = [json.loads(line) for line in lines.body.splitlines()]
    check(lines.headers["content-type"] == "application/x-ndjson" and
          [r["step"] for r in records] == list(range(1, STEPS + 1)),
          f"GET /jobs/ID/metrics has a line for each step: {lines.body[:200]}")
    check(all(k in records[0] for k in ("loss", "learning_rate", "grad_norm", "images_per_s", "eta_s", "epoch")),
          f"each line has all figures of its step: {records[0]}")
    with open(os.path.join(d.state, "jobs", id, "metrics.jsonl"), "rb") as f:
        check(f.read() == lines.body, "the answer equals the job's file")
    rest = d.get(f"/jobs/{id}/metrics?after=14").body
    check(rest == b"".join(l + b"\n" for l in lines.body.splitlines()[14:]),
          f"?after= leaves out the earlier steps: {rest}")
    check(d.get(f"/jobs/{id}/metrics?after={STEPS}").body == b"",
          "?after= the last step answers nothing")

    plot = d.get(f"/jobs/{id}/plot.svg")
    svg = xml.dom.minidom.parseString(plot.body).documentElement
    check(plot.headers["content-type"] == "image/svg+xml" and svg.tagName == "svg" and b"stripes" in plot.body,
          f"the plot is an SVG with the job's name: {plot.body[:200]}")

    kept = d.get(f"/jobs/{id}/checkpoints").json()["checkpoints"]
    check([(k["step"], k["name"], k["adapter"]) for k in kept] ==
          [(s, f"checkpoint-{s}", f"stripes@{s}") for s in (12, 16)],
          f"the last two checkpoints are listed: {kept}")
    folder = os.path.join(d.state, "jobs", id, "checkpoint-12")
    check(kept[0]["bytes"] == sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)) and
          abs(kept[0]["created_at"] - os.path.getmtime(folder)) < 1e-3,
          f"a checkpoint is listed with its size and time: {kept[0]}")

    file = d.get(f"/jobs/{id}/adapter")
    check(file.status == 200 and file.body == d.file(id),
          "GET /jobs/ID/adapter answers the adapter's file")
    return job


def checkpoints_are_adapters(d):
    """A kept checkpoint can be used as NAME@STEP; the last one equals the job's result."""
    check(names(d) == ["stripes@12", "stripes@16"],
          f"the kept checkpoints are listed as adapters: {names(d)}")
    last, early = (d.latents(loras=[{"name": f"stripes@{step}"}]) for step in (16, 12))
    check(last == d.latents(loras=[{"name": "stripes"}]) and early != last,
          "NAME@STEP draws as the adapter did at that step")
    r = d.get("/loras/stripes@12").json()
    check(r["state"] == "loaded" and r["unmatched"] == [],
          f"a checkpoint's adapter is loaded when a request names it: {r}")
    r = d.request("PUT", "/loras/stripes@3", b"x", {"Content-Type": "application/octet-stream"})
    check(r.status == 400 and r.error()["param"] == "name",
          f"an upload cannot have a name with @: {r.status} {r.body}")
    r = d.generate({"prompt": "x", "loras": [{"name": "stripes@8"}]})
    check(r.status == 400 and "stripes@12" in r.error()["message"],
          f"the error for a removed checkpoint names the kept ones: {r.body}")


def events_name_checkpoints(d, id):
    events = EventSource(d, f"/jobs/{id}/events", 0).follow()
    kept = [json.loads(e.data) for e in events if e.kind == "checkpoint"]
    check(kept == [{"step": s, "adapter": f"stripes@{s}"} for s in (4, 8, 12, 16)], f"events: {kept}")
    steps = [json.loads(e.data) for e in events if e.kind == "progress"]
    check(steps and {"step", "steps", "eta_s", "metrics"} <= steps[-1].keys() and
          {"loss", "learning_rate", "grad_norm", "images_per_s"} <= steps[-1]["metrics"].keys(), f"{steps[-1:]}")


def rates_are_those_that_are_used(d):
    """The reported learning rates are those that are used. There is one for each group with its
    own rate. With scale_lr all are multiplied by the batch size, 2."""
    id = d.start(name="groups", max_train_steps=2, scale_lr=True,
                 parameter_groups=[{"pattern": "attn1", "learning_rate": 5e-4}])
    d.wait(id)
    record = json.loads(d.get(f"/jobs/{id}/metrics").body.splitlines()[0])
    check(record["learning_rate"] == 4e-3 and record["group_learning_rates"] == {"attn1": 1e-3}, f"{record}")
    check(d.job(id)["metrics"]["group_learning_rates"] == {"attn1": 1e-3},
          "the job's metrics have the learning rates by group")
    with open(glob.glob(os.path.join(d.state, "jobs", id, "events.out.tfevents.*"))[0], "rb") as f:
        check(b"learning_rate/attn1" in f.read(),
              "TensorBoard's file has the group's learning rate")


def an_adapter_has_any_name(d):
    """A name with a folder, spaces and other letters, in the job's files, checkpoints and the folder
    of adapters. One that a file system may take for the same is a conflict."""
    name = "style/\u00e9t\u00e9 (v1.0)"
    id = d.start(name=name, max_train_steps=4, save_format="both")
    r = d.train(name="style/E\u0301t\u00e9 (V1.0)", max_train_steps=4)
    check(r.status == 409 and r.error()["param"] == "name",
          f"a name that differs only in case and in how é is coded is refused: {r.status} {r.body}")
    check(d.wait(id)["result"]["adapter"] == name, "the job's result names the adapter")
    with open(os.path.join(d.loras, name + ".safetensors"), "rb") as f:
        check(f.read() == d.get(f"/jobs/{id}/adapter").body == d.file(id, "\u00e9t\u00e9 (v1.0)"),
              "the adapter's file is the same in the folder and by its route")
    check(d.get(f"/jobs/{id}/adapter/kohya").status == 200, "the route answers kohya's file")
    check(names(d, name) == [name, name + "@4"], f"{names(d, name)}")
    check(d.latents(loras=[{"name": name}]) == d.latents(loras=[{"name": name + "@4"}]) ==
          d.latents(loras=[{"name": "\u00e9t\u00e9 (v1.0)"}]),
          "its name, its checkpoint's name and the last part of the name draw the same")
    r = d.train(name=name.upper(), max_train_steps=4)
    check(r.status == 409 and name in r.error()["message"],
          f"a name that differs from an adapter's only in case is refused: {r.status} {r.body}")


def a_data_set_in_use_stays(d):
    id = d.start(name="long", max_train_steps=100000, checkpointing_steps=0)
    r = d.request("DELETE", "/datasets/stripes")
    check(r.status == 409 and id in r.error()["message"],
          f"a data set that a job uses cannot be deleted: {r.status} {r.body}")
    for path, body in (("metrics", b""), ("checkpoints", b'{"checkpoints":[]}'),
                       ("validation", b'{"validation":[],"grid_url":null}')):
        r = d.get(f"/jobs/{id}/{path}")
        if path != "metrics":
            check(r.status == 200 and r.body == body,
                  f"{path} of a job without steps: {r.status} {r.body}")
    check(d.get(f"/jobs/{id}/plot.svg").status == 200, "a job without steps has an empty plot")
    r = d.get(f"/jobs/{id}/adapter")
    check(r.status == 404 and "no adapter yet" in r.error()["message"], f"{r.status} {r.body}")
    d.request("POST", f"/jobs/{id}/pause")
    d.wait(id, "paused")
    check(d.request("DELETE", "/datasets/stripes").status == 409,
          "the data set of a paused job cannot be deleted")
    d.request("POST", f"/jobs/{id}/cancel")
    d.wait(id, "cancelled")
    check(d.request("DELETE", "/datasets/stripes").status == 204,
          "the data set of an ended job can be deleted")


def a_job_takes_its_files_along(d, id):
    folder = os.path.join(d.state, "jobs", id)
    r = d.request("DELETE", f"/jobs/{id}")
    check(r.status == 200 and r.json() == {"id": id, "deleted": True, "stays": {"adapter": "stripes"}},
          f"the answer to DELETE says that the adapter is kept: {r.status} {r.body}")
    check(not os.path.exists(folder) and names(d) == [],
          f"the job's folder and its checkpoints' names are removed: {names(d)}")
    check(d.latents(loras=[{"name": "stripes"}]) is not None, "the adapter can still be used")
    for path in ("metrics", "plot.svg", "checkpoints", "adapter", "validation", "validation/grid.png"):
        r = d.get(f"/jobs/{id}/{path}")
        check(r.status == 404 and id in r.error()["message"], f"{path}: {r.status} {r.body}")


def wrong_paths_lead_nowhere(d, id):
    for path, status in (("validation/../config.json", 400), ("validation/pictures.json", 404),
                         ("validation/step-4/../../config.json", 400), ("validation/step-04/0-0.png", 404),
                         ("validation/", 404), ("metrics?after=x", 400), ("plot.svg?x=1", 400),
                         ("checkpoints/4", 404)):
        r = d.get(f"/jobs/{id}/{path}")
        check(r.status == status, f"{path}: {r.status} {r.body[:200]}")
    check(d.request("POST", f"/jobs/{id}/plot.svg").status == 405, "POST of the plot is a 405")


try:
    make_pictures()
    with Trainer() as daemon:
        job_id = daemon.start(checkpoints_total_limit=2)
        everything_of_a_job_can_be_had(daemon, job_id)
        checkpoints_are_adapters(daemon)
        events_name_checkpoints(daemon, job_id)
        wrong_paths_lead_nowhere(daemon, job_id)
    with Trainer(state=daemon.state) as daemon:
        check(wait_until(lambda: names(daemon) == ["stripes@12", "stripes@16"]),
              "the checkpoints are listed again after a restart")
        checkpoints_are_adapters(daemon)
        a_job_takes_its_files_along(daemon, job_id)
        rates_are_those_that_are_used(daemon)
        an_adapter_has_any_name(daemon)
        a_data_set_in_use_stays(daemon)
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
