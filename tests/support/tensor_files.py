"""Safetensors and GGUF files as Python objects: read (safetensors only) and written, with nothing but the standard
library. Owns the containers' bytes; what the tensors mean, and whether they fit together, is the caller's business:
tests write wrong files with it on purpose.
"""
import dataclasses
import json
import struct

from ggml_blocks import TYPES

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
               "F8_E4M3": 1, "F8_E8M0": 1, "F8_E5M2": 1}  # fmt: skip


@dataclasses.dataclass
class Tensor:
    """`dtype` is the file format's name; `shape` counts values, outermost first, in both formats."""

    dtype: str
    shape: list
    data: bytes


def read_safetensors(path):
    """(metadata, {name: Tensor}) of a file that is known to be well-formed."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = Tensor(entry["dtype"], entry["shape"], content[begin:end])
    return metadata, tensors


def safetensors_bytes(tensors, metadata=None):
    """The file's bytes. The header is padded with spaces, so that the data begins at a multiple of 8."""
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values())


def by_alignment(tensors):
    """The same tensors in an order that aligns each to its elements: wide ones first."""
    return dict(sorted(tensors.items(), key=lambda item: -DTYPE_BYTES[item[1].dtype]))


# GGUF version 3, little endian.

ALIGNMENT = 32  # Where general.alignment is not given.
VALUE_FORMATS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
                 "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}  # fmt: skip
STRING, ARRAY = 8, 9


def gguf_string(text):
    content = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(content)) + content


def gguf_value(kind, value):
    """A value with its type in front. `kind` is a key of VALUE_FORMATS, "string", or one of them behind "[]"."""
    if kind.startswith("[]"):
        items = [gguf_value(kind[2:], item) for item in value]
        number = STRING if kind == "[]string" else VALUE_FORMATS[kind[2:]][0]
        return struct.pack("<IIQ", ARRAY, number, len(items)) + b"".join(item[4:] for item in items)
    if kind == "string":
        return struct.pack("<I", STRING) + gguf_string(value)
    number, letter = VALUE_FORMATS[kind]
    return struct.pack("<I" + letter, number, value)


def gguf_bytes(metadata, tensors, alignment=ALIGNMENT):
    """The file's bytes. `metadata` maps a key to (kind, value); a tensor's dtype is one of TYPES or a type's number."""
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [gguf_string(key) + gguf_value(*value) for key, value in metadata.items()]
    data, offset = [], 0
    for name, tensor in tensors.items():
        number = tensor.dtype if isinstance(tensor.dtype, int) else TYPES[tensor.dtype][0]
        dims = list(reversed(tensor.shape))
        header.append(gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
        padded = tensor.data + bytes(-len(tensor.data) % alignment)
        data.append(padded)
        offset += len(padded)
    head = b"".join(header)
    return head + bytes(-len(head) % alignment) + b"".join(data)
