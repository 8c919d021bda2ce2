"""`splice plan` and `splice build --explain`: arithmetic by hand, builds that were measured, and builds that are run here."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

from splice.cli import run
from splice.errors import SpliceError
from splice.files import write_json
from splice.pipelines import rates, sample
from splice.pipelines.capacity import UNIT_BYTES, Corpus, EncoderSize, Packs, StageCost, driver_seconds, local_bytes
from splice.pipelines.capacity import stage_costs as costs
from splice.pipelines.explain import Explained, explain, pipelines
from splice.pipelines.plan_options import count
from splice.pipelines.planning import Plan, clock, hours, short, size, warnings
from splice.settings import BuildSettings
from splice.sources import plan_units
from splice.task import Task

RESULTS = Path(__file__).parent.parent.parent / "bench" / "results"
MEASURED = json.loads((RESULTS / "rates.json").read_text())["builds"]
LEXICAL = {name: build for name, build in MEASURED.items() if name != "dense"}


def by_name(stages: list[StageCost]) -> dict[str, StageCost]:
    return {stage.name: stage for stage in stages}


def plan_of(documents: int, chars: int = 5000, workers: int = 100, **settings) -> Plan:
    s = BuildSettings().model_copy(update=settings)
    encoder = EncoderSize(4_000, 10) if s.has_encoder else None
    return Plan(s, Corpus(documents, documents * chars), workers, encoder, "")


# --- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e9", 10**9), ("20k", 20_000), ("3.5M", 3_500_000), ("1,000,000", 10**6), ("1_000", 1000), ("2G", 2 * 10**9),
     ("2b", 2 * 10**9), ("1T", 10**12), ("7", 7), (" 1.5e3 ", 1500), (".5k", 500), ("540 M", 540_000_000)],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text, number):
    assert count(text, "--documents") == number


@pytest.mark.parametrize("text", ["many", "", "0", "-5", "1e", "1e99", "5kk", "0x10", "1.2.3", "nan", "inf", "1e-3"])
def test_what_is_no_number_is_refused_with_its_flag(text):
    with pytest.raises(SpliceError, match=r"--workers .*: not a number .* write it as 1e9, 20k or 3\.5M"):
        count(text, "--workers")


def test_numbers_are_written_as_people_read_them():
    assert [size(n) for n in (0, 999, 1000, 9_960, 12.3e6, 5e12, 2.28e17)] == [
        "0 B", "999 B", "1.0 kB", "10 kB", "12 MB", "5.0 TB", "228 PB",
    ]  # fmt: skip
    assert [short(n) for n in (77, 1.8e12, 540e6)] == ["77", "1.8T", "540M"]
    assert [clock(n) for n in (0.03, 0.4, 90, 600, 3 * 3600, 5 * 86400)] == [
        "0.03 s", "0.4 s", "90 s", "10 min", "3.0 h", "5 days",
    ]  # fmt: skip
    assert [hours(n) for n in (90, 9000, 36e4 * 2, 3.6e9)] == ["90 s", "2.5 h", "200 h", "1.0M h"]


# --- arithmetic


def test_tasks_of_a_corpus_counted_by_hand():
    """100,000 documents of 1,000 bytes in packs of 50,000."""
    plan = plan_of(100_000, 1000)
    tasks = {name: stage.tasks for name, stage in by_name(plan.stages).items()}
    assert tasks == {
        "read": 6,  # 100 MB in units of 16 MiB
        "assign": 1,
        "gather": 4,  # two packs of 50 MB in parts of 32 MiB
        "tokenizer": 1,
        "tokenise": 4,
        "index": 2,
        "search": 50,  # 25 blocks of 2,048 documents in each
        "walk": 2,
        "write": 3,  # 36M tokens are 1,099 examples of 32,768, of which a shard holds 512
    }
    assert plan.packs == Packs(2, 50_000, 50e6, 2, 1_099, 3)
    assert inspect.signature(plan_units).parameters["target_bytes"].default == UNIT_BYTES


def test_seconds_of_a_corpus_by_hand(monkeypatch):
    monkeypatch.setattr(rates, "STAGES", {**rates.STAGES, "search": rates.Rate(task=0.5, document=1e-3, byte=1e-6)})
    monkeypatch.setattr(rates, "SEARCH_PAIR", 1e-6)
    monkeypatch.setattr(rates, "SEARCH_PAIR_BYTES", 500)
    monkeypatch.setattr(rates, "SEARCH_LENGTH_POWER", 2)
    monkeypatch.setattr(rates, "LOAD_INDEX_BYTE", 1e-7)
    s, corpus = BuildSettings(pack_documents=4096), Corpus(8192, 8192 * 1000)
    here = by_name(costs(s, corpus, apart=False))["search"]
    once = 4 * 0.5 + 8.192 + 8.192 + 8192 * 4096 * 4e-6  # 4 tasks; documents; bytes; pairs of twice the length, squared
    assert here.tasks == 4
    assert here.cpu_seconds == pytest.approx(once + 0.8192)
    assert here.longest_seconds == pytest.approx((once + 0.8192) / 4)
    apart = by_name(costs(s, corpus))["search"]
    assert apart.cpu_seconds == pytest.approx(once + 2 * 0.8192)  # both blocks of a pack load its index
    assert apart.read_bytes == 2 * here.read_bytes
    slower = by_name(costs(s, replace(corpus, factors={"search": 3.0})))
    assert slower["search"].cpu_seconds == pytest.approx(3 * apart.cpu_seconds)
    assert slower["search"].longest_seconds == pytest.approx(3 * apart.longest_seconds)


def test_clusters_are_of_a_bounded_sample_and_a_bounded_number():
    s = BuildSettings(pack_by="cluster", pack_documents=1000)
    corpora = {n: by_name(costs(s, Corpus(n, n * 5000))) for n in (1000, 4000, 10**6, 10**7)}
    assert "centroids" not in corpora[1000]  # one pack
    few, many, more = (corpora[n]["centroids"] for n in (4000, 10**6, 10**7))
    assert few.cpu_seconds == pytest.approx(20e6 * (rates.CENTROIDS_BYTE + 64 * rates.CENTROIDS_PAIR))
    assert (
        many.cpu_seconds
        == more.cpu_seconds
        == pytest.approx(2**27 * (rates.CENTROIDS_BYTE + 512 * rates.CENTROIDS_PAIR))
    )
    assert many.memory_bytes == more.memory_bytes
    nearest = corpora[10**6]["cluster"]
    assert nearest.tasks == corpora[10**6]["read"].tasks
    assert nearest.cpu_seconds == pytest.approx(5e9 * (rates.STAGES["cluster"].byte + 512 * rates.CLUSTER_PAIR))


def test_packs_by_hash_fetch_each_file_for_every_part_that_has_a_document_of_it():
    """160 files of 16 MiB, 10 packs of 8 parts: a part of 6,250 documents has some of all files."""
    corpus = Corpus(500_000, 160 * UNIT_BYTES)
    gathered = {
        by: by_name(costs(BuildSettings(pack_by=by), corpus))["gather"]
        for by in ("repository", "source", "hash", "cluster")
    }
    assert gathered["hash"].tasks == 80
    assert gathered["repository"].fetched_bytes == gathered["source"].fetched_bytes == gathered["hash"].read_bytes
    assert gathered["hash"].fetched_bytes == gathered["cluster"].fetched_bytes
    assert gathered["hash"].fetched_bytes == pytest.approx(80 * gathered["hash"].read_bytes, rel=1e-6)
    few = by_name(costs(BuildSettings(pack_by="hash", pack_documents=100), Corpus(200, 200 * UNIT_BYTES)))["gather"]
    assert few.tasks == 2 * 50  # a part is of two files of the 200
    assert few.fetched_bytes == pytest.approx(100 * 200 * (1 - (1 - 1 / 200) ** 2) * few.read_bytes / 200)


def test_searching_is_quadratic_in_the_pack_and_linear_in_the_packs():
    def pairs(documents: int, pack: int) -> float:
        s = BuildSettings(pack_documents=pack)
        stage = by_name(costs(s, Corpus(documents, documents * 5000), apart=False))["search"]
        linear = documents * (rates.STAGES["search"].document + 5000 * rates.LOAD_INDEX_BYTE)
        return stage.cpu_seconds - linear - rates.STAGES["search"].task * stage.tasks

    assert pairs(400_000, 400_000) == pytest.approx(4 * pairs(200_000, 200_000))
    assert pairs(400_000, 50_000) == pytest.approx(2 * pairs(200_000, 50_000))


def test_memory_is_the_packs_and_not_the_corpus():
    small, large, wide = (
        plan_of(n, pack_documents=pack) for n, pack in ((10**6, 50_000), (10**9, 50_000), (10**6, 10**6))
    )
    assert large.largest.memory_bytes == small.largest.memory_bytes
    beyond = [plan.largest.memory_bytes - rates.PROCESS_BYTES for plan in (small, wide)]
    assert beyond[1] == pytest.approx(20 * beyond[0], rel=1e-6)
    one, thousand = (by_name(plan.stages)["assign"].memory_bytes - rates.PROCESS_BYTES for plan in (small, large))
    assert thousand == 1000 * one


def test_the_wall_time_bounds_any_order_of_the_tasks():
    """Ten tasks of a second, on three workers: four rounds; Graham's bound is 1 + 9 / 3."""
    stage = StageCost("read", 10, 10.0, 1.0, 0)
    assert stage.wall_seconds(3) == 4.0
    assert stage.wall_seconds(1) == 10.0
    assert StageCost("assign", 1, 7.0, 7.0, 0).wall_seconds(1000) == 7.0


