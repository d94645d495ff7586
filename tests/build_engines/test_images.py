from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.errors import ImageSetError
from build_engines.images import ImageSet, Picture, built_in, read_images

LABELS = ("tench", "crane", "great white shark, white shark", "crane")


def make(folder: Path, *names: str) -> Path:
    """Empty files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    """Pictures come in the order of their names, other files are left out."""
    pictures = read_images(make(tmp_path, "b.JPG", "a.png", "notes.txt"))
    assert [picture.path.name for picture in pictures.pictures] == ["a.png", "b.JPG"]
    assert pictures.truth(LABELS).tolist() == [-1, -1]


def test_folders_name_classes(tmp_path: Path) -> None:
    """A folder a class: its name is matched with the labels and their synonyms, whatever the case."""
    pictures = read_images(make(tmp_path, "Tench/1.jpg", "white_shark/2.jpg", "white_shark/3.jpg"))
    assert pictures.truth(LABELS).tolist() == [0, 2, 2]


def test_a_table_names_classes(tmp_path: Path) -> None:
    """labels.csv may give names, numbers or both; a number decides between classes of one name."""
    make(tmp_path, "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    (tmp_path / "labels.csv").write_text("file,class_id,name\n1.jpg,3,crane\n2.jpg,1,\n3.jpg,9,tench\n4.jpg,,crane\n")
    assert read_images(tmp_path).truth(LABELS).tolist() == [3, 1, 0, -1]


def test_names_that_no_label_has_are_refused(tmp_path: Path) -> None:
    """When most names are unknown, judging would say nothing; one of them is shown."""
    pictures = read_images(make(tmp_path, "n01440764/1.jpg", "n01440764/2.jpg", "tench/3.jpg"))
    with pytest.raises(ImageSetError, match=r"2 of 3 pictures have names .* 'n01440764'"):
        pictures.truth(LABELS)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("name\ntench\n", "KeyError: 'file'"),
        ("file,class_id\n1.jpg,first\n", "invalid literal"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, table: str, words: str) -> None:
    """A missing column or a word for a number: the error shows which columns it takes."""
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(ImageSetError, match=words):
        read_images(tmp_path)


def test_no_pictures_are_refused(tmp_path: Path) -> None:
    """An empty folder and one that is not there are named."""
    with pytest.raises(ImageSetError, match="no pictures in"):
        read_images(tmp_path)
    with pytest.raises(ImageSetError, match="no folder of pictures at"):
        read_images(tmp_path / "nowhere")


def test_parts_are_disjoint() -> None:
    """1/2 and 2/2 share nothing and are everything, so one half can calibrate and the other judge."""
    pictures = ImageSet("given", [Picture(Path(str(index))) for index in range(5)])
    first, second = pictures.part("1/2"), pictures.part("2/2")
    assert [picture.path.name for picture in first.pictures] == ["0", "2", "4"]
    assert [picture.path.name for picture in second.pictures] == ["1", "3"]
    assert pictures.part(None) is pictures


@pytest.mark.parametrize("text", ["0/2", "3/2", "half", "1", "1/0", "9/9"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    """Anything but K/N, or a part without a picture."""
    with pytest.raises(ImageSetError, match="part"):
        ImageSet("given", [Picture(Path("only"))]).part(text)


def test_the_built_in_pictures_are_always_the_same() -> None:
    """Sample photos and cuttings of them; labels that are not a model's own are no error."""
    pictures = built_in()
    assert len(pictures) == 33
    assert [picture.read() for picture in pictures.pictures] == [picture.read() for picture in built_in().pictures]
    assert set(pictures.truth(["rose", "tulip"]).tolist()) == {-1}
