"""Writes a header with a fingerprint of the files that a program and its module of CUDA have in common.
Usage: build_id.py HEADER FILE..."""
import hashlib
import pathlib
import sys

header, *files = sys.argv[1:]
text = hashlib.sha256(b"".join(pathlib.Path(file).read_bytes() for file in files)).hexdigest()[:12]
pathlib.Path(header).write_text(f'#pragma once\n#define LLM_CUDA_BUILD "{text}"\n')