def test_totals_are_sums():
    plan = plan_of(10**6, workers=7)
    driver = rates.START + rates.DRIVER_TASK * sum(stage.tasks for stage in plan.stages)
    assert driver_seconds(plan.stages) == plan.driver_seconds == pytest.approx(driver)
    assert plan.cpu_seconds == pytest.approx(
        sum(stage.cpu_seconds for stage in plan.stages) + driver + 7 * rates.START_WORKER
    )
    assert plan.moved_bytes == sum(stage.read_bytes for stage in plan.stages)
    written = {stage.name: stage.written_bytes for stage in plan.stages}
    assert plan.work_bytes == written["gather"] + max(
        written["read"], sum(written[n] for n in ("assign", "tokenizer", "tokenise", "index", "search", "walk", "lay"))
    )
    assert plan.output_bytes == written["write"] + written["search"] + written["walk"] + 10 * 10**6


def test_a_shard_opens_the_few_packs_that_its_process_has_not():
    """Documents of 360 tokens, each an example, 500 in a pack, 16 in a shard."""
    s, corpus = BuildSettings(pack_documents=500, length=360, shard_tokens=16 * 360), Corpus(1000, 10**6)
    opening = rates.OPEN_PLAN + 500 * rates.OPEN_PLAN_DOCUMENT + 2 * rates.OPEN_FILE
    writing = 1000 * rates.STAGES["write"].document + 360_000 * rates.WRITE_TOKEN
    here, elsewhere = (costs(s, corpus, apart=apart)[-1] for apart in (False, True))
    assert here.tasks == elsewhere.tasks == 63
    assert here.cpu_seconds == pytest.approx(writing + 2 * opening)
    assert elsewhere.cpu_seconds == pytest.approx(writing + 63 * 2 * opening)
    pack = 500 * (1000 + rates.PACK_DOCUMENT + rates.PLAN_DOCUMENT) + 180_000 * rates.TOKEN
    assert elsewhere.fetched_bytes == 63 * 2 * pack


