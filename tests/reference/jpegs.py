"""Writes small JPEG files of every supported kind, and Pillow's results for them.

usage: jpegs.py FOLDER        (tests/pictures/jpegs)

FOLDER gets jpegs.bin, the files one after the other, and jpegs.tsv with a line
"NAME BYTES WIDTH HEIGHT SHA256" for each: the picture's upright size, and the digest of its pixels
as ImageOps.exif_transpose(...).convert("RGB") gives them.
Needs Pillow (13.0.0 was used, with its libjpeg-turbo 3.2.0), numpy, and cjpeg for the kinds that
Pillow cannot write (libjpeg-turbo-progs 2.1.5).
"""
import hashlib
import io
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image, ImageOps

SIZES = [(1, 1), (7, 5), (8, 8), (17, 9), (33, 31), (40, 24)]
# Sampling of luma and both chromas, in cjpeg's notation: 4:4:0, 4:1:1, 4:1:0, three to one,
# different chromas, only blue halved, luma halved, four rows, and a mixture.
SAMPLINGS = ["1x2,1x1,1x1", "4x1,1x1,1x1", "4x2,1x1,1x1", "3x1,1x1,1x1", "2x2,2x1,1x2", "2x2,1x1,2x2",
             "1x1,2x2,2x2", "1x4,1x1,1x1", "2x1,1x2,1x1"]
EXIF, ADOBE, SCAN = b"\xff\xe1", b"\xff\xee", b"\xff\xda"


def photo(width, height):
    """Returns gradients, edges and noise: [height][width][3]."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x / 5 + y / 9), 255 * ((x // 6 + y // 4) % 2), 255 * x / width]
    noise = np.random.default_rng(width * 1000 + height).normal(0, 9, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8))


def pillow(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def cjpeg(image, *options):
    ppm = io.BytesIO()
    image.save(ppm, "PPM")
    return subprocess.run(["cjpeg", *options], input=ppm.getvalue(), capture_output=True, check=True).stdout


def in_scans(image, scans, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as script:
        script.write(scans)
        script.flush()
        return cjpeg(image, *options, "-scans", script.name)


def exif(orientation, big):
    e = ">" if big else "<"
    return b"Exif\0\0" + (b"MM" if big else b"II") + struct.pack(
        e + "HIHHHIHHI", 42, 8, 1, 0x112, 3, 1, orientation, 0, 0)


def adobe(file, transform):
    """Returns the file with another transform in Adobe's marker; None: without the marker."""
    at = file.index(ADOBE)
    if transform is None:
        return file[:at] + file[at + 16:]
    return file[:at + 15] + bytes([transform]) + file[at + 16:]


