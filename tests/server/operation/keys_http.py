"""API keys of the running daemon, through raw sockets and curl. usage: keys_http.py EXECUTABLE"""
import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done, exchange, left_out, wait_until

EXECUTABLE = sys.argv[1]
H = b"Host: localhost\r\n"


def make_key(folder, name, *extra):
    return subprocess.run([EXECUTABLE, "key", name, "--api-keys", f"{folder}/keys", *extra],
                          capture_output=True, text=True)


def get(path, *authorizations):
    lines = b"".join(b"Authorization: " + a + b"\r\n" for a in authorizations)
    return b"GET " + path + b" HTTP/1.1\r\n" + H + lines + b"\r\n"


def basic(text):
    return b"Basic " + base64.b64encode(text)


def check_command(folder):
    """`latentd key`: the key it prints is not stored, only its digest."""
    first = make_key(folder, "alice")
    check(first.returncode == 0 and first.stderr == "", first.stderr)
    alice = first.stdout.strip()
    check(len(alice) == 72 and alice.startswith("latentd_"), "a key has 256 bits")
    bob = make_key(folder, "bob").stdout.strip()
    with open(f"{folder}/keys") as f:
        text = f.read()
    check(text == f"alice {hashlib.sha256(alice.encode()).hexdigest()}\n"
                  f"bob {hashlib.sha256(bob.encode()).hexdigest()}\n", text)
    check(os.stat(f"{folder}/keys").st_mode & 0o777 == 0o600,
          "only the owner may read the key file")
    again = make_key(folder, "alice")
    check(again.returncode == 1 and "there is a key alice already" in again.stderr, again.stderr)
    for rights in ("", "priorities", "priority,", "priority all-jobs"):
        wrong = make_key(folder, "carol", "--may", rights)
        check(wrong.returncode == 2 and "--may" in wrong.stderr, f"{rights!r}: {wrong.stderr}")
    for name in ("", "a b", "a:b", "é", ".a", "x" * 65):
        wrong = make_key(folder, name)
        check(wrong.returncode == 2 and "NAME" in wrong.stderr, f"{name!r}: {wrong.stderr}")
    with open(f"{folder}/keys") as f:
        check(f.read() == text, "failed commands do not change the key file")
    return alice.encode(), bob.encode()


def check_requests(d, alice, bob):
    flipped = alice[:-1] + (b"0" if alice[-1:] != b"0" else b"1")
    rows = [  # name, bytes, status
        ("health is open", get(b"/health"), 200),
        ("readiness is open", get(b"/health/ready"), 200),
        ("an open path with a wrong key", get(b"/health", b"Bearer x"), 200),
        ("no key", get(b"/info"), 401),
        ("a key", get(b"/info", b"Bearer " + alice), 200),
        ("another", get(b"/info", b"bearer " + bob), 200),
        ("its last digit is another", get(b"/info", b"Bearer " + flipped), 401),
        ("cut", get(b"/info", b"Bearer " + alice[:-1]), 401),
        ("a key of nothing", get(b"/info", b"Bearer "), 401),
        ("two Authorization headers", get(b"/info", b"Bearer " + alice, b"Bearer " + alice), 400),
        ("the digest is no key", get(b"/info", b"Bearer " + hashlib.sha256(alice).hexdigest().encode()),
         401),
        ("as a password", get(b"/info", basic(b"anybody:" + alice)), 200),
        ("as a password without a user", get(b"/info", basic(b":" + alice)), 200),
        ("without a colon", get(b"/info", basic(alice)), 200),
        ("as the user's name", get(b"/info", basic(alice + b":")), 401),
        ("huge", get(b"/info", b"Bearer " + b"a" * 20000), 401),
        ("not ASCII", get(b"/info", b"Bearer \xc3\xa9\xff"), 401),
        ("an unknown path says no more", get(b"/nothing"), 401),
        ("a path with a key", get(b"/nothing", b"Bearer " + alice), 404),
        ("OPTIONS", b"OPTIONS /info HTTP/1.1\r\n" + H + b"\r\n", 401),
        ("another Host, with a key", b"GET /info HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer "
         + alice + b"\r\n\r\n", 403),
        ("another site, with a key", b"GET /info HTTP/1.1\r\n" + H + b"Origin: https://evil.example\r\n"
         b"Authorization: Bearer " + alice + b"\r\n\r\n", 403),
    ]
    for what, request, status in rows:
        responses, _ = exchange(d, request)
        got = responses[0].status if responses else None
        check(got == status, f"{what}: {got}, not {status}")
        if got == 401:
            error = responses[0].error()
            check(error["code"] == "unauthorized", f"{what}: {error}")
            check(responses[0].headers.get("www-authenticate") == 'Bearer realm="latentd"', what)
    print(f"{len(rows)} requests got what they should")


