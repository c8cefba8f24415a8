"""Compares the daemon's threads with the table in docs/architecture.md: every running thread
must be in the table, and the threads that always run must be there. usage: threads.py
EXECUTABLE CHECKPOINT ARCHITECTURE.md"""
import os
import re
import sys
import tempfile
import threading

from daemon import Daemon, check, done

executable, checkpoint, architecture = sys.argv[1:]
# Kernel names of threads that have another name in the table: the first thread has the program's
# name.
OWN = {os.path.basename(executable)[:15]: "main"}


def table():
    """Returns {name: whether the thread runs in every daemon with a queue}."""
    with open(architecture, encoding="utf-8") as f:
        text = f.read().split("## Threads")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: not re.search(r"during|each|job's|OMP_NUM_THREADS", row[1].replace("one for each 126", ""))
            for row in rows[2:]}


def running(pid):
    names = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as f:
                names.add(f.read().rstrip("\n"))
        except OSError:  # the thread has just ended
            continue
    return {OWN.get(name, name) for name in names}


def every_thread_is_in_the_table(d, names):
    """Lists the threads repeatedly while pictures with Brownian noise are drawn."""
    seen, stop = set(), threading.Event()

    def look():
        while not stop.is_set():
            seen.update(running(d.process.pid))
            stop.wait(0.005)

    looking = threading.Thread(target=look)
    looking.start()
    # A picture's thread may start and end between two lists, so several pictures are tried.
    for seed in range(20):
        r = d.generate({"prompt": "a", "width": 64, "height": 64, "num_inference_steps": 12, "scheduler": "dpmpp_sde",
                        "seed": seed})
        check(r.status == 200, f"a picture is drawn: {r.status}")
        if "Brownian" in seen:
            break
    stop.set()
    looking.join()
    print(f"seen: {', '.join(sorted(seen))}")
    for name in sorted(seen - set(names)):
        check(False, f"the thread {name} is not in the table of docs/architecture.md")
    for name in sorted(name for name in names if names[name] or name == "Brownian"):
        check(name in seen, f"the thread {name} of the table runs")


with tempfile.TemporaryDirectory() as folder:
    extra = ("--device", "cpu", "--state-dir", os.path.join(folder, "state"), "--dataset-root", folder,
             "--lora-dir", folder)
    with Daemon(executable, checkpoint, extra=extra) as daemon:
        every_thread_is_in_the_table(daemon, table())
done()
