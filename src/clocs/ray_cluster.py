"""Ray: connect to a cluster, ask what it has, and run tasks on it.

Ray is imported only where it is asked for (the extra `cluster`). A task is a function of
an installed module and its arguments, so every node needs the same version of clocs.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType
from typing import Any, Generic, TypeVar

from clocs._version import __version__
from clocs.errors import ClocsError, SettingError, needing

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 3  # of a task whose worker or node died
_ANSWER = 10.0  # seconds in which a cluster must accept a connection
_START = "start one with `ray start --head`, or give the HOST:PORT that it prints"


class ClusterError(ClocsError):
    """A cluster cannot be reached, or a task was lost too often."""


@dataclass(frozen=True)
class Resources:
    """What a task asks for or a machine has: processors, GPUs (also a part) and bytes of memory."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        parts = [f"{self.cpus:g} CPUs", f"{self.gpus:g} GPUs"][: 2 if self.gpus else 1]
        return ", ".join([*parts, f"{self.memory / 2**30:.1f} GiB"] if self.memory else parts)

    def fits(self, needs: Resources) -> int:
        """How many tasks with these needs run on such a machine at once."""
        pairs = (self.cpus, needs.cpus), (self.gpus, needs.gpus), (self.memory, needs.memory)
        return int(min(has / asked for has, asked in pairs if asked))


def import_ray() -> ModuleType:
    """Ray itself, or a sentence on how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needing("`ray` needs the package ray", "cluster"):
        import ray
    return ray


@contextmanager
def connect(address: str) -> Iterator[None]:
    """A connection to a running cluster; one that the process already has is used, and kept.

    Args:
        address: 'auto' for the cluster of this machine (or of RAY_ADDRESS), or HOST:PORT.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    where = _resolved(address)
    _keep_standard_output()
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(f"no connection to Ray at {where}: {_first_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _keep_standard_output() -> None:
    """Log what Ray says of lost workers and nodes: it would print it among our own output."""
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **_: logging.getLogger("clocs").info("%s", data)


def _resolved(address: str) -> str:
    """The address itself, once something answers there: Ray would wait for minutes."""
    where = address
    if address == "auto":
        base = os.environ.get("RAY_TMPDIR") or gettempdir()
        noted = Path(base) / "ray" / "ray_current_cluster"
        where = os.environ.get("RAY_ADDRESS", "")
        where = where or (noted.read_text("utf-8").strip() if noted.is_file() else "")
        if not where:
            raise ClusterError(f"no Ray cluster runs on this machine; {_START}")
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise SettingError(f"`ray` is {where!r}; it must be 'auto' or HOST:PORT, such as head:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster answers at {where} ({error}); {_START}") from error
    return where


def nodes() -> list[Resources]:
    """The living machines of the cluster one is connected to."""
    return [
        Resources(has.get("CPU", 0.0), has.get("GPU", 0.0), int(has.get("memory", 0)))
        for has in (one["Resources"] for one in import_ray().nodes() if one["Alive"])
    ]


def check_fits(needs: Resources) -> int:
    """How many tasks with these needs run at once; an error where no machine has as much.

    Ray itself would wait for such a machine without a word.
    """
    many = sum(node.fits(needs) for node in nodes())
    if not many:
        raise SettingError(f"no machine of the cluster has what a task asks for ({needs})")
    return many


class Tasks(Generic[T]):
    """Tasks under way, each under a key of the caller's; canceled when the context ends."""

    def __init__(self) -> None:
        self._ray: Any = import_ray()
        self._keys: dict[Any, T] = {}

    def __enter__(self) -> Tasks[T]:
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._keys:
            # by ending its process: one interrupted amid an import would not do for other tasks
            self._ray.cancel(reference, force=True)

    def __len__(self) -> int:
        return len(self._keys)

    def start(self, key: T, act: Callable[..., Any], *arguments: Any, needs: Resources) -> None:
        """Queue one task; it runs again, elsewhere, where its worker or node dies."""
        options: dict[str, Any] = {"num_cpus": needs.cpus, "max_retries": RETRIES}
        if needs.gpus:
            options["num_gpus"] = needs.gpus
        if needs.memory:
            options["memory"] = needs.memory
        remote = self._ray.remote(**options)(_call)
        self._keys[remote.remote(__version__, act, *arguments)] = key

    def finished(self, seconds: float | None = None) -> Iterator[tuple[T, Callable[[], Any]]]:
        """Tasks that have ended, as (key, its result or its error when called).

        Waits until there is one, or for so many seconds.
        """
        if self._keys:
            waiting = list(self._keys)
            ended, _ = self._ray.wait(waiting, num_returns=1, timeout=seconds)
            for reference in ended:
                yield self._keys.pop(reference), partial(self._result, reference)

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:  # of the task itself: as if it had run here
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, ModuleNotFoundError):
                raise SettingError(
                    f"a node lacks the module {cause.name}; install the same clocs, with "
                    "the same extras, on every node"
                ) from error
            raise cause from None
        except errors.RayError as error:
            raise ClusterError(
                f"a task was lost each time it was tried ({_first_line(error)}); it may need more "
                "memory than its machine has"
            ) from error


def _call(version: str, act: Callable[..., R], *arguments: Any) -> R:
    """Runs on a node."""
    if version != __version__:
        raise SettingError(
            f"this node has clocs {__version__}, but {version} asked for its work; install the "
            "same version on every node"
        )
    return act(*arguments)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
