"""All programs use one file of choices. kcheck and model_tool use what `latentd tune` measured,
and say so. Once a kernel has changed, all three programs refuse the file and name that
kernel. usage: choices.py LATENTD KCHECK MODEL_TOOL CHECKPOINT"""
import os
import re
import subprocess
import sys
import tempfile
import time

latentd, kcheck, model_tool, checkpoint = sys.argv[1:]
folder = tempfile.mkdtemp()
cache = os.path.join(folder, "tuner.txt")
environment = dict(os.environ, LATENTD_TUNER_CACHE=cache)
failed = 0


def check(right, what):
    global failed
    failed += not right
    print(("" if right else "FAIL: ") + what)


def said(*command):
    """Returns what the program prints to standard error. model_tool may fail early, because its
    input file is not valid."""
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500).stderr


TUNE = (latentd, "tune", "--model", checkpoint, "--device", "cuda", "--dtype", "bf16", "--width", "64", "--height", "64")


def tune_until_it_keeps():
    """Runs the tuner until it has stored choices, then kills it: on the emulator, trying
    everything takes hours."""
    with subprocess.Popen(TUNE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        begun = time.monotonic()
        while not os.path.exists(cache) and process.poll() is None and time.monotonic() - begun < 250:
            time.sleep(0.1)
        process.kill()


def programs():
    yield "kcheck", said(kcheck, "--device", "cuda", "--quick", "--seed", "1", "--operation", "add")
    yield "model_tool", said(model_tool, "--model", checkpoint, "--dtype", "bf16", "--device", "cuda", "--component",
                             "text", "--input", os.devnull, "--output", os.path.join(folder, "out"))


tune_until_it_keeps()
with open(cache, encoding="utf-8") as f:
    lines = f.read().splitlines()
check(len(lines) > 2, f"latentd tune kept {len(lines) - 2} choices")
for name, text in programs():
    found = re.search(r"kernels for (\d+) shapes are chosen by measurement \((.*)\)", text)
    check(bool(found) and found.groups() == (str(len(lines) - 2), cache),
          f"{name}: {found[0] if found else text[:500]}")
ours = re.search(r"gemm_mma\.cu [0-9a-f]{8}", lines[0])[0]
lines[0] = lines[0].replace(ours, "gemm_mma.cu 01234567")
with open(cache, "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
refusal = f"{cache}: ignored, it was measured with gemm_mma.cu 01234567; this is {ours}"
for name, text in (*programs(), ("latentd tune", said(*TUNE, "--minutes", "0.001"))):
    check(refusal in text, f"{name}: {refusal if refusal in text else text[:500]}")
    check("shapes are chosen by measurement" not in text, f"{name} uses none of it")
sys.exit(failed != 0)
