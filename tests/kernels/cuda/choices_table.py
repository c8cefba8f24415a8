"""Converts a report of bench-gpu into the table that rule_test.cpp reads: one line for each
shape with its rows, then one line for each candidate that was tried, with its microseconds.
usage: choices_table.py gpu-NAME.json >choices-NAME.tsv"""
import json
import re
import sys


def rows_of(problem):
    """Returns the batch size, computed from the work in the report."""
    found = re.match(r"gemm (\S+) \S+ n(\d+) k(\d+) (\d+)x(\d+) to (\d+)x(\d+)(?: shortcut k(\d+))?$",
                     problem["problem"])
    if not found:
        return 2
    kind, n, k, _, _, h, w, shortcut = (v if i == 0 else int(v or 0) for i, v in enumerate(found.groups()))
    products = 2 * h * w * n * ((9 if "3x3" in kind else 1) * k + shortcut)
    return max(1, round(problem["tflops"] * problem["us"] * 1e6 / products))


with open(sys.argv[1], encoding="utf-8") as f:
    report = json.load(f)
print(f"# {report['parts']['device']['name']}, driver {report['parts']['device']['driver']}: latentd tune, bf16")
for problem in report["parts"]["tune"]["problems"]:
    print(f"{rows_of(problem)} rows {problem['problem']}")
    for trial in problem["trials"]:
        if trial["state"] == "right":
            print(f"\t{trial['name']}\t{trial['us']:.1f}")
