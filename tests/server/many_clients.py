"""Many clients at once, some of which stop in the middle of a request or leave. Checks that the
others are served soon, and what the daemon waits for when it is told to stop. usage: many_clients.py
EXECUTABLE"""
import os
import resource
import signal
import socket
import subprocess
import sys
import time

from daemon import Daemon, check, done, exchange, generate_bytes, read_responses, wait_until

executable = sys.argv[1]
HALF_BODY = generate_bytes({"prompt": "a" * 100})[:-20]
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def connect_all(d, count, data=b""):
    sockets = []
    for _ in range(count):
        s = d.connect()
        s.sendall(data)
        sockets.append(s)
    return sockets


def seconds_for_health(d):
    begun = time.monotonic()
    status = d.get("/health").status
    check(status == 200, f"/health: {status}")
    return time.monotonic() - begun


def abandoned_bodies_hold_no_slots():
    """300 clients send a part of a body and leave; 30 new ones are served."""
    with Daemon(executable) as d:
        for s in connect_all(d, 300, HALF_BODY):
            s.close()
        took = [seconds_for_health(d) for _ in range(30)]
        print(f"after 300 abandoned bodies 30 new clients waited {max(took):.3f} s at most")
        check(max(took) < 5, f"a new client waits {max(took):.3f} s")


def half_sent_bodies_give_way():
    """300 clients send a part of a body and stay; 30 new ones are served."""
    with Daemon(executable) as d:
        sockets = connect_all(d, 300, HALF_BODY)
        took = [seconds_for_health(d) for _ in range(30)]
        print(f"beside 300 half-sent bodies 30 new clients waited {max(took):.3f} s at most")
        check(max(took) < 5, f"a new client waits {max(took):.3f} s")
        for s in sockets:
            s.close()


def idle_connections_give_way():
    with Daemon(executable) as d:
        sockets = connect_all(d, 150) + connect_all(d, 150, HEALTH + b"\r\n")
        took = [seconds_for_health(d) for _ in range(5)]
        print(f"beside 300 idle connections 5 new clients waited {max(took):.3f} s at most")
        check(max(took) < 5, f"a new client waits {max(took):.3f} s")
        last = sockets[-1]
        check(last.recv(4096).startswith(b"HTTP/1.1 200"), "the youngest idle connection is served")
        last.sendall(HEALTH + b"\r\n")
        check(last.recv(4096).startswith(b"HTTP/1.1 200"),
              "the youngest idle connection is not closed in favour of new ones")
        for s in sockets:
            s.close()


def accepted_work_keeps_its_place():
    """Connections that wait for a picture are not closed in favour of idle ones."""
    with Daemon(executable, "fake,step_ms=20", extra=["--max-connections", "16"]) as d:
        working = connect_all(d, 8, generate_bytes({"prompt": "a", "num_inference_steps": 40}))
        check(wait_until(lambda: d.depth() >= 6), "six requests are accepted")
        idle = connect_all(d, 60)
        for s in working:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [200],
                  "a picture is drawn while all connections are in use")
        for s in idle:
            s.close()


def clients_past_the_limit_wait(what="every connection is busy"):
    with Daemon(executable, "fake,step_ms=20", extra=["--max-connections", "8"]) as d:
        body = generate_bytes({"prompt": "a", "num_inference_steps": 5})
        working = connect_all(d, 12, body)
        for s in working:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [200], "every waiting request gets its picture")
            s.close()
        lines = [line for line in d.read_log().split("\n") if what in line]
        check(len(lines) >= 1, f"the log says that {what}")
        check(len(lines) <= 12, f"the log repeats it at most 12 times, not {len(lines)}")


def a_head_past_the_library_s_memory():
    """Requests with thousands of cookies, query arguments or headers are answered at once. The
    daemon can still end quickly after them, and has no memory leak."""
    rows = [
        ("cookies", HEALTH + b"Cookie: " + b"a=b; " * 3000 + b"\r\n\r\n", (200, 431)),
        ("arguments", b"GET /health?" + b"a&" * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
         (200, 414, 431)),
        ("more arguments", b"GET /health?" + b"a&" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
         (200, 414, 431)),
        ("headers", HEALTH + b"a: b\r\n" * 3000 + b"\r\n", (431,)),
        ("a megabyte", HEALTH + b"a: b\r\n" * 170000 + b"\r\n", (431,)),
        ("a long target", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", (414, 431)),
    ]
    d = Daemon(executable)
    with d:
        for what, data, allowed in rows:
            begun = time.monotonic()
            responses, _ = exchange(d, data)
            took = time.monotonic() - begun
            statuses = [r.status for r in responses]
            check(len(statuses) == 1 and statuses[0] in allowed, f"{what}: {statuses}")
            check(took < 5, f"{what}: answered after {took:.1f} s")
            print(f"{what}: {statuses} after {took:.2f} s")
        begun = time.monotonic()
        d.process.send_signal(signal.SIGTERM)
        check(d.process.wait(40) == 0, "SIGTERM ends the daemon with status 0")
        took = time.monotonic() - begun
        check(took < 10, f"SIGTERM takes {took:.1f} s afterwards")


def a_stop_waits_for_accepted_work_only():
    with Daemon(executable, "fake,step_ms=20") as d:
        idle = connect_all(d, 5) + connect_all(d, 5, HEALTH + b"\r\n")
        half = connect_all(d, 5, HALF_BODY) + connect_all(d, 5, HEALTH)
        for s in connect_all(d, 5, HALF_BODY):
            s.close()
        working = d.connect()
        working.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 50}))
        check(d.gets_to_depth(1), "the request is accepted")
        d.process.send_signal(signal.SIGTERM)
        responses, _ = read_responses(working, 30)
        answered = time.monotonic()
        check([r.status for r in responses] == [200], "the accepted request is finished")
        check(d.process.wait(40) == 0, "SIGTERM ends the daemon with status 0")
        took = time.monotonic() - answered
        print(f"the daemon ended {took:.2f} s after the last accepted request")
        check(took < 10,
              f"the daemon ends within 10 s after the last accepted request, not {took:.1f}")
        for s in idle + half:
            s.close()


