"""Adapters over HTTP with the bundled checkpoint: uploads, lists, uses, changes and deletes
them, and checks the errors. usage: loras_http.py EXECUTABLE MODEL"""
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done, exchange, read_responses, wait_until  # noqa: E402
from generate_http import png_texts  # noqa: E402
from lora_file import kohya_loha, kohya_lora  # noqa: E402
from metrics import read as figures  # noqa: E402
from wrong_loras import wrong_loras  # noqa: E402

executable, model = sys.argv[1:3]
SNOW, INK = kohya_lora(model, 1), kohya_lora(model, 2, rank=8)
OCTETS = {"Content-Type": "application/octet-stream"}
DRAW = {"prompt": "a red house on green hills", "seed": 3, "num_inference_steps": 2,
        "guidance_scale": 2.5}


class Folder(Daemon):
    """A daemon with an adapter folder that is empty at first."""

    def __init__(self, *extra):
        self.folder = tempfile.mkdtemp()
        super().__init__(executable, model, extra=["--dtype", "f32", "--lora-dir", self.folder, *extra])

    def __exit__(self, *args):
        result = super().__exit__(*args)
        shutil.rmtree(self.folder)
        return result

    def put(self, name, data, headers=OCTETS):
        return self.request("PUT", "/loras/" + name, data, headers)

    def post(self, name, fields):
        return self.request("POST", "/loras/" + name, json.dumps(fields),
                            {"Content-Type": "application/json"})

    def picture(self, **fields):
        r = self.generate({**DRAW, **fields}, {"Accept": "image/png"})
        check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
        return r.body

    def latents(self, **fields):
        r = self.generate({**DRAW, "output": "latent", **fields})
        check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
        return r.json()["images"][0]["b64_latent"]

    def files(self):
        return sorted(os.listdir(self.folder))


def refused(r, status, param=None, words=""):
    """Checks that the answer is this error. Returns its message."""
    error = r.error() if r.body else {}
    check(r.status == status and (not param or error.get("param") == param) and
          words in error.get("message", "") and error.get("code"),
          f"{status} for {param or words}, not {r.status}: {r.body[:300]}")
    return error.get("message", "")


@contextlib.contextmanager
def loads(d, count):
    """Checks by the daemon's metrics that the body of the `with` loads this many adapters."""
    before = figures(d)
    yield
    name, grown = "latentd_lora_load_seconds", figures(d)
    check(grown[name + "_count"] - before[name + "_count"] == count,
          f"the metric counts {grown[name + '_count'] - before[name + '_count']} loads, not {count}")
    check((grown[name + "_sum"] > before[name + "_sum"]) == (count > 0),
          "the metric's time grows exactly if something was loaded")


def without_a_folder():
    with Daemon(executable, model) as d:
        r = d.get("/loras")
        check(r.status == 200 and r.json()["loras"] == [] and r.json()["folder"] is None, f"{r.body}")
        for method, path, body in (("PUT", "/loras/snow", SNOW), ("POST", "/loras/rescan", None),
                                   ("DELETE", "/loras/snow", None)):
            refused(d.request(method, path, body, OCTETS if body else {}), 404, words="--lora-dir")
        refused(d.generate({**DRAW, "loras": [{"name": "snow"}]}), 400, "loras[0].name")


