"""Access to the daemon and its logs: pages of other origins (CORS, by the rows of the Fetch
standard), host names, addresses beyond this machine, the access log, and the sockets and
notifications of systemd. usage: operation_http.py EXECUTABLE"""
import fcntl
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done, exchange, wait_until

EXECUTABLE = sys.argv[1]
H = b"Host: localhost\r\n"
APP = b"Origin: https://app.example\r\n"


def head(method, path, headers=b""):
    return method + b" " + path + b" HTTP/1.1\r\n" + H + headers + b"\r\n"


def one(daemon, data):
    return exchange(daemon, data)[0][0]


def preflight(path, origin=APP, method=b"POST", more=b""):
    return head(b"OPTIONS", path, origin + b"Access-Control-Request-Method: " + method + b"\r\n" + more)


def check_cors(folder):
    key = subprocess.run([EXECUTABLE, "key", "app", "--api-keys", f"{folder}/keys"], capture_output=True,
                         text=True).stdout.strip().encode()
    with Daemon(EXECUTABLE, extra=["--api-keys", f"{folder}/keys", "--cors-origin", "https://app.example",
                                   "--cors-origin", "http://127.0.0.1:3000"]) as d:
        r = one(d, preflight(b"/generate", more=b"Access-Control-Request-Headers: authorization, x-y\r\n"))
        check(r.status == 204, f"a preflight needs no key: {r.status}")
        for name, value in (("access-control-allow-origin", "https://app.example"), ("vary", "Origin"),
                            ("access-control-allow-methods", "POST, OPTIONS"),
                            ("access-control-allow-headers", "authorization, x-y")):
            check(r.headers.get(name) == value, f"{name}: {r.headers.get(name)}")
        check("access-control-allow-credentials" not in r.headers,
              "the answer allows no credentials")
        asked = one(d, head(b"GET", b"/info", APP + b"Sec-Fetch-Site: cross-site\r\nAuthorization: Bearer " +
                            key + b"\r\n"))
        check(asked.status == 200 and asked.headers.get("access-control-allow-origin") ==
              "https://app.example" and "X-Request-Id" in
              asked.headers.get("access-control-expose-headers", ""),
              "an allowed origin may read the answer and its headers")
        refused = one(d, head(b"GET", b"/info", APP))
        check(refused.status == 401 and "access-control-allow-origin" in refused.headers,
              "an allowed origin may read a refusal")
        for origin, status in ((b"https://evil.example", 403), (b"https://app.example.evil.example", 403),
                               (b"http://app.example", 403), (b"https://app.example:444", 403),
                               (b"HTTPS://APP.EXAMPLE", 403), (b"null", 403),
                               (b"http://127.0.0.1:3000", 204)):
            r = one(d, preflight(b"/generate", b"Origin: " + origin + b"\r\n"))
            check(r.status == status, f"{origin}: {r.status}")
            check((r.headers.get("access-control-allow-origin") == origin.decode()) == (status == 204),
                  f"{origin}: {r.headers}")
        r = one(d, preflight(b"/nothing"))
        check(r.status == 401, f"an unknown path without a key is a 401: {r.status}")
        r = one(d, head(b"GET", b"/health"))
        check(r.headers.get("vary") == "Origin" and "access-control-allow-origin" not in r.headers,
              "an answer to a request without Origin has Vary and allows no origin")
    with Daemon(EXECUTABLE) as d:
        r = one(d, preflight(b"/generate"))
        check(r.status == 403 and "vary" not in r.headers,
              "without --cors-origin a request of another origin is a 403")


def check_names():
    with Daemon(EXECUTABLE, extra=["--host", "sd.example"]) as d:
        for host, origin, status in (("sd.example", None, 200), ("SD.example.:443", None, 200),
                                     ("sd.example", "https://sd.example", 200),
                                     ("sd.example", "http://sd.example", 200),
                                     ("localhost", "https://localhost", 403),
                                     ("sd.example", "https://localhost", 403),
                                     ("x.sd.example", None, 403), ("10.0.0.1", None, 403)):
            headers = f"Host: {host}\r\n" + (f"Origin: {origin}\r\n" if origin else "")
            got = one(d, b"GET /health HTTP/1.1\r\n" + headers.encode() + b"\r\n").status
            check(got == status, f"Host {host}, Origin {origin}: {got}")


