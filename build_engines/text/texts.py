"""Texts with labels, out of a table (CSV, TSV) or a feed."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from build_engines.errors import TextSetError
from build_engines.text.feeds import fetch, is_address, public_address, read_feed

MAX_BYTES = 1 << 30
MAX_LABELS = 1000
MAX_LABEL_CHARS = 200
FEWEST = 5
"""Texts of each label."""

USUAL_COLUMNS = ("title", "text")
USUAL_LABEL = "label"
_HELD_OUT = 5  # every fifth text of a label


@dataclass(frozen=True)
class Text:
    """One row: what its columns say, and its label, "" where there is none."""

    columns: tuple[str, ...]
    label: str = ""

    @property
    def joined(self) -> str:
        """All that it says."""
        return "\n".join(self.columns)


@dataclass(frozen=True)
class TextSet:
    """Texts, in the order of their source."""

    columns: tuple[str, ...]
    """Names of what each text consists of."""
    texts: tuple[Text, ...]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labelled(self) -> bool:
        return any(text.label for text in self.texts)

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that occur, sorted."""
        return tuple(sorted({text.label for text in self.texts} - {""}))

    def split(self) -> tuple[TextSet, TextSet]:
        """What to learn from, and every fifth text of each label to judge with."""
        seen: Counter[str] = Counter()
        parts: tuple[list[Text], list[Text]] = ([], [])
        for text in self.texts:
            seen[text.label] += 1
            parts[seen[text.label] % _HELD_OUT == 0].append(text)
        return replace(self, texts=tuple(parts[0])), replace(self, texts=tuple(parts[1]))

    def without_rare_labels(self) -> TextSet:
        """Without the texts of labels that have fewer than `FEWEST`."""
        counts = Counter(text.label for text in self.texts)
        return replace(self, texts=tuple(text for text in self.texts if counts[text.label] >= FEWEST))


@dataclass(frozen=True)
class Material:
    """A file or feed as it is, not looked into yet."""

    name: str
    """The file's name, or the address without what may be secret in it."""
    content: bytes
    is_feed: bool

    @classmethod
    def of(cls, source: str, *, is_feed: bool = False) -> Material:
        """Reads a file, or fetches a feed at an http or https address; `TextSetError` when it cannot."""
        if is_address(source):
            return cls(public_address(source), fetch(source), is_feed=True)
        path = Path(source)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise TextSetError(f"{path} is larger than {MAX_BYTES >> 30} GiB: give a part of it.")
            return cls(path.name, path.read_bytes(), is_feed or path.suffix.lower() in (".xml", ".rss", ".atom"))
        except OSError as error:
            raise TextSetError(f"{path} cannot be read ({error.strerror}).") from error

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def texts(self, columns: Sequence[str], label: str | None, *, needs_labels: bool) -> TextSet:
        """Its texts: of these `columns` (none: the usual ones that there are) and this column of labels.

        Of a feed the columns are `title` and `text`, and the label is an entry's first category. Of texts that are
        the same the first counts. Raises `TextSetError` that says what is missing; labels may be where none is needed.
        """
        found = self._feed(columns, needs_labels) if self.is_feed else self._table(columns, label, needs_labels)
        unique: dict[tuple[str, ...], Text] = {}
        for text in found.texts:
            unique.setdefault(text.columns, text)
        return replace(found, texts=tuple(unique.values()))

    def _feed(self, columns: Sequence[str], needs_labels: bool) -> TextSet:
        wanted = tuple(columns) or USUAL_COLUMNS
        if not set(wanted) <= set(USUAL_COLUMNS):
            raise TextSetError(f"A feed has the columns {' and '.join(USUAL_COLUMNS)}, not {' '.join(wanted)}.")
        entries = read_feed(self.content, self.name)
        texts = [
            Text(tuple(getattr(entry, column) for column in wanted), entry.label)
            for entry in entries
            if entry.label or not needs_labels
        ]
        if not texts:
            raise TextSetError(f"None of the {len(entries)} entries of {self.name} has a category to learn from.")
        for text in texts:
            _check_label(text.label, self.name)
        return TextSet(wanted, tuple(texts))

    def _table(self, columns: Sequence[str], label: str | None, needs_labels: bool) -> TextSet:
        try:
            table = io.StringIO(self.content.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            raise TextSetError(f"{self.name} is not UTF-8 ({error}): save it as that.") from error
        reader = csv.DictReader(table, delimiter="\t" if self.name.lower().endswith(".tsv") else ",")
        try:
            header = tuple(reader.fieldnames or ())
            wanted = tuple(columns) or tuple(column for column in USUAL_COLUMNS if column in header)
            has_label = (label or USUAL_LABEL) in header
            missing = [column for column in wanted if column not in header]
            if not wanted or missing or (not has_label and (needs_labels or label)):
                what = "no column for its texts" if not wanted else f"no {' and no '.join(missing or [_name(label)])}"
                raise TextSetError(
                    f"The columns of {self.name} are {', '.join(header) or 'none'}, with {what}: "
                    "name them with --text and --label."
                )
            texts = []
            for row in reader:
                said = tuple(row[column] or "" for column in wanted)
                name = " ".join((row[_name(label)] or "").split()) if has_label else ""
                if needs_labels and not name:
                    raise TextSetError(f"{self.name} has no label in line {reader.line_num}: add it, or take it out.")
                _check_label(name, self.name)
                texts.append(Text(said, name))
        except csv.Error as error:
            raise TextSetError(f"{self.name} is no table, in line {reader.line_num} ({error}).") from error
        return TextSet(wanted, tuple(texts))


def check_labels(texts: TextSet, name: str) -> None:
    """`TextSetError` unless there are two labels or more, and enough texts of each to learn from and to judge with."""
    counts = Counter(text.label for text in texts.texts)
    if len(counts) < 2:
        only = f"has only the label {next(iter(counts))!r}" if counts else f"has no label with {FEWEST} texts"
        raise TextSetError(f"{name} {only}: a classifier needs two or more to choose from.")
    if len(counts) > MAX_LABELS:
        raise TextSetError(f"{name} has {len(counts)} labels, more than {MAX_LABELS}: is that column the right one?")
    rare = sorted(label for label, count in counts.items() if count < FEWEST)
    if rare:
        listed = ", ".join(f"{label!r} ({counts[label]})" for label in rare[:5]) + (", …" if len(rare) > 5 else "")
        raise TextSetError(
            f"{name} has too few texts of {listed}: {FEWEST} are the least, 50 a start. "
            "Add some, or leave these labels out with --drop-rare."
        )


def _name(label: str | None) -> str:
    return label or USUAL_LABEL


def _check_label(label: str, name: str) -> None:
    if len(label) > MAX_LABEL_CHARS or not label.isprintable():
        raise TextSetError(
            f"{name} has the label {label!r:.60}: one has at most {MAX_LABEL_CHARS} characters, all printable."
        )
