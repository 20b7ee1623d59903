#!/usr/bin/env python3
"""Python reads the files of a checkpoint, and a safetensors file of whole tensors; with the
packages, Kolo reads a model that Python has written as Hugging Face does, in several files.

python3 python_test.py plain <checkpoint_writer> <mpirun>...
    only with Python: reads index.json and parses the files by hand
python3 python_test.py package <checkpoint_writer> <mpirun>...
    with the packages safetensors and numpy; exit status 77 if they are not installed
"""

import json
import math
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

NUMBER = 6  # of the checkpoint, on which the values depend
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
         "BOOL": 1, "C64": 8, "C128": 16}
CHECKED = 20_000  # bytes of a large tensor, spread over it


def content(name, dtype, place):
    """The byte at this position of a tensor, like `contents` in model.hpp."""
    seed = NUMBER * 0x9E3779B97F4A7C15
    for letter in name.encode():
        seed = seed * 131 + letter
    word = ((seed + place // 8 * 8) * 0xD1342543DE82EF95) & 0xFFFFFFFFFFFFFFFF
    byte = ((word ^ word >> 32) >> place % 8 * 8) & 0xFF
    return byte & 1 if dtype == "BOOL" else byte


def require(condition, text):
    if not condition:
        raise SystemExit(f"error: {text}")


def check(name, dtype, shape, data, begin, count):
    """Checks that `data` is `count` elements of the tensor from `begin` on."""
    size = SIZES[dtype]
    require(len(data) == count * size, f"{name} has {len(data)} bytes")
    for i in range(0, len(data), len(data) // CHECKED + 1):
        require(data[i] == content(name, dtype, begin * size + i), f"byte {i} of {name} differs")
    require(begin + count <= math.prod(shape), f"{name} {shape} has no {begin}:{begin + count}")


def with_complex128(tensors, metadata):
    """The format has no complex128: such a tensor is F64 [..., 2] and listed in the metadata."""
    for name in json.loads((metadata or {}).get("kolo.complex128", "[]")):
        dtype, (*shape, parts), data = tensors[name]
        require((dtype, parts) == ("F64", 2), f"complex128 {name} is {dtype}")
        tensors[name] = ("C128", shape, data)
    return tensors


def parse(path):
    """A dictionary from names to dtype, shape and bytes."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    require((8 + length) % 64 == 0, f"the data of {path.name} are not aligned")
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", None)
    data = raw[8 + length:]
    return with_complex128({name: (entry["dtype"], entry["shape"],
                                   data[slice(*entry["data_offsets"])])
                            for name, entry in header.items()}, metadata)


def load(path):
    """Like parse(), with the packages."""
    import numpy
    import safetensors

    raw = dict(safetensors.deserialize(path.read_bytes()))
    found = {}
    with safetensors.safe_open(path, framework="np") as file:
        for name in file.keys():
            dtype, shape = raw[name]["dtype"], raw[name]["shape"]
            data = bytes(raw[name]["data"])
            if dtype != "BF16":  # numpy has no such type
                array = file.get_tensor(name)
                require(list(array.shape) == shape, f"{name} is {array.shape}")
                require(array.tobytes() == data, f"{name} as an array differs")
                require(array.dtype != numpy.float32 or dtype == "F32", f"{name} is {array.dtype}")
            found[name] = (dtype, shape, data)
        return with_complex128(found, file.metadata())


def write_model(source, folder):
    """Writes the tensors of a file into two, and their index; NumPy has no bfloat16."""
    import safetensors
    from safetensors.numpy import save_file

    folder.mkdir()
    raw = dict(safetensors.deserialize(source.read_bytes()))
    names = sorted(name for name in raw if raw[name]["dtype"] != "BF16")
    weight_map = {}
    with safetensors.safe_open(source, framework="np") as file:
        for i in range(2):
            part = f"model-{i + 1:05}-of-00002.safetensors"
            save_file({name: file.get_tensor(name) for name in names[i::2]}, folder / part,
                      metadata={"format": "pt"})
            weight_map |= dict.fromkeys(names[i::2], part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map},
                                indent=2, sort_keys=True) + "\n")
    return index


def check_checkpoint(folder, read):
    index = json.loads((folder / "index.json").read_text())
    tensors = index["tensors"]
    seen = dict.fromkeys(tensors, 0)
    for i, file in enumerate(index["files"]):
        require((folder / file["name"]).stat().st_size == file["bytes"], file["name"])
        for name, (dtype, shape, data) in read(folder / file["name"]).items():
            part = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name)
            whole = part[1] if part else name
            tensor = tensors[whole]
            begin, end = map(int, part.groups()[1:]) if part else (0, math.prod(tensor["shape"]))
            require(shape == [end - begin] and dtype == tensor["dtype"], f"{name} is {shape}")
            require(any(s["file"] == i and s["begin"] == begin and s["count"] == end - begin
                        for s in tensor["slices"]), f"{name} of file {i} is not in the index")
            check(whole, dtype, tensor["shape"], data, begin, end - begin)
            seen[whole] += end - begin
    for name, tensor in tensors.items():
        require(seen[name] == math.prod(tensor["shape"]), f"of {name} there is {seen[name]}")
    return tensors


def main():
    way, program, *mpirun = sys.argv[1:]
    if way == "package":
        try:
            import numpy  # noqa: F401
            import safetensors  # noqa: F401
        except ImportError as error:
            print(f"skipped: {error}; cmake/setup.sh installs them")
            sys.exit(77)
    read = load if way == "package" else parse
    with tempfile.TemporaryDirectory(prefix="kolo-python-") as name:
        folder = pathlib.Path(name)
        subprocess.run([*mpirun, "-n", "3", program, "save", name, str(NUMBER)], check=True)
        tensors = check_checkpoint(folder / "checkpoint-00000001", read)
        subprocess.run([program, "export", folder / "all.safetensors", str(NUMBER)], check=True)
        exported = read(folder / "all.safetensors")
        require(exported.keys() == tensors.keys(), f"exported: {list(exported)}")
        for tensor, (dtype, shape, data) in exported.items():
            require([dtype, shape] == [tensors[tensor][k] for k in ("dtype", "shape")], tensor)
            check(tensor, dtype, shape, data, 0, math.prod(shape))
        if way == "package":
            index = write_model(folder / "all.safetensors", folder / "model")
            subprocess.run([program, "compare", index, str(NUMBER)], check=True)
    print(f"{len(tensors)} tensors of 3 ranks, and in one file: {way}")


if __name__ == "__main__":
    main()
