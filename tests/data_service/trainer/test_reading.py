"""How to read is checked before anything is sent."""

import pytest

from tfdist.data_service.trainer.reading import POLICIES, Reading
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sharding": "some"}, "off, dynamic, file, data, file_or_data, hint; received 'some'"),
        ({"job_name": ""}, "job_name is empty"),
        ({"max_outstanding_requests": 0}, "1 or more, or None; received 0"),
        ({"wait_seconds": 0}, "received 0. Every wait needs a limit"),
        ({"wait_seconds": float("inf")}, "received inf"),
        ({"wait_seconds": -1}, "received -1"),
        ({"expected": -1}, "received -1"),
        ({"cross_trainer_cache": "a"}, "job_name=None"),
        ({"cross_trainer_cache": "", "job_name": "job"}, "cross_trainer_cache=''"),
        ({"consumer_index": 0}, "consumer_index=0, num_consumers=None"),
        ({"num_consumers": 2, "job_name": "job"}, "consumer_index=None, num_consumers=2"),
        ({"consumer_index": 2, "num_consumers": 2, "job_name": "job"}, "consumer_index=2"),
        ({"consumer_index": 0, "num_consumers": 2}, "job_name=None"),
    ],
)
def test_bad_setting_says_what_is_expected(settings, text):
    with pytest.raises(ConfigError) as caught:
        Reading(**settings)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 10),
        ({"sharding": "file"}, 10),
        ({"sharding": "data"}, 10),
        ({"job_name": "job"}, 10),
        ({"sharding": "off"}, None),
        ({"sharding": "hint"}, None),
        ({"job_name": "job", "cross_trainer_cache": "a"}, None),
        ({"job_name": "job", "consumer_index": 0, "num_consumers": 2}, None),
        ({"sharding": "off", "expected": 20}, 20),
    ],
)
def test_cardinality_is_the_datasets_where_that_holds(settings, expected):
    assert Reading(**settings).expected_elements(10) == expected


def test_a_named_job_is_shared_off_repeats_and_parts_are_fixed():
    assert (Reading().shared, Reading().repeats) == (False, False)
    assert (Reading(job_name="job").shared, Reading("off").repeats) == (True, True)
    assert [Reading(sharding).fixed for sharding in ("off", "dynamic", "file", "hint")] == [False, False, True, True]


def test_shardings_under_which_a_worker_runs_all_steps():
    parted = {sharding for sharding in POLICIES if Reading(sharding).parts_the_source}
    assert parted == {"dynamic", "file", "file_or_data", "hint"}
