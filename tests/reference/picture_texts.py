"""Writes pictures with texts, made by Pillow: tests/pictures/texts/*. usage: picture_texts.py"""
import io
import os

from PIL import ExifTags, Image, PngImagePlugin

folder = os.path.join(os.path.dirname(__file__), "../pictures/texts")
os.makedirs(folder, exist_ok=True)
picture = Image.new("RGB", (8, 8), (10, 200, 90))
LATIN, WIDE = "a café\nSteps: 20", "ein Bär, 猫 🐈\nSteps: 20"


def png(name, *texts, after=()):
    info = PngImagePlugin.PngInfo()
    for kind, keyword, text in texts:
        if kind == "iTXt":
            info.add_itxt(keyword, text, zip=len(text) > 100)
        else:
            info.add_text(keyword, text, zip=kind == "zTXt")
    out = io.BytesIO()
    picture.save(out, "PNG", pnginfo=info)
    data = out.getvalue()
    for keyword, text in after:
        chunk = PngImagePlugin.PngInfo()
        chunk.add_text(keyword, text)
        out = io.BytesIO()
        picture.save(out, "PNG", pnginfo=chunk)
        other = out.getvalue()
        begin = other.index(b"tEXt") - 4
        size = int.from_bytes(other[begin:begin + 4], "big") + 12
        data = data[:-12] + other[begin:begin + size] + data[-12:]  # before IEND
    with open(f"{folder}/{name}", "wb") as f:
        f.write(data)


def exif(name, format, comment, order):
    data = Image.Exif()
    data.endian = order
    data.get_ifd(ExifTags.IFD.Exif)[0x9286] = comment
    picture.save(f"{folder}/{name}", format, exif=data.tobytes())


png("plain.png", ("tEXt", "parameters", LATIN), ("tEXt", "Software", "x"))
png("wide.png", ("iTXt", "parameters", WIDE))
png("packed.png", ("zTXt", "parameters", LATIN), ("iTXt", "long", WIDE * 20))
png("twice.png", ("tEXt", "parameters", "first"), ("tEXt", "parameters", "second"))
png("behind.png", ("tEXt", "Comment", "before"), after=[("parameters", "behind the pixels")])
png("none.png")
wide = b"UNICODE\0" + WIDE.encode("utf-16-be")
exif("comment.jpg", "JPEG", wide, "<")
exif("big.jpg", "JPEG", wide, ">")
exif("ascii.jpg", "JPEG", b"ASCII\0\0\0a cat", "<")
exif("comment.webp", "WEBP", wide, "<")
picture.save(f"{folder}/none.jpg", "JPEG")
picture.save(f"{folder}/none.webp", "WEBP")
print(sorted(os.listdir(folder)))
