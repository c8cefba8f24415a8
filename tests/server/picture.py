"""RGB pictures as PNG files. Standard library only."""
import struct
import zlib


def encode(width, height, pixel):
    """Returns the PNG bytes of a picture whose pixel (x, y) is pixel(x, y)."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(x, y)) for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def _unfilter(kind, row, above):
    """Undoes the PNG filter of a row, in place."""
    for i, value in enumerate(row):
        left = row[i - 3] if i >= 3 else 0
        corner = above[i - 3] if i >= 3 else 0
        if kind == 1:
            value += left
        elif kind == 2:
            value += above[i]
        elif kind == 3:
            value += (left + above[i]) // 2
        elif kind == 4:
            estimate = left + above[i] - corner
            value += min((left, above[i], corner), key=lambda v: abs(estimate - v))
        row[i] = value & 255


def decode(data):
    """Returns (width, height, rows of (r, g, b)) of an 8-bit RGB PNG without interlacing."""
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", data[at + 8:at + 21])
            assert rest == [8, 2, 0, 0, 0], rest
        if kind == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    raw, above, rows = zlib.decompress(packed), bytes(3 * width), []
    for y in range(height):
        begin = y * (3 * width + 1)
        row = bytearray(raw[begin + 1:begin + 1 + 3 * width])
        if raw[begin]:
            _unfilter(raw[begin], row, above)
        above = row
        rows.append([tuple(row[x:x + 3]) for x in range(0, 3 * width, 3)])
    return width, height, rows
