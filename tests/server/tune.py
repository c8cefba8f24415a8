"""latentd tune against workers that lie, die and give up: what is kept, what is said, what the file
of choices survives. usage: tune.py EXECUTABLE"""
import json
import os
import subprocess
import sys
import tempfile

from daemon import check, done

executable = sys.argv[1]
folder = tempfile.mkdtemp()
cache = os.path.join(folder, "a", "b", "tuner.txt")


def tune(*arguments, model="fake"):
    return subprocess.run([executable, "tune", "--model", model, *arguments], capture_output=True,
                          text=True, timeout=60, env=dict(os.environ, LATENTD_TUNER_CACHE=cache))


def the_fastest_right_one_is_kept():
    p = tune("--json")
    check(p.returncode == 0, f"{p.returncode}: {p.stderr}")
    rows = json.loads(p.stdout)["problems"]
    check([(r["problem"], r["chosen"], r["untuned"], r["us"], r["untuned_us"]) for r in rows] ==
          [("gemm linear bf16 n8 k8", "mma good", "simt", 20, 50),
           ("attention bf16 d40", "plain", "flash", 70, 0)], f"{rows}")
    check([(r["candidates"], r["wrong"]) for r in rows] == [(5, 3), (2, 1)], f"{rows}")
    check(abs(rows[0]["tflops"] - 1e9 / 20e-6 * 1e-12) < 1e-6, f"{rows[0]['tflops']} TFLOP/s")
    for text in ("mma fast is wrong and will not be used: error 0.5",
                 "mma faults is wrong and will not be used: it ends the process with signal 9",
                 "mma lost is wrong and will not be used: it ends the process with status 70",
                 "attention bf16 d40: flash is wrong"):
        check(text in p.stderr, f"{text!r} in {p.stderr}")


def what_is_kept():
    with open(cache, encoding="utf-8") as f:
        lines = f.read().split("\n")
    check(lines[0] == "latentd-tuner 1\tfake chip, build 1", lines[0])
    check(lines[1].startswith("gemm linear bf16 n8 k8\tmma good\t20.000\t50.000\t5\t3"), lines[1])
    check(lines[3].startswith("end\t2\t") and len(lines) == 5, f"{lines}")
    check(os.listdir(os.path.dirname(cache)) == ["tuner.txt"], "nothing else is left behind")


def a_damaged_file_is_said_and_replaced():
    with open(cache, encoding="utf-8") as f:
        whole = f.read()
    for text, why in ((whole[:-9], "damaged"), (whole.replace("20.000", "19.000"), "damaged"),
                      (whole.replace("tuner 1", "tuner 2"), "version"), ("", "version"),
                      (whole.replace("build 1", "build 2"), "another device, driver or build"),
                      (whole.replace("\t5\t3", ""), "damaged"), ("\0" * 4096, "version")):
        with open(cache, "w", encoding="utf-8") as f:
            f.write(text)
        p = tune()
        check(p.returncode == 0 and f"{cache}: ignored, it " in p.stderr and why in p.stderr,
              f"{why}: {p.stderr[:300]}")
        with open(cache, encoding="utf-8") as f:
            check(f.read() == whole, "and written whole again")


def what_cannot_work():
    p = tune(model="fake,no_worker")
    check(p.returncode == 1 and "ended before it tried a kernel (status 1)" in p.stderr, p.stderr)
    p = subprocess.run([executable, "tune", "--model", "fake"], capture_output=True, text=True,
                       timeout=60, env={})
    check(p.returncode == 1 and "set HOME, XDG_CACHE_HOME" in p.stderr, p.stderr)


the_fastest_right_one_is_kept()
what_is_kept()
a_damaged_file_is_said_and_replaced()
what_cannot_work()
done()
