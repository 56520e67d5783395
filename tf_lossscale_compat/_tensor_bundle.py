"""Reads scalars and the object graph out of a TensorFlow checkpoint, in plain Python.

`tf.train.load_checkpoint` would do for files that are whole. Handed a damaged index, it may ask for
more memory than there is and end the process, which no `except` stops.

Format: tensorflow/core/util/tensor_bundle, tensorflow/core/lib/io/format.h and
tensorflow/core/protobuf/{tensor_bundle,trackable_object_graph}.proto.
"""

import collections
import struct

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_MAGIC = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"
_FOOTER = 48
_MAX_INDEX_BYTES = 1 << 29
_MAX_GRAPH_BYTES = 1 << 28
_MAX_KEY_BYTES = 1 << 14
_SCALARS = {1: "f", 2: "d", 3: "i", 9: "q"}  # By number of TensorFlow's data type.
_STRING = 7

_Entry = collections.namedtuple("_Entry", ["dtype", "dims", "shard", "offset", "size", "crc"])
Node = collections.namedtuple("Node", ["children", "keys"])


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def _crc32c(data, crc=0):
    table = _CRC_TABLE
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(crc):
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data, at):
    """Returns (number, where the next thing begins)."""
    number = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number in it has no end")


def _fields(message):
    """Yields (number, value) of a protocol buffer's fields: ints, and bytes for all that nests."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
        else:
            if kind == 2:
                size, at = _varint(message, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise ValueError("a message in it is of no known form")
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("a message in it is cut off")
        yield tag >> 3, value


def _signed(number):
    return number - (1 << 64) if number >> 63 else number


def _block(data, at, size):
    """Yields the (key, value) pairs of one block of the table."""
    end = at + size
    if end + 5 > len(data):
        raise ValueError("its index is cut off")
    if data[end]:
        raise ValueError("its index is compressed, which TensorFlow never does")
    (crc,) = struct.unpack_from("<I", data, end + 1)
    if _masked(_crc32c(data[at : end + 1])) != crc:
        raise ValueError("its index is damaged (wrong checksum)")
    (restarts,) = struct.unpack_from("<I", data, end - 4)
    end -= 4 * (restarts + 1)
    key = b""
    while at < end:
        shared, at = _varint(data, at)
        own, at = _varint(data, at)
        length, at = _varint(data, at)
        if shared > len(key) or shared + own > _MAX_KEY_BYTES or at + own + length > end:
            raise ValueError("its index is damaged (impossible lengths)")
        key = key[:shared] + data[at : at + own]
        at += own
        yield key, data[at : at + length]
        at += length


def _table(data):
    """Yields the (key, value) pairs of a whole table."""
    if len(data) < _FOOTER or data[-8:] != _MAGIC:
        raise ValueError("its index is not of a TensorFlow checkpoint, or cut off")
    footer = data[-_FOOTER:]
    _, at = _varint(footer, 0)  # Where the metaindex is, of which there is no need.
    _, at = _varint(footer, at)
    start, at = _varint(footer, at)
    size, at = _varint(footer, at)
    left = len(data)
    for _, handle in _block(data, start, size):
        start, at = _varint(handle, 0)
        size, _ = _varint(handle, at)
        left -= size
        if left < 0:
            raise ValueError("its index is damaged (blocks overlap)")
        yield from _block(data, start, size)


def _entry(message):
    dtype, dims, shard, offset, size, crc = 0, [], 0, 0, 0, None
    for number, value in _fields(message):
        if number == 1:
            dtype = value
        elif number == 2:
            for part, dim in _fields(value):
                if part == 2:
                    dims.append(_signed(dict(_fields(dim)).get(1, 0)))
                elif part == 3 and dim:
                    dims.append(-1)
        elif number == 3:
            shard = value
        elif number == 4:
            offset = value
        elif number == 5:
            size = value
        elif number == 6:
            (crc,) = struct.unpack("<I", value)
    return _Entry(dtype, tuple(dims), shard, offset, size, crc)


class Bundle:
    """A checkpoint that was written as `prefix.index` and `prefix.data-00000-of-00001`.

    Whatever is wrong with it comes as a ValueError, IndexError, KeyError, OSError, struct.error or
    UnicodeDecodeError.
    """

    def __init__(self, prefix, open_file):
        """Reads the index.

        Args:
          prefix: str, what the files' names begin with.
          open_file: function from a path to a binary file.
        """
        self._prefix = prefix
        self._open = open_file
        with open_file(prefix + ".index") as file:
            data = file.read(_MAX_INDEX_BYTES + 1)
        if len(data) > _MAX_INDEX_BYTES:
            raise ValueError("its index is too large to be one")
        table = dict(_table(data))
        header = dict(_fields(table.pop(b"")))
        self._shards = header.get(1, 0)
        self._order = ">" if header.get(2, 0) else "<"
        self._entries = {key.decode("utf-8"): _entry(value) for key, value in table.items()}

    @property
    def names(self):
        """The names of all tensors, sorted."""
        return sorted(self._entries)

    def _bytes(self, entry):
        path = f"{self._prefix}.data-{entry.shard:05d}-of-{self._shards:05d}"
        with self._open(path) as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
        if len(data) != entry.size:
            raise ValueError(f"{path} is cut off")
        return data

    def kind(self, name):
        """Returns "f" for a float scalar, "i" or "q" for an int32 or int64 one, else None."""
        entry = self._entries.get(name)
        if entry is None or entry.dims:
            return None
        kind = _SCALARS.get(entry.dtype)
        return "f" if kind == "d" else kind

    def scalar(self, name):
        """Returns the value of a scalar, for which `kind` is not None."""
        entry = self._entries[name]
        form = self._order + _SCALARS[entry.dtype]
        if entry.size != struct.calcsize(form):
            raise ValueError(f"{name} has the wrong size")
        data = self._bytes(entry)
        if _masked(_crc32c(data)) != entry.crc:
            raise ValueError(f"{name} is damaged (wrong checksum)")
        return struct.unpack(form, data)[0]

    def graph(self):
        """Returns the object graph, a list of `Node`s with the root first, or None without one.

        A node's `children` are {name: index of a node}, its `keys` {attribute: name of a tensor}.
        """
        entry = self._entries.get(OBJECT_GRAPH)
        if entry is None:
            return None
        if entry.dtype != _STRING or entry.dims or entry.size > _MAX_GRAPH_BYTES:
            raise ValueError(f"{OBJECT_GRAPH} is no scalar string")
        data = self._bytes(entry)
        length, at = _varint(data, 0)
        lengths = struct.pack("<I" if length < 1 << 32 else "<Q", length)
        crc = _crc32c(lengths)
        if data[at : at + 4] != struct.pack("<I", _masked(crc)) or len(data) != at + 4 + length:
            raise ValueError(f"{OBJECT_GRAPH} is damaged (wrong length)")
        if _masked(_crc32c(data[at:], crc)) != entry.crc:
            raise ValueError(f"{OBJECT_GRAPH} is damaged (wrong checksum)")
        nodes = []
        for number, node in _fields(data[at + 4 :]):
            if number == 1:
                nodes.append(_node(node))
        for node in nodes:
            if not all(0 <= child < len(nodes) for child in node.children.values()):
                raise ValueError(f"{OBJECT_GRAPH} names objects that are not there")
        return nodes


def _node(message):
    children, keys = {}, {}
    for number, value in _fields(message):
        if number == 1:
            child = dict(_fields(value))
            children[child.get(2, b"").decode("utf-8")] = child.get(1, 0)
        elif number == 2:
            attribute = dict(_fields(value))
            name = attribute.get(1, b"").decode("utf-8")
            keys[name] = attribute.get(3, b"").decode("utf-8")
    return Node(children, keys)


def is_table(data):
    """Whether these are the last bytes of a table; a checkpoint of TensorFlow 0.x is just that."""
    return data.endswith(_MAGIC)
