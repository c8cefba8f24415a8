"""Runs the commands of docs/images.md with the bundled checkpoint, and looks at what they drew.
usage: images_doc.py EXECUTABLE MODEL DOC"""
import os
import re
import subprocess
import sys
import tempfile
import zlib

from daemon import Daemon, check, done
from png_file import left_half, png_file


def pixels(path):
    """[height][width] of (r, g, b); the PNGs are ours: 8-bit RGB."""
    data = open(path, "rb").read()
    check(data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is a PNG: {data[:80]}")
    width, height = (int.from_bytes(data[i:i + 4], "big") for i in (16, 20))
    at, packed = 8, b""
    while at < len(data):
        size, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    raw, rows, stride = zlib.decompress(packed), [], 3 * width
    before = bytearray(stride)
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            a, b, c = line[i - 3] if i > 2 else 0, before[i], before[i - 3] if i > 2 else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[i] = line[i] + (0, a, b, (a + b) // 2, paeth)[kind] & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, stride, 3)])
        before = line
    return rows


def distance(a, b, columns):
    values = [abs(p - q) for x, y in zip(a, b) for i in columns for p, q in zip(x[i], y[i])]
    return sum(values) / len(values)


executable, model, doc = (os.path.abspath(a) for a in sys.argv[1:4])
commands = re.findall(r"```\n((?:curl|latentd) .*?)```", open(doc).read(), re.S)
check(len(commands) == 6, f"{len(commands)} commands")
with Daemon(executable, model, patience_s=60) as d, tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/mask.png", "wb") as f:
        f.write(png_file(128, 128, left_half(128)))
    for command in commands:
        command = command.replace("localhost:8188", f"{d.host}:{d.port}").replace("share/tiny-sd", model)
        command = command.replace("latentd generate", f"{executable} generate")
        ran = subprocess.run(["bash", "-e", "-c", command], cwd=folder, capture_output=True, text=True)
        check(ran.returncode == 0, f"{command}: {ran.stderr}")
    house, snow, yellow = (pixels(f"{folder}/{name}.png") for name in ("house", "snow", "yellow"))
    left, right = range(0, 56), range(72, 128)
    drawn, kept, other = distance(house, yellow, left), distance(house, yellow, right), distance(house, snow, right)
    print(f"mean difference from house.png: masked {drawn:.1f}, kept {kept:.1f}; without a mask {other:.1f}")
    check(kept < 12, "what is not masked stays, but for the VAE")
    check(drawn > 2 * kept, "what is masked is drawn anew")
    check(other > 2 * kept, "image to image draws all of it")
    jpeg, webp, again = (open(f"{folder}/{n}", "rb").read() for n in ("boat.jpg", "boat.webp", "yellow-again.jpg"))
    check(jpeg[:2] == again[:2] == b"\xff\xd8" and jpeg[-2:] == b"\xff\xd9", "JPEG files")
    check(webp[:4] == b"RIFF" and webp[8:16] == b"WEBPVP8X", "a WebP file with EXIF data")
    if os.environ.get("IMAGES_DOC_KEEP"):
        subprocess.run(["cp", "-r", folder, os.environ["IMAGES_DOC_KEEP"]], check=True)
done()
