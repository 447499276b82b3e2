"""Reads weight files of this program with nothing but Python's own library, by the format's
description, and holds them against the golden trainer's starting weights (whose files golden.py
wrote): the same names, the same shapes, the same values within the rounding of one float.

    read_by_python.py WRITE_GOLDEN_START GOLDEN_FOLDER
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile


def read(path):
    data = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    assert n % 8 == 0, "the header is padded to 8 bytes"
    header = json.loads(data[8:8 + n])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin:8 + n + end])
            tensors[name] = (entry["shape"], values)
    return header.get("__metadata__", {}), tensors


def main():
    program, golden_folder = sys.argv[1:]
    for case in ("gpt2", "llama"):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([program, case, folder], check=True)
            metadata, ours = read(pathlib.Path(folder) / "model.safetensors")
        _, golden = read(pathlib.Path(golden_folder) / f"{case}.safetensors")
        prefix = "weights:"
        starts = {n[len(prefix):]: t for n, t in golden.items() if n.startswith(prefix)}
        assert metadata == {"format": "pt"}, metadata
        assert ours.keys() == starts.keys(), ours.keys() ^ starts.keys()
        for name, (shape, values) in ours.items():
            expected_shape, expected = starts[name]
            assert shape == expected_shape, (name, shape, expected_shape)
            worst = max(abs(a - b) for a, b in zip(values, expected))
            assert worst <= 2e-8, (name, worst)
        print(f"{case}: {len(ours)} tensors read")


main()
