"""Tests the digests under which the tuner's choices are stored. Changing a kernel changes only
the digest of its own file. Changing a header changes the digests of all files that include
it. Changing comments or white space changes no digest. usage: code_digest.py SCRIPT ROOT"""
import os
import shutil
import subprocess
import sys
import tempfile

script, root = sys.argv[1:]
FILES = ("attention/attention_flash.cu", "attention/attention_hopper.cu", "gemm/gemm_hopper.cu",
         "gemm/gemm_simt.cu", "norm/group_norm.cu")
NAMES = [os.path.basename(path) for path in FILES]
failed = 0


def check(right, what):
    global failed
    failed += not right
    print(("" if right else "FAIL: ") + what)


def digests(folder, compiler="nvcc"):
    """Returns {name: digest} and the files named as dependencies."""
    out, depfile = os.path.join(folder, "out.c"), os.path.join(folder, "out.d")
    subprocess.run([sys.executable, script, out, depfile, folder, "code", compiler,
                    *(os.path.join(folder, "kernels/cuda", name) for name in FILES)], check=True)
    with open(out, encoding="utf-8") as f:
        text = f.read().split('"')[1]
    with open(depfile, encoding="utf-8") as f:
        return dict(part.rsplit(" ", 1) for part in text.split(", ")), f.read()


def edit(folder, name, before, after):
    path = os.path.join(folder, "kernels/cuda", name)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    assert before in text, f"{name} has no {before!r}"
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(before, after, 1))


with tempfile.TemporaryDirectory() as folder:
    folder = os.path.realpath(folder)
    shutil.copytree(os.path.join(root, "kernels/cuda"), os.path.join(folder, "kernels/cuda"))
    first, reads = digests(folder)
    check(list(first) == ["compiler", *NAMES] and all(len(word) == 8 for word in first.values()), f"{first}")
    check(f"{folder}/kernels/cuda/ptx_hopper.cuh" in reads, "headers are dependencies of the build's step")
    for what, name, before, after, changed in (
            ("a number in a kernel", "gemm/gemm_hopper.cu", "#define HOPPER_CLUSTER 16", "#define HOPPER_CLUSTER 8",
             ["gemm_hopper.cu"]),
            ("a comment", "gemm/gemm_hopper.cu", "/* ", "/* Another word: ", []),
            ("a blank line", "norm/group_norm.cu", "\n\n", "\n\n\n", []),
            ("an instruction in a string", "ptx_hopper.cuh", "prefetch.tensormap [%0]", "prefetch.tensormap  [%0]",
             ["attention_hopper.cu", "gemm_hopper.cu", "group_norm.cu"])):
        edit(folder, name, before, after)
        now, _ = digests(folder)
        other = [key for key in first if now[key] != first[key]]
        check(other == changed, f"{what} of {name} changes {other or 'nothing'}")
        first = now
    other = [key for key, word in digests(folder, "nvcc 14")[0].items() if word != first[key]]
    check(other == ["compiler"], f"another compiler changes {other}")
sys.exit(failed != 0)
