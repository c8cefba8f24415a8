"""Tests scripts/bench-cpu with fake peers that report planted seconds: the figures computed from
these, and which results are kept if a peer dies or hangs, or if the whole run is stopped."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../server")]

from daemon import check, done, wait_until  # noqa: E402

# PLAN: {"NAME-DTYPE": {"step": s, "decode": s, "die" or "hang": the number of an input line (0:
# while loading), "slow": an action}}
PEER = r'''
import json, os, sys, time
a = sys.argv[1:]
dtype = a[a.index("--dtype") + 1] if "--dtype" in a else ""
name = a[0] if a[0] in ("diffusers", "openvino", "prepare-openvino") else "NAME"
plan = json.loads(os.environ["PLAN"]).get(f"{name}-{dtype}", {})
def fate(line):
    if plan.get("die") == line:
        sys.exit(3)
    if plan.get("hang") == line:
        time.sleep(1000)
fate(0)
print(json.dumps({"event": "loaded", "software": name + " 1.2", "precision": dtype}), flush=True)
with open(os.environ["PIDS"], "a") as f:
    f.write(f"{os.getpid()}\n")
for number, line in enumerate(sys.stdin, 1):
    fate(number)
    if plan.get("slow") == line.strip():
        time.sleep(1000)
    print(json.dumps({"seconds": plan.get(line.strip(), 1.0)}), flush=True)
'''
LATENTD = r'''
import os, sys
with open(os.environ["PIDS"] + ".generate", "a") as f:
    f.write(" ".join(sys.argv) + "\n")
sys.exit(os.environ.get("GENERATE_FAILS") or 0)
'''
# Runs the script with the fake worker instead of bench_peer.py.
SCRIPT = "import bench_cpu, sys; bench_cpu.WORKER = sys.argv.pop(1); sys.exit(bench_cpu.main())"
LIMIT = "10"  # seconds; enough to start Python on a busy machine
SCRATCH = tempfile.mkdtemp()
FIRST_STEP = 2  # lines: text, step, decode, then a step and a decode per round
SECOND_ROUND = 6


def pretend(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!{sys.executable}\n{text}\n")
    os.chmod(path, stat.S_IRWXU)
    return path


class Case:
    """One call of the script, in its own folder."""

    def __init__(self, plan, *arguments, **environment):
        self.folder = f = tempfile.mkdtemp(dir=SCRATCH)
        tool = pretend(f, "new/tests/reference/model_tool", PEER.replace("NAME", "latentd"))
        pretend(f, "old/tests/reference/model_tool", PEER.replace("NAME", "latentd-old"))
        latentd = pretend(f, "new/latentd", LATENTD)
        pretend(f, "old/latentd", LATENTD)
        worker = pretend(f, "worker", PEER.replace("NAME", "?"))
        for made in ("work/models/folder-f16/vae/config.json", "work/openvino/vae_decoder.xml"):
            pretend(f, made, "")
        self.pids = os.path.join(f, "pids")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, worker, "--tool", tool, "--latentd", latentd, "--work",
             f + "/work", "--out", f + "/out", "--rounds", "2", *arguments],
            env=dict(os.environ, PYTHONPATH=HERE, PLAN=json.dumps(plan), PIDS=self.pids, **environment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def path(self, ending):
        names = os.listdir(self.folder + "/out") if os.path.isdir(self.folder + "/out") else []
        found = [name for name in names if name.endswith(ending)]
        return os.path.join(self.folder, "out", found[0]) if found else None

    def report(self):
        """Returns the report on disk. If there is none, returns an empty report, with which
        every check fails."""
        path = self.path(".json")
        if not path:
            return {"results": [], "failures": [], "state": "no report", "generate": [], "bars": []}
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    def text(self):
        path = self.path(".md")
        if not path:
            return "no report"
        with open(path, encoding="utf-8") as f:
            return f.read()

    def wait(self):
        out, self.errors = self.process.communicate(timeout=120)
        return self.process.returncode, out

    def alive(self):
        """Returns the peers that are still running."""
        with open(self.pids, encoding="utf-8") as f:
            pids = f.read().split()
        out = []
        for pid in pids:
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                        out.append(int(pid))
            except FileNotFoundError:
                pass
        return out


def counts(report):
    """Returns {(peer, dtype): (steps, decodes)}: how many were timed."""
    return {(r["peer"], r["dtype"]): tuple(r[a]["count"] if r[a] else None for a in ("step", "decode"))
            for r in report["results"]}


def a_whole_run():
    plan = {"latentd-bf16": {"step": 2.0, "decode": 4.0}, "latentd-old-bf16": {"step": 3.0, "decode": 3.0},
            "diffusers-bf16": {"step": 5.0, "decode": 8.0}, "openvino-bf16": {"step": 4.0, "decode": 8.0},
            "openvino-f32": {"step": 4.0, "decode": 4.0},
            "latentd-f32": {"step": 2.0, "decode": 2.0}, "latentd-old-f32": {"step": 2.5, "decode": 1.0}}
    case = Case(plan)
    status, out = case.wait()
    report, text = case.report(), case.text()
    check(status == 0 and report["state"] == "complete", f"{status} {report['state']} {case.errors}")
    peers = ("latentd", "diffusers", "openvino")
    check(counts(report) == {(p, d): (2, 2) for p in peers for d in ("bf16", "f32")}, f"{counts(report)}")
    check([b["measured"] for b in report["bars"]][:2] == ["2.00x", "2.00x"], f"{report['bars']}")
    check("| diffusers bf16 | 2.50x | 2.00x |" in text and text in out, text)
    check("older build" not in text, "no older build")
    with open(case.pids + ".generate", encoding="utf-8") as f:
        words = f.read().split()
    tokenizer = words[words.index("--tokenizer") + 1] if "--tokenizer" in words else ""
    check(os.path.exists(os.path.join(tokenizer, "vocab.json")) and
          os.path.realpath(tokenizer).startswith(os.path.realpath(os.path.join(HERE, "../.."))),
          f"a tokenizer of the repository: {words}")

    case = Case(plan, "--peers", "latentd", "--old", os.path.join(case.folder, "old"))
    status, out = case.wait()
    report, text = case.report(), case.text()
    check(("latentd-old", "f32") in counts(report), f"{counts(report)} {case.errors}")
    for row in ("| bf16 | 1.50x (1.50 to 1.50) | 0.75x (0.75 to 0.75) |",
                "| f32 | 1.25x (1.25 to 1.25) | 0.50x (0.50 to 0.50) |"):
        check(row in text, f"{row}: {text}")
    check([g["peer"] for g in report["generate"]] == ["latentd", "latentd-old"], f"{report['generate']}")
    case = Case(plan, "--old", case.folder)
    check(case.wait()[0] == 2 and "holds no tests/reference/model_tool" in case.errors, case.errors)


def a_part_that_fails():
    no_picture = Case({}, "--peers", "latentd", GENERATE_FAILS="no such tokenizer")
    in_a_round = [(Case({"diffusers-bf16": fate}, "--limit", LIMIT), said)
                  for fate, said in (({"die": SECOND_ROUND}, "ended early"),
                                     ({"hang": SECOND_ROUND}, "a step had not ended after 10 s"))]
    slow = Case({"diffusers-bf16": {"slow": "step"}}, "--limit", LIMIT, "--dtypes", "bf16")

    status, _ = no_picture.wait()
    report = no_picture.report()
    check(status == 1 and counts(report) == {("latentd", d): (2, 2) for d in ("bf16", "f32")},
          f"the picture fails, the rest is kept: {counts(report)} {no_picture.errors[-300:]}")
    check(any("generate: ended with 1" in f for f in report["failures"]), f"{report['failures']}")

    for case, said in in_a_round:
        status, _ = case.wait()
        report = case.report()
        got = counts(report)
        check(status == 1 and got.get(("diffusers", "bf16")) == (1, 1), f"{said}: its first round: {got}")
        check(got.get(("openvino", "bf16")) == (2, 2) and got.get(("diffusers", "f32")) == (2, 2),
              f"{said}: the others go on: {got}")
        check(any("diffusers bf16" in f and said in f for f in report["failures"]), f"{report['failures']}")
        check(case.alive() == [], f"{said}: peers are left: {case.alive()}")

    slow.wait()
    report = slow.report()
    check(report["failures"] == [] and "| diffusers bf16 | over 10.00x | 1.00x |" in slow.text(),
          f"a first call over the limit is a bound and no failure: {report['failures']} {slow.text()}")
    check(counts(report).get(("diffusers", "bf16")) == (0, 2), f"{counts(report)}")

    case = Case({"diffusers-bf16": {"die": 0}, "openvino-bf16": {"die": FIRST_STEP}})
    status, _ = case.wait()
    got = counts(case.report())
    check(status == 1 and ("diffusers", "bf16") not in got, f"never loaded, no row: {got}")
    check(got.get(("openvino", "bf16")) == (None, None), f"loaded, but no step: {got}")
    check("| openvino 1.2 | bf16 | bf16 | - | - | - | - | - |" in case.text(), case.text())

    case = Case({"prepare-openvino-": {"die": 0}}, "--ir", SCRATCH + "/nothing")
    status, _ = case.wait()
    got = counts(case.report())
    check(status == 1 and ("openvino", "bf16") not in got and got.get(("diffusers", "f32")) == (2, 2),
          f"without its conversion the others go on: {got}")


def a_run_that_is_ended():
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        case = Case({"diffusers-f32": {"hang": 0}}, "--limit", "1000")
        want = {(p, "bf16"): (2, 2) for p in ("latentd", "diffusers", "openvino")}
        want["latentd", "f32"] = (0, 0)
        check(wait_until(lambda c=case: counts(c.report()) == want, 60), f"{how}: {counts(case.report())}")
        time.sleep(0.2)
        case.process.send_signal(how)
        status, _ = case.wait()
        report = case.report()
        check(counts(report) == want, f"{how.name}: all of it is on disk: {counts(report)}")
        if how == signal.SIGKILL:
            check("Not complete: it is being measured" in case.text(), case.text())
            for pid in case.alive():
                os.kill(pid, signal.SIGKILL)
            continue
        check(status == 130 and report["state"] == "it was interrupted", f"{status} {report['state']}")
        check("Not complete: it was interrupted" in case.text(), case.text())
        check(wait_until(lambda c=case: c.alive() == []), f"{how.name}: peers are left: {case.alive()}")


try:
    a_whole_run()
    a_part_that_fails()
    a_run_that_is_ended()
finally:
    shutil.rmtree(SCRATCH)
done()
