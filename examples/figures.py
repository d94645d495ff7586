"""The figures of `extractor.ipynb`. Each is shown at once; colours and shapes hold for colour-blind eyes, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from numpy.typing import NDArray
from PIL import Image, ImageOps

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#8C8C8C")
"""Of Okabe and Ito (2008), without the yellow, which is hard to see on white."""
SHAPES = "osD^vPX"
SAME, OTHER = COLOURS[0], COLOURS[3]
MOST_CLASSES, MOST_CONFUSED = 8, 15


def thumbnail(path: str | Path, side: int = 96) -> NDArray[np.uint8]:
    """The middle of a picture, UINT8 [side, side, 3]."""
    with Image.open(path) as picture:
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    return np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC))


def _grid(rows: int, columns: int, side: float = 0.85, gap: float = 0.06) -> NDArray[np.object_]:
    figure, axes = plt.subplots(rows, columns, figsize=(side * columns, side * rows), squeeze=False)
    figure.subplots_adjust(wspace=gap, hspace=gap)
    for each in axes.flat:
        each.set(xticks=[], yticks=[])
        each.spines[:].set_visible(False)
    return np.asarray(axes)


def _name(axes: Axes, text: str) -> None:
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=10)


def sheet(paths: Sequence[str], labels: NDArray[np.str_], columns: int = 9) -> None:
    """A row of pictures for each class."""
    classes = np.unique(labels)[:MOST_CLASSES]
    grid = _grid(len(classes), columns)
    for row, label in zip(grid, classes, strict=True):
        _name(row[0], label)
        for axes, index in zip(row, np.flatnonzero(labels == label), strict=False):
            axes.imshow(thumbnail(paths[index]))
    plt.show()


def neighbours(
    paths: Sequence[str],
    labels: NDArray[np.str_],
    queries: Sequence[int],
    nearest: NDArray[np.int64],
    similarity: NDArray[np.float32],
) -> None:
    """A row for each query: it, and what lies nearest, with the cosines [n, n] of `similarity`.

    A blue frame is of the query's own class; an orange one is not, and names its class.
    """
    queries = list(queries)[:MOST_CLASSES]
    columns = nearest.shape[1]
    grid = _grid(len(queries), columns + 1, 1.0, 0.12)
    for row, query in zip(grid, queries, strict=True):
        _name(row[0], labels[query])
        row[0].imshow(thumbnail(paths[query]))
        for axes, index in zip(row[1:], nearest[query], strict=True):
            axes.imshow(thumbnail(paths[index]))
            same = labels[index] == labels[query]
            axes.spines[:].set(visible=True, color=SAME if same else OTHER, linewidth=3)
            text = f"{similarity[query, index]:.2f}"
            axes.text(
                0.96,
                0.05,
                text if same else f"{labels[index]} {text}",
                transform=axes.transAxes,
                ha="right",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
            )
    grid[0][0].set_title("asked for", fontsize=10)
    grid[0][1].set_title("nearest", fontsize=10)
    plt.show()


def picture_map(
    places: NDArray[np.float32], paths: Sequence[str], labels: NDArray[np.str_], pictures: int = 16
) -> None:
    """A point for each picture at `places` [n, 2], coloured by class; some pictures stand beside their points."""
    _, axes = plt.subplots(figsize=(9, 6.5))
    low, high = places.min(0), places.max(0)
    places = (places - low) / (high - low)
    classes = list(np.unique(labels))
    handles = []
    for number, label in enumerate(classes):
        style: dict[str, Any] = {"marker": SHAPES[number % len(SHAPES)], "color": COLOURS[number % len(COLOURS)]}
        x, y = places[labels == label].T
        axes.plot(x, y, linestyle="none", markersize=8, markeredgecolor="white", **style)
        handles.append(Line2D([], [], linestyle="none", label=label, markersize=8, **style))
    for index, corner in _beside(places, labels, pictures):
        box = AnnotationBbox(
            OffsetImage(thumbnail(paths[index], 40)),
            tuple(places[index]),
            xybox=tuple(corner),
            pad=0.1,
            arrowprops={"arrowstyle": "-", "color": "#8C8C8C", "linewidth": 0.8},
            bboxprops={"edgecolor": COLOURS[classes.index(labels[index]) % len(COLOURS)], "linewidth": 2},
        )
        axes.add_artist(box)
    axes.set(xticks=[], yticks=[], xlim=(-0.06, 1.06), ylim=(-0.08, 1.08))
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=10,
        ncols=1 + len(classes) // 20,
    )
    plt.show()


def _beside(places: NDArray[np.float32], labels: NDArray[np.str_], most: int) -> list[tuple[int, NDArray[np.float64]]]:
    """Some pictures of each class in turn, and free places near their points, where nothing is covered."""
    room, margin = np.array([0.1, 0.14]), np.array([0.06, 0.08])  # of pictures and of points, as shares of the figure
    turns = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    around = np.concatenate([far * np.stack([np.cos(turns), np.sin(turns)], 1) for far in (0.1, 0.14, 0.18)])
    taken = np.empty((0, 2))
    found: list[tuple[int, NDArray[np.float64]]] = []
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for index in [int(each[k]) for k in range(5) for each in members if k < len(each)]:
        candidates = places[index] + around
        candidates = candidates[((candidates >= 0) & (candidates <= 1)).all(1)]
        for what, space in ((places, margin), (taken, room)):
            away = np.abs(candidates[:, None] - what[None]) > space
            candidates = candidates[away.any(2).all(1)]
        if len(candidates):
            found.append((index, candidates[0]))
            taken = np.vstack([taken, candidates[0]])
        if len(found) == most:
            break
    return found


def confusion(truth: NDArray[np.str_], given: NDArray[np.str_]) -> None:
    """How often which class, in rows, was given which label, in columns; of many classes those with most mistakes."""
    from sklearn.metrics import ConfusionMatrixDisplay

    shown, counts = np.unique(
        np.concatenate([truth[truth != given], given[truth != given], np.unique(truth)]), return_counts=True
    )
    shown = np.sort(shown[np.argsort(-counts, kind="stable")[:MOST_CONFUSED]])
    side = 1.6 + 0.45 * len(shown)
    _, axes = plt.subplots(figsize=(side, side))
    ConfusionMatrixDisplay.from_predictions(
        truth, given, labels=shown, ax=axes, cmap="Blues", colorbar=False, xticks_rotation=45, text_kw={"fontsize": 9}
    )
    axes.set(xlabel="label given", ylabel="class")
    plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
    plt.show()
