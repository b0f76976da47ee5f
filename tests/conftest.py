"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

import clocs

# Imported where it is needed, torch above all: the process that starts the workers runs no test.
if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

    from clocs import Checkpoint, Frames, Store
    from clocs.experiments.ledger import Ledger

with suppress(ImportError):  # a machine with a GPU may have torch and pytest alone
    import hypothesis

    # A busy machine fails no claim, and the same examples are tried every time;
    # `script/test --hypothesis-profile random` tries others.
    patient = hypothesis.settings(
        deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.register_profile("random", patient)
    hypothesis.settings.register_profile("clocs", patient, derandomize=True)
    hypothesis.settings.load_profile("clocs")

# Ray ends no task because other tests use memory, and gives up no node or worker that is slow.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
os.environ.setdefault("RAY_health_check_timeout_ms", "100000")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")

# As the command line does: torch keeps memory between two uses of it.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")

# A shell starts what runs in its background with SIGINT ignored, which all processes inherit:
# without this, commands that a test interrupts would run on.
signal.signal(signal.SIGINT, signal.default_int_handler)

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 180_000  # ms that a test waits for a page: a busy machine is slow to draw


# Files that take longest, the longest first. They are started first, so that at the end no worker
# has a long one to itself while the others have nothing to do.
SLOW = (
    "test_page.py",
    "test_export.py",
    "test_leaves_the_house.py",
    "test_real_counts.py",
    "test_service_api.py",
    "test_service_run.py",
    "test_five_ways.py",
    "test_ranks.py",
    "test_every_encoder.py",
    "test_runner.py",
    "test_wheel.py",
    "test_snippets.py",
    "test_shipped_commands.py",
    "test_fuzz.py",
    "test_same_results.py",
    "test_docs_results.py",
    "test_analyses.py",
    "test_many_leads_study.py",
    "test_site.py",
    "test_workers.py",
    "test_outside_encoders.py",
    "test_reproduce.py",
    "test_windows_triton.py",
    "test_many_lead_pretraining.py",
    "test_tutorial.py",
    "test_many_leads_report.py",
    "test_killed.py",
    "test_multilead.py",
    "test_hours.py",
    "test_contrast_triton.py",
    "test_groups.py",
    "test_cluster_runner.py",
    "test_demo.py",
    "test_files_that_run.py",
    "test_messages.py",
    "test_finished_members.py",
    "test_folder.py",
    "test_cli.py",
    "test_loop.py",
    "test_report_page.py",
    "test_cross_validation.py",
    "test_finetune_resumed.py",
    "test_show.py",
    "test_cli_patients.py",
    "test_info.py",
    "test_million.py",
    "test_compiled.py",
)


# Of one worker, because what they use is made once: a browser; torch's tools for exports, models
# and an index, and a process that has imported everything (warm.py).
PAGES = (
    "page", "measuring", "filter_page", "groups_page", "saved_classifiers", "two_encoders",
    "upload_question", "scatter", "tabs", "seen", "service_page", "report_page", "demo",
    "accessibility",
)  # fmt: skip
PROCESSES = (
    "export", "leaves_the_house", "service_api", "service_run", "five_ways", "ranks", "runner",
    "killed", "files_that_run", "messages", "finetune_resumed", "explorer_run", "outside_encoders",
    "site", "locks", "temporary_files",
)  # fmt: skip
TOGETHER = dict.fromkeys((f"test_{one}.py" for one in PAGES), "pages") | dict.fromkeys(
    (f"test_{one}.py" for one in PROCESSES), "processes"
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """As `--dist loadfile`, but some files go to the same worker."""
    if config.getvalue("dist") != "loadfile":
        return None
    made: Any = import_module("xdist.scheduler").LoadFileScheduling(config, log)

    def unit(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return TOGETHER.get(Path(file).name, file)

    made._split_scope = unit
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first; else as collected."""
    place = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW)))


def pytest_sessionstart() -> None:
    """Importing leaves no garbage to speak of, and looking for it takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What has been imported stays to the end: no collection of garbage is to look at it again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # 8 % of the time, else
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Numbers that a test draws are the same every time, whichever tests came before.

    Tests marked `gpu` are skipped by name where there is none.
    """
    import torch

    seed = zlib.crc32(item.nodeid.encode())
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():  # `torch.manual_seed` takes a millisecond, elsewhere too
        torch.cuda.manual_seed_all(seed)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture(scope="session", autouse=True)
def one_reader() -> Iterator[None]:
    """Where a test names no number of reading processes, it is one: each takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("clocs.store.readers", "clocs.formats.read"):
            patch.setattr(f"{module}.default_processes", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Nothing that this process writes has to survive one: waiting for the disk takes minutes."""
    from clocs.experiments.ledger import Ledger

    execute = Ledger._execute

    def at_once(ledger: Ledger, statement: str, *values: Any) -> Any:
        return execute(ledger, statement.replace("synchronous=FULL", "synchronous=OFF"), *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(Ledger, "_execute", at_once)
        yield


@pytest.fixture
def reads_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes would take a second each to start."""
    from clocs.store.readers import Readers

    monkeypatch.setattr(
        "clocs.store.prepare.Readers", lambda dataset, *_, **__: Readers(dataset, 1, threads=True)
    )


@pytest.fixture
def own_cache(tmp_path: Path) -> Path:
    """A folder for XDG_CACHE_HOME: empty but for the compiled code, which takes seconds to make."""
    from compiled_code import with_compiled_code

    return with_compiled_code(tmp_path / "cache" / "clocs").parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real recordings; the test is skipped by name where it is absent."""
    root = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("CLOCS_DATA", root.parent / "shared" / "data"))
    if not (folder / "chapman").is_dir():
        pytest.skip("needs the real recordings: set CLOCS_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Forty simulated patients with two recordings each."""
    return clocs.prepare(
        "synthetic", out=tmp_path_factory.mktemp("small") / "store", patients=40, seed=3
    )


@pytest.fixture(scope="session")
def small_frames(small_store: Store) -> Frames:
    """The same, cut into short frames of four leads: a sixth of the work of the usual ones."""
    from clocs.frames.make import make_frames
    from clocs.recording import FrameSpec

    return make_frames(small_store, spec=FrameSpec(5.0, 400))


@pytest.fixture(scope="session")
def usual_frames(small_store: Store) -> Frames:
    """The same in the dataset's own frames, for what depends on them."""
    from clocs.frames.make import make_frames

    return make_frames(small_store)


@pytest.fixture(scope="session")
def few_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The first twelve of these patients, for claims about trainings that need no more."""
    return clocs.prepare(
        "synthetic", out=tmp_path_factory.mktemp("few") / "store", patients=12, seed=3
    )


@pytest.fixture(scope="session")
def few_frames(few_store: Store) -> Frames:
    """The same, cut into such frames."""
    from clocs.frames.make import make_frames
    from clocs.recording import FrameSpec

    return make_frames(few_store, spec=FrameSpec(5.0, 400))


@pytest.fixture(scope="session")
def checkpoint(usual_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """An untrained encoder with fitted batch norm: enough to tell vectors apart."""
    from clocs.pretraining.plan import Plan
    from clocs.pretraining.pretrain import pretrain_frames

    folder = tmp_path_factory.mktemp("random-bn")
    plan = Plan(method="random-bn", seeds=(0,))
    return pretrain_frames(usual_frames, plan, folder, frame_to_use=usual_frames.spec)[0]


FOLLOWS = pytest.StashKey[pytest.Item | None]()  # the next test
KEPT: list[tuple[Browser, ExitStack]] = []  # the browser, from one file to the next


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Remember which test comes next."""
    item.config.stash[FOLLOWS] = nextitem


def asks_for_the_browser(item: pytest.Item) -> bool:
    return "browser" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """The system's Chromium; without one the test is skipped by name, but fails where CI=true.

    It is kept for the next file where that has a use for it, and ended where it has none: while
    playwright runs, nothing else in this thread can start an event loop.
    """
    if not KEPT:
        KEPT.append(start_browser())
    yield KEPT[0][0]
    after = request.config.stash[FOLLOWS]
    if after is None or not any(
        asks_for_the_browser(item) for item in request.session.items if item.path == after.path
    ):
        KEPT.pop()[1].close()


def start_browser() -> tuple[Browser, ExitStack]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = f"needs a browser ({', '.join(BROWSERS)}); on Debian: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    from playwright.sync_api import expect, sync_playwright

    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox refuses root
    expect.set_options(timeout=PATIENCE)
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        started = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox"] if root else [], timeout=PATIENCE
        )
        stack.callback(started.close)
        return started, stack.pop_all()


@pytest.fixture(scope="module")
def usual_page(browser: Browser) -> Iterator[Page]:
    """For one test after the other: a new one takes twice the processor time to show anything.

    It is the browser's first, and stays as long as that.
    """
    if not browser.contexts:
        context = browser.new_context(reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        context.new_page()
    page = browser.contexts[0].pages[0]
    yield page
    page.goto("about:blank")


@pytest.fixture
def new_page(browser: Browser, usual_page: Page) -> Iterator[Callable[..., Page]]:
    """Opens a page without cookies and settings; takes options of `Browser.new_context`."""
    unused = [usual_page]
    made: list[BrowserContext] = []

    def open_page(
        *,
        viewport: ViewportSize | None = None,
        color_scheme: Literal["light", "dark"] = "light",
        **options: Any,
    ) -> Page:
        if options or not unused:
            made.append(browser.new_context(reduced_motion="reduce", **options))
            made[-1].set_default_timeout(PATIENCE)
        page = made[-1].new_page() if options or not unused else unused.pop()
        page.set_viewport_size(viewport or {"width": 1280, "height": 720})
        page.emulate_media(media="null", color_scheme=color_scheme)  # prints as print, too
        return page

    yield open_page
    if not unused:
        for page in usual_page.context.pages:
            if page != usual_page:
                page.close()
        usual_page.context.clear_cookies()
        usual_page.evaluate("() => { localStorage.clear(); window.stop(); }")
    for context in made:
        context.close()


@pytest.fixture(scope="session")
def groups(
    small_frames: Frames, tmp_path_factory: pytest.TempPathFactory
) -> list[list[Checkpoint]]:
    """Two methods of two seeds, and one with another embedding dimension."""
    from clocs.pretraining.plan import Plan
    from clocs.pretraining.pretrain import pretrain_frames
    from clocs.training import Settings

    folder = tmp_path_factory.mktemp("groups")
    quick = Settings(epochs=2, batch_size=64)
    plans = [
        Plan("cmsc", (0, 1), embedding_dim=16, settings=quick),
        Plan("random-bn", (0, 1), embedding_dim=16),
        Plan("random-bn", (0,), embedding_dim=8),
    ]
    return [pretrain_frames(small_frames, p, folder / str(i)) for i, p in enumerate(plans)]
