"""A real S3 server on this machine, of moto, and the environment that leads to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "ward"
SECRET = "verysecret"


@contextmanager
def s3_server() -> Iterator[Any]:
    """The server's file system, of fsspec, with one empty bucket; for this `with`."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto's server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    threaded = server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    threaded.start()
    host, port = threaded.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            point_to(patch, f"http://{host}:{port}")
            system = s3fs.S3FileSystem()
            system.mkdir(BUCKET)
            yield system
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        threaded.stop()


def point_to(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Let s3:// addresses of this process and those it starts lead to this server."""
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", "me")
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.delenv("AWS_PROFILE", raising=False)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
