"""Writes tests/train/data/shuffle.json: captions whose tags are shuffled by the rule of kohya's scripts
(process_caption of library/train_util.py, written anew here) with Python's random.

usage: python tests/reference/captions.py
"""
import json
import pathlib
import random

CASES = [
    ("a cat, sits , on a mat,outdoors,, at night ", {}), ("one", {}), ("", {}),
    ("a, b, c, d, e, f, g, h", dict(keep_tokens=3)), ("a, b, c", dict(keep_tokens=5)),
    ("1girl, solo ||| hat, red shoes, , tree ||| best, 4k", dict(keep_separator="|||")),
    ("1girl, solo ||| hat, red shoes, tree, sky", dict(keep_separator="|||", keep_tokens=1)),
    ("no such mark, in, this, one", dict(keep_separator="|||", keep_tokens=1)),
    ("a; b, c; d; e", dict(separator=";")), ("\u00e9t\u00e9, \u65e5\u672c\u8a9e, na\u00efve, x", {}),
]


def shuffle_key(seed, epoch, item):
    return ((seed * 1000003 + epoch) * 1000003 + item) % 2 ** 64


def shuffle_caption(caption, key, separator=",", keep_tokens=0, keep_separator=None):
    def tags_of(part):
        return [tag.strip() for tag in part.split(separator) if tag.strip()]

    last = []
    if keep_separator and keep_separator in caption:
        first, free = caption.split(keep_separator, 1)
        if keep_separator in free:
            free, rest = free.split(keep_separator, 1)
            last = tags_of(rest)
        first, free = tags_of(first), tags_of(free)
    else:
        tags = [tag.strip() for tag in caption.strip().split(separator)]
        first, free = tags[:keep_tokens], tags[keep_tokens:]
    random.Random(key).shuffle(free)
    return ", ".join(first + free + last)


if __name__ == "__main__":
    cases = [dict(caption=caption, **options, seed=seed, epoch=epoch, item=item,
                  result=shuffle_caption(caption, shuffle_key(seed, epoch, item), **options))
             for caption, options in CASES for seed, epoch, item in ((7, 0, 0), (7, 1, 0), (2 ** 53 - 1, 3, 11))]
    path = pathlib.Path(__file__).parents[2] / "tests/train/data/shuffle.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")
