"""Validation pictures of a training job: they have the pixels of POST /generate with the adapter
of that step, drawing them changes no bit of the training, and they survive kills and pauses.
usage: train_validation_http.py EXECUTABLE MODEL"""
import glob
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from event_source import EventSource  # noqa: E402
from trainer import STEPS, Trainer, make_pictures, root  # noqa: E402

PROMPTS = ["a red house on green hills", "stripes number 2, r\u00f8d"]
VALUES = {"num_inference_steps": 4, "guidance_scale": 2.5, "negative_prompt": "snow", "scheduler": "euler"}
SHOWN = {"validation_prompts": PROMPTS, "validation_steps": 8, "num_validation_images": 2,
         "validation_inference_steps": 4, "validation_guidance_scale": 2.5, "validation_scheduler": "euler",
         "validation_negative_prompt": "snow", "validation_seed": 3}
# With EMA and a trained text encoder: the pictures must use exactly the weights that are saved.
ALL = {"use_ema": True, "ema_decay": 0.7, "train_text_encoder": True, "checkpointing_steps": 8}


def chunks(png):
    """Returns (kind, bytes) of all chunks."""
    at, found = 8, []
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        found.append((kind, png[at + 8:at + 8 + size]))
        at += 12 + size
    return found


def pixels(png):
    """Returns the chunks that hold the pixels. One encoder wrote all pictures, so equal pixels
    have equal bytes."""
    return [data for kind, data in chunks(png) if kind in (b"IHDR", b"IDAT")]


def size(png):
    return struct.unpack_from(">II", png, 16)


def pictures_are_those_of_generate(d, id):
    d.wait(id)
    answer = d.get(f"/jobs/{id}/validation").json()
    check([v["step"] for v in answer["validation"]] == [8, 16],
          f"validations are listed for steps 8 and 16: {answer}")
    shown = {}
    for v in answer["validation"]:
        check([(p["prompt"], p["seed"]) for p in v["pictures"]] == [(t, s) for t in PROMPTS for s in (3, 4)],
              f"each prompt is drawn with each seed: {v}")
        for p in v["pictures"]:
            r = d.get(p["url"])
            check(r.status == 200 and r.headers["content-type"] == "image/png", f"{p['url']}: {r.status}")
            same = d.picture(**VALUES, prompt=p["prompt"], seed=p["seed"],
                             loras=[{"name": f"stripes@{v['step']}"}])
            check(pixels(r.body) == pixels(same),
                  f"step {v['step']}, {p['file']}: the picture equals that of POST /generate")
            shown[v["step"], p["file"]] = r.body
            text = next(data for kind, data in chunks(r.body) if data.startswith(b"latentd\0"))
            request = json.loads(text.split(b"\0", 1)[1].decode("latin-1"))
            check(pixels(d.picture(**request)) == pixels(same),
                  f"the picture's `latentd` text draws the same picture: {request}")
    check(len({bytes().join(pixels(p)) for p in shown.values()}) == len(shown),
          "no two validation pictures are equal")
    grid = d.get(answer["grid_url"])
    check(grid.status == 200 and size(grid.body) == (4 + 2 * 6 + 4 + 4 * 68, 4 + 2 * 68),
          f"the grid has two rows of four pictures: {size(grid.body)}")

    files = glob.glob(os.path.join(d.state, "jobs", id, "events.out.tfevents.*"))
    with open(files[0], "rb") as f:
        events = f.read()
    check(all(p in events for p in shown.values()) and b"validation/1-1" in events,
          "TensorBoard's file has the pictures")
    told = [json.loads(e.data) for e in EventSource(d, f"/jobs/{id}/events", 0).follow()
            if e.kind == "validation"]
    check([(t["step"], len(t["pictures"])) for t in told] == [(8, 4), (16, 4)],
          f"each validation is an event: {told}")
    check(told == answer["validation"], f"the events equal GET /jobs/ID/validation: {told}")
    return shown


def shown_and_unshown_are_alike(d, id):
    d.forget()
    other = d.start(**ALL)
    d.wait(other)
    check(d.get(f"/jobs/{other}/validation").json() == {"validation": [], "grid_url": None},
          "a job without validation prompts draws no pictures")
    check(d.file(id) == d.file(other), "validation pictures change no bit of the adapter")


