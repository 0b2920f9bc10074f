"""Tests of tfdist.launch.host.cluster.sagemaker."""

from __future__ import annotations

import pytest

from tfdist.errors import ConfigError
from tfdist.launch.host.cluster import sagemaker
from tfdist.launch.host.host import Host

RECORDED = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-1",
    "SM_NUM_GPUS": "4",
    "SM_NUM_CPUS": "32",
    "SM_MODEL_DIR": "/opt/ml/model",
}


@pytest.mark.parametrize(("gpus", "slots"), [("4", 4), ("1", 1), ("0", 1), ("", 1)])
def test_recorded_environment(gpus: str, slots: int) -> None:
    found = sagemaker.find(RECORDED | {"SM_NUM_GPUS": gpus})
    assert found is not None
    assert (found.manager, found.source) == ("SageMaker", "SM_HOSTS and SM_NUM_GPUS")
    assert found.hosts == (Host("algo-1", slots), Host("algo-2", slots))


def test_outside_of_a_job() -> None:
    assert sagemaker.find({"SM_NUM_GPUS": "4"}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SM_CURRENT_HOST": "algo-2"}, "this is algo-2, but tfdistrun must run only on algo-1"),
        ({"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST=algo-3 is not one of SM_HOSTS"),
        ({"SM_NUM_GPUS": "many"}, "SM_NUM_GPUS=many is not a number of GPUs"),
        ({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS=algo-1,algo-2: expected names such as"),
        ({"SM_HOSTS": "[]"}, "expected names such as"),
        ({"SM_HOSTS": "[1]"}, "expected names such as"),
        ({"SM_HOSTS": '{"algo-1": 1}'}, "expected names such as"),
        ({"SM_HOSTS": '["algo-1", "algo-1"]'}, "host 'algo-1' is listed twice"),
    ],
)
def test_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sagemaker.find(RECORDED | change)
