"""Run by Python at the start of every process that a test starts: hides what Keras imports wherever it is installed.

That is a third of the time of `import keras`, and few tests use it; those take the fixture `all_packages`.
"""

import sys

HIDDEN = frozenset({"matplotlib", "pandas", "sklearn"})


class Hider:
    """Asked first for every module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden by {__file__}", name=name)


sys.meta_path.insert(0, Hider)
