"""Something to do after an import: once, when the package is there, and never without the import."""

import pytest

PRELUDE = """
import sys
from pathlib import Path
from tfdist.system.after_import import after_import
Path("later.py").write_text("value = 1\\n")
Path("broken.py").write_text("raise RuntimeError('broken')\\n")
sys.path.insert(0, "")
done = []
"""
LATER = """
before = list(sys.meta_path)
after_import("later", lambda: done.append(sys.modules["later"].value))
after_import("later", lambda: done.append("second"))
import json.tool
assert done == []
import later
assert sorted(map(str, done)) == ["1", "second"]
assert sys.meta_path == before
import later
assert len(done) == 2
"""
ASKED_FOR = """
import importlib.util
after_import("later", lambda: done.append(1))
for _ in range(2):
    assert importlib.util.find_spec("later") is not None
assert done == []
import later
assert done == [1]
"""
REFUSING = """
def refuse():
    done.append(1)
    raise ImportError("not this one")
after_import("later", refuse)
for times in (1, 2):
    try:
        import later
    except ImportError as error:
        assert str(error) == "not this one" and len(done) == times
    else:
        raise AssertionError
"""
PRESENT = """
after_import("sys", lambda: done.append(1))
assert done == [1]
"""
FAILING = """
for name in ("broken", "absent"):
    after_import(name, lambda: done.append(1))
    try:
        __import__(name)
    except (RuntimeError, ModuleNotFoundError) as error:
        assert "broken" in str(error) or "No module named 'absent'" in str(error)
    else:
        raise AssertionError(name)
assert done == []
"""
ELASTIC = """
import tfdist
assert "keras" not in sys.modules
before = {name for name in sys.modules if name.startswith("tfdist")}
import keras
assert "fit_hook" in keras.Model.fit.__code__.co_filename
# A module of tfdist that is being imported may be what imports Keras.
assert {name for name in sys.modules if name.startswith("tfdist")} == before
"""
# It asks whether there is a Keras, and imports none.
AFTER_TENSORFLOW = """
import tfdist, tensorflow, keras
assert "fit_hook" in keras.Model.fit.__code__.co_filename
"""
FROM_WITHIN = """
import tfdist.elastic, keras
assert "fit_hook" in keras.Model.fit.__code__.co_filename
"""
NOT_EARLY = """
before = list(sys.meta_path)
import tfdist
assert sys.meta_path == before and "tfdist.native.gpu" not in sys.modules
"""
NOT_ELASTIC = """
import keras, tfdist
assert "fit_hook" not in keras.Model.fit.__code__.co_filename
"""


@pytest.mark.parametrize("script", [LATER, ASKED_FOR, REFUSING, PRESENT, FAILING])
def test_action(run_script, script):
    run_script(PRELUDE + script)


@pytest.mark.parametrize(
    ("script", "elastic", "early"),
    [
        (ELASTIC, "1", ""),
        (FROM_WITHIN, "1", ""),
        (AFTER_TENSORFLOW, "1", ""),
        (ELASTIC, "1", "1"),
        (NOT_ELASTIC, "0", "1"),
        (NOT_ELASTIC, "1", "0"),
        (NOT_EARLY, "1", "0"),
    ],
)
def test_importing_tfdist_waits_for_keras(run_script, script, elastic, early):
    run_script("import sys\n" + script, TFDIST_ELASTIC=elastic, TFDIST_EARLY=early)
