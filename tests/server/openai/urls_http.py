"""Pictures by address: an answer's `url` is fetched by a plain GET without a key, at the Host by
which the client asked, or below --public-url. Without `response_format` an answer has both forms.
usage: urls_http.py EXECUTABLE"""
import base64
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done, exchange, split_responses

EXECUTABLE = sys.argv[1]
JSON = {"Content-Type": "application/json"}
CLIENTS = 100
ADDRESS = re.compile(r"(https?://[^/]+(?:/sd)?)(/v1/images/files/[0-9a-f]{32}\.(png|jpeg|webp))")


def draw(d, headers=JSON, **fields):
    r = d.request("POST", "/v1/images/generations", json.dumps({"prompt": "a", "num_inference_steps": 1, **fields}),
                  {**JSON, **headers})
    check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
    return r.json()["data"]


def both_forms(d):
    for asked, keys in (({}, {"b64_json", "url", "seed"}), ({"response_format": None}, {"b64_json", "url", "seed"}),
                        ({"response_format": "b64_json"}, {"b64_json", "seed"}),
                        ({"response_format": "url"}, {"url", "seed"})):
        data = draw(d, n=2, **asked)
        check([set(item) for item in data] == [keys] * 2, f"{asked}: {[set(item) for item in data]}")
        check(len({item.get("url") for item in data}) == (2 if "url" in keys else 1),
              "each picture has an address of its own")
    for form in ("png", "jpeg", "webp"):
        item = draw(d, output_format=form)[0]
        host, path, ending = ADDRESS.fullmatch(item["url"]).groups()
        check(host == f"http://{d.host}:{d.port}" and ending == form, item["url"])
        r = d.get(path)
        check(r.status == 200 and r.headers["content-type"] == f"image/{form}", f"{r.status} {r.headers}")
        check(r.body == base64.b64decode(item["b64_json"]),
              "the address answers the file that b64_json holds")
        head = d.request("HEAD", path)
        check(head.status == 200 and int(head.headers["content-length"]) == len(r.body),
              "HEAD answers the length of the file")
    return path


def wrong_addresses(d, path):
    other = path[:-6] + ("0" if path[-6] != "0" else "1") + path[-5:]
    for wrong in (other, path + "/", path[:-1], path + "x" * 300, "/v1/images/files/", "/v1/images/files/a/b"):
        r = d.get(wrong)
        check(r.status == 404 and r.error()["code"] == "not_found", f"{wrong}: {r.status} {r.body}")
        check(wrong == "/v1/images/files/" or "60 minutes" in r.error()["message"], f"{wrong}: {r.body}")
    check(d.get(path + "?a=b").status == 400 and d.get(path).status == 200,
          "an address with a query is refused")
    r = d.request("DELETE", path)
    check(r.status == 405 and r.headers["allow"] == "GET, HEAD, OPTIONS", f"{r.status} {r.headers}")


def queries(d):
    """Azure's clients send api-version with every request; no other query is ignored."""
    body = json.dumps({"prompt": "a", "num_inference_steps": 1})
    for method, path, text in (("POST", "/v1/images/generations", body), ("GET", "/v1/models", None),
                               ("GET", "/v1/models/sd15", None)):
        headers = JSON if text else {}
        r = d.request(method, path + "?api-version=2024-02-01", text, headers)
        check(r.status == 200, f"{path}: {r.status} {r.body[:200]}")
        r = d.request(method, path + "?api-version=2024-02-01&colour=red", text, headers)
        check(r.status == 400 and r.error()["param"] == "query" and "colour" in r.error()["message"], f"{path}: {r.body}")
    r = d.get("/info?api-version=2024-02-01")
    check(r.status == 200, f"{r.status}")  # ignores every query
    r = d.request("POST", "/generate?api-version=2024-02-01", body, JSON)
    check(r.status == 400, f"the daemon's own routes refuse api-version: {r.status}")


def one_file_for_all(d):
    """Many clients ask for a picture and do not read it. The daemon's memory must grow far less
    than it would with a copy for each."""
    address = draw(d, size="2048x2048", output_format="jpeg", output_compression=100, response_format="url")[0]["url"]
    path = ADDRESS.fullmatch(address)[2]
    whole = d.get(path).body
    # The kernel takes little of an answer that nobody reads on a unix socket.
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    clients = []
    for _ in range(CLIENTS):
        s = d.connect()
        s.sendall(get.format("/v1/models").encode())
        data = b""
        while not split_responses(data)[0]:  # then the connection has its own memory
            data += s.recv(65536)
        clients.append(s)
    before = d.rss_kb() << 10
    for s in clients:
        s.sendall(get.format(path).encode())
        check(s.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200", "it is sent")
    grown = (d.rss_kb() << 10) - before
    print(f"{CLIENTS} clients of a picture of {len(whole)} bytes: {grown} bytes more, {grown / len(whole):.1f} of it")
    check(grown < CLIENTS * len(whole) / 4, f"{grown} bytes more")
    rest = b""
    clients[0].shutdown(socket.SHUT_WR)
    while piece := clients[0].recv(1 << 16):
        rest += piece
    check(rest.endswith(whole), "the first one reads all of it")
    for s in clients:
        s.close()


def hosts(d):
    body = b'{"prompt": "a", "num_inference_steps": 1, "response_format": "url"}'
    for host, expected in ((b"localhost:99", "http://localhost:99"), (b"sd.example", "http://sd.example")):
        got, _ = exchange(d, b"POST /v1/images/generations HTTP/1.1\r\nHost: " + host + b"\r\nX-Forwarded-Host: evil\r\n"
                          b"X-Forwarded-Proto: https\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                          % len(body) + body)
        url = got[0].json()["data"][0]["url"]
        check(url.startswith(expected + "/v1/"),
              f"the address is made of the request's Host and no other header: {url}")


with Daemon(EXECUTABLE, "fake,images=4", extra=("--host", "sd.example")) as d:
    wrong_addresses(d, both_forms(d))
    hosts(d)
    queries(d)
with tempfile.TemporaryDirectory() as folder:
    with Daemon(EXECUTABLE, "fake", listen=f"unix:{folder}/socket") as d:
        one_file_for_all(d)
    key = subprocess.run([EXECUTABLE, "key", "alice", "--api-keys", f"{folder}/keys"], capture_output=True, text=True,
                         check=True).stdout.strip()
    with Daemon(EXECUTABLE, "fake",
                extra=("--api-keys", f"{folder}/keys", "--public-url", "https://sd.example/sd")) as d:
        alice = {"Authorization": f"Bearer {key}"}
        url = draw(d, alice)[0]["url"]
        host, path, _ = ADDRESS.fullmatch(url).groups()
        check(host == "https://sd.example/sd", f"--public-url: {url}")
        for headers in ({}, alice, {"Authorization": "Bearer wrong"}):
            check(d.get(path, headers).status == 200, f"with {list(headers)}")
        check(d.get("/v1/models").status == 401, "other routes need the key")
        check(d.get("/v1/images/files/" + "0" * 32 + ".png").status == 404,
              "an unknown address is a 404")
done()
