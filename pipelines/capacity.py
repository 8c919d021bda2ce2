"""What a build takes, stage by stage, reckoned from the size of the corpus by the rates of rates.py.

All tasks of a stage are taken to be of one size, which packs nearly are: they are levelled.

Notation: N documents of B bytes of text in K packs, n and b of them in a pack; T tokens; E examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from splice.packs import PACKS_AT_HAND
from splice.settings import BuildSettings
from splice.sources import Unit
from splice.stages.assign import PART_BYTES
from splice.stages.centroids import MOST_CLUSTERS, PACK_CLUSTERS, SAMPLE_BYTES

from . import rates
from .link import EMBED_BLOCK, search_block

UNIT_BYTES = 16 * 2**20  # what plan_units aims at
SCATTERED = ("hash", "cluster")  # packs whose documents lie anywhere in the input
BYTES_PER_DOCUMENT = 7_000  # where a source does not say how many documents it holds


@dataclass(frozen=True)
class Corpus:
    """What is built. text_bytes: UTF-8. What the text is like is that of the rates unless a sample was measured.

    factors: by stage, how much more CPU time than the rates a sample took.
    """

    documents: int
    text_bytes: int
    files: int = 0  # of a tree: a document each
    tokens_per_byte: float = rates.TOKENS_PER_BYTE
    data_token_bytes: float = rates.DATA_TOKEN
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return int(self.text_bytes * self.tokens_per_byte)


@dataclass(frozen=True)
class EncoderSize:
    """Of a dense retriever's encoder: bytes of float32 weights, numbers of an embedding."""

    weight_bytes: int
    dimension: int


@dataclass(frozen=True)
class StageCost:
    """One stage. CPU seconds of all its tasks and of the longest; memory of one process that runs a task.

    read_bytes: of what other tasks wrote; fetched_bytes: the same where files can only be fetched whole; written_bytes: what
    it leaves in the work directory or, of "write", in the output.
    """

    name: str
    tasks: int
    cpu_seconds: float
    longest_seconds: float
    memory_bytes: int
    read_bytes: int = 0
    fetched_bytes: int = 0
    written_bytes: int = 0

    def wall_seconds(self, workers: int) -> float:
        """At most so long, whatever order the tasks come in (Graham 1969)."""
        return self.longest_seconds + max(0.0, self.cpu_seconds - self.longest_seconds) / workers


