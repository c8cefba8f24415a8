"""Runs the commands and programs of docs/openai.md with the bundled checkpoint.
usage: openai_doc.py EXECUTABLE MODEL DOC"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from PIL import Image, ImageDraw

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import Daemon, check, done

executable, model, doc = (os.path.abspath(a) for a in sys.argv[1:4])
text = open(doc).read()
blocks = re.findall(r"```(python|)\n(.*?)```", text, re.S)
commands = [b for kind, b in blocks if not kind and b.startswith("curl")]
programs = [b for kind, b in blocks if kind]
check(len(commands) == 2 and len(programs) == 3, f"{len(commands)} commands, {len(programs)} programs")

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.mkdir("sets")
    os.mkdir("stripes")
    shutil.copytree(os.path.join(model, "loras"), "loras")
    mask = Image.new("RGBA", (128, 128), "black")
    ImageDraw.Draw(mask).rectangle((64, 0, 127, 127), fill=(0, 0, 0, 0))
    mask.save("mask.png")
    for i in range(4):
        Image.radial_gradient("L").resize((64, 64)).rotate(90 * i).convert("RGB").save(f"stripes/{i}.png")
        with open(f"stripes/{i}.txt", "w") as f:
            f.write(f"stripes {i}")
    extra = re.search(r"latentd serve --model share/tiny-sd (.*)", text)[1].split()
    with Daemon(executable, model, extra=extra) as d:
        def run(what, command):
            ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
            check(ran.returncode == 0, f"{what}: {ran.stdout} {ran.stderr}")
            return ran.stdout

        def here(text):
            return text.replace("localhost:8188", f"{d.host}:{d.port}")

        run(commands[0], ["bash", "-e", "-o", "pipefail", "-c", here(commands[0])])
        check(Image.open("house.png").size == (128, 128), "house.png")
        said = run("pictures and training", [sys.executable, "-c", "import time\n" + here(programs[0] + programs[1])])
        check(said.count("partial_image") == 2 and "image_generation.completed" in said, f"events: {said}")
        check("The job is succeeded" in said, f"the job: {said}")
        said = run(commands[1], ["bash", "-e", "-c", here(commands[1])])
        check(said.count("Success") == 2, f"adapters: {said}")
        run("Hugging Face", [sys.executable, "-c", here(programs[2])])
    os.chdir("/")
# What the table says of fields is what there is.
fields = set(re.findall(r"`([a-z_\[\]]+)`", "".join(l.split("|")[1] for l in text.split("\n") if l.startswith("| `"))))
with open(os.path.join(os.path.dirname(doc), "..", "server/openai/image_order.c")) as f:
    known = set(re.findall(r'^    \{ "([a-z_]+)",', f.read(), re.M))
check(fields - known == set() and known - fields - {"prompt", "sampler"} == set(),
      f"not in the program: {fields - known}; not in the table: {known - fields}")
done()
