"""Scores by hand: SQuAD's normalisation, exact match and F1, the substring match, labels."""

from dataclasses import replace

import pytest

from splice.errors import SpliceError
from splice.eval.scoring import best_subspan_em, exact_match, first_line, labelled, normalise, require_scorer, token_f1
from splice.eval.task import Answer, Query


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a-the", "athe"),  # punctuation goes before articles
        ("An apple, a pear", "apple pear"),
        ("theatre and another", "theatre and another"),
        ("U.S.\tNavy\n", "us navy"),
        ("Größe", "größe"),
        ("«1871»", "«1871»"),  # ASCII punctuation alone, as in SQuAD
        ("the", ""),
    ],
)
def test_normalised(text, normal):
    assert normalise(text) == normal


def test_exact_match_is_of_any_gold():
    assert exact_match("the Lind.", ["Rhine", "Lind"]) == 1.0
    assert exact_match("river Lind", ["Lind"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "golds", "f1"),
    [
        ("sheep and cider", ["sheep and cider"], 1.0),
        ("sheep", ["sheep and cider"], 0.5),  # P 1, R 1/3
        ("the sheep and goats", ["sheep and cider"], 2 / 3),  # P 2/3, R 2/3
        ("two two", ["two"], 2 / 3),  # a word counts as often as it is in both: P 1/2, R 1
        ("two two", ["two two"], 1.0),
        ("gull", ["wren", "gull or tern"], 0.5),  # the best gold
        ("gull", ["wren"], 0.0),
        ("", ["wren"], 0.0),
        ("the", ["a"], 1.0),
        ("gull", [], 0.0),
    ],
)
def test_token_f1(prediction, golds, f1):
    assert token_f1(prediction, golds) == pytest.approx(f1)


def test_substring_match_is_of_normalised_texts():
    assert best_subspan_em("It was Wilhelm Conrad, the Röntgen.", ["Conrad Röntgen"]) == 1.0
    assert best_subspan_em("in 1871.", ["1872", "in the 1871"]) == 1.0
    assert best_subspan_em("Röntgen", ["Conrad Röntgen"]) == 0.0
    assert best_subspan_em("anything", ["*", "the"]) == 0.0


def test_the_first_line_is_what_was_answered():
    assert first_line(" HUM \nQuestion: next") == "HUM"
    assert first_line("\nHUM") == ""


QUERY = Query("q", "q", "Type:", (" HUM",), (" ABBR", " HUM", " LOC"), "\n")


def test_a_labelled_query_scores_what_was_asked_of_the_model():
    assert labelled(QUERY, Answer()) == {}
    assert labelled(QUERY, Answer(matched=True)) == {"match": 1.0}
    assert labelled(QUERY, Answer(matched=False, log_likelihoods=(-3.0, -1.0, -2.0))) == {
        "match": 0.0,
        "likelihood": 1.0,
    }
    assert labelled(QUERY, Answer(log_likelihoods=(-0.5, -1.0, -2.0))) == {"likelihood": 0.0}
    assert labelled(QUERY, Answer(log_likelihoods=(-1.0, -1.0, -2.0))) == {"likelihood": 0.0}, "of equal ones the first"
    either = replace(QUERY, answers=(" HUM", " LOC"))
    assert labelled(either, Answer(log_likelihoods=(-3.0, -2.0, -1.0))) == {"likelihood": 1.0}


@pytest.mark.parametrize(
    ("text", "match"), [(" HUM\nQuestion:", 1.0), ("HUM", 1.0), (" HUM:ind", 0.0), (" hum", 0.0), ("", 0.0)]
)
def test_a_generated_label_is_the_first_line(text, match):
    assert labelled(QUERY, Answer(text=text)) == {"match": match}


def test_a_scorer_that_a_task_has_not_is_refused():
    require_scorer("kv", "match", ("match", "generate"), "why")
    with pytest.raises(
        SpliceError, match="kv: --scorer likelihood cannot score it: why; take --scorer match or generate"
    ):
        require_scorer("kv", "likelihood", ("match", "generate"), "why")
