"""The life of a process: before init, a world of one, after shutdown, refused arguments."""

import pytest

BEFORE = """
import pytest, tfdist
for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous"):
    with pytest.raises(tfdist.errors.NotInitializedError, match=r"tfdist\\.init\\(\\)") as caught:
        getattr(tfdist, name)()
    assert isinstance(caught.value, ValueError)
with pytest.raises(tfdist.errors.NotInitializedError, match=r"tfdist\\.init\\(\\)"):
    tfdist.allreduce([1.0])
assert not tfdist.is_initialized()
"""
ALONE = """
import numpy as np, tfdist
tfdist.init()
tfdist.init()
assert tfdist.is_initialized() and tfdist.is_homogeneous()
assert (tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()) == (0, 1, 0, 1)
assert (tfdist.cross_rank(), tfdist.cross_size()) == (0, 1)
assert tfdist.mpi_built() and not tfdist.mpi_enabled() and tfdist.nccl_built() and tfdist.cuda_built()
assert np.array_equal(tfdist.allreduce([1.0, 2.0]), [1.0, 2.0])
assert tfdist.runtime.communication_seconds() > 0
tfdist.shutdown()
tfdist.shutdown()
assert not tfdist.is_initialized()
"""
REFUSED = """
import pytest, tfdist
refused = [
    ({"comm": []}, "one or more ranks of the job, or an mpi4py communicator; received"),
    ({"comm": "all"}, "one or more ranks of the job, or an mpi4py communicator; received 'all'"),
    ({"comm": [1]}, "started without a launcher and is a world of one"),
    ({"process_sets": "static"}, "None, 'dynamic' or a list of tfdist.ProcessSet; received 'static'"),
    ({"process_sets": [[0]]}, "None, 'dynamic' or a list of tfdist.ProcessSet; received"),
]
for argument, text in refused:
    with pytest.raises(tfdist.errors.ConfigError, match=text):
        tfdist.init(**argument)
    assert not tfdist.is_initialized()
# What a process set refuses, all ranks learn, and nobody is left half started.
with pytest.raises(tfdist.errors.ConfigError, match="received the ranks .1.; expected"):
    tfdist.init(process_sets=[tfdist.ProcessSet([1])])
assert not tfdist.is_initialized()
tfdist.init(comm=[0], process_sets="dynamic")
tfdist.init()
tfdist.init(comm=[0], process_sets="dynamic")
late = [({"comm": [0, 1]}, "with comm=.0., so comm=.0, 1. comes too late"), ({"process_sets": []}, "comes too late")]
for argument, text in late:
    with pytest.raises(tfdist.errors.ConfigError, match=text):
        tfdist.init(**argument)
"""
UNUSED_SERVICE = """
import tfdist
from tfdist.data_service.trainer import watch
tfdist.init()
watch._watches.append(watch.Watch("measured", service={read!r}))
"""
JOINED = """
import tfdist
tfdist.init()
"""
SAID = """
import logging, sys
import tfdist
tfdist.init()
logging.getLogger("tfdist").info("before")
logging.basicConfig(level="INFO")
logging.getLogger("tfdist").info("after")
"""
BAD_SETTING = """
import pytest, tfdist
with pytest.raises(tfdist.errors.ConfigError, match="TFDIST_FUSION_THRESHOLD='x'"):
    tfdist.init()
"""


@pytest.mark.parametrize(
    ("script", "environment"),
    [(BEFORE, {}), (ALONE, {}), (REFUSED, {}), (BAD_SETTING, {"TFDIST_FUSION_THRESHOLD": "x"})],
    ids=["before init", "world of one", "refused arguments", "bad setting"],
)
def test_in_a_fresh_process(run_script, script, environment):
    run_script(script, **environment)


@pytest.mark.parametrize(
    ("environment", "warned"),
    [
        ({"TFDIST_ELASTIC": "1", "TFDIST_MEMBER_PIPE": "987654:1:987654:1"}, True),
        ({"TFDIST_ELASTIC": "1"}, False),
        ({"TFDIST_MEMBER_PIPE": "987654:1:987654:1"}, False),
    ],
)
def test_failure_to_report_joining_is_an_error(run_script, environment, warned):
    assert ("cannot report to tfdistrun that it has joined" in run_script(JOINED, **environment)) == warned


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"TFDIST_ELASTIC": "1"}, True),
        ({"TFDIST_ELASTIC": "1", "TFDIST_EARLY": "0"}, False),
        ({"TFDIST_ELASTIC": "0"}, False),
    ],
)
def test_what_the_import_has_changed_is_said_once_at_level_info(run_script, environment, said):
    change = (
        "importing tfdist has changed this process: keras.Model.fit continues when a rank is lost. Set TFDIST_EARLY=0"
    )
    assert run_script(SAID, TFDIST_LOG_LEVEL="info", **environment).count(change) == said
    assert "importing tfdist" not in run_script(SAID, **environment)


def test_log_level_shows_once_with_or_without_script_logging(run_script):
    lines = run_script(SAID, TFDIST_LOG_LEVEL="info").splitlines()
    assert lines.count("tfdist: started, rank 0 of 1, local rank 0 of 1") == 1
    assert [line for line in lines if line.endswith(("tfdist: before", "tfdist: after"))] == [
        "tfdist: before",
        "INFO:tfdist:tfdist: after",
    ]


@pytest.mark.parametrize(("service", "read", "warned"), [("node:1", "", 1), ("node:1", "node:1", 0), ("", "", 0)])
def test_unread_data_service_is_reported_at_the_end(run_script, service, read, warned):
    told = run_script(UNUSED_SERVICE.format(read=read), TFDIST_DATA_SERVICE=service)
    assert told.count("data service at node:1, but this process read nothing from it") == warned
