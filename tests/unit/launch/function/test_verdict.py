"""Tests of tfdist.launch.function.verdict: every way in which a job can end, without a job."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tfdist.errors import ConfigError, RankError
from tfdist.launch.function import parcel, verdict
from tfdist.launch.function.parcel import Failed, Returned
from tfdist.launch.function.verdict import Job


def _returned(value: Any) -> Returned:
    return Returned(pickle.dumps(value))


def _failed(how: str = parcel.RAISED, error: Exception | None = None) -> Failed:
    return Failed(how, "Kind", "text", "TRACE\n", b"" if error is None else pickle.dumps(error))


def _job(*answers: Returned | Failed | None, status: int = 1, **report: Any) -> Job:
    whole = {
        "status": status,
        "first": None,
        "hosts": [f"host{rank}" for rank in range(len(answers))],
        "codes": [1] * len(answers),
        "ranks": list(range(len(answers))),
        "size": len(answers),
        "explanation": "use --verbose",
    }
    return Job("train", status, whole | report, dict(enumerate(answers)))


def test_results_by_rank() -> None:
    assert verdict.results(_job(_returned("a"), _returned("b"), _returned("c"), status=0)) == ["a", "b", "c"]


def test_results_of_the_ranks_at_the_end_of_an_elastic_job() -> None:
    answers = (_returned("a"), None, _returned("gone"), _returned("came"))
    job = _job(*answers, status=0, ranks=[3, 0], size=None)
    assert verdict.results(job) == ["came", "a"]
    with pytest.raises(RankError, match="the result of rank 1 on host1 is missing or truncated"):
        verdict.results(_job(*answers, status=0, ranks=[0, 1], size=None))


def test_exception_of_the_first_rank_to_fail() -> None:
    job = _job(_failed(error=ValueError("later")), _failed(error=KeyError("first")), first=1)
    with pytest.raises(KeyError, match="first") as caught:
        verdict.results(job)
    cause = caught.value.__cause__
    assert isinstance(cause, RankError)
    assert cause.rank == 1
    assert str(cause) == "train failed on rank 1 of 2 on host1:\nTRACE\n"


def test_exception_that_could_not_be_pickled() -> None:
    with pytest.raises(RankError, match=r"train failed on rank 0 of 1 on host0:\nTRACE") as caught:
        verdict.results(_job(_failed(), first=0))
    assert caught.value.rank == 0


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (parcel.EXITED, r"train called sys\.exit\(text\) on rank 1 of 2 on host1, so it has no result"),
        (
            parcel.UNSENDABLE,
            "train returned, on rank 1 of 2 on host1, an object of type Kind that cannot be sent: text",
        ),
        (parcel.UNLOADABLE, "cannot be unpickled on rank 1 of 2 on host1: Kind: text"),
    ],
)
def test_other_failures(how: str, text: str) -> None:
    with pytest.raises(RankError, match=text) as caught:
        verdict.results(_job(_returned(0), _failed(how), first=1))
    assert caught.value.rank == 1


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (None, None, r"ended before the function returned\.\nuse verbose=True"),
        (None, 0, "exited with code 0 before the function returned"),
        (Returned(b""), 3, r"ended after the function returned\.\nuse verbose=True"),
        (Returned(b""), 0, r"ended after the function returned\.\nuse verbose=True"),
    ],
)
def test_process_that_ended(answer: Returned | None, code: int | None, text: str) -> None:
    with pytest.raises(RankError, match=f"train: the process of rank 0 of 2 on host0 {text}") as caught:
        verdict.results(_job(answer, _failed(), first=0, codes=[code, 1]))
    assert caught.value.rank == 0


def test_job_without_a_culprit() -> None:
    with pytest.raises(RankError, match=r"train did not finish:\nuse verbose=True") as caught:
        verdict.results(_job(None, _returned(0)))
    assert caught.value.rank is None


def test_success_that_lacks_a_result() -> None:
    with pytest.raises(RankError, match="the result of rank 1 of 2 on host1 is missing or truncated"):
        verdict.results(_job(_returned(0), None, status=0))


def test_result_that_cannot_be_unpickled() -> None:
    with pytest.raises(RankError, match="the result of rank 1 of 2 on host1 cannot be unpickled here") as caught:
        verdict.results(_job(_returned(0), Returned(b"junk"), status=0))
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, pickle.UnpicklingError)


def test_launcher_without_a_report() -> None:
    with pytest.raises(RankError, match=r"the launcher of its job was killed \(status -9\)"):
        verdict.results(Job("train", -9, None, [None]))


def test_refusal_of_the_launcher() -> None:
    with pytest.raises(ConfigError, match=r"^tfdist\.run: num_proc=3 is too much; lower num_proc$"):
        verdict.results(Job("train", 2, {"error": "-np 3 is too much; lower -np", "lost": False}, {}))
    with pytest.raises(RankError, match=r"^tfdist\.run: host a is not there"):
        verdict.results(Job("train", 2, {"error": "host a is not there", "lost": True}, {}))
