"""The whole command, with a docker command and an engine that are not real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.command.image import table
from tfdist.command.main import main

NAME = "example/tfdist:cpu"


@pytest.fixture
def run(
    source: Path, docker: Any, engine: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Status, standard output and standard error of `tfdist image build WORDS`."""
    docker.will()
    engine.images += ["tfdist:0.1.0-cpu", NAME]

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["image", "build", "--source", str(source), *words])
        return status, *capsys.readouterr()

    return call


def test_a_build_from_its_words_to_the_table(run: Any, docker: Any, engine: Any, commit: Any) -> None:
    status, out, err = run()
    assert status == 0
    assert out.splitlines()[0].split() == ["tag", "size", "made", "of"]
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["tfdist:0.1.0-cpu", "tfdist:cpu"]
    assert "try it: docker run --rm tfdist:0.1.0-cpu\n" in out
    assert "#1 [system 1/3] RUN apt-get\n" in err
    assert docker.seen["buildkit"] == "1"
    assert docker.given("--tag") == ["tfdist:0.1.0-cpu", "tfdist:cpu"]
    assert f"REVISION={commit()}" in docker.given("--build-arg")
    assert ("GET", f"/images/{engine.identity}/json") in engine.asked


def test_the_table_of_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["image", "versions"]) == 0
    assert capsys.readouterr().out == f"{table.text()}\n"
    assert main(["image", "versions", "--markdown", str(tmp_path / "none.md")]) == 2
    assert "none.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--tensorflow", "2.19", "--python", "3.13"], "TensorFlow 2.19 has no build for Python 3.13"),
        (["--cuda", "12.9"], "--cuda is '12.9', but --target is 'cpu'"),
        (["--source", "/"], "--source is '/', which is no checkout of tfdist"),
        (["--push"], "--push needs a --tag"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(
    run: Any, docker: Any, engine: Any, words: list[str], reason: str
) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("tfdist image: ") and reason in err
    assert not docker.called
    assert engine.asked == []


def test_a_build_that_fails_ends_with_its_step(run: Any, docker: Any, engine: Any) -> None:
    docker.will("#4 [wheel 3/4] RUN make\n#4 ERROR: exit code: 2\n", status=1)
    status, out, err = run()
    assert (status, out) == (1, "")
    assert err.splitlines()[-3:-1] == [
        "tfdist image: the build failed with exit status 1 in the step [wheel 3/4] RUN make",
        "exit code: 2",
    ]
    assert err.splitlines()[-1].startswith("What to do: tfdist did not compile")
    assert [path for _, path in engine.asked] == ["/version", "/version"]


def test_saved_and_pushed(run: Any, docker: Any, engine: Any, tmp_path: Path) -> None:
    status, out, _ = run("--tag", NAME, "--save", str(tmp_path / "a.tar"), "--push")
    assert status == 0
    assert docker.given("--tag") == [NAME]
    assert (tmp_path / "a.tar").read_bytes() == engine.archive
    assert f"pushed {NAME} as {engine.digest}\n" in out and f"saved {NAME} as {tmp_path / 'a.tar'};" in out


def test_every_tag_is_pushed_and_the_first_error_fails_the_command(run: Any, engine: Any) -> None:
    engine.pushed = [{"error": "denied"}]
    status, out, err = run("--tag", NAME, "--tag", "example/other", "--push")
    assert (status, out) == (1, "")
    assert f"{NAME} was built, but not pushed: denied" in err
    engine.pushed = [{"aux": {"Digest": engine.digest}}]
    status, _, err = run("--tag", NAME, "--tag", "example/other", "--push")
    assert status == 0, err
    asked = [path for kind, path in engine.asked if kind == "POST"]
    assert asked == ["/images/example/tfdist/push?tag=cpu"] * 2 + ["/images/example/other/push?tag=latest"]


def test_what_is_secret_goes_as_a_secret(run: Any, docker: Any, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    assert run("--ca", str(tmp_path / "ca.pem"))[0] == 0
    assert docker.seen["secrets"] == {"ca.pem": "authority", "pip.conf": "[global]\ncert = /run/secrets/ca.pem\n"}
    (tmp_path / "pip.conf").write_text("[global]\ntimeout = 9\n")
    assert run("--pip-config", str(tmp_path / "pip.conf"))[0] == 0
    assert docker.seen["secrets"] == {"pip.conf": "[global]\ntimeout = 9\n"}
    assert run()[0] == 0
    assert docker.seen["secrets"] == {}


def test_packages_for_scripts(run: Any, docker: Any) -> None:
    assert run("--extra-packages", "pandas scikit-learn")[0] == 0
    assert "EXTRA_PACKAGES=pandas scikit-learn" in docker.given("--build-arg")


def test_no_docker_command(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, out, err = run()
    assert (status, out) == (1, "")
    assert err.startswith("tfdist image: there is no docker command on PATH")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_docker_too(source: Path, docker: Any, engine: Any, wait_until: Any, number: int) -> None:
    docker.will_wait()
    command = [sys.executable, "-m", "tfdist.command", "image", "build", "--source", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: docker.called, what="docker build")
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(docker.seen["pid"], 0)
