"""The fixtures of the servers."""

from gcs import gcs, gcs_server  # noqa: F401
from s3 import s3, s3_server  # noqa: F401