def refused(*arguments):
    run = subprocess.run([EXECUTABLE, "serve", "--model", "fake", *arguments], capture_output=True,
                         text=True, timeout=60)
    check(run.returncode == 2, f"{arguments}: {run.returncode}")
    return run.stderr


def check_addresses(folder):
    """Listening beyond this machine needs keys and TLS or --insecure-no-tls."""
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:8188"):
        check("--api-keys" in refused("--listen", address), f"{address} without keys")
        check("--insecure-no-tls" in refused("--listen", address, "--api-keys", f"{folder}/keys"),
              f"{address} without TLS")
        check("--api-keys" in refused("--listen", address, "--insecure-no-tls"),
              f"{address} with --insecure-no-tls still needs keys")
    with Daemon(EXECUTABLE, listen="0.0.0.0:0", ready=False,
                extra=["--api-keys", f"{folder}/keys", "--insecure-no-tls"]) as d:
        for host, status in ((b"192.0.2.7:1", 401), (b"[2001:db8::1]", 401), (b"localhost", 401),
                             (b"evil.example", 403), (b"1.2.3.4.evil.example", 403), (b"[::1", 400)):
            got = one(d, b"GET /info HTTP/1.1\r\nHost: " + host + b"\r\n\r\n").status
            check(got == status, f"{host}: {got}")
    for wrong in ("*", "null", "app.example", "https://app.example/", "https://App.example", "https://",
                  "https://a b"):
        check("--cors-origin" in refused("--cors-origin", wrong), wrong)
    for wrong in ("", "a b", "a:1", "a/b"):
        check("--host" in refused("--host", wrong), wrong)


def check_log(folder):
    path = f"{folder}/access.log"
    with Daemon(EXECUTABLE, extra=["--access-log", path, "--api-keys", f"{folder}/keys"]) as d:
        for request in (head(b"GET", b"/health"), head(b"GET", b"/info?secret", b"Authorization: Bearer k3y\r\n"),
                        head(b"GET", b"/health", b"X-Request-Id: mine\r\n"), head(b"GET", b"/a\"b%ff"),
                        b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n"):
            exchange(d, request)
    with open(path) as f:
        text = f.read()
    lines = [json.loads(line) for line in text.splitlines()]
    lines = [line for line in lines if line["target"] != "/health/ready"]
    check([line["status"] for line in lines] == [200, 401, 200, 401, 403], f"{lines}")
    check([line["target"] for line in lines][1:4] == ["/info?secret", "/health", '/a"b%ff'], f"{lines}")
    check(lines[2]["id"] == "mine" and lines[0]["method"] == "GET" and lines[0]["peer"] == "127.0.0.1" and
          0 <= lines[0]["seconds"] < 10 and lines[0]["caller"] == "", f"{lines}")
    check(all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines),
          "each line has its time")
    check("k3y" not in text, "no line contains a key")
    check(os.stat(path).st_mode & 0o027 == 0, "other users cannot read the access log")
    with Daemon(EXECUTABLE, extra=["--access-log", "-"]) as d:  # into a pipe that nobody reads
        c = http.client.HTTPConnection(d.host, d.port, timeout=20)
        for _ in range(600):
            c.request("GET", "/health?" + "x" * 200)
            c.getresponse().read()
        check(d.get("/health").status == 200,
              "the daemon answers after it failed to write the access log")
        check("lines of the access log could not be written" in d.read_log(),
              "the log says that lines of the access log are lost")
    run = subprocess.run([EXECUTABLE, "serve", "--model", "fake", "--access-log", f"{folder}/no/log"],
                         capture_output=True, text=True, timeout=60)
    check(run.returncode == 1 and "--access-log" in run.stderr, run.stderr)


