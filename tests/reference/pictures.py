"""Writes small PNG and JPEG files of every kind, and Pillow's results for them.

usage: pictures.py FOLDER        (tests/train/datasets/pictures)

FOLDER gets the files, and:
- pictures.tsv: a line "NAME WIDTH HEIGHT" for each file
- pictures.bin: the pixels of all files, as ImageOps.exif_transpose(...).convert("RGB") gives them
- transparent.tsv: a line "NAME COUNT SUM" for each file with pixels of alpha 0: how many, and the sum of
  their positions, counted from 1
- resized.tsv, resized.bin: lines "WIDTH HEIGHT FILTER", and photo.png in these sizes by Image.resize
- noise.tsv: lines "WIDTH HEIGHT FILTER SHA256" of noise() resized
- transformed.bin: two crops of photo.png resized to 85x64, after ToTensor and Normalize, f32 [64][64][3]
- broken.tsv: a line "NAME<TAB>WORDS" for each broken file, with words that the error message must contain
Needs Pillow (13.0.0 was used) and numpy.
"""
import hashlib
import io
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

W, H = 27, 19


def photo(width, height, seed=1):
    """Returns smooth gradients, sharp edges and some noise: [height][width][3]."""
    y, x = np.mgrid[0:height, 0:width]
    rng = np.random.default_rng(seed)
    planes = [127 + 120 * np.sin(x / 5 + y / 9), 255 * ((x // 6 + y // 4) % 2), 255 * x / width]
    noisy = np.stack(planes, -1) + rng.normal(0, 9, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def noise(width, height):
    """Returns a picture of bytes from a linear congruential generator, which the C test repeats."""
    state, values = 1, bytearray()
    for _ in range(3 * width * height):
        state = (1664525 * state + 1013904223) % 2**32
        values.append(state >> 24)
    return Image.frombytes("RGB", (width, height), bytes(values))


def smooth(width, height):
    """Returns a picture that survives chroma subsampling and an 8x8 transform:
    [height][width][3]."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 100 * np.sin(x / 9), 127 + 100 * np.cos(y / 8), 255 * (x + y) / (width + height)]
    return np.stack(planes, -1).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, colour, depth, palette=None, trns=None, interlaced=False, extra=b"", late=b""):
    """Packs pixels [height][width][channels], integers, at `depth` bits."""
    height, width = pixels.shape[:2]
    raw = b""
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
                  (0, 1, 1, 2)]
    for x0, y0, dx, dy in passes:
        part = pixels[y0::dy, x0::dx]
        if part.size == 0:
            continue
        for row in part:
            bits = "".join(format(int(v), f"0{depth}b") for v in row.reshape(-1))
            bits += "0" * (-len(bits) % 8)
            raw += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    out = b"\x89PNG\r\n\x1a\n"
    out += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    out += extra
    if palette is not None:
        out += chunk(b"PLTE", bytes(palette))
    if trns is not None:
        out += chunk(b"tRNS", bytes(trns))
    return out + chunk(b"IDAT", zlib.compress(raw)) + late + chunk(b"IEND", b"")


def tiff(orientation, big=False):
    e = ">" if big else "<"
    return (b"MM" if big else b"II") + struct.pack(e + "HIHHHIHHI", 42, 8, 1, 0x112, 3, 1, orientation,
                                                  0, 0)


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def files():
    rng = np.random.default_rng(7)
    rgb = photo(W, H)
    yield "rgb.png", png(rgb, 2, 8)
    yield "rgb_interlaced.png", png(rgb, 2, 8, interlaced=True)
    yield "rgb16.png", png(rng.integers(0, 65536, (H, W, 3)), 2, 16)
    yield "rgba.png", png(rng.integers(0, 256, (H, W, 4)), 6, 8)
    yield "rgba16.png", png(rng.integers(0, 65536, (H, W, 4)), 6, 16)
    yield "rgb_transparent.png", png(rgb, 2, 8, trns=struct.pack(">HHH", *map(int, rgb[0, 0])))
    yield "grey.png", png(rgb[:, :, :1], 0, 8)
    yield "grey16.png", png(rng.integers(0, 65536, (H, W, 1)), 0, 16)
    yield "grey_alpha16.png", png(rng.integers(0, 65536, (H, W, 2)), 4, 16)
    yield "grey_alpha.png", png(rng.integers(0, 256, (H, W, 2)), 4, 8)
    for depth in 1, 2, 4:
        yield f"grey{depth}.png", png(rng.integers(0, 2**depth, (H, W, 1)), 0, depth)
    for depth in 1, 2, 4, 8:
        palette = rng.integers(0, 256, 3 * 2**depth).astype(np.uint8)
        yield f"palette{depth}.png", png(rng.integers(0, 2**depth, (H, W, 1)), 3, depth, palette)
    yield "palette_transparent.png", png(rng.integers(0, 4, (H, W, 1)), 3, 2,
                                         rng.integers(0, 256, 12).astype(np.uint8), [0, 128, 255])
    yield "palette_interlaced.png", png(rng.integers(0, 16, (H, W, 1)), 3, 4,
                                        rng.integers(0, 256, 48).astype(np.uint8), interlaced=True)
    for o in range(1, 9):
        yield f"turned{o}.png", png(rgb, 2, 8, extra=chunk(b"eXIf", tiff(o, o % 2)))
    yield "turned_late.png", png(rgb, 2, 8, late=chunk(b"eXIf", tiff(6)))
    yield "one_pixel.png", png(rgb[:1, :1], 2, 8)

    image = Image.fromarray(smooth(37, 27))
    for name, sampling in ("444", 0), ("422", 1), ("420", 2):
        yield f"jpeg{name}.jpg", jpeg(image, quality=92, subsampling=sampling)
        yield f"jpeg{name}_progressive.jpg", jpeg(image, quality=92, subsampling=sampling,
                                                  progressive=True)
    yield "jpeg_restarts.jpg", jpeg(image, quality=80, restart_marker_blocks=2)
    yield "jpeg_grey.jpg", jpeg(image.convert("L"), quality=92)
    yield "jpeg_rgb.jpg", jpeg(image, quality=92, keep_rgb=True)
    yield "jpeg_cmyk.jpg", jpeg(image.convert("CMYK"), quality=95)
    for o in range(1, 9):
        yield f"turned{o}.jpg", jpeg(image, quality=92, exif=b"Exif\0\0" + tiff(o, o % 2))
    yield "second_behind.jpg", jpeg(image, quality=92) + jpeg(image.convert("L"))


def broken():
    """Yields (name, bytes, words of the error message)."""
    good_png = png(photo(W, H), 2, 8)
    good_jpeg = jpeg(Image.fromarray(smooth(37, 27)), quality=90)
    frame = good_jpeg.index(b"\xff\xc0")
    yield "empty.png", b"", "an empty file"
    yield "text.png", b"not a picture at all", "PNG, JPEG or WebP"
    yield "gif.png", b"GIF89a" + bytes(20), "a GIF"
    yield "webp.jpg", b"RIFF\0\0\0\0WEBPVP8 " + bytes(20), "the WebP is damaged"
    yield "cut.png", good_png[:len(good_png) // 2], "cut short"
    yield "no_end.png", good_png[:-12], "IEND"
    sum_at = good_png.index(b"IDAT") + 9
    yield "sum.png", good_png[:sum_at] + b"\x55" + good_png[sum_at + 1:], "damaged"
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    yield "huge.png", huge + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "60000x60000"
    wide = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16000, 16000, 8, 2, 0, 0, 0))
    yield "pixels.png", wide + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "100 million"
    none = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 9, 8, 2, 0, 0, 0))
    yield "none.png", none + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "0x9"
    yield "no_header.png", b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "IHDR"
    few = png(photo(W, H)[:9], 2, 8)
    yield "few_rows.png", few[:20] + struct.pack(">I", H) + few[24:29] + struct.pack(
        ">I", zlib.crc32(few[12:20] + struct.pack(">I", H) + few[24:29])) + few[33:], "damaged"
    yield "cut.jpg", good_jpeg[:len(good_jpeg) * 2 // 3], "cut short"
    yield "cut_head.jpg", good_jpeg[:100], "cut short"
    yield "no_pixels.jpg", good_jpeg[:2] + b"\xff\xd9", "no pixels"
    yield "arithmetic.jpg", good_jpeg[:frame] + b"\xff\xc9" + good_jpeg[frame + 2:], "arithmetic-coded"
    yield "lossless.jpg", good_jpeg[:frame] + b"\xff\xc3" + good_jpeg[frame + 2:], "lossless"
    yield "twelve_bits.jpg", good_jpeg[:frame + 4] + b"\x0c" + good_jpeg[frame + 5:], "12 bits"
    yield "no_marker.jpg", good_jpeg[:frame] + b"\0\0" + good_jpeg[frame:], "not the beginning of a marker"
    yield "two_frames.jpg", good_jpeg[:frame] + good_jpeg[frame:frame + 19] + good_jpeg[frame:], "two frames"
    small = jpeg(Image.fromarray(smooth(8, 8)[:, :, 0]))
    scan = small.index(b"\xff\xda")
    yield "scans.jpg", small[:scan] + small[scan:-2] * 70 + b"\xff\xd9", "more than 64 scans"
    tables = good_jpeg.index(b"\xff\xc4")
    yield "no_tables.jpg", good_jpeg[:tables + 5] + b"\xff" * 16 + good_jpeg[tables + 21:], "damaged"


RESIZED = [(22, 16, "bilinear"), (22, 16, "lanczos"), (85, 63, "bilinear"), (85, 63, "lanczos"),
           (30, 22, "lanczos"), (60, 9, "bilinear"), (60, 9, "lanczos"), (11, 45, "bilinear"),
           (11, 45, "lanczos"), (1, 1, "bilinear"), (1, 1, "lanczos"), (3, 60, "lanczos"),
           (60, 45, "lanczos"), (61, 44, "bilinear"), (61, 44, "lanczos"),
           (50, 25, "lanczos"), (51, 25, "lanczos"), (61, 46, "lanczos"), (52, 9, "bilinear"),
           (22, 16, "bicubic"), (85, 63, "bicubic"), (11, 45, "bicubic")]


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)

    def write(name, data):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)

    table, holes, pixels = "", "", b""
    for name, data in files():
        write(name, data)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if image.mode == "I;16":  # keeps the high byte, as for 16-bit RGB; `convert` would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if name.endswith(".png"):
            places = 1 + np.flatnonzero(np.asarray(image.convert("RGBA"))[:, :, 3] == 0)
            holes += f"{name} {len(places)} {places.sum()}\n" if len(places) else ""
        image = image.convert("RGB")
        table += f"{name} {image.width} {image.height}\n"
        pixels += image.tobytes()
    write("pictures.tsv", table.encode())
    write("transparent.tsv", holes.encode())
    write("pictures.bin", pixels)
    source = Image.fromarray(photo(60, 45, seed=2))
    write("photo.png", png(np.asarray(source), 2, 8))
    filters = {"bilinear": Image.BILINEAR, "lanczos": Image.LANCZOS,
               "bicubic": Image.BICUBIC}
    write("resized.tsv", "".join(f"{w} {h} {f}\n" for w, h, f in RESIZED).encode())
    write("resized.bin", b"".join(source.resize((w, h), filters[f]).tobytes() for w, h, f in RESIZED))
    loud, table = noise(640, 480), ""
    for w, h in (333, 250), (1000, 301), (64, 64):
        for f in filters:
            digest = hashlib.sha256(loud.resize((w, h), filters[f]).tobytes()).hexdigest()
            table += f"{w} {h} {f} {digest}\n"
    write("noise.tsv", table.encode())
    resized = np.asarray(source.resize((85, 64), Image.LANCZOS))  # Resize(64)
    values = []
    for top, left, flip in (0, 10, False), (0, 3, True):  # CenterCrop: round(21 / 2) is 10
        part = resized[top:top + 64, left:left + 64]
        part = part[:, ::-1] if flip else part
        tensor = part.astype(np.float32) / np.float32(255)
        values.append((tensor - np.float32(0.5)) / np.float32(0.5))
    write("transformed.bin", b"".join(v.astype("<f4").tobytes() for v in values))
    table = ""
    for name, data, words in broken():
        write("broken_" + name, data)
        table += f"broken_{name}\t{words}\n"
    write("broken.tsv", table.encode())


main()
