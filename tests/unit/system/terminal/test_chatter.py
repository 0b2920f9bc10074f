"""Which lines of TensorFlow's C++ say nothing about a run."""

import pytest

from tfdist.system.terminal.chatter import is_chatter


@pytest.mark.parametrize(
    "line",
    [
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        b"I0000 00:00:1795331423.912678    6319 port.cc:153] oneDNN custom operations are on.",
        b"2026-11-22 07:09:56.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
        b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow",
    ],
)
def test_chatter(line):
    assert is_chatter(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"loss 0.5",
        b"E0000 00:00:1795331683.572733    9752 add_port.cc:83] Failed to add port to server",
        b"2026-11-22 07:09:56.123456: W tensorflow/core/framework/op_kernel.cc:1] OP_REQUIRES failed",
        b"said: I0000 00:00:1795331423.912678    6319 port.cc:153] oneDNN",
    ],
)
def test_what_may_matter(line):
    assert not is_chatter(line)