def sent_listed_and_used(d):
    plain = d.latents()
    with loads(d, 1):
        r = d.put("snow", SNOW)
    check(r.status == 201, f"{r.status} {r.body[:300]}")
    told = r.json()
    took = figures(d)["latentd_lora_load_seconds_sum"]
    check(abs(took - told["load_s"]) < 1e-6,
          f"the metric's time equals load_s of the answer: {took} s, {told['load_s']} s")
    check(told["name"] == "snow" and told["state"] == "loaded" and told["matched"] == 46 and
          told["unmatched"] == [] and told["file_bytes"] == len(SNOW) and
          told["ranks"] == [{"value": 4, "modules": 46}] and
          told["alphas"] == [{"value": 2, "modules": 46}] and told["users"] == 0 and
          told["default_weight"] is None and told["error"] is None, f"{told}")
    check(d.get("/loras/snow").json() == told, "GET /loras/snow says the same")
    listing = d.get("/loras").json()
    check(listing["loras"] == [told] and listing["folder"] == d.folder, f"{listing}")
    info = d.get("/info").json()["loras"]
    check(info == {"folder": d.folder, "count": 1, "resident_bytes": listing["resident_bytes"],
                   "limit_bytes": None, "merge": False}, f"{info}")
    check(d.files() == ["snow.safetensors"], f"{d.files()}")
    with open(d.folder + "/snow.safetensors", "rb") as f:
        check(f.read() == SNOW, "the file in the folder is the one that was sent")
    with loads(d, 0):
        snow = d.latents(loras=[{"name": "snow"}])
    check(snow != plain, "the adapter changes the picture")
    check(d.latents(loras=[{"name": "snow", "weight": 1, "text_encoder_weight": 1}]) == snow,
          "both weights are 1 by default")
    check(d.latents(loras=[{"name": "snow", "weight": 0}]) == plain,
          "weight 0 draws as without the adapter")
    check(d.latents(loras=[{"name": "snow", "text_encoder_weight": 0}]) not in (plain, snow),
          "the text encoder's weight can be set separately")
    check(d.latents() == plain, "an adapter that is not named is not used")
    return plain, snow


def a_picture_says_what_it_used(d):
    r = d.generate({**DRAW, "loras": [{"name": "snow", "weight": 0.5}]})
    version = d.get("/loras/snow").json()["version"]
    used = {"name": "snow", "weight": 0.5, "text_encoder_weight": 0.5}
    check(r.json()["parameters"]["loras"] == [used], f"{r.json()['parameters']}")
    check(r.json()["loras"] == [{**used, "version": version}], f"{r.json().get('loras')}")
    png = base64.b64decode(r.json()["images"][0]["b64_json"])
    texts = png_texts(png)
    check(f'Lora: "snow 0.5 (version {version})"' in texts["parameters"], texts["parameters"])
    check(json.loads(texts["latentd"])["loras"] == [used], texts["latentd"])
    again = d.request("POST", "/generate", texts["latentd"],
                      {"Content-Type": "application/json", "Accept": "image/png"})
    check(again.status == 200 and again.body == png,
          "the picture's `latentd` text draws the same file again")
    metrics = d.get("/metrics").body.decode()
    check('\nlatentd_lora_requests_total{lora="snow"} ' in metrics and "\nlatentd_lora_loaded 1\n" in metrics,
          "the metrics count the adapter's requests")


def in_chunks_and_after_a_question(d, snow):
    head = "PUT /loras/snow HTTP/1.1\r\nHost: localhost\r\n"
    before = d.get("/loras/snow").json()["version"]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(SNOW[i:i + 30000]), SNOW[i:i + 30000])
                      for i in range(0, len(SNOW), 30000)) + b"0\r\n\r\n"
    responses, closed = exchange(
        d, (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + chunks, close=True)
    check([r.status for r in responses] == [200] and closed, f"{[r.body for r in responses]}")
    check(responses[0].json()["version"] > before, "a new upload has a new version")
    check(d.latents(loras=[{"name": "snow"}]) == snow, "the same file draws the same picture")
    with d.connect() as s:
        s.sendall((head + f"Content-Length: {len(INK)}\r\nExpect: 100-continue\r\n\r\n").encode())
        check(s.recv(100).startswith(b"HTTP/1.1 100 "), "100 Continue")
        s.sendall(INK)
        responses, closed = read_responses(s)
        check([r.status for r in responses] == [200] and not closed,
              "the file sent after 100 Continue is accepted")
    check(d.latents(loras=[{"name": "snow"}]) != snow, "the replaced adapter draws another picture")
    if shutil.which("curl"):
        with tempfile.NamedTemporaryFile() as f:
            f.write(SNOW)
            f.flush()
            p = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-T", f.name,
                                "-H", "Expect: 100-continue", f"http://{d.host}:{d.port}/loras/snow"],
                               capture_output=True, text=True)
            check(p.stdout == "200", f"curl -T: {p.stdout} {p.stderr}")
        check(d.latents(loras=[{"name": "snow"}]) == snow,
              "the first file draws the first picture again")


