"""Fetch the benchmark corpus: the .c and .h files of Debian's linux-source-6.1 package, into bench/corpus/linux.

    python bench/corpus.py [--output DIR]

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "corpus" / "linux")
    target = parser.parse_args().output
    if target.is_dir():
        print(f"{target}: there already")
        return
    for tool in ("apt-get", "dpkg-deb", "tar", "xz"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing; unpack any Linux 6.1 source tree into {target} instead")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        where = Path(scratch)
        if subprocess.run(["apt-get", "download", PACKAGE], cwd=where, check=False).returncode:
            sys.exit(f"apt-get download {PACKAGE} failed; run `apt-get update` first (as root)")
        (package,) = where.glob("*.deb")
        unpack = (
            f"dpkg-deb --fsys-tarfile {package.name} | tar -xO ./usr/src/{PACKAGE}.tar.xz"
            " | tar -xJ --wildcards '*.c' '*.h'"
        )
        subprocess.run(unpack, shell=True, cwd=where, check=True)
        (where / PACKAGE).rename(target)
    print(f"{target}: {sum(1 for p in target.rglob('*') if p.is_file()):,} files")


if __name__ == "__main__":
    main()
