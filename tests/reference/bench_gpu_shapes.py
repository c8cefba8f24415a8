"""Parses the lines of kcheck --bench, turns them into operations of torch, and compares the
times with torch's."""

import re

LINE = re.compile(r"^(\w+)\s+(.*\S)\s+([\d.]+) ms\s+([\d.]+) (TFLOP/s|GFLOP/s|GB/s)"
                  r"(?:, +([\d.]+) % of peak)?$")
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
LINEAR = re.compile(r"^linear (\d+)x(\d+)x(\d+)x(\d+)")
CONV = re.compile(r"^conv2d (1x1|3x3(?: down right| down| up)?) (\d+)x(\d+)x(\d+)x(\d+) to (\d+)")
NORM = re.compile(r"^(group_norm|layer_norm) (\d+)x(\d+)x(\d+)x(\d+) in (\d+)")
ATTENTION = re.compile(r"^attention (\d+)x(\d+) to (\d+) (\d+) heads of (\d+)")


def parse(text):
    """Returns {"peak": text, "rows": [...]} from kcheck's output."""
    out = {"peak": "unknown", "rows": []}
    for line in text.splitlines():
        found = LINE.match(line)
        if found:
            out["rows"].append({
                "name": f"{found[1]} {found[2]}", "ms": float(found[3]), "rate": float(found[4]),
                "unit": found[5], "share_percent": float(found[6]) if found[6] else None})
        elif line.startswith("peak of the device: "):
            out["peak"] = line.split(": ", 1)[1]
    return out


def join(found, theirs):
    """Adds torch's time to each row, and how many times as fast latentd is."""
    for row in found["rows"]:
        time = theirs.get("times", {}).get(row["name"])
        if time:
            row.update(peer_ms=time["ms"], peer=time["by"],
                       ratio=time["ms"] / row["ms"] if row["ms"] else None)


def understand(name):
    """Returns a row's operation as numbers and words; None if torch has no equivalent."""
    words = name.split()
    out = {"dtype": DTYPES.get(words[-1]), "words": set(words)}
    for kind, pattern in (("linear", LINEAR), ("conv2d", CONV), ("norm", NORM),
                          ("attention", ATTENTION)):
        found = pattern.match(name)
        if found and out["dtype"]:
            values = [int(v) if v.isdigit() else v for v in found.groups()]
            return dict(out, kind=kind, values=values)
    return None
