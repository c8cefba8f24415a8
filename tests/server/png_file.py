"""Writes PNG files in a few lines, without a library."""
import base64
import struct
import zlib


def png_file(width, height, pixel):
    """Returns a PNG's bytes. pixel(x, y) returns (red, green, blue)."""
    return png_of_rows(width, [b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height)])


def png_of_rows(width, rows):
    """Returns a PNG's bytes, given the bytes of each row."""
    height, rows = len(rows), b"".join(b"\0" + row for row in rows)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def png_base64(width, height, pixel):
    return base64.b64encode(png_file(width, height, pixel)).decode()


def gradient(x, y):
    return x * 5 % 256, y * 3 % 256, x * y // 16 % 256


def left_half(width):
    """Returns the pixels of a mask whose white left half is drawn anew."""
    return lambda x, y: (255,) * 3 if 2 * x < width else (0,) * 3
