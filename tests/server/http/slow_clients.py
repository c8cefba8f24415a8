"""Clients that are slow on purpose. The HTTP library's own timeout detects only silence. Clients
that send a byte now and then must still lose their connection, and others are served
meanwhile. usage: slow_clients.py EXECUTABLE"""
import os
import select
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done  # noqa: E402

HEADER_LIMIT_S = 10  # base/limits.h: HTTP_HEADER_TIMEOUT_MS
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200


def trickle(s, data, results, name):
    """Sends a byte every half second until the server closes the connection, and stores how long
    that took."""
    begun = time.monotonic()
    for i in range(len(data)):
        try:
            s.sendall(data[i:i + 1])
            if select.select([s], [], [], 0.5)[0] and not s.recv(4096):
                break
        except ConnectionError:
            break
        if time.monotonic() - begun > 4 * HEADER_LIMIT_S:
            results[name] = None
            return
    results[name] = time.monotonic() - begun


with Daemon(sys.argv[1]) as d:
    results = {}
    fresh, silent, kept, between = d.connect(), d.connect(), d.connect(), d.connect()
    # A connection that was served before, and then begins to trickle.
    kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check(kept.recv(4096).startswith(b"HTTP/1.1 200"),
          "the first request of the kept-alive connection is answered")
    threads = [threading.Thread(target=trickle, args=a) for a in
               ((fresh, HEAD, results, "fresh"), (kept, HEAD, results, "kept"),
                (between, b"\r\n" * 200, results, "empty lines"))]
    for t in threads:
        t.start()
    served = 0
    while any(t.is_alive() for t in threads):
        check(d.get("/health").status == 200, "other clients are served")
        served += 1
        time.sleep(1)
    print(f"hung up after {results}; {served} others served meanwhile")
    for name in ("fresh", "empty lines"):
        seconds = results[name]
        check(seconds is not None and HEADER_LIMIT_S - 1 <= seconds <= 2 * HEADER_LIMIT_S,
              f"{name}: a trickle of headers is cut after about {HEADER_LIMIT_S} s, not {seconds}")
    check(results["kept"] is not None,
          "a trickle of headers is also cut on a kept-alive connection")
    silent.settimeout(4 * HEADER_LIMIT_S)
    check(silent.recv(10) == b"", "a connection that sends nothing is closed")
    check(d.open_files() < 40, f"{d.open_files()} open files")
done()
