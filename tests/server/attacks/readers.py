"""One caller sends many large bodies at once, which wait for the two threads that parse them.
Another caller's one request must not wait for all of them. usage: readers.py EXECUTABLE"""
import json
import os
import select
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from daemon import Daemon, check, done

EXECUTABLE = sys.argv[1]
BODIES = 20
BODY = b'{"prompt": "' + b"\\u0041" * (500 << 10) + b'"}'  # 3 MB; a caller may hold 64 MB
SMALL = json.dumps({"prompt": "a"}).encode()


def post(key, body):
    return (f"POST /tokens HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body


def is_answered(s):
    return bool(select.select([s], [], [], 0)[0])


def has_read_all(d):
    """Whether the daemon has read everything that was sent to it."""
    with open("/proc/net/tcp", encoding="ascii") as f:
        rows = [line.split() for line in f][1:]
    own = [row for row in rows if row[1].endswith(f":{d.port:04X}")]
    return all(row[4].endswith(":00000000") for row in own if row[3] == "01")


def overtaken(d, keys):
    """Returns how many of the large bodies were answered before the small one was sent, and
    before it was answered."""
    large = [d.connect() for _ in range(BODIES)]
    small = d.connect()
    try:
        for s in large:
            s.sendall(post(keys["alice"], BODY)[:-1])
        for s in large:
            s.sendall(BODY[-1:])
        while not has_read_all(d):
            pass
        before = sum(map(is_answered, large))
        small.sendall(post(keys["bob"], SMALL))
        check(small.recv(12) == b"HTTP/1.1 200", "bob's request")
        after = sum(map(is_answered, large))
        for s in large:
            check(s.recv(12) == b"HTTP/1.1 400", "alice's prompts are too long")
        return before, after
    finally:
        for s in [small, *large]:
            s.close()


with tempfile.TemporaryDirectory() as folder:
    keys = {name: subprocess.run([EXECUTABLE, "key", name, "--api-keys", f"{folder}/keys"], capture_output=True, text=True,
                                 check=True).stdout.strip() for name in ("alice", "bob")}
    with Daemon(EXECUTABLE, "fake", extra=("--api-keys", f"{folder}/keys")) as d:
        # The test may be held up before it sends the small one; then it tries again.
        before = after = BODIES
        for _ in range(10):
            before, after = overtaken(d, keys)
            if before <= BODIES // 2:
                break
        print(f"of {BODIES} large bodies {before} were answered before the small one was sent, {after} before its answer")
        if check(before <= BODIES // 2, "ten times all large bodies were parsed before the small one was sent"):
            check(after <= before + 6, f"the small one waited for {after - before} others")
done()
