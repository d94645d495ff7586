"""Texts with labels, out of a table (CSV, TSV) or a feed."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TextIO

from build_engines.errors import TextSetError
from build_engines.given import read_file
from build_engines.text.feeds import MAX_BYTES as MAX_FEED_BYTES
from build_engines.text.feeds import fetch, is_address, public_address, read_feed

MAX_BYTES = 1 << 30
"""Of a table."""
MAX_COLUMN_CHARS = 200
"""Of a column's name."""
MAX_LABELS = 1000
MAX_LABEL_CHARS = 200
FEWEST = 5
"""Texts of each label."""

USUAL_COLUMNS = ("title", "text")
USUAL_LABEL = "label"
_LISTED = 20  # columns, in a message
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
    contradictions: int = 0
    """Rows that were left out because the same text has another label in a row before."""

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
        is_feed = is_feed or path.suffix.lower() in (".xml", ".rss", ".atom")
        return cls(path.name, read_file(path, TextSetError, MAX_FEED_BYTES if is_feed else MAX_BYTES), is_feed)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def texts(self, columns: Sequence[str], label: str | None, *, needs_labels: bool) -> TextSet:
        """Its texts: of these `columns` (none: the usual ones that there are) and this column of labels.

        Of a feed the columns are `title` and `text`, and the label is an entry's first category. Of texts that are
        the same the first counts, and it is counted how many say another label. Raises `TextSetError` that says what
        is missing; labels may be where none is needed.
        """
        found = self._feed(columns, needs_labels) if self.is_feed else self._table(columns, label, needs_labels)
        unique: dict[tuple[str, ...], Text] = {}
        contradictions = 0
        for text in found.texts:
            first = unique.setdefault(text.columns, text)
            contradictions += "" != first.label != text.label != ""
        return replace(found, texts=tuple(unique.values()), contradictions=contradictions)

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
        rows = _rows(table, "\t" if self.name.lower().endswith(".tsv") else ",", self.name)
        line, header = next(rows, (1, ()))
        self._check_header(header, line)
        return self._texts_of(header, rows, columns, label, needs_labels)

    def _check_header(self, header: Sequence[str], line: int) -> None:
        for column in header:
            if len(column) > MAX_COLUMN_CHARS:
                raise TextSetError(
                    f"The name of a column in line {line} of {self.name} begins with {column[:40]!r} and has more than "
                    f"{MAX_COLUMN_CHARS} characters: is there a quotation mark too many, or no line of names?"
                )
            if column and header.count(column) > 1:
                raise TextSetError(f"{self.name} has two columns {column!r} in line {line}: rename one.")

    def _texts_of(
        self,
        header: Sequence[str],
        rows: Iterator[tuple[int, Sequence[str]]],
        columns: Sequence[str],
        label: str | None,
        needs_labels: bool,
    ) -> TextSet:
        """The texts in the rows of a table."""
        wanted = tuple(columns) or tuple(column for column in USUAL_COLUMNS if column in header)
        has_label = _name(label) in header
        missing = [column for column in wanted if column not in header]
        if not wanted or missing or (not has_label and (needs_labels or label)):
            what = "no column for its texts" if not wanted else f"no {' and no '.join(missing or [_name(label)])}"
            listed = ", ".join(header[:_LISTED]) + (", …" if len(header) > _LISTED else "")
            raise TextSetError(
                f"The columns of {self.name} are {listed or 'none'}, with {what}: name them with --text and --label."
            )
        places = [header.index(column) for column in wanted]
        labels = header.index(_name(label)) if has_label else None
        texts = []
        for line, row in rows:
            if len(row) != len(header):
                raise TextSetError(
                    f"{self.name} has {len(header)} columns, and in line {line} a row of {len(row)}: put a text with "
                    "a separator or a quotation mark in it between quotation marks."
                )
            name = "" if labels is None else " ".join(row[labels].split())
            if needs_labels and not name:
                raise TextSetError(f"{self.name} has no label in line {line}: add it, or take it out.")
            _check_label(name, self.name)
            texts.append(Text(tuple(row[place] for place in places), name))
        return TextSet(wanted, tuple(texts))


def _rows(table: TextIO, delimiter: str, name: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Each row that is not empty, with the number of its first line, from 1."""
    reader = csv.reader(table, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TextSetError(
                f"{name} is no table, in the row that begins in line {line} ({error}): "
                "does a quotation mark open there and not close?"
            ) from error
        if row:
            yield line, row


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
