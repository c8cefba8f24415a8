"""scripts/bench-gpu without a GPU: on programs that only pretend, whole runs leave their tables; a
program that hangs is cut short with its children; a second call adds to the first. And the sums of
the report on planted figures."""

import json
import os
import re
import stat
import subprocess
import sys
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
import sys
if "--bench" in sys.argv:
    print("peak of the device: bf16 700.0 TFLOP/s, memory 4000.0 GB/s")
    print("conv2d   3x3 2x64x64x320 to 320 bias bf16      0.0300 ms   503.32 TFLOP/s,  71.9 % of peak")
    print("attention  2x4096 to 4096 8 heads of 40 fused size 1 bf16    0.1000 ms   429.50 TFLOP/s")
else:
    print("FAIL add 3x5: a planted one")
    print("7 subjects checked, 1 failed")
    sys.exit(1)
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


def programs(folder, where=0):
    pretend(folder, "latentd", LATENTD.replace("WHERE", str(where)))
    pretend(folder, "tests/kernels/kcheck", KCHECK)
    pretend(folder, "tests/kernels/attention_test", "echo 4 passed, 0 failed", "/bin/sh")
    pretend(folder, "tests/kernels/gemm_test", "echo 4 passed, 0 failed", "/bin/sh")
    pretend(folder, "tests/reference/model_tool", "raise SystemExit('no')")
    pretend(folder, "bin/nvidia-smi", SMI, "/bin/sh")
    pretend(folder, "bin/compute-sanitizer", "echo '========= ERROR SUMMARY: 0 errors'", "/bin/sh")
    pretend(folder, "sd", "echo 'sampling completed, taking 2.50s'\n"
                          "echo 'decode_first_stage completed, taking 400 ms'", "/bin/sh")
    return folder


def whole_run(folder):
    build = programs(os.path.join(folder, "build"))
    work, out = os.path.join(folder, "work"), os.path.join(folder, "out")
    os.makedirs(os.path.join(work, "sd15"))
    for name in ("sd15/model_index.json", "sd15.safetensors"):  # so that no torch is needed
        with open(os.path.join(work, name), "w", encoding="utf-8"):
            pass
    environment = dict(os.environ, PATH=os.path.join(build, "bin") + os.pathsep + os.environ["PATH"])

    def call(*more):
        begun = time.monotonic()
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
    programs(build, where=1)
    r, report, _ = call("--parts", "tiny")
    check("wrong" in report["parts"]["tiny"] and r.returncode == 1, "other bits in a batch are found")
    check(set(report["parts"]) == {"device", "tiny"}, "another build begins a new report")


def hang(folder):
    pid = os.path.join(folder, "pid")
    # A shell, which is up at once on a busy machine too, and a limit far below its 100 seconds.
    pretend(folder, "hangs", f"sleep 100 &\necho $! > {pid}\necho so far\nwait", "/bin/sh")
    options = types.SimpleNamespace(minutes=1, work=os.path.join(folder, "w"), build=folder,
                                    bundle=None, wheels=None, emulated=False)
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
    """Too large a bundle is refused and not kept."""
    build = programs(os.path.join(folder, "large"))
    wheels = os.path.join(folder, "wheels")
    os.makedirs(wheels)
    with open(os.path.join(wheels, "large.whl"), "wb") as f:
        f.write(os.urandom(2 << 20))
    pretend(folder, "bin/ninja", "", "/bin/sh")
    pretend(folder, "bin/ldd", "echo 'libc.so.6 => /lib/libc.so.6 (0x0)'", "/bin/sh")
    path, old = os.path.join(folder, "f.tar.xz"), (os.environ["PATH"], bench_gpu_pack.LIMIT_MIB)
    files, bench_gpu_pack.FILES = bench_gpu_pack.FILES, ("scripts/bench-gpu",)
    os.environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + old[0]
    options = types.SimpleNamespace(file=path, build=build, wheels=wheels, archs="90a")
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
    """Every module that the scripts import is carried."""
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
    limit_of_a_bundle(temporary)
report_of_figures()
files_of_the_bundle()
done()
