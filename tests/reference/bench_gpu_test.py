"""Tests scripts/bench-gpu without a GPU, on fake programs. A whole run writes its tables. A
program that hangs is killed with its children. A second call adds to the first call's report.
The report must also compute the right figures from planted times."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../server")]

import bench_gpu  # noqa: E402
import bench_gpu_pack  # noqa: E402
import bench_gpu_parts  # noqa: E402
import bench_gpu_report  # noqa: E402
import bench_gpu_shapes  # noqa: E402
from daemon import check, done  # noqa: E402

LATENTD = r'''
import json, struct, sys
a = sys.argv[1:]
def value(name, otherwise=None):
    return a[a.index(name) + 1] if name in a else otherwise
if a == ["--version"]:
    print("latentd 9.8.7")
elif a[0] == "tune":
    sys.stderr.write("latentd tune: gemm a|b: mma is wrong and will not be used: 3 of 4\n")
    print(json.dumps({"problems": [{"problem": "gemm a|b", "untuned_us": 30.0, "us": 20.0}]}))
elif a[0] == "bench":
    print(json.dumps({"parts": {
        "UNet step": {"median_s": 0.004, "flops": 1.6e12, "launches": 300},
        "VAE decode": {"median_s": 0.005, "flops": 2.5e12, "launches": 90}}}))
elif a[0] == "generate":
    count, seed = int(value("--num-images", "1")), int(value("--seed"))
    for turn in range(int(value("--repeat", "1"))):
        s = 9.0 if turn == 0 else (0.2 + 0.001 * turn) * count
        print(f"{s:.4f} s: text encoder 0.0010, UNet 0.1500 (50 calls), VAE 0.0100")
    print("Fake GPU: weights 2.000 GB, activations 0.300 GB, 2.800 GB in use by all processes")
    if value("--save-latents"):
        data = b"".join(struct.pack("<4f", *[seed + k + WHERE * k] * 4) for k in range(count))
        head = json.dumps({"latents": {"dtype": "F32", "shape": [count, 1, 2, 2],
                                       "data_offsets": [0, len(data)]}}).encode()
        open(value("--save-latents"), "wb").write(struct.pack("<Q", len(head)) + head + data)
'''
KCHECK = r'''
import os, sys, time
def value(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None
operation, planted = value("--operation"), os.environ.get("PLANTED", "add wrong").split()
if "--list" in sys.argv:
    print("add\nlinear\ngroup_norm")
elif "--facts" in sys.argv:
    print("device: Fake GPU, sm_90, code for sm_90, 132 multiprocessors")
    print("hopper tiles: TILES of 16")
elif operation:
    print(f"subject {operation} 3x5", flush=True)
    if value("--kernel") or operation != planted[0]:
        print("7 subjects checked, 0 failed\n" + f"3 shapes by \"{value('--kernel')}\"" * bool(value("--kernel")))
    elif planted[1] == "hangs":
        time.sleep(100)
    elif planted[1] == "faults":
        print("hang: block 1 0 0, warp 8, lane 0: the phase of parity 1 of the barrier at shared address 64 does not end")
        os._exit(1)
    else:
        print(f"FAIL {operation} 3x5: a planted one\n7 subjects checked, 1 failed")
        sys.exit(1)
elif "--bench" in sys.argv:
    print("peak of the device: bf16 700.0 TFLOP/s, memory 4000.0 GB/s")
    print("conv2d   3x3 2x64x64x320 to 320 bias bf16      0.0300 ms   503.32 TFLOP/s,  71.9 % of peak")
    print("attention  2x4096 to 4096 8 heads of 40 fused size 1 bf16    0.1000 ms   429.50 TFLOP/s")
'''
# Prints correct numbers, except for a planted fault: PLANTED is "WAY KIND".
MODEL_TOOL = r'''
import array, json, os, struct, sys
a = sys.argv[1:]
def value(name):
    return a[a.index(name) + 1] if name in a else None
way = ("no overlap" if os.environ.get("LATENTD_CUDA_OVERLAP") == "0" else
       "no clusters" if os.environ.get("LATENTD_CUDA_CLUSTERS") == "0" else
       "no graphs" if value("--graphs") == "off" else "graphs")
way, planted = way.replace(" ", "-"), os.environ.get("PLANTED", "none none").split()
numbers = array.array("f", range(1, 65))
if value("--device") == "cuda":
    sys.stderr.write("cuda:0: kernels for 12 shapes are chosen by measurement (tuner.txt)\n")
    if planted[0] == way and planted[1] == "race":
        sys.stderr.write("model_tool: call 30 of 101 has other bits than the first, from element 0 on\n")
        sys.exit(1)
    if planted[0] == way:
        numbers[0] += {"bits": 1e-5, "wrong": 100.0}[planted[1]]
head = json.dumps({"x": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
with open(value("--output"), "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + numbers.tobytes())
'''
SMI = r'''
case $1 in *name*) echo 'Fake GPU, 580.1, 143771 MiB, 1980 MHz' ;; *) echo 512 ;; esac
'''


def pretend(folder, name, text, interpreter=sys.executable):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!{interpreter}\n{text}\n")
    os.chmod(path, stat.S_IRWXU)
    return path


def programs(folder, where=0, tiles=16):
    pretend(folder, "latentd", LATENTD.replace("WHERE", str(where)))
    pretend(folder, "tests/kernels/kcheck", KCHECK.replace("TILES", str(tiles)))
    pretend(folder, "tests/train/trainer_test", "echo 3 losses differ by 0", "/bin/sh")
    pretend(folder, "tests/kernels/attention_test", "echo 4 passed, 0 failed", "/bin/sh")
    pretend(folder, "tests/kernels/gemm_test", "echo 4 passed, 0 failed", "/bin/sh")
    pretend(folder, "tests/reference/model_tool", MODEL_TOOL)
    pretend(folder, "bin/nvidia-smi", SMI, "/bin/sh")
    pretend(folder, "bin/compute-sanitizer", "echo '========= ERROR SUMMARY: 0 errors'", "/bin/sh")
    pretend(folder, "sd", "echo 'sampling completed, taking 2.50s'\n"
                          "echo 'decode_first_stage completed, taking 400 ms'", "/bin/sh")
    return folder


def pretend_model(work):
    """Makes the files of a checkpoint that are read without torch."""
    os.makedirs(os.path.join(work, "sd15"))
    for name in ("sd15/model_index.json", "sd15.safetensors"):
        with open(os.path.join(work, name), "w", encoding="utf-8"):
            pass
    for part in ("text_encoder", "unet", "vae"):
        shutil.copytree(os.path.join(bench_gpu.ROOT, "share/tiny-sd", part), os.path.join(work, "sd15", part),
                        ignore=shutil.ignore_patterns("*.safetensors"))


def whole_run(folder):
    build = programs(os.path.join(folder, "build"))
    work, out = os.path.join(folder, "work"), os.path.join(folder, "out")
    pretend_model(work)
    environment = dict(os.environ, PATH=os.path.join(build, "bin") + os.pathsep + os.environ["PATH"])

    def call(*more, planted=None):
        begun = time.monotonic()
        if planted:
            environment["PLANTED"] = planted
        else:
            environment.pop("PLANTED", None)
        r = subprocess.run(
            [sys.executable, os.path.join(HERE, "bench_gpu.py"), "--build", build, "--work", work,
             "--out", out, "--sdcpp", os.path.join(build, "sd"), *more], capture_output=True, text=True,
            env=environment, timeout=500)
        with open(os.path.join(out, "gpu-fake-gpu.json"), encoding="utf-8") as f:
            text = f.read()
        check("Infinity" not in text and "NaN" not in text, "numbers that JSON has")
        return r, json.loads(text), time.monotonic() - begun

    r, report, _ = call("--parts", "device,tune")
    check(list(report["parts"]) == ["device", "tune"], f"only the parts asked for: {r.stdout}")
    check(report["parts"]["tune"]["wrong_candidates"] and r.returncode == 0, f"{report['parts']}")
    r, report, took = call("--resume")
    parts = report["parts"]
    check(r.returncode == 1 and "planted" in parts["kcheck"]["wrong"], f"{r.stderr} {parts['kcheck']}")
    check(set(parts) == set(bench_gpu_parts.PARTS), f"every part is in the report: {list(parts)}")
    check("tune:" not in r.stdout, "what was done is not done again")
    for name in ("parity", "eager", "compiled"):
        check("skipped" in parts[name], f"{name} without torch or its GPU: {parts[name]}")
    check(parts["tiny"]["places_with_other_bits"] == [] and "wrong" not in parts["tiny"], "same bits")
    check(parts["sanitize"]["summary"].startswith("30 of 30 clean"), f"{parts['sanitize']}")
    check(parts["sdcpp"]["image_50_s"] == 2.7, f"{parts['sdcpp']}")
    got = {(row["name"], row["unit"]): (row["measured"], row["reached"]) for row in report["targets"]}
    check(got["T1a", "s"][1] == "target" and abs(got["T1a", "s"][0] - 0.2045) < 1e-3, f"{got}")
    check(got["T2", "ms"] == (4.0, "target") and got["T9", ""] == (300, "target"), f"{got}")
    check(got["T13", "GB"][0] == 0 or got["T13", "GB"][1] == "not measured", f"{got['T13', 'GB']}")
    check(got["T1", "x"][1] == "not measured", "no peer, no ratio")
    with open(os.path.join(out, "gpu-fake-gpu.md"), encoding="utf-8") as f:
        text = f.read()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    check(all(line.endswith("|") for line in rows) and "4e+00 ms" not in text, "a table")
    print(f"a whole run on programs that pretend: {len(parts)} parts, {took:.1f} s")
    with tarfile.open(os.path.join(out, "gpu-fake-gpu-logs.tar.xz")) as tar:
        names = tar.getnames()
    check(sum("-tune.err" in name for name in names) == 1 and any("-smoke.out" in name for name in names),
          f"what every program said is kept: {names[:20]}")
    planted_faults(call)
    the_end_of_a_lease(call, work)
    programs(build, tiles=0)
    r, report, _ = call("--parts", "device")
    check("0 Hopper candidates" in report["parts"]["device"]["wrong"] and r.returncode == 1, f"{r.stdout}")
    programs(build, where=1)
    r, report, _ = call("--parts", "tiny")
    check("wrong" in report["parts"]["tiny"] and r.returncode == 1, "other bits in a batch are found")
    check(set(report["parts"]) == {"device", "tiny"}, "another build begins a new report")


def planted_faults(call):
    """Each planted fault is reported by name, and everything else in its part is measured."""
    for part, planted, words, others in (
            ("smoke", "linear hangs", ("linear hangs at linear 3x5",), 8),
            ("smoke", "linear faults", ("linear faults at linear 3x5", "block 1 0 0, warp 8", "parity 1"), 8),
            ("smoke", "group_norm wrong", ("group_norm is wrong 1 failures", "a planted one"), 8),
            ("tuned", "graphs race", ("unet, graphs: call 30 of 101 has other bits",), 9),
            ("tuned", "no-overlap bits", ("unet, no overlap: other bits than with graphs",), 9),
            ("tuned", "no-clusters bits", (), 12), ("tuned", "no-graphs wrong", ("text, no graphs: error ",), 9)):
        r, report, took = call("--parts", part, "--patience", "0.3", planted=planted)
        found = report["parts"][part]
        said = found.get("wrong", "")
        check(all(word in said for word in words) and bool(words) == bool(said), f"{planted}: {said}")
        if part == "smoke":
            right = sum(run["verdict"] == "right" for run in found["runs"].values())
        else:
            right = 12 - sum(len({line.split(":")[0] for line in c["wrong"]})
                             for c in found["components"].values())
        check(right == others, f"{planted}: {right} right: {found}")
        check(r.returncode == (1 if words else 0) and took < 60, f"{planted}: {r.returncode} after {took:.0f} s")
        print(f"{part}, planted {planted}: {said[:150] or 'nothing is wrong'}; {right} others right")


def the_end_of_a_lease(call, work):
    """The machine is lost while a part runs. The next call reports that part as cut off, and a
    later one runs it again."""
    state = os.path.join(work, "results.json")
    with open(state, encoding="utf-8") as f:
        content = json.load(f)
    for name in ("smoke", "tuned"):
        content["parts"].pop(name)
    with open(state, "w", encoding="utf-8") as f:
        json.dump(dict(content, now="smoke"), f)
    r, report, _ = call("--parts", "device", "--resume")
    check("ended while it ran" in report["parts"]["smoke"]["failed"], f"{report['parts']['smoke']}")
    r, report, _ = call("--resume", "--minutes", "0")
    check("skipped for want of time: " in r.stdout and "tuned" in r.stdout.rsplit("skipped", 1)[1], r.stdout)
    r, report, _ = call("--resume")
    check("wrong" not in report["parts"]["tuned"] and "add is wrong" in report["parts"]["smoke"]["wrong"],
          f"{report['parts']['smoke']}")
    print("a lease that ends: said of the part it cut off, and resumed")


class Stuck:
    """Imitates a process that hangs in the driver, where no signal ends it."""
    args, pid = ["kcheck", "--device", "cuda"], 0

    def wait(self, timeout):
        raise subprocess.TimeoutExpired(self.args, timeout)


def stuck(folder):
    options = types.SimpleNamespace(minutes=1, work=os.path.join(folder, "s"), build=folder, bundle=None,
                                    wheels=None, emulated=False, patience=None)
    bench = bench_gpu.Bench(options)
    bench.start = lambda *_, **__: Stuck()
    kill, bench_gpu.kill_group, bench_gpu.END_S = bench_gpu.kill_group, lambda process: None, 0.1
    try:
        bench_gpu_parts.PARTS["stuck"] = lambda bench: dict(zip(("status", "text", "error"), bench.run("x", limit=1)))
        part = bench_gpu.run_part(bench, "stuck")
    finally:
        bench_gpu.kill_group = kill
        bench_gpu_parts.PARTS.pop("stuck")
    check(part["status"] == 124 and "kcheck --device cuda" in part["failed"], f"{part}")
    print(f"a process that no signal ends: {part['failed']}")


def hang(folder):
    pid = os.path.join(folder, "pid")
    # A shell script, because a shell starts quickly even on a busy machine. It sleeps for 100 s,
    # far longer than the limit of 5 s.
    pretend(folder, "hangs", f"sleep 100 &\necho $! > {pid}\necho so far\nwait", "/bin/sh")
    options = types.SimpleNamespace(minutes=1, work=os.path.join(folder, "w"), build=folder,
                                    bundle=None, wheels=None, emulated=False, patience=None)
    bench = bench_gpu.Bench(options)
    begun = time.monotonic()
    status, text, error = bench.run(bench.program("hangs"), limit=5)
    took = time.monotonic() - begun
    check(status == 124 and "so far" in text and "cut short" in error, f"{status} {text} {error}")
    check(took < 60, f"a program that hangs took {took:.1f} s")
    time.sleep(0.2)
    with open(pid, encoding="utf-8") as f:
        state = f"/proc/{f.read().strip()}/stat"
    alive = os.path.exists(state)
    if alive:
        with open(state, encoding="utf-8") as f:
            alive = f.read().split()[2] not in "ZX"
    check(not alive, "its child is ended with it")
    options.minutes = 0
    check(bench_gpu.run_part(bench, "kcheck") == {"not_run": "no time was left"}, "the time limit")


def report_of_figures():
    parts = {
        "bench": {"parts": {"UNet step": {"median_s": 0.0036, "flops": 1.6065e12, "launches": 255},
                            "VAE decode": {"median_s": 0.0059}}},
        "pictures": {"cold_s": 3.5, "memory": {"peak_bytes": 2.65e9}, "runs": [
            {"dtype": "bf16", "images": 1, "steps": 50, "median_s": 0.2},
            {"dtype": "bf16", "images": 8, "steps": 50, "median_s": 1.25}]},
        "compiled": {"image_50_s": 0.5, "images8_50_s": 2.0, "decode_s": 0.0118},
        "eager": {"image_50_s": 0.6},
        "kernels": bench_gpu_shapes.parse(
            "attention   2x4096 to 4096 8 heads of 40 fused size 1 bf16  0.10 ms  430.0 TFLOP/s\n"
            "conv2d  3x3 2x64x64x320 to 320 bias bf16   0.030 ms   503.3 TFLOP/s,  71.9 % of peak\n"
            "conv2d  3x3 down 2x64x64x320 to 320 bf16   0.020 ms   100.0 TFLOP/s\n"
            "conv2d  1x1 2x64x64x960 to 320 bias bf16   0.020 ms   100.0 TFLOP/s\n"
            "3 subjects\n"),
        "tune": {"failed": "a | b\nc"},
    }
    bench_gpu_shapes.join(parts["kernels"], {"times": {
        "attention 2x4096 to 4096 8 heads of 40 fused size 1 bf16": {"ms": 0.15, "by": "SDPA"},
        "conv2d 3x3 2x64x64x320 to 320 bias bf16": {"ms": 0.060, "by": "cuDNN"},
        "conv2d 3x3 down 2x64x64x320 to 320 bf16": {"ms": 0.010, "by": "cuDNN"},
        "conv2d 1x1 2x64x64x960 to 320 bias bf16": {"ms": 9.0, "by": "cuDNN"}}})
    rows = bench_gpu_report.targets(parts)
    got = [(row["name"], None if row["measured"] is None else round(row["measured"], 3),
            row["reached"]) for row in rows]
    want = [("T1", 2.5, "stretch"), ("T1a", 0.2, "target"), ("T2", 3.6, "stretch"),
            ("T2", 446.25, "stretch"), ("T3", 6.4, "stretch"), ("T3", 1.6, "target"),
            ("T4", 3.0, "ship"), ("T5", None, "not measured"), ("T6", 5.9, "target"),
            ("T6", 2.0, "ship"), ("T7", 430.0, ""), ("T7", 1.5, "target"), ("T8", 1.0, "ship"),
            ("T9", 255, "stretch"), ("T12", 3.5, "ship"), ("T13", 2.65, "target"),
            ("", None, "not measured")]
    for a, b in zip(got, want):
        check(a == b, f"{a}, not {b}")
    check(len(got) == len(want), "every target")
    text = bench_gpu_report.markdown({"name": "x"}, parts, False)
    check(r"failed: a \| b c" in text, "what a program says cannot break the table")
    check(bench_gpu_report.clean({"a": [float("inf"), 1.5, float("nan")]}) ==
          {"a": ["inf", 1.5, "nan"]}, "no numbers that JSON lacks")
    for name, kind in (("linear 2x77x768x768 bias residual bf16", "linear"),
                       ("conv2d 3x3 down right 1x512x512x128 to 128 f16", "conv2d"),
                       ("group_norm 2x64x64x320 in 32 silu mean 0 bf16", "norm"),
                       ("attention 2x77x to 77", None), ("add 3x5 bf16", None)):
        found = bench_gpu_shapes.understand(name)
        check((found and found["kind"]) == kind, f"{name}: {found}")
    print(f"{len(want)} targets on planted figures")


def limit_of_a_bundle(folder):
    """A bundle that is too large is refused and deleted."""
    build = programs(os.path.join(folder, "large"))
    wheels = os.path.join(folder, "wheels")
    os.makedirs(wheels)
    with open(os.path.join(wheels, "large.whl"), "wb") as f:
        f.write(os.urandom(5 << 20))
    pretend(folder, "bin/ninja", "", "/bin/sh")
    pretend(folder, "bin/ldd", "echo 'libc.so.6 => /lib/libc.so.6 (0x0)'", "/bin/sh")
    path, old = os.path.join(folder, "f.tar.xz"), (os.environ["PATH"], bench_gpu_pack.LIMIT_MIB)
    files, bench_gpu_pack.FILES = bench_gpu_pack.FILES, ("scripts/bench-gpu",)
    os.environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + old[0]
    options = types.SimpleNamespace(file=path, build=build, wheels=wheels, archs="90a", emulated=True)
    try:
        check(bench_gpu_pack.pack(options) == 0 and os.path.exists(path), "a small one is kept")
        unpacked = bench_gpu_pack.unpack(path, folder)
        check(os.path.exists(os.path.join(unpacked, bench_gpu_pack.MARK)) and
              os.access(os.path.join(unpacked, "latentd"), os.X_OK), "what is packed can be run")
        os.remove(path)
        bench_gpu_pack.LIMIT_MIB = 1
        check(bench_gpu_pack.pack(options) == 1 and not os.path.exists(path), "a large one is not")
    finally:
        os.environ["PATH"], bench_gpu_pack.LIMIT_MIB = old
        bench_gpu_pack.FILES = files


def files_of_the_bundle():
    """Every module that the scripts import is in the bundle."""
    for name in bench_gpu_pack.FILES:
        check(os.path.exists(os.path.join(bench_gpu.ROOT, name)), f"{name} is there")
        if name.endswith(".py"):
            with open(os.path.join(bench_gpu.ROOT, name), encoding="utf-8") as f:
                needs = re.findall(r"^\s*(?:import|from) (\w+)", f.read(), re.M)
            for need in needs:
                path = f"tests/reference/{need}.py"
                check(path in bench_gpu_pack.FILES or
                      not os.path.exists(os.path.join(bench_gpu.ROOT, path)), f"{name} needs {path}")


with tempfile.TemporaryDirectory() as temporary:
    whole_run(temporary)
    hang(temporary)
    stuck(temporary)
    limit_of_a_bundle(temporary)
report_of_figures()
files_of_the_bundle()
done()
