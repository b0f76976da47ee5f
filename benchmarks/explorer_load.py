"""The explorer's server under load: requests per second, times, and memory over minutes.

    python benchmarks/explorer_load.py --minutes 5

Simulates patients, embeds them with an untrained encoder, and starts the explorer's server in a
process of its own, with a token, as `clocs explore` does. Clients ask over connections that stay
open, each for the next response when it has the last. The baseline, in the same run, is the same
server on a socket without TCP_NODELAY. Then a mixture of all requests for --minutes, with 8
clients, while the memory of the server is watched. Clients and server share the processors.

With --attack, instead: the page while 1,100 headers are sent by half and the server may open 1,024
files, and while sixty uploads of 30 MB arrive; the memory and the log of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import psutil

import clocs

TOKEN = "a-token-for-the-benchmark"
HEADERS = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
CLIENTS = (1, 8, 64)


def serve(folder: Path, *, delayed: bool) -> None:
    """The server's process: prints its port and the pseudonyms, then answers."""
    import resource
    import socket

    from clocs.explorer.open import open_session
    from clocs.explorer.server import make_api
    from clocs.web.server import GracefulServer, listen
    from clocs.web.shield import Shield

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    session = open_session(
        stores=[folder / "store"], checkpoint=folder / "encoder", cache=folder / "cache"
    )
    session.index  # noqa: B018 (made before the first request)
    listening = listen().socket
    if delayed:  # asyncio sets TCP_NODELAY only if the socket knows its protocol
        listening = socket.socket(listening.family, listening.type, 0, listening.detach())
    listening.listen(128)
    port = listening.getsockname()[1]
    sys.stdout.write(json.dumps({"port": port, "codes": list(session.codes)}) + "\n")
    sys.stdout.flush()
    GracefulServer(Shield(make_api(session), token=TOKEN)).run(sockets=[listening])


@dataclass(frozen=True)
class Running:
    port: int
    codes: list[str]
    process: psutil.Process

    def paths(self, kind: str) -> Iterator[str]:
        """Addresses of one kind, of one patient after the other."""
        for i in count():
            code = self.codes[i * 7 % len(self.codes)]
            yield {
                "page": "/",
                "map": "/api/map",
                "similar": f"/api/patients/{code}/neighbors",
                "ECG": f"/api/patients/{code}/recordings/0/signal?seconds=10",
            }[kind]


KINDS = ("page", "map", "similar", "ECG")


@contextmanager
def running(folder: Path, *, delayed: bool = False) -> Iterator[Running]:
    command = [sys.executable, __file__, "--serve", str(folder)]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [*command, "--delayed"] if delayed else command, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert started.stdout is not None
        facts = json.loads(started.stdout.readline())
        yield Running(facts["port"], facts["codes"], psutil.Process(started.pid))
    finally:
        started.terminate()
        started.wait()


@dataclass
class Load:
    """What clients measured."""

    milliseconds: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = len(self.milliseconds) / self.seconds
        middle, slow = np.percentile(self.milliseconds, [50, 99])
        errors = f", {self.errors} errors" if self.errors else ""
        return f"{rate:7,.0f} requests/s   p50 {middle:6.1f} ms   p99 {slow:6.1f} ms{errors}"

    @property
    def rate(self) -> float:
        return len(self.milliseconds) / self.seconds


