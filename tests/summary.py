"""Prints the end of scripts/test: at which CPU levels the kernels were checked, what was skipped
or left out and why, and one line that counts all runs. usage: summary.py FAILED_STAGES
MESON_JSON_LOG..."""
import collections
import json
import os
import sys

WAYS = ("in hardware", "in software", "not at all")
LEFT_OUT = "LEFT OUT: "  # starts a line of a passing test about what it could not check


def read_logs(paths):
    """Yields (build folder, record) for each test in the logs."""
    for path in filter(os.path.exists, paths):
        build = path.split(os.sep)[0]
        with open(path) as f:
            for line in f:
                yield build, json.loads(line)


def short_name(test):
    return test["name"].rpartition(" / ")[2]


def cpu_levels(tests):
    """Prints which CPU levels ran on the processor's own instructions, which in software (_twin,
    _narrow), and which were skipped."""
    ways = {way: [] for way in WAYS}
    for _, test in tests:
        level = test.get("env", {}).get("LATENTD_CPU")
        if not level or short_name(test) != "kcheck-" + level:
            continue
        software = level.endswith(("_twin", "_narrow"))
        way = "not at all" if test["result"] == "SKIP" else "in software" if software else "in hardware"
        if level not in ways[way]:
            ways[way].append(level)
    if any(ways.values()):
        print("CPU levels:", "; ".join(f"{', '.join(found) or 'none'} {way}" for way, found in ways.items()))


def reasons(tests):
    """Prints each reason why something was not tested, with the tests that gave it."""
    given = collections.defaultdict(list)
    for build, test in tests:
        lines = [line.strip() for line in test.get("stdout", "").splitlines() if line.strip()]
        if test["result"] == "SKIP":
            given["skipped", lines[-1] if lines else "it gives no reason"].append((build, test))
        for line in lines:
            if line.startswith(LEFT_OUT):
                given["left out", line[len(LEFT_OUT):]].append((build, test))
    for (what, why), found in sorted(given.items(), key=lambda item: item[0]):
        names = ", ".join(f"{short_name(test)} ({build})" for build, test in found)
        print(f"{what}: {names}: {why}")


def main():
    tests = list(read_logs(sys.argv[2:]))
    cpu_levels(tests)
    reasons(tests)
    count = collections.Counter(test["result"] for _, test in tests)
    passed = count.pop("OK", 0) + count.pop("EXPECTEDFAIL", 0)
    skipped = count.pop("SKIP", 0)
    failed = max(sum(count.values()), int(sys.argv[1]))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


main()