def a_kill_and_a_pause_leave_them_whole(shown, adapter):
    long = {**SHOWN, **ALL, "validation_inference_steps": 4}

    def begun(d, id, step):
        return os.path.exists(os.path.join(d.state, "jobs", id, "validation", f"step-{step}"))
    d = Trainer()
    with d:
        id = d.start(**long)
        check(wait_until(lambda: begun(d, id, 8), 60), "the pictures of step 8 are being drawn")
        d.kill()
    with Trainer(state=d.state) as d:
        check(wait_until(lambda: begun(d, id, 16) or d.job(id)["state"] == "succeeded", 60),
              "the pictures of step 16 are being drawn")
        d.request("POST", f"/jobs/{id}/pause")
        job = d.get(f"/jobs/{id}?wait=30").json()
        print(f"paused while it is {job['state']}, step {job['step']}")
        d.request("POST", f"/jobs/{id}/resume")
        d.wait(id)
        for (step, file), png in shown.items():
            r = d.get(f"/jobs/{id}/validation/step-{step}/{file}")
            check(r.status == 200 and pixels(r.body) == pixels(png), f"step {step}, {file}: {r.status}")
        check(d.file(id) == adapter, "the adapter has the bytes of an undisturbed job")


def measured(d, id):
    """Returns {step: loss of the held-out pictures} from metrics.jsonl."""
    records = [json.loads(line) for line in d.get(f"/jobs/{id}/metrics").body.splitlines()]
    check([r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1)),
          "the metrics have one line for each step")
    return {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}


def held_out_pictures_are_measured_alike(d):
    """Two of five pictures are held out. With a learning rate of 0 their loss stays the same,
    bit for bit."""
    held = {**ALL, "validation_share": 0.4}
    d.forget()
    still = d.start(**held, validation_steps=4, learning_rate=0)
    d.wait(still)
    losses = measured(d, still)
    check(list(losses) == [4, 8, 12, 16] and len(set(losses.values())) == 1 and losses[4] > 0,
          f"at a learning rate of 0 all validation losses are equal, so noise, timesteps and captions are: {losses}")
    check(d.get(f"/jobs/{still}/plot.svg").body.count(b"<circle") == 4,
          "the plot has a dot for each validation loss")
    told = d.get(f"/jobs/{still}/validation").json()["validation"]
    check([(v["step"], v["loss"], v["pictures"]) for v in told] == [(s, losses[s], []) for s in losses], f"{told}")

    d.forget()
    often = d.start(**held, validation_steps=4)
    d.wait(often)
    d.forget()
    seldom = d.start(**held, validation_steps=16)
    d.wait(seldom)
    check(d.file(often) == d.file(seldom), "measuring changes no bit of the adapter")
    a, b = measured(d, often), measured(d, seldom)
    check(list(b) == [16] and a[16] == b[16] and len(set(a.values())) == 4,
          f"the validation loss of a step does not depend on how often it is measured: {a} {b}")
    print(f"held out: {losses[4]:.6f} before, {a[16]:.6f} after")


def they_are_drawn_as_the_job_trains(d):
    """A job that trains v_prediction on an epsilon checkpoint draws its pictures with
    v_prediction."""
    d.forget()
    id = d.start(**SHOWN, prediction_type="v_prediction", checkpointing_steps=8)
    d.wait(id)
    v = d.get(f"/jobs/{id}/validation").json()["validation"][0]
    for p in v["pictures"]:
        r = d.get(p["url"])
        as_v, as_epsilon = (d.picture(**{**VALUES, "scheduler": {"name": "euler", "prediction_type": kind}},
                                      prompt=p["prompt"], seed=p["seed"], loras=[{"name": f"stripes@{v['step']}"}])
                            for kind in ("v_prediction", "epsilon"))
        check(pixels(r.body) == pixels(as_v) != pixels(as_epsilon),
              f"{p['file']}: the picture is drawn with v prediction")
        text = next(data for kind, data in chunks(r.body) if data.startswith(b"latentd\0"))
        request = json.loads(text.split(b"\0", 1)[1].decode("latin-1"))
        check(pixels(d.picture(**request)) == pixels(as_v),
              f"the picture's `latentd` text draws the same picture: {request}")
    print(f"{len(v['pictures'])} pictures are those of requests for v")


