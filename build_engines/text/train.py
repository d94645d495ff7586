"""Trains text models with scikit-learn: TF-IDF, and behind it a logistic regression or a smaller space (LSA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from build_engines.errors import TextSetError
from build_engines.text.serving.words import find_words
from build_engines.text.texts import TextSet

# Measured on 4,600 news (docs/adr/0014-texts.md).
REGULARISATION = 3.0
LONGEST = {"text_classify": 2, "text_embed": 1}  # words and pairs of them; words alone
MANY = 1000  # texts; among so many, what stands in one only is left out
TOO_COMMON = 0.05  # share of texts with a word that says nothing in a feature
ENOUGH = 200  # texts, for that to be told; among fewer, no word is left out for it

MAX_WORDS, MAX_TERMS = 30_000, 50_000
"""Of a vocabulary, and with its pairs: every text in work takes a number for each."""

SHORTEST = 1e-3
"""Of a text's vector of length 1, what must lie in the smaller space to be a direction at all and not noise."""

Rows = npt.NDArray[np.float64]

# Words come joined by single spaces, and have none inside.
_SPLIT: dict[str, Any] = {"lowercase": False, "token_pattern": "[^ ]+"}


@dataclass(frozen=True)
class Trained:
    """A trained model, in FP64."""

    task: str
    """`text_classify` or `text_embed`."""
    pipeline: Pipeline
    labels: tuple[str, ...]
    """Of the classes in their order; none for features."""

    @property
    def vectoriser(self) -> TfidfVectorizer:
        return self.pipeline[0]

    @property
    def words(self) -> frozenset[str]:
        """The vocabulary without its pairs."""
        return frozenset(term for term in self.vectoriser.vocabulary_ if " " not in term)

    @property
    def width(self) -> int:
        """Classes, or dimensions."""
        return len(self.labels) or int(self.pipeline[-1].n_components)

    def answers(self, texts: Sequence[str]) -> tuple[Rows, Rows]:
        """Probabilities or features [n, width], and the share of each text's words that are known [n, 1]."""
        found = [find_words(text) for text in texts]
        vectors = self.vectoriser.transform(map(" ".join, found))
        known = self.words
        shares = np.array([[sum(word in known for word in words) / max(1, len(words))] for words in found])
        if self.task == "text_classify":
            return self.pipeline[-1].predict_proba(vectors), shares
        rows = self.pipeline[-1].transform(vectors)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        usable = lengths >= SHORTEST
        return np.where(usable, rows / np.maximum(lengths, SHORTEST), 0), np.where(usable, shares, 0)


def train(task: str, texts: TextSet, dim: int) -> Trained:
    """Learns from `texts`; `dim` is the width of features.

    A classifier learns from all that a text says, and from its first column alone: so a model of titles and articles
    understands bare titles, too. Raises `TextSetError` when there are too few texts or words.
    """
    documents = [" ".join(find_words(text.joined)) for text in texts.texts]
    terms = _terms(documents, task, dim)
    longest = max(term.count(" ") + 1 for term in terms)  # onnxruntime wants terms of each length
    vectoriser = TfidfVectorizer(vocabulary=terms, ngram_range=(1, longest), **_SPLIT)
    if task == "text_classify":
        labels = texts.labels
        classes = [labels.index(text.label) for text in texts.texts]
        if len(texts.columns) > 1:
            documents += [" ".join(find_words(text.columns[0])) for text in texts.texts]
            classes += classes
        pipeline = make_pipeline(vectoriser, LogisticRegression(C=REGULARISATION, max_iter=1000))
        pipeline.fit(documents, classes)
        return Trained(task, pipeline, labels)
    if dim >= min(len(texts), len(terms)):
        raise TextSetError(
            f"{len(texts)} texts with {len(terms)} different words are too few for {dim} dimensions: "
            f"give more, or at most {min(len(texts), len(terms)) - 1} with --dim."
        )
    pipeline = make_pipeline(vectoriser, TruncatedSVD(dim, random_state=0))
    pipeline.fit(documents)
    return Trained(task, pipeline, ())


def _terms(documents: Sequence[str], task: str, dim: int) -> list[str]:
    """The vocabulary: the words that stand in most documents, and pairs of them.

    For features those are left out that stand in too many, unless too few words for `dim` dimensions would be left.
    """
    terms, counts = _counted(documents, LONGEST[task])
    if task == "text_embed" and len(documents) >= ENOUGH:
        telling = counts <= int(TOO_COMMON * len(documents))
        if telling.sum() > dim:
            terms, counts = terms[telling], counts[telling]
    order = [str(terms[index]) for index in np.argsort(-counts, kind="stable")]
    words = [term for term in order if " " not in term][:MAX_WORDS]
    known = frozenset(words)
    pairs = [term for term in order if " " in term and known.issuperset(term.split(" "))]
    return sorted([*words, *pairs[: MAX_TERMS - len(words)]])


def _counted(documents: Sequence[str], longest: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Words, and pairs if `longest` is 2, in the alphabet's order, and in how many documents each stands."""
    fewest = 1 if len(documents) < MANY else 2
    counter = CountVectorizer(ngram_range=(1, longest), min_df=fewest, binary=True, **_SPLIT)
    try:
        counts = np.asarray(counter.fit_transform(documents).sum(axis=0)).ravel()
    except ValueError as error:  # scikit-learn's word for an empty vocabulary
        rare = " that stand in two of them or more" if fewest > 1 else ""
        raise TextSetError(f"The texts have no words to learn from{rare}.") from error
    return counter.get_feature_names_out(), counts
