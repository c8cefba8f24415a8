"""Checks what meson install installs into an empty root: the program, its documentation and
licences, systemd's units, and a checkpoint with which the installed option file draws. usage:
install.py BUILD_FOLDER PREFIX BINDIR SYSCONFDIR"""
import json
import os
import subprocess
import sys
import tempfile

from daemon import check, done

BUILD, PREFIX, BINDIR, SYSCONFDIR = sys.argv[1:5]


def install(root):
    r = subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], timeout=120,
                       env=dict(os.environ, DESTDIR=root), capture_output=True, text=True)
    check(r.returncode == 0, f"meson install: {r.stdout[-500:]} {r.stderr[-500:]}")


with tempfile.TemporaryDirectory() as root:
    install(root)
    found = sorted(os.path.relpath(os.path.join(folder, name), root)
                   for folder, _, names in os.walk(root) for name in names)
    print("\n".join(found))
    check(f"{BINDIR}/latentd"[1:] in found, "the program is installed")
    for name in ("latentd.1", "_latentd", "LICENSE", "LICENSE.clip-tokenizer", "latentd.service", "latentd.socket",
                 "latentd.json", "dashboard.json", "snow.safetensors", "vocab.json"):
        check(any(path.endswith("/" + name) for path in found), f"{name} is installed")
    check(not any("/train/" in path or "/tests/" in path for path in found),
          "no tests and no training material are installed")
    units = [os.path.basename(path) for path in found
             if "/tiny-sd/" not in path and "/grafana/" not in path and path.endswith((".service", ".socket", ".json"))]
    check(sorted(units) == ["latentd.json", "latentd.service", "latentd.socket"],
          f"each unit is installed once: {units}")

    options_path = f"{root}{SYSCONFDIR}/latentd/latentd.json"
    with open(options_path) as f:
        options = json.load(f)
    picture = f"{root}/out.png"
    r = subprocess.run([f"{root}{BINDIR}/latentd", "generate", "--model", root + options["model"], "--prompt",
                        "a red house", "--steps", "2", "--quiet", "-o", picture], capture_output=True, text=True,
                       timeout=120)
    check(r.returncode == 0 and os.path.getsize(picture) > 1000, f"the installed checkpoint draws: {r.stderr}")

    with open(options_path, "w") as f:
        f.write('{"mine": true}')
    install(root)
    with open(options_path) as f:
        check(f.read() == '{"mine": true}', "a second installation keeps a changed options file")
done()
