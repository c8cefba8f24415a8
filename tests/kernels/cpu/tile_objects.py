"""Attention on tiles is compiled twice: with AMX instructions, and for the twin without any.

Usage: tile_objects.py TWIN_LIBRARY [TILES_LIBRARY]. Skipped (77) without objdump.
"""
import re
import shutil
import subprocess
import sys

OPERATIONS = ["ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdpbf16ps"]


def counts(library):
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], capture_output=True,
                          text=True, check=True).stdout
    return {name: len(re.findall(rf"\t{name}\b", code)) for name in OPERATIONS + ["ret"]}


if not shutil.which("objdump"):
    print("no objdump here")
    sys.exit(77)
twin = counts(sys.argv[1])
print("twin:", twin)
wrong = [f"the twin has {name}" for name in OPERATIONS if twin[name]]
if not twin["ret"]:
    wrong.append("the twin has no code")
for library in sys.argv[2:]:
    tiles = counts(library)
    print("tiles:", tiles)
    wrong += [f"no {name} on tiles" for name in OPERATIONS if not tiles[name]]
print("\n".join(wrong) or "as it should be")
sys.exit(1 if wrong else 0)
