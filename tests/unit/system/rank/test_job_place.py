"""Tests of tfdist.system.rank.job_place."""

from __future__ import annotations

import pytest

from tfdist.system.rank import job_place

OWN = dict(zip(job_place.OWN, ("5", "8", "1", "4"), strict=True)) | {"TFDIST_MEMBER_PIPE": "3:4:5:6"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}


@pytest.mark.parametrize("variable", ["TFDIST_LAUNCHED", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"])
def test_launchers_of_mpi_are_recognised(variable: str) -> None:
    assert job_place.transport({variable: "1"}) == job_place.MPI
    assert job_place.is_rank({variable: "1"})


def test_without_a_launcher() -> None:
    assert job_place.transport({}) == ""
    assert not job_place.is_rank({"TFDIST_LAUNCHED": "0"})


def test_job_without_mpi_may_run_within_one_of_mpi() -> None:
    both = OWN | OPEN_MPI | {"TFDIST_LAUNCHED": "1", "PMIX_RANK": "2"}
    assert job_place.transport(both) == job_place.SOCKETS
    assert (job_place.rank(both), job_place.of_job(both), job_place.of_host(both)) == ("5", (5, 8), (1, 4))


@pytest.mark.parametrize("missing", OWN)
def test_part_of_a_place_is_none(missing: str) -> None:
    assert job_place.transport({name: value for name, value in OWN.items() if name != missing}) == ""


def test_variables_of_others_do_not_take_a_process() -> None:
    """They also stand around notebooks and tools, which may start jobs of their own."""
    assert job_place.is_taken(OWN) and job_place.is_taken(OPEN_MPI)
    torch = {"RANK": "0", "WORLD_SIZE": "2"}
    assert job_place.is_rank(torch) and not job_place.is_taken(torch)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [(OPEN_MPI, "2"), ({"PMIX_RANK": "4"}, "4"), ({"PMI_RANK": "1"}, "1"), ({}, "?"), (OWN, "5")],
)
def test_rank(environment: dict[str, str], rank: str) -> None:
    assert job_place.rank(environment) == rank


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        (OWN, (5, 8)),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, (5, 8)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"PMIX_RANK": "1"}, None),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, None),
        ({"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"PMIX_RANK": "1", "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "3"}, (1, 3)),
    ],
)
def test_place_in_the_job(environment: dict[str, str], place: tuple[int, int] | None) -> None:
    assert job_place.of_job(environment) == place


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        (OWN, (1, 4)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (1, 4)),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, None),
    ],
)
def test_place_on_the_host(environment: dict[str, str], place: tuple[int, int] | None) -> None:
    assert job_place.of_host(environment) == place
