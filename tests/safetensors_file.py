"""Reads safetensors files without a package, and compares two of them."""

import array
import json
import pathlib


def float32_tensors(path):
    """The elements of all float32 tensors, by name."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: array.array("f", data[begin + entry["data_offsets"][0]:
                                        begin + entry["data_offsets"][1]])
            for name, entry in header.items() if entry["dtype"] == "F32"}


def largest_difference(one, other):
    """The largest difference between two results of float32_tensors() with the same names."""
    if one.keys() != other.keys():
        raise ValueError(f"tensors {sorted(one)} and {sorted(other)}")
    return max(abs(a - b) for name in one for a, b in zip(one[name], other[name], strict=True))