def test_of_many_packs_each_is_opened_once_and_no_shard_reads_more_than_its_examples():
    plan = plan_of(2000, 1000, pack_documents=2, length=360, shard_tokens=16 * 360)
    *_, lay, write = plan.stages
    assert (lay.name, lay.tasks, write.tasks) == ("lay", 1000, 125)
    opening = rates.OPEN_PLAN + 2 * rates.OPEN_PLAN_DOCUMENT + 2 * rates.OPEN_FILE
    rate = rates.STAGES["lay"]
    assert lay.cpu_seconds == pytest.approx(
        1000 * (rate.task + opening) + 2000 * rate.document + 720_000 * rates.LAY_TOKEN
    )
    assert write.cpu_seconds == pytest.approx(2000 * rates.STAGES["write"].document + 720_000 * rates.WRITE_LAID_TOKEN)
    laid = 2 * 720_000 + 2000 * (rates.PACK_DOCUMENT + rates.LAID_EXAMPLE)
    assert lay.written_bytes == write.read_bytes == write.fetched_bytes == laid


@pytest.mark.parametrize(
    ("retriever", "names"),
    [("bm25", ["index", "search"]), ("dense", ["embed", "index", "search"]), ("hybrid", ["embed", "index", "search"]),
     ("random", []), ("repo", [])],
)  # fmt: skip
def test_a_retriever_has_the_stages_it_needs(retriever, names):
    stages = [stage.name for stage in plan_of(10**5, retriever=retriever).stages]
    assert stages == ["read", "assign", "gather", "tokenizer", "tokenise", *names, "walk", "write"]


