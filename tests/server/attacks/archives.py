"""Small archives that are expensive to unpack: gzip of hidden files that inflate to many GiB,
gzip of gzip, and hundreds of thousands of empty files. The daemon must refuse these archives
or stop unpacking them. Meanwhile everybody else is served, also with LoRAs and jobs, and a
daemon that is told to stop ends in time. usage: archives.py LATENTD MODEL"""
import gzip
import http.client
import io
import os
import sys
import tarfile
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from bystander import ends_in_time, judge, measure, real_drawing  # noqa: E402
from daemon import Daemon, check, done, wait_until  # noqa: E402
from png_file import gradient, png_file  # noqa: E402

LATENTD, MODEL = sys.argv[1:]
DRAIN_S = 5
QUARTER = gzip.compress(bytes(256 << 20), 6)  # of a GiB


def hidden(gib, name=".h"):
    """Returns a tar.gz of several gzip members. Its only entry inflates to `gib` GiB and would
    not be kept."""
    head = tarfile.TarInfo(name)
    head.size = gib << 30
    return gzip.compress(head.tobuf(tarfile.GNU_FORMAT)) + QUARTER * (4 * gib) + gzip.compress(bytes(1024))


def empty_files(count):
    entries = b"".join(tarfile.TarInfo(f"d/{i:06d}").tobuf(tarfile.USTAR_FORMAT) for i in range(count))
    return gzip.compress(entries + bytes(1024), 6)


def picture_among(folders):
    """Returns a valid data set of one picture that follows this many folders."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for i in range(folders):
            folder = tarfile.TarInfo(f"f{i}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        picture = png_file(64, 64, gradient)
        info = tarfile.TarInfo("a.png")
        info.size = len(picture)
        tar.addfile(info, io.BytesIO(picture))
    return out.getvalue()


def put(d, name, body, sent=None):
    """Returns the status and the error's message. `sent` is signalled once the whole body has
    been sent."""
    c = http.client.HTTPConnection(d.host, d.port, timeout=120)
    try:
        c.request("PUT", f"/datasets/{name}", body, {"Content-Type": "application/gzip"})
        if sent:
            sent.release()
        r = c.getresponse()
        return r.status, r.read().decode()
    except OSError as e:
        return 0, repr(e)
    finally:
        c.close()


def start(folder, *extra):
    for name in ("loras", "data"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    return Daemon(LATENTD, MODEL, extra=["--state-dir", f"{folder}/state", "--lora-dir", f"{folder}/loras",
                                         "--dataset-root", f"{folder}/data", "--drain-timeout", str(DRAIN_S),
                                         *extra])


def refused_by_what_they_are(d, data):
    for name, body, status, part in (
            ("twice", gzip.compress(gzip.compress(bytes(4096))), 400, "compressed more than once"),
            ("large", hidden(60), 413, "inflates to more than"),
            ("empty", empty_files(20000), 400, "10000 empty files and folders")):
        begun = time.monotonic()
        answer = put(d, name, body)
        print(f"{name}: {len(body)} bytes: {answer[0]} after {time.monotonic() - begun:.1f} s: {answer[1][:200]}")
        check(answer[0] == status and part in answer[1], f"{name}: {status} that says {part!r}, not {answer}")
    status, text = put(d, "fine", picture_among(100))
    check(status == 201,
          f"an archive of 100 empty folders and a picture is accepted: {status} {text[:200]}")
    check(os.listdir(data) == ["fine"],
          f"refused archives leave nothing behind: {os.listdir(data)}")


def others_are_served(d, data):
    """Others are served while every unpacking thread is busy and more archives wait."""
    with open(f"{MODEL}/loras/snow.safetensors", "rb") as f:
        lora = f.read()
    check(d.request("PUT", "/loras/one", lora).status in (200, 201), "a LoRA is uploaded")
    alone = measure(d)
    stop = threading.Event()

    def flood(k):
        while not stop.is_set():
            put(d, f"b{k}", slow)

    # Just below the limit: inflates to 1 GiB. Allowed is 1 GiB plus a hundred times the archive's
    # size.
    slow = hidden(1)
    threads = [threading.Thread(target=flood, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    check(wait_until(lambda: any(n.startswith(".upload-") for n in os.listdir(data)), 30),
          "unpacking has begun")
    judge("archives", alone, measure(d, 3))
    check(d.request("POST", "/loras/one", '{"loaded": false}', {"Content-Type": "application/json"}).status == 200,
          "the LoRA is unloaded")
    for what, r in (
            ("a drawing with a LoRA that is not loaded", d.generate(
                {"prompt": "a", "num_inference_steps": 1, "width": 64, "height": 64, "loras": [{"name": "one"}]})),
            ("PUT /loras/two", d.request("PUT", "/loras/two", lora)),
            ("GET /models", d.get("/models")), ("GET /datasets", d.get("/datasets"))):
        check(r.status in (200, 201), f"{what}: {r.status} {r.body[:200]}")
    stop.set()
    for t in threads:
        t.join()


def clients_that_leave_are_forgotten(d, data):
    c = http.client.HTTPConnection(d.host, d.port, timeout=60)
    c.request("PUT", "/datasets/left", hidden(1), {"Content-Type": "application/gzip"})
    check(wait_until(lambda: os.listdir(data) != ["fine"], 30), "the archive is being unpacked")
    c.close()
    check(wait_until(lambda: os.listdir(data) == ["fine"], 60),
          f"an archive whose client left leaves nothing behind: {os.listdir(data)}")


def the_daemon_ends(folder):
    with start(folder) as d:
        # More than can be unpacked before the daemon must end.
        body, sent, data = hidden(1), threading.Semaphore(0), f"{folder}/data"
        threads = [threading.Thread(target=put, args=(d, f"t{k}", body, sent)) for k in range(80)]
        for t in threads:
            t.start()
        check(all(sent.acquire(timeout=30) for _ in threads), "all archives are sent")
        check(wait_until(lambda: any(n.startswith(".upload-") for n in os.listdir(data)), 30),
              "unpacking has begun")
        ends_in_time(d, DRAIN_S, "archives")
        for t in threads:
            t.join()
        left = [n for n in os.listdir(data) if n.startswith(".")]
        check(not left, f"no half-unpacked folder is left: {left}")


real_drawing()
with tempfile.TemporaryDirectory() as work:
    with start(work) as daemon:
        refused_by_what_they_are(daemon, f"{work}/data")
        others_are_served(daemon, f"{work}/data")
        check(wait_until(lambda: os.listdir(f"{work}/data") == ["fine"], 60),
              "all uploads end and leave nothing behind")
        clients_that_leave_are_forgotten(daemon, f"{work}/data")
    the_daemon_ends(work)
done()
