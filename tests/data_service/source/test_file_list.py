"""Which files are meant by a path, a pattern, a folder and a list; what is not there is named."""

import pytest

from tfdist.data_service.source import file_list
from tfdist.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt", "c.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d.txt").mkdir()
    (tmp_path / "e").mkdir()
    for number in range(1, 5):
        (tmp_path / "e" / f"{number}.bin").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ("c.bin", ["c.bin"]),
        (".", ["a.txt", "b.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        (["c.bin", "a.txt"], ["c.bin", "a.txt"]),
        (["c.bin", "*.txt"], ["c.bin", "a.txt", "b.txt"]),
    ],
)
def test_files_are_found(folder, files, names):
    assert file_list.find("source", files, ".txt") == [str(folder / name) for name in names]
    if isinstance(files, str):
        assert file_list.find("source", folder / files, ".txt") == [str(folder / name) for name in names]


def test_any_depth(folder):
    """As in a store, where the same pattern is one of fsspec."""
    (folder / "e" / "f" / "g").mkdir(parents=True)
    paths = [folder / "a.txt", folder / "b.txt", folder / "e" / "5.txt", folder / "e" / "f" / "g" / "6.txt"]
    for path in paths:
        path.touch()
    assert file_list.find("source", "**/*.txt", ".txt") == list(map(str, paths))


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ("e.txt", r"source: found no files for 'e\.txt': there is no such file or folder \(working directory: "),
        (["a.txt", "*.png"], r"no files for '\*\.png': nothing matches this pattern"),
        ("d.txt", r"no files for 'd\.txt': this folder is empty"),
        (
            "e",
            r"'e': this folder has no file that ends in \.txt, but 4 other names \(1\.bin, 2\.bin, 3\.bin, \.\.\.\)",
        ),
        ([], "each given once"),
        (["a.txt", "*.txt"], r"given twice: \['.*a\.txt'\]"),
        ("s3://bucket/a.txt", "s3:// is neither"),
    ],
)
def test_what_is_not_there_is_named(folder, files, text):
    with pytest.raises(ConfigError, match=text):
        file_list.find("source", files, ".txt")
