"""`import horovod` is tfdist: for scripts that cannot be changed."""

from __future__ import annotations

import os
import sys

from tfdist import config, errors
from tfdist.alias import keras2, module
from tfdist.world import runtime


def as_horovod() -> None:
    """Makes every later `import horovod...` import tfdist, in this process and in the ranks it starts.

    For notebooks, and scripts that are not started with `tfdistrun --as-horovod`. It also does what that option does:
    gradients are those of Horovod 0.28, and some names of Keras 2 are translated; see docs/migrating-from-horovod.md.

    Raises:
        ConfigError: If Horovod itself has been imported before, or after `init()`, which chooses the gradients.

    Example:

    ```python
    import tfdist

    tfdist.as_horovod()
    import horovod.tensorflow.keras as hvd

    hvd.init()
    ```
    """
    loaded = sys.modules.get("horovod")
    if loaded is not None and not module.is_alias(loaded):
        raise errors.ConfigError(
            f"horovod has been imported already, from {getattr(loaded, '__file__', 'an unknown place')}; expected "
            "tfdist.as_horovod() before it. Call it in the first lines of the script."
        )
    if runtime.is_initialized() and not config.value("as_horovod"):
        raise errors.ConfigError(
            "tfdist.as_horovod() was called after init(), which has chosen the gradients; expected it before. Call it "
            "in the first lines of the script."
        )
    module.install()
    keras2.translate()
    os.environ[config.variable("as_horovod")] = "1"
