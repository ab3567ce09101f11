"""Object storage for tests: one in memory, and a server that speaks the protocol of S3."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec


def empty_memory() -> Any:
    """The file system memory://, without files."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


class Server:
    """An S3 server on a free port of this machine. Its objects outlast a stop."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._make = ThreadedMotoServer
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def stop(self) -> None:
        """Refuse connections."""
        self._server.stop()

    def start(self) -> None:
        """Accept connections again, at the same port."""
        self._server = self._make("127.0.0.1", self.port, verbose=False)
        self._server.start()


@contextmanager
def serve_s3(bucket: str) -> Iterator[tuple[Server, Any]]:
    """A server with one empty bucket, and boto3's client of it, which is not fsspec's."""
    import boto3
    import s3fs

    server = Server()
    options = server.environment
    # The objects belong to the process, not to the server.
    reset = f"{options['AWS_ENDPOINT_URL']}/moto-api/reset"
    urllib.request.urlopen(urllib.request.Request(reset, method="POST")).close()
    client = boto3.client(
        "s3",
        endpoint_url=options["AWS_ENDPOINT_URL"],
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )
    s3fs.S3FileSystem.clear_instance_cache()  # connections to an earlier server
    try:
        client.create_bucket(Bucket=bucket)
        yield server, client
    finally:
        client.close()
        server.stop()
