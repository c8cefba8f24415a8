"""--training-share in the daemon: with a half of the engine's time a job ends during a request
that takes much longer. Without a share the job does not begin before that request ends. Both
adapters are the same. usage: training_share.py EXECUTABLE MODEL"""
import contextlib
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, generate_bytes, wait_until  # noqa: E402
from metrics import read  # noqa: E402
from trainer import DRAW, Trainer, make_pictures, root  # noqa: E402

IMAGES, STEPS = 4, 999
CALLS = IMAGES * STEPS
LONG = {**DRAW, "num_images": IMAGES, "num_inference_steps": STEPS, "scheduler": "ddim", "output": "latent"}
JOB = {"max_train_steps": 2, "train_batch_size": 1, "checkpointing_steps": 0}


def calls(d):
    """Returns the number of UNet calls made for requests. With at most two rows in a call, each
    picture has calls of its own."""
    return int(read(d)["latentd_unet_calls_total"])


def preempted(d):
    return int(read(d)["latentd_train_preempted_total"])


@contextlib.contextmanager
def while_a_request_is_drawn(d):
    with d.connect() as s:
        s.sendall(generate_bytes(LONG))
        check(wait_until(lambda: calls(d) > 0, 60), "a request is drawn")
        yield
        check(calls(d) < CALLS, "the request has not ended")
    # The client has disconnected.
    check(d.gets_to_depth(0, 60), "the request is cancelled")


def with_a_half():
    """Returns the adapter and the number of calls for the request during the job."""
    with Trainer("--training-share", "0.5", "--max-batch-rows", "2") as d:
        with while_a_request_is_drawn(d):
            before = calls(d)
            id = d.start(**JOB)
            d.wait(id)
            beside = calls(d) - before
            check(1 <= preempted(d) <= beside,
                  f"training was interrupted for requests: {preempted(d)} times")
        return d.file(id), beside


def without(beside):
    with Trainer("--max-batch-rows", "2") as d:
        with while_a_request_is_drawn(d):
            id = d.start(**JOB)
            opened = os.path.join(d.state, "jobs", id, "dataset.json")
            check(wait_until(lambda: os.path.exists(opened), 60), "the job is opened")
            enough = min(calls(d) + 2 * beside + 50, CALLS - 100)
            check(wait_until(lambda: calls(d) >= enough, 120),
                  "requests are drawn while the job is opened")
            job = d.job(id)
            check(job["state"] == "running" and job["step"] == 0,
                  f"the job waits for the requests: {job}")
            check(preempted(d) == 0, f"a waiting job is not counted as interrupted: {preempted(d)}")
            check(wait_until(lambda: (d.job(id)["held_up_s"] or 0) >= 1, 60),
                  f"held_up_s shows how long the job has waited: {d.job(id)}")
        d.wait(id)
        check(d.job(id)["held_up_s"] is None, f"held_up_s is null once the job trains: {d.job(id)}")
        return d.file(id)


try:
    make_pictures()
    adapter, beside = with_a_half()
    print(f"a job of {JOB['max_train_steps']} steps ended beside {beside} of {CALLS} calls")
    check(without(beside) == adapter, "the adapter has the bytes of an undisturbed job")
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