def test_an_encoder_costs_what_its_weights_multiply():
    """1,000 weights, 512 of 1,800 tokens a document: 2 operations each."""
    embed = by_name(plan_of(10**6, retriever="dense").stages)["embed"]
    assert embed.cpu_seconds == pytest.approx(10**6 * 512 * 1000 * 2 / rates.EMBED_FLOPS)
    assert embed.written_bytes == 2 * 10 * 10**6
    short_ = by_name(plan_of(10**6, 1000, retriever="dense").stages)["embed"]
    assert short_.cpu_seconds == pytest.approx(10**6 * 360 * 1000 * 2 / rates.EMBED_FLOPS)


def test_near_duplicates_cost_signatures():
    plain, near = (by_name(plan_of(10**6, dedup=dedup).stages) for dedup in ("exact", "near"))
    assert near["read"].cpu_seconds - plain["read"].cpu_seconds == pytest.approx(5e9 * rates.NEAR_READ_BYTE)
    assert near["assign"].memory_bytes - plain["assign"].memory_bytes == rates.NEAR_DOCUMENT_BYTES * 10**6
    assert near["assign"].read_bytes - plain["assign"].read_bytes == 512 * 10**6


# --- builds that were run


@pytest.mark.parametrize("name", LEXICAL)
def test_builds_that_were_measured_took_about_what_the_rates_say(name):
    build = LEXICAL[name]
    s = BuildSettings(pack_documents=build["pack_documents"], workers=1)
    corpus = Corpus(build["documents"], build["text_bytes"], 0, build["tokens"] / build["text_bytes"])
    stages = costs(s, corpus, apart=False)
    seconds = sum(stage.cpu_seconds for stage in stages) + driver_seconds(stages)
    assert build["cpu_seconds"] / 1.5 < seconds < 1.5 * build["cpu_seconds"]
    assert local_bytes(s, corpus, None) == pytest.approx(build["peak_rss_bytes"], rel=0.4)
    assert {n: stage.tasks for n, stage in by_name(stages).items() if n in ("index", "search")} == {
        n: build["stages"][n]["tasks"] for n in ("index", "search")
    }
    if name != "tiny packs":  # whose files are headers
        for kind, stage in (
            ("packs", "gather"),
            ("index", "index"),
            ("graph", "search"),
            ("plan", "walk"),
            ("data", "write"),
        ):
            assert by_name(stages)[stage].written_bytes == pytest.approx(build["bytes"][kind], rel=0.4), kind