def what_a_job_leaves_open_is_as_in_requests():
    """Guidance, steps, scheduler and negative prompt: those of serve's --default, then those of the
    checkpoint's latentd.json."""
    with Trainer("--default", "num_inference_steps=3", "--default", "negative_prompt=snow", "--default",
                 "scheduler=euler", "--default", "clip_skip=1", "--default", "guidance_rescale=0.5") as d:
        for name, fields in (("open", {}), ("said", {"validation_guidance_scale": 7.5, "validation_inference_steps": 4,
                                                     "validation_scheduler": "ddim"})):
            id = d.start(name=name, max_train_steps=2, validation_prompts=PROMPTS[:1], validation_steps=2, **fields)
            d.wait(id)
            v = d.get(f"/jobs/{id}/validation").json()["validation"][0]
            shown = d.get(v["pictures"][0]["url"]).body
            asked = {"prompt": PROMPTS[0], "seed": v["pictures"][0]["seed"], "width": 64, "height": 64,
                     "loras": [{"name": f"{name}@{v['step']}"}],
                     **({"guidance_scale": 7.5, "num_inference_steps": 4, "scheduler": "ddim"} if fields else {})}
            same = d.generate(asked, {"Accept": "image/png"})
            check(same.status == 200 and pixels(shown) == pixels(same.body), f"{name}: as /generate draws it")
            text = next(data for kind, data in chunks(shown) if data.startswith(b"latentd\0"))
            request = json.loads(text.split(b"\0", 1)[1].decode("latin-1"))
            wanted = (7.5, 4, "snow") if fields else (2.5, 3, "snow")
            got = (request["guidance_scale"], request["num_inference_steps"], request["negative_prompt"])
            print(f"{name}: guidance, steps and negative prompt {got}")
            check(got == wanted, f"{name}: {request}")
            others = {field: request.get(field) for field in ("clip_skip", "guidance_rescale", "long_prompt", "vae_tiling")}
            check(others == {"clip_skip": 1, "guidance_rescale": 0.5, "long_prompt": None, "vae_tiling": None},
                  f"{name}: the text has the other fields that a default changed: {others}")


def a_loss_is_written_once():
    """The job is paused while a step's pictures are drawn, when its loss is already written."""
    held = {**SHOWN, "validation_share": 0.4, "checkpointing_steps": 8, "num_validation_images": 4,
            "validation_inference_steps": 40}
    with Trainer() as d:
        id = d.start(**held)
        step = os.path.join(d.state, "jobs", id, "validation", "step-8")
        check(wait_until(lambda: os.path.exists(step), 60),
              "the validation pictures are being drawn")
        d.request("POST", f"/jobs/{id}/pause")
        paused = d.wait(id, "paused")
        check(paused["step"] == 8 and not os.path.exists(os.path.join(step, "pictures.json")),
              f"the job pauses before all validation pictures are drawn: {paused['step']}")
        before = d.get(f"/jobs/{id}/metrics").body.splitlines()
        check(sum(b"validation_loss" in line for line in before) == 1,
              f"the validation loss is recorded before the pictures: {before}")
        d.request("POST", f"/jobs/{id}/resume")
        d.wait(id)
        records = [json.loads(line) for line in d.get(f"/jobs/{id}/metrics").body.splitlines()]
        losses = [(r["step"], r["validation_loss"]) for r in records if "validation_loss" in r]
        print(f"held out: {losses}")
        check([step for step, _ in losses] == [8, 16],
              f"the metrics have one validation loss for each measured step: {losses}")
        told = d.get(f"/jobs/{id}/validation").json()["validation"]
        check([(v["step"], v["loss"], len(v["pictures"])) for v in told] == [(8, losses[0][1], 8), (16, losses[1][1], 8)],
              f"the validations are listed with their losses: {told}")
        files = glob.glob(os.path.join(d.state, "jobs", id, "events.out.tfevents.*"))
        events = b""
        for name in files:
            with open(name, "rb") as f:
                events += f.read()
        check(len(files) == 2 and events.count(b"validation_loss") == 2,
              f"TensorBoard's files have each validation loss once: {events.count(b'validation_loss')} in {len(files)} files")


def wrong_fields_are_named(d):
    for fields, param in (({"validation_scheduler": "eulr"}, "validation_scheduler"),
                          ({"validation_scheduler": None, "validation_inference_steps": 1000},
                           "validation_inference_steps"),
                          ({"validation_prompts": ["x"] * 64, "num_validation_images": 16,
                            "validation_inference_steps": 33}, "validation_inference_steps"),
                          ({"validation_prompts": None}, "num_validation_images"),
                          ({"validation_steps": None}, "validation_steps"),
                          ({"validation_guidance_scale": 101}, "validation_guidance_scale"),
                          ({"num_validation_images": 17}, "num_validation_images")):
        r = d.train(**{**SHOWN, **fields})
        check(r.status == 400 and r.error()["param"] == param, f"{fields}: {r.status} {r.body}")


try:
    make_pictures()
    with Trainer() as daemon:
        wrong_fields_are_named(daemon)
        job_id = daemon.start(**SHOWN, **ALL)
        first = pictures_are_those_of_generate(daemon, job_id)
        shown_and_unshown_are_alike(daemon, job_id)
        saved = daemon.file(job_id)
        held_out_pictures_are_measured_alike(daemon)
        they_are_drawn_as_the_job_trains(daemon)
    a_kill_and_a_pause_leave_them_whole(first, saved)
    a_loss_is_written_once()
    what_a_job_leaves_open_is_as_in_requests()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
