"""What a text model is worth with other choices than the builder's: the tables of docs/adr/0014-texts.md.

    python -m benchmarks.text_choices [--train FILE.csv]

Five-fold cross-validation on labelled texts with a title and a text: learnt from four fifths, asked about the fifth,
once with bare titles and once with all. For features the figure is how often the nearest text has the same label.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import ComplementNB
from sklearn.preprocessing import normalize

from build_engines.text.serving.words import find_words
from build_engines.text.texts import Material

NEWS = Path(__file__).parents[2] / "shared" / "data" / "news" / "train.csv"
FOLDS = 5


class Texts:
    """Titles and whole texts as words joined by spaces, their labels, and the fold of each."""

    def __init__(self, path: Path) -> None:
        texts = Material.of(str(path)).texts(("title", "text"), None, needs_labels=True).texts
        self.titles = [" ".join(find_words(text.columns[0])) for text in texts]
        self.whole = [" ".join(find_words(text.joined)) for text in texts]
        self.labels = np.array([text.label for text in texts])
        self.fold = np.arange(len(texts)) % FOLDS


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, default=NEWS)
    texts = Texts(parser.parse_args().train)
    print("| classifier | titles | title and text |\n| --- | --- | --- |")
    classifiers: dict[str, dict[str, Any]] = {
        "as built: words and pairs, C = 3, learnt from titles and whole texts": {},
        "C = 1": {"c": 1.0},
        "C = 10": {"c": 10.0},
        "words alone": {"longest": 1},
        "1 + log of the counts (`sublinear_tf`)": {"sublinear_tf": True},
        "whether a word is there, not how often (`binary`)": {"binary": True},
        "learnt from whole texts only": {"forms": ("whole",)},
        "learnt from titles only": {"forms": ("titles",)},
        "English stop words left out": {"stop_words": "english"},
        "naive Bayes (`ComplementNB`)": {"bayes": True},
    }
    for name, changes in classifiers.items():
        print(f"| {name} | {_cells(_classifier(texts, **changes))} |", flush=True)
    print("\n| features, 128 dimensions | titles | title and text |\n| --- | --- | --- |")
    features: dict[str, dict[str, Any]] = {
        "as built: words in at most 5 % of the texts, learnt from whole texts": {},
        "words however common": {"most": 1.0},
        "words in at most 2 %": {"most": 0.02},
        "words and pairs": {"longest": 2},
        "64 dimensions": {"dim": 64},
        "256 dimensions": {"dim": 256},
    }
    for name, changes in features.items():
        print(f"| {name} | {_cells(_features(texts, **changes))} |", flush=True)


def _cells(accuracies: Sequence[float]) -> str:
    return " | ".join(f"{accuracy:.1%}" for accuracy in accuracies)


def _classifier(
    texts: Texts,
    *,
    c: float = 3.0,
    longest: int = 2,
    forms: tuple[str, ...] = ("whole", "titles"),
    bayes: bool = False,
    **more: Any,
) -> list[float]:
    right: dict[str, list[bool]] = {"titles": [], "whole": []}
    for k in range(FOLDS):
        learnt, asked = np.flatnonzero(texts.fold != k), np.flatnonzero(texts.fold == k)
        vectoriser = _vectoriser(longest, **more)
        vectoriser.fit(_pick(texts.whole, learnt))
        vectoriser = _vectoriser(longest, vocabulary=vectoriser.get_feature_names_out(), **more)
        documents = [document for form in forms for document in _pick(getattr(texts, form), learnt)]
        model = ComplementNB() if bayes else LogisticRegression(C=c, max_iter=1000)
        model.fit(vectoriser.fit_transform(documents), np.tile(texts.labels[learnt], len(forms)))
        for form, results in right.items():
            found = model.predict(vectoriser.transform(_pick(getattr(texts, form), asked)))
            results += list(found == texts.labels[asked])
    return [float(np.mean(results)) for results in right.values()]


def _features(texts: Texts, *, dim: int = 128, longest: int = 1, most: float = 0.05) -> list[float]:
    right: dict[str, list[bool]] = {"titles": [], "whole": []}
    for k in range(FOLDS):
        learnt, asked = np.flatnonzero(texts.fold != k), np.flatnonzero(texts.fold == k)
        vectoriser = _vectoriser(longest, max_df=most)
        projection = TruncatedSVD(dim, random_state=0)
        known = normalize(projection.fit_transform(vectoriser.fit_transform(_pick(texts.whole, learnt))))
        for form, results in right.items():
            vectors = vectoriser.transform(_pick(getattr(texts, form), asked))
            nearest = (normalize(projection.transform(vectors)) @ known.T).argmax(axis=1)
            results += list(texts.labels[learnt][nearest] == texts.labels[asked])
    return [float(np.mean(results)) for results in right.values()]


def _vectoriser(longest: int, **more: Any) -> Any:
    least = {} if "vocabulary" in more else {"min_df": 2}
    return TfidfVectorizer(lowercase=False, token_pattern="[^ ]+", ngram_range=(1, longest), **least, **more)  # noqa: S106


def _pick(documents: Sequence[str], indices: Any) -> list[str]:
    return [documents[index] for index in indices]


if __name__ == "__main__":
    main()
