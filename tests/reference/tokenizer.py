"""Compares our tokenizer with transformers' CLIPTokenizer (fast) on seeded random strings.

usage: tokenizer.py VOCABULARY_FOLDER TOKENIZE_TOOL [--count 10000] [--seed 1]
           [--characters] [--sample FILE]

The folder holds vocab.json and merges.txt; the tool is the build's tests/models/tokenize_tool.
Prints how many strings get equal ids; exits with 1 unless all do. --characters instead compares
every single Unicode character, between two letters. --sample writes some of the strings with their
ids,
for the test that runs without Python. Needs transformers (5.23.0 was used).
"""
import argparse
import json
import os
import random
import subprocess
import sys
import unicodedata

CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "''s", "'x"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b",
          "\ufeff", "\u180e", "\x1c", "\u1680"]
WORDS = """a an the photo of painting astronaut riding horse cat dog masterpiece best quality highly
detailed 4k 8K HDR cinematic lighting portrait woman man castle Sea SUNSET watercolor don't it's
they're I'll we've you'd cyberpunk unreal engine trending artstation Greg Rutkowski concept art
sharp focus illustration digital intricate elegant smooth volumetric bokeh 35mm f/1.8 octane render
(masterpiece:1.2) [low quality] <lora:name:0.8> best-quality, ((hands)) BREAK AND café naïve Zürich
Ærøskøbing straße İstanbul ΟΔΥΣΣΕΥΣ Ωmega ﬁne""".split()
EMOJI = ["🐱", "👩‍🚀", "🏳️‍🌈", "👍🏽", "🇯🇵", "❤️", "🫠", "1️⃣", "⭐", "🧑‍🤝‍🧑"]
CJK = ["猫", "宇航员骑马", "桜の木", "ネコ", "ひらがな", "한국어", "가", "\u1100\u1161\u11a8", "，", "。", "「", "」"]
SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|ENDOFTEXT|>", "<|StartOfText|>", "<|endoftext|",
            "<|end", "|>", "</w>"]
# Unicode ranges from which letters, marks, digits and signs are drawn.
BLOCKS = [(0x21, 0x7e), (0xa1, 0xff), (0x100, 0x24f), (0x250, 0x2ff), (0x300, 0x36f),
          (0x370, 0x3ff), (0x400, 0x52f), (0x531, 0x58f), (0x591, 0x5f4), (0x600, 0x6ff),
          (0x900, 0x97f), (0xe01, 0xe5b), (0x10a0, 0x10ff), (0x1e00, 0x1fff), (0x2010, 0x206f),
          (0x2070, 0x209f), (0x20a0, 0x20bf), (0x2100, 0x214f), (0x2150, 0x218b), (0x2190, 0x23ff),
          (0x2460, 0x24ff), (0x2500, 0x27bf), (0x3041, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3),
          (0xfb00, 0xfb06), (0xff01, 0xff5e), (0x10400, 0x1044f), (0x1d400, 0x1d7ff),
          (0x1f300, 0x1f64f), (0x1f680, 0x1f6ff), (0x20000, 0x2a6df)]


def character(rng):
    low, high = rng.choice(BLOCKS)
    return chr(rng.randint(low, high))


def accented(rng):
    """Returns a letter with marks, sometimes decomposed, sometimes with too many marks."""
    text = rng.choice("aeiounczlsyAEIOUNCZ") + "".join(
        chr(rng.choice([0x300, 0x301, 0x302, 0x303, 0x308, 0x30a, 0x323, 0x327, 0x328, 0x345]))
        for _ in range(rng.randint(1, 3)))
    return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC"]), text)


def part(rng):
    return rng.choice([
        lambda: rng.choice(WORDS), lambda: rng.choice(WORDS), lambda: rng.choice(WORDS),
        lambda: rng.choice(WORDS) + rng.choice(CONTRACTIONS),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 9))),
        lambda: f"{rng.random():.3f}",
        lambda: rng.choice(EMOJI), lambda: rng.choice(CJK), lambda: rng.choice(SPECIALS),
        lambda: "".join(accented(rng) for _ in range(rng.randint(1, 5))),
        lambda: "".join(character(rng) for _ in range(rng.randint(1, 8))),
        lambda: "".join(chr(rng.randint(low, high)) for low, high in [rng.choice(BLOCKS)]
                        for _ in range(rng.randint(1, 8))),
        lambda: chr(rng.choice(list(range(1, 32)) + list(range(127, 160)))),
        lambda: rng.choice("!?.,;:-_()[]{}|\\/@#$%^&*+=~`\"'<>") * rng.randint(1, 6),
        lambda: "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 30))),
    ])()


def random_text(rng):
    size = rng.choice([0, 1, 1, 2, 3, 5, 8, 12, 20, 40])
    if rng.random() < 0.01:
        size = 400  # long
    text = rng.choice(["", "", "", rng.choice(SPACES)])
    for _ in range(size):
        text += part(rng) + (rng.choice(SPACES) if rng.random() < 0.3 else rng.choice(["", " "]))
    if rng.random() < 0.02:
        text += part(rng) * 200  # one long word, or a long run of signs
    return text


def characters():
    for code in range(1, 0x110000):
        if not 0xd800 <= code < 0xe000:
            yield f"a{chr(code)}b"


def ours(tool, folder, texts):
    run = subprocess.run([tool, folder], input=json.dumps(texts, ensure_ascii=False).encode(),
                         stdout=subprocess.PIPE, check=True)
    lines = run.stdout.decode().split("\n")[:-1]
    return [[int(x) for x in line.split()] if not line.startswith("error") else line
            for line in lines]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--characters", action="store_true")
    parser.add_argument("--sample")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import CLIPTokenizer, __version__
    tokenizer = CLIPTokenizer.from_pretrained(options.folder)
    rng = random.Random(options.seed)
    texts = list(characters()) if options.characters else [
        random_text(rng) for _ in range(options.count)]
    truth = []
    for first in range(0, len(texts), 10000):
        batch = texts[first:first + 10000]
        truth += tokenizer(batch, add_special_tokens=False).input_ids
    found = ours(options.tool, options.folder, texts)
    different = [(t, a, b) for t, a, b in zip(texts, truth, found) if a != b]
    for text, a, b in different[:20]:
        print(f"{text[:80]!r}\n  transformers {a[:20]}\n  latentd      {b[:20]}")
    if options.characters and different:
        print("characters:", " ".join(f"{ord(t[1]):04X}" for t, _, _ in different))
    equal = len(texts) - len(different)
    print(f"{equal} of {len(texts)} equal (transformers {__version__}, "
          f"{sum(map(len, truth))} tokens)")
    if options.sample:
        short = [(t, a) for t, a in zip(texts, truth) if len(t) < 120][:300]
        with open(options.sample, "w", encoding="ascii") as f:
            f.write("[\n" + ",\n".join(json.dumps([t, a]) for t, a in short) + "\n]\n")
    sys.exit(0 if equal == len(texts) and len(found) == len(texts) else 1)


if __name__ == "__main__":
    main()
