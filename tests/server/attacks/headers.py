"""Headers that announce files as large as the disk, on a disk of 200 MB (a tmpfs; skipped
without the right to mount one). The headers alone reserve nothing. Some of the disk always
stays free for jobs. A data set that does not fit gets a 507. usage: headers.py LATENTD MODEL"""
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from bystander import DRAWING, ends_in_time, judge, measure, real_drawing  # noqa: E402
from daemon import Daemon, check, done  # noqa: E402
from png_file import gradient, png_file  # noqa: E402

LATENTD, MODEL = sys.argv[1:]
MIB = 1 << 20
DRAIN_S = 10
DISK, KEPT = 200 * MIB, 10 * MIB  # base/limits.h: a twentieth


def announce(d, path, size):
    """Opens a connection that announces a size and sends nothing."""
    s = d.connect()
    s.sendall(b"PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path, size))
    return s


def tar_of(size):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in (("a.png", png_file(64, 64, gradient)), ("b.txt", bytes(size))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def put(d, path, body):
    r = d.request("PUT", path, body, {"Content-Type": "application/octet-stream"})
    return r.status, r.body.decode()[:300]


def attack(disk):
    folder = f"{disk}/work"
    for name in ("loras", "data"):
        os.makedirs(f"{folder}/{name}")
    with open(f"{MODEL}/loras/snow.safetensors", "rb") as f:
        lora = f.read()
    with Daemon(LATENTD, MODEL, extra=["--state-dir", f"{folder}/state", "--lora-dir", f"{folder}/loras",
                                       "--dataset-root", f"{folder}/data", "--drain-timeout", str(DRAIN_S)]) as d:
        alone = measure(d)
        free = shutil.disk_usage(disk).free
        held = [announce(d, b"/datasets/big%d" % i, free - KEPT - 8 * MIB) for i in range(8)]
        held += [announce(d, b"/loras/big%d" % i, free - KEPT - 8 * MIB) for i in range(4)]
        judge("headers", alone, measure(d))
        now = shutil.disk_usage(disk).free
        print(f"announced by 12: {free - KEPT - 8 * MIB} bytes each; free before {free}, now {now}")
        check(free - now < 8 * MIB,
              f"an announced size takes no disk space: {free - now} bytes fewer are free")
        status, text = put(d, "/loras/a", lora)
        check(status in (200, 201), f"a LoRA is accepted: {status} {text}")
        for s in held:
            s.close()

        # A file larger than the disk is refused at once, before its first byte.
        s = announce(d, b"/datasets/huge", DISK)
        answer = s.recv(4096)
        check(b" 507 " in answer.split(b"\r\n")[0] and b"kept for jobs" in answer, f"{answer[:300]}")
        s.close()
        # The archive fits, but its contents do not fit beside it.
        status, text = put(d, "/datasets/both", tar_of(110 * MIB))
        check(status == 507 and "disk_full" in text,
              f"a disk that fills up while unpacking is a 507: {status} {text}")
        status, text = put(d, "/datasets/fits", tar_of(60 * MIB))
        check(status == 201, f"an upload is accepted once there is space again: {status} {text}")
        for name in ("one", "two", "three", "four"):  # fills the rest of the disk
            put(d, f"/datasets/{name}", tar_of(20 * MIB))
        kept = shutil.disk_usage(disk).free
        check(KEPT - MIB <= kept, f"{kept} bytes are kept for jobs; wanted: at least {KEPT - MIB}")
        check(d.request("POST", "/generate?async=1", '{"prompt": "a"}',
                        {"Content-Type": "application/json"}).status == 202,
                        "a job is accepted while uploads are refused")
        check(d.generate(DRAWING).status == 200, "a drawing is accepted while uploads are refused")
        held = [announce(d, b"/datasets/big%d" % i, MIB) for i in range(8)]
        ends_in_time(d, DRAIN_S, "headers")
        for s in held:
            s.close()

    # A data set that needs more inodes than are left gets a 507, and not the error for names that
    # occur twice.
    inodes = f"{disk}/inodes"
    os.makedirs(inodes)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m,nr_inodes=40", "tmpfs", inodes]).returncode == 0:
        try:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as tar:
                for i in range(60):
                    entry = tarfile.TarInfo(f"d{i}")
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)
            with Daemon(LATENTD, MODEL, extra=["--dataset-root", inodes]) as d:
                status, text = put(d, "/datasets/many", out.getvalue())
                check(status == 507 and "comes twice" not in text,
                      f"a file system without free inodes is a 507: {status} {text}")
        finally:
            subprocess.run(["umount", "-l", inodes])


real_drawing()
with tempfile.TemporaryDirectory() as work:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", work],
                      capture_output=True).returncode != 0:
        print("no right to mount a tmpfs here")
        sys.exit(77)
    try:
        attack(work)
    finally:
        subprocess.run(["umount", "-l", work])
done()
