"""Plants one fault at a time in a copy of the tree, builds the tests that should see it, and runs them.

Each *.toml beside this file is a list of [[fault]]:

    name   = what is wrong, in words; no two alike
    file   = the file that it is planted in
    old    = text that stands there exactly once
    new    = what takes its place
    tests  = names of Meson's tests, the quickest first
    device = true: the tests are those of the emulated CUDA device
    survives = why no test can see it; such a fault must survive

A fault is CAUGHT when one of its tests fails, SURVIVED when all pass, STALE when its text is not there
once, BROKEN when it does not compile. More than MOST_SURVIVORS survivors, or one that is stale or broken,
is a failure.

usage: mutants.py FOLDER [--list] [--only PART_OF_A_NAME]...
FOLDER keeps the copy and its builds from one run to the next.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib

MOST_SURVIVORS = 3
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = {"name", "file", "old", "new", "tests", "device", "survives"}
OPTIONS = {False: ["--buildtype", "release", "-Dcuda=disabled"],
           True: ["-Doptimization=2", "-Ddebug=false", "-Db_lundef=false", "-Dcuda=emulated"]}


def read_faults(parts):
    faults = []
    for path in sorted(HERE.glob("*.toml")):
        with open(path, "rb") as f:
            for fault in tomllib.load(f)["fault"]:
                unknown = set(fault) - KEYS
                if unknown or not KEYS - {"device", "survives"} <= set(fault):
                    sys.exit(f"{path.name}: {fault.get('name')}: its keys are {sorted(fault)}")
                faults.append(fault)
    names = [fault["name"] for fault in faults]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"two faults are called {sorted(twice)}")
    chosen = [f for f in faults if not parts or any(part in f["name"] or part in f["file"] for part in parts)]
    # Neighbours rebuild the same things.
    return sorted(chosen, key=lambda f: (f.get("device", False), f["file"]))


def copy_tree(tree):
    """The files that git tracks, as they are in the working tree; others keep their time, for ninja."""
    tracked = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             capture_output=True, check=True).stdout.decode().split("\0")
    wanted = {name for name in tracked if name and (ROOT / name).is_file()}
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
                "__pycache__" not in name.parts:
            path.unlink()
    clients = ROOT / ".venv-clients"
    if clients.exists() and not (tree / ".venv-clients").exists():
        (tree / ".venv-clients").symlink_to(clients)


class Build:
    def __init__(self, tree, device):
        self.folder = tree / ("build-device" if device else "build")
        if not (self.folder / "build.ninja").exists():
            subprocess.run(["meson", "setup", str(self.folder), *OPTIONS[device]], cwd=tree, check=True,
                           stdout=subprocess.DEVNULL)
        self.refresh()

    def refresh(self):
        """Which files each test needs."""
        subprocess.run(["ninja", "-C", str(self.folder), "build.ninja"], check=True, stdout=subprocess.DEVNULL)

        def introspect(what):
            return json.loads(subprocess.run(["meson", "introspect", what, str(self.folder)], check=True,
                                             capture_output=True).stdout)
        files = {t["id"]: [os.path.relpath(name, self.folder) for name in t["filename"]]
                 for t in introspect("--targets")}
        self.needs = {t["name"]: [name for d in t["depends"] for name in files.get(d, [])]
                      for t in introspect("--tests")}

    def make(self, tests):
        """True if it builds."""
        targets = sorted({name for test in tests for name in self.needs[test]})
        done = subprocess.run(["ninja", "-C", str(self.folder), *targets], capture_output=True, text=True)
        self.log = done.stdout[-3000:]
        return done.returncode == 0

    def run(self, tests):
        """The names of those that fail, []: all pass."""
        log = self.folder / "meson-logs" / "mutants.json"
        log.unlink(missing_ok=True)
        subprocess.run(["meson", "test", "-C", str(self.folder), "--no-rebuild", "--logbase", "mutants",
                        "--timeout-multiplier", "4", *tests], capture_output=True,
                       env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        failed, seen = [], 0
        for line in log.read_text().splitlines():
            test = json.loads(line)
            seen += 1
            if test["result"] not in ("OK", "EXPECTEDFAIL", "SKIP"):
                failed.append(test["name"].rpartition(" / ")[2])
        if seen < len(tests):
            sys.exit(f"of {tests} only {seen} ran")
        return failed


def plant(tree, build, fault):
    """What becomes of it: (word, detail). The tree is as it was when this returns."""
    path = tree / fault["file"]
    text = path.read_text() if path.exists() else ""
    if text.count(fault["old"]) != 1 or fault["old"] == fault["new"]:
        return "STALE", f"its text stands {text.count(fault['old'])} times in {fault['file']}"
    path.write_text(text.replace(fault["old"], fault["new"]))
    try:
        if not build.make(fault["tests"]):
            return "BROKEN", build.log
        for test in fault["tests"]:
            if build.run([test]):
                return "CAUGHT", test
        return "SURVIVED", ", ".join(fault["tests"])
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage: ") + 7:].splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    faults = read_faults(asked.only)
    if asked.list:
        for fault in faults:
            print(f"{fault['file']}: {fault['name']}  <- {', '.join(fault['tests'])}")
        print(f"{len(faults)} faults")
        return 0
    tree = asked.folder.resolve() / "tree"
    copy_tree(tree)
    count = {word: 0 for word in ("CAUGHT", "SURVIVED", "EXPECTED", "STALE", "BROKEN")}
    builds = {}
    for device in sorted({f.get("device", False) for f in faults}):
        build = builds[device] = Build(tree, device)
        tests = sorted({t for f in faults if f.get("device", False) == device for t in f["tests"]})
        unknown = [t for t in tests if t not in build.needs]
        if unknown:
            sys.exit(f"there are no tests called {', '.join(unknown)}")
        if not build.make(tests):
            sys.exit(f"the tree does not build: {build.log}")
        failed = build.run(tests)
        if failed:
            sys.exit(f"without any fault these fail: {', '.join(failed)}")
        print(f"without any fault {len(tests)} tests pass", flush=True)
    for fault in faults:
        begun = time.monotonic()
        word, detail = plant(tree, builds[fault.get("device", False)], fault)
        if "survives" in fault:
            word = {"SURVIVED": "EXPECTED", "CAUGHT": "STALE"}.get(word, word)
            detail = fault["survives"] if word == "EXPECTED" else f"it was to survive, but: {detail}"
        count[word] += 1
        print(f"{word:8} {fault['name']}  <- {detail} ({time.monotonic() - begun:.0f} s)", flush=True)
    survivors = count["SURVIVED"] + count["EXPECTED"]
    print(f"{len(faults)} faults: {count['CAUGHT']} caught, {survivors} survived, {count['EXPECTED']} of these for a "
          f"reason, {count['STALE']} stale, {count['BROKEN']} broken")
    return 1 if survivors > MOST_SURVIVORS or count["STALE"] or count["BROKEN"] else 0


sys.exit(main())
