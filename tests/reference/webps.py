"""Writes small WebP files of every kind, and Pillow's results for them.

usage: webps.py FOLDER        (tests/pictures/webps)

FOLDER gets
- webps.bin, the files one after the other, and webps.tsv with a line "NAME BYTES WIDTH HEIGHT SHA256
  COUNT SUM" for each: the picture's upright size, the digest of its pixels as
  ImageOps.exif_transpose(...).convert("RGB") gives them, and how many pixels have an alpha of 0, with
  the sum of their positions, counted from 1
- broken.bin and broken.tsv with a line "NAME BYTES WORDS" for each file that is refused, with words
  that the error message must contain
Needs Pillow (13.0.0 was used, with its libwebp 1.6.0) and numpy.
"""
import hashlib
import io
import os
import struct
import sys

import numpy as np
from PIL import Image, ImageOps

SIZES = [(1, 1), (2, 3), (7, 5), (16, 16), (17, 33), (40, 24)]


def photo(width, height, channels=3):
    """Returns gradients, edges and noise, and with four channels an alpha with a hole."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x / 5 + y / 9), 255 * ((x // 6 + y // 4) % 2), 255 * x / width]
    noise = np.random.default_rng(width * 1000 + height).normal(0, 9, (height, width, 3))
    pixels = np.clip(np.stack(planes, -1) + noise, 0, 255)
    if channels == 4:
        alpha = np.clip(255 * (y + x) / (width + height) * 1.5, 0, 255)
        alpha[height // 3:height // 2 + 1, width // 4:width // 2 + 1] = 0
        pixels = np.concatenate([pixels, alpha[:, :, None]], -1)
    return Image.fromarray(pixels.astype(np.uint8))


def webp(image, **options):
    out = io.BytesIO()
    image.save(out, "WEBP", **options)
    return out.getvalue()


def tiff(orientation, big):
    e = ">" if big else "<"
    return (b"MM" if big else b"II") + struct.pack(e + "HIHHHIHHI", 42, 8, 1, 0x112, 3, 1, orientation, 0, 0)


def files():
    for w, h in SIZES:
        rgb, rgba = photo(w, h), photo(w, h, 4)
        for quality in 5, 80, 100:
            yield f"{w}x{h}_lossy{quality}", webp(rgb, quality=quality)
        yield f"{w}x{h}_lossy_alpha", webp(rgba, quality=80)
        yield f"{w}x{h}_lossy_coarse_alpha", webp(rgba, quality=60, alpha_quality=20)
        yield f"{w}x{h}_lossless", webp(rgb, lossless=True)
        yield f"{w}x{h}_lossless_alpha", webp(rgba, lossless=True)
        yield f"{w}x{h}_lossless_exact", webp(rgba, lossless=True, exact=True)
        yield f"{w}x{h}_grey", webp(rgb.convert("L"), quality=80)
        few = rgb.quantize(5, method=Image.Quantize.MEDIANCUT).convert("RGB")
        yield f"{w}x{h}_few_colours", webp(few, lossless=True, method=6)
    image, rgba = photo(37, 27), photo(37, 27, 4)
    for method in range(7):
        yield f"lossy_method{method}", webp(image, method=method, quality=70)
        yield f"lossless_method{method}", webp(image, method=method, lossless=True)
    yield "sharp_yuv", webp(image, quality=70, use_sharp_yuv=True)
    for o in range(1, 9):
        for mark in b"", b"Exif\0\0":
            yield f"turned{o}{'_marked' * bool(mark)}", webp(image, quality=70, exif=mark + tiff(o, o % 2))
        yield f"turned{o}_alpha", webp(rgba, lossless=True, exif=tiff(o, o % 2))
    yield "with_profile", webp(image, icc_profile=b"not a profile", xmp=b"<x/>", exif=tiff(6, True))
    yield "opaque_alpha", webp(image.convert("RGBA"), lossless=True)
    yield "behind_its_end", webp(image) + b"and more, which is no part of it"


def broken():
    image = photo(37, 27)
    lossy, lossless = webp(image), webp(image, lossless=True)
    frames = {"save_all": True, "append_images": [photo(37, 27).rotate(180)], "duration": 100}
    yield "animated", webp(image, **frames), "an animated WebP"
    yield "animated_lossless", webp(image, lossless=True, **frames), "an animated WebP"
    for name, file in ("lossy", lossy), ("lossless", lossless), ("alpha", webp(photo(37, 27, 4))):
        for part in 20, 40, len(file) // 2, len(file) - 3:
            yield f"{name}_cut{part}", file[:part], "cut short"
    yield "no_picture", b"RIFF" + struct.pack("<I", 12) + b"WEBPEXIF" + bytes(4), "cut short"
    at = lossy.index(b"\x9d\x01\x2a")
    yield "no_width", lossy[:at + 3] + b"\0\0" + lossy[at + 5:], "damaged"
    yield "no_start_code", lossy[:at] + b"\0\0\0" + lossy[at + 3:], "damaged"
    at = lossless.index(b"VP8L") + 8
    yield "no_signature", lossless[:at] + b"\0" + lossless[at + 1:], "damaged"


def write(folder, name, rows):
    with open(os.path.join(folder, name + ".bin"), "wb") as f:
        f.write(b"".join(file for _, file, _ in rows))
    with open(os.path.join(folder, name + ".tsv"), "w") as f:
        f.write("".join(f"{kind} {len(file)} {rest}\n" for kind, file, rest in rows))


def result(file):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    holes = 1 + np.flatnonzero(np.asarray(image.convert("RGBA"))[:, :, 3] == 0)
    digest = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
    return f"{image.width} {image.height} {digest} {len(holes)} {holes.sum()}"


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    rows = [(name, file, result(file)) for name, file in files()]
    write(folder, "webps", rows)
    write(folder, "broken", list(broken()))
    print(len(rows), "files")


main()
