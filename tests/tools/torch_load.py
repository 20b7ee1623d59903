#!/usr/bin/env python3
"""Turns a safetensors file, such as DistributedOptimizer::save_full_state writes, into one that
Python's torch.load reads, and checks it:

    python3 torch_load.py <all.safetensors> <all.pt>

It needs nothing but Python to write; the check takes a Python with torch, and is left out without.
"""

import json
import math
import pathlib
import struct
import sys
import zipfile

# For each dtype: its name in torch, that of its storage, bytes per element.
DTYPES = {"F64": ("float64", "DoubleStorage", 8), "F32": ("float32", "FloatStorage", 4),
          "F16": ("float16", "HalfStorage", 2), "BF16": ("bfloat16", "BFloat16Storage", 2),
          "I64": ("int64", "LongStorage", 8), "I32": ("int32", "IntStorage", 4),
          "I16": ("int16", "ShortStorage", 2), "I8": ("int8", "CharStorage", 1),
          "U8": ("uint8", "ByteStorage", 1), "BOOL": ("bool", "BoolStorage", 1),
          "C64": ("complex64", "ComplexFloatStorage", 8),
          "C128": ("complex128", "ComplexDoubleStorage", 16)}


def open_safetensors(path):
    """Name -> dtype, shape, first and last byte in the file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    for name in json.loads(metadata.get("kolo.complex128", "[]")):  # not part of the format
        header[name]["dtype"] = "C128"
        header[name]["shape"].pop()
    return {name: (entry["dtype"], entry["shape"],
                   *(8 + length + offset for offset in entry["data_offsets"]))
            for name, entry in header.items()}


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value):
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)  # the only length that LibTorch accepts


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def call(module, name, arguments):
    return f"c{module}\n{name}\n".encode() + arguments + b"R"


def pickle_of(tensors):
    """A dictionary of tensors, in pickle's protocol 2: torch stores a tensor's elements in a
    separate file, named by its number."""
    items = b""
    for i, (name, (dtype, shape, *_)) in enumerate(tensors.items()):
        count = math.prod(shape)
        storage = (b"(" + text("storage") + f"ctorch\n{DTYPES[dtype][1]}\n".encode() +
                   text(str(i)) + text("cpu") + number(count) + b"tQ")
        strides = [math.prod(shape[place + 1:]) for place in range(len(shape))]
        hooks = call("collections", "OrderedDict", b")")
        items += text(name) + call(
            "torch._utils", "_rebuild_tensor_v2",
            b"(" + storage + number(0) + numbers(shape) + numbers(strides) + b"\x89" + hooks + b"t")
    return b"\x80\x02}(" + items + b"u."


def write(source, tensors, target):
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive, open(source, "rb") as file:
        archive.writestr("archive/data.pkl", pickle_of(tensors))
        archive.writestr("archive/byteorder", "little")
        for i, (_, _, begin, end) in enumerate(tensors.values()):
            file.seek(begin)
            archive.writestr(f"archive/data/{i}", file.read(end - begin))
        archive.writestr("archive/version", "3\n")


def check(source, tensors, target):
    try:
        import torch
    except ImportError as error:
        print(f"not checked: {error}")
        return
    loaded = torch.load(target, weights_only=True)
    raw = pathlib.Path(source).read_bytes()
    if loaded.keys() != tensors.keys():
        raise SystemExit(f"error: torch.load has {list(loaded)}")
    for name, (dtype, shape, begin, end) in tensors.items():
        tensor = loaded[name]
        if (str(tensor.dtype), list(tensor.shape)) != (f"torch.{DTYPES[dtype][0]}", shape):
            raise SystemExit(f"error: torch.load has {name} as {tensor.dtype} {tensor.shape}")
        if bytes(tensor.contiguous().untyped_storage()) != raw[begin:end]:
            raise SystemExit(f"error: torch.load has other elements of {name}")
    print("torch.load reads the same")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source, target = sys.argv[1:]
    tensors = open_safetensors(source)
    write(source, tensors, target)
    print(f"{len(tensors)} tensors in {target}")
    check(source, tensors, target)


if __name__ == "__main__":
    main()