@dataclass(frozen=True)
class Packs:
    """K packs of n documents, b bytes and so many files; examples and shards of the dataset, which are at most so many."""

    count: int
    documents: float
    text_bytes: float
    parts: int
    examples: int
    shards: int

    @classmethod
    def of(cls, s: BuildSettings, corpus: Corpus) -> Packs:
        count = _ceil(corpus.documents / s.pack_documents)
        per_pack = corpus.text_bytes / count
        examples = max(count, _ceil(corpus.tokens / s.length))
        shards = _ceil(examples / max(1, s.shard_tokens // s.length))
        return cls(count, corpus.documents / count, per_pack, _ceil(per_pack / PART_BYTES), examples, shards)


def stage_costs(
    s: BuildSettings, corpus: Corpus, encoder: EncoderSize | None = None, apart: bool = True
) -> list[StageCost]:
    """Every stage of a build of `corpus`, in their order.

    apart: every task is in another process than the one before, as on a cluster of many workers; otherwise the tasks
    of a pack find its index at hand.
    """
    packs = Packs.of(s, corpus)
    stages = [_read(s, corpus)]
    if s.pack_by == "cluster" and packs.count > 1:
        stages += _clusters(corpus, packs)
    stages += [_assign(s, corpus), _gather(s, corpus, packs), _tokenizer(), _tokenise(corpus, packs)]
    if encoder is not None and s.has_encoder:
        stages.append(_embed(s, corpus, packs, encoder))
    if s.has_link:
        stages += [_index(s, corpus, packs, encoder), _search(s, corpus, packs, encoder, apart)]
    stages.append(_walk(s, corpus, packs, encoder, apart))
    laid = packs.count > PACKS_AT_HAND
    stages += [*([_lay(corpus, packs)] if laid else []), _write(corpus, packs, laid, apart)]
    return [
        replace(stage, cpu_seconds=stage.cpu_seconds * factor, longest_seconds=stage.longest_seconds * factor)
        for stage in stages
        for factor in [corpus.factors.get(stage.name, 1.0)]
    ]


def driver_seconds(stages: list[StageCost]) -> float:
    """CPU seconds of the command itself."""
    return rates.START + rates.DRIVER_TASK * sum(stage.tasks for stage in stages)


def driver_bytes(stages: list[StageCost]) -> int:
    """Memory of the command: its tasks, their descriptors and receipts."""
    return rates.PROCESS_BYTES + rates.DRIVER_TASK_BYTES * sum(stage.tasks for stage in stages)


def local_bytes(s: BuildSettings, corpus: Corpus, encoder: EncoderSize | None) -> int:
    """Memory of a build in one process, whose threads share the index."""
    packs = Packs.of(s, corpus)
    memory = rates.LOCAL_BYTES + rates.LOCAL_WORKER_BYTES * (s.worker_count - 1)
    memory += int(packs.text_bytes * (rates.LOCAL_BYTES_PER_BYTE if s.has_link else 1))
    return memory + (encoder.weight_bytes + _vectors(packs, encoder) if encoder else 0)


def documents_of(unit: Unit) -> int:
    """Of a unit that has not been read: the files of a tree, else about so many."""
    if unit.kind == "tree":
        return sum(len(names) for _, names in unit.items[1])
    return max(1, unit.bytes // BYTES_PER_DOCUMENT)


def _read(s: BuildSettings, corpus: Corpus) -> StageCost:
    near = rates.NEAR_READ_BYTE * corpus.text_bytes if s.dedup == "near" else 0.0
    tasks = _ceil(corpus.text_bytes / UNIT_BYTES)
    signatures = rates.SIGNATURE if s.dedup == "near" else 0
    written = corpus.text_bytes + (rates.READ_DOCUMENT + signatures) * corpus.documents
    cost = _cost("read", tasks, corpus, near + rates.READ_FILE * corpus.files, rates.PROCESS_BYTES + 4 * UNIT_BYTES)
    return replace(cost, written_bytes=written)


def _clusters(corpus: Corpus, packs: Packs) -> list[StageCost]:
    """Training clusters on a sample, and the nearest one of each document."""
    sample = min(SAMPLE_BYTES, corpus.text_bytes)
    clusters = min(MOST_CLUSTERS, PACK_CLUSTERS * packs.count)
    training = sample * (rates.CENTROIDS_BYTE + rates.CENTROIDS_PAIR * clusters)
    memory = rates.PROCESS_BYTES + int(rates.CENTROIDS_BYTES_PER_BYTE * sample)
    nearest = rates.CLUSTER_PAIR * corpus.text_bytes * clusters
    tasks = _ceil(corpus.text_bytes / UNIT_BYTES)
    read = corpus.text_bytes + rates.READ_DOCUMENT * corpus.documents
    return [
        replace(_cost("centroids", 1, corpus, training, memory), read_bytes=sample, fetched_bytes=sample),
        replace(
            _cost("cluster", tasks, corpus, nearest, rates.PROCESS_BYTES + 4 * UNIT_BYTES),
            read_bytes=read,
            fetched_bytes=read,
            written_bytes=2 * corpus.documents,
        ),
    ]


def _assign(s: BuildSettings, corpus: Corpus) -> StageCost:
    near = s.dedup == "near"
    memory = rates.ASSIGN_DOCUMENT_BYTES + near * rates.NEAR_DOCUMENT_BYTES
    seen = corpus.documents * (rates.KEYS_DOCUMENT + near * rates.SIGNATURE)
    grouping = near * rates.NEAR_ASSIGN_DOCUMENT * corpus.documents
    cost = _cost("assign", 1, corpus, grouping, rates.PROCESS_BYTES + memory * corpus.documents)
    return replace(cost, read_bytes=seen, fetched_bytes=seen, written_bytes=8 * corpus.documents)


def _gather(s: BuildSettings, corpus: Corpus, packs: Packs) -> StageCost:
    """A part's documents lie in files that follow each other, or in any where packs are by hash or cluster."""
    files, parts = _ceil(corpus.text_bytes / UNIT_BYTES), packs.count * packs.parts
    opened = float(files)
    if s.pack_by in SCATTERED and packs.count > 1:
        opened = parts * files * (1 - (1 - 1 / files) ** (corpus.documents / parts))
    cost = _cost("gather", packs.count * packs.parts, corpus, 0.0, rates.PROCESS_BYTES + 2 * PART_BYTES)
    moved = corpus.text_bytes + rates.PACK_DOCUMENT * corpus.documents
    return replace(cost, read_bytes=moved, fetched_bytes=int(moved * opened / files), written_bytes=moved)


def _tokenizer() -> StageCost:
    seconds = rates.STAGES["tokenizer"].task
    return StageCost("tokenizer", 1, seconds, seconds, rates.PROCESS_BYTES)


def _tokenise(corpus: Corpus, packs: Packs) -> StageCost:
    part = packs.text_bytes / packs.parts
    memory = rates.PROCESS_BYTES + int(rates.TOKENISE_BYTES_PER_BYTE * part)
    cost = _cost("tokenise", packs.count * packs.parts, corpus, 0.0, memory)
    written = rates.TOKEN * corpus.tokens + (8 + rates.PROVENANCE_DOCUMENT) * corpus.documents
    return replace(cost, read_bytes=corpus.text_bytes, fetched_bytes=_pack_files(corpus), written_bytes=written)


def _embed(s: BuildSettings, corpus: Corpus, packs: Packs, encoder: EncoderSize) -> StageCost:
    tokens = corpus.documents * min(s.encoder_tokens, corpus.tokens / corpus.documents)
    tasks = packs.count * _ceil(packs.documents / EMBED_BLOCK)
    memory = rates.PROCESS_BYTES + rates.TORCH_BYTES + encoder.weight_bytes
    cost = _cost("embed", tasks, corpus, tokens * encoder.weight_bytes / 4 * 2 / rates.EMBED_FLOPS, memory)
    blocks = _ceil(packs.documents / EMBED_BLOCK)  # each opens its whole pack
    written = 2 * encoder.dimension * corpus.documents
    return replace(
        cost, read_bytes=corpus.text_bytes, fetched_bytes=_pack_files(corpus) * blocks, written_bytes=written
    )


def _index(s: BuildSettings, corpus: Corpus, packs: Packs, encoder: EncoderSize | None) -> StageCost:
    words = s.retriever != "dense"
    memory = rates.PROCESS_BYTES + int(rates.INDEX_BYTES_PER_BYTE * packs.text_bytes * words)
    cost = _cost("index", packs.count, corpus, 0.0, memory + _vectors(packs, encoder))
    read = corpus.text_bytes * words + _embeddings(corpus, encoder)
    fetched = _pack_files(corpus) * words + _embeddings(corpus, encoder)
    return replace(cost, read_bytes=read, fetched_bytes=fetched, written_bytes=_index_bytes(s, corpus, encoder))


def _search(s: BuildSettings, corpus: Corpus, packs: Packs, encoder: EncoderSize | None, apart: bool) -> StageCost:
    words = s.retriever != "dense"
    length = corpus.text_bytes / corpus.documents / rates.SEARCH_PAIR_BYTES
    pair = rates.SEARCH_PAIR * length**rates.SEARCH_LENGTH_POWER * words
    pair += rates.DENSE_PAIR * (encoder.dimension if encoder else 0)
    blocks = _ceil(packs.documents / search_block(packs.count))
    loads = blocks if apart else 1
    loading = rates.LOAD_INDEX_BYTE * corpus.text_bytes * loads * words
    memory = rates.PROCESS_BYTES + int(rates.SEARCH_BYTES_PER_BYTE * packs.text_bytes * words)
    cost = _cost(
        "search",
        packs.count * blocks,
        corpus,
        corpus.documents * packs.documents * pair + loading,
        memory + _vectors(packs, encoder),
    )
    read = _index_bytes(s, corpus, encoder) * loads
    written = rates.GRAPH_NEIGHBOUR * min(s.neighbours, int(packs.documents)) * corpus.documents
    return replace(cost, read_bytes=read, fetched_bytes=read, written_bytes=written)


def _walk(s: BuildSettings, corpus: Corpus, packs: Packs, encoder: EncoderSize | None, apart: bool) -> StageCost:
    again = corpus.documents * packs.documents * rates.WALK_PAIR if s.has_link else 0.0
    again += rates.LOAD_INDEX_BYTE * corpus.text_bytes if s.has_link and s.retriever != "dense" and apart else 0.0
    held = rates.WALK_BYTES_PER_BYTE * packs.text_bytes + rates.WALK_BYTES_PER_DOCUMENT * packs.documents
    memory = rates.PROCESS_BYTES + int(held) + _vectors(packs, encoder)
    graph = rates.GRAPH_NEIGHBOUR * s.neighbours * corpus.documents if s.has_link else 0
    index = _index_bytes(s, corpus, encoder) if s.has_link else 0
    read = graph + index + 8 * corpus.documents
    fetched = graph + index + _pack_files(corpus) + rates.TOKEN * corpus.tokens
    cost = _cost("walk", packs.count, corpus, again, memory)
    return replace(cost, read_bytes=read, fetched_bytes=fetched, written_bytes=rates.PLAN_DOCUMENT * corpus.documents)


def _lay(corpus: Corpus, packs: Packs) -> StageCost:
    tokens = rates.TOKEN * corpus.tokens
    read = tokens + (rates.PLAN_DOCUMENT + rates.PACK_DOCUMENT) * corpus.documents
    seconds = rates.LAY_TOKEN * corpus.tokens + packs.count * _opening(packs)
    return replace(
        _cost("lay", packs.count, corpus, seconds, rates.PROCESS_BYTES + rates.TOKEN * corpus.tokens // packs.count),
        read_bytes=read,
        fetched_bytes=_pack_files(corpus) + tokens + rates.PLAN_DOCUMENT * corpus.documents,
        written_bytes=_laid_bytes(corpus, packs),
    )


def _write(corpus: Corpus, packs: Packs, laid: bool, apart: bool) -> StageCost:
    """A shard reads its examples where they are laid out; else it opens every pack that its process has not opened."""
    token = rates.WRITE_LAID_TOKEN if laid else rates.WRITE_TOKEN
    opened = 0 if laid else packs.count * (packs.shards if apart else 1)
    tokens = rates.TOKEN * corpus.tokens
    plans = int(opened * packs.documents * rates.PLAN_DOCUMENT)
    whole = int(opened * (_pack_files(corpus) + tokens) / packs.count)
    return replace(
        _cost("write", packs.shards, corpus, token * corpus.tokens + opened * _opening(packs), rates.SHARD_BYTES),
        read_bytes=_laid_bytes(corpus, packs) if laid else tokens + plans + rates.PACK_DOCUMENT * corpus.documents,
        fetched_bytes=_laid_bytes(corpus, packs) if laid else whole + plans,
        written_bytes=int(corpus.data_token_bytes * corpus.tokens),
    )


def _laid_bytes(corpus: Corpus, packs: Packs) -> int:
    return rates.TOKEN * corpus.tokens + rates.PACK_DOCUMENT * corpus.documents + rates.LAID_EXAMPLE * packs.examples


def _opening(packs: Packs) -> float:
    """Seconds to open a pack, its tokens and its plan."""
    return rates.OPEN_PLAN + rates.OPEN_PLAN_DOCUMENT * packs.documents + rates.OPEN_FILE * 2 * packs.parts


def _cost(name: str, tasks: int, corpus: Corpus, more_seconds: float, memory_bytes: int) -> StageCost:
    rate = rates.STAGES[name]
    seconds = rate.task * tasks + rate.document * corpus.documents + rate.byte * corpus.text_bytes + more_seconds
    return StageCost(name, tasks, seconds, seconds / tasks, memory_bytes)


def _pack_files(corpus: Corpus) -> int:
    return corpus.text_bytes + rates.PACK_DOCUMENT * corpus.documents


def _index_bytes(s: BuildSettings, corpus: Corpus, encoder: EncoderSize | None) -> int:
    words = rates.INDEX_TEXT_BYTE * corpus.text_bytes + rates.INDEX_DOCUMENT * corpus.documents
    return int(words * (s.retriever != "dense")) + _embeddings(corpus, encoder)


def _embeddings(corpus: Corpus, encoder: EncoderSize | None) -> int:
    return 2 * encoder.dimension * corpus.documents if encoder else 0  # float16


def _vectors(packs: Packs, encoder: EncoderSize | None) -> int:
    return int(packs.documents * encoder.dimension * 6) if encoder else 0  # float16, and float32 to search in


def _ceil(x: float) -> int:
    return max(1, -int(-x // 1))
