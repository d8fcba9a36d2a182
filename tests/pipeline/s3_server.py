"""A real S3 server on the loopback interface, for journals and tables in a store: moto's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from waystation.journal.filesystems import file_system

REGION = "eu-central-1"


def settings_for(endpoint: str) -> dict[str, str]:
    """The environment of a program that uses the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "waystation",
        "AWS_SECRET_ACCESS_KEY": "only for tests",
        "AWS_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server that runs until the end."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def bucket_at(endpoint: str) -> str:
    """The URI of a new bucket."""
    name = f"fleet-{uuid4().hex[:12]}"
    with warnings.catch_warnings(action="ignore"):
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id="waystation",
            aws_secret_access_key="only for tests",  # noqa: S106 - the server takes any
        )
        client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        client.close()
    return f"s3://{name}"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket, in a process that knows how to reach it."""
    for name, value in settings_for(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return bucket_at(s3_endpoint)


def put_directory(directory: Path, place: str) -> None:
    """Copy all files of a local directory to a store."""
    system, path = file_system(place)
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            target = f"{path}/{file.relative_to(directory).as_posix()}"
            if system.type_name != "s3":
                system.create_dir(target.rpartition("/")[0], recursive=True)
            with system.open_output_stream(target) as stream:
                stream.write(file.read_bytes())
