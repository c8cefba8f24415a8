"""Plants one fault at a time in a copy of the tree, builds the tests that should catch it, and runs
them.

Each *.toml beside this file is a list of [[fault]]:

    id = a letter and a number, unique
    name   = what is wrong, in words
    file = the file to change
    old = text that occurs there exactly once
    new = its replacement
    tests  = names of Meson's tests, the quickest first
    device = true: the tests are those of the emulated CUDA device
    survives = why no test can catch it; such a fault must survive

First all these tests run without a fault. A test that fails or is skipped then is not used. A fault is CAUGHT when one
of its tests fails, SURVIVED when all pass, STALE when its text does not occur exactly once, BROKEN when it does not
compile, UNTRIED when none of its tests can be used here. The script fails if more than MOST_SURVIVORS faults survive,
or if any is stale, broken or untried.

usage: mutants.py FOLDER [--list] [--only WORD]...
FOLDER keeps the copy and its builds between runs. --list prints all faults and marks the stale
ones. WORD: an id, or part of a file's path.
"""
import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import tomllib

MOST_SURVIVORS = 3
PASSES = ("OK", "EXPECTEDFAIL")
PATIENCE = "4"  # multiplies each test's limit, for a busy machine
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = {"id", "name", "file", "old", "new", "tests", "device", "survives"}
# Meson uses ccache by itself if it is installed.
OPTIONS = {False: ["--buildtype", "release", "-Dcuda=disabled"],
           True: ["-Doptimization=2", "-Ddebug=false", "-Db_lundef=false", "-Dcuda=emulated"]}


def is_device(fault):
    return fault.get("device", False)


def read_faults(words):
    faults = []
    for path in sorted(HERE.glob("*.toml")):
        with open(path, "rb") as f:
            for fault in tomllib.load(f)["fault"]:
                if set(fault) - KEYS or KEYS - {"device", "survives"} - set(fault):
                    sys.exit(f"{path.name}: {fault.get('id')}: its keys are {sorted(fault)}")
                faults.append(fault)
    ids = [fault["id"] for fault in faults]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        sys.exit(f"two faults are called {', '.join(twice)}")
    chosen = [f for f in faults if not words or any(word == f["id"] or word in f["file"] for word in words)]
    # Faults in the same file follow one another, because they rebuild the same targets.
    return sorted(chosen, key=lambda f: (is_device(f), f["file"]))


def why_stale(tree, fault):
    """Returns what is wrong with the fault's text; "" if nothing is."""
    path = tree / fault["file"]
    times = path.read_text().count(fault["old"]) if path.exists() else 0
    if fault["old"] == fault["new"]:
        return "it changes nothing"
    return "" if times == 1 else f"its text stands {times} times in {fault['file']}"


