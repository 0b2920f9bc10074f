"""Without pyspark, or without an application, the user is told what is missing."""

import subprocess
import sys

import pytest

import tfdist.spark
from tfdist.errors import BuildError


@pytest.mark.parametrize(
    "start", [lambda: tfdist.spark.run(print, num_proc=1), lambda: tfdist.spark.Runner(np=1).run(print)]
)
def test_no_pyspark(monkeypatch, start):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(BuildError, match=r"needs pyspark: .*pip install 'tfdist\[spark\]'"):
        start()


def test_nothing_of_spark_or_tensorflow_is_imported():
    code = (
        "import sys, tfdist.spark; print([name for name in ('pyspark', 'tensorflow', 'keras') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
