"""A full fine-tune over HTTP on the bundled checkpoint: its result is a checkpoint's folder that a daemon serves,
with the bytes of `latentd train` although the daemon was killed in the middle.
usage: train_full_http.py EXECUTABLE MODEL"""
import json
import os
import shutil
import signal
import subprocess

from daemon import Daemon, check, done, wait_until
from trainer import DRAW, JOB, Trainer, executable, make_pictures, model, root

FULL = {key: value for key, value in JOB.items() if key not in ("rank", "dropout")} | {
    "method": "full", "learning_rate": 1e-4, "use_ema": True, "gradient_accumulation_steps": 2}


def trained_alone():
    """The folder that `latentd train` names in the end."""
    config, out = os.path.join(root, "job.json"), os.path.join(root, "alone")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(FULL, f)
    p = subprocess.run([executable, "train", "--model", model, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out], capture_output=True, text=True)
    check(p.returncode == 0, f"latentd train: {p.stderr}")
    said = p.stdout.splitlines()[-1]
    check(said == os.path.join(out, "model"), f"it says where: {said}")
    return said


def files(folder):
    """Every file below a folder and its bytes."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as f:
                found[os.path.relpath(os.path.join(path, name), folder)] = f.read()
    return found


def trained_by_a_daemon_that_was_killed():
    d = Trainer()
    with d:
        plain = d.picture()
        id = d.start(**FULL, rank=None, dropout=None)
        check(wait_until(lambda: d.job(id)["step"] >= 6, 60), "it is under way")
        d.process.send_signal(signal.SIGKILL)
        d.process.wait(20)
    with Trainer(state=d.state) as d:
        job = d.wait(id)
        check(job["result"]["model"] == os.path.join(d.state, "jobs", id, "model"), f"it says where: {job['result']}")
        check(d.picture() == plain, "the daemon's own model is as it was")
    return job["result"]["model"], plain


try:
    make_pictures()
    alone = files(trained_alone())
    trained, plain = trained_by_a_daemon_that_was_killed()
    made = files(trained)
    check(sorted(made) == sorted(alone) and "model_index.json" in made, f"the files: {sorted(made)}")
    check(made == alone, "killed and resumed: the same bytes")
    with Daemon(executable, trained, extra=["--dtype", "f32"]) as daemon:
        answer = daemon.generate(DRAW, {"Accept": "image/png"})
        check(answer.status == 200 and answer.body != plain, "it is served, and draws something else")
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
