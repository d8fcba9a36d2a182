"""A Spark of several processes on this machine, for tests and for trying: a cluster, a server.

Both are what PySpark brings along, started on loopback and on free ports, with all they write in a
directory of yours, and ended with all they started. Nothing of the pipeline lives here. It needs
the extra `spark`, and Java.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from waystation.errors import LocalError
from waystation.testing.end_with_parent import end_with_parent

LOOPBACK: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
"""Java on a loaded machine takes its time."""

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""How Java spends little on a program that soon ends."""

_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.05


class SparkProcess:
    """One of Spark's programs, from its start to its end.

    It is ready when its log says so; `found` is what the log says then.
    """

    def __init__(
        self, command: list[str], log: Path, ready: str, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a program of PySpark's own
                end_with_parent(command, by=signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._ready = re.compile(ready)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def wait(self) -> str:
        """Wait until it is ready; the LocalError has its last words if it never is."""
        give_up = time.monotonic() + START_SECONDS
        while True:
            ended = self._process.poll() is not None
            said = self._log.read_text("utf-8", errors="replace")
            found = self._ready.search(said)
            if found:
                return found[1] if found.re.groups else found[0]
            if ended or time.monotonic() > give_up:
                last = said.strip().rpartition("\n")[2]
                problem = f"a program of Spark did not start: {last}"
                raise LocalError(problem, rule="SP-4", hint=f"see {self._log}")
            time.sleep(_LOOK_SECONDS)

    def kill(self) -> None:
        """End it, and all that it started, without a word to anybody: as when a machine dies."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """End it in good order, if it will."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self.kill()


class Cluster:
    """A standalone cluster: a master, and workers with so many cores and so much memory each.

    ```text
    with Cluster(directory, workers=2) as cluster:
        spark = pipeline.session(master=cluster.url)
    ```
    """

    def __init__(
        self, directory: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g"
    ) -> None:
        self._directory = directory
        self._count = workers
        self._room = ["--cores", str(cores), "--memory", memory]
        self._ending = ExitStack()
        self.url = ""
        self.workers: list[SparkProcess] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._ending:
            master = self._start("Master", "master", r"Starting Spark master at (spark://\S+)")
            self.url = master.wait()
            for number in range(self._count):
                self.add_worker(f"worker-{number}")
            for worker in self.workers:
                worker.wait()
            self._ending = self._ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def add_worker(self, name: str) -> SparkProcess:
        """Start one more worker; it has joined when it is waited for."""
        room = [*self._room, "--work-dir", str(self._directory / name), self.url]
        worker = self._start("Worker", name, "Successfully registered with master", *room)
        self.workers.append(worker)
        return worker

    def _start(self, kind: str, name: str, ready: str, *arguments: str) -> SparkProcess:
        program = [*_java(), f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
        place = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        log = self._directory / f"{name}.log"
        environment = _environment(self._directory)
        process = SparkProcess([*program, *place, *arguments], log, ready, environment)
        self._ending.callback(process.end)
        return process


class ConnectServer:
    """A Spark Connect server, with a Spark of its own or on a cluster.

    ```text
    with ConnectServer(directory) as server:
        spark = pipeline.session(master=server.url)
    ```
    """

    def __init__(
        self,
        directory: Path,
        *,
        master: str = "local[2]",
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._master = master
        self._environment = environment or {}
        self._config = {
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": LOOPBACK,
            "spark.ui.enabled": "false",
            **(config or {}),
        }
        self._process: SparkProcess | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        program = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = [str(_home() / "bin" / "spark-submit"), "--class", program]
        command += ["--master", self._master, "--driver-memory", "1g"]
        command += ["--driver-java-options", " ".join(SHORT_LIVED)]
        for key, value in self._config.items():
            command += ["--conf", f"{key}={value}"]
        environment = {**_environment(self._directory), **self._environment}
        ready = r"Spark Connect server started at: \S*:(\d+)"
        log = self._directory / "connect.log"
        self._process = SparkProcess(command, log, ready, environment)
        try:
            self.url = f"sc://{LOOPBACK}:{self._process.wait()}"
        except BaseException:
            self._process.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.end()


def _environment(directory: Path) -> dict[str, str]:
    """What all programs get: loopback, and nothing that is set for this process alone."""
    [core] = (_home() / "jars").glob("spark-core_*.jar")
    return {
        "PYTHONPATH": "",
        "SPARK_SUBMIT_OPTS": "",
        "SPARK_HOME": str(_home()),
        "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }


def _java() -> list[str]:
    """Java with Spark's programs; Spark's own script would start another one to find that out."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    return [java, "-Xmx256m", *SHORT_LIVED, "-cp", str(_home() / "jars" / "*")]


def _home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise LocalError(
            "there is no Spark without PySpark", rule="SP-4", hint="pip install 'waystation[spark]'"
        )
    return Path(found.origin).parent
