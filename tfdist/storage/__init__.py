"""Object stores and other places with an address, such as `s3://bucket/folder`."""
