"""Old ports for new workers."""

import pytest

from tfdist.data_service.process.spare import SparePorts


def spare(*ports, most=3):
    made = SparePorts(most)
    for port in ports:
        made.put(port)
    return made


def test_between_passes_the_oldest_is_taken_first():
    made = spare(7, 8)
    assert next(made.take(in_pass=False)) == 7
    assert next(made.take(in_pass=False)) == 8
    assert next(made.take(in_pass=False)) == 0


def test_one_that_is_not_free_is_not_offered_again():
    made = spare(7, 8)
    assert list(made.take(in_pass=False)) == [7, 8, 0]
    assert list(made.take(in_pass=False)) == [0]


def test_in_mid_pass_a_new_one_is_taken_as_long_as_few_are_spare():
    made = spare(7, 8)
    assert next(made.take(in_pass=True)) == 0 and not made.full
    made.put(9)
    assert made.full
    assert next(made.take(in_pass=True)) == 7
    assert next(made.take(in_pass=True)) == 0


@pytest.mark.parametrize("in_pass", [True, False])
def test_number_of_spares_stays_bounded(in_pass):
    made, known = SparePorts(4), set()
    for number in range(1, 200):
        port = next(made.take(in_pass)) or number
        known.add(port)
        made.put(port)
    assert len(known) <= 5
