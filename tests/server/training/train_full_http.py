"""A full fine-tune over HTTP with the bundled checkpoint: the result is a checkpoint folder that
a daemon can serve. It has the bytes of `latentd train`, although the daemon was killed in the
middle. usage: train_full_http.py EXECUTABLE MODEL"""
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402
from trainer import DRAW, JOB, Trainer, executable, make_pictures, model, root  # noqa: E402

FULL = {key: value for key, value in JOB.items() if key not in ("rank", "dropout")} | {
    "method": "full", "learning_rate": 1e-4, "use_ema": True, "gradient_accumulation_steps": 2}


def trained_alone():
    """Runs `latentd train` and returns the result's folder, which it prints at the end."""
    config, out = os.path.join(root, "job.json"), os.path.join(root, "alone")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(FULL, f)
    p = subprocess.run([executable, "train", "--model", model, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out], capture_output=True, text=True)
    check(p.returncode == 0, f"latentd train: {p.stderr}")
    said = p.stdout.splitlines()[-1]
    check(said == os.path.join(out, "model"), f"the command prints the model's path: {said}")
    return said


def files(folder):
    """Returns {path: bytes} of all files in a folder."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as f:
                found[os.path.relpath(os.path.join(path, name), folder)] = f.read()
    return found


def bytes_in(folder):
    return sum(len(data) for data in files(folder).values())


def a_disk_too_small_is_foretold(d, folder):
    """A job is refused if its checkpoints cannot fit on the disk; the sizes in the error match
    those of the finished job in `folder`. The same job with a limit on kept checkpoints is
    accepted."""
    each, whole = bytes_in(os.path.join(folder, "checkpoint-16")), bytes_in(os.path.join(folder, "model"))
    many = {**FULL, "rank": None, "dropout": None, "name": "many", "checkpointing_steps": 1,
            "max_train_steps": 100000000}
    r = d.train(**many)
    check(r.status == 507 and r.json()["error"]["code"] == "disk_full", f"{r.status} {r.body[:400]}")
    job = d.wait(d.start(**{**many, "max_train_steps": None, "num_train_epochs": 100000000}), "failed")
    check(job["error"]["code"] == "disk_full" and job["step"] == 0, f"{job}")
    for message, count in (r.json()["error"]["message"], 100000000), (job["error"]["message"], 200000000):
        print(message)
        said = re.search(r"writes (\d+) MiB \(checkpoints of (\d+) MiB: (\d+), the model: (\d+) MiB\)", message)
        all_mib, each_mib, checkpoints, model_mib = map(int, said.groups())
        check(abs(each_mib - each / 2**20) <= 1 + each / 2**20 / 50, f"a checkpoint has {each} bytes: {message}")
        check(abs(model_mib - whole / 2**20) <= 1 + whole / 2**20 / 50, f"the model has {whole} bytes: {message}")
        check(checkpoints == count and all_mib >= count * (each_mib - 1), f"{count} checkpoints: {message}")
    id = d.start(**many, checkpoints_total_limit=2)
    check(d.request("POST", f"/jobs/{id}/cancel").status in (200, 202),
          "with fewer checkpoints the job fits on the disk and is accepted")
    d.wait(id, "cancelled")


def trained_by_a_daemon_that_was_killed():
    d = Trainer()
    with d:
        plain = d.picture()
        id = d.start(**FULL, rank=None, dropout=None)
        check(wait_until(lambda: d.job(id)["step"] >= 6, 60), "the job has made six steps")
        d.kill()
    with Trainer(state=d.state) as d:
        job = d.wait(id)
        check(job["result"]["model"] == os.path.join(d.state, "jobs", id, "model"),
              f"the job's result has the model's path: {job['result']}")
        check(d.picture() == plain, "training does not change the daemon's model")
        a_disk_too_small_is_foretold(d, os.path.join(d.state, "jobs", id))
    return job["result"]["model"], plain


try:
    make_pictures()
    alone = files(trained_alone())
    trained, plain = trained_by_a_daemon_that_was_killed()
    made = files(trained)
    check(sorted(made) == sorted(alone) and "model_index.json" in made,
          f"the job writes the files of latentd train: {sorted(made)}")
    check(made == alone, "the killed and resumed job writes the same bytes")
    with Daemon(executable, trained, extra=["--dtype", "f32"]) as daemon:
        answer = daemon.generate(DRAW, {"Accept": "image/png"})
        check(answer.status == 200 and answer.body != plain,
              "the trained model can be served and draws another picture")
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
