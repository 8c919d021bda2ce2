"""Lines of a stream of blocks, numbered, in memory bounded by the longest line allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .blocks import BrokenInput

# A line this many times longer than allowed is no line: the rest of a compressed file is given up, so that a few
# megabytes that expand to terabytes end in minutes. 64 * 64 MB = 4 GiB.
GIVE_UP_FACTOR = 64


def split_lines(
    blocks: Iterable[bytes], first: int, max_line_bytes: int, give_up: bool = False
) -> Iterator[tuple[int, bytes | None]]:
    r"""(number, line without its "\n"), numbered from `first`; None for a line of more than max_line_bytes.

    A last line without "\n" counts. Where the blocks break off (BrokenInput) the line begun by then is not given.
    Raises BrokenInput, with the number of that line, as the blocks do, and with give_up at a line GIVE_UP_FACTOR times
    too long.
    """
    number = first
    held: list[bytes] = []  # the pieces of a line that goes on
    held_bytes = 0
    try:
        for block in blocks:
            if not held_bytes and block.isspace():  # blank lines by the million
                number += block.count(b"\n")
                continue
            pieces = block.split(b"\n")
            head, tail = pieces[0], pieces[-1]
            held_bytes += len(head)
            if held_bytes <= max_line_bytes:
                held.append(head)
            else:
                held.clear()
            if len(pieces) == 1:
                if give_up and held_bytes > GIVE_UP_FACTOR * max_line_bytes:
                    raise BrokenInput(f"a line of over {held_bytes} bytes; the rest of the file is given up")
                continue
            yield number, b"".join(held) if held_bytes <= max_line_bytes else None
            number += 1
            for line in pieces[1:-1]:
                yield number, line if len(line) <= max_line_bytes else None
                number += 1
            held_bytes = len(tail)
            held = [tail] if held_bytes <= max_line_bytes else []
    except BrokenInput as error:
        error.line = number
        raise
    if held_bytes:
        yield number, b"".join(held) if held_bytes <= max_line_bytes else None
