"""Open and read files safely: never wait on a pipe, and never read more than a limit."""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import msgspec

_SIDE_BYTES = 64 << 20
"""The largest size in bytes of a file that is read without a child process; the recorders' files are far smaller."""
RANKS_AT_MOST = 1 << 18
"""The highest number of ranks that a job may have; the largest jobs have some hundred thousand GPUs."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: The file is absent, unreadable, or not regular: reading a pipe, for example, could wait for ever.
    """
    # Without O_NONBLOCK opening a pipe would already wait for a writer.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    try:
        # Files of /proc call themselves regular, and may have nothing to read yet: `read` would return None.
        os.pread(number, 1, 0)
    except OSError as error:
        os.close(number)
        raise OSError(error.errno, error.strerror, str(path)) from error
    return os.fdopen(number, "rb")


def read_whole(path: Path, most: int = _SIDE_BYTES) -> bytes:
    """Return the contents of a small file.

    Raises:
        OSError: As for `open_regular`, or the file is longer than `most` bytes.
    """
    with open_regular(path) as file:
        content = read_at_most(file, most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, "too long for what its name says", str(path))
    return content


def read_at_most(file: BufferedReader, most: int) -> bytes:
    """Return the first bytes of an open file, at most `most`; this takes no more memory than the file has bytes.

    `file.read(most)` would first ask the system for `most` bytes, even if the file is short. Two threads that asked for
    a gigabyte this way exceeded the memory limit of an analysis.
    """
    parts = []
    while most and (part := file.read(min(most, _PART_BYTES))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


_PART_BYTES = 1 << 20


def read_json(path: Path) -> Any:
    """Return the contents of a small JSON file.

    Raises:
        OSError: As for `read_whole`.
        ValueError: The contents are not valid JSON, or nested more deeply than any recorder writes.
    """
    try:
        return decoded_json(read_whole(path))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


_LONG_NUMBER = re.compile(rb"\d{20}")


def decoded_json(text: bytes) -> Any:
    """Return the value of a JSON text of an artefact; an integer that needs more than 64 bits becomes a float.

    Such an integer is no recorded measurement, and no arithmetic with floats could take one of more than 308 digits.

    Raises:
        msgspec.DecodeError: The text is not valid JSON, or has a number that no float can hold.
        RecursionError: It is nested too deeply.
    """
    value = msgspec.json.decode(text)
    return within_64_bits(value) if _LONG_NUMBER.search(text) else value


def within_64_bits(value: Any) -> Any:
    """Return a decoded JSON value in which floats are in place of the integers that need more than 64 bits.

    Raises:
        msgspec.DecodeError: A float cannot hold such a number.
    """
    if isinstance(value, dict):
        return {key: within_64_bits(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [within_64_bits(inner) for inner in value]
    if not isinstance(value, int) or -(1 << 63) <= value < 1 << 64:
        return value
    try:
        return float(value)
    except OverflowError as error:
        raise msgspec.DecodeError("Number out of range") from error


def is_whole_object(path: Path) -> bool:
    """Return whether a file begins and ends as a JSON object does; what is between is not read.

    Reading everything would be slow for jobs with thousands of ranks, whose files may have megabytes each.

    Raises:
        OSError: As for `open_regular`.
    """
    with open_regular(path) as file:
        head = file.read(_MARGIN_BYTES)
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MARGIN_BYTES))
        tail = file.read(_MARGIN_BYTES)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and tail.rstrip()[-1:] == b"}"


_MARGIN_BYTES = 64
"""The number of bytes at the beginning and at the end of a file that are read to find the braces of a JSON object."""


def rank_in(text: object) -> int | None:
    """Return the rank in a text that consists of digits; None for anything else, and for a number that is too large."""
    digits = str(text)
    # `isdigit` alone accepts "²", which `int` does not.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        return None
    return int(digits) if int(digits) < RANKS_AT_MOST else None


def json_bytes(value: object) -> bytes:
    r"""Return a value as JSON in UTF-8; a byte of a file's name that is no UTF-8 becomes a text such as `\udcff`.

    Python holds such a byte as half a surrogate pair, which UTF-8 does not have. A part that is JSON already
    (`msgspec.Raw`) is decoded for this, and encoded again.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value, enc_hook=msgspec.json.decode)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    return [_encodable(inner) for inner in value] if isinstance(value, list | tuple) else value


# Write a file completely or not at all.
#
# It is written to a temporary file in the same folder, which is flushed to the disk and then renamed.


@contextmanager
def replacing(target: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file to write to; it replaces `target` if the body of the `with` ends without an error.

    Until then an existing file is not changed. A link stays a link, and the permissions of an existing file are kept; a
    new file has the permissions `mode`, less those that the umask removes. A pipe or a device is written to directly.

    Raises:
        OSError: The folder cannot be written, or the disk is full; the existing file is then unchanged.
    """
    old = status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with os.fdopen(_open_special(target), "wb") as file:
            yield file
        return
    # After the check: /dev/stdout leads to a pipe, whose path does not exist.
    target = target.resolve()
    # A short name of its own: that of the target may have as many characters as a name can.
    draft = target.with_name(f".writing-{secrets.token_hex(8)}")
    # Before the `try`: a file that is there already is not ours to remove.
    opened = os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            draft.chmod(stat.S_IMODE(old.st_mode))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    _flush_folder(target.parent)


READER_S = 10.0
"""The seconds to wait until another process opens a pipe for reading."""


def _open_special(path: Path) -> int:
    """Open a pipe or a device for writing, and return its file descriptor.

    Raises:
        OSError: The pipe or device cannot be written to, or no process reads from the pipe.
    """
    deadline = time.monotonic() + READER_S
    while True:
        try:
            # A plain open of a pipe that nobody reads from never returns.
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo() or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            # Without this, a write to a full pipe would fail instead of waiting.
            os.set_blocking(number, True)
            return number


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` does with this as its `opener`: a new file is for its owner alone.

    Raises:
        OSError: It cannot be opened, or it is a link or pipe, or a file that has another name, too (a hard link): what
            is written would go elsewhere.
    """
    # It is truncated only once it is known to be ours. Without O_NONBLOCK, a pipe that nobody reads from would wait.
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode) or opened.st_nlink > 1:
            raise FileExistsError(errno.EEXIST, "it is another file, too", path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_whole(target: Path, text: str) -> None:
    """Write a text as UTF-8, completely or not at all.

    A lone surrogate, as in a path that is not valid UTF-8, is written as an escape sequence.

    Raises:
        OSError: As for `replacing`.
    """
    with replacing(target) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, if the file system supports it, so that a rename in it survives a power cut."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
