"""Starts the daemon for a test and talks to it, also with raw bytes. Uses only the standard
library."""
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

passed = failed = 0


def check(condition, what):
    """Counts a check and prints it if it failed."""
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAIL: {what}", flush=True)
    return condition


def left_out(what):
    """Reports a part of a test that this machine cannot run; scripts/test lists these lines at
    its end."""
    print(f"LEFT OUT: {what}", flush=True)


def done():
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def wait_until(condition, seconds=10.0):
    """Polls, with a pause, until the condition holds or the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


class Daemon:
    """Used as `with Daemon(executable, "fake,step_ms=5") as d:`. Stops the daemon at the end and
    checks its exit status."""

    def __init__(self, executable, model="fake", ready=True, listen="127.0.0.1:0", extra=(),
                 patience_s=60):
        self.command = [executable, "serve", "--model", model, "--listen", listen, *extra]
        self.wait_ready = ready
        self.patience_s = patience_s  # limit for getting ready and for an answer
        self.starts_in = None  # its working folder; None: the current one
        self.host = self.port = self.path = None  # its address, known once it runs

    def __enter__(self):
        self.log_file = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log_file,
                                        text=True, cwd=self.starts_in)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (?:http://(.+):(\d+)|unix:(.+))\n", line)
        if not found:
            raise SystemExit(f"the daemon said {line!r}: {self.read_log()}")
        self.host, self.port, self.path = found[1], int(found[2] or 0), found[3]
        if self.wait_ready and not wait_until(lambda: self.get("/health/ready").status == 200,
                                              self.patience_s):
            raise SystemExit("the daemon does not get ready")
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                status = self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                status = "no end within 30 s"
            check(status == 0, f"SIGTERM ends the daemon with 0, not {status}")
        log = self.read_log()
        check("Sanitizer" not in log and "runtime error" not in log, "no sanitizer report")
        if failed or kind:
            print("--- the daemon's log ---\n" + log[-6000:])
        self.process.stdout.close()
        self.log_file.close()
        return False

    def read_log(self):
        """Returns what the daemon has written to standard error so far."""
        return os.pread(self.log_file.fileno(), 1 << 20, 0).decode()

    def connect(self):
        if self.path:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(20)
            s.connect(self.path)
            return s
        s = socket.create_connection((self.host.strip("[]"), self.port), timeout=20)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def request(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection((self.host or "localhost").strip("[]"), self.port or None,
                                       timeout=self.patience_s)
        if self.path:
            c.sock = self.connect()
        try:
            c.request(method, path, body=body, headers=headers or {})
            r = c.getresponse()
            return Response(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def is_drawing(self, count=1):
        """Waits until the engine is drawing `count` requests. They are no longer waiting, but
        the queue's depth still counts them."""
        line = f"latentd_requests_running {count}"
        return wait_until(lambda: line in self.get("/metrics").body.decode().split("\n"))

    def depth(self):
        """Returns the number of accepted requests that are not done: waiting or being drawn."""
        return self.get("/info").json()["queue"]["depth"]

    def gets_to_depth(self, count, seconds=10.0):
        """Waits until the depth is `count`. To know whether a request is already being drawn,
        use is_drawing."""
        return wait_until(lambda: self.depth() == count, seconds)

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def generate(self, fields, headers=None):
        return self.request("POST", "/generate", json.dumps(fields),
                            {"Content-Type": "application/json", **(headers or {})})

    def rss_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])

    def is_sanitized(self):
        """Returns whether the daemon runs under AddressSanitizer, where memory limits and
        measurements do not apply."""
        with open(f"/proc/{self.process.pid}/maps") as f:
            return "libasan" in f.read()

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def generate_bytes(body, extra=b""):
    """Returns a POST /generate as raw bytes."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    return (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
            extra + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def read_responses(s, seconds=20.0, count=1, close=False):
    """Returns the responses on a connection, [Response], and whether the server closed it. Waits
    for `count` responses, and with `close` until the connection is closed. Then waits a
    moment longer, in case something comes that must not."""
    data, closed, responses = b"", False, []
    end = time.monotonic() + seconds
    while not closed:
        responses, rest = split_responses(data)
        complete = len(responses) >= count and not rest and not close
        wait = 0.2 if complete else end - time.monotonic()
        if wait <= 0 or not select.select([s], [], [], wait)[0]:
            break
        try:
            more = s.recv(65536)
        except ConnectionError:
            more = b""
        closed = not more
        data += more
    return split_responses(data)[0], closed


def split_responses(data):
    responses = []
    while True:
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            return responses, data
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        if status in (100, 204):
            length = 0
        if len(rest) < length:
            return responses, data
        if status != 100:
            responses.append(Response(status, headers, rest[:length]))
        data = rest[length:]


def exchange(daemon, data, count=1, close=False):
    """Sends raw bytes on a new connection. Returns (responses, closed), as read_responses."""
    with daemon.connect() as s:
        try:
            s.sendall(data)
        except ConnectionError:
            pass
        return read_responses(s, count=count, close=close)
