"""embed: a block of a pack's documents -> their embeddings by the encoder, float16."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SpliceError, StoreFailed
from ..files import replacing
from ..packs import open_pack
from ..shared import shared
from ..storage import is_url, local, local_directory, location

if TYPE_CHECKING:
    from ..encoder import Encoder


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest (directory), pack, parts, start, stop (documents), number (of the task), encoder (name or directory),
    revision (the hub's commit or None), tokens (at most, of a document).

    Writes embeddings/PPPPP-SSSSSSSS.npy, float16 [stop - start, d].
    """
    from ..encoder import device_of

    pack = open_pack(args["ingest"], args["pack"], args["parts"])
    encoder = _encoder(args["encoder"], args["revision"], args["tokens"], device_of(args["number"]))
    texts = [pack.text(d).decode("utf-8", "replace") for d in range(args["start"], args["stop"])]
    embeddings = encoder.embed(texts, threads)
    path = embeddings_path(directory, args["pack"], args["start"])
    with replacing(path) as temporary, open(temporary, "wb") as out:
        np.save(out, embeddings, allow_pickle=False)
    return {
        "documents": len(embeddings),
        "dimension": encoder.dimension,
        "max_tokens": encoder.max_tokens,
        "parts": encoder.parts,
        "device": encoder.device.partition(":")[0],
    }


def embeddings_path(directory: Path, pack: int, start: int) -> Path:
    """Where the embeddings of the block that starts at document `start` lie."""
    return directory / "embeddings" / f"{pack:05d}-{start:08d}.npy"


def read_embeddings(directory: Path, pack: int, starts: list[int]) -> np.ndarray:
    """The embeddings of a whole pack, float16 [N, d].

    Raises StoreFailed where a block is damaged, SpliceError for one of an encoder of another dimension.
    """
    blocks = []
    for start in starts:
        path = embeddings_path(directory, pack, start)
        try:
            blocks.append(np.load(local(path), allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise StoreFailed(f"{path}: missing or damaged ({error}); remove {directory} and embed again") from None
        if blocks[-1].shape[1:] != blocks[0].shape[1:]:
            raise SpliceError(
                f"{path}: embeddings of dimension {blocks[-1].shape[1]}, the others of this pack have {blocks[0].shape[1]}: "
                f"they are of different encoders; remove {directory} and embed again"
            )
    return np.concatenate(blocks)


@shared(maxsize=16)
def _encoder(name: str, revision: str | None, tokens: int, device: str) -> Encoder:
    from ..encoder import Encoder, locate

    place = str(local_directory(location(name))) if is_url(name) else name
    return Encoder(locate(place, revision), tokens, device)
