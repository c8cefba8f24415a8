"""Checks the output of ptxas for every kernel (-Xptxas -v): no spill, no warning, every
architecture.

usage: ptxas.py ARCHS LOG...    ARCHS: "75,80,90a"; a build without nvcc gives no log
Prints the registers of the largest kernels; exits with 1 if a rule is broken, 77 if there is
nothing to read.
"""
import os
import re
import sys

archs, logs = sys.argv[1].split(","), sys.argv[2:]
if not logs:
    print("this build has no nvcc, so no kernel was compiled for a GPU")
    sys.exit(77)

offences, kernels = [], {}
for path in logs:
    name = os.path.basename(path)
    function = arch = None
    for line in open(path, encoding="utf-8", errors="replace"):
        if entry := re.search(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", line):
            function, arch = entry.groups()
            kernels[function, arch] = 0
        elif "warning" in line.lower() or "instructions are serialized" in line:
            offences.append(f"{name}: {line.strip()}")
        elif spill := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if spill.groups() != ("0", "0") and function:
                offences.append(f"{name}: sm_{arch} {function}: {spill.group(0)}")
        elif used := re.search(r"Used (\d+) registers", line):
            if function:
                kernels[function, arch] = int(used.group(1))

for arch in archs:
    count = sum(1 for _, built in kernels if built == arch)
    largest = max((n for (_, built), n in kernels.items() if built == arch), default=0)
    print(f"sm_{arch}: {count} kernels, at most {largest} registers")
    if not count:
        offences.append(f"sm_{arch}: no kernel was compiled for it")
print("\n".join(offences) or f"{len(kernels)} kernels of {len(logs)} files: no spill, no warning")
sys.exit(1 if offences else 0)
