"""Block sizes: the table fits every shape, and what is measured is kept, found again, and never trusted blindly."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from splice.train.kernels.gpu import blocks
from splice.train.kernels.gpu.blocks import TABLE, Blocks, candidates, default, with_blocks

CASE = ("product", 2, 512, 1024, 256)


@pytest.mark.parametrize(("kernel", "size"), TABLE)
@pytest.mark.parametrize("rows", [1, 16, 17, 100, 100_000])
@pytest.mark.parametrize(("n", "depth"), [(1, 1), (17, 40), (96, 192), (257, 1000), (14336, 4096)])
def test_every_shape_has_sizes_that_a_matrix_instruction_takes(kernel, size, rows, n, depth):
    for b in candidates(kernel, size, rows, n, depth):
        assert all(length >= 16 and length & (length - 1) == 0 for length in (b.m, b.n, b.k))
        assert b.warps in (4, 8)
        assert b.n < 2 * max(n, 16) or b != default(kernel, size, rows, n, depth)


@pytest.mark.parametrize(("kernel", "size"), TABLE)
def test_candidates_are_few_and_start_with_the_table(kernel, size):
    found = candidates(kernel, size, 1024, 1024, 1024)
    assert found[0] == TABLE[kernel, size][-1][1]
    assert 2 <= len(found) == len(set(found)) <= blocks.CANDIDATES
    assert all(blocks.shared_bytes(kernel, size, b) <= 227 * 1024 for b in found)


def test_what_the_matrix_does_not_fill_is_not_computed():
    assert default("product", 2, 1024, 40, 24) == Blocks(128, 64, 32, 8, 3)
    assert default("product", 2, 1024, 192, 96) == Blocks(128, 64, 32, 8, 3)
    assert default("product", 2, 1024, 1024 + 128, 1024) == Blocks(128, 128, 64, 8, 3)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A GPU that is none: `calls` are the blocks that were timed; fewer stages are faster on it."""
    calls = []

    def time(start, **_):
        calls.append(start())
        return calls[-1].stages + calls[-1].m / 1000

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(triton.testing, "do_bench", time)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A B/200")
    monkeypatch.setattr(blocks, "_best", {})
    monkeypatch.setattr(blocks, "_read", set())
    tensor = SimpleNamespace(is_cuda=True, element_size=lambda: 2, get_device=lambda: -1)
    file = tmp_path / "splice" / f"blocks-A-B-200-{triton.__version__}.json"

    def choose(rows=512, tensor=tensor):
        return with_blocks("product", tensor, rows, (1024, 256), False, lambda b: b)

    return SimpleNamespace(calls=calls, choose=choose, file=file)


def test_nothing_is_measured_unless_asked_for(measured):
    assert measured.choose() == default(*CASE)
    with blocks.tuning():
        on_cpu = measured.choose(tensor=torch.empty(3, dtype=torch.bfloat16))
    assert on_cpu == default(*CASE)
    assert measured.calls == []
    assert not measured.file.exists()


def test_it_can_be_switched_on_for_good_and_off(measured):
    blocks.tuning(True)
    measured.choose()
    assert measured.calls
    measured.calls.clear()
    blocks.tuning(False)
    measured.choose(rows=64)
    assert not measured.calls


def test_the_fastest_is_taken_and_measured_once(measured):
    with blocks.tuning():
        first = measured.choose()
        assert measured.calls == candidates(*CASE)
        assert first == min(measured.calls, key=lambda b: (b.stages, b.m))
        assert measured.choose(rows=300) == first  # 300 rows and 512 are one case
    assert len(measured.calls) == len(candidates(*CASE))
    assert measured.choose() == default(*CASE)


def test_another_process_finds_what_was_measured(measured, monkeypatch):
    with blocks.tuning():
        first = measured.choose()
        monkeypatch.setattr(blocks, "_best", {})
        monkeypatch.setattr(blocks, "_read", set())
        measured.calls.clear()
        assert measured.choose() == first
    assert measured.calls == []


def test_what_another_process_wrote_meanwhile_stays(measured):
    with blocks.tuning():
        measured.choose()
        blocks.store(measured.file, "another", Blocks(16, 16, 16, 4, 2))
        measured.choose(rows=20)
    assert len(json.loads(measured.file.read_text())) == 3


@pytest.mark.parametrize(
    "found",
    ["", '{"prod', "[1, 2]", '{"product/2/512/1024/256": [7, 7, 7, 4, 2]}', '{"product/2/512/1024/256": "wide"}'],
)
def test_a_file_that_is_torn_or_of_other_candidates_is_measured_again(measured, found):
    measured.file.parent.mkdir()
    measured.file.write_text(found)
    with blocks.tuning():
        assert measured.choose() in candidates(*CASE)
    assert len(measured.calls) == len(candidates(*CASE))
    assert json.loads(measured.file.read_text())["product/2/512/1024/256"] in [
        [b.m, b.n, b.k, b.warps, b.stages] for b in candidates(*CASE)
    ]


def test_a_home_that_cannot_be_written_to_is_no_error(measured):
    measured.file.parent.write_text("a file where the directory would be")
    with blocks.tuning():
        first = measured.choose()
        assert measured.choose() == first
    assert len(measured.calls) == len(candidates(*CASE))


def test_sizes_that_do_not_fit_on_the_device_are_passed_over(measured, monkeypatch):
    def time(start, **_):
        if start().stages == min(b.stages for b in candidates(*CASE)):
            raise triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory")
        return start().stages

    monkeypatch.setattr(triton.testing, "do_bench", time)
    with blocks.tuning():
        assert measured.choose().stages > default(*CASE).stages
    monkeypatch.setattr(blocks, "_best", {})
    monkeypatch.setattr(triton.testing, "do_bench", lambda *_, **__: (_ for _ in ()).throw(triton.runtime.errors.OutOfResources(1, 0, "all")))  # fmt: skip
    assert blocks.fastest(candidates(*CASE), lambda b: b) == default(*CASE)
