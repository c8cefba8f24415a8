"""Runs the commands and programs of docs/openai.md with the bundled checkpoint.
usage: openai_doc.py EXECUTABLE MODEL"""
import os
import re
import shutil
import sys

from PIL import Image, ImageDraw

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from daemon import check, done
from document import ROOT, Document

executable, model = sys.argv[1:3]


def pictures(page):
    mask = Image.new("RGBA", (128, 128), "black")
    ImageDraw.Draw(mask).rectangle((64, 0, 127, 127), fill=(0, 0, 0, 0))
    mask.save(page.at("mask.png"))
    os.mkdir(page.at("stripes"))
    for i in range(4):
        Image.radial_gradient("L").resize((64, 64)).rotate(90 * i).convert("RGB").save(page.at(f"stripes/{i}.png"))
        with open(page.at(f"stripes/{i}.txt"), "w") as f:
            f.write(f"stripes {i}")


with Document(executable, model, "docs/openai.md") as page:
    pictures(page)
    shutil.copytree(os.path.join(model, "loras"), page.at("loras"))
    page.run("mkdir -p loras sets")
    page.run("curl -s localhost:8188/v1/images/generations")
    check(Image.open(page.at("house.png")).size == (128, 128), "house.png")
    first, second = page.take("from openai import"), page.take("import tarfile")
    said = page.program("\n".join(("import time", first, second)))
    check(said.count("partial_image") == 2 and "image_generation.completed" in said,
          f"the stream has two partial images and the last one: {said}")
    check("The job has succeeded" in said,
          f"the job's last event says that it has succeeded: {said}")
    said = "".join(page.run("curl -s localhost:8188/v1/load_lora_adapter"))
    check(said.count("Success") == 2, f"both adapter calls succeed: {said}")
    page.program(page.take("from huggingface_hub"))
text = page.text
# The table of fields on the page must match the fields that the code knows.
fields = set(re.findall(r"`([a-z_\[\]]+)`", "".join(l.split("|")[1] for l in text.split("\n") if l.startswith("| `"))))
with open(os.path.join(ROOT, "server/openai/image_order.c")) as f:
    source = f.read()
known = set(re.findall(r'^    \{ \.name = "([a-z_]+)"', source, re.M))
known |= set(re.findall(r'^    \{ "([a-z_]+)", "[a-z_]+" \},$', source, re.M))  # the aliases
check(fields - known == set() and known - fields - {"prompt"} == set(),
      f"not in the program: {fields - known}; not in the table: {known - fields}")
done()
