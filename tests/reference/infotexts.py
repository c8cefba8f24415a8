"""Writes tests/server/sdapi/infotexts.json: the results of AUTOMATIC1111's
parse_generation_parameters for infotexts, computed with Python's own re, json and str. usage:
infotexts.py"""
import json
import os
import random
import re

# A parameter: a name of at least two characters, a colon, and a quoted text or everything up to a
# comma.
PARAMETER = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:[^\\"]|\\.)+"|[^,]*)(?:,|$)')
MISSING = {"Hires sampler": "Use same sampler", "Hires checkpoint": "Use same checkpoint", "Hires prompt": "",
           "Hires negative prompt": "", "Mask mode": "Inpaint masked", "Masked content": "original",
           "Inpaint area": "Whole picture", "Masked area padding": 32, "RNG": "GPU",
           "Schedule type": "Automatic", "Schedule max sigma": 0, "Schedule min sigma": 0, "Schedule rho": 0,
           "VAE Encoder": "Full", "VAE Decoder": "Full", "FP8 weight": "Disable"}


def parse(text):
    *lines, last = text.strip().split("\n")
    found = PARAMETER.findall(last)
    if len(found) < 3:
        lines, found = lines + [last], []
    texts, which = {"Prompt": "", "Negative prompt": ""}, "Prompt"
    for line in lines:
        line = line.strip()
        if line.startswith("Negative prompt:"):
            which, line = "Negative prompt", line[len("Negative prompt:"):].strip()
        texts[which] += ("\n" if texts[which] else "") + line
    parameters = dict(texts)
    for name, value in found:
        if not value:
            continue
        if value[0] == value[-1] == '"' and len(value) > 1:
            try:
                value = json.loads(value)
            except ValueError:
                pass
        size = re.fullmatch(r"([0-9]+)x([0-9]+)", value)
        if size:
            parameters[name + "-1"], parameters[name + "-2"] = size.groups()
        else:
            parameters[name] = value
    parameters.setdefault("Clip skip", "1")
    if "Hires resize-1" not in parameters:
        parameters["Hires resize-1"] = parameters["Hires resize-2"] = 0
    for name, value in MISSING.items():
        parameters.setdefault(name, value)
    return parameters


WRITTEN = [
    "",
    "a cat",
    "a cat\nSteps: 20, Seed: 1",
    "a cat\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 965400086, Size: 512x512, Model hash: 45dee52b",
    "a cat <lora:foo:0.8>\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Schedule type: Karras, "
    "CFG scale: 7, Seed: 1, Size: 512x768, Model hash: 6ce0161689, Model: v1-5-pruned-emaonly, "
    "Lora hashes: \"foo: 1a2b3c, bar: 4d5e6f\", Version: v1.9.4",
    "one\n two \n\nthree\nNegative prompt: a\nb\nNegative prompt: c\nSteps: 1, Sampler: LMS, Seed: 2, ",
    "Steps: 20, Sampler: \"a \\\"quoted\\\", one\", Seed: 3, Clip skip: 2, ENSD: 31337",
    "x\nSteps: 20, Empty: , Sampler: \"unclosed, Seed: 4, Note: \"closed\" not here, Hires resize: 1024x1024",
    "x\nsteps:1,cfg:2,seed:3,a:4, b c:5",
    "Prompt with: colons, and: commas, like: this",
    "x\nSteps: 9, Size: 512x, Size2: x512, Sizes: 1x2x3, Ärger: ü, 名前: 猫, Quote: \"\\u732b\", Bad: \"\\x\"",
    "x\nSteps: 9, Template: \"one\\ntwo\", Negative Template: \"\", RNG: NV, Tail: 1, ,, : 3, -x: 4, a-b/c: 5",
    "\n\n  a  \n\n  Steps: 1, Sampler: x, Seed: 2  \n",
]


def mutated(text, draw):
    characters = list(text)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(characters) + 1)
        if draw.random() < 0.5:
            characters[at:at] = draw.choice(['"', ",", ":", "\n", " ", "\\", "x", "Negative prompt:", "é", "1x2"])
        else:
            del characters[at:at + draw.randrange(1, 4)]
    return "".join(characters)


draw = random.Random(13)
texts = WRITTEN + [mutated(draw.choice(WRITTEN[3:]), draw) for _ in range(110)]
path = os.path.join(os.path.dirname(__file__), "../server/sdapi/infotexts.json")
with open(path, "w") as f:
    json.dump([{"text": t, "parameters": parse(t)} for t in texts], f, indent=0, ensure_ascii=False)
    f.write("\n")
print(f"{len(texts)} infotexts")
