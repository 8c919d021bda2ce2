"""A tokenizer's files: where they are, and what they say about its ids."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import SpliceError
from .tokenizer_backend import Reference, SentencePieceReference, TokenizersReference, reason_of
from .tokenizer_special import (
    WELL_KNOWN,
    find_role,
    silence_json,
    silence_model,
    user_defined,
    without_merges,
)

SIDE_FILES = ("tokenizer_config.json", "special_tokens_map.json", "config.json")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Definition:
    """What a tokenizer's files say."""

    name: str
    filename: str  # "tokenizer.json" or "tokenizer.model", as it is saved
    data: bytes = field(repr=False)  # that file
    vocab_size: int
    roles: dict[str, int | None]  # "bos", "eos", "pad"
    unk_id: int | None  # what stands for text that the vocabulary cannot write
    names: dict[str, str]  # the tokens of the roles it has
    special: frozenset[int]  # what no text may give, but for an unknown token where the model has one
    added: dict[str, int]  # text and id of the tokens that are looked for ahead of the model, and of the special ones
    reference: Reference = field(repr=False)
    fast_json: Callable[[], str] = field(repr=False)  # the tokenizer.json for gigatoken; may raise
    config: dict[str, Any] = field(repr=False)  # the user's tokenizer_config.json

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.reference.decode([i for i in map(int, ids) if i not in self.special])

    def hub_config(self) -> dict[str, Any]:
        """tokenizer_config.json: the user's, with the roles as found, and without remote code (which the saved directory lacks)."""
        config = HUB_DEFAULTS | self.config
        if config.pop("auto_map", None) is not None:
            config["tokenizer_class"] = HUB_DEFAULTS["tokenizer_class"]
        return config | {f"{role}_token": name for role, name in self.names.items()}


