"""Downloads: resumed, verified and named when whole, from servers that cut, lie and change."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import clocs
from clocs.cli.main import Root
from clocs.datasets import download as download_module
from clocs.datasets.base import datasets
from clocs.datasets.download import (
    PARTIAL,
    PUBLICATIONS,
    Downloaded,
    PublishedFile,
    _Transfer,
    check_redirection,
    download,
    parse_sums,
    plan_download,
)
from clocs.errors import BusyError, FileError, SettingError, SourceError
from clocs.files import locked
from web_server import Handler, Web, claims, cut, serving, status

ARCHIVE = "mit-bih-arrhythmia-database-1.0.0.zip"
NOISE = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ATTEMPTS": 3, "WAIT_S": 0.01, "LONGEST_WAIT_S": 0.05}.items():
        monkeypatch.setattr(download_module, name, value)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as made:
        yield made


def zip_of(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def get_zip(web: Web, out: Path) -> Downloaded:
    return download("mitbih", out=out, url=web.url)


def get_files(web: Web, out: Path, only: Sequence[str] = ()) -> Downloaded:
    """As of a dataset that is published file by file alone."""
    singly = replace(PUBLICATIONS["mitbih"], archives={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download_module, "PUBLICATIONS", {"mitbih": singly})
        return download("mitbih", out=out, url=web.url, only=only)


@pytest.fixture
def archive(web: Web) -> bytes:
    web.files[ARCHIVE] = zip_of(a=NOISE, b=b"text")
    return web.files[ARCHIVE]


@pytest.fixture
def listed(web: Web) -> dict[str, bytes]:
    files = {"RECORDS": b"100\n", "100.hea": b"100 2 360", "sub/x_108.dat": NOISE}
    web.files |= files
    web.list_sums()
    return files


def test_a_zip_is_fetched_and_named_when_whole(web: Web, archive: bytes, tmp_path: Path) -> None:
    done = get_zip(web, tmp_path / "data")
    assert (tmp_path / "data" / ARCHIVE).read_bytes() == archive
    assert (done.files, done.fetched, done.received) == (1, 1, len(archive))
    assert [path.name for path in (tmp_path / "data").iterdir()] == [ARCHIVE]


def test_a_connection_that_is_cut_is_continued_where_it_ended(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [cut(100_000), cut(70_000)]
    done = get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive
    assert [asked for _, asked in web.requests] == ["", "bytes=100000-", "bytes=170000-"]
    assert done.received == len(archive)


def test_a_later_run_continues_where_the_first_one_gave_up(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [cut(100_000), cut(0), cut(0), cut(0)]
    with pytest.raises(SourceError, match=r"100,000 of .* bytes came\); what is done is kept"):
        get_zip(web, tmp_path)
    assert not (tmp_path / ARCHIVE).exists()
    done = get_zip(web, tmp_path)
    assert web.requests[-1][1] == "bytes=100000-"
    assert done.received == len(archive) - 100_000
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_server_without_ranges_sends_all_of_it_again(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.ranges = False
    web.faults[ARCHIVE] += [cut(100_000)]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_file_that_changes_between_two_attempts_is_never_mixed(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    other = zip_of(a=NOISE[::-1], b=b"text")

    def change(handler: Handler) -> None:
        handler.serve(most=100_000)
        web.files[ARCHIVE] = other

    web.faults[ARCHIVE] += [change]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == other


def test_without_a_tag_a_file_of_unknown_checksum_starts_over(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.tags = False
    web.faults[ARCHIVE] += [cut(100_000)]
    get_zip(web, tmp_path)
    assert [asked for _, asked in web.requests] == ["", ""]
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_file_that_changes_and_has_no_tag_is_noticed_by_its_checksum(
    web: Web, listed: dict[str, bytes], tmp_path: Path
) -> None:
    web.tags = False
    right = web.files["sub/x_108.dat"]
    web.files["sub/x_108.dat"] = bytes(len(right))

    def change(handler: Handler) -> None:
        handler.serve(most=100_000)
        web.files["sub/x_108.dat"] = right

    web.faults["sub/x_108.dat"] += [change]
    get_files(web, tmp_path)
    assert (tmp_path / "sub" / "x_108.dat").read_bytes() == right


def wrong_part(handler: Handler) -> None:
    handler.send_response(206)
    handler.send_header("Content-Range", "bytes 5-9/10")
    handler.send_header("Content-Length", "5")
    handler.end_headers()
    handler.wfile.write(b"wrong")


def test_another_part_than_was_asked_for_is_not_used(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [cut(100_000), wrong_part]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_file_that_has_become_shorter_starts_over(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [cut(100_000), status(416)]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


@pytest.mark.parametrize("more", [1, 10_000])
def test_a_length_that_is_too_large_is_no_whole_file(
    web: Web, archive: bytes, tmp_path: Path, more: int
) -> None:
    for web.tags in (False, True):
        web.faults[ARCHIVE] = [claims(len(archive) + more)] * 50
        with pytest.raises(SourceError, match=r"cannot be downloaded .* what is done is kept"):
            get_zip(web, tmp_path)
        assert not (tmp_path / ARCHIVE).exists()
    assert web.asked()[ARCHIVE] < 20


def test_a_length_that_is_too_small_is_noticed_by_the_content(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [claims(100_000), claims(100_000)]
    with pytest.raises(SourceError, match=r"is not the published file \(it is no whole zip"):
        get_zip(web, tmp_path)
    assert not (tmp_path / ARCHIVE).exists()


def test_without_a_length_the_content_decides(web: Web, archive: bytes, tmp_path: Path) -> None:
    def silent(most: int) -> Callable[[Handler], None]:
        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.wfile.write(archive[:most])

        return answer

    web.faults[ARCHIVE] += [silent(1000), silent(2000)]
    with pytest.raises(SourceError, match=r"is not the published file \(it is no whole zip"):
        get_zip(web, tmp_path)
    web.faults[ARCHIVE] += [silent(len(archive))]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


@pytest.mark.parametrize(
    "words",
    [b"", b"HTTP/1.1 999999\r\n\r\n", b"\xff" * 70_000, b"HTTP/1.1 200 OK\r\nA: b\r\n" * 99],
)
def test_answers_that_are_no_http_are_asked_for_again(
    web: Web, archive: bytes, tmp_path: Path, words: bytes
) -> None:
    def answer(handler: Handler) -> None:
        handler.wfile.write(words)
        handler.close_connection = True

    web.faults[ARCHIVE] += [answer, answer]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_length_beyond_the_disk_is_refused_before_writing(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [claims(10**12)]
    with pytest.raises(FileError, match=r"has room for .* GB, and 1,000.00 GB are to be written"):
        get_zip(web, tmp_path)


def test_a_length_beyond_all_limits_is_refused(web: Web, archive: bytes, tmp_path: Path) -> None:
    web.faults[ARCHIVE] += [claims(10**18)]
    with pytest.raises(SourceError, match="no more than"):
        get_zip(web, tmp_path)


def test_the_room_on_the_disk_is_checked_first(
    web: Web, archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=100 << 20))
    monkeypatch.setattr(download_module, "shutil", tight)
    with pytest.raises(FileError, match=r"has room for 0.04 GB, and 0.07 GB are to be written"):
        get_zip(web, tmp_path)
    assert not web.requests


@pytest.mark.parametrize("code", [429, 503, 500])
def test_a_busy_server_is_asked_again(web: Web, archive: bytes, tmp_path: Path, code: int) -> None:
    web.faults[ARCHIVE] += [status(code, Retry_After="0"), status(code, Retry_After="nonsense")]
    get_zip(web, tmp_path)
    assert web.asked()[ARCHIVE] == 3


def test_a_server_that_stays_busy_is_given_up_with_its_status(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [status(503)] * 9
    with pytest.raises(SourceError, match=r"the server answers 503.*run the same command again"):
        get_zip(web, tmp_path)
    assert web.asked()[ARCHIVE] == 3


def test_retry_after_is_waited_for_but_not_for_ever(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [status(429, Retry_After="86400")]
    before = time.monotonic()
    get_zip(web, tmp_path)
    assert time.monotonic() - before < 3600  # of 86,400


@pytest.mark.parametrize("code", [404, 403, 410])
def test_a_missing_file_is_an_error_at_once(web: Web, tmp_path: Path, code: int) -> None:
    web.faults[ARCHIVE] += [status(code)]
    with pytest.raises(SourceError, match=f"the server answers {code}"):
        get_zip(web, tmp_path)
    assert web.asked()[ARCHIVE] == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//[bad"])
def test_redirections_to_anything_but_web_servers_are_refused(
    web: Web, archive: bytes, tmp_path: Path, target: str
) -> None:
    web.faults[ARCHIVE] += [status(302, Location=target)] * 3
    with pytest.raises(SourceError):
        get_zip(web, tmp_path)
    assert not (tmp_path / ARCHIVE).exists()


def test_a_redirection_to_another_web_server_is_followed(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.files["elsewhere"] = archive
    web.faults[ARCHIVE] += [status(302, Location=f"{web.url}/elsewhere")]
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_redirections_from_https_to_http_are_refused() -> None:
    with pytest.raises(SourceError, match=r"redirects to http://b/, which is not followed"):
        check_redirection("https://a/", "http://b/")
    check_redirection("http://a/", "http://b/")
    check_redirection("http://a/", "https://b/")


def test_redirections_without_end_are_given_up(web: Web, tmp_path: Path) -> None:
    web.faults[ARCHIVE] += [status(302, Location=f"{web.url}/{ARCHIVE}")] * 50
    with pytest.raises(SourceError, match="redirect error"):
        get_zip(web, tmp_path)


def test_a_proxy_of_the_environment_is_used(
    web: Web, archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = "http://nowhere.invalid"
    web.files[f"{elsewhere}/{ARCHIVE}"] = archive  # proxies get whole addresses
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.delenv("no_proxy", raising=False)
    download("mitbih", out=tmp_path, url=elsewhere)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_damaged_zip_is_refused(web: Web, archive: bytes, tmp_path: Path) -> None:
    damaged = bytearray(archive)
    damaged[1000] ^= 1
    web.files[ARCHIVE] = bytes(damaged)
    with pytest.raises(SourceError, match="is not the published file"):
        get_zip(web, tmp_path)
    assert web.asked()[ARCHIVE] == 2


def test_a_zip_bomb_is_not_unpacked(web: Web, tmp_path: Path) -> None:
    web.files[ARCHIVE] = zip_of(a=bytes(70 << 20))
    with pytest.raises(SourceError, match="which no ECG does"):
        get_zip(web, tmp_path)


def test_all_files_of_the_list_are_fetched_and_compared(
    web: Web, listed: dict[str, bytes], tmp_path: Path
) -> None:
    done = get_files(web, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in listed} == listed
    assert (tmp_path / "SHA256SUMS.txt").read_bytes() == web.files["SHA256SUMS.txt"]
    assert (done.files, done.fetched) == (3, 3)
    again = get_files(web, tmp_path)
    assert (again.fetched, again.received) == (0, 0)


def test_a_changed_file_on_disk_is_fetched_again(
    web: Web, listed: dict[str, bytes], tmp_path: Path
) -> None:
    get_files(web, tmp_path)
    (tmp_path / "100.hea").write_bytes(b"100 2 999")
    assert get_files(web, tmp_path).fetched == 1
    assert (tmp_path / "100.hea").read_bytes() == listed["100.hea"]


def test_a_file_that_differs_from_its_sha256_gets_no_name_and_the_others_are_kept(
    web: Web, listed: dict[str, bytes], tmp_path: Path
) -> None:
    web.files["100.hea"] = b"100 2 361"
    with pytest.raises(SourceError, match=r"is not the published file \(its sha256 differs"):
        get_files(web, tmp_path)
    assert not (tmp_path / "100.hea").exists()
    assert (tmp_path / "RECORDS").exists()
    assert (tmp_path / "sub" / "x_108.dat").exists()


def test_files_are_fetched_in_parallel(web: Web, tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def meet(handler: Handler) -> None:
        together.wait(600)
        handler.serve()

    for number in range(3):
        web.files[f"{number}.dat"] = b"x"
        web.faults[f"{number}.dat"] += [meet]
    web.list_sums()
    assert get_files(web, tmp_path).fetched == 3
    assert web.most_flying == 3


def test_only_what_is_chosen_is_fetched(web: Web, listed: dict[str, bytes], tmp_path: Path) -> None:
    assert get_files(web, tmp_path, only=["sub/"]).files == 1
    assert not (tmp_path / "RECORDS").exists()
    with pytest.raises(SettingError, match="lists no file of su"):
        get_files(web, tmp_path, only=["su"])


DIGEST = "0" * 64


@pytest.mark.parametrize(
    "line",
    [
        f"{DIGEST}  ../../etc/passwd", f"{DIGEST}  /etc/passwd", f"{DIGEST}  a/../b",
        f"{DIGEST}  c:\\windows", f"{DIGEST}  a\\b", f"{DIGEST}  ..", f"{DIGEST}  a//b",
        f"{DIGEST}  a/", f"{DIGEST}  {'x' * 300}", f"{DIGEST}  a\x00b", "<html>", "0123  a",
        f"{'1' * 64}  good",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_and_other_texts_are_refused(
    web: Web, tmp_path: Path, line: str
) -> None:
    web.files["SHA256SUMS.txt"] = f"{DIGEST}  good\n{line}\n".encode()
    with pytest.raises(SourceError):
        get_files(web, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_lists_as_physionet_and_sha256sum_write_them_are_understood() -> None:
    text = f"{DIGEST} *./a/b.dat\n\n{DIGEST.upper()}  c d.txt\n{DIGEST} e\n{DIGEST} .partial/x\n"
    found = parse_sums(text.encode(), name="list")
    assert found == {"a/b.dat": DIGEST, "c d.txt": DIGEST, "e": DIGEST}


def test_an_endless_list_is_refused(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "MAX_TABLE_BYTES", 1000)
    web.files["SHA256SUMS.txt"] = bytes(2000)
    with pytest.raises(SourceError, match="no more than 1,000 were expected"):
        get_files(web, tmp_path)


def test_names_with_spaces_are_asked_for_correctly(web: Web, tmp_path: Path) -> None:
    web.files["a b.txt"] = b"x"
    web.list_sums()
    web.files["a%20b.txt"] = web.files.pop("a b.txt")  # as it is asked for
    get_files(web, tmp_path)
    assert (tmp_path / "a b.txt").read_bytes() == b"x"


def test_two_downloads_into_one_folder_do_not_meet(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    with locked(tmp_path / PARTIAL), pytest.raises(BusyError, match="is being written"):
        get_zip(web, tmp_path)


def test_a_download_that_is_stopped_keeps_what_it_has(web: Web, tmp_path: Path) -> None:
    web.files["a"] = bytes(5 << 20)
    stop = threading.Event()
    (tmp_path / PARTIAL).mkdir()
    file = _Transfer(
        PublishedFile("a", f"{web.url}/a"), tmp_path / "a", tmp_path / PARTIAL,
        received=lambda count: stop.set(), stop=stop,
    )  # fmt: skip
    with pytest.raises(SourceError, match="was stopped"):
        file.run()
    assert not (tmp_path / "a").exists()
    assert sum(path.stat().st_size for path in (tmp_path / PARTIAL).glob("*.data")) > 0


def test_an_interrupted_command_says_that_it_can_be_continued(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(handler: Handler) -> None:
        handler.serve(most=280_000)
        begun.set()
        over.wait(600)

    web.faults[ARCHIVE] += [slow]
    words = ["download", "mitbih", "--url", web.url, "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "clocs", *words], stderr=subprocess.PIPE, text=True
    )
    assert begun.wait(600)
    while not any(path.stat().st_size for path in tmp_path.glob(f"{PARTIAL}/*.data")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    over.set()
    assert process.returncode == 130
    assert "interrupted; what is done is kept; run the same command again" in said
    get_zip(web, tmp_path)
    assert web.requests[-1][1].startswith("bytes=")
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_a_damaged_note_about_a_partial_file_starts_it_over(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.faults[ARCHIVE] += [cut(100_000), cut(0), cut(0), cut(0)]
    with pytest.raises(SourceError):
        get_zip(web, tmp_path)
    for note in (tmp_path / PARTIAL).glob("*.json"):
        note.write_bytes(b"\xff\x00")
    get_zip(web, tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == archive


def test_addresses_and_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"`url` is 'file:///etc'; it must begin with https"):
        download("mitbih", out=tmp_path, url="file:///etc")
    with pytest.raises(SettingError, match="no published dataset 'folder'; choose one of card"):
        download("folder", out=tmp_path)
    with pytest.raises(SettingError, match="chapman is not published file by file"):
        plan_download("chapman", only=["a"])


def test_every_named_dataset_with_files_is_published_somewhere() -> None:
    others = {"synthetic", "folder"}
    assert set(PUBLICATIONS) == {name for name in datasets() if name not in others}
    for one in PUBLICATIONS.values():
        addresses = [one.page, one.folder, *one.archives.values()]
        assert all(url.startswith("https://") for url in addresses if url)
        assert one.archives or one.folder.endswith("/")
        assert one.citation
        assert one.title
    assert PUBLICATIONS["cardiology"].license == ""


def test_the_command_lists_all_and_shows_what_to_run_next() -> None:
    words = CliRunner().invoke(Root(), ["download"]).output
    for name in PUBLICATIONS:
        assert f"clocs download {name}" in words
    facts = json.loads(CliRunner().invoke(Root(), ["download", "--json"]).output)
    assert [one["name"] for one in facts] == list(PUBLICATIONS)


def test_a_dry_run_writes_nothing(web: Web, listed: dict[str, bytes], tmp_path: Path) -> None:
    target = tmp_path / "data"
    words = ["download", "mitbih", "--only", "100.hea", "--url", web.url]
    done = CliRunner().invoke(Root(), [*words, f"--out={target}", "--dry-run"])
    assert "1 files would go into" in " ".join(done.output.split())
    assert not target.exists()
    assert set(web.asked()) == {"SHA256SUMS.txt"}


def test_a_downloaded_dataset_can_be_prepared(web: Web, tmp_path: Path) -> None:
    from published_records import write_record, zipped

    write_record(tmp_path / "made", "00001_hr")
    header = "ecg_id,patient_id,age,sex,recording_date,scp_codes,strat_fold\n"
    row = "1,7,50,0,1990-01-01 00:00:00,\"{'NORM': 100.0}\",10\n"
    (tmp_path / "made" / "ptbxl_database.csv").write_text(header + row)
    (name,) = PUBLICATIONS["ptbxl"].archives
    web.files[name] = zipped(tmp_path / "made").read_bytes()
    shutil.rmtree(tmp_path / "made")
    target = tmp_path / "data"
    assert download("ptbxl", out=target, url=web.url).files == 1
    store = clocs.prepare("ptbxl", target, out=tmp_path / "store")
    assert store.table["labels"].to_list() == [["NORM"]]


def test_only_downloads_import_what_the_web_needs() -> None:
    script = (
        "import sys; from clocs.datasets.base import datasets; datasets(); "
        "print('http.client' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