def copy_tree(tree):
    """Copies the working tree: all files that git tracks or would track. Unchanged files are not
    written again, so that ninja does not rebuild them."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, check=True).stdout.decode().split("\0")
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    for name in wanted:
        source, target = ROOT / name, tree / name
        data = source.read_bytes()
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(source.stat().st_mode & 0o777)
    for path in tree.rglob("*"):
        name = path.relative_to(tree)
        if path.is_file() and not name.parts[0].startswith("build") and str(name) not in wanted and \
                "__pycache__" not in name.parts and ".venv-clients" not in name.parts:
            path.unlink()
    clients = ROOT / ".venv-clients"
    if clients.exists() and not (tree / ".venv-clients").exists():
        (tree / ".venv-clients").symlink_to(clients)


class Build:
    def __init__(self, tree, device):
        self.folder = tree / ("build-device" if device else "build")
        if not (self.folder / "build.ninja").exists():
            self.call("meson", "setup", str(self.folder), str(tree), *OPTIONS[device])
        self.call("ninja", "-C", str(self.folder), "build.ninja")

        def introspect(what):
            return json.loads(self.call("meson", "introspect", what, str(self.folder)))
        files = {t["id"]: [os.path.relpath(name, self.folder) for name in t["filename"]]
                 for t in introspect("--targets")}
        self.needs = collections.defaultdict(list)  # two tests may have the same name
        for t in introspect("--tests"):
            self.needs[t["name"]] += [name for d in t["depends"] for name in files.get(d, [])]

    @staticmethod
    def call(*command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def make(self, tests):
        """Returns ninja's output if the build fails; "" if it succeeds."""
        targets = sorted({name for test in tests for name in self.needs[test]})
        done = subprocess.run(["ninja", "-C", str(self.folder), *targets], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout[-3000:]

    def run(self, tests):
        """Returns {test: its result, in Meson's words}. Of two tests with the same name, only
        the worse result is returned."""
        log = self.folder / "meson-logs" / "mutants.json"
        log.unlink(missing_ok=True)
        done = subprocess.run(["meson", "test", "-C", str(self.folder), "--no-rebuild", "--logbase", "mutants",
                               "--timeout-multiplier", PATIENCE, *tests], capture_output=True, text=True,
                              env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        if not log.exists():
            sys.exit(f"no test ran: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        lines.sort(key=lambda line: line["result"] not in PASSES)
        results = {line["name"].rpartition(" / ")[2]: line["result"] for line in lines}
        if set(results) != set(tests):
            sys.exit(f"asked for {sorted(tests)}, these ran: {sorted(results)}")
        return results


def try_without_fault(build, faults):
    """Returns the tests that cannot be used here, with the reasons."""
    tests = sorted({t for f in faults for t in f["tests"]})
    mute = {t: "no such test" for t in tests if t not in build.needs}
    there = [t for t in tests if t not in mute]
    said = build.make(there)
    if said:
        sys.exit(f"the tree does not build: {said}")
    mute |= {t: result for t, result in build.run(there).items() if result not in PASSES}
    print(f"without any fault {len(tests) - len(mute)} of {len(tests)} tests pass" +
          "".join(f"; {t}: {result}" for t, result in mute.items()), flush=True)
    return mute


def plant(tree, build, fault, mute):
    """Plants a fault and runs its tests. Returns (result, detail). Restores the tree before it
    returns."""
    stale = why_stale(tree, fault)
    if stale:
        return "STALE", stale
    tests = [t for t in fault["tests"] if t not in mute]
    if not tests:
        return "UNTRIED", ", ".join(f"{t}: {mute[t]}, without any fault" for t in fault["tests"])
    path = tree / fault["file"]
    text = path.read_text()
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        said = build.make(tests)
        if said:
            return "BROKEN", said
        for test in tests:
            result = build.run([test])[test]
            if result not in PASSES:
                return "CAUGHT", test if result == "FAIL" else f"{test} ({result})"
        return "SURVIVED", ", ".join(tests)
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage: ") + 7:].splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that `finally` still removes the fault
    faults = read_faults(asked.only)
    if asked.list:
        for fault in faults:
            stale = why_stale(ROOT, fault)
            print(f"{fault['id']:4} {fault['file']}: {fault['name']}  <- {', '.join(fault['tests'])}" +
                  (f"  STALE: {stale}" if stale else ""))
        stale = sum(why_stale(ROOT, fault) != "" for fault in faults)
        print(f"{len(faults)} faults, {stale} stale")
        return stale > 0
    tree = asked.folder.resolve() / "tree"
    copy_tree(tree)
    count = collections.Counter()
    left = []
    for device in sorted({is_device(f) for f in faults}):
        build = Build(tree, device)
        group = [f for f in faults if is_device(f) == device]
        mute = try_without_fault(build, group)
        for fault in group:
            begun = time.monotonic()
            word, detail = plant(tree, build, fault, mute)
            if "survives" in fault and word == "SURVIVED":
                word, detail = "EXPECTED", fault["survives"]
            elif "survives" in fault and word == "CAUGHT":
                word, detail = "STALE", f"it was to survive, but {detail} sees it"
            count[word] += 1
            line = f"{word:8} {fault['id']:4} {fault['name']}  <- {detail} ({time.monotonic() - begun:.0f} s)"
            print(line, flush=True)
            if word != "CAUGHT":
                left.append(line)
    survivors = count["SURVIVED"] + count["EXPECTED"]
    print(f"\n{len(faults)} faults: {count['CAUGHT']} caught, {survivors} survived ({count['EXPECTED']} for a "
          f"reason), {count['STALE']} stale, {count['BROKEN']} broken, {count['UNTRIED']} untried")
    print("\n".join(left))
    return survivors > MOST_SURVIVORS or bool(count["STALE"] + count["BROKEN"] + count["UNTRIED"])


sys.exit(main())
