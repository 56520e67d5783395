"""Reads the scalars of a Keras file: HDF5, or the zip archive `.keras` with one in it."""

import shutil
import tempfile
import zipfile

WEIGHTS = "model.weights.h5"

# zlib makes at most 1032 bytes of one. Keras does not compress at all.
_MAX_RATIO = 200
_ALWAYS_ALLOWED = 1 << 26
MOST_NAMES = 1 << 24  # Characters of all names, which grow as the square of nested groups.


def read_hdf5(file):
    """Returns what an HDF5 file holds; no link is followed, and nothing in other files is read.

    Args:
      file: str, a local file, or a binary file.

    Returns:
      {group: number of arrays and scalars in it}, {name of a scalar: "f" for a float or "q" for an
      integer}, {name of a scalar: value}. h5py raises what errors it likes.
    """
    import h5py

    groups, kinds, values = {"": 0}, {}, {}
    left = MOST_NAMES

    def visit(name, item):
        nonlocal left
        left -= len(name)
        if left < 0:
            raise ValueError("its groups are nested too deeply")
        if isinstance(item, h5py.Group):
            groups.setdefault(name, 0)
        if not isinstance(item, h5py.Dataset):
            return
        group = name.rpartition("/")[0]
        groups[group] = groups.get(group, 0) + 1
        # Before anything else is asked: the shape of a virtual one may stand in other files.
        stored = item.id.get_create_plist()
        inside = stored.get_layout() in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS)
        if not inside or stored.get_external_count():
            return
        if item.shape == () and item.dtype.kind in "fiu":
            is_float = item.dtype.kind == "f"
            kinds[name] = "f" if is_float else "q"
            values[name] = (float if is_float else int)(item[()])

    with h5py.File(file, "r") as opened:
        opened.visititems(visit)
    return groups, kinds, values


def read_copy(file):
    """Returns what `read_hdf5` does, of a file that is not a local one."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        return read_hdf5(copy)


def read_keras(file):
    """Returns what `read_hdf5` does, of the weights in a `.keras` archive, a binary file.

    Raises:
      ValueError: it is none. What is wrong with the archive itself comes as zipfile raises it.
    """
    with zipfile.ZipFile(file) as archive:
        if WEIGHTS not in archive.namelist():
            raise ValueError(f"it is a zip archive without {WEIGHTS}, so not Keras'")
        info = archive.getinfo(WEIGHTS)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # zipfile unpacks the others at once, whatever size they claim.
            raise ValueError(f"{WEIGHTS} in it is packed in a way that Keras does not use")
        if info.file_size > max(_ALWAYS_ALLOWED, info.compress_size * _MAX_RATIO):
            raise ValueError(f"{WEIGHTS} in it would unpack to {info.file_size} bytes")
        with archive.open(info) as packed:
            return read_copy(packed)
