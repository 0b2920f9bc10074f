"""`import horovod` in a process where only the search path says that it is tfdist; replaces itself."""

import sys

from tfdist.alias import as_horovod
from tfdist.alias.module import make

del sys.modules["horovod"]
as_horovod()
sys.modules["horovod"] = make("horovod")