def wrong_uploads_change_nothing(d, snow):
    before = d.get("/loras/snow").json()
    said = []
    with loads(d, 0):
        for data, status, words in wrong_loras(model):
            said.append(refused(d.put("snow", data), status))
            check(all(word in said[-1] for word in words), f"{said[-1]!r} says {words}")
    check(len(set(said)) == len(said), f"each file has its own error: {said}")
    print(f"compared: the errors of {len(said)} files, each with the part of it that is wrong")
    refused(d.put("snow", SNOW, {"Content-Type": "application/json"}), 415,
            words="application/octet-stream")
    refused(d.put("snow", SNOW, {"Content-Type": "application/x-www-form-urlencoded"}), 415)
    for name in (".hidden", "a" * 241, "..%2Fup", "sub%2F..%2Fup", "%2Fetc%2Fup", "sub//x", "sub/", "sub/.hidden",
                 "a@12", "%C3", "a%E2%80%AEb", "a%C2%9Bb", "1/2/3/4/5/6/7/8/9", ""):
        refused(d.put(name, SNOW), 400, "name")
    for name in ("a%00b", "a%0Ab", "a%5Cb", "a%", "..", "%2e%2e"):
        refused(d.put(name, SNOW), 400, words="plain path")
    refused(d.put("snow?x=1", SNOW), 400, "query")
    refused(d.put("snow", SNOW, {**OCTETS, "Host": "evil.example"}), 403)
    refused(d.put("snow", SNOW, {**OCTETS, "Origin": "http://evil.example"}), 403)
    r = d.put("rescan", SNOW)
    check(r.status == 405 and r.headers["allow"] == "POST, OPTIONS",
          f"an adapter cannot be named rescan: {r.status}")
    check(d.files() == ["snow.safetensors"], f"refused uploads leave no files: {d.files()}")
    after = d.get("/loras/snow").json()
    check(after["version"] == before["version"], "a refused upload leaves the adapter's version")
    check(d.latents(loras=[{"name": "snow"}]) == snow,
          "the adapter draws as before the refused upload")


def half_an_upload_is_taken_back(d):
    head = b"PUT /loras/half%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    before = d.rss_kb()
    held = [d.connect() for _ in range(8)]  # more than the daemon has threads
    for number, s in enumerate(held):
        s.sendall(head % (number, 256 << 20) + bytes(8 << 20))
    check(wait_until(lambda: sum(os.stat(os.path.join(d.folder, f)).st_size for f in d.files()) >=
                     64 << 20), f"the folder holds 64 MB of unfinished uploads: {d.files()}")
    grown = d.rss_kb() - before
    print(f"8 uploads of 8 MB under way: {grown} kB more resident")
    check(grown < 16 << 10, f"uploads are not held in memory: it grew by {grown} kB")
    check(d.get("/health").status == 200 and d.latents(),
          "other requests are served during uploads")
    check("half" not in d.get("/loras").body.decode(), "an unfinished upload is not listed")
    with keeps_sending(held[3]):
        refused(d.put("half3", SNOW), 409, words="half3")
    for s in held:
        s.close()
    check(wait_until(lambda: d.files() == ["snow.safetensors"]),
          f"uploads whose clients left leave no files: {d.files()}")


