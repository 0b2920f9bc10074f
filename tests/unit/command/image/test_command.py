"""The whole command, with a docker command and an engine that are not real: what they are given, what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.image import build, table
from tfdist.command.image.combination import choose
from tfdist.command.main import main

NAME = "example/tfdist:cpu"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(source: Path, docker: Any, engine: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    """Status, standard output and standard error of `tfdist image build WORDS`."""
    engine.images |= {NAME, "a:b"}

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["image", "build", "--source", str(source), *words])
        return status, *capfd.readouterr()

    return call


def given(docker: Any) -> dict[str, str]:
    """The variables of the definition that are not empty."""
    variables = docker.calls[0]["variables"]
    names = (*choose("cpu").arguments(), "EXTRA_PACKAGES", "REVISION")
    return {name: variables[name] for name in names if variables[name]}


def test_the_default_is_a_plain_build_with_a_label(run: Run, docker: Any, source: Path, commit: Any) -> None:
    status, out, err = run()
    assert status == 0
    (call,) = docker.calls
    names = ("tfdist:0.2.0-cpu", "tfdist:cpu")
    assert call["words"] == [
        *("buildx", "bake", "--file", "docker/docker-bake.hcl", "--load"),
        *(word for name in names for word in ("--set", f"cpu.tags={name}")),
        "cpu",
    ]
    assert call["folder"] == str(source)
    assert given(docker) == {"REVISION": commit()}
    assert out == (
        "tfdist:0.2.0-cpu, tfdist:cpu: 1,777 MiB, TensorFlow 2.21.0, Keras 3.15.1, NumPy 2.4.6, "
        "Python 3.11 of debian:bookworm-slim\n"
    )
    assert "on standard output" in err


def test_what_differs_is_a_variable_and_a_part_of_the_name(run: Run, docker: Any, engine: Any) -> None:
    engine.images.add("tfdist:0.2.0-cuda-tf2.20-py3.12-cuda12.8-keras3.14")
    releases = ("--tensorflow", "2.20", "--python", "3.12", "--cuda", "12.8", "--keras", "3.14")
    assert run("--target", "cuda", *releases, "--extra-packages", " pandas>=2\n x ")[0] == 0
    assert docker.settings[0] == "cuda.tags=tfdist:0.2.0-cuda-tf2.20-py3.12-cuda12.8-keras3.14"
    assert given(docker) | {"REVISION": ""} == {
        "BASE_IMAGE": "python:3.12-slim-bookworm",
        "TENSORFLOW_VERSION": "2.20.0",
        "KERAS_VERSION": "3.14.1",
        "CUDA_TOOLKIT_VERSION": "12.8.1",
        "EXTRA_PACKAGES": "pandas>=2 x",
        "REVISION": "",
    }


def test_a_base_of_the_users_own_is_asked_for_its_python(run: Run, docker: Any) -> None:
    assert run("--tag", "a:b", "--base-image", "mine:2", "--python", "3.12")[0] == 0
    assert given(docker).items() >= {"BASE_IMAGE": "mine:2", "EXPECTED_PYTHON": "3.12"}.items()


def test_the_table_wins_over_the_checkout_and_the_shell(
    run: Run, docker: Any, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = source / "docker" / "versions.env"
    pinned.write_text(pinned.read_text().replace("KERAS_VERSION=3.15.1", "KERAS_VERSION=3.15.0"))
    for name in ("TENSORFLOW_VERSION", "CUDA_TOOLKIT_VERSION", "EXTRA_PACKAGES"):
        monkeypatch.setenv(name, "of the shell")
    assert run()[0] == 0
    assert given(docker) | {"REVISION": ""} == {"KERAS_VERSION": "3.15.1", "REVISION": ""}


def test_what_is_secret_goes_as_a_secret(run: Run, docker: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a, b"
    folder.mkdir()
    for name in ("ca.pem", "pip.conf"):
        (folder / name).write_text("cert = /run/secrets/ca.pem")
    assert run("--tag", "a:b", "--pip-config", str(folder / "pip.conf"), "--ca", str(folder / "ca.pem"))[0] == 0
    assert docker.settings[1:] == [
        f'cpu.secrets=id=pip.conf,"src={folder}/pip.conf"',
        f'cpu.secrets=id=ca.pem,"src={folder}/ca.pem"',
    ]
    # Else a newer buildx asks.
    assert docker.calls[0]["variables"]["BUILDX_BAKE_ENTITLEMENTS_FS"] == "0"


def test_an_authority_alone_gets_a_configuration_that_names_it(run: Run, docker: Any, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert run("--tag", "a:b", "--ca", str(tmp_path / "ca.pem"))[0] == 0
    assert docker.settings[1] == "cpu.secrets=id=pip.conf,env=PIP_CONFIG"
    assert docker.calls[0]["variables"]["PIP_CONFIG"] == "[global]\ncert = /run/secrets/ca.pem\n"


def test_saved_and_pushed_under_each_name(run: Run, docker: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "a.tar")
    assert run("--tag", NAME, "--tag", "example/other", "--tag", NAME, "--save", file, "--push")[0] == 0
    assert docker.settings == [f"cpu.tags={NAME}", "cpu.tags=example/other"]
    assert [call["words"] for call in docker.calls[1:]] == [
        ["save", "--output", file, NAME, "example/other"],
        ["push", NAME],
        ["push", "example/other"],
    ]


def test_several_targets_are_saved_in_one_file(run: Run, docker: Any, engine: Any, tmp_path: Path) -> None:
    engine.images |= {"a/b:1-cpu", "a/b:1-cuda"}
    file = str(tmp_path / "all.tar")
    targets = ("--target", "cpu", "--target", "cuda", "--target", "cpu", "--cuda", "12.6")
    status, out, _ = run(*targets, "--tag", "a/b:1-{target}", "--save", file)
    assert status == 0
    assert [call["words"][-1] for call in docker.calls[:2]] == ["cpu", "cuda"]
    assert [call["variables"]["CUDA_TOOLKIT_VERSION"] for call in docker.calls[:2]] == ["", "12.6.3"]
    assert [call["words"] for call in docker.calls[2:]] == [["save", "--output", file, "a/b:1-cpu", "a/b:1-cuda"]]
    assert [line.partition(": ")[0] for line in out.splitlines()] == ["a/b:1-cpu", "a/b:1-cuda"]


@pytest.mark.parametrize(
    ("fails", "advice"),
    [
        ("buildx", "docs/containers.md explains how to fix most failures."),
        ("save", f"What was built is still in the Docker engine: {NAME} example/other"),
        (NAME, f"Check that you have run docker login, then retry: docker push {NAME}"),
    ],
)
def test_what_fails_is_the_end(run: Run, docker: Any, tmp_path: Path, fails: str, advice: str) -> None:
    docker.will_fail(fails)
    words = ("--save", str(tmp_path / "a.tar")) if fails == "save" else ()
    status, out, err = run("--tag", NAME, "--tag", "example/other", "--push", *words)
    assert (status, out) == (1, "")
    last = docker.calls[-1]["words"]
    assert fails in last
    assert err.endswith(f"tfdist image: docker {last[0]} failed with exit status 9; see its output above. {advice}\n")


def test_the_table_of_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["image", "versions"]) == 0
    assert capsys.readouterr().out == f"{table.text()}\n"
    assert main(["image", "versions", "--markdown", str(tmp_path / "none.md")]) == 2
    assert "none.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--tensorflow", "2.19", "--python", "3.13"], "has no build of TensorFlow 2.19"),
        (["--source", "/"], "--source is '/', which is not a checkout of tfdist"),
        (["--push"], "--push needs a --tag"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    run: Run, docker: Any, engine: Any, words: list[str], reason: str
) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("tfdist image: ") and reason in err
    assert docker.calls == engine.asked == []


def test_no_docker_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, _, err = run()
    assert status == 1
    assert err.startswith("tfdist image: no docker command on PATH")
    assert "apt-get install docker.io docker-cli docker-buildx" in err


def test_no_buildx(run: Run, docker: Any, engine: Any) -> None:
    docker.lacks_buildx()
    status, _, err = run()
    assert status == 1
    assert "has no buildx" in err and "docker-buildx-plugin" in err and "Debian 12 has none" in err
    assert docker.calls == engine.asked == []


def gone(pids: list[int]) -> bool:
    """Whether none of them runs; a zombie does not."""
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return all(not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z" for path in states)


def test_a_build_that_does_not_end_is_ended(
    run: Run, docker: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    docker.will_wait()
    monkeypatch.setattr(build, "_LIMIT_S", 2.0)
    status, _, err = run()
    assert (status, "docker buildx was terminated: it took longer than 2 s" in err) == (1, True)
    wait_until(lambda: gone(docker.calls[0]["pids"]), what="the end of what was killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_docker_and_what_it_has_started(
    source: Path, docker: Any, engine: Any, wait_until: Any, number: int
) -> None:
    docker.will_wait()
    command = [sys.executable, "-m", "tfdist.command", "image", "build", "--source", str(source)]
    with subprocess.Popen(
        command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: docker.calls, what="docker buildx bake")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err
    wait_until(lambda: gone(docker.calls[0]["pids"]), what="the end of what was killed")
