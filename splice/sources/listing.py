"""Lists a directory tree: regular files, their sizes and repositories, in one pass of os.scandir.

Names that start with "." are hidden and skipped; symbolic links are not followed, so there are no loops; FIFOs,
sockets and devices are not touched; the output and the work of builds are not read. A repository is named by its directory relative to the root:

    the root holds .git         everything below is repository "."
    it does not                 each top-level directory is a repository, files directly at the root are of "."
    a directory holds .git      it is a repository of its own, whatever it lies in (submodules, checkouts side by side)
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import SpliceError
from ..files import LOCK


class File(NamedTuple):
    """A file of a tree: path relative to the root ("/" between names), in Python's form of file names."""

    path: str
    repo: str
    bytes: int


@dataclass(frozen=True)
class Listing:
    """files sorted by path; skipped counts what is there but is not read: unmatched, hidden, links, special files."""

    files: list[File]
    skipped: Counter[str]


def list_tree(root: str, patterns: tuple[str, ...] = ()) -> Listing:
    """All files below `root` that match one of the patterns (all where there are none).

    A directory below that cannot be listed stands in the list itself, so that its reader reports it.
    Raises OSError where the root cannot be listed.
    """
    matches = glob_matcher(patterns)
    files: list[File] = []
    skipped: Counter[str] = Counter()
    stack: list[tuple[str, str | None]] = [("", None)]
    while stack:
        parent, repo = stack.pop()
        directories: list[str] = []
        plain: list[os.DirEntry[str]] = []
        holds_git = holds_build = False
        try:
            with os.scandir(os.path.join(root, parent)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        holds_git |= entry.name == ".git"
                        holds_build |= entry.name == LOCK
                        skipped["hidden"] += 1
                    elif entry.is_file(follow_symlinks=False):
                        plain.append(entry)
                    elif entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                    else:
                        skipped["symbolic link (not followed)" if entry.is_symlink() else "special file"] += 1
        except OSError:
            if not parent:
                raise
            files.append(File(parent[:-1], repo or ".", 0))
            continue
        if holds_build and parent:
            skipped["directory of a build"] += 1
            continue
        if holds_git:
            repo = parent[:-1] or "."
        for name in directories:
            stack.append((f"{parent}{name}/", repo or name))
        for entry in plain:
            path = parent + entry.name
            if matches is None or matches(path):
                files.append(File(path, repo or ".", _bytes(entry)))
            else:
                skipped["unmatched " + (os.path.splitext(entry.name)[1] or "without extension")] += 1
    files.sort()
    return Listing(files, skipped)


def glob_matcher(patterns: tuple[str, ...]) -> Callable[[str], object] | None:
    """Whether a relative path matches one of the patterns; None where there are no patterns.

    Raises SpliceError where a pattern is none (a range such as [z-a]).
    """
    if not patterns:
        return None
    # A pattern without "/" is about the name, at any depth.
    expressions = [_expression(p.removeprefix("./") if "/" in p else f"**/{p}") for p in patterns]
    try:
        return re.compile("|".join(expressions), re.DOTALL).fullmatch
    except re.error as error:
        raise SpliceError(f"--glob {' '.join(patterns)}: not a pattern ({error})") from None


def _expression(pattern: str) -> str:
    """The regular expression of a glob: * and ? within a name, ** across, [abc], [!abc], {this,that}."""
    out: list[str] = []
    depth = 0
    for token in _TOKENS.findall(pattern):
        if token in _WILD:
            out.append(_WILD[token])
        elif len(token) > 1 and token[0] == "[":
            inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            out.append("[" + re.sub(r"^!", "^", inside) + "]")
        elif token == "{" and "}" in pattern:
            depth += 1
            out.append("(?:")
        elif token == "}" and depth:
            depth -= 1
            out.append(")")
        elif token == "," and depth:
            out.append("|")
        else:
            out.append(re.escape(token))
    return "".join(out) + ")" * depth


_TOKENS = re.compile(r"\*\*/|\*\*|\[!?\]?[^\]]*\]|.", re.DOTALL)
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _bytes(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # vanished since; its reader says so
        return 0


def describe(skipped: Counter[str]) -> str:
    """What was there instead, for an error: "120 .py, 3 .c; 2 hidden, 1 symbolic link"."""
    unmatched = [(n, key.removeprefix("unmatched ")) for key, n in skipped.items() if key.startswith("unmatched ")]
    other = sorted((key, n) for key, n in skipped.items() if not key.startswith("unmatched "))
    parts = [", ".join(f"{n} {key}" for n, key in sorted(unmatched, key=lambda u: (-u[0], u[1]))[:8])]
    parts.append(", ".join(f"{n} {key}" for key, n in other))
    return "; ".join(part for part in parts if part) or "nothing at all"
