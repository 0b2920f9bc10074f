"""The fixtures of the S3 server."""

from s3 import s3, s3_server  # noqa: F401