@pytest.mark.parametrize("name", LEXICAL)
def test_tasks_alone_in_a_process_took_about_the_memory_that_the_rates_say(name):
    build = LEXICAL[name]
    s = BuildSettings(pack_documents=build["pack_documents"])
    stages = by_name(costs(s, Corpus(build["documents"], build["text_bytes"])))
    for stage in ("index", "search", "plan", "tokenise"):
        peak = build["alone"][stage]["peak_bytes"]
        assert stages["walk" if stage == "plan" else stage].memory_bytes == pytest.approx(peak, rel=0.35), stage


def test_the_growth_of_a_build_is_what_the_rates_say():
    """The other bench, of whole files, each a document."""
    for build in json.loads((RESULTS / "growth.json").read_text())["sizes"]:
        text = build["documents"] * 7215  # 337,254,370 bytes of 46,744 documents
        s = BuildSettings(pack_documents=100_000, workers=1)
        stages = costs(s, Corpus(build["documents"], text, build["documents"], build["tokens"] / text), apart=False)
        seconds = sum(stage.cpu_seconds for stage in stages) + driver_seconds(stages)
        assert build["cpu_seconds"] / 1.5 < seconds < 1.5 * build["cpu_seconds"]


# --- what is alarming


@pytest.mark.parametrize(
    ("documents", "settings", "sentence"),
    [
        (10**7, {"pack_documents": 4 * 10**6}, "needs 32 GB in stage index; --pack-documents"),
        (10**9, {"pack_documents": 10**8}, "a build takes --pack-documents up to 4,194,304"),
        (10**10, {}, "assign is one task over the whole corpus and holds"),
        (10**10, {}, "a task of assign takes 108 min; make 2 builds of 5,000,000,000 documents"),
        (4 * 10**9, {}, "tasks, each with a receipt that the driver reads (read has 1,192,093); make 4 builds"),
        (10**9, {"pack_documents": 5 * 10**8}, "a task of walk takes"),
    ],
)
def test_what_is_alarming_is_said_with_its_remedy(documents, settings, sentence):
    assert sentence in "\n".join(warnings(plan_of(documents, **settings)))


def test_what_is_not_alarming_is_not_said():
    assert warnings(plan_of(10**7)) == []


def test_the_pack_that_is_advised_fits():
    plan = plan_of(10**7, pack_documents=4 * 10**6)
    (said,) = [sentence for sentence in warnings(plan) if "a pack of" in sentence]
    fits = int(said.split("--pack-documents ")[1].split()[0])
    smaller = plan_of(10**7, pack_documents=fits)
    assert smaller.largest.memory_bytes <= 16e9
    assert smaller.largest.memory_bytes > 12e9


# --- the command


def test_the_command_prints_a_table_and_its_assumptions(capsys):
    assert run(["plan", "--documents", "1e9", "--mean-chars", "5k", "--workers", "500"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    for stage in ("read", "assign", "gather", "tokenizer", "tokenise", "index", "search", "walk", "write", "driver"):
        assert stage in lines
    assert "1,000,000,000 documents, 5.0 TB, 1.8T tokens" in said
    assert "20,000 of 50,000 documents" in said
    for word in ("storage:", "moved:", "rates:", "assumed:", "AMD EPYC", "! assign is one task"):
        assert word in said
    assert max(len(line) for line in said.split("corpus:")[0].splitlines()) <= 80
    assert "…" not in said


def test_json_is_the_same_plan(capsys):
    assert run(["plan", "--documents", "20k", "--mean-chars", "5000", "--workers", "8", "--neighbours", "8",
                "--pack-documents", "5k", "--length", "8192", "--json"]) == 0  # fmt: skip
    values = json.loads(capsys.readouterr().out)
    s = BuildSettings(neighbours=8, pack_documents=5000, length=8192)
    plan = Plan(s, Corpus(20_000, 10**8), 8, None, rates.MACHINE)
    assert values["packs"]["count"] == 4
    assert values["cpu_seconds"] == plan.cpu_seconds
    assert values["wall_seconds"] == plan.wall_seconds
    assert [stage["cpu_seconds"] for stage in values["stages"]] == [stage.cpu_seconds for stage in plan.stages]
    assert values["warnings"] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no corpus: say how many documents with --documents"),
        (["--documents", "1e9"], "give --mean-chars 5000, or --measure SRC"),
        (["--documents", "lots", "--mean-chars", "5"], "--documents lots: not a number"),
        (
            ["--documents", "5", "--mean-chars", "5", "--length", "2"],
            "--length: Input should be greater than or equal to 16",
        ),
        (["--documents", "5", "--measure", "nowhere"], "nowhere: does not exist"),
        (["--documents", "5", "--measure", "."], "no file to read"),
    ],
)
def test_what_cannot_be_planned_is_refused(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["plan", *flags]) == 2
    assert message in capsys.readouterr().err


