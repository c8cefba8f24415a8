"""Measures how soon a LoRA of rank 16 can be used after a client has sent it over HTTP. The result
is the sum of two times. The first runs from the last byte of the PUT to its answer, without the time
of the fsync. The second is how much longer the first request with the LoRA takes than the same
request again. The limit is 50 ms for a checkpoint of SD-1.5's size, where the LoRA file has 6.4 MB.

usage: put_bench.py LATENTD MODEL [TIMES [SERVE_OPTION...]]"""
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, read_responses  # noqa: E402
from lora_file import half_lora  # noqa: E402

BAR_MS = 50
DRAW = {"prompt": "a", "seed": 1, "num_inference_steps": 1, "guidance_scale": 1, "output": "latent",
        "width": 64, "height": 64}


def put(d, name, data):
    """Returns the milliseconds from sending the last byte to receiving the answer, and how many
    of them the disk took."""
    with d.connect() as s:
        s.sendall(b"PUT /loras/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" %
                  (name.encode(), len(data)) + data[:-1])
        time.sleep(0.3)  # by then the other bytes have arrived
        begun = time.perf_counter()
        s.sendall(data[-1:])
        answer = s.recv(1 << 16)
        took = time.perf_counter() - begun
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head[:20] and b" 201 " not in head[:20]:
        raise SystemExit(f"put_bench: {answer[:500]}")
    return 1e3 * took, 1e3 * json.loads(body)["sync_s"]


def draw(d, loras):
    begun = time.perf_counter()
    r = d.generate({**DRAW, "loras": loras})
    if r.status != 200:
        raise SystemExit(f"put_bench: {r.body[:500]}")
    return 1e3 * (time.perf_counter() - begun)


def main():
    executable, model = sys.argv[1:3]
    times = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    data = half_lora(model, 16)
    with tempfile.TemporaryDirectory() as folder, \
            Daemon(executable, model, extra=["--lora-dir", folder, "--log-level", "warning",
                                             *sys.argv[4:]], patience_s=600) as d:
        draw(d, [])
        answers, disk, first, second = [], [], [], []
        for turn in range(times):
            took, sync = put(d, f"n{turn % 3}", data)
            answers.append(took - sync)
            disk.append(sync)
            loras = [{"name": f"n{turn % 3}"}]
            first.append(draw(d, loras))
            second.append(draw(d, loras))
        for what, ms in (("last byte to answer, without the disk", answers), ("the disk", disk),
                         ("first request with it", first), ("the same again", second)):
            print(f"{what}: median {statistics.median(ms):.1f} ms, {min(ms):.1f} to {max(ms):.1f}")
        usable = statistics.median(answers) + statistics.median(
            a - b for a, b in zip(first, second))
        print(f"{len(data)} bytes, {times} times: usable after {usable:.1f} ms; the bar is {BAR_MS}")


main()
