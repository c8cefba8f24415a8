"""As many kept-alive clients as the daemon accepts send a request at the same moment. Each must get
its answer at once.

A thread of the HTTP library that gets exactly 128 events at once waits again before it handles them
(server/http/library/threads.h). So the test uses numbers of clients that fill threads to their
limit. The daemon is stopped while the clients write, so that it finds all requests at once when it
continues. Then the bursts go on while a bystander makes requests.
usage: bursts.py EXECUTABLE [CLIENTS...]"""
import contextlib
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time

from bystander import PATIENCE, ends_in_time, judge, measure
from daemon import Daemon, check, done, wait_until

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMIT_S = 10  # allows for a busy machine; an overlooked request takes 30 s
DRAIN_S = 10


def is_stopped(daemon):
    with open(f"/proc/{daemon.process.pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def answers(clients, seconds):
    """Returns the number of clients answered with 200, the number disconnected without an
    answer, and the seconds until the last of these events."""
    begun = last = time.monotonic()
    left, poll = {s.fileno(): s for s in clients}, select.poll()
    good = closed = 0
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and time.monotonic() < begun + seconds:
        for fd, _ in poll.poll(100):
            try:
                data = left[fd].recv(65536)
            except OSError:
                data = b""
            good += data.startswith(b"HTTP/1.1 200")
            closed += not data
            last = time.monotonic()
            poll.unregister(fd)
            del left[fd]
    return good, closed, last - begun


def ask(clients):
    for s in clients:
        with contextlib.suppress(OSError):  # closed by the daemon: answers() counts that
            s.sendall(REQUEST)


def bursts_are_answered(daemon, count):
    clients = [daemon.connect() for _ in range(count)]
    ask(clients)  # makes the daemon accept all of them
    good, closed, seconds = answers(clients, 4 * LIMIT_S)
    check(good == count, f"{count} clients connect at once: {good} answered, {closed} closed")
    for burst in range(3):
        daemon.process.send_signal(signal.SIGSTOP)
        check(wait_until(lambda: is_stopped(daemon)), "the daemon is stopped")
        ask(clients)
        daemon.process.send_signal(signal.SIGCONT)
        good, closed, seconds = answers(clients, 4 * LIMIT_S)
        print(f"{count} clients, burst {burst}: {good} answered, {closed} closed, the last after {seconds:.2f} s",
              flush=True)
        check(good == count and seconds < LIMIT_S,
              f"{count} requests at the same moment: {good} answered, {closed} closed, {seconds:.1f} s")
    return clients


def goes_on(daemon, clients, stop):
    """Sends one burst after the other from all clients. A client that was disconnected connects
    again."""
    while not stop.is_set():
        ask(clients)
        answers(clients, 1)
        for i, s in enumerate(clients):
            gone = select.select([s], [], [], 0)[0]
            if gone:
                s.close()
                with contextlib.suppress(OSError):
                    clients[i] = daemon.connect()
        time.sleep(0.2)


def main(executable, counts):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    for count in counts:
        with tempfile.TemporaryDirectory() as folder, Daemon(
                executable, "fake,step_ms=5", extra=["--max-connections", str(count), "--state-dir", folder + "/state",
                                                     "--drain-timeout", str(DRAIN_S)]) as d:
            alone = measure(d)
            clients = bursts_are_answered(d, count)
            stop = threading.Event()
            attack = threading.Thread(target=goes_on, args=(d, clients, stop))
            attack.start()
            try:
                judge(f"bursts of {count}", alone, measure(d))
                ends_in_time(d, DRAIN_S, f"bursts of {count}")
            finally:
                stop.set()
                attack.join()
                for s in clients:
                    s.close()
    print(f"bars for a machine {PATIENCE:g} times as slow as a quiet one")


main(sys.argv[1], [int(n) for n in sys.argv[2:]] or [256, 512, 1000])
done()
