"""What a user reads of an error of TensorFlow."""

import pytest
import tensorflow as tf

from tfdist import errors
from tfdist.ops.graph import failure

ADVICE = " Every rank must run the same collectives in the same order with the same names. Check for branches."
TEXT = "the ranks are out of step: rank 0 called allreduce 'b', rank 1 called allreduce 'a'." + ADVICE
NODE = "{{node sgd/TfdistGroupedAllreduce}}"
WRAPPED = [
    TEXT,
    "{{function_node __wrapped__TfdistGroupedAllreduce_N_1_device_CPU:0}} "
    + TEXT
    + " [Op:TfdistGroupedAllreduce] name:",
    "Graph execution error:\n\nDetected at node sgd/TfdistGroupedAllreduce defined at (most recent call last):\n"
    f'  File "a.py", line 8, in <module>\n\n  File "b.py", line 1, in f\n\n{TEXT}\n\t [[{NODE}]] [Op:__inference_f_26]',
    TEXT + " [Op:__inference_g_41]",
    f"2 root error(s) found.\n  (0) FAILED_PRECONDITION:  {TEXT}\n\t [[{NODE}]]\n\t [[x/_2]]\n  (1) UNAVAILABLE: more",
]


@pytest.mark.parametrize("message", WRAPPED)
def test_words_of_tensorflow_are_left_out(message):
    error = failure.translated_from_graph(tf.errors.FailedPreconditionError(None, None, message))
    assert isinstance(error, errors.MismatchError)
    assert str(error) == TEXT


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.FailedPreconditionError(None, None, "Table not initialized. [[{{node lookup/LookupTableFindV2}}]]"),
        tf.errors.InvalidArgumentError(None, None, "Incompatible shapes\n\t [[{{node add}}]]"),
        tf.errors.OutOfRangeError(None, None, "End of sequence"),
        KeyError("x"),
    ],
)
def test_errors_of_others_stay_as_they_are(error):
    def broken():
        raise error

    assert failure.translated_from_graph(error) is error
    with pytest.raises(type(error)) as caught:
        failure.translating(broken)
    assert caught.value is error


def test_class_by_kind():
    node = "\n\t [[{{node TfdistGroupedAllgather}}]]"
    pairs = [
        (tf.errors.InvalidArgumentError, errors.ConfigError, "needs the same number of rows"),
        (tf.errors.UnavailableError, errors.PeerLostError, "rank 1 is lost"),
        (tf.errors.DeadlineExceededError, errors.StallError, "waited 3 s"),
        (tf.errors.FailedPreconditionError, errors.NotInitializedError, "Call tfdist.init() first"),
    ]
    for theirs, ours, text in pairs:
        error = failure.translated_from_graph(theirs(None, None, text + node))
        assert isinstance(error, ours)
        assert isinstance(error, theirs)
        assert str(error) == text
