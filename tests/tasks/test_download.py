"""Downloads, from a server of our own."""

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import pytest
from data_files import write_cifar10, write_set, write_tiny_imagenet
from typer.testing import CliRunner

from secureafl.cli import data as command
from secureafl.cli.app import app
from secureafl.core.errors import DataError
from secureafl.tasks import TASKS, Cifar10
from secureafl.tasks import sources as sources_module
from secureafl.tasks.download import download
from secureafl.tasks.sources import SOURCES, Download, Source, as_published


class Site:
    """A web site whose files are bytes; `cut` ends an answer early, `ranges` lets one resume."""

    def __init__(self):
        self.files, self.asked, self.cut, self.ranges = {}, [], None, True
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                site.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        content, wanted = self.files.get(request.path[1:]), request.headers.get("Range")
        self.asked.append(wanted)
        if content is None:
            request.send_error(404)
            return
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if wanted and self.ranges and start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        request.wfile.write(content[start:][: self.cut])

    def offer(self, name, content, md5=None):
        self.files[name] = content
        url = f"http://127.0.0.1:{self.server.server_port}/{name}"
        return Download(url, md5 or hashlib.md5(content).hexdigest())


@pytest.fixture
def site():
    made = Site()
    yield made
    made.server.shutdown()
    made.server.server_close()


def tar_of(folder):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return out.getvalue()


@pytest.fixture
def cifar(site, tmp_path):
    folder = write_cifar10(tmp_path / "theirs")
    names = [path.name for path in folder.iterdir()]
    md5 = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in names}
    archive = site.offer("cifar-10-binary.tar.gz", tar_of(folder))
    return Source("http://home", folder.name, (archive,), md5)


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_download_goes_on_and_ends_with_the_data_set(site, cifar, tmp_path, ranges):
    home, size = tmp_path / "mine", len(site.files["cifar-10-binary.tar.gz"])
    site.cut, site.ranges = size // 3, ranges
    with pytest.raises(DataError, match="goes on where it stopped"):
        list(download(cifar, home))
    assert not (home / cifar.folder).exists()
    site.cut = None
    steps = list(download(cifar, home))
    assert site.asked[1] == f"bytes={size // 3}-"
    assert steps[0].done == (size // 3 if ranges else 0)
    assert steps[-1][1:] == (size, size)
    assert as_published(cifar, home / cifar.folder)
    assert [path.name for path in home.iterdir()] == [cifar.folder]  # nothing else is left
    assert len(Cifar10(str(home)).load().train_labels) == 100


def test_part_that_is_whole_already_is_only_checked(site, cifar, tmp_path):
    name = cifar.downloads[0].name
    (tmp_path / f"{name}.part").write_bytes(site.files[name])
    list(download(cifar, tmp_path))
    assert (tmp_path / cifar.folder).is_dir()


def test_file_with_another_checksum_is_not_kept(site, tmp_path):
    source = Source("", "set", (site.offer("set.zip", b"anything", md5="0" * 32),))
    with pytest.raises(DataError, match="another checksum"):
        list(download(source, tmp_path))
    assert not list(tmp_path.iterdir())


def test_archive_that_is_none_or_leaves_its_folder_writes_nothing_there(site, tmp_path):
    home = tmp_path / "home"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../escaped"))
    for name, content in (("a.tar.gz", out.getvalue()), ("b.tar.gz", b"no"), ("c.zip", b"no")):
        with pytest.raises(DataError, match="cannot be unpacked"):
            list(download(Source("", "set", (site.offer(name, content),)), home))
    assert not (tmp_path / "escaped").exists()
    assert not (home / "escaped").exists()


def test_zip_is_unpacked(site, tmp_path):
    folder, out = write_tiny_imagenet(tmp_path / "theirs"), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.write(folder / "wnids.txt", "tiny-imagenet-200/wnids.txt")
    source = Source("", folder.name, (site.offer("tiny-imagenet-200.zip", out.getvalue()),))
    list(download(source, tmp_path / "mine"))
    kept = tmp_path / "mine" / folder.name / "wnids.txt"
    assert kept.read_text() == (folder / "wnids.txt").read_text()


def test_absent_file_and_absent_site_are_told_in_one_line(site, cifar, tmp_path):
    site.files.clear()
    with pytest.raises(DataError, match="the site says 404"):
        list(download(cifar, tmp_path))
    nowhere = Download("http://127.0.0.1:1/x.zip", "")
    with pytest.raises(DataError, match="cannot be downloaded"):
        list(download(Source("", "x", (nowhere,)), tmp_path))


def test_data_set_that_is_there_is_not_replaced(site, cifar, tmp_path):
    (tmp_path / cifar.folder).mkdir()
    with pytest.raises(DataError, match="move it away"):
        list(download(cifar, tmp_path))
    assert not site.asked


def invoke(*words):
    return CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "200"})


def test_command_fetches_a_data_set_once_and_shows_it(site, cifar, tmp_path, monkeypatch):
    monkeypatch.setitem(sources_module.SOURCES, "cifar10", cifar)
    home = tmp_path / "mine"
    home.mkdir()
    missing = invoke("cifar10", "--data-dir", home)
    assert "there is no cifar-10-batches-bin" in missing.stdout
    assert "secureafl data cifar10 --download" in missing.stdout
    for _ in range(2):
        done = invoke("cifar10", "--download", "--data-dir", home)
        assert done.exit_code == 0, done.output
        assert "100 training, 20 test samples" in done.stdout
        assert "as published" in done.stdout
    assert len(site.asked) == 1
    (home / cifar.folder / "test_batch.bin").write_bytes(
        (home / cifar.folder / "data_batch_1.bin").read_bytes()
    )
    assert "other than published" in invoke("cifar10", "--data-dir", home).stdout


def test_command_fetches_files_that_come_one_by_one(site, tmp_path, monkeypatch):
    write_set(tmp_path / "theirs")
    names = [path.name for path in (tmp_path / "theirs").iterdir()]
    contents = {name: (tmp_path / "theirs" / name).read_bytes() for name in names}
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    offers = tuple(site.offer(name, content) for name, content in contents.items())
    source = Source("http://home", "fashion-mnist", offers, md5)
    monkeypatch.setitem(sources_module.SOURCES, "fashion_mnist", source)
    (tmp_path / "mine").mkdir()
    done = invoke("fashion_mnist", "--download", "--data-dir", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert "30 training, 10 test samples" in done.stdout
    assert "as published" in done.stdout


def test_what_cannot_be_downloaded_is_told_with_another_way(tmp_path):
    done = invoke("udacity", "--download", "--data-dir", tmp_path)
    assert isinstance(done.exception, DataError)
    assert "driving_log.csv" in str(done.exception)


def test_every_task_has_a_source_and_a_name_for_the_command():
    assert set(SOURCES) == set(TASKS) == {name.value for name in command.Named}
