"""Tests of tfdist.launch.start.place."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.start import place
from tfdist.launch.start.mpirun import Mpirun

# Of the sixth of seven ranks, on the third of four nodes.
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "PMIX_RANK": "5",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "9",
    "JSM_NAMESPACE_SIZE": "12",
    "JSM_NAMESPACE_LOCAL_RANK": "3",
    "JSM_NAMESPACE_LOCAL_SIZE": "6",
    "PMIX_RANK": "9",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
MPIRUN = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}


@pytest.mark.parametrize(
    ("told", "values"),
    [(SRUN, "5 7 1 2"), (JSRUN, "9 12 3 6"), (HYDRA, "5 7 1 2"), (SRUN | {"SLURM_NODEID": "3"}, "5 7 1 1")],
)
def test_place_as_mpirun_tells_it(told: dict[str, str], values: str) -> None:
    assert place.starter(told) not in (None, Mpirun)
    assert place.variables(told) == {
        f"OMPI_COMM_WORLD_{name}": value
        for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), values.split(), strict=True)
    }


def test_mpirun_has_told_it() -> None:
    assert place.starter(MPIRUN | SRUN) is Mpirun
    assert place.variables(MPIRUN | SRUN) == MPIRUN


def test_descriptors_of_a_starter_are_named() -> None:
    assert place.descriptors(HYDRA) == (9,)
    assert place.descriptors(HYDRA | MPIRUN) == place.descriptors(HYDRA | SRUN) == ()  # left from around the job
    assert place.descriptors(MPIRUN) == place.descriptors({"PMI_FD": ""}) == ()


def test_nobody_tells_it() -> None:
    assert place.variables({}) == {}
    assert place.variables({"PMIX_RANK": "0"}) == {}
    shell = {name: value for name, value in SRUN.items() if name != "PMIX_RANK"}
    assert place.variables(shell) == {}


def test_numbers_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE=x"):
        place.variables(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "x"})
