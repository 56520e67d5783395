"""Reads the scalars of a Keras file: HDF5, or the zip archive `.keras` with one in it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

WEIGHTS = "model.weights.h5"

# zlib makes at most 1032 bytes of one. Keras does not compress at all.
_MAX_RATIO = 200
_ALWAYS_ALLOWED = 1 << 26
_SECONDS = 120

# HDF5 of before 2019, which TensorFlow up to 2.3 comes with, may crash on a damaged file. The crash
# is to be a child's.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import h5py
groups, scalars = {"": 0}, {}

def visit(name, item):
    if isinstance(item, h5py.Group):
        groups.setdefault(name, 0)
    if not isinstance(item, h5py.Dataset):
        return
    group = name.rpartition("/")[0]
    groups[group] = groups.get(group, 0) + 1
    if item.shape == () and item.dtype.kind in "fiu":
        kind = "f" if item.dtype.kind == "f" else "q"
        value = item[()]
        # As text: JSON knows neither infinity nor NaN.
        scalars[name] = [kind, repr(float(value)) if kind == "f" else str(int(value))]

with h5py.File(sys.argv[2], "r") as file:
    file.visititems(visit)
print(json.dumps([groups, scalars]))
"""


def read_hdf5(path):
    """Returns what an HDF5 file holds.

    That is ({group: number of arrays and scalars in it}, {name: (kind, value)} of the scalars).

    Args:
      path: str, a local file, which is only read. Links to other files are not followed.

    Raises:
      ValueError: it cannot be read.
    """
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), os.path.abspath(path)]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading it took more than {_SECONDS} s") from None
    if child.returncode:
        errors = child.stderr.decode("utf-8", "replace").strip().splitlines()
        if child.returncode < 0 or not errors:
            raise ValueError("reading it crashes HDF5")
        raise ValueError(errors[-1])
    groups, scalars = json.loads(child.stdout.decode("utf-8"))
    convert = {"f": float, "q": int}
    return groups, {name: (kind, convert[kind](value)) for name, (kind, value) in scalars.items()}


def read_keras(file):
    """Returns what `read_hdf5` does, of the weights in a `.keras` archive.

    Args:
      file: binary file.

    Raises:
      ValueError: it is none. What is wrong with the archive itself comes as zipfile raises it.
    """
    with zipfile.ZipFile(file) as archive:
        if WEIGHTS not in archive.namelist():
            raise ValueError(f"it is a zip archive without {WEIGHTS}, so not Keras'")
        info = archive.getinfo(WEIGHTS)
        most = max(_ALWAYS_ALLOWED, info.compress_size * _MAX_RATIO)
        if info.file_size > most:
            raise ValueError(f"{WEIGHTS} in it would unpack to {info.file_size} bytes")
        with archive.open(info) as packed:
            return read_copy(packed)


def read_copy(file):
    """Returns what `read_hdf5` does, of a file that is not in a local folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, WEIGHTS)
        with open(path, "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        return read_hdf5(path)
