"""The openai package's file and fine-tuning calls on the daemon's data sets and jobs, and
TensorBoard on the files that the training writes, with the bundled checkpoint.

usage: sdk_fine_tuning.py LATENTD MODEL [FOLDER]      FOLDER: where to save the pictures
"""
import asyncio
import base64
import glob
import io
import os
import sys
import tarfile
import time

import numpy as np
import openai
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import trainer
from daemon import check, done, wait_until

trainer.make_pictures()
latentd, model = sys.argv[1:3]
left = sys.argv[3] if len(sys.argv) > 3 else None
name = os.path.basename(model.rstrip("/"))
LITTLE = {"resolution": 64, "rank": 4, "checkpointing_steps": 4, "max_train_steps": 12}


def archive(empty=False):
    """Returns the pictures of the trainer's data set as a tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folder = os.path.join(trainer.root, "sets", "stripes")
        for file in [] if empty else sorted(os.listdir(folder)):
            tar.add(os.path.join(folder, file), file)
    return out.getvalue()


def refused(what, kind, param, words, call):
    try:
        call()
        check(False, f"{what} was taken")
    except kind as e:
        check(e.param == param and words in e.message, f"{what}: {e.param} {e.message}")


def wait(client, id, *states, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job = client.fine_tuning.jobs.retrieve(id)
        if job.status in states:
            break
        time.sleep(0.1)
    check(job.status in states, f"{states}, not {job.status}: {job.error}")
    return job


def files(d, client):
    cats = client.files.create(file=("my cats.tar", archive()), purpose="fine-tune")
    check(cats.id == "file-my-cats" and cats.object == "file" and cats.status == "processed", f"{cats}")
    check(abs(cats.created_at - time.time()) < 60 and cats.purpose == "fine-tune", f"{cats}")
    folder = os.path.join(trainer.root, "sets", "my-cats")
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    check(cats.bytes == size, f"{cats.bytes} bytes, not {size}")
    again = client.files.create(file=("my cats.tar", archive()), purpose="fine-tune")
    check(again.id.startswith("file-my-cats-") and again.id != cats.id, again.id)
    check(client.files.retrieve(again.id).filename == again.id[5:] + ".tar",
          "the second file is found by its id")
    listed = client.files.list(order="asc")
    check({f.id for f in listed} == {"file-stripes", "file-empty", cats.id, again.id}, f"{listed}")
    paged = [f.id for f in client.files.list(limit=1)]  # the package fetches all pages
    check(sorted(paged) == sorted(f.id for f in listed), f"{paged}")
    check(len(client.files.list(purpose="batch").data) == 0, "no file has another purpose")
    deleted = client.files.delete(again.id)
    check(deleted.deleted and deleted.id == again.id, f"{deleted}")
    for call in (client.files.retrieve, client.files.delete):
        refused("a file that is gone", openai.NotFoundError, None, "there is no file", lambda c=call: c(again.id))
        refused("another's id", openai.NotFoundError, None, "there is no file", lambda c=call: c("file-.etc"))
    for what, param, words, options in (
            ("another purpose", "purpose", "fine-tune", {"purpose": "batch"}),
            ("no archive", "file", "", {"file": ("a.jsonl", b'{"a": 1}\n')}),
            ("an empty archive", "file", "", {"file": ("a.tar", archive(empty=True))}),
            ("an end", "expires_after[anchor]", "until they are deleted",
             {"expires_after": {"anchor": "created_at", "seconds": 3600}})):
        refused(what, openai.BadRequestError, param, words, lambda o=options: client.files.create(
            **{"file": ("a.tar", archive()), "purpose": "fine-tune", **o}))
    r = d.request("POST", "/v1/files", b'--xy\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--xy\r\n'
                  b'Content-Disposition: form-data; name="file"; filename="a.tar"\r\n\r\nno archive\r\n--xy--\r\n',
                  {"Content-Type": "multipart/form-data; boundary=xy"})
    check(r.status == 400 and r.error()["code"] == "invalid_value" and r.error()["param"] == "file", f"{r.body}")
    refused("an unknown page", openai.BadRequestError, "after", "id of a file",
            lambda: client.files.list(after="file-nobody"))
    check({f.id for f in client.files.list()} == {"file-stripes", "file-empty", cats.id},
          "refused uploads leave no files")
    page = d.get("/v1/files?limit=2").json()  # the package's model leaves these out
    check(page["has_more"] and [page["first_id"], page["last_id"]] == [f["id"] for f in page["data"]], f"{page}")
    none = d.get("/v1/files?purpose=batch").json()
    check(none["first_id"] is None and none["last_id"] is None and not none["has_more"], f"{none}")
    refused("the content of no file", openai.NotFoundError, None, "there is no file",
            lambda: client.files.content("file-nobody"))
    r = d.get(f"/v1/files/{cats.id}/content")
    check(r.status == 501 and r.headers["x-should-retry"] == "false", f"{r.status} {r.headers}")
    return cats.id


def a_job(d, client, file):
    job = client.fine_tuning.jobs.create(
        model=name, training_file=file, suffix="stripy", seed=42, metadata={"owner": "me"},
        method={"type": "supervised", "supervised": {"hyperparameters": {
            "n_epochs": "auto", "batch_size": 2, "learning_rate_multiplier": 20, **LITTLE,
            "validation_prompts": ["stripes number 1"], "validation_steps": 12, "validation_inference_steps": 2}}})
    check(job.id.startswith("ftjob-") and job.status in ("queued", "running") and job.model == name, f"{job}")
    check(job.training_file == file and job.seed == 42 and job.metadata == {"owner": "me"}, f"{job}")
    h = job.method.supervised.hyperparameters
    check(h.batch_size == 2 and abs(h.learning_rate_multiplier - 20) < 1e-6 and h.n_epochs == "auto", f"{h}")
    check(job.config["rank"] == 4 and job.config["learning_rate"] == 2e-3, f"{job.config}")
    check(job.fine_tuned_model is None and job.finished_at is None and job.organization_id == "local", f"{job}")
    refused("its file", openai.ConflictError, None, "is used by job", lambda: client.files.delete(file))
    job = wait(client, job.id, "succeeded")
    check(job.fine_tuned_model == f"{name}:stripy" and job.finished_at >= job.created_at, f"{job}")

    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    check("file" not in events[0].data["result"] and "adapter" in events[0].data["result"],
          f"the event shows no paths of the server: {events[0].data}")
    check(events[0].message == "The job has succeeded" and events[-1].message == "The job is queued",
          f"{events[0].message}, {events[-1].message}")
    numbers = [int(e.id.rpartition("-")[2]) for e in events]
    check(numbers == list(range(numbers[0], 0, -1)),
          f"the pages list each event once, the newest first: {numbers}")
    check(all(e.object == "fine_tuning.job.event" and e.level == "info" and e.created_at >= job.created_at
              for e in events), "each event has OpenAI's fields")
    steps = [e for e in events if e.type == "metrics" and "train_loss" in e.data]
    check(steps and all(e.data["total_steps"] == 12 and 0 < e.data["train_loss"] < 10 for e in steps), f"{steps}")
    print(f"{len(events)} events, {len(steps)} with a loss; {steps[0].message}")
    check(any("Checkpoint created at step 4" == e.message for e in events), "checkpoints are events")

    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=2))
    check([c.step_number for c in checkpoints] == [12, 8, 4], f"{[c.step_number for c in checkpoints]}")
    check([c.fine_tuned_model_checkpoint for c in checkpoints] == [f"{name}:stripy@{s}" for s in (12, 8, 4)],
          f"{checkpoints}")
    drawn = []
    for which in (name, job.fine_tuned_model, checkpoints[0].fine_tuned_model_checkpoint,
                  checkpoints[2].fine_tuned_model_checkpoint):
        got = client.images.generate(model=which, prompt="stripes number 1", size="64x64",
                                     extra_body={"seed": 1, "num_inference_steps": 6})
        data = base64.b64decode(got.data[0].b64_json)
        drawn.append(np.asarray(Image.open(io.BytesIO(data))).astype(int))
        if left:
            Image.open(io.BytesIO(data)).save(os.path.join(left, which.replace(":", "_") + ".png"))
    check(np.abs(drawn[1] - drawn[0]).mean() > 1 and (drawn[1] == drawn[2]).all() and
          (drawn[3] != drawn[1]).any(),
          "the adapter changes the picture, its last checkpoint draws the same, an earlier one does not")
    return job.id[6:]


def more_jobs(d, client, file):
    def start(suffix=None, **hyperparameters):
        return client.fine_tuning.jobs.create(
            model="sd15", training_file=file, suffix=suffix,
            hyperparameters={"batch_size": 1, **LITTLE, "max_train_steps": 4000, "checkpointing_steps": 2,
                             "checkpoints_total_limit": 2, **hyperparameters})
    one, two = start("one"), start()
    check(two.status == "queued" and client.fine_tuning.jobs.cancel(two.id).status == "cancelled",
          "a queued job is cancelled at once")
    wait(client, one.id, "running")
    check(wait_until(lambda: client.fine_tuning.jobs.retrieve(one.id).estimated_finish, 60),
          "a running job has an estimated end")
    ends, now = client.fine_tuning.jobs.retrieve(one.id).estimated_finish, time.time()
    eta_s = d.get("/jobs/" + one.id.removeprefix("ftjob-")).json()["eta_s"]
    check(abs(now + eta_s - ends) <= 2 + eta_s / 2,
          f"the estimated end agrees with eta_s: in {ends - now} s, {eta_s} s")
    client.fine_tuning.jobs.pause(one.id)
    wait(client, one.id, "paused")
    check(client.fine_tuning.jobs.resume(one.id).status in ("queued", "running"),
          "the paused job can be resumed")
    wait(client, one.id, "running")
    client.fine_tuning.jobs.cancel(one.id)
    wait(client, one.id, "cancelled")
    refused("a job that is over", openai.ConflictError, None, "cancelled", lambda: client.fine_tuning.jobs.pause(one.id))
    jobs = [j.id for j in client.fine_tuning.jobs.list(limit=1)]
    check(jobs[:2] == [two.id, one.id] and len(jobs) == 3, f"{jobs}")
    found = {str(wanted): [j.id for j in client.fine_tuning.jobs.list(limit=1, metadata=wanted)]
             for wanted in ({"owner": "me"}, {"owner": "you"}, {"owner": "me", "a": "b"})}
    check(found == {"{'owner': 'me'}": jobs[2:], "{'owner': 'you'}": [], "{'owner': 'me', 'a': 'b'}": []}, f"{found}")
    none = [j["id"] for j in d.get("/v1/fine_tuning/jobs?metadata=null").json()["data"]]
    check(none == jobs[:2], f"metadata=null lists the jobs without metadata: {none}")
    key = {"Idempotency-Key": "monday"}
    same = [client.fine_tuning.jobs.create(model=name, training_file=file, suffix="same", extra_headers=key,
                                           hyperparameters=LITTLE).id for _ in range(2)]
    check(same[0] == same[1], "the same request with its key is the same job")
    client.fine_tuning.jobs.cancel(same[0])
    for what, param, words, options in (
            ("another model", "model", "GET /v1/models", {"model": "gpt-4o"}),
            ("no file", "training_file", "", {"training_file": "file-nobody"}),
            ("no id", "training_file", "id of a file", {"training_file": "cats"}),
            ("an adapter", "model", "without an adapter", {"model": name + ":stripy"}),
            ("a long suffix", "suffix", "64 bytes", {"suffix": "a" * 65}),
            ("a wrong suffix", "suffix", "FOLDER/NAME", {"suffix": "../b"}),
            ("metadata", "metadata", "16 texts", {"metadata": {str(i): "a" for i in range(17)}}),
            ("another method", "method", "supervised", {"method": {"type": "dpo", "dpo": {}}}),
            ("a validation file", "validation_file", "validation_share", {"validation_file": file}),
            ("integrations", "integrations", "TensorBoard",
             {"integrations": [{"type": "wandb", "wandb": {"project": "a"}}]}),
            ("epochs", "n_epochs", "", {"hyperparameters": {"n_epochs": -1}}),
            ("a batch", "batch_size", "", {"hyperparameters": {"batch_size": 1000}}),
            ("a rate", "learning_rate_multiplier", "above 0", {"hyperparameters": {"learning_rate_multiplier": 0}}),
            ("a field", "colour", "", {"hyperparameters": {"colour": 3}}),
            ("our own name", "dataset", "", {"hyperparameters": {"dataset": "stripes"}}),
            ("an unknown field", "colour", "no such field", {"extra_body": {"colour": 1}}),
            ("a seed", "seed", "", {"seed": -1})):
        refused(what, openai.APIStatusError, param, words, lambda o=options: client.fine_tuning.jobs.create(
            **{"model": name, "training_file": file, **o}))
    for call in (client.fine_tuning.jobs.retrieve, client.fine_tuning.jobs.cancel, client.fine_tuning.jobs.pause,
                 client.fine_tuning.jobs.list_events, client.fine_tuning.jobs.checkpoints.list):
        for id in ("ftjob-0123456789abcdef", "nobody"):
            refused("nobody's job", openai.NotFoundError, None, "no fine-tuning job", lambda c=call, i=id: c(i))
    refused("a page", openai.BadRequestError, "after", "", lambda: client.fine_tuning.jobs.list(after="ftjob-1"))
    refused("a page of events", openai.BadRequestError, "after", "",
            lambda: client.fine_tuning.jobs.list_events(one.id, after="ft-event-1"))
    refused("a page of checkpoints", openai.BadRequestError, "after", "",
            lambda: client.fine_tuning.jobs.checkpoints.list(one.id, after="ftckpt-1"))


def tensorboard(d, id):
    """TensorBoard reads what the training has written: the loss of every step, and the pictures."""
    events = EventAccumulator(glob.glob(os.path.join(d.state, "jobs", id, "events.out.tfevents.*"))[0],
                              size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    tags = events.Tags()
    told = {int(r["step"]): r["loss"] for r in map(__import__("json").loads, d.get(f"/jobs/{id}/metrics").body.splitlines())
            if r.get("loss") is not None}
    read = {e.step: e.value for e in events.Scalars("loss")}
    check(sorted(read) == sorted(told) == list(range(1, 13)), f"{sorted(read)}")
    worst = max(abs(read[s] - told[s]) for s in read)
    check(worst < 1e-6, f"TensorBoard's losses equal the job's: {worst} apart")
    check({"learning_rate", "grad_norm"} <= set(tags["scalars"]), f"{tags['scalars']}")
    pictures = [e for tag in tags["images"] for e in events.Images(tag)]
    print(f"TensorBoard: {len(read)} losses, at most {worst:.1e} apart; {len(pictures)} pictures")
    image = Image.open(io.BytesIO(pictures[0].encoded_image_string))
    check(image.size == (pictures[0].width, pictures[0].height) == (64, 64), f"{image.size}")


async def at_once(d):
    client = openai.AsyncOpenAI(base_url=f"http://{d.host}:{d.port}/v1", api_key="none")
    jobs = [j.id async for j in client.fine_tuning.jobs.list(limit=2)]
    found = [f.id async for f in client.files.list(limit=2)]
    check(len(jobs) == 4 and jobs == list(dict.fromkeys(jobs)) and len(found) == 3, f"{jobs} {found}")
    await client.close()


with trainer.Trainer() as d:
    client = openai.OpenAI(base_url=f"http://{d.host}:{d.port}/v1", api_key="none", max_retries=0)
    file = files(d, client)
    id = a_job(d, client, file)
    tensorboard(d, id)
    more_jobs(d, client, file)
    asyncio.run(at_once(d))
done()
