"""The ledger gathers what each stage counted, and names whatever does not add up."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from splice.ledger import imbalances, make_ledger, total

# Two sources through a build by hand: L = 100, 3 examples. code: 10 documents in, 1 quarantined, 2 too short, 1 a
# duplicate, 6 tokenised to 200 tokens, 1 of them (30 tokens) left out, one of 10 tokens used twice, 30 tokens trimmed.
# web: 5 in, 1 a near-duplicate, the others packed.
READ = [
    {"source": "code", "documents": 6, "quarantined": 1},
    {"source": "web", "documents": 5, "quarantined": 0},
    {"source": "code", "documents": 4, "quarantined": 0},
]
REFUSED = Counter({("code", "too_short"): 2, ("code", "duplicate"): 1, ("web", "near_duplicate"): 1})
TOKENISED = [
    {"by_source": {"code": {"documents": 2, "tokens": 80}, "web": {"documents": 4, "tokens": 110}}},
    {"by_source": {"code": {"documents": 4, "tokens": 120}}},
]
PLANS = [
    {
        "by_source": {
            "code": {"left_out_documents": 1, "left_out_tokens": 30, "trimmed_tokens": 30, "split_documents": 2,
                     "reuses": 1, "reused_tokens": 10},
            "web": {"left_out_documents": 0, "left_out_tokens": 0, "trimmed_tokens": 0, "split_documents": 0,
                    "reuses": 0, "reused_tokens": 0},
        }
    }
]  # fmt: skip
SHARDS = [
    {"examples": 2, "padding": 0, "by_source": {"code": {"written_tokens": 100, "separators": 8},
                                                 "web": {"written_tokens": 90, "separators": 2}}},
    {"examples": 1, "padding": 20, "by_source": {"code": {"written_tokens": 50, "separators": 4},
                                                  "web": {"written_tokens": 20, "separators": 6}}},
]  # fmt: skip


@pytest.fixture
def ledger():
    return make_ledger(100, READ, REFUSED, TOKENISED, PLANS, iter(SHARDS))


def test_a_build_by_hand_balances(ledger):
    assert imbalances(ledger) == []
    assert ledger == {
        "examples": 3,
        "tokens": 300,
        "padding": 20,
        "sources": {
            "code": {
                "documents_in": 10, "packed": 5, "left_out": 1, "duplicate": 1, "near_duplicate": 0, "quarantined": 1,
                "filtered": {"too_short": 2}, "tokens_in": 200, "written": 150, "trimmed": 30, "left_out_tokens": 30,
                "separators": 12, "split_documents": 2, "reuses": 1, "reused_tokens": 10,
            },
            "web": {
                "documents_in": 5, "packed": 4, "left_out": 0, "duplicate": 0, "near_duplicate": 1, "quarantined": 0,
                "filtered": {}, "tokens_in": 110, "written": 110, "trimmed": 0, "left_out_tokens": 0, "separators": 8,
                "split_documents": 0, "reuses": 0, "reused_tokens": 0,
            },
        },
    }  # fmt: skip


def test_totals(ledger):
    assert total(ledger, "documents_in") == 15
    assert total(ledger, "trimmed", "left_out_tokens") == 60


DOCUMENTS = ("documents_in", "packed", "left_out", "duplicate", "near_duplicate", "quarantined")
TOKENS = ("tokens_in", "trimmed", "left_out_tokens", "reused_tokens")


@pytest.mark.parametrize("source", ["code", "web"])
@pytest.mark.parametrize("figure", [*DOCUMENTS, *TOKENS])
@pytest.mark.parametrize("by", [1, -1])
def test_a_figure_that_is_off_by_one_is_named_with_its_source(ledger, source, figure, by):
    ledger["sources"][source][figure] += by
    kind = "documents" if figure in DOCUMENTS else "tokens"
    (wrong,) = imbalances(ledger)
    assert wrong.startswith(f"source {source}: ")
    assert f"{kind} in" in wrong
    assert "accounted for" in wrong


def test_the_sentence_has_both_numbers(ledger):
    ledger["sources"]["code"]["quarantined"] = 0
    assert imbalances(ledger) == ["source code: 10 documents in, 9 accounted for"]


def test_a_filter_that_lost_a_document_is_seen(ledger):
    ledger["sources"]["web"]["filtered"]["empty"] = 1
    assert imbalances(ledger) == ["source web: 5 documents in, 6 accounted for"]


def test_two_sources_do_not_make_up_for_each_other(ledger):
    ledger["sources"]["code"]["packed"] += 1
    ledger["sources"]["web"]["packed"] -= 1
    assert len(imbalances(ledger)) == 2


@pytest.mark.parametrize("figure", ["padding", "tokens"])
def test_what_the_examples_hold_must_be_what_was_written(ledger, figure):
    ledger[figure] += 1
    (wrong,) = imbalances(ledger)
    assert wrong.startswith("examples hold ")


def test_a_separator_too_many_is_seen(ledger):
    ledger["sources"]["web"]["separators"] += 1
    assert imbalances(ledger) == ["examples hold 300 tokens, but 301 were written with separators and padding"]


@pytest.mark.parametrize("lost", ["read", "tokenised", "plans", "shards"])
def test_a_receipt_that_is_lost_unbalances_it(lost):
    receipts = {"read": READ, "tokenised": TOKENISED, "plans": PLANS, "shards": SHARDS}
    receipts = {name: copy.deepcopy(value[1:] if name == lost else value) for name, value in receipts.items()}
    assert imbalances(make_ledger(100, refused=REFUSED, **receipts))


def test_a_refusal_that_is_lost_unbalances_it():
    for key in REFUSED:
        fewer = REFUSED.copy()
        fewer[key] -= 1
        assert imbalances(make_ledger(100, READ, fewer, TOKENISED, PLANS, SHARDS))
