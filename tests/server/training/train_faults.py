"""Faults in the middle of a training job: a full disk, folders that cannot be written, damaged
checkpoints, non-finite numbers, too little memory. The daemon survives each with an error
that names the cause. The job can be resumed from its last good checkpoint and ends with the
same bytes as an undisturbed job. usage: train_faults.py EXECUTABLE MODEL"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import check, done, wait_until  # noqa: E402
from trainer import JOB, Trainer, executable, make_pictures, model, root  # noqa: E402

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def train(out):
    """Runs `latentd train` in a folder. Returns its exit status and errors."""
    config = os.path.join(root, "job.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(JOB, f)
    p = subprocess.run([executable, "train", "--model", model, "--config", config, "--dataset-root",
                        os.path.join(root, "sets"), "--out", out, "-q"], capture_output=True, text=True)
    return p.returncode, p.stderr


def adapter(out):
    with open(os.path.join(out, "stripes.safetensors"), "rb") as f:
        return f.read()


def half_done(to):
    """Makes a job's folder as if it had been killed after step 8, from a finished job's folder.
    Returns checkpoint-8."""
    shutil.copytree(os.path.join(root, "alone"), to)
    for name in "checkpoint-12", "checkpoint-16":
        shutil.rmtree(os.path.join(to, name))
    os.remove(os.path.join(to, "stripes.safetensors"))
    return os.path.join(to, "checkpoint-8")


def cut(share):
    def damage(path):
        os.truncate(path, int(os.path.getsize(path) * share))
    return damage


def flip(share):
    def damage(path):
        with open(path, "r+b") as f:
            f.seek(int(os.path.getsize(path) * share))
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 16]))
    return damage


def become_a_folder(path):
    os.remove(path)
    os.mkdir(path)


DAMAGES = [("state.safetensors", "is empty", cut(0), "has 0 bytes"),
           ("state.safetensors", "is cut in half", cut(0.5), "outside of the file"),
           ("state.safetensors", "has a wrong bit", flip(0.7), "checksum is not right"),
           ("state.safetensors", "has a wrong size", flip(0), "checkpoint-8"),
           ("state.safetensors", "is gone", os.remove, "No such file"),
           ("state.safetensors", "is a folder", become_a_folder, "checkpoint-8"),
           ("adapter.safetensors", "is cut in half", cut(0.5), None)]  # a job resumes without this file


def damaged_checkpoints_are_passed_over(alone):
    for i, (name, what, damage, words) in enumerate(DAMAGES):
        out = os.path.join(root, f"damaged{i}")
        damage(os.path.join(half_done(out), name))
        status, log = train(out)
        check(status == 0 and adapter(out) == alone, f"{name} {what}: {status} {log}")
        passed_over = [line for line in log.splitlines() if "is passed over" in line]
        check([words in line for line in passed_over] == ([True] if words else []), f"{name} {what}: {log}")
        print(f"{name} {what}: {passed_over[0].split(': ', 1)[1] if passed_over else 'not needed'}")
    out = os.path.join(root, "damaged")
    half_done(out)
    for name in "checkpoint-4", "checkpoint-8":
        os.truncate(os.path.join(out, name, "state.safetensors"), 100)
    status, log = train(out)
    check(status == 1 and "none of its 2 checkpoints can be used" in log and "checkpoint-4" in log,
          f"with only damaged checkpoints the command fails and names them: {status} {log}")
    check(os.path.isdir(os.path.join(out, "checkpoint-4")), "damaged checkpoints are not removed")


def goes_on(d, id, alone, what, name="stripes"):
    """Resumes the job; it must end with the bytes of an undisturbed job."""
    check(d.request("POST", f"/jobs/{id}/resume").status in (200, 202),
          f"{what}: the failed job can be resumed")
    d.wait(id)
    check(d.file(id, name) == alone, f"{what}: the bytes are those of an undisturbed job")


def a_full_disk(alone):
    with Trainer() as d:
        plain = d.picture()
        id = d.start()
        folder = os.path.join(d.state, "jobs", id)
        check(wait_until(lambda: os.path.isdir(os.path.join(folder, "checkpoint-4")), 60),
              "the job writes its first checkpoint")
        # A file size limit that is enough for the queue and the metrics, but not for a checkpoint.
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (200000, resource.RLIM_INFINITY))
        job = d.wait(id, "failed")
        check(job["error"]["code"] == "disk_full" and "/checkpoint-" in job["error"]["message"] and
              "File too large" in job["error"]["message"], f"{job['error']}")
        print(f"a full disk at step {job['step']}: {job['error']['message']}")
        check(not [n for n in os.listdir(folder) if n.endswith(".writing")],
              "no half-written file is left")
        check(d.picture() == plain, "pictures are drawn after the job failed")
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        goes_on(d, id, alone, "a full disk")


def a_folder_that_is_gone(alone):
    with Trainer() as d:
        id = d.start()
        folder = os.path.join(d.state, "jobs", id)
        check(wait_until(lambda: os.path.isdir(os.path.join(folder, "checkpoint-4")), 60),
              "the job writes its first checkpoint")
        os.rename(folder, folder + ".away")
        with open(folder, "w", encoding="utf-8"):
            pass
        job = d.wait(id, "failed")
        check(job["error"]["code"] == "io_error" and "/checkpoint-" in job["error"]["message"],
              f"{job['error']}")
        print(f"a file in the place of its folder: {job['error']['message']}")
        os.remove(folder)
        os.rename(folder + ".away", folder)
        goes_on(d, id, alone, "its folder is back")


def a_folder_that_cannot_be_made(alone):
    with Trainer() as d:
        jobs = os.path.join(d.state, "jobs")
        if os.path.isdir(jobs):
            os.rmdir(jobs)
        with open(jobs, "w", encoding="utf-8"):
            pass
        id = d.start()
        job = d.wait(id, "failed")
        check(job["error"]["code"] == "io_error" and jobs in job["error"]["message"], f"{job['error']}")
        print(f"no folder: {job['error']['message']}")
        os.remove(jobs)
        goes_on(d, id, alone, "a folder can be made")


def numbers_that_are_not_finite(_):
    with Trainer() as d:
        job = d.wait(d.start(alpha=1e6, learning_rate=10, scale_lr=True, gradient_accumulation_steps=65536), "failed")
        message = job["error"]["message"]
        check(re.search(rf"\bstep {job['step'] + 1}: .*finite", message) and "learning_rate" in message,
              f"the error names the step: {message}")
        print(f"not finite: {message}")
        check(d.wait(d.start(name="next", max_train_steps=1))["step"] == 1, "the next job trains")


def data_bytes(d):
    with open(f"/proc/{d.process.pid}/status", encoding="utf-8") as f:
        return int(re.search(r"VmData:\s+(\d+) kB", f.read())[1]) * 1024


def too_little_memory(alone):
    ends = []
    with Trainer() as d:
        plain = d.picture()
        for i, more in enumerate((12, 16, 24, 96)):
            limit = data_bytes(d) + (more << 20)
            resource.prlimit(d.process.pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
            id = d.start(name=f"memory{i}")
            job = {}
            check(wait_until(lambda: job.update(d.job(id)) or job["state"] in ("succeeded", "failed"), 60),
                  f"{more} MiB: the job ends: {job}")
            drawn = d.picture(loras=[])
            resource.prlimit(d.process.pid, resource.RLIMIT_DATA, UNLIMITED)
            check(drawn == plain, f"{more} MiB: pictures are drawn")
            ends.append(job["state"])
            if job["state"] == "failed":
                error = job["error"]
                check(error["code"] == "out_of_memory", f"{more} MiB: {error}")
                print(f"{more} MiB: {error['message']}")
                goes_on(d, id, alone, f"{more} MiB", f"memory{i}")
            check(d.file(id, f"memory{i}") == alone,
                  f"{more} MiB: the adapter's bytes are those of an undisturbed job")
    check("failed" in ends and "succeeded" in ends,
          f"some memory limits are enough and some are not: {ends}")


try:
    make_pictures()
    status, log = train(os.path.join(root, "alone"))
    check(status == 0, f"latentd train: {log}")
    reference = adapter(os.path.join(root, "alone"))
    for promise in (damaged_checkpoints_are_passed_over, a_full_disk, a_folder_that_is_gone,
                    a_folder_that_cannot_be_made, numbers_that_are_not_finite, too_little_memory):
        promise(reference)
finally:
    shutil.rmtree(root, ignore_errors=True)
done()