def files():
    for w, h in SIZES:
        image = photo(w, h)
        for name, sampling in ("444", 0), ("422", 1), ("420", 2):
            for progressive in False, True:
                yield (f"{w}x{h}_{name}{'_progressive' * progressive}",
                       pillow(image, quality=75, subsampling=sampling, progressive=progressive))
        yield f"{w}x{h}_grey", pillow(image.convert("L"), quality=80)
        yield f"{w}x{h}_grey_progressive", pillow(image.convert("L"), quality=60, progressive=True)
        for sampling in 0, 2:
            yield f"{w}x{h}_cmyk_{sampling}", pillow(image.convert("CMYK"), quality=85, subsampling=sampling)
        for sampling in SAMPLINGS:
            name = sampling.replace(",", "_")
            yield f"{w}x{h}_{name}", cjpeg(image, "-quality", "80", "-sample", sampling)
    image = photo(37, 27)
    for sampling in SAMPLINGS:
        name = sampling.replace(",", "_")
        yield f"{name}_progressive", cjpeg(image, "-quality", "85", "-sample", sampling, "-progressive")
    for quality in 1, 5, 25, 50, 95, 100:
        yield f"quality{quality}", pillow(image, quality=quality)
    for o in range(1, 9):
        turned = {"quality": 70, "exif": exif(o, o % 2)}
        yield f"turned{o}", pillow(image, **turned)
        yield f"turned{o}_grey", pillow(image.convert("L"), **turned)
        yield f"turned{o}_cmyk", pillow(image.convert("CMYK"), **turned)
        yield f"turned{o}_progressive", pillow(image, progressive=True, **turned)
    for blocks in 1, 2, 7:
        yield f"restarts{blocks}", pillow(image, restart_marker_blocks=blocks)
        yield f"restarts{blocks}_progressive", pillow(image, restart_marker_blocks=blocks, progressive=True)
        yield f"restarts{blocks}_cmyk", pillow(image.convert("CMYK"), restart_marker_blocks=blocks)
    yield "restart_rows", cjpeg(image, "-restart", "1", "-sample", "2x1")
    yield "rgb", pillow(image, keep_rgb=True)
    yield "rgb_progressive", pillow(image, keep_rgb=True, progressive=True)
    yield "rgb_by_name", cjpeg(image, "-rgb", "-quality", "90")
    yield "no_restart_tables", pillow(image, optimize=True)
    yield "fine_tables", pillow(image, qtables=[[1] * 64, [2] * 64])
    yield "wide_tables", cjpeg(image, "-quality", "2")  # 16-bit tables make an extended file
    yield "from_three_scans", in_scans(image, "0;\n1;\n2;\n")
    yield "from_two_scans", in_scans(image, "0 2;\n1;\n", "-sample", "2x1")
    yield "bits_one_by_one", in_scans(image, "0 1 2: 0-0, 0, 2;\n0: 1-63, 0, 3;\n0 1 2: 0-0, 2, 1;\n"
                                             "0 1 2: 0-0, 1, 0;\n0: 1-63, 3, 2;\n1: 1-63, 0, 0;\n2: 1-63, 0, 0;\n"
                                             "0: 1-63, 2, 1;\n0: 1-63, 1, 0;\n")
    cmyk = photo(37, 27).convert("CMYK")
    for name, options in ("", {}), ("_progressive", {"progressive": True}), ("_420", {"subsampling": 2}):
        inks = pillow(cmyk, quality=90, **options)
        yield f"cmyk{name}", inks
        yield f"cmyk_without_adobe{name}", adobe(inks, None)
        yield f"ycck{name}", adobe(inks, 2)
        yield f"inks_of_an_unknown_transform{name}", adobe(inks, 7)
    yield "adobe_without_transform", adobe(pillow(image, keep_rgb=True, quality=90), 0)
    yield "adobe_ycc", adobe(pillow(image, keep_rgb=True, quality=90), 1)
    # Files that lack their last scans: libjpeg smooths areas whose details are missing. None of
    # them has 4:2:0 sampling, where versions 2.1.5 and 3.2.0 smooth differently.
    whole = pillow(image, quality=80, subsampling=0, progressive=True)
    starts = [at for at in range(len(whole)) if whole[at:at + 2] == SCAN]
    for count in 1, 3, 6, len(starts) - 1:
        yield f"first_scans{count}", whole[:starts[count]] + b"\xff\xd9"
    # Damaged bits: libjpeg guesses the values.
    whole = pillow(image, quality=80, restart_marker_blocks=2)
    scan = whole.index(SCAN) + 14
    for at in range(scan, len(whole) - 2, (len(whole) - scan) // 8):
        if whole[at] != 0xff and whole[at - 1] != 0xff and whole[at] ^ 0x10 != 0xff:
            yield f"damaged{at}", whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:]
    yield "behind_its_end", pillow(image) + b"and more, which is no part of it"


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    table, packed, names = "", b"", set()
    for name, data in files():
        assert name not in names, name
        names.add(name)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        table += f"{name} {len(data)} {image.width} {image.height} {hashlib.sha256(image.tobytes()).hexdigest()}\n"
        packed += data
    for name, data in ("jpegs.tsv", table.encode()), ("jpegs.bin", packed):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
    print(f"{len(names)} files, {len(packed)} bytes")


main()