@contextlib.contextmanager
def keeps_sending(s):
    """Sends a byte every 0.2 s during the body of the `with`."""
    ended = threading.Event()

    def send():
        while not ended.wait(0.2):
            s.sendall(bytes(1))

    s.sendall(bytes(1))
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def one_that_stalls_gives_way(d):
    with d.connect() as s:
        s.sendall(b"PUT /loras/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + bytes(50))
        check(wait_until(lambda: len(d.files()) == 2),
              f"half of the upload is in the folder: {d.files()}")
        check(wait_until(lambda: d.put("slow", SNOW).status == 201, 60),
              "another upload of the name replaces the stalled one")
        s.sendall(bytes(50))
        refused(read_responses(s)[0][0], 409, words="another upload of slow has replaced it")
    check(d.request("DELETE", "/loras/slow").status == 204,
          "the second upload's adapter is kept")


def too_large_is_said_early():
    with Folder("--lora-max-bytes", "100000") as d:
        head = "PUT /loras/big HTTP/1.1\r\nHost: localhost\r\n"
        responses, closed = exchange(d, (head + "Content-Length: 100001\r\n\r\n").encode(), close=True)
        check(closed and len(responses) == 1, "the upload is refused before its body is sent")
        refused(responses[0], 413, "Content-Length", "100000")
        refused(d.put("big", bytes(200000)), 413, "Content-Length")
        chunks = b"".join(b"%x\r\n%s\r\n" % (40000, bytes(40000)) for _ in range(5)) + b"0\r\n\r\n"
        responses, closed = exchange(
            d, (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + chunks, close=True)
        check(closed and len(responses) == 1, "a chunked upload is refused once it is too large")
        refused(responses[0], 413, "body", "100000")
        check(d.files() == [], f"refused uploads leave no files: {d.files()}")


def copies_have_to_fit():
    """An adapter that is not a product of two thin matrices (LoHa) needs copies of the weights
    it changes. These count as adapter memory."""
    dense = kohya_loha(model, 3)
    with Folder() as d:
        check(d.put("dense", dense).status == 201 and d.put("snow", SNOW).status == 201,
              "both adapters are uploaded")
        before = d.get("/loras").json()["resident_bytes"]
        plain, snow, changed = d.latents(), d.latents(loras=[{"name": "snow"}]), d.latents(loras=[{"name": "dense"}])
        check(changed != plain, "with enough memory the adapter changes the picture")
        copies = d.get("/loras").json()["resident_bytes"] - before
        check(d.post("dense", {"default_weight": 0.5}).status == 200,
              "the adapter becomes a default")
        made = d.get("/loras").json()["resident_bytes"] - before
        check(made > copies,
              f"copies for the new default are made before a request needs them: {made - copies} bytes")
        check(d.post("dense", {"default_weight": 1}).status == 200 and d.latents() == changed,
              "the default adapter is used at its new weight")
    check(copies > 1 << 20, f"copies of {copies} bytes do not fit into 1 MiB")
    with Folder("--lora-memory", "1") as d:
        check(d.put("dense", dense).status == 201 and d.put("snow", SNOW).status == 201,
              "both files fit into 1 MiB")
        said = refused(d.generate({**DRAW, "loras": [{"name": "dense"}]}), 507)
        print(f"copies of {copies >> 10} KiB where adapters may take 1024: {said}")
        needed, used = (int(n) for n in re.search(r" (\d+) KiB are needed, adapters may take 1024 KiB in all, .* (\d+) KiB$",
                                                  said).groups())
        check(1024 < needed + used <= copies >> 10,
              f"the error's figures add up to more than 1024 KiB: {needed} KiB needed, {used} KiB used")
        check(d.post("snow", {"default_weight": 1}).status == 200,
              "an adapter that fits becomes a default")
        said = refused(d.post("dense", {"default_weight": 1}), 507)
        check("copies" in said,
              f"an adapter whose copies do not fit is refused as a default: {said}")
        check(d.get("/loras/dense").json()["default_weight"] is None and d.latents() == snow,
              "the refused adapter is no default")
        check(d.post("snow", {"default_weight": None}).status == 200,
              "the other default is removed")
        listing = d.get("/loras").json()
        check(listing["limit_bytes"] == 1 << 20 and listing["resident_bytes"] <= 1 << 20, f"{listing}")
        check(all(l["error"] is None for l in listing["loras"]), f"{listing}")
        # A request releases its adapters only after its answer is sent.
        check(wait_until(lambda: all(l["users"] == 0 for l in d.get("/loras").json()["loras"])), f"{listing}")
        check(d.latents(loras=[{"name": "snow"}]) == snow and d.latents() == plain,
              "requests without the large adapter are drawn")


def what_a_name_may_be_told(d, plain, snow):
    for fields, param in (({"default_weight": "1"}, "default_weight"),
                          ({"default_weight": 101}, "default_weight"),
                          ({"default_weight": 1, "text_encoder_weight": -200}, "text_encoder_weight"),
                          ({"text_encoder_weight": 1}, "text_encoder_weight"),
                          ({"pinned": 1}, "pinned"), ({"loaded": "no"}, "loaded"),
                          ({"weight": 1}, "weight"), ({}, None)):
        refused(d.post("snow", fields), 400, param)
    refused(d.request("POST", "/loras/snow", "x", {"Content-Type": "text/plain"}), 415)
    refused(d.post("nope", {"pinned": True}), 404)
    r = d.post("snow", {"default_weight": 1, "pinned": True})
    check(r.status == 200 and r.json()["default_weight"] == r.json()["text_encoder_weight"] == 1 and
          r.json()["pinned"] is True, f"{r.body}")
    refused(d.post("snow", {"loaded": False}), 409, words="pinned")
    check(d.latents() == snow, "a request without loras uses the default adapter")
    check(d.latents(loras=[]) == plain, "a request with an empty list uses no adapter")
    r = d.generate({**DRAW})
    check([u["name"] for u in r.json()["parameters"]["loras"]] == ["snow"],
          "the answer lists the default adapter")
    check(d.post("snow", {"default_weight": None, "pinned": False}).json()["default_weight"] is None,
          "the adapter is no longer a default")
    check(d.latents() == plain, "a request without loras uses no adapter")
    check(d.post("snow", {"loaded": False}).json()["state"] == "on_disk", "the adapter is unloaded")
    with loads(d, 1):
        check(d.latents(loras=[{"name": "snow"}]) == snow,
              "an unloaded adapter is loaded when a request names it")
        check(d.post("snow", {"loaded": True}).json()["state"] == "loaded",
              "the adapter stays loaded")
    d.post("snow", {"loaded": False})
    with loads(d, 1):
        check(d.post("snow", {"loaded": True}).json()["state"] == "loaded",
              "an adapter can be loaded by a request to its route")


def by_hand_and_away(d, plain):
    with open(d.folder + "/ink.v2.safetensors", "wb") as f:
        f.write(INK)
    with open(d.folder + "/broken.safetensors", "wb") as f:
        f.write(SNOW[:1000])
    refused(d.generate({**DRAW, "loras": [{"name": "ink.v2"}]}), 400, "loras[0].name")
    responses, closed = exchange(d, b"POST /loras/rescan HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check([r.status for r in responses] == [200] and not closed, f"{[r.body for r in responses]}")
    scan = responses[0].json()
    check(scan["added"] == 1 and scan["removed"] == 0 and scan["failed"] == 1, f"{scan}")
    states = {l["name"]: (l["state"], bool(l["error"])) for l in d.get("/loras").json()["loras"]}
    check(states["ink.v2"] == ("on_disk", False) and states["broken"] == ("failed", True), f"{states}")
    both = d.latents(loras=[{"name": "snow", "weight": 0.7}, {"name": "ink.v2", "weight": -0.3}])
    check(both not in (plain, d.latents(loras=[{"name": "ink.v2", "weight": -0.3}])),
          "two adapters together draw another picture than one")
    for name in ("ink.v2", "broken"):
        check(d.request("DELETE", "/loras/" + name).status == 204, f"DELETE {name}")
        refused(d.get("/loras/" + name), 404)
        refused(d.request("DELETE", "/loras/" + name), 404)
    refused(d.generate({**DRAW, "loras": [{"name": "ink.v2"}]}), 400, "loras[0].name")
    check(d.files() == ["snow.safetensors"], f"DELETE removes the files: {d.files()}")
    check(d.latents() == plain, "the base model draws as at the beginning")


if __name__ == "__main__":
    without_a_folder()
    with Folder() as daemon:
        base, changed = sent_listed_and_used(daemon)
        a_picture_says_what_it_used(daemon)
        in_chunks_and_after_a_question(daemon, changed)
        wrong_uploads_change_nothing(daemon, changed)
        half_an_upload_is_taken_back(daemon)
        one_that_stalls_gives_way(daemon)
        what_a_name_may_be_told(daemon, base, changed)
        by_hand_and_away(daemon, base)
    too_large_is_said_early()
    copies_have_to_fit()
    done()
