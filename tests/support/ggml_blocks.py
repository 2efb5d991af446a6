"""Number formats of checkpoints in plain Python: bf16, fp16, e4m3 and the ggml block types that the tests write.

Owns what a block's bytes mean, both ways. The quantisers are the simplest ones whose bytes are valid: how well they
approximate is of no interest here. `encode` takes rows one after the other whose length is a multiple of the block;
`decode` gives the exact values rounded to float32 as ggml's decoders do, `bf16_of` rounds those once more.
"""
import array
import bisect
import math
import struct
import sys

# Those that are written here, and some that others have. Name -> (number in GGUF, values of a block, bytes of a block).
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "I8": (24, 1, 1),
    "I32": (26, 1, 4),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
UE8M0_BIAS = 127


def little_endian(numbers):
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers


def words(typecode, data):
    return little_endian(array.array(typecode, data))


def bytes_of(typecode, values):
    return little_endian(array.array(typecode, values)).tobytes()


def f32(value):
    """The float32 nearest to a value, as Python's float."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def f16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def bf16_bytes(values):
    """bfloat16 bytes of float32 values, to nearest even."""
    bits = words("I", bytes_of("f", values))
    return bytes_of("H", ((b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits))


def from_bf16(data):
    return words("f", bytes_of("I", (b << 16 for b in words("H", data))))


def is_bf16_exact(f32_data):
    """Whether float32 bytes have nothing in the half that bfloat16 lacks."""
    return not any(word & 0xFFFF for word in words("I", f32_data))


def e4m3(code):
    """The value of an OCP e4m3 "fn" code; 0x7F and 0xFF are NaN."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    value = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -value if code & 0x80 else value


E4M3 = [e4m3(code) for code in range(256)]


def expand_fp8(codes, scales, rows, cols):
    """float32 values of e4m3 codes [rows, cols] with an e8m0 byte per 32 x 32 block."""
    per_row = (cols + 31) // 32
    values = array.array("f", bytes(4 * rows * cols))
    for i, code in enumerate(codes):
        exponent = scales[i // cols // 32 * per_row + i % cols // 32] - UE8M0_BIAS
        values[i] = math.ldexp(E4M3[code], exponent)
    return values


def encode(kind, values):
    """float32 values as the bytes of a type."""
    if kind == "F32":
        return bytes_of("f", values)
    if kind == "BF16":
        return bf16_bytes(values)
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    size = TYPES[kind][1]
    if len(values) % size:
        raise ValueError(f"{len(values)} values are no whole blocks of {kind}, need a multiple of {size}")
    block = {"Q8_0": encode_q8_0, "Q4_K": encode_q4_k, "MXFP4": encode_mxfp4}[kind]
    return b"".join(block(values[i : i + size]) for i in range(0, len(values), size))


def decode(kind, data):
    """The float32 values of a type's bytes."""
    if kind == "F32":
        return words("f", data)
    if kind == "BF16":
        return from_bf16(data)
    if kind == "F16":
        return array.array("f", struct.unpack(f"<{len(data) // 2}e", data))
    block = {"Q8_0": decode_q8_0, "Q2_K": decode_q2_k, "Q4_K": decode_q4_k, "MXFP4": decode_mxfp4}[kind]
    size = TYPES[kind][2]
    values = array.array("f")
    for i in range(0, len(data), size):
        values.extend(block(data[i : i + size]))
    return values


# Q8_0: fp16 d, 32 int8; value d * q.


def encode_q8_0(values):
    d = max(abs(v) for v in values) / 127
    codes = (max(-127, min(127, round(v / d))) if d else 0 for v in values)
    return struct.pack("<e32b", d, *codes)


def decode_q8_0(block):
    d, *codes = struct.unpack("<e32b", block)
    return [d * code for code in codes]


# MXFP4: an e8m0 byte, 16 bytes of e2m1 codes; byte j holds elements j (low nibble) and j + 16. ggml has no negative
# zero.


def encode_mxfp4(values):
    amax = max(abs(v) for v in values)
    exponent = max(-UE8M0_BIAS + 1, math.frexp(amax)[1] - 3) if amax else 0  # amax / 2^exponent in [4, 8)
    middles = [(low + high) / 2 for low, high in zip(E2M1, E2M1[1:])]
    codes = [bisect.bisect(middles, abs(math.ldexp(v, -exponent))) | (8 if v < 0 else 0) for v in values]
    return bytes([exponent + UE8M0_BIAS]) + bytes(codes[j] | codes[j + 16] << 4 for j in range(16))


def decode_mxfp4(block):
    codes = [b & 15 for b in block[1:]] + [b >> 4 for b in block[1:]]
    return [math.ldexp(-E2M1[c & 7] if c > 8 else E2M1[c & 7], block[0] - UE8M0_BIAS) for c in codes]


# Q4_K: fp16 d and dmin, 12 bytes of eight 6-bit scales s and mins m, 128 bytes of codes; value d * s * q - dmin * m for
# each 32 values. Of 64 values the low nibbles of 32 bytes are the first 32, the high nibbles the others.


def encode_q4_k(values):
    groups = [values[i : i + 32] for i in range(0, 256, 32)]
    lows = [max(0.0, -min(group)) for group in groups]
    steps = [(max(group) + low) / 15 for group, low in zip(groups, lows)]
    d, dmin = f16(max(0.0, *steps) / 63), f16(max(lows) / 63)
    scales = [min(63, max(0, round(step / d))) if d else 0 for step in steps]
    mins = [min(63, round(low / dmin)) if dmin else 0 for low in lows]
    codes = []
    for group, scale, minimum in zip(groups, scales, mins):
        step = d * scale
        codes += [max(0, min(15, round((v + dmin * minimum) / step))) if step else 0 for v in group]
    packed = [scales[j] | (scales[j + 4] >> 4) << 6 for j in range(4)]
    packed += [mins[j] | (mins[j + 4] >> 4) << 6 for j in range(4)]
    packed += [scales[j + 4] & 15 | (mins[j + 4] & 15) << 4 for j in range(4)]
    nibbles = bytes(codes[64 * c + j] | codes[64 * c + 32 + j] << 4 for c in range(4) for j in range(32))
    return struct.pack("<2e", d, dmin) + bytes(packed) + nibbles


def decode_q4_k(block):
    d, dmin = struct.unpack("<2e", block[:4])
    packed, nibbles = block[4:16], block[16:]
    scales = [packed[j] & 63 for j in range(4)] + [packed[j + 8] & 15 | packed[j] >> 6 << 4 for j in range(4)]
    mins = [packed[j + 4] & 63 for j in range(4)] + [packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4 for j in range(4)]
    values = []
    for t in range(8):
        codes = nibbles[t // 2 * 32 : t // 2 * 32 + 32]
        values += [d * scales[t] * (code >> t % 2 * 4 & 15) - dmin * mins[t] for code in codes]
    return values


# Q2_K: 16 bytes of scale (low nibble) and min, 64 bytes of 2-bit codes, fp16 d and dmin.


def decode_q2_k(block):
    d, dmin = struct.unpack("<2e", block[80:])
    values = []
    for e in range(256):
        h, i, r = e // 128, e % 128 // 32, e % 32
        code = block[16 + 32 * h + r] >> 2 * i & 3
        nibbles = block[8 * h + 2 * i + r // 16]
        values.append(d * (nibbles & 15) * code - dmin * (nibbles >> 4))
    return values
