"""Jobs that draw while the disk is full. A drawn picture is kept and written once there is room;
meanwhile a job can be cancelled. The disk is a tmpfs of 8 MB; skipped without the right to
mount one. usage: orders_full_disk_http.py EXECUTABLE"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, wait_until  # noqa: E402

JSON = {"Content-Type": "application/json"}
FIELDS = {"prompt": "a", "num_inference_steps": 10, "scheduler": "ddim", "seed": 7}
DISK_MB = 8


def disk(daemon, full):
    """Fills the daemon's disk to the last byte, or empties it."""
    filler = os.path.join(daemon.folder, "..", "filler")
    if not full:
        os.remove(filler)
        return
    with open(filler, "wb", buffering=0) as f:
        for size in (1 << 16, 4096, 1):
            while True:
                try:
                    f.write(bytes(size))
                except OSError:
                    break


def order(daemon, **more):
    return daemon.request("POST", "/generate?async=1", json.dumps({**FIELDS, **more}), JSON)


def begun(daemon, **more):
    """Orders a job and waits until it is being drawn, then fills the disk. Returns the job's id."""
    r = order(daemon, **more)
    check(r.status == 202, f"the job is accepted: {r.status} {r.body[:200]}")
    check(daemon.is_drawing(), "the job is being drawn")
    disk(daemon, True)
    return r.json()["id"]


def job(daemon, job_id, query=""):
    return daemon.get(f"/jobs/{job_id}{query}").json()


def cancel_is_heard(daemon, job_id):
    r = daemon.request("POST", f"/jobs/{job_id}/cancel")
    message = r.error()["message"]
    check(r.status == 507 and r.error()["code"] == "disk_full" and "is asked to stop" in message,
          f"a cancel that cannot be stored is a 507 that says so: {r.status} {r.body[:300]}")
    check(job(daemon, job_id)["asked_to"] == "cancel",
          "GET /jobs/ID shows the cancel that was asked for")
    return message


def what_is_drawn_is_written_later(daemon):
    drawn = daemon.generate(FIELDS, {"Accept": "image/png"}).body
    job_id = begun(daemon)
    check(daemon.gets_to_depth(0), "the job is drawn to its end")
    check(daemon.generate({"prompt": "a"}).status == 200,
          "a plain request is drawn while the disk is full")
    r = order(daemon)
    check(r.status == 507 and r.error()["code"] == "disk_full",
          f"no new job is accepted while the disk is full: {r.status} {r.body[:200]}")
    # 3 s are enough for two more attempts to write the picture.
    ended = wait_until(lambda: job(daemon, job_id)["state"] != "running", 3)
    check(not ended,
          f"the job does not end while its pictures cannot be written: {job(daemon, job_id)['state']}")
    disk(daemon, False)
    end = job(daemon, job_id, "?wait=30")
    check(end["state"] == "succeeded",
          f"once the disk has space, the job succeeds: {end['state']} {end['error']}")
    picture = daemon.get(f"/jobs/{job_id}/images/0.png")
    check(picture.status == 200 and picture.body == drawn,
          f"the job's picture is the plain request's: {len(picture.body)} bytes, {len(drawn)} bytes")
    print(f"drawn on a full disk: {end['state']} after it has room, {len(picture.body)} bytes as a request's")


def a_job_that_waits_for_room_can_be_cancelled(daemon):
    job_id = begun(daemon)
    check(daemon.gets_to_depth(0), "the job is drawn to its end")
    cancel_is_heard(daemon, job_id)
    disk(daemon, False)
    end = job(daemon, job_id, "?wait=30")
    check(end["state"] == "cancelled",
          f"a job whose pictures wait for disk space can be cancelled: {end['state']}")


def a_job_that_draws_can_be_cancelled(daemon):
    job_id = begun(daemon, num_inference_steps=900)
    message = cancel_is_heard(daemon, job_id)
    check(daemon.gets_to_depth(0), "a cancelled job is no longer drawn")
    check(job(daemon, job_id)["state"] == "running",
          "the job's state stays running while the disk is full")
    disk(daemon, False)
    end = job(daemon, job_id, "?wait=30")
    check(end["state"] == "cancelled",
          f"once the disk has space, the job is cancelled: {end['state']}")
    check(daemon.request("POST", f"/jobs/{job_id}/cancel").status == 200,
          "a second cancel is answered with 200")
    print(f"cancelled on a full disk: {message}")


def a_daemon_that_stops_meanwhile_draws_it_later(executable, folder):
    with Started(executable, folder) as daemon:
        job_id = begun(daemon)
        check(daemon.gets_to_depth(0), "the job is drawn to its end")
    os.remove(f"{folder}/../filler")
    with Started(executable, folder) as daemon:
        end = job(daemon, job_id, "?wait=30")
        check(end["state"] == "succeeded",
              f"after a restart the job is drawn anew: {end['state']} {end['error']}")


class Started(Daemon):
    def __init__(self, executable, folder):
        super().__init__(executable, "fake,step_ms=20", extra=["--state-dir", folder])
        self.folder = folder


with tempfile.TemporaryDirectory() as work:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", work],
                      capture_output=True).returncode != 0:
        print("no right to mount a tmpfs here")
        sys.exit(77)
    try:
        with Started(sys.argv[1], f"{work}/state") as d:
            what_is_drawn_is_written_later(d)
            a_job_that_waits_for_room_can_be_cancelled(d)
            a_job_that_draws_can_be_cancelled(d)
        a_daemon_that_stops_meanwhile_draws_it_later(sys.argv[1], f"{work}/state")
    finally:
        subprocess.run(["umount", "-l", work])
done()
