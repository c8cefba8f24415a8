"""Clients that send half of what they announce, and then nothing or a byte now and then. Some
send large bodies, which together would fill all memory for bodies. Others send half a head or
half a small body, on more connections than the daemon accepts. Everybody else is served
meanwhile. usage: half_sent.py EXECUTABLE"""
import contextlib
import sys
import tempfile
import threading

from bystander import PATIENCE, ends_in_time, judge, measure
from daemon import Daemon, check, done, read_responses, wait_until

MIB = 1 << 20
LEFT = 1000
LARGE = 32 * MIB  # base/limits.h: HTTP_BODY_MAX_BYTES; HTTP_BODIES_MAX_BYTES is 8 times this
STALL_S = 2  # HTTP_BODY_STALL_MS
DRAIN_S = 10
POST = (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n")
HALVES = {
    "heads": b"GET /health HTTP/1.1\r\nX",
    "bodies": POST % 1000 + b"{",
}


class Started(Daemon):
    def __init__(self, executable, folder):
        super().__init__(executable, "fake,step_ms=5",
                         extra=["--state-dir", folder + "/state", "--drain-timeout", str(DRAIN_S)])


def begin_large(daemon):
    """Sends nearly all of a body of the largest allowed size."""
    s = daemon.connect()
    s.sendall(POST % LARGE + b'{"prompt":"' + b"a" * (LARGE - LEFT - 11))
    return s


def asks_for_much(daemon):
    """Sends a large body as another client. Returns the status: 503 if there is no room for it,
    400 (its prompt is too long) if there is."""
    return daemon.generate({"prompt": "a" * (4 * MIB)}).status


def trickle(sockets, stop):
    while not stop.wait(0.3):
        for s in sockets:
            with contextlib.suppress(OSError):
                s.sendall(b"a")


def large_bodies(executable, trickles):
    name = "eight large bodies, " + ("a byte now and then" if trickles else "half-sent")
    with tempfile.TemporaryDirectory() as folder, Started(executable, folder) as d:
        alone = measure(d)
        sockets = [begin_large(d) for _ in range(8)]
        stop = threading.Event()
        attack = threading.Thread(target=trickle, args=(sockets if trickles else [], stop))
        attack.start()
        try:
            statuses = []
            judge(name, alone, measure(d))
            check(wait_until(lambda: statuses.append(asks_for_much(d)) or statuses[-1] != 503,
                             STALL_S + 5 * PATIENCE),
                  f"{name}: a large body of another client is accepted in the end: {statuses}")
            check(statuses[-1] == 400,
                  f"{name}: the other client's body is read and its long prompt is a 400, not {statuses[-1]}")
            print(f"{name}: another large body is answered {statuses}")
            judge(name + ", later", alone, measure(d))
            check(d.rss_kb() < 600 * 1024 or d.is_sanitized(), f"{name}: {d.rss_kb()} KiB")
            stop.set()
            attack.join()
            if not trickles:
                gave_way_is_said(sockets)
            ends_in_time(d, DRAIN_S, name)
        finally:
            stop.set()
            attack.join()
            for s in sockets:
                s.close()


def gave_way_is_said(sockets):
    """The attackers send the rest after all. Bodies that were dropped get an error that says so;
    the others are read."""
    statuses = []
    for s in sockets:
        s.sendall(b"a" * (LEFT - 2) + b'"}')
        responses, _ = read_responses(s)
        statuses += [r.status for r in responses]
        for r in responses:
            check(r.status == 400 or ("too many large" in r.error()["message"] and "retry-after" in r.headers),
                  f"{r.status} {r.headers} {r.body[:200]}")
    print(f"the eight send the rest: {statuses}")
    check(len(statuses) == 8 and 1 <= statuses.count(503) <= 4 and statuses.count(400) + statuses.count(503) == 8,
          f"one to four of the eight bodies are dropped to make room: {statuses}")


def more_than_connections(executable):
    for kind, count in (("heads", 356), ("bodies", 356), ("bodies", 600)):
        name = f"{count} half-sent {kind}"
        with tempfile.TemporaryDirectory() as folder, Started(executable, folder) as d:
            alone = measure(d)
            sockets = []
            for _ in range(count):
                sockets.append(d.connect())
                with contextlib.suppress(ConnectionError):
                    sockets[-1].sendall(HALVES[kind])
            judge(name, alone, measure(d))
            ends_in_time(d, DRAIN_S, name)
            for s in sockets:
                s.close()


large_bodies(sys.argv[1], False)
large_bodies(sys.argv[1], True)
more_than_connections(sys.argv[1])
done()
