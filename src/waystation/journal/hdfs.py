"""HDFS as a file system of Arrow's, without a JVM: what `hdfs-native` does, under Arrow's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from hdfs_native import Client, WriteOptions
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

_MODE = 0o755


class HdfsHandler(FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Maps the calls of Arrow to those of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HdfsHandler) and other._client is self._client

    def __hash__(self) -> int:
        return id(self._client)

    def get_type_name(self) -> str:
        """The name of the kind of file system."""
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        """A path as it is used below."""
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[FileInfo]:
        """What is at some paths."""
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        try:
            return _told(path, self._client.get_file_info(path))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """What is in a directory, or below it."""
        return list(self._listed(selector))

    def _listed(self, selector: FileSelector) -> Iterator[FileInfo]:
        try:
            for status in self._client.list_status(selector.base_dir, selector.recursive):
                yield _told(status.path, status)
        except FileNotFoundError:
            if not selector.allow_not_found:
                raise

    def create_dir(self, path: str, recursive: bool) -> None:
        """Create a directory, and with `recursive` those above it."""
        self._client.mkdirs(path, _MODE, recursive)

    def delete_dir(self, path: str) -> None:
        """Remove a directory and all that is in it."""
        self._client.delete(path, True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove all that is in a directory."""
        for info in self.get_file_info_selector(FileSelector(path, allow_not_found=missing_dir_ok)):
            self._client.delete(info.path, True)

    def delete_root_dir_contents(self) -> None:
        """Refuse to remove everything."""
        raise OSError("the root of HDFS is not removed")

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        if not self._client.delete(path, False):
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        """Rename a file or a directory; a file that is there is replaced."""
        self._client.rename(src, dest, True)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file."""
        with self.open_input_stream(src) as source, self.open_output_stream(dest, {}) as target:
            while chunk := source.read(2**22):
                target.write(chunk)

    def open_input_stream(self, path: str) -> Any:
        """A file to read from its beginning."""
        return pa.PythonFile(self._client.read(path), mode="r")

    def open_input_file(self, path: str) -> Any:
        """A file to read anywhere."""
        return pa.PythonFile(self._client.read(path), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ARG002 - Arrow gives it
        """A new file; one of that name is replaced."""
        options = WriteOptions()
        options.overwrite = True
        return pa.PythonFile(self._client.create(path, options), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:  # noqa: ARG002 - Arrow gives it
        """The end of a file."""
        return pa.PythonFile(self._client.append(path), mode="w")


def _told(path: str, status: Any) -> FileInfo:
    if status.isdir:
        return FileInfo(path, FileType.Directory)
    seconds = status.modification_time / 1_000
    return FileInfo(path, FileType.File, mtime=seconds, size=status.length)
