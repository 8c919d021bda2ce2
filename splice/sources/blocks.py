"""The bytes of a file as blocks of bounded size, decompressed where the name says so (.gz, .zst).

Several gzip members or zstd frames one after the other are read through. A block is never larger than BLOCK_BYTES,
however much a few bytes of input expand to.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Iterator

from .records import os_reason
from .remote import fetched

BLOCK_BYTES = 2**20
INPUT_BYTES = 64 * 2**10
ZSTD_BLOCK_BYTES = 128 * 2**10  # of a zstd block's content: less than one is lost before damage
EXPANSION = 4  # compressed text to plain text, about: for estimates


class BrokenInput(Exception):
    """The file cannot be read further; the message says why, for the quarantine. line: where, once it is known."""

    line: int | None = None


def compression(path: str) -> str | None:
    """gz, zst or None, by the file's name."""
    lower = path.lower()
    if lower.endswith(".gz"):
        return "gz"
    return "zst" if lower.endswith((".zst", ".zstd")) else None


def read_blocks(path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The file's blocks; of a plain file the bytes from start to stop. path: in its printable form, or a URL.

    Raises BrokenInput where it cannot be opened or read on; all that comes before has been given by then.
    """
    try:
        # Unbuffered: the blocks are the buffer. O_NONBLOCK: a FIFO in the file's place must not hang the worker.
        fd = os.open(fetched(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with io.FileIO(fd) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BrokenInput("Not a regular file")
            match compression(path):
                case "gz":
                    yield from _gzip_blocks(file)
                case "zst":
                    yield from _zstd_blocks(file)
                case _:
                    yield from _plain_blocks(file, start, stop)
    except OSError as error:
        raise BrokenInput(os_reason(error)) from error


def _plain_blocks(file: io.FileIO, start: int, stop: int | None) -> Iterator[bytes]:
    file.seek(start)
    left = BLOCK_BYTES if stop is None else stop - start
    while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
        yield block
        if stop is not None:
            left -= len(block)


def _gzip_blocks(file: io.FileIO) -> Iterator[bytes]:
    data = file.read(INPUT_BYTES)
    if not data:
        raise BrokenInput("gzip: a file of no bytes")
    while data:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                block = member.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                raise BrokenInput(f"gzip: {str(error).rpartition(': ')[2]}") from error
            if block:
                yield block
            # A full block may leave output inside zlib with no input left: ask again before reading on.
            data = member.unconsumed_tail
            if not data and not member.eof and len(block) < BLOCK_BYTES:
                data = file.read(INPUT_BYTES)
                if not data:
                    raise BrokenInput("gzip: the file ends in the middle of the compressed data (truncated)")
        data = member.unused_data or file.read(INPUT_BYTES)
        while data and not data.strip(b"\0"):  # padding after the last member, as tapes leave it
            data = file.read(INPUT_BYTES)
        data = data.lstrip(b"\0")


def _zstd_blocks(file: io.FileIO) -> Iterator[bytes]:
    import zstandard

    if not os.fstat(file.fileno()).st_size:
        raise BrokenInput("zstd: a file of no bytes")
    frames = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
    try:
        while block := frames.read1(ZSTD_BLOCK_BYTES):
            yield block
    except zstandard.ZstdError as error:
        reason = str(error).rpartition(": ")[2]
        if "too much memory" in reason:
            reason += "; it was compressed with --long: recompress it with a window of at most 128 MB"
        raise BrokenInput(f"zstd: {reason}") from error
    if _ends_inside_frame(file.fileno()):
        raise BrokenInput("zstd: the file ends in the middle of the compressed data (truncated)")


def _ends_inside_frame(fd: int) -> bool:
    """Whether a zstd file is cut: zstandard's reader takes that for the end. Walks the block headers (RFC 8878, 3.1.1)."""
    import zstandard

    size = os.fstat(fd).st_size
    at = 0
    while at < size:
        head = os.pread(fd, 18, at)  # the longest frame header
        if head[1:4] == b"\x2a\x4d\x18":  # skippable: magic, length, content
            if len(head) < 8:
                return True
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            has_checksum = zstandard.get_frame_parameters(head).has_checksum
            at += zstandard.frame_header_size(head)
        except zstandard.ZstdError:
            return True
        last = False
        while not last:
            block = os.pread(fd, 3, at)
            if len(block) < 3:
                return True
            header = int.from_bytes(block, "little")
            last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == 1 else length)  # kind 1: one byte, repeated
        at += 4 * has_checksum
    return at > size
