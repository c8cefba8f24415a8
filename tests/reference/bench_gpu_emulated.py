"""Runs scripts/bench-gpu from pack to report on the emulated device, in its short form: once
unchanged, then with one planted fault at a time. The report must name the fault. usage:
bench_gpu_emulated.py BUILD"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../server")]

from daemon import check, done  # noqa: E402

build = os.path.abspath(sys.argv[1])
SCRIPT = os.path.join(HERE, "bench_gpu.py")
# Three operations of different families, each with its default kernels and with every kind that can
# be forced.
OPERATIONS = "add,layer_norm,group_norm"
environment = dict(os.environ, CUDA_EMULATOR_CAPABILITY="90", CUDA_EMULATOR_SEED="1")
environment.pop("LATENTD_TUNER_CACHE", None)


class Lease:
    """A work folder, and the calls of the script in it."""

    def __init__(self, folder, bundle):
        self.out = os.path.join(folder, "out")
        self.command = [sys.executable, SCRIPT, "--bundle", bundle, "--emulated", "--work", os.path.join(folder, "work"),
                        "--out", self.out, "--minutes", "60", "--operations", OPERATIONS]

    def report(self):
        with open(os.path.join(self.out, "gpu-emulated.json"), encoding="utf-8") as f:
            return json.load(f)["parts"]

    def call(self, *more, **planted):
        """Runs the script. Returns (exit status, the report's parts, seconds)."""
        begun = time.monotonic()
        r = subprocess.run([*self.command, *more], capture_output=True, text=True, timeout=900,
                           env=dict(environment, **planted))
        took = time.monotonic() - begun
        check(os.path.exists(os.path.join(self.out, "gpu-emulated-logs.tar.xz")), "the logs are kept")
        if r.returncode not in (0, 1):
            check(False, f"{r.returncode}: {r.stderr[-800:]}")
        return r.returncode, self.report(), took


def wrong_of(part):
    return part.get("wrong", part.get("failed", ""))


def without_a_fault(lease):
    status, parts, took = lease.call("--parts", "smoke,tune,tuned", "--components", "text,unet", "--patience", "4")
    for name in ("device", "smoke", "tune", "tuned"):
        print(f"{name}: {parts[name].get('seconds')} s, {parts[name].get('summary', '')[:300]}")
        check(not wrong_of(parts[name]), f"{name}: {wrong_of(parts[name])}")
    check(status == 0, f"{status}")
    facts = parts["device"]["facts"]
    check(any(line.startswith("hopper tiles: 16 of 16") for line in facts), f"{facts[:4]}")
    check(any("in clusters of 16" in line for line in facts), f"{len(facts)} facts")
    trials = [trial for p in parts["tune"]["problems"] for trial in p["trials"]]
    check(trials and all("us" in t and "error" in t for t in trials if t["state"] == "right"), f"{len(trials)} trials")
    for name, component in parts["tuned"]["components"].items():
        check(len(component["errors"]) == 4 and component["choices"], f"{name}: {component}")
    print(f"as it is: {took:.0f} s, {len(trials)} candidates timed")


def with_a_fault(lease):
    for part, planted, words, right in (
            ("smoke", {"CUDA_EMULATOR_PLANT": "hang,layer_norm,1"}, ("layer_norm hangs at layer_norm ",), "add"),
            ("smoke", {"CUDA_EMULATOR_FAIL": "cudaLaunchKernelEx,2,700,sticky"}, ("faults at ", "cudaErrorIllegalAddress"),
             None),
            ("tuned", {"CUDA_EMULATOR_PLANT": "wrong,layer_norm,30"}, ("other bits than",), None),
            ("tuned", {"CUDA_EMULATOR_PLANT": "wrong,layer_norm,1,tuned"}, ("error ",), None)):
        patience = "1" if "hang" in str(planted) else "4"
        status, parts, took = lease.call("--parts", part, "--components", "text", "--patience", patience, **planted)
        said = wrong_of(parts[part])
        check(status == 1 and all(word in said for word in words), f"{planted}: {said[:600]}")
        if part == "smoke" and right:
            check(parts[part]["runs"][right]["verdict"] == "right", f"{parts[part]['runs']}")
        print(f"{part} with {planted}: {took:.0f} s, {said[:200]}")


def a_lease_that_ends(lease):
    """The script is ended while a part runs. The next call reports that part as cut off, and a
    later one runs it again."""
    process = subprocess.Popen([*lease.command, "--parts", "smoke"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=dict(environment, CUDA_EMULATOR_PLANT="hang,layer_norm,1"))
    state = os.path.join(lease.command[lease.command.index("--work") + 1], "results.json")
    begun = time.monotonic()
    while time.monotonic() - begun < 120:
        with open(state, encoding="utf-8") as f:
            if json.load(f).get("now") == "smoke":
                break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    check(process.wait(timeout=60) == 143, f"{process.returncode}")
    os.remove(os.path.join(lease.out, "gpu-emulated.json"))
    status, parts, _ = lease.call("--parts", "device", "--resume")
    check("ended while it ran" in wrong_of(parts["smoke"]), f"{parts['smoke']}")
    status, parts, took = lease.call("--parts", "smoke,tuned", "--components", "text", "--resume")
    check(status == 0 and not wrong_of(parts["smoke"]), f"{status}: {parts['smoke']}")
    print(f"a lease that ends: named, and resumed in {took:.0f} s")


with tempfile.TemporaryDirectory() as temporary:
    bundle, wheels = os.path.join(temporary, "bench.tar.xz"), os.path.join(temporary, "wheels")
    os.makedirs(wheels)
    packed = subprocess.run([sys.executable, SCRIPT, "pack", bundle, "--build", build, "--wheels", wheels, "--emulated"],
                            capture_output=True, text=True, timeout=900)
    check(packed.returncode == 0, packed.stderr[-500:])
    print(packed.stdout.strip().splitlines()[-1:])
    lease = Lease(temporary, bundle)
    without_a_fault(lease)
    with_a_fault(lease)
    a_lease_that_ends(lease)
done()
