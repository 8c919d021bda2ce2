"""Which ids are special, and how a tokenizer is kept from making one of a document's text.

A document may hold the text `</s>`: it is quoted HTML, a tokenizer's own source, or an attack. Encoded as text it is a few
ordinary tokens; as the id of EOS it would end the document where the document does not end. "Silencing" leaves every id in
place and takes away only the ways from text to a special id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# In the order they are looked for, when no file beside the tokenizer names the token.
WELL_KNOWN: Mapping[str, tuple[str, ...]] = {
    "bos": ("<s>", "<|endoftext|>", "<|begin_of_text|>", "<bos>", "[BOS]"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"),
    "pad": ("<pad>", "<|pad|>", "<|padding|>", "[PAD]"),
}

# sentencepiece_model.proto: ModelProto.pieces, SentencePiece.type (field number << 3 | wire type), and values of the type.
_PIECES, _PIECE_TYPE = 1 << 3 | 2, 3 << 3
_CONTROL, _USER_DEFINED = 3, 4


def find_role(
    role: str, beside: Mapping[str, Mapping[str, Any]], added: Iterable[str], vocab: Mapping[str, int]
) -> int | None:
    """The id of the `role` ("bos", "eos", "pad") of a tokenizer.json, or None where it has none.

    `beside` holds the parsed files beside it by name, `added` the texts of its added tokens. An explicit null ("bos_token":
    null, as Qwen has it) rules out the well-known names, since the authors said that there is none.
    """
    denied = False
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if f"{role}_token" in beside.get(name, {}):
            value = beside[name][f"{role}_token"]
            content = value.get("content") if isinstance(value, dict) else value
            denied = denied or content is None
            if content in vocab:
                return vocab[content]
    value = beside.get("config.json", {}).get(f"{role}_token_id")
    value = (
        value[0] if isinstance(value, list) and value else value
    )  # Llama 3 lists several ends: the first ends a document
    if isinstance(value, int) and value in vocab.values():
        return value
    if denied:
        return None
    added = frozenset(added)
    return next((vocab[name] for name in WELL_KNOWN[role] if name in added), None)


def silence_json(config: dict[str, Any], special: Iterable[str]) -> dict[str, Any]:
    """A copy of the tokenizer.json `config` in which no text gives a token of `special`; all ids stay as they are.

    The tokens are renamed, in the vocabulary and among the added ones, to names that no text holds, and merges that make or
    use them go. (Dropping them instead would move the ids of the added tokens after them: `tokenizers` numbers those anew.)
    """
    rename = {content: f"\x00\U0010ffff{i}\U0010ffff\x00" for i, content in enumerate(sorted(special))}
    model = dict(config["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {rename.get(token, token): i for token, i in vocab.items()}
    elif isinstance(vocab, list):  # Unigram: [token, log probability] by id
        model["vocab"] = [[rename.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in rename:
        model["unk_token"] = rename[model["unk_token"]]
    if "merges" in model:
        model["merges"] = without_merges(model["merges"], rename.keys())
    added = [
        {**token, "content": rename[token["content"]], "normalized": False} if token["content"] in rename else token
        for token in config.get("added_tokens") or []
    ]
    return {**config, "added_tokens": added, "model": model}


def without_merges(merges: list[Any], tokens: Iterable[str]) -> list[Any]:
    """`merges` (pairs, or "left right" as older files have it) less those that make or use one of `tokens`."""
    tokens = frozenset(tokens)

    def ordinary(merge: Any) -> bool:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        return tokens.isdisjoint((left, right, left + right))

    return [merge for merge in merges if ordinary(merge)]


def silence_model(data: bytes, special: Iterable[int]) -> bytes:
    """The SentencePiece model `data` with the pieces of the ids `special` made control pieces, which text never gives.

    Works on the protobuf's bytes: sentencepiece's own generated module demands a newer protobuf than Beam allows.
    """
    special = frozenset(special)
    out, piece = bytearray(), 0
    for key, start, body, end in _fields(data):
        if key == _PIECES and (piece := piece + 1) - 1 in special:
            kept = b"".join(data[s:e] for k, s, _, e in _fields(data, body, end) if k != _PIECE_TYPE)
            changed = kept + bytes([_PIECE_TYPE, _CONTROL])
            out += bytes([key]) + _as_varint(len(changed)) + changed
        else:
            out += data[start:end]
    return bytes(out)


def user_defined(data: bytes) -> list[int]:
    """The ids of the SentencePiece model's user-defined pieces, which are looked for in the text before all others."""
    pieces = [(body, end) for key, _, body, end in _fields(data) if key == _PIECES]
    typed = bytes([_PIECE_TYPE, _USER_DEFINED])
    return [
        i
        for i, (s, e) in enumerate(pieces)
        if any(k == _PIECE_TYPE and data[a:z] == typed for k, a, _, z in _fields(data, s, e))
    ]


def _fields(data: bytes, at: int = 0, stop: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """(key, start, start of the value, end) of each field of the protobuf message data[at:stop]."""
    stop = len(data) if stop is None else stop
    while at < stop:
        start = at
        key, body = _varint(data, at)
        match key & 7:
            case 0:
                at = _varint(data, body)[1]
            case 1:
                at = body + 8
            case 2:
                length, body = _varint(data, body)
                at = body + length
            case 5:
                at = body + 4
            case wire:
                raise ValueError(f"not a SentencePiece model: wire type {wire}")
        yield key, start, body, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
