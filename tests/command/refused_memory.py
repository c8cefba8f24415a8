"""Runs the real program on the bundled checkpoint with limits on its address space or data
segment. The limits range from just enough to start to more than enough. The program draws a
picture or reports an error, and never dies of a signal. usage: refused_memory.py EXECUTABLE
MODEL [LEVELS]"""
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon, check, done, wait_until

executable, model = sys.argv[1:3]
LEVELS = int(sys.argv[3]) if len(sys.argv) > 3 else 24
PNG = b"\x89PNG\r\n\x1a\n"
MIB = 1 << 20
environment = {**os.environ, "OMP_NUM_THREADS": "2"}


def limited(kind, mib):
    def set_limits():
        resource.setrlimit(kind, (mib * MIB, mib * MIB))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return set_limits


def starts(kind, mib):
    return subprocess.run([executable, "--version"], preexec_fn=limited(kind, mib),
                          capture_output=True, timeout=60).returncode == 0


def levels(kind, most_mib, count):
    """Returns `count` limits in MiB: the first is the smallest at which the program starts, the
    last is `most_mib`."""
    least, most = 1, 1024
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if starts(kind, middle) else (middle, most)
    return [round(most * (most_mib / most) ** (i / (count - 1))) for i in range(count)]


def generate(name, kind, mib, dtype):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "x.png")
        p = subprocess.run(
            [executable, "generate", "--model", model, "--device", "cpu", "--dtype", dtype,
             "--prompt", "a boat", "--steps", "2", "-o", out],
            preexec_fn=limited(kind, mib), env=environment, capture_output=True, text=True, timeout=120)
        drawn = os.path.exists(out)
        last = re.split(r"[\r\n]", p.stderr.strip())[-1]
        what = f"generate, {name} {mib} MiB, {dtype}: {p.returncode} {last[:240]}"
        print(what)
        if p.returncode == 0:
            check(drawn and open(out, "rb").read(8) == PNG, what)
        else:
            check(p.returncode == 1 and not drawn and len(last) > 20, what)
        return p.returncode == 0


def serve(name, kind, mib):
    """The daemon exits (before it listens, or while it loads), or it answers."""
    log = tempfile.TemporaryFile()
    p = subprocess.Popen([executable, "serve", "--model", model, "--device", "cpu", "--listen",
                          "127.0.0.1:0"], preexec_fn=limited(kind, mib), env=environment,
                         stdout=subprocess.PIPE, stderr=log, text=True)
    killer = threading.Timer(120, p.kill)
    killer.start()
    status, answer = None, b"none"
    found = re.fullmatch(r"listening on http://(.+):(\d+)\n", p.stdout.readline())
    if found:
        d = Daemon(executable, model, patience_s=60)
        d.host, d.port, d.process = found[1], int(found[2]), p
        try:
            wait_until(lambda: d.get("/health/ready").status == 200, 60)
            r = d.generate({"prompt": "a boat", "num_inference_steps": 2}, {"Accept": "image/png"})
            status, answer = r.status, r.body
            check(d.get("/health").status == 200, f"{name} {mib} MiB: alive after {status}")
            p.send_signal(signal.SIGTERM)
        except OSError as e:
            answer = repr(e).encode()  # the daemon has ended
    code = p.wait()
    killer.cancel()
    p.stdout.close()
    last = os.pread(log.fileno(), 1 << 20, 0).decode().strip().split("\n")[-1]
    said = last if status in (None, 200) else answer.decode()
    what = f"serve, {name} {mib} MiB: exit {code}, answer {status}: {said[:240]}"
    print(what)
    check(code in (0, 1) if status is None else code == 0, what)
    check(status in (None, 200, 500, 503, 507), what)
    check(status != 200 or answer.startswith(PNG), what)
    return status == 200


for name, kind, most_mib in (("RLIMIT_AS", resource.RLIMIT_AS, 800), ("RLIMIT_DATA", resource.RLIMIT_DATA, 250)):
    steps = levels(kind, most_mib, LEVELS)
    print(f"{name}: {steps[0]} to {steps[-1]} MiB")
    drawn = [generate(name, kind, mib, "f32" if i % 3 == 2 else "auto")
             for i, mib in enumerate(steps)]
    check(not drawn[0] and any(drawn),
          f"{name}: the lowest limit is too small to draw and some limit is large enough: {drawn}")
    served = [serve(name, kind, mib) for mib in steps[::2] + [2 * steps[-1]]]
    check(any(served), f"{name}: some limit is large enough to serve: {served}")
done()
