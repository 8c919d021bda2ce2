"""Whether the data was tokenised with the model's tokenizer: ids of another one train without an error, and to no use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from splice.errors import SpliceError
from splice.storage import local_directory
from splice.store import PackedDataset
from splice.tokenizer import load_tokenizer
from splice.tokenizer_proof import first_difference, probes

FILES = ("tokenizer.json", "tokenizer.model")
EXAMPLES = 8  # of the dataset, whose text is compared


def check_tokenizer(model: Path, dataset: PackedDataset) -> None:
    """Raises SpliceError where a model's directory holds a tokenizer that gives other ids than the dataset's.

    Equal files are equal. Others, since libraries write the same tokenizer in other bytes, are compared on the dataset's own
    text and on the probes that tokenizers are known to differ on. A directory without a tokenizer says nothing; the vocabulary's
    size is checked anyway.
    """
    files = [model / name for name in FILES if (model / name).is_file()]
    known = dataset.manifest["tokenizer"]["fingerprint"]
    if not files or any(hashlib.sha256(path.read_bytes()).hexdigest() == known for path in files):
        return
    own = local_directory(dataset.path / "tokenizer")
    theirs, ours = (load_tokenizer(str(path), fast=False) for path in (files[0], own))
    named = [
        (f"the text of example {i}", ours.decode(dataset.input_ids(i))) for i in range(min(EXAMPLES, len(dataset)))
    ]
    named += probes([])
    texts = [text.encode() for _, text in named]
    differs = first_difference(theirs.encode_reference, ours.encode_reference(texts), texts)
    if differs is not None:
        raise SpliceError(
            f"{dataset.path}: tokenised with {dataset.manifest['tokenizer']['name']}, which is not the model's tokenizer "
            f"({files[0]}): they differ on {named[differs][0]}; build the data with --tokenizer {model}"
        )
