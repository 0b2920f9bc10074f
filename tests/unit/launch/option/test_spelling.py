"""Tests of tfdist.launch.option.spelling, with the arguments of tfdist.run."""

from __future__ import annotations

import pytest

from tfdist.launch.function import verdict
from tfdist.launch.option.spelling import in_arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-np 3 asks; lower -np", "num_proc=3 asks; lower num_proc"),
        ("argument -np/-n/--num-proc: '0'", "argument num_proc: '0'"),
        ("-H a:0: '0'", "hosts=a:0: '0'"),
        ("-H host1:2,host2:4 takes", "hosts=host1:2,host2:4 takes"),
        ("--start-timeout 2.5 is over. It", "start_timeout=2.5 is over. It"),
        ("-H and --hostfile exclude", "hosts and hostfile exclude"),
        ("needs a longer --start-timeout", "needs a longer start_timeout"),
        ("--network-interfaces: zz9", "network_interfaces: zz9"),
        ("--output-filename DIR; more come with --verbose", "output_filename=DIR; more come with verbose=True"),
        ("a-np --mpi-args-2 x-H --verbosity", "a-np --mpi-args-2 x-H --verbosity"),
    ],
)
def test_options_are_called_by_their_arguments(text: str, expected: str) -> None:
    assert in_arguments(text, verdict.ARGUMENTS) == expected
