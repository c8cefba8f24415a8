"""latentd tune with workers that give wrong results, die or hang: what is kept, what is
reported, and how a damaged file of choices is handled. usage: tune.py EXECUTABLE"""
import json
import os
import subprocess
import sys
import tempfile
import time

from daemon import Daemon, check, done, wait_until

executable = sys.argv[1]
folder = tempfile.mkdtemp()
cache = os.path.join(folder, "a", "b", "tuner.txt")
log = os.path.join(folder, "log")
environment = dict(os.environ, LATENTD_TUNER_CACHE=cache, FAKE_TUNE_LOG=log)


def tune(*arguments, model="fake"):
    return subprocess.run([executable, "tune", "--model", model, *arguments], capture_output=True,
                          text=True, timeout=60, env=environment)


def tried():
    """Returns what workers were told to try since the last call, and the number of workers."""
    with open(log, encoding="utf-8") as f:
        lines = [line.rsplit(" ", 1) for line in f.read().splitlines()]
    os.remove(log)
    return ([(key, int(number)) for key, number in lines if key != "worker"],
            sum(key == "worker" for key, _ in lines))


def the_fastest_right_one_is_kept():
    p = tune("--json")
    check(p.returncode == 0, f"{p.returncode}: {p.stderr}")
    rows = json.loads(p.stdout)["problems"]
    check([(r["problem"], r["chosen"], r["untuned"], r["us"], r["untuned_us"]) for r in rows] ==
          [("gemm linear bf16 n8 k8", "mma good", "simt", 20, 50),
           ("attention bf16 d40", "plain", "flash", 70, 0)], f"{rows}")
    check([(r["candidates"], r["wrong"]) for r in rows] == [(5, 3), (2, 1)], f"{rows}")
    trials = {trial["name"]: trial for trial in rows[0]["trials"]}
    check(list(trials) == ["simt", "mma fast", "mma faults", "mma good", "mma lost"], f"{list(trials)}")
    check(trials["mma good"] == {"name": "mma good", "state": "right", "us": 20, "error": 0.001}, f"{trials}")
    check(trials["mma fast"] == {"name": "mma fast", "state": "wrong", "why": "error 0.5, allowed 0.01"}, f"{trials}")
    check(trials["mma faults"]["state"] == "faulted" and "signal 9" in trials["mma faults"]["why"], f"{trials}")
    check(abs(rows[0]["tflops"] - 1e9 / 20e-6 * 1e-12) < 1e-6, f"{rows[0]['tflops']} TFLOP/s")
    check(tried()[1] == 4, "a new worker is started after each fault")
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
    check(os.listdir(os.path.dirname(cache)) == ["tuner.txt"],
          "the cache's folder holds only the cache")


def a_damaged_file_is_said_and_replaced():
    with open(cache, encoding="utf-8") as f:
        whole = f.read()
    for text, why in ((whole[:-9], "damaged"), (whole.replace("20.000", "19.000"), "damaged"),
                      (whole.replace("tuner 1", "tuner 2"), "version"), ("", "version"),
                      (whole.replace("build 1", "build 2"), "measured with build 2; this is build 1"),
                      (whole.replace("\t5\t3", ""), "damaged"), ("\0" * 4096, "version")):
        with open(cache, "w", encoding="utf-8") as f:
            f.write(text)
        p = tune()
        check(p.returncode == 0 and f"{cache}: ignored, it " in p.stderr and why in p.stderr,
              f"{why}: {p.stderr[:300]}")
        with open(cache, encoding="utf-8") as f:
            check(f.read() == whole, "an unusable cache is written anew as a whole")


def faults_are_not_asked_for_again():
    tried()
    os.remove(cache)
    p = tune("--json", model="fake,faults")
    check(p.returncode == 0, p.stderr)
    one, two, three = json.loads(p.stdout)["problems"]
    check(one["chosen"] == two["untuned"].replace("mma bad", "simt") == "simt split 1", f"{one}")
    check((one["wrong"], one["skipped"]) == (2, 2),
          f"after two wrong candidates of a tile, its third one is not tried: {one}")
    check(two["chosen"] == "mma full split 1" and two["skipped"] == 1,
          f"that tile is not tried on other shapes either: {two}")
    check(two["untuned_us"] == 0, f"{two}")
    check(three["chosen"] is None and three["wrong"] == 3 and three["skipped"] == 1,
          f"after three faults no more candidates of a problem are tried: {three}")
    check("one: mma full split 1 could not be tried: cudaMalloc of 9 MiB: full" in p.stderr and
          "full split 1 is wrong" not in p.stderr,
          f"a candidate that lacks memory is not counted as wrong: {p.stderr}")
    check("three: no candidate is right" in p.stderr and "three: x 4 is used: the plainest" in
          p.stderr, p.stderr)
    with open(cache, encoding="utf-8") as f:
        check("three\tx 4\t0.000\t0.000\t3\t3\n" in f.read(),
              "the fallback is not a candidate that faulted")
    check(tried()[0] == [("one", 0), ("one", 1), ("one", 2), ("one", 4), ("two", 1), ("two", 2),
                         ("three", 0), ("three", 1), ("three", 2)], "no other candidate is tried")
    p = tune(model="fake,faults")
    check(p.returncode == 0 and "2 of 3 problems" not in p.stderr, p.stderr)
    check("(none)" in p.stdout and "left out after faults" in p.stdout, p.stdout)
    tried()


