"""The real program on the bundled checkpoint: the figures that latentd bench promises in its
JSON, for every dtype of the CPU, and what --quiet still prints. usage: program.py EXECUTABLE
MODEL"""
import json
import os
import subprocess
import sys
import tempfile

from daemon import check, done

executable, model = sys.argv[1:3]


def bench():
    for dtype in ("f32", "bf16"):
        r = subprocess.run([executable, "bench", "--model", model, "--device", "cpu", "--dtype", dtype,
                            "--width", "64", "--height", "64", "--steps", "1", "--json"],
                           capture_output=True, text=True, timeout=500)
        check(r.returncode == 0, r.stderr)
        report = json.loads(r.stdout)
        used, level = report["implementations"], report["implementations"]["level"]
        bf16 = dtype == "bf16" and level in ("amx", "avx512_bf16")
        check(report["activation_dtype"] == ("bf16" if bf16 else "f32") and
              used["linear"] == ("oneDNN, bf16" if bf16 else "f32"), f"{report['activation_dtype']}, {used}")
        check(report["dtype"] == dtype and report["width"] == report["height"] == 64, f"{report}")
        # Rows of a batch are computed one at a time, so a matrix product is large only if its
        # single row is large.
        rows, tokens, channels = report.get("matmul_peak_shape", [0, 0, 0])
        check(rows == 1 and tokens >= 1024 and channels >= 1024, f"{dtype}: a product of {rows} x {tokens}")
        check(report["matmul_peak_flops_per_s"] > 0, f"{report}")
        for name, part in report["parts"].items():
            share = part["share_of_peak"]
            rate = part["flops"] / part["median_s"]
            check(abs(part["flops_per_s"] - rate) <= 1e-6 * rate, f"{name}: {part}")
            check(share is None or 0 < share <= 1, f"{dtype} {name}: {share} of the peak")
            check((share is None) == (rate > report["matmul_peak_flops_per_s"]), f"{dtype} {name}: {part}")
        shares = {name: part["share_of_peak"] for name, part in report["parts"].items()}
        print(f"{dtype}: {report['matmul_peak_flops_per_s'] / 1e9:.0f} GFLOP/s, {shares}")


def quiet():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.png")
        r = subprocess.run([executable, "generate", "--model", model, "--device", "cpu", "--steps", "1",
                            "--width", "64", "--height", "64", "--prompt", "a boat", "-o", path, "-q"],
                           capture_output=True, text=True, timeout=500)
        check((r.returncode, r.stdout, r.stderr) == (0, "", ""), f"{r}")
        check(os.path.getsize(path) > 1000, "a picture")


bench()
quiet()
done()
