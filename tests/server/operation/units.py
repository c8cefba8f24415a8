"""Checks the systemd units with systemd-analyze (verify, and an exposure below 3.0 in security),
and that the daemon understands the options they start it with. usage: units.py EXECUTABLE
FOLDER_OF_UNITS BINDIR SYSCONFDIR"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from daemon import check, done

EXECUTABLE, UNITS, BINDIR, SYSCONFDIR = sys.argv[1:5]
if not shutil.which("systemd-analyze"):
    print("there is no systemd-analyze here")
    sys.exit(77)


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


with tempfile.TemporaryDirectory() as root:
    os.makedirs(f"{root}/lib/systemd/system")
    os.makedirs(root + BINDIR)
    shutil.copy(EXECUTABLE, f"{root}{BINDIR}/latentd")
    for unit in ("latentd.service", "latentd.socket"):
        shutil.copy(f"{UNITS}/{unit}", f"{root}/lib/systemd/system")
    r = run("systemd-analyze", "verify", "--man=no", f"--root={root}", "latentd.service", "latentd.socket")
    # The targets, slices and mounts that every unit needs do not exist in this root.
    said = [line for line in r.stderr.splitlines()
            if "latentd" in line and not re.search(r"\.(target|slice|mount)\b.*not found", line)]
    check(not said, f"systemd-analyze verify finds nothing: {said}")
    with open(f"{UNITS}/latentd.service") as f:
        service = f.read()
    with open(f"{root}/lib/systemd/system/wrong.service", "w") as f:  # verify must report this
        f.write(service.replace("ProtectHome=yes", "ProtectHouse=yes"))
    r = run("systemd-analyze", "verify", "--man=no", f"--root={root}", "wrong.service")
    check("ProtectHouse" in r.stderr, f"systemd-analyze verify finds a planted error: {r.stderr}")
    r = run("systemd-analyze", "security", "--offline=yes", "--no-pager", f"--root={root}", "latentd.service")
    found = re.search(r"Overall exposure level for latentd.service: ([\d.]+)", r.stdout)
    check(found and float(found[1]) < 3.0, f"{r.stdout[-300:]} {r.stderr}")
    print(f"exposure {found and found[1]}")
    with open(f"{UNITS}/latentd.json") as f:
        options = json.load(f)
    check(f"{SYSCONFDIR}/latentd/latentd.json" in service, "the unit names the file of options")
    for key in options:
        if key.endswith(("-dir", "-root", "model")) and options[key].startswith("/var"):
            options[key] = f"{root}/state{options[key]}"
            os.makedirs(options[key], exist_ok=True)
    options["model"] = "no such model"
    with open(f"{root}/latentd.json", "w") as f:
        json.dump(options, f)
    arguments = re.search(rf"^ExecStart={BINDIR}/latentd (.*)$", service, re.M)[1].split()
    arguments[arguments.index("--config") + 1] = f"{root}/latentd.json"
    r = run(EXECUTABLE, *arguments, "--listen", "127.0.0.1:0")
    check(r.returncode == 1 and "no such model" in r.stderr,
          f"the daemon knows every option of the file and fails only at the model: {r.returncode} {r.stderr}")
done()
