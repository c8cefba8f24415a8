"""The program contains nothing of the levels that exist for tests only (kernels/cpu/level.c):
neither their names nor their code. kcheck contains the twins; it is searched too, to show that the
search works.

Usage: no_twins.py LATENTD KCHECK. Symbols are searched only if nm is installed.
"""
import re
import shutil
import subprocess
import sys

NAMES = [b"amx_twin", b"avx512_bf16_twin", b"avx512_narrow"]


def names_in(program):
    with open(program, "rb") as f:
        code = f.read()
    assert b"avx512_bf16\0" in code, f"{program}: not even the name of a level that it has"
    return {name.decode() for name in NAMES if name in code}


def symbols_in(program):
    if not shutil.which("nm"):
        return set()
    table = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    assert re.search(r" [Tt] attention_pairs$", table, re.M), f"{program}: no symbols"
    return set(re.findall(r" [TtBb] (\w*(?:_twin|twin_)\w*|twin|\w*table_wide)\b", table))


latentd, kcheck = (names_in(program) | symbols_in(program) for program in sys.argv[1:])
print(f"latentd: {sorted(latentd)}; kcheck: {sorted(kcheck)}")
wrong = [name for name in ("amx_twin", "avx512_bf16_twin") if name not in kcheck]
sys.exit(f"latentd has {sorted(latentd)}, kcheck lacks {wrong}" if latentd or wrong else 0)
