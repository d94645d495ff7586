from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.errors import TextSetError
from build_engines.text.texts import FEWEST, Material, Text, TextSet, check_labels
from tests.build_engines.text.conftest import SMALL

Table = Callable[..., str]


def read(source: str, *columns: str, label: str | None = None, needs_labels: bool = True) -> TextSet:
    """The texts of a file."""
    return Material.of(source).texts(columns, label, needs_labels=needs_labels)


def test_the_usual_columns_are_found(table: Table) -> None:
    """Without a word about columns: `title` and `text`, as far as they are there, and `label`."""
    texts = read(table("a,b,c,one", "d,e,f,two", header="text,other,title,label"))
    assert texts == TextSet(("title", "text"), (Text(("c", "a"), "one"), Text(("f", "d"), "two")))
    assert texts.texts[0].joined == "c\na"
    assert read(table(header="title,label")).columns == ("title",)


def test_other_columns_and_forms(table: Table) -> None:
    """Columns by name, tabs, quotes with line ends inside, a byte order mark, and spaces around a label."""
    path = Path(table(name="mail.TSV"))
    path.write_bytes('\ufeffsubject\tfolder\tbody\n"a\n""b"""\t in  box \tc\n'.encode())
    texts = read(str(path), "subject", "body", label="folder")
    assert texts.texts == (Text(('a\n"b"', "c"), "in box"),)


def test_a_text_counts_once(table: Table) -> None:
    """Of the same text twice the first stays, with its label: else it would be learnt and judged with at once."""
    texts = read(table("one,same", "two,other", "two,same", "two,other", "three,same"))
    assert [text.label for text in texts.texts] == ["one", "two"]
    assert texts.contradictions == 2
    assert texts.split()[0].contradictions == 2


@pytest.mark.parametrize(
    ("header", "row", "columns", "sentence"),
    [
        ("a,b", "1,2", (), "columns of table.csv are a, b, with no column for its texts"),
        ("label,title", "x,y", ("headline",), "with no headline: name them with --text"),
        ("kind,title", "x,y", (), "with no label: name them with --text and --label"),
        ("label,title", " ,y", (), "no label in line 2"),
        ("label,title", "x", (), "has 2 columns, and in line 2 a row of 1"),
        ("label,title", "x,y,z", (), "has 2 columns, and in line 2 a row of 3"),
        ("label,title", 'x,y\nx,"y\nz,u', (), r"row that begins in line 3 \(unexpected end.*quotation mark"),
        ("label,title", 'x,"y" z', (), r"no table, in the row that begins in line 2 \('.' expected after"),
        ("label,title", 'x,"y\nz"\n\nx,y,z', (), "in line 5 a row of 3"),
        ("label,title,label", "x,y,z", (), "two columns 'label' in line 1"),
        (f"label,title,{'x' * 201}", "x,y,z", (), "name of a column in line 1 .* more than 200 characters"),
        (",".join(map(str, range(99))), "x", (), r"are 0, 1, .*, 19, …, with no column"),
        ("label,title,,", "x,y,,", (), None),
        ("", "", (), "columns of table.csv are none"),
        ("label,title", f"{'x' * 201},y", (), "at most 200 characters"),
        ("label,title", '"x\x07",y', (), "all printable"),
        ("label,title", f"x,{'y' * 140_000}", (), r"in the row that begins in line 2 \(field larger"),
    ],
)
def test_a_table_that_does_not_do(
    table: Table, header: str, row: str, columns: tuple[str, ...], sentence: str | None
) -> None:
    """What is missing or wrong is said in a sentence, with its line; columns without names do no harm."""
    path = table(row, header=header)
    if sentence is None:
        assert read(path, *columns).texts == (Text(("y",), "x"),)
        return
    with pytest.raises(TextSetError, match=sentence):
        read(path, *columns)


def test_what_is_no_text_is_refused(table: Table, tmp_path: Path) -> None:
    """A file that is not there, and one in another encoding."""
    with pytest.raises(TextSetError, match=r"nothing\.csv cannot be read \(No such file"):
        Material.of(str(tmp_path / "nothing.csv"))
    path = Path(table())
    path.write_bytes(b"label,title\nx,caf\xe9\n")
    with pytest.raises(TextSetError, match="is not UTF-8"):
        read(str(path))


def test_what_has_no_end_is_not_read(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices, pipes and folders are refused unopened; of files no more is read than is taken."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        for is_feed in (False, True):
            with pytest.raises(TextSetError, match="no regular file"):
                Material.of(str(path), is_feed=is_feed)
    monkeypatch.setattr("build_engines.text.texts.MAX_BYTES", 1 << 20)
    monkeypatch.setattr("build_engines.text.texts.MAX_FEED_BYTES", 1 << 20)
    large = table("x" * (1 << 20))
    for is_feed in (False, True):
        with pytest.raises(TextSetError, match="larger than 1 MiB"):
            Material.of(large, is_feed=is_feed)


def test_labels_are_not_needed_for_features(table: Table) -> None:
    """A table without them will do, unless a column of them was named."""
    path = table("a", "b", header="title")
    assert not read(path, needs_labels=False).labelled
    with pytest.raises(TextSetError, match="with no kind"):
        read(path, label="kind", needs_labels=False)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (SMALL[:5], "has only the label 'fruit'"),
        ((), "has no label with 5 texts"),
        ((*SMALL, "rare,one text"), r"too few texts of 'rare' \(1\): 5 are the least"),
        (tuple(f"label {k},text {k}" for k in range(1001)), "1001 labels, more than 1000"),
    ],
)
def test_labels_that_cannot_be_learnt(rows: tuple[str, ...], sentence: str) -> None:
    """One label, none, too few texts of one, or as many as a column of other things has."""
    texts = TextSet(("title",), tuple(Text((text,), label) for label, text in (row.split(",") for row in rows)))
    with pytest.raises(TextSetError, match=sentence):
        check_labels(texts, "table.csv")
    if "rare" in sentence:
        check_labels(texts.without_rare_labels(), "table.csv")


def test_every_fifth_text_of_a_label_is_held_out() -> None:
    """Each label has its share in both parts, nothing is in both, and nothing is lost."""
    texts = TextSet(("title",), tuple(Text((f"{k}",), "ab"[k % 3 == 0]) for k in range(30)))
    learnt, held_out = texts.split()
    assert [text.label for text in held_out.texts].count("b") == 10 // FEWEST
    assert (len(learnt), len(held_out)) == (24, 6)
    assert {*learnt.texts, *held_out.texts} == set(texts.texts)
