"""latentd serve --config: what the file may contain, what is refused, and that command-line
options override it. usage: config_file.py EXECUTABLE [MODEL]"""
import json
import os
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done

EXECUTABLE = sys.argv[1]


def write(folder, value):
    path = f"{folder}/latentd.json"
    with open(path, "w") as f:
        f.write(value if isinstance(value, str) else json.dumps(value))
    return path


def refused(folder, value, *arguments):
    run = subprocess.run([EXECUTABLE, "serve", "--config", write(folder, value), "--listen", "127.0.0.1:0",
                          *arguments], capture_output=True, text=True, timeout=60)
    check(run.returncode == 2, f"{value}: {run.returncode}")
    return run.stderr


with tempfile.TemporaryDirectory() as work:
    for folder in ("loras", "data"):
        os.mkdir(f"{work}/{folder}")
    settings = {"max-queue": 7, "drain-timeout": "5", "merge-loras": True, "one-at-a-time": False,
                "lora-dir": f"{work}/loras", "host": ["a.example", "b.example"], "training-share": 0.5,
                "state-dir": f"{work}/state", "dataset-root": f"{work}/data", "max-connections": 40}
    with Daemon(EXECUTABLE, extra=["--config", write(work, settings)]) as d:
        info = d.get("/info").json()
        check(info["queue"]["max"] == 7, f"{info['queue']}")
        check(info["loras"] is None or info["loras"]["folder"] == f"{work}/loras", f"{info['loras']}")
        for host, status in (("a.example", 200), ("b.example", 200), ("c.example", 403)):
            check(d.get("/health", {"Host": host}).status == status, host)
    with Daemon(EXECUTABLE, extra=["--max-queue", "9", "--host", "c.example", "--config",
                                   write(work, settings)]) as d:
        check(d.get("/info").json()["queue"]["max"] == 9, "the command line overrides the file")
        for host, status in (("a.example", 403), ("c.example", 200)):
            check(d.get("/health", {"Host": host}).status == status,
                  f"a list on the command line replaces the file's list: {host}")
    with Daemon(EXECUTABLE, model="fake", extra=[f"--config={write(work, {'model': 'elsewhere'})}"]):
        pass
    for value, says in (({"max-qeue": 1}, 'max-qeue: 1 is not allowed; there is no such option'),
                        ({"model": "x", "config": "y"}, "config: "), ({"max-queue": [1]}, "a text or a number"),
                        ({"max-queue": None}, "a text or a number"), ({"max-queue": True}, "a text or a number"),
                        ({"model": "fake", "max-queue": 0}, "--max-queue: 0 is not allowed"), ({"model": "fake", "max-queue": 1.5}, "--max-queue: 1.5"),
                        ({"merge-loras": 1}, "true or false"), ({"merge-loras": "true"}, "true or false"),
                        ({"host": "a.example"}, "a list of texts"), ({"host": [["a"]]}, "a text or a number"),
                        ({"host": ["a"] * 100}, "more than"), ({"--model": "x"}, "there is no such option"),
                        ("[]", "not a JSON object"), ("", "latentd.json"), ('{"model": "a", "model": "b"}', "model"),
                        ({}, "--model PATH is required")):
        err = refused(work, value)
        check(says in err, f"{str(value)[:60]}: {err}")
        check("latentd.json" in err or "--m" in err,
              f"{str(value)[:60]}: the error names the file: {err}")
    run = subprocess.run([EXECUTABLE, "serve", "--config", f"{work}/none"], capture_output=True, text=True)
    check(run.returncode == 2 and f"{work}/none" in run.stderr, run.stderr)
done()
