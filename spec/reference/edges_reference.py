"""Reference for examples/edges.lua: Canny's method in NumPy and SciPy, with the example's settings.

    python3 spec/reference/edges_reference.py IN.png OUT.png

makes spec/reference/ascent-edges.png and raccoon-edges.png from the pictures in examples/data. Blur and gradients are
SciPy's correlations, and weak edges are kept by connected components instead of growing, so that only the definition is
shared with the example. Pictures are read and written here, with zlib, to need nothing else.
"""
import struct
import sys
import zlib

import numpy as np
from scipy import ndimage

SIGMA, RADIUS, WEAK, STRONG = 1.4, 4, 40, 100


def read_png(path):
    """8-bit grey or RGB, not interlaced."""
    data = open(path, "rb").read()
    at, packed = 8, b""
    while at < len(data):
        count, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + count]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colour in (0, 2) and not interlaced
            channels = 3 if colour == 2 else 1
        elif kind == b"IDAT":
            packed += body
        at += 12 + count
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height, width * channels), np.int32)
    for y in range(height):
        kind, row = rows[y, 0], rows[y, 1:].astype(np.int32)
        above = out[y - 1] if y else np.zeros_like(row)
        for x in range(len(row)):
            left = out[y, x - channels] if x >= channels else 0
            corner = above[x - channels] if x >= channels else 0
            if kind == 0:
                guess = 0
            elif kind == 1:
                guess = left
            elif kind == 2:
                guess = above[x]
            elif kind == 3:
                guess = (left + above[x]) // 2
            else:
                p = left + above[x] - corner
                guess = min((abs(p - left), 0, left), (abs(p - above[x]), 1, above[x]), (abs(p - corner), 2, corner))[2]
            out[y, x] = (row[x] + guess) & 255
    return out.reshape(height, width, channels)


def write_png(path, grey):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = grey.shape
    rows = b"".join(b"\0" + grey[y].tobytes() for y in range(height))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def edges(pixels):
    pixels = pixels.astype(float)
    light = pixels[..., 0] if pixels.shape[2] < 3 else pixels @ np.array([0.299, 0.587, 0.114])
    weights = np.exp(-np.arange(-RADIUS, RADIUS + 1)**2 / (2 * SIGMA**2))
    weights /= weights.sum()
    smooth = ndimage.correlate1d(ndimage.correlate1d(light, weights, axis=1, mode="nearest"), weights, axis=0,
                                 mode="nearest")
    gx = ndimage.sobel(smooth, axis=1, mode="nearest")
    gy = ndimage.sobel(smooth, axis=0, mode="nearest")
    strength = np.hypot(gx, gy)

    # The direction across the edge, to the nearest eighth of a turn.
    turn = np.round(np.arctan2(gy, gx) / (np.pi / 4)).astype(int) % 4
    keep = np.zeros(strength.shape, bool)
    inner = (slice(1, -1), slice(1, -1))
    for eighth, (dx, dy) in enumerate(((1, 0), (1, 1), (0, 1), (-1, 1))):
        if (dx, dy) == (-1, 1):
            dx, dy = 1, -1
        before = np.roll(strength, (dy, dx), (0, 1))
        after = np.roll(strength, (-dy, -dx), (0, 1))
        keep |= (turn == eighth) & (strength > before) & (strength >= after)
    thin = np.zeros_like(keep)
    thin[inner] = keep[inner]
    thin &= strength >= WEAK
    labels, count = ndimage.label(thin, np.ones((3, 3)))
    strong = np.zeros(count + 1, bool)
    strong[labels[thin & (strength >= STRONG)]] = True
    strong[0] = False
    return np.where(strong[labels], 255, 0).astype(np.uint8)


if __name__ == "__main__":
    write_png(sys.argv[2], edges(read_png(sys.argv[1])))