def check_dialects(d, alice):
    """Without a key each API's clients get an error in that API's format, and the authentication
    challenge that they understand."""
    for path, shape, challenge in (("/sdapi/v1/samplers", lambda e: "detail" in e or "error" in e, "Basic "),
                                   ("/sdapi/v1/nothing", lambda e: "detail" in e or "error" in e, "Basic "),
                                   ("/v1/models", lambda e: e["error"]["message"] and "type" in e["error"], "Bearer ")):
        r = exchange(d, get(path.encode()))[0][0]
        check(r.status == 401 and shape(r.json()), f"{path}: {r.status} {r.body}")
        check(r.headers["www-authenticate"].startswith(challenge), f"{path}: {r.headers}")
        check(challenge.strip() in r.body.decode(), f"{path} says how to send the key: {r.body}")
        r = exchange(d, get(path.encode(), basic(b"user:" + alice)))[0][0]
        check(r.status == (404 if "nothing" in path else 200), f"{path} with a key: {r.status} {r.body[:80]}")


def check_bodies(d, alice):
    """The body of a request without a valid key is not read. A refused request without a body
    leaves the connection open."""
    upload = (b"PUT /loras/x HTTP/1.1\r\n" + H + b"Content-Type: application/octet-stream\r\n"
              b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
    responses, closed = exchange(d, upload, close=True)
    check([r.status for r in responses] == [401] and closed, "an upload is refused before it comes")
    responses, closed = exchange(d, get(b"/info") + get(b"/info", b"Bearer " + alice), count=2)
    check([r.status for r in responses] == [401, 200] and not closed,
          "a connection is usable after a 401")


def check_rights(d, alice, operator):
    """A priority above 0 needs a key with that right, on each API that has priorities, and for
    jobs."""
    def asks(key, path, fields):
        return d.request("POST", path, json.dumps(fields),
                         {"Content-Type": "application/json", "Authorization": f"Bearer {key.decode()}"})

    drawing = {"prompt": "a", "num_inference_steps": 1}
    for path, fields in (("/generate", drawing), ("/generate?async=1", drawing),
                         ("/v1/images/generations", {**drawing, "size": "64x64"}),
                         ("/hf", {"inputs": "a", "parameters": {"num_inference_steps": 1}})):
        def asked(priority):
            of = {**fields.get("parameters", fields), "priority": priority}
            return {**fields, "parameters": of} if "parameters" in fields else of
        done_by = 202 if "async" in path else 200
        for priority, status in ((1, 403), (3, 403), (0, done_by), (-3, done_by)):
            r = asks(alice, path, asked(priority))
            check(r.status == status, f"{path} with priority {priority}: {r.status} {r.body[:200]}")
            if status == 403:
                error = r.error()
                says = f"priority: {priority} is not allowed; 0 or less"
                check(says in error if path == "/hf" else says in error["message"] and
                      error["param"] == "priority" and error["code"] == "forbidden", f"{path}: {error}")
        r = asks(operator, path, asked(3))
        check(r.status == done_by, f"{path} with a key that may: {r.status} {r.body[:200]}")


def check_failures(d, alice):
    """A request from this machine with a valid key is always accepted, even after failures,
    because a proxy on this machine may serve many clients."""
    last = None
    for _ in range(12):
        last = exchange(d, get(b"/info", b"Bearer wrong"))[0][0]
    check(last.status == 429 and last.error()["code"] == "too_many_failures",
          "after too many wrong keys the answer is a 429")
    check(1 <= int(last.headers["retry-after"]) <= 60, "Retry-After is at most a minute")
    check(exchange(d, get(b"/info", b"Bearer " + alice))[0][0].status == 200,
          "a right key is accepted while wrong ones are refused")
    check(exchange(d, get(b"/info"))[0][0].status == 401,
          "a request without a key is a 401, not counted as a guess")


def own_address():
    """Returns an address of this machine other than loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # nothing is sent
            address = s.getsockname()[0]
        except OSError:
            return None
    return None if address.startswith("127.") else address


def check_failures_from_afar(work, alice):
    """A client on another machine that has guessed keys must wait, whatever it sends next.
    Clients at other addresses need not wait."""
    address = own_address()
    if not address:
        left_out("guesses from afar: this machine has no address but the loopback's")
        return
    with Daemon(EXECUTABLE, listen="0.0.0.0:0", ready=False,
                extra=["--api-keys", f"{work}/keys", "--insecure-no-tls"]) as d:
        d.host = address
        codes = [exchange(d, get(b"/info", b"Bearer wrong"))[0][0].status for _ in range(11)]
        check(codes == [401] * 10 + [429], f"{codes}")
        check(exchange(d, get(b"/info", b"Bearer " + alice))[0][0].status == 429,
              "an address that guessed is refused also with a right key")
        check(exchange(d, get(b"/health", b"Bearer " + alice))[0][0].status == 200,
              "GET /health is answered to an address that guessed")
        d.host = "127.0.0.1"
        check(exchange(d, get(b"/info", b"Bearer " + alice))[0][0].status == 200,
              "another address is served")


def check_curl(d, alice):
    url = f"http://127.0.0.1:{d.port}/info"
    for arguments, status in ((["-u", f"somebody:{alice.decode()}"], "200"), ([], "401"),
                              (["-H", f"Authorization: Bearer {alice.decode()}"], "200"),
                              (["--anyauth", "-u", f"somebody:{alice.decode()}"], "401")):
        got = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *arguments, url],
                             capture_output=True, text=True).stdout
        check(got == status, f"curl {arguments[:1]}: {got}")


def check_logs(work, d, alice):
    """A key in a wrong place of a request must not appear in the logs."""
    own = b"my-own-secret"
    strays = [get(b"/info?key=" + alice), get(b"/info?wait=" + alice, b"Bearer " + alice), get(b"/" + alice + b"/x"),
              get(b"/info?api_key=" + own + b"&a=1"), get(b"/info?a=1&token=" + own), get(b"http://u:" + alice + b"@h/"),
              get(b"/info?" + b"a" * 60 + b"=" + alice), get(b"/info?" + b"a" * 450 + b"=" + alice),
              get(b"/jobs?limit=" + alice, b"Bearer " + alice), alice + get(b"/info")[3:],
              b"GET /info HTTP/1.1\r\n" + H + b"X-Request-Id: " + alice[:64] + b"\r\n\r\n",
              b"GET /info HTTP/1.1\r\n" + H + b"Content-Length: " + alice + b"\r\n\r\n",
              b"GET /info?" + alice + b" HTTP/1.1\r\n" + H + alice + b"\r\n\r\n",
              b"GET /" + alice + b" HTTP/9\r\n\r\n"]
    secret = alice.removeprefix(b"latentd_").decode()
    for request in strays:
        exchange(d, request)
    wait_until(lambda: len(open(f"{work}/access.log").readlines()) > 10)
    for what, text in (("log", d.read_log()), ("access log", open(f"{work}/access.log").read())):
        shown = [line for line in text.splitlines() if secret[:8] in line or own.decode() in line]
        print(f"{len(strays)} requests with a key in a wrong place: the {what} has {text.count('latentd_*')} times "
              f"latentd_* and {len(shown)} times the key")
        check(not shown and "latentd_*" in text and "=*" in text, f"{what}: {shown[:2]}")


with tempfile.TemporaryDirectory() as work:
    alice, bob = check_command(work)
    operator = make_key(work, "operator", "--may", "priority,all-jobs").stdout.strip().encode()
    with Daemon(EXECUTABLE, extra=["--api-keys", f"{work}/keys", "--log-level", "debug", "--access-log",
                                   f"{work}/access.log"]) as d:
        check_logs(work, d, alice)
    with Daemon(EXECUTABLE, extra=["--api-keys", f"{work}/keys", "--log-level", "debug", "--state-dir",
                                   f"{work}/state"]) as d:
        check_requests(d, alice, bob)
        check_dialects(d, alice)
        check_bodies(d, alice)
        check_rights(d, alice, operator)
        check_failures(d, alice)
        check_curl(d, alice)
        metrics = exchange(d, get(b"/metrics", b"Bearer " + alice))[0][0].body.decode()
        counted = int(re.search(r'latentd_rejected_total\{reason="unauthorized"\} (\d+)', metrics)[1])
        check(counted > 15, f"the metrics count the refusals: {counted}")
        reasons = dict(re.findall(r'latentd_rejected_total\{reason="(\w+)"\} (\d+)', metrics))
        check(int(reasons["too_many_failures"]) >= 2 and reasons["queue_full"] == "0",
              f"the metrics count refused guesses under too_many_failures: {reasons}")
        log = d.read_log()
        check(alice.decode() not in log and base64.b64encode(b"anybody:" + alice).decode() not in log,
              "the log contains no key")
    check_failures_from_afar(work, alice)
    with Daemon(EXECUTABLE, listen=f"unix:{work}/socket", extra=["--api-keys", f"{work}/keys"]) as d:
        check(exchange(d, get(b"/info"))[0][0].status == 401, "a unix socket asks for keys too")
        check(exchange(d, get(b"/info", b"Bearer " + bob))[0][0].status == 200,
              "a key is accepted over a unix socket")
    os.mkdir(f"{work}/credentials")
    os.rename(f"{work}/keys", f"{work}/credentials/api-keys")
    os.environ["CREDENTIALS_DIRECTORY"] = f"{work}/credentials"
    with Daemon(EXECUTABLE) as d:
        check(exchange(d, get(b"/info"))[0][0].status == 401,
              "with keys from a systemd credential a request without a key is a 401")
        check(exchange(d, get(b"/info", b"Bearer " + bob))[0][0].status == 200,
              "a key from a systemd credential is accepted")
    open(f"{work}/credentials/api-keys", "w").write("# none yet\n")
    with Daemon(EXECUTABLE) as d:
        check(exchange(d, get(b"/info"))[0][0].status == 200,
              "an empty credential means that no keys are needed")
    for text, says in (("", "there is no key in it"), ("x\n", "line 1"), (None, "No such file")):
        path = f"{work}/other"
        if text is not None:
            open(path, "w").write(text)
        else:
            os.remove(path)
        run = subprocess.run([EXECUTABLE, "serve", "--model", "fake", "--listen", "127.0.0.1:0",
                              "--api-keys", path], capture_output=True, text=True, timeout=60)
        check(run.returncode != 0 and says in run.stderr, f"{text!r}: {run.stderr}")
done()