def the_promising_ones_come_first():
    p = tune("--json", model="fake,many")
    check(p.returncode == 0, p.stderr)
    got, workers = tried()
    check(workers == 1, f"{workers} workers")
    want = ([("p0", c) for c in range(20)] + [("p1", c) for c in range(23)] +
            [("p2", c) for c in range(20)] + [("p0", c) for c in range(20, 28)] +
            [("p1", c) for c in range(23, 28)] + [("p2", c) for c in range(20, 28)])
    check(got == want, f"{got}")
    check([r["chosen"] for r in json.loads(p.stdout)["problems"]] == ["c27"] * 3, p.stdout)
    os.remove(cache)


def a_run_that_is_cut_short_is_continued():
    p = tune("--json", "--minutes", "0.008", model="fake,slow")
    check(p.returncode == 0, p.stderr)
    report, first = json.loads(p.stdout), tried()[0]
    check(0 < len(first) < 84 and sum(r["untried"] for r in report["problems"]) == 84 - len(first),
          f"{len(first)} tried: {p.stdout}")
    check(report["measured"] < 3, f"{report['measured']} measured")
    p = tune("--minutes", "0.02", model="fake,slow")
    check(p.returncode == 0 and "for want of time" in p.stdout, p.stdout + p.stderr)
    kept = {key for key, _ in first if key != "p1"}
    again = tried()[0]
    check(again and again[0][0] not in kept, f"first {first[-1]}, then {again[0]}")
    for wrong in ("0", "-1", "nan", "x", "1441"):
        p = tune("--minutes", wrong, model="fake,slow")
        check(p.returncode == 2 and "minutes" in p.stderr, f"{wrong}: {p.stderr}")


def the_end_of_the_time_ends_a_hang():
    """A candidate that is still running when the time is over gets a few more seconds. It is not
    reported as wrong, and earlier results are kept."""
    begun = time.monotonic()
    p = tune("--json", "--minutes", "0.01", model="fake,late")
    took = time.monotonic() - begun
    one = json.loads(p.stdout)["problems"][0]
    check(p.returncode == 0 and one["chosen"] == "flash" and one["untried"] == 1, f"{one} {p.stderr}")
    check("is wrong" not in p.stderr, p.stderr)
    print(f"a hang at the end of 0.6 s: {took:.1f} s, {one['chosen']} kept, {one['untried']} untried")
    tried()
    os.remove(cache)


def a_worker_does_not_outlive_its_parent():
    with subprocess.Popen([executable, "tune", "--model", "fake,slow"], env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
        check(wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 0),
              "a worker starts")
        with open(log, encoding="utf-8") as f:
            worker = int(f.readline().split(" ")[1])
        p.kill()

    def gone():
        try:
            with open(f"/proc/{worker}/stat", encoding="utf-8") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True
    check(wait_until(gone), "the worker ends when its parent is killed")


def serving_can_begin_with_it():
    """serve --tune measures only kernels that were never measured, and does so before the daemon
    serves."""
    if os.path.exists(log):
        tried()
    os.remove(cache)
    os.environ.update(environment)
    for again in (False, True):
        with Daemon(executable, "fake,many", extra=["--tune", "1"]) as d:
            check(d.generate({"prompt": "a"}).status == 200, "the daemon draws after tuning")
            check("kernels were measured before serving" in d.read_log(), d.read_log())
        check(len(tried()[0]) == (0 if again else 84),
              "problems in the cache are not measured again")
    with Daemon(executable, "fake,no_worker", extra=["--tune", "1"]) as d:
        check("kernels are not measured: " in d.read_log(), d.read_log())
    p = subprocess.run([executable, "serve", "--model", "fake", "--tune", "0"], capture_output=True,
                       text=True, timeout=60)
    check(p.returncode == 2 and "--tune" in p.stderr, p.stderr)


def what_cannot_work():
    p = tune(model="fake,no_worker")
    check(p.returncode == 1 and "ended before it tried a kernel: it ends the process with status 1" in p.stderr, p.stderr)
    p = subprocess.run([executable, "tune", "--model", "fake"], capture_output=True, text=True,
                       timeout=60, env={})
    check(p.returncode == 1 and "set HOME, XDG_CACHE_HOME" in p.stderr, p.stderr)


def a_device_without_a_choice_says_what_it_uses():
    """The report lists the code that LATENTD_CPU selects: f32 code for both dtypes, because the
    portable level has no bf16."""
    for dtype in ("f32", "bf16"):
        for arguments in ((), ("--json",)):
            p = subprocess.run([executable, "tune", "--model", "fake,cpu", "--device", "cpu", "--dtype", dtype,
                                *arguments], capture_output=True, text=True, timeout=60,
                               env=dict(environment, LATENTD_CPU="portable"))
            check(p.returncode == 0 and p.stderr == "", f"{p.returncode}: {p.stderr}")
            if arguments:
                report = json.loads(p.stdout)
                check(report["device"] == "cpu" and report["problems"] == [], p.stdout)
                used = list(report["implementations"].items())
            else:
                lines = p.stdout.splitlines()
                check(lines[0] == f"cpu, {dtype} weights: there is nothing to choose between", lines[0])
                used = [tuple(line.strip().split("  ", 1)) for line in lines[1:]]
                used = [(layer, code.strip()) for layer, code in used]
            check(used == [("level", "portable"), ("linear", "f32"), ("conv 1x1 and stride 2", "f32"),
                           ("conv 3x3", "f32, Winograd's form"),
                           ("conv 3x3 to 1280 channels and more", "f32, Winograd's form"),
                           ("upsampling", "f32, Winograd's form"), ("attention", "f32")], f"{used}")


the_fastest_right_one_is_kept()
what_is_kept()
a_damaged_file_is_said_and_replaced()
faults_are_not_asked_for_again()
the_promising_ones_come_first()
a_run_that_is_cut_short_is_continued()
a_worker_does_not_outlive_its_parent()
serving_can_begin_with_it()
a_device_without_a_choice_says_what_it_uses()
what_cannot_work()
done()
