"""Checks the tree itself: include direction, own header first, file lengths, stray words.

Prints every broken rule and exits with 1; if there is none, prints what was checked.
"""
import collections
import os
import re
import subprocess
import sys

# A layer may include itself and the layers below it. Layers in the same list must not include each
# other.
LEVELS = [["base"], ["cluster", "kernels", "pictures"], ["models"], ["queue", "train"], ["engine"], ["server"], ["command"]]
LAYERS = {layer: level for level, layers in enumerate(LEVELS) for layer in layers}
MAX_LINES = 1000
MAX_SOURCES = 25  # C, C++ and CUDA files in one folder
BANNED = ["strcpy", "strcat", "sprintf", "vsprintf", "gets", "strtok", "alloca", "atoi", "atof"]

files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True,
                       text=True, check=True).stdout.split("\n")
files = [f for f in files if f and os.path.isfile(f)]
offences = []
sources = [f for f in files if f.endswith((".c", ".h", ".cu", ".cuh"))]
checked_includes = 0

for path in sources:
    text = open(path, encoding="utf-8").read()
    layer = path.split("/")[0]
    includes = re.findall(r'^#include "([^"]+)"', text, re.M)
    for include in includes:
        checked_includes += 1
        target = include.split("/")[0]
        if "/" not in include:
            offences.append(f'{path}: include "{include}" from the root, with its folder')
        elif not os.path.isfile(include):
            offences.append(f'{path}: "{include}" does not exist')
        elif layer in LAYERS:
            if target != layer and LAYERS.get(target, len(LEVELS)) >= LAYERS[layer]:
                offences.append(f'{path}: {layer} must not include "{include}"')
    own = re.sub(r"\.c$", ".h", path)
    if path.endswith(".c") and own in files and layer in LAYERS:
        if not includes or includes[0] != own:
            offences.append(f'{path}: its own header "{own}" comes first')
    if path.endswith(".h"):
        guard = re.sub(r"[^A-Z0-9]", "_", path.upper())
        if f"#ifndef {guard}\n" not in text:
            offences.append(f"{path}: the include guard is {guard}")
    if layer in LAYERS:
        code = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"", "", text, flags=re.S)
        for word in BANNED:
            if re.search(rf"\b{word}\s*\(", code):
                offences.append(f"{path}: {word} is banned")
        if path != "command/main.c" and re.search(r"\b(?:abort|exit|assert)\s*\(", code):
            offences.append(f"{path}: exit, abort and assert belong to main.c only")

# In these layers, folders (STRAIGHT_ROOMS) or files (STRAIGHT_FILES) must not include each other in
# a circle. NAME.c, NAME.h and the private header NAME_internal.h are one file here; internal.h
# belongs to the file that has the name of its folder.
STRAIGHT_ROOMS = ("engine", "server")
STRAIGHT_FILES = ("base", "queue", "engine", "server")


def file_node(path):
    folder, name = os.path.split(os.path.splitext(path)[0])
    return os.path.join(folder, os.path.basename(folder) if name == "internal" else name.removesuffix("_internal"))


def circles(arrows):
    """Returns groups of two or more nodes that include each other in a circle."""
    reached = {}
    for start in arrows:
        seen, ahead = set(), [start]
        while ahead:
            for target in arrows[ahead.pop()] - seen:
                seen.add(target)
                ahead.append(target)
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in arrows if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def arrows_between(node_of, floors):
    """Returns {node: set of nodes that it includes} within these layers. node_of(path) is a
    file's node: its folder, or the file itself."""
    arrows = collections.defaultdict(set)
    for path in sources:
        for include in re.findall(r'^#include "([^"]+)"', open(path, encoding="utf-8").read(), re.M):
            here, there = node_of(path), node_of(include)
            if here != there and path.split("/")[0] in floors and include.split("/")[0] in floors:
                arrows[here].add(there)
                arrows[there] |= set()
    return arrows


for kind, node_of, floors in [("folders", os.path.dirname, STRAIGHT_ROOMS),
                              ("files", file_node, STRAIGHT_FILES)]:
    for circle in circles(arrows_between(node_of, floors)):
        offences.append(f"these {kind} include each other: " + ", ".join(circle))


folders = collections.Counter(os.path.dirname(f) for f in files if f.endswith((".c", ".h", ".cu", ".cuh", ".cpp")))
for folder, count in folders.items():
    if count > MAX_SOURCES:
        offences.append(f"{folder}: {count} sources; give some of them a room (at most {MAX_SOURCES})")

text_endings = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".build", ".md", ".txt", ".js", ".css", ".html")
for path in files:
    if not path.endswith(text_endings) and not path.startswith(("scripts/", ".ci/")):
        continue
    if "/corpus/" in path or path.startswith("share/tiny-sd/tokenizer/"):
        continue
    lines = open(path, encoding="utf-8").read().split("\n")
    if len(lines) > MAX_LINES and not path.endswith((".md", ".txt")):
        offences.append(f"{path}: {len(lines)} lines; find the seam (at most {MAX_LINES})")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            offences.append(f"{path}:{number}: trailing space")
        if "\t" in line and not path.endswith((".md", ".txt")):
            offences.append(f"{path}:{number}: tab")

print("\n".join(offences) or
      f"{len(sources)} sources, {checked_includes} includes: directions, guards, lengths are right")
sys.exit(1 if offences else 0)
