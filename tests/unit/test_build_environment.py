"""Which TensorFlow a build is for: of folders in order, and of several distributions in one."""

from __future__ import annotations

from pathlib import Path

import pytest

import build_environment
from build_environment import BuildEnvironmentError


def install(folder: Path, name: str, version: str) -> str:
    record = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "TensorFlow_CPU"])
def test_either_distribution_is_found(tmp_path: Path, name: str) -> None:
    paths = [str(tmp_path / "empty"), install(tmp_path / "site", name, "2.20.0")]
    install(tmp_path / "site", "tensorflow-datasets", "4.9")
    found = build_environment.find_tensorflow(paths)
    assert found.version == "2.20.0"
    assert Path(str(found.locate_file("tensorflow"))) == tmp_path / "site" / "tensorflow"


def test_the_environment_it_goes_into_comes_first(tmp_path: Path) -> None:
    paths = [
        install(tmp_path / "target", "tensorflow", "2.19.1"),
        install(tmp_path / "own", "tensorflow-cpu", "2.21.0"),
    ]
    assert build_environment.find_tensorflow(paths).version == "2.19.1"


def test_both_of_one_version_have_the_same_interface(tmp_path: Path) -> None:
    for name in ("tensorflow", "tensorflow-cpu"):
        install(tmp_path, name, "2.21.0")
    assert build_environment.find_tensorflow([str(tmp_path)]).version == "2.21.0"


def test_both_of_different_versions_are_refused(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", "2.21.0")
    install(tmp_path, "tensorflow-cpu", "2.20.0")
    with pytest.raises(BuildEnvironmentError, match=r"tensorflow 2\.21\.0, tensorflow-cpu 2\.20\.0. Uninstall all"):
        build_environment.find_tensorflow([str(tmp_path)])


def test_none_names_both_commands(tmp_path: Path) -> None:
    with pytest.raises(BuildEnvironmentError, match=r"tensorflow-cpu>=2\.16\.1.*tensorflow\[and-cuda\]>=2\.16\.1"):
        build_environment.find_tensorflow([str(tmp_path)])


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_an_isolated_build_brings_none_where_one_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(build_environment, "target_paths", lambda: [str(tmp_path)])
    assert build_environment.DEFAULT_TENSORFLOW in build_environment.missing_requirements()
    install(tmp_path, name, "2.20.0")
    assert build_environment.DEFAULT_TENSORFLOW not in build_environment.missing_requirements()


@pytest.mark.parametrize("name", ["darwin", "win32", "cygwin"])
def test_other_systems_get_one_plain_sentence(name: str) -> None:
    with pytest.raises(
        BuildEnvironmentError, match=f"tfdist runs on Linux only, and this is {name}; use its container"
    ):
        build_environment.check_platform(name)
    build_environment.check_platform("linux")


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ((), "a C++ compiler (g++) and make"),
        (("make",), "a C++ compiler (g++)"),
        (("c++",), "make"),
        (("g++",), "make"),
    ],
)
def test_what_is_missing_to_compile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], missing: str
) -> None:
    for name in there:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CMAKE_GENERATOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BuildEnvironmentError) as caught:
        build_environment.cmake_command()
    assert str(caught.value).startswith(f"{missing} was not found")


def test_what_is_here_is_found() -> None:
    import tensorflow as tf

    assert build_environment.find().tensorflow_version == tf.__version__
