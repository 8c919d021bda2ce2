"""How an answer is scored: SQuAD's exact match and token F1, lost-in-the-middle's substring match, labels.

Normalisation, exact match and F1 as in SQuAD (Rajpurkar et al. 2016, section 6.1; the empty answer as in 2018); the
substring match as in Lost in the Middle (Liu et al. 2023, section 2.2).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

from splice.errors import SpliceError

from .task import Answer, Query

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous white space, in that order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 where the normalised prediction is a normalised gold."""
    return float(normalise(prediction) in {normalise(gold) for gold in golds})


def token_f1(prediction: str, golds: Iterable[str]) -> float:
    """The best harmonic mean of precision and recall over the words of any gold, 0 .. 1."""
    return max((_f1(normalise(prediction).split(), normalise(gold).split()) for gold in golds), default=0.0)


def _f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    common = (Counter(prediction) & Counter(gold)).total()
    return 2 * common / (len(prediction) + len(gold))  # = 2PR / (P + R)


def best_subspan_em(prediction: str, golds: Iterable[str]) -> float:
    """1.0 where a normalised gold is a substring of the normalised prediction.

    A gold that is but punctuation and articles ("*") counts for nothing: it would be in every prediction.
    """
    said = normalise(prediction)
    return float(any(gold in said for gold in map(normalise, golds) if gold))


def first_line(text: str) -> str:
    """What was answered before the model went on to the next question."""
    return text.partition("\n")[0].strip()


def labelled(query: Query, answer: Answer) -> dict[str, float]:
    """Accuracies of a query with labels, of what was asked of the model.

    match       greedy decoding gives a right label: by teacher forcing, or as the first line of what was generated
    likelihood  the likeliest label is right; of equal ones the first
    """
    scores: dict[str, float] = {}
    if answer.text is not None:
        scores["match"] = float(first_line(answer.text) in {right.strip() for right in query.answers})
    elif answer.matched is not None:
        scores["match"] = float(answer.matched)
    if answer.log_likelihoods:
        best = max(range(len(query.labels)), key=lambda i: answer.log_likelihoods[i])
        scores["likelihood"] = float(query.labels[best] in query.answers)
    return scores


def require_scorer(task: str, scorer: str, supported: Sequence[str], why: str) -> None:
    """Raises SpliceError for a scorer that a task does not have."""
    if scorer not in supported:
        raise SpliceError(f"{task}: --scorer {scorer} cannot score it: {why}; take --scorer {' or '.join(supported)}")
