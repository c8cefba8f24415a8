"""scripts/stages: a stage that fails or hangs is reported by name, all processes that it started
are ended, and the other stages run."""
import os
import signal
import subprocess
import sys
import tempfile
import time

passed = failed = 0


def check(condition, what):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    if not condition:
        print("FAIL:", what)


def run(text, **variables):
    begin = time.monotonic()
    r = subprocess.run(["bash", "-uo", "pipefail", "-c", ". scripts/stages\n" + text + "\nstages_end"],
                       capture_output=True, text=True, timeout=100, env=dict(os.environ, **variables))
    return r.returncode, r.stdout.splitlines(), time.monotonic() - begin


def is_gone(path):
    """Whether the process whose number is in the file has ended."""
    with open(path, encoding="utf-8") as f:
        number = f.read().strip()
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_until(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return condition()


status, lines, _ = run("stage one 60 echo hello\nstage two 60 true")
check(status == 0 and [line.split(",")[-1] for line in lines] == ["== one", "hello", " ok", "== two", " ok"],
      f"{lines}")
check(lines[2].startswith("== one: ") and " s, " in lines[2],
      f"the line shows the stage's seconds: {lines}")
with tempfile.TemporaryDirectory() as folder:
    # A grandchild process that would outlive its parent for a long time.
    hang = f"bash -c 'sleep 1000 & echo $! >{folder}/pid; wait'"
    status, lines, took = run(f"stage hangs 1 {hang}\nstage fails 60 sh -c 'exit 7' || echo next\nstage runs 60 true")
    check(status == 1 and lines[-2:] == ["failed: hangs: over its limit of 1 s", "failed: fails: failed with 7"],
          f"{lines}")
    check("next" in lines and any(line.startswith("== runs") for line in lines),
          f"the stages after a failed one run: {lines}")
    check(took < 60, f"{took:.0f} s for a limit of 1")
    check(wait_until(lambda: is_gone(folder + "/pid")),
          "a stage over its limit leaves no process behind")
    os.remove(folder + "/pid")
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(["bash", "-uc", f". scripts/stages\nstage hangs 1000 {hang}\nstage next 60 true"],
                              stdout=subprocess.PIPE, text=True) as p:
            check(wait_until(lambda: os.path.exists(folder + "/pid") and os.path.getsize(folder + "/pid")),
                  "the stage has started its process")
            p.send_signal(number)
            out = p.communicate(timeout=60)[0]
        check(p.returncode == 130 and "next" not in out,
              f"{number.name} ends all stages: {p.returncode} {out}")
        check(wait_until(lambda: is_gone(folder + "/pid")),
              f"{number.name}: an ended stage leaves no process behind")
        os.remove(folder + "/pid")
    r = run("stage asks 60 sh -c 'kill -INT $$; echo alive'")
    check("alive" not in r[1], f"SIGINT is not ignored: {r[1]}")
    status, lines, _ = run("stage 'a/b c' 60 sh -c 'echo said'\nstage bad 60 sh -c 'echo why; exit 1'",
                           stage_logs=folder)
    check(len(lines) == 4 and lines[0].startswith("== a/b c: ") and lines[2] == "why",
          f"a quiet stage prints its name, its reason and its result: {lines}")
    with open(folder + "/a-b-c.log", encoding="utf-8") as f:
        check(f.read() == "said\n", "the stage's output is in its log")
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
