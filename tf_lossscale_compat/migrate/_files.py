"""Reads and replaces files: bytes in, bytes out, never half of them."""

import codecs
import contextlib
import io
import os
import stat
import tempfile
import tokenize

BOM = b"\xef\xbb\xbf"
_TEMPORARY = ".tf-lossscale.tmp"


class FileError(Exception):
    """A file cannot be handled; the message says why. Nothing was changed."""


def read(path: str) -> bytes:
    """Returns a regular file's bytes; raises `FileError` where it cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileError("is not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror or error}") from None


def decode(data: bytes) -> str:
    """Returns the text of a Python file, without a byte order mark; raises `FileError`."""
    data = data[len(BOM) if data.startswith(BOM) else 0 :]
    any_bytes = io.BytesIO(data.decode("latin-1").encode("utf-8"))
    try:
        declared = codecs.lookup(tokenize.detect_encoding(any_bytes.readline)[0]).name
        # Of the others, only what is plain ASCII in both can be edited safely.
        if declared != "utf-8" and not data.isascii():
            raise FileError(f"declares the encoding {declared}: only UTF-8 is handled")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"is not UTF-8 (byte {error.start})") from None
    except SyntaxError as error:
        raise FileError(f"has no encoding that Python knows: {error}") from None


def encode(text: str, data: bytes) -> bytes:
    """Returns the bytes of a text, with the byte order mark if the file's old bytes had one."""
    return (BOM if data.startswith(BOM) else b"") + text.encode("utf-8")


def replace(path: str, old: bytes, new: bytes) -> None:
    """Replaces a file's content in one step, so that a kill leaves the old or the new bytes.

    What it may leave besides is a hidden file beside it, whose name says whose it is.
    Permissions stay, a symbolic link stays one, and its target is what changes. Raises `FileError`
    where the file cannot be written, or no longer holds `old`.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if not os.access(target, os.W_OK):
        raise FileError("cannot be written: it is read-only")
    try:
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY, f".{name}.", folder)
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror or error}") from None
    try:
        with open(descriptor, "wb") as file:
            file.write(new)
            status = os.stat(target)
            with contextlib.suppress(OSError, AttributeError):  # Root alone may, and Windows not.
                os.chown(temporary, status.st_uid, status.st_gid)
            # After chown, which takes the set-user-id bit away.
            os.chmod(temporary, stat.S_IMODE(status.st_mode))
            file.flush()
            os.fsync(file.fileno())
        if read(target) != old:
            raise FileError("was changed by someone else meanwhile")
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # It is gone when all went well.