# --- a sample of one's own


def test_a_sample_is_built_and_its_own_figures_are_used(cli, tree, tmp_path):
    done = cli("plan", "--documents", "1M", "--workers", 4, "--measure", tree, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    size_ = sum(path.stat().st_size for path in tree.rglob("*.py"))
    assert values["corpus"]["documents"] == 10**6
    assert values["corpus"]["text_bytes"] == pytest.approx(10**6 * size_ / 240, rel=1e-6)
    assert values["corpus"]["tokens_per_byte"] not in (0, rates.TOKENS_PER_BYTE)
    assert f"240 documents of {tree}, built here on one core" in values["rates"]
    assert "building a sample of 240 documents" in done.stderr
    assert not list(tmp_path.iterdir())


def test_packs_of_another_size_do_not_change_what_a_sample_took(cli, tree, tmp_path):
    """It is built in one pack."""
    done = cli("plan", "--documents", "1M", "--measure", tree, "--pack-documents", 10, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packs"]["count"] == 10**5


def test_a_given_length_stands_beside_a_sample(cli, tree, tmp_path):
    done = cli("plan", "--documents", "1k", "--mean-chars", "7k", "--measure", tree, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["corpus"]["text_bytes"] == 7_000_000


def test_a_sample_is_bounded(tree, tmp_path, monkeypatch):
    s = BuildSettings(sources=[str(tree)])
    monkeypatch.setattr(sample, "SAMPLE_DOCUMENTS", 50)
    assert sample._take(s, str(tree), tmp_path / "rows") == 50
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    texts = {path.read_text() for path in tree.rglob("*.py")}
    assert len(rows) == 50
    assert all(row["text"] in texts and row["repo"].startswith("r") for row in rows)
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 10_000)
    assert 1 < sample._take(s, str(tree), tmp_path / "rows") < 20


def test_factors_are_what_a_sample_took_over_what_the_rates_say():
    s, corpus = BuildSettings(), Corpus(20_000, 10**8)
    said = by_name(costs(s, corpus, apart=False))
    took = {name: {"cpu_seconds": 2 * stage.cpu_seconds} for name, stage in said.items()}
    took["index"]["cpu_seconds"] += rates.FIRST_INDEX
    took["write"]["cpu_seconds"] = 0.01  # too short to tell
    factors = sample._factors(s, corpus, took)
    assert "write" not in factors
    assert "tokenizer" not in factors
    assert "assign" not in factors  # 0.05 s
    assert factors["search"] == factors["read"] == factors["tokenise"] == pytest.approx(2)
    assert factors["index"] == pytest.approx(2)
    measured = by_name(costs(s, replace(corpus, factors=factors), apart=False))
    assert measured["search"].cpu_seconds == pytest.approx(took["search"]["cpu_seconds"])


# --- explain


FLAGS = ("--length", 512, "--shard-tokens", 8192, "--workers", 2)


def explained(tree: Path, output: Path, work: Path, tokenizer: Path, **more) -> dict[str, Explained]:
    from rich.console import Console

    s = BuildSettings(sources=[str(tree)], output=str(output), work=str(work), tokenizer=str(tokenizer), length=512,
                      shard_tokens=8192, workers=2, **more)  # fmt: skip
    stages, _ = explain(s, [], Console())
    return {stage.name: stage for stage in stages}


def to_do(stages: dict[str, Explained]) -> dict[str, int]:
    return {name: len(stage.tasks) - stage.done for name, stage in stages.items()}


def ran(output: Path) -> dict[str, int]:
    """Tasks that the build ran, by the names it gives its stages (of which some run together)."""
    stages = json.loads((output / "manifest.json").read_text())["run"]["stages"]
    return {name: stage["tasks"] for name, stage in stages.items() if name != "prepare"}


def summed(counts: dict[str, int], names: dict[str, int]) -> dict[str, int]:
    """Counts by stage as counts by the names of `ran`."""
    return {name: sum(counts[part] for part in name.split(" + ")) for name in names}


def snapshot(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_before_a_build_and_in_the_middle_of_it_explain_says_what_is_then_run(cli, tree, tokenizer_file, tmp_path):
    output, work = tmp_path / "out", tmp_path / "work"
    before = explained(tree, output, work, tokenizer_file)
    assert not list(tmp_path.iterdir())
    build = ("build", tree, "--work", work, "--tokenizer", tokenizer_file, *FLAGS)
    assert cli(*build, "--output", output).returncode == 0
    took = ran(output)
    assert [stage for name in took for stage in name.split(" + ")] == list(before)
    assert not any(before[name].about for name in ("read", "assign", "tokenizer"))
    assert all(before[name].about for name in ("gather", "tokenise", "index", "search", "walk", "write"))
    exact = {name: number for name, number in took.items() if name != "write"}  # one pack: easily reckoned
    assert summed(to_do(before), exact) == exact

    # Another seed: what is there is exact, up to the shards of plans that are not.
    seeded = explained(tree, tmp_path / "b", work, tokenizer_file, seed=1)
    assert to_do(seeded) | {"write": 0} == dict.fromkeys(before, 0) | {"walk": 1}
    assert seeded["write"].about
    assert not any(stage.about for name, stage in seeded.items() if name != "write")

    # A second output of the same: only the shards, and they are exact. Some receipts are lost besides.
    lost = sorted(work.glob("link-*/done/search-*"))[:1] + sorted(work.glob("walk-*/done/*"))
    for path in lost:
        path.rename(path.with_suffix(".away"))
    again = explained(tree, tmp_path / "c", work, tokenizer_file)
    assert to_do(again) | {"write": 0} == dict.fromkeys(before, 0) | {"search": 1, "walk": 1}
    for path in lost:
        path.with_suffix(".away").rename(path)
    held = snapshot(tmp_path)
    shards = explained(tree, tmp_path / "c", work, tokenizer_file)
    assert snapshot(tmp_path) == held
    assert not any(stage.about for stage in shards.values())
    assert cli(*build, "--output", tmp_path / "c").returncode == 0
    assert summed(to_do(shards), ran(tmp_path / "c")) == ran(tmp_path / "c")
    assert sum(shards["write"].weights) == json.loads((output / "manifest.json").read_text())["ledger"]["examples"]

    # Stopped among the shards.
    (tmp_path / "c" / "manifest.json").unlink()
    write_json(tmp_path / "c" / ".write" / "done" / "write-00000.json", {"file": "train-00000"})
    first = tmp_path / "c" / "data" / shards["write"].tasks[0].args["file"]
    rest = explained(tree, tmp_path / "c", work, tokenizer_file)
    assert to_do(rest) == to_do(shards) | {"write": len(shards["write"].tasks) - 1}
    first.unlink()
    assert to_do(explained(tree, tmp_path / "c", work, tokenizer_file)) == to_do(shards)


def test_several_packs_are_exact_once_they_are_assigned(cli, tree, tokenizer_file, tmp_path):
    output, work = tmp_path / "out", tmp_path / "work"
    flags = ("--work", work, "--tokenizer", tokenizer_file, *FLAGS, "--pack-documents", 30)
    assert cli("build", tree, "--output", output, *flags).returncode == 0
    took = ran(output)
    # Another output of the same: what was laid out for this one is gone, though its receipts are there.
    other = explained(tree, tmp_path / "c", work, tokenizer_file, pack_documents=30)
    assert to_do(other) == dict.fromkeys(other, 0) | {name: took[name] for name in ("lay", "write")}
    for path in work.glob("*/done/*"):
        if not path.name.startswith(("read", "assign")):
            path.unlink()
    stages = explained(tree, tmp_path / "b", work, tokenizer_file, pack_documents=30)
    packs = [pack["documents"] for pack in json.loads((output / "manifest.json").read_text())["packs"]]
    assert len(packs) > 240 // 30
    assert stages["index"].weights == packs
    assert stages["search"].largest == (f"{packs.index(max(packs)):05d}-00000000", max(packs))
    rest = {name: number for name, number in took.items() if name not in ("read", "assign", "lay", "write")}
    assert summed(to_do(stages), rest) == rest
    assert [name for name, stage in stages.items() if stage.about] == ["lay", "write"]  # by their examples


def test_explain_through_the_command_line(cli, tree, tokenizer_file, built, tmp_path):
    flags = ("--output", tmp_path / "out", "--tokenizer", tokenizer_file, *FLAGS)
    engine = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    done = cli("build", tree, *flags, "--explain", "--", *engine)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    assert "read: 1 task (0.4 MB); pipeline 1" in done.stdout
    assert "search: about 1 task (about 240 documents); pipeline 5" in done.stdout
    assert "waits for index; reads the index of a pack; leaves graph/" in done.stdout
    assert "waits for tokenise, search; reads graph/" in done.stdout
    assert f"runner: {' '.join(engine)}" in done.stdout
    assert "--runner=FnApiRunner" in done.stdout
    done = cli("build", tree, "--output", built, "--tokenizer", tokenizer_file, *FLAGS, "--explain")
    assert "complete already, nothing to do" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere"], "nowhere: does not exist"),
        (["src", "--tokenizer", "gone.json"], "gone.json"),
        (["src", "--", "--nope"], "Beam has no option --nope"),
        (["src", "--retriever", "domain", "--domain-field", "topic"], "files have no fields"),
    ],
)
def test_explain_refuses_what_the_build_would(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_text("words " * 20)
    cut = flags.index("--") if "--" in flags else len(flags)
    assert run(["build", *flags[:cut], "--output", "out", "--explain", *flags[cut:]]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def stage_of(name: str, tasks: int, group: int, waits_for: tuple[str, ...] = (), done: int = 0) -> Explained:
    made = [Task(name, str(i), "") for i in range(tasks)]
    return Explained(name, made, [1] * tasks, done, list(waits_for), False, group)


def test_pipelines_are_those_the_engine_sees():
    stages = [
        stage_of("read", 9, 1, done=9),
        stage_of("assign", 1, 2, ("read",)),
        stage_of("tokenizer", 1, 3, ("assign",)),
        stage_of("index", 4, 3, ("assign",)),
        stage_of("tokenise", 4, 3, ("tokenizer",)),
        stage_of("search", 8, 3, ("index",)),
        stage_of("walk", 4, 4, ("tokenise", "search"), done=3),
    ]
    here = ["done already", "in the driver", *["pipeline 1"] * 4, "in the driver"]
    assert list(pipelines(stages, here=True, workers=4).values()) == here
    alone = [
        "done already",
        "in the driver",
        "in the driver",
        "pipeline 1",
        "pipeline 2",
        "pipeline 3",
        "in the driver",
    ]
    assert list(pipelines(stages, here=True, workers=1).values()) == alone
    away = ["done already", "pipeline 1", "pipeline 2", "pipeline 2", "pipeline 3", "pipeline 3", "pipeline 4"]
    assert list(pipelines(stages, here=False, workers=4).values()) == away
    large = [stage_of("read", 45_000, 1), stage_of("assign", 1, 2, ("read",))]  # a job has at most 20,000 tasks
    assert list(pipelines(large, here=False, workers=4).values()) == ["pipelines 1 to 3", "pipeline 4"]
    assert list(pipelines(large, here=True, workers=4).values()) == ["pipeline 1", "in the driver"]
