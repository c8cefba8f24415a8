"""Checks the machine code of kernels whose speed depends on the order of a few instructions
(sm_90a).

usage: machine_code.py FILE.cu.o...    of nvcc; a build without it gives none
Exits with 1 if a rule is broken, or with 77 and a reason if there is no code or no cuobjdump.

 - attention: exponentials are computed between the wait for the scores and the wait for the sums,
   so that they overlap with the sums;
 - products: at a block's end, all loads are issued before the first is used (with GEGLU there are
   no loads). Only a kernel that shares its part of a sum with the blocks of a cluster waits for the
   whole chip's memory, twice; it issues eight loads from those blocks before it uses the first;
 - norms: all loads of a block's first turn are issued before the first is used: eleven words, the
   value that is subtracted from the others, gamma and beta; a norm in pieces issues at least four
   loads;
 - no kernel has grown much: code of hundreds of kilobytes does not stay in a cache.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

# The most instructions that a kernel may have, about a fifth above the sizes seen. The first
# pattern that matches the kernel's name counts.
CEILINGS = [
    (r"gemm_hopper.*tileILi256", 5000),
    (r"gemm_hopper", 3900),
    (r"attention_hopper", 3600),
    (r"group_norm_apply", 2900),
    (r"group_norm", 2600),
]


def find_tool():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    python = os.environ.get("LATENTD_REFERENCE_PYTHON", os.path.join(root, ".venv/bin/python"))
    packages = os.path.join(os.path.dirname(os.path.dirname(python)), "lib/python3*/site-packages/nvidia")
    found = [shutil.which("cuobjdump"), os.path.join(os.path.dirname(nvcc), "cuobjdump")]
    found += glob.glob(packages + "/*/bin/cuobjdump")
    return next((tool for tool in found if tool and os.access(tool, os.X_OK)), None)


def read(tool, path):
    """Returns {kernel: [instruction, ...]}."""
    environment = dict(os.environ, PATH=os.path.dirname(tool) + os.pathsep + os.environ["PATH"])
    text = subprocess.run([tool, "-sass", "-arch", "sm_90a", path], env=environment, check=True,
                          capture_output=True, text=True).stdout
    kernels, name = {}, None
    for line in text.splitlines():
        if match := re.search(r"Function : (\S+)", line):
            name = match.group(1)
            kernels[name] = []
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            kernels[name].append(match.group(1).strip())
    return kernels


def places(code, pattern):
    return [i for i, instruction in enumerate(code) if re.search(pattern, instruction)]


def loads_together(code, kind=r"\bLDG\.E"):
    """Returns the largest number of loads that are issued before one of them is used."""
    most, waiting = 0, set()
    for instruction in code:
        words = re.findall(r"\bR\d+\b", instruction)
        load = re.search(kind, instruction)
        if waiting & set(words[1 if load else 0:]):
            waiting = set()
        if load:
            waiting.add(words[0])
            most = max(most, len(waiting))
    return most


def of_attention(name, code):
    if not re.search(r"tileILi\d+ELi\d+ELi\d+ELi4E", name):
        return  # all keys in one block: there is nothing to overlap
    first = places(code, r"WARPGROUP\.DEPBAR.*0x1\b")
    if len(first) != 1:
        yield f"waits {len(first)} times for the scores alone, once is right"
        return
    second = next(i for i in places(code, r"WARPGROUP\.DEPBAR.*0x0\b") if i > first[0])
    count = len(places(code[first[0]:second], r"MUFU\.EX2"))
    if count < 32:
        yield f"{count} exponentials before the wait for the sums, 32 or more are right"


def of_product(name, code):
    tile, end = re.search(r"tileILi(\d+)E.*gemm_end(\d)", name).groups()
    fences, right = places(code, r"MEMBAR.*GPU"), 2 if end == "3" else 0
    if len(fences) > right:
        yield f"waits for the chip's memory {len(fences)} times, {right} are right"
    last = places(code, r"HGMMA")[-1]
    together = loads_together(code[last:])
    if end == "3":
        if (parts := loads_together(code, r"\bLD\.E")) < 8:
            yield f"{parts} loads from the cluster's blocks under way, 8 are right"
    elif end == "0" and together < int(tile) // 8:
        yield f"{together} loads under way at a block's end, {int(tile) // 8} are right"
    elif end == "1" and together:
        yield f"{together} loads at the end of GEGLU, whose bias is there before"


def of_group_norm(name, code):
    right = 12 if "shared" in name else 4
    if (together := loads_together(code)) < right:
        yield f"{together} loads under way, {right} or more are right"


def of_layer_norm(name, code):
    vectors = int(re.search(r"Li(\d)E", name).group(1))
    # Each vector loads one word of x (16 bits each). Up to five vectors also load gamma and beta,
    # two words each.
    right = 1 + vectors * (5 if vectors <= 5 else 1)
    if (together := loads_together(code)) < right:
        yield f"{together} loads under way, {right} or more are right"


RULES = [("attention_hopper", of_attention), ("gemm_hopper", of_product), ("group_norm", of_group_norm),
         ("layer_norm", of_layer_norm)]


def main():
    if len(sys.argv) < 2:
        print("this build has no nvcc, or no code for sm_90a")
        return 77
    tool = find_tool()
    if not tool:
        print("no cuobjdump, neither beside nvcc nor from PyPI (nvidia-cuda-cuobjdump)")
        return 77
    offences, sizes, checked = [], {}, set()
    for path in sys.argv[1:]:
        for name, code in read(tool, path).items():
            for family, rule in RULES:
                if family in name:
                    checked.add(family)
                    offences += [f"{name}: {what}" for what in rule(name, code)]
            count = len([i for i in code if not re.match(r"NOP|BRA 0x[0-9a-f]+$", i)])
            for pattern, ceiling in CEILINGS:
                if re.search(pattern, name):
                    sizes[pattern] = max(sizes.get(pattern, 0), count)
                    if count > ceiling:
                        offences.append(f"{name}: {count} instructions, the ceiling is {ceiling}")
                    break
    offences += [f"no kernel of {family} was read" for family, _ in RULES if family not in checked]
    for pattern, ceiling in CEILINGS:
        print(f"{pattern}: at most {sizes.get(pattern, 0)} instructions, the ceiling is {ceiling}")
    print("\n".join(offences) or "the order of instructions is as it should be")
    return 1 if offences else 0


sys.exit(main())
