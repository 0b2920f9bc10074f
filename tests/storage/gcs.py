"""An emulator of Google Cloud Storage. No test of its own.

`from gcs import gcs, gcs_server` makes the fixtures of a folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from child import serving

BUCKET = "training-data"
_SERVER = f"""
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="{BUCKET}")
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()
"""


class Gcs:
    """It checks no key."""

    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it; the second is because it lacks another protocol that gcsfs tries first."""
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._port}",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def folder(self) -> str:
        """The address of a new folder."""
        return f"gs://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Gcs]:
    with serving(_SERVER) as port:
        yield Gcs(port)


@pytest.fixture
def gcs(gcs_server: Gcs, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    """The emulator, which this process and its children use."""
    for name, value in gcs_server.environment.items():
        monkeypatch.setenv(name, value)
    import gcsfs  # which looks at them

    gcsfs.GCSFileSystem.clear_instance_cache()
    return gcs_server
