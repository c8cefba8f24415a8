"""One training job whose daemon is killed KILLS times at random moments and started again each
time. The adapter must have the same bytes as that of an undisturbed job, and the metrics the
same losses. usage: train_kills.py EXECUTABLE MODEL KILLS [SEED]"""
import json
import os
import random
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from trainer import Trainer, make_pictures, root  # noqa: E402

kills = int(sys.argv[3])
seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().randrange(1 << 32)
# Enough steps for that many kills. A checkpoint every other step, so that many kills happen while
# one is written.
STEPS = 16 + 12 * kills
JOB = {"max_train_steps": STEPS, "checkpointing_steps": 2, "checkpoints_total_limit": 3}


def losses(d, id):
    with open(os.path.join(d.state, "jobs", id, "metrics.jsonl"), encoding="utf-8") as f:
        return [(line["step"], line["loss"]) for line in map(json.loads, f)]


def undisturbed():
    """Runs the job undisturbed. Returns the adapter's bytes, the losses, the seconds of the
    whole job and the seconds to its first step."""
    with Trainer() as d:
        began = time.monotonic()
        id = d.start(**JOB)
        check(wait_until(lambda: d.job(id)["step"] > 0, 60), "the job begins")
        start_s = time.monotonic() - began
        d.wait(id, seconds=3600)
        return d.file(id), losses(d, id), time.monotonic() - began, start_s


def moments(draw):
    """Returns the moments of the kills in order: (step, fraction of the next step), or (None,
    fraction of the time to the first step)."""
    began = sum(draw.random() < 1 / 3 for _ in range(kills))
    steps = sorted(draw.randrange(1, STEPS - 8) for _ in range(kills - began))
    for _ in range(began):
        steps.insert(draw.randrange(len(steps) + 1), None)
    return [(step, draw.random()) for step in steps]


def kill(d, id, moment, start_s, step_s):
    step, share = moment
    if step is None:
        time.sleep(share * start_s)
    else:
        check(wait_until(lambda: d.job(id)["step"] >= step, 600), f"the job reaches step {step}")
        time.sleep(share * step_s)
    job = d.job(id)
    d.process.kill()
    d.process.wait(20)
    check(job["state"] in ("queued", "running"),
          f"the job has not ended at step {job['step']}: {job['state']}")
    return job["step"]


def main():
    print(f"seed {seed}", flush=True)
    make_pictures()
    adapter, lines, whole_s, start_s = undisturbed()
    step_s = (whole_s - start_s) / STEPS
    print(f"undisturbed: {STEPS} steps in {whole_s:.1f} s, the first after {start_s:.2f} s", flush=True)
    d = Trainer()
    id, given_up, half_written, steps = None, 0, 0, []
    for moment in moments(random.Random(seed)):
        with d:
            id = id or d.start(**JOB)
            job = d.job(id)
            if job["state"] == "failed":  # after five kills without progress
                check("the daemon ended 5 times" in job["error"]["message"], f"{job['error']}")
                given_up += 1
                d.request("POST", f"/jobs/{id}/resume")
            steps.append(kill(d, id, moment, start_s, step_s))
        folder = os.path.join(d.state, "jobs", id)
        names = os.listdir(folder) if os.path.isdir(folder) else []
        half_written += any(name.endswith((".writing", ".deleting")) for name in names)
        d = Trainer(state=d.state)
    with d:
        job = d.wait(id, seconds=3600)
        check(d.file(id) == adapter, "the adapter has the bytes of an undisturbed run")
        check(losses(d, id) == lines, "the job's metrics are those of an undisturbed run")
        print(f"{len(steps)} kills, at steps {steps}; {half_written} of them in a checkpoint that was being "
              f"written; given up and resumed {given_up} times; {job['attempts']} attempts, {job['step']} steps, "
              f"{len(adapter)} bytes equal")


try:
    main()
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