async def ask(server: Running, kinds: Sequence[str], clients: int, seconds: float) -> Load:
    """`clients` connections, each of which asks for one address after the other."""
    load = Load()
    began = time.perf_counter()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        paths = [server.paths(kind) for kind in kinds]
        for turn in count(number):
            path = next(paths[turn % len(paths)])
            at = time.perf_counter()
            writer.write(f"GET {path} HTTP/1.1\r\n{HEADERS}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next(line for line in lines if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
            load.milliseconds.append(1000 * (time.perf_counter() - at))
            load.errors += not lines[0].startswith("http/1.1 200")
            if time.perf_counter() - began > seconds:
                break
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


async def watch(server: Running, minutes: float) -> None:
    """A mixture of requests, and the server's memory meanwhile."""
    megabytes: list[float] = []

    async def look() -> None:
        while True:
            megabytes.append(server.process.memory_info().rss / 1e6)
            await asyncio.sleep(0.25)

    await ask(server, KINDS, 8, 5)  # warm
    looking = asyncio.create_task(look())
    whole = max(1, round(minutes))
    for minute in range(whole):
        load = await ask(server, KINDS, 8, 60 * minutes / whole)
        print(f"  minute {minute + 1}   {load}   {megabytes[-1]:.0f} MB", flush=True)
    looking.cancel()
    print(f"  memory: {megabytes[0]:.0f} MB at first, at most {max(megabytes):.0f} MB")


async def attack(server: Running) -> None:
    """Half-sent headers, then uploads; the page is asked for meanwhile."""
    slow = []
    for _ in range(1100):
        slow.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
        slow[-1].write(f"GET / HTTP/1.1\r\n{HEADERS}X-Slow: ".encode())
    for _ in range(5):  # each on new connections
        load = await ask(server, ["page"], 8, 0.5)
    print(f"page, with 1,100 half-sent headers      {load}")
    for one in slow:
        one.close()
    boundary = "--x\r\nContent-Disposition: form-data; name=files; filename=own.csv\r\n\r\n"
    body = boundary.encode() + b"100,200,-30,40\n" * 2_000_000 + b"\r\n--x--\r\n"
    head = f"POST /api/uploads HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    megabytes: list[tuple[float, float]] = []

    async def upload() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(head.encode())
            for start in range(0, len(body), 1 << 18):
                writer.write(body[start : start + (1 << 18)])
                await writer.drain()
            return (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
        except (OSError, asyncio.IncompleteReadError):
            return "closed"
        finally:
            writer.close()

    async def look() -> None:
        while True:
            own = server.process.memory_info().rss / 1e6
            readers = 0.0
            for child in server.process.children():
                with suppress(psutil.NoSuchProcess):
                    readers += child.memory_info().rss / 1e6
            megabytes.append((own, own + readers))
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    sending = asyncio.gather(*(upload() for _ in range(60)))
    while not sending.done():
        load = await ask(server, ["page"], 1, 5)
        print(f"page, with sixty uploads                {load}", flush=True)
    looking.cancel()
    statuses = sorted(await sending)
    print("uploads answered:", ", ".join(f"{n} × {s}" for s, n in Counter(statuses).items()))
    own, all_of_them = np.max(megabytes, axis=0)
    print(f"memory: {megabytes[0][0]:.0f} MB at first, at most {own:.0f} MB", end="; ")
    print(f"with the processes that read uploads {all_of_them:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5, help="per measurement")
    parser.add_argument("--minutes", type=float, default=5, help="of the mixture")
    parser.add_argument("--attack", action="store_true", help="as described above")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--delayed", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, delayed=given.delayed)
        return
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        store = clocs.prepare("synthetic", out=folder / "store", patients=given.patients)
        clocs.pretrain(store, method="random", out=folder / "encoder")
        if given.attack:
            with running(folder) as server:
                asyncio.run(attack(server))
            print(f"log: {(folder / 'log').stat().st_size:,} bytes")
            return
        with running(folder) as server, running(folder, delayed=True) as baseline:
            for kind in KINDS:
                for clients in CLIENTS:
                    rates = []
                    for name, one in (("", server), ("without TCP_NODELAY", baseline)):
                        load = asyncio.run(ask(one, [kind], clients, given.seconds))
                        print(f"{kind:8s} {clients:3d} clients  {load}   {name}", flush=True)
                        rates.append(load.rate)
                    print(f"  ratio {rates[0] / rates[1]:.1f}")
        with running(folder) as server:
            print(f"all of them, 8 clients, {given.minutes:g} minutes")
            asyncio.run(watch(server, given.minutes))


if __name__ == "__main__":
    main()
