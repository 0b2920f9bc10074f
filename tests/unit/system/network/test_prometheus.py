"""The text format of Prometheus."""

import pytest

from tfdist.system.network.prometheus import Family, render


def test_a_gauge_and_a_counter():
    families = [
        Family("x_", "size", "How many.", (({"rank": "0"}, 2),)),
        Family("x_", "calls_total", "", (({"rank": "0", "of": "a"}, 5), ({"rank": "0", "of": "b"}, 0.25))),
    ]
    assert render(families).splitlines() == [
        "# HELP x_size How many.",
        "# TYPE x_size gauge",
        'x_size{rank="0"} 2',
        "# TYPE x_calls_total counter",
        'x_calls_total{rank="0",of="a"} 5',
        'x_calls_total{rank="0",of="b"} 0.25',
    ]
    assert render(families).endswith("0.25\n")


def test_a_label_cannot_break_out():
    assert 'a="2\\"\\n\\\\"' in render([Family("x_", "y", "", (({"a": '2"\n\\'}, 1),))])


@pytest.mark.parametrize("name", ["Calls", "a-b", "1a", "", "a b"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(ValueError, match="lowercase letters"):
        render([Family("x_", name, "", ())])
