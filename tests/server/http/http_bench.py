"""The cost of HTTP, JSON, the queue and the engine, without the models. Clients keep requests in
flight at a daemon whose steps do nothing. Prints microseconds per image and step, as the
daemon's processor time and as wall-clock time (which includes the clients' own work on the
same processors). The limit is 50. usage: http_bench.py FAKE_LATENTD [REQUESTS [IN_FLIGHT]]"""
import os
import re
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, generate_bytes  # noqa: E402

BAR_US = 50
ROWS = [(4, "latent", 1), (25, "latent", 1), (25, "latent", 8), (25, "png", 1)]


def processor_seconds(pid):
    """Returns the processor time of all threads of the process. It is not read from
    /proc/PID/stat, which has only hundredths of a second."""
    tasks = f"/proc/{pid}/task"
    nanoseconds = 0
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/schedstat") as f:
            nanoseconds += int(f.read().split()[0])
    return nanoseconds / 1e9


def exchange(s, data):
    """Makes one request on a kept-alive connection."""
    s.sendall(data)
    got = b""
    while b"\r\n\r\n" not in got:
        got += s.recv(1 << 16)
    head, _, body = got.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"http_bench: {got[:500]}")
    missing = int(re.search(rb"content-length: (\d+)", head, re.I)[1]) - len(body)
    while missing > 0:
        missing -= len(s.recv(1 << 16))


def measure(d, data, requests, in_flight):
    """Returns the seconds per request, as the daemon's processor time and as wall-clock time."""
    def client():
        with d.connect() as s:
            for _ in range(requests // in_flight):
                exchange(s, data)

    clients = [threading.Thread(target=client) for _ in range(in_flight)]
    busy, begun = processor_seconds(d.process.pid), time.perf_counter()
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    done = requests // in_flight * in_flight
    return ((processor_seconds(d.process.pid) - busy) / done, (time.perf_counter() - begun) / done)


def main():
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    in_flight = int(sys.argv[3]) if len(sys.argv) > 3 else 8
    for steps, output, images in ROWS:
        with Daemon(sys.argv[1], f"fake,images={images}", extra=["--log-level", "warning"]) as d:
            data = generate_bytes({"prompt": "a red house on green hills", "seed": 1,
                                   "output": output, "num_inference_steps": steps})
            measure(d, data, in_flight, in_flight)  # does all one-time work
            busy, clock = (1e6 * s / steps for s in measure(d, data, requests, in_flight))
            print(f"{steps} steps, {output} of 64x64, {images} images a call, {in_flight} requests in "
                  f"flight: {busy:.1f} us of processor time an image-step, {clock:.1f} by the clock; "
                  f"the bar is {BAR_US}", flush=True)


main()
