"""A disk that is full, and one that may not be written to: a sentence, and all that was done is kept."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from processes import start


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of a size that a test sets: `resize("64k")` mounts it or makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def resize(size: str):
        nonlocal mounted
        how = f"remount,size={size}" if mounted else f"size={size}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", how, "splice-test", place], capture_output=True, check=False
        )
        if done.returncode and not mounted:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
        assert done.returncode == 0
        mounted = True
        return place

    yield resize
    if mounted:
        subprocess.run(["umount", "-l", place], check=False)


def used(place) -> int:
    return shutil.disk_usage(place).used


def test_a_full_disk_ends_the_build_with_a_sentence_and_a_rerun_goes_on(
    small_disk, tree, tokenizer_file, built, same_dataset
):
    needed = sum(path.stat().st_size for path in built.rglob("*") if path.is_file())
    for share in (0.25, 0.5, 0.75):  # full in an early stage, in the middle, near the end
        place = small_disk(f"{int(needed * share / 1024)}k")
        process = start(tree, place / "out", tokenizer_file)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 1, (share, errors)
        assert "No space left on device" in errors
        assert "run the same command again" in errors
        assert "Traceback" not in errors
        assert not (place / "out" / "manifest.json").exists()
    small_disk(f"{needed * 4 // 1024}k")
    process = start(tree, place / "out", tokenizer_file)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    same_dataset(built, place / "out")
    assert not list(place.rglob(".tmp-*"))


def test_an_output_that_may_not_be_written_to_is_said_before_any_work(tree, tokenizer_file, tmp_path, cli):
    (tmp_path / "file").write_text("in the way")
    refused = cli("build", tree, "--output", tmp_path / "file" / "out", "--tokenizer", tokenizer_file)
    assert refused.returncode == 2
    assert "not a directory that can be written to; give another --output" in refused.stderr
    if os.geteuid():
        (tmp_path / "shut").mkdir(mode=0o500)
        assert cli("build", tree, "--output", tmp_path / "shut" / "out").returncode == 2