def a_refusal_reaches_who_still_writes():
    """A client that writes a large body before it reads still gets the error: 413 for 40 MB, 400
    for two different lengths, 404 for a wrong path."""
    size = 40 << 20
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with Daemon(executable) as d:
        got = []
        for _ in range(8):
            with d.connect() as s:
                try:
                    s.sendall(head + b"Content-Length: %d\r\n\r\n" % size + b" " * size)
                    responses, closed = read_responses(s, close=True)
                    got += [r.status for r in responses]
                    check(closed, "the connection is closed after the refusal")
                except ConnectionError as e:
                    got.append(type(e).__name__)
        check(got == [413] * 8, f"a client that sends 40 MB before it reads gets a 413: {got}")
        for what, more, status in (
                ("two lengths", b"Content-Length: 1000000\r\nContent-Length: 5\r\n\r\n", 400),
                ("no such path", None, 404)):
            data = head + more if more else head.replace(b"/generate", b"/nope") + \
                b"Content-Length: 1000000\r\n\r\n"
            responses, closed = exchange(d, data + b" " * 1000000, close=True)
            check([r.status for r in responses] == [status], f"{what}: {[r.status for r in responses]}")
        with d.connect() as s:  # a client that never stops sending is cut off
            s.settimeout(10)
            sent = 0
            try:
                s.sendall(head + b"Content-Length: 100000000000\r\n\r\n")
                while sent < 1 << 30:
                    sent += s.send(b" " * (1 << 20))
            except (ConnectionError, TimeoutError):
                pass
            check(sent < 1 << 29,
                  f"less than 512 MB of a refused body are read, not {sent >> 20} MB")
        check(wait_until(lambda: d.open_files() < 30), f"{d.open_files()} open files")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def without_descriptors_it_waits():
    """Without a free descriptor for a new client, the listener neither spins nor fills the log:
    at most five lines in 1.5 s."""
    with Daemon(executable) as d:
        used = d.open_files()
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (used + 4, used + 4))
        # These connections are working, so none of them can be closed.
        sockets = connect_all(d, 12, generate_bytes({"prompt": "a", "num_inference_steps": 1000})[:-1])
        check(wait_until(lambda: "no file descriptors" in d.read_log()),
              "the log says that there are no file descriptors")
        before = processor_seconds(d.process.pid)
        time.sleep(1.5)
        spent = processor_seconds(d.process.pid) - before
        print(f"without descriptors it used {spent:.2f} s of processor time in 1.5 s")
        check(spent < 0.5, f"{spent} s of processor time in 1.5 s, which is spinning")
        lines = [line for line in d.read_log().split("\n") if "no file descriptors" in line]
        check(1 <= len(lines) <= 5, f"the log says so one to five times, not {len(lines)}")
        for s in sockets:
            s.close()
        check(wait_until(lambda: d.get("/health").status == 200),
              "the daemon serves again once descriptors are free")


def closed_standard_streams_are_not_sockets():
    """If descriptors 0 to 2 are closed at the start, the log must not go into a client's socket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    p = subprocess.Popen([executable, "serve", "--model", "fake", "--listen", f"127.0.0.1:{port}"],
                         preexec_fn=lambda: os.closerange(0, 3), close_fds=False)
    try:
        def answered():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                    s.sendall(HEALTH + b"\r\n")
                    return read_responses(s)[0]
            except ConnectionError:
                return None
        check(wait_until(answered), "the daemon answers")
        for n in range(3):
            targets = [os.readlink(f"/proc/{p.pid}/fd/{n}")]
            check(targets == ["/dev/null"], f"descriptor {n} is {targets}")
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.sendall(generate_bytes({"prompt": "a"}))  # makes the daemon log the request's end
            data = b""
            while data.count(b"}") < 2 and len(data) < 1 << 20:
                more = s.recv(65536)
                if not more:
                    break
                data += more
            check(data.startswith(b"HTTP/1.1 200"), f"{data[:60]}")
            check(b" info " not in data, "an answer contains no log line")
    finally:
        p.send_signal(signal.SIGTERM)
        check(p.wait(30) == 0, "SIGTERM ends the daemon with status 0")


if __name__ == "__main__":
    names = sys.argv[2:]
    for test in (abandoned_bodies_hold_no_slots, half_sent_bodies_give_way, idle_connections_give_way,
                 accepted_work_keeps_its_place, clients_past_the_limit_wait,
                 a_head_past_the_library_s_memory, a_stop_waits_for_accepted_work_only,
                 a_refusal_reaches_who_still_writes, without_descriptors_it_waits,
                 closed_standard_streams_are_not_sockets):
        if not names or test.__name__ in names:
            test()
    done()