def notified(s, seconds=10):
    """Returns the next message to systemd, or "" after `seconds`."""
    s.settimeout(seconds)
    try:
        return s.recv(4096).decode()
    except TimeoutError:
        return ""


def handed_over(folder, sockets, extra=(), watchdog_us=200000):
    """Starts the daemon as systemd does: with sockets from descriptor 3 on and a socket for
    notifications. Returns the process and that socket."""
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = f"{folder}/notify"
    if os.path.exists(path):
        os.remove(path)
    notify.bind(path)
    fds = " ".join(f"{3 + i}<&{s.fileno()}" for i, s in enumerate(sockets))
    high = [s for s in sockets if s.fileno() < 3 + len(sockets)]
    assert not high, "descriptors in the way"
    script = f"exec env LISTEN_PID=$$ LISTEN_FDS={len(sockets)} WATCHDOG_PID=$$ \"$@\" {fds}"
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", EXECUTABLE, "serve", "--model", "fake", *extra], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, pass_fds=[s.fileno() for s in sockets],
        env={**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": str(watchdog_us)})
    return process, notify


def out_of_the_way(family):
    """Returns a socket with a descriptor of 20 or more, so that it does not collide with the
    descriptors from 3 on that the daemon gets."""
    with socket.socket(family) as s:
        return socket.socket(fileno=fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, 20))


def listening(family, address):
    s = out_of_the_way(family)
    s.bind(address)
    s.listen(16)
    return s


def check_service(folder):
    s = listening(socket.AF_INET, ("127.0.0.1", 0))
    port = s.getsockname()[1]
    process, notify = handed_over(folder, [s])
    check(process.stdout.readline() == f"listening on http://127.0.0.1:{port}\n",
          "the daemon listens on systemd's socket")
    said = []
    check(wait_until(lambda: said.append(notified(notify)) or any("READY=1" in x for x in said), 30),
          f"systemd is told that the daemon is ready: {said}")
    beats = [notified(notify) for _ in range(3)]
    check(beats == ["WATCHDOG=1"] * 3, f"the watchdog gets its messages: {beats}")
    with socket.create_connection(("127.0.0.1", port)) as c:
        c.sendall(head(b"GET", b"/health"))
        check(c.recv(100).startswith(b"HTTP/1.1 200"), "the daemon answers on systemd's socket")
    process.terminate()
    while "STOPPING=1" not in (last := notified(notify)) and last:
        pass
    check("STOPPING=1" in last, "systemd is told that the daemon stops")
    check(process.wait(30) == 0, "the daemon ends with status 0")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as c:  # is answered after the next start
        c.sendall(head(b"GET", b"/health"))
        process, notify = handed_over(folder, [s])
        c.settimeout(30)
        check(c.recv(100).startswith(b"HTTP/1.1 "),
              "a client that connected between two starts is answered")
    process.terminate()
    check(process.wait(30) == 0, "the daemon ends with status 0")
    local = listening(socket.AF_UNIX, f"{folder}/local")
    process, notify = handed_over(folder, [local])
    check(process.stdout.readline() == f"listening on unix:{folder}/local\n",
          "the daemon listens on a unix socket of systemd")
    process.terminate()
    check(process.wait(30) == 0 and os.path.exists(f"{folder}/local"),
          "the unix socket's file is kept at the end")
    far = listening(socket.AF_INET, ("0.0.0.0", 0))
    plain = out_of_the_way(socket.AF_INET)
    for sockets, extra, says in (([s, local], (), "2 sockets"), ([s], ("--listen", "127.0.0.1:0"), "--listen"),
                                 ([far], (), "--api-keys"), ([plain], (), "does not listen")):
        process, notify = handed_over(folder, sockets, extra)
        err = process.communicate(timeout=60)[1]
        check(process.returncode == 2 and says in err, f"{says}: {process.returncode} {err}")


with tempfile.TemporaryDirectory() as work:
    check_cors(work)
    check_names()
    check_addresses(work)
    check_log(work)
    check_service(work)
done()
