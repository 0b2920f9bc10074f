"""Where a rank is, barriers and timelines."""

import json
import os
from pathlib import Path

import pytest
import torch

import tfdist.torch as hvd
from tfdist.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    """One that all ranks see."""
    return Path(hvd.broadcast_object(str(tmp_path)))


def test_places(rank, size):
    assert hvd.is_initialized()
    if "TFDIST_RANK" in os.environ:  # that of the launcher
        assert (rank, size) == (int(os.environ["TFDIST_RANK"]), int(os.environ["TFDIST_SIZE"]))
    assert hvd.allgather_object((rank, size)) == [(r, size) for r in range(size)]
    assert hvd.allgather_object((hvd.local_rank(), hvd.local_size())) == [(r, size) for r in range(size)]
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)


def test_a_barrier_waits_for_all(rank, size, folder):
    (folder / str(rank)).touch()
    hvd.barrier()
    assert {path.name for path in folder.iterdir()} == set(map(str, range(size)))
    hvd.barrier()  # before the folder is somebody else's


def test_a_barrier_of_a_set_waits_for_its_ranks_alone(rank, size, folder, own_set, wait_until):
    """The even ranks come to theirs when the odd ones have left theirs."""
    passed = [folder / f"passed {r}" for r in range(1, size, 2)]
    if rank % 2 == 0:
        wait_until(lambda: all(path.exists() for path in passed), what="the odd ranks")
    (folder / str(rank)).touch()
    hvd.barrier(process_set=own_set)
    assert all((folder / str(r)).exists() for r in own_set.ranks)
    if rank % 2:
        (folder / f"passed {rank}").touch()
    hvd.barrier()


@pytest.mark.parametrize("cycles", [False, True])
def test_timelines_one_after_the_other(rank, tmp_path, cycles):
    for number in range(2):
        hvd.start_timeline(tmp_path / f"{number}.json", mark_cycles=cycles)
        with pytest.raises(ConfigError, match="already"):
            hvd.start_timeline(tmp_path / "other.json")
        hvd.allreduce(torch.ones(3), name="of three")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(3), name="afterwards")
        events = json.loads((tmp_path / f"{number}.{rank}.json").read_text())
        events = events["traceEvents"] if isinstance(events, dict) else events
        names = [event["name"] for event in events]
        assert names.count("allreduce of three") == 1 and "allreduce afterwards" not in names
        assert ("cycle" in [event.get("cat") for event in events]) == cycles