HUB_DEFAULTS: dict[str, Any] = {
    "clean_up_tokenization_spaces": False,
    "model_max_length": 10**30,  # transformers' "no limit": an example's length is the training's affair
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def find_tokenizer(spec: str) -> tuple[Path, str]:
    """The tokenizer's file and the name it goes by."""
    path = Path(spec).expanduser()
    name = os.path.basename(os.path.abspath(path))
    if path.is_file():
        return path, name
    if path.is_dir():
        found = next((path / f for f in ("tokenizer.json", "tokenizer.model") if (path / f).is_file()), None)
        if found is None:
            raise SpliceError(
                f"{spec}: the directory has neither a tokenizer.json nor a tokenizer.model; copy the model's there"
            )
        return found, name
    if _HUB_NAME.fullmatch(spec) is None or path.suffix in (".json", ".model"):
        raise SpliceError(
            f"{spec}: no such file or directory; name a tokenizer.json, a .model, a directory with one, or ORG/NAME on the hub"
        )
    return _download(spec), spec


def _download(name: str) -> Path:
    """The file of a tokenizer on the hub, from the local cache or downloaded, the files beside it where there are any."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            path = hf_hub_download(name, "tokenizer.json")
        except EntryNotFoundError:
            path = hf_hub_download(name, "tokenizer.model")
        for file in SIDE_FILES:
            # Any of them may be missing, and offline a missing one cannot be told from one that was never fetched.
            try:
                hf_hub_download(name, file)
            except (EntryNotFoundError, OSError):
                continue
    except Exception as error:
        raise SpliceError(
            f"{name}: no such file or directory here, and the hub does not give it ({reason_of(error)}); name a tokenizer.json, a "
            f".model or a directory with one instead"
        ) from error
    return Path(path)


def read_definition(path: Path, name: str) -> Definition:
    try:
        data = path.read_bytes()
        is_json = path.suffix == ".json" or (path.suffix != ".model" and data.lstrip()[:1] == b"{")
        return _read_json(path, data, name) if is_json else _read_model(data, name)
    except SpliceError:
        raise
    except BaseException as error:
        raise SpliceError(f"{path}: not a tokenizer that can be read: {reason_of(error)}") from error


def _read_json(path: Path, data: bytes, name: str) -> Definition:
    config = json.loads(data)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise SpliceError(f'{path}: not a tokenizer.json: it has no "model"')
    # What it would do beyond the text's ids: transformers keeps these for training with its own collators.
    config = {**config, "truncation": None, "padding": None, "post_processor": None}
    reference = TokenizersReference(config)
    vocab = reference.tokenizer.get_vocab(with_added_tokens=True)
    tokens = config.get("added_tokens") or []
    texts = [token["content"] for token in tokens]

    beside = {file: _side_file(path.parent / file) for file in SIDE_FILES}
    roles = {role: find_role(role, beside, texts, vocab) for role in ("bos", "eos", "pad")}
    names = {role: reference.tokenizer.id_to_token(i) for role, i in roles.items() if i is not None}

    special = {token["content"] for token in tokens if token.get("special")} | set(names.values())
    special_ids = frozenset(vocab[token] for token in special)
    if any(special_ids.intersection(ids) for ids in reference.encode(_in_contexts(special), 1)):
        # An end that its authors did not flag as special, or a Unigram model that has </s> among its words.
        reference = TokenizersReference(silence_json(config, special))
    return Definition(
        name=name,
        filename="tokenizer.json",
        data=data,
        vocab_size=max(vocab.values(), default=-1) + 1,
        roles=roles,
        unk_id=_unknown(config["model"], vocab),
        names=names,
        special=special_ids,
        added={text: vocab[text] for text in texts},
        reference=reference,
        fast_json=lambda: json.dumps(silence_json(config, special), ensure_ascii=False),
        config=beside["tokenizer_config.json"],
    )


def _read_model(data: bytes, name: str) -> Definition:
    reference = SentencePieceReference(data)
    sp = reference.processor
    size = sp.vocab_size()
    piece_of = sp.id_to_piece

    def role_of(role: str, own: int) -> int | None:
        """sentencepiece knows a role only by a control piece; `<|endoftext|>` as a user-defined one is found by its name."""
        if own >= 0:
            return own
        named = [i for piece in WELL_KNOWN[role] if piece_of(i := sp.piece_to_id(piece)) == piece]
        return next((i for i in named if not sp.is_unknown(i) and not sp.is_control(i)), None)

    roles = {
        "bos": role_of("bos", sp.bos_id()),
        "eos": role_of("eos", sp.eos_id()),
        "pad": role_of("pad", sp.pad_id()),
    }
    special = {i for i in range(size) if sp.is_control(i)} | {i for i in roles.values() if i is not None}
    parsed = {i for i in special if not sp.is_control(i)}
    if parsed:  # user-defined pieces are looked for in the text
        reference = SentencePieceReference(silence_model(data, parsed))
    # Pieces that text gives only as a last resort (a byte, the unknown) or never: no merge may make one.
    reserved = [piece_of(i) for i in range(size) if i in special or sp.is_byte(i) or sp.is_unknown(i)]

    def fast_json() -> str:
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        config = json.loads(sentencepiece_to_tokenizer_json(data))
        config["model"]["merges"] = without_merges(config["model"]["merges"], reserved)
        return json.dumps(silence_json(config, [piece_of(i) for i in special]), ensure_ascii=False)

    return Definition(
        name=name,
        filename="tokenizer.model",
        data=data,
        vocab_size=size,
        roles=roles,
        unk_id=sp.unk_id() if sp.unk_id() >= 0 else None,
        names={role: piece_of(token) for role, token in roles.items() if token is not None},
        special=frozenset(special),
        added={piece_of(i): i for i in (*sorted(special), *user_defined(data))},
        reference=reference,
        fast_json=fast_json,
        config={},
    )


def _unknown(model: dict[str, Any], vocab: dict[str, int]) -> int | None:
    """A Unigram model names the number, the others the token."""
    number = model.get("unk_id")
    return number if number is not None else vocab.get(model.get("unk_token") or "")


def _in_contexts(tokens: Iterable[str]) -> list[str]:
    return [
        text
        for token in sorted(tokens)
        for text in (token, f" {token}", f"a{token}b", f"a {token} b", f"{token}{token}")
    ]


def _side_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise SpliceError(f"{path}: not JSON: {error}") from error
    return content if isinstance(content, dict) else {}
