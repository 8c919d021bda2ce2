"""Fetch the benchmark corpora out of Debian's linux-source-6.1 package: its C (.c, .h) into bench/corpus/linux, its documentation
(.rst, .txt) into bench/corpus/linux-text.

    python bench/corpus.py [--output bench/corpus]

Needs apt-get and dpkg-deb (Debian or Ubuntu with the package in its lists); 139 MB are downloaded, 1.1 GB unpacked.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "linux-source-6.1"
CORPORA = {"linux": ("*.c", "*.h"), "linux-text": ("*.rst", "*.txt")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "corpus")
    output = parser.parse_args().output
    missing = [name for name in CORPORA if not (output / name).is_dir()]
    for name in CORPORA.keys() - set(missing):
        print(f"{output / name}: there already")
    if not missing:
        return
    for tool in ("apt-get", "dpkg-deb", "tar", "xz"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing; unpack any Linux 6.1 source tree into {output / missing[0]} instead")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        where = Path(scratch)
        if subprocess.run(["apt-get", "download", PACKAGE], cwd=where, check=False).returncode:
            sys.exit(f"apt-get download {PACKAGE} failed; run `apt-get update` first (as root)")
        (package,) = where.glob("*.deb")
        for name in missing:
            patterns = " ".join(f"'{pattern}'" for pattern in CORPORA[name])
            unpack = (
                f"dpkg-deb --fsys-tarfile {package.name} | tar -xO ./usr/src/{PACKAGE}.tar.xz"
                f" | tar -xJ --wildcards {patterns}"
            )
            subprocess.run(unpack, shell=True, cwd=where, check=True)
            (where / PACKAGE).rename(output / name)
            print(f"{output / name}: {sum(1 for p in (output / name).rglob('*') if p.is_file()):,} files")


if __name__ == "__main__":
    main()
