"""An uploaded file as bounded blocks of decompressed bytes, counted while they come out."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import zstandard

from replay.errors import FieldError, TraceError
from replay.traces.options import Limits

Progress = Callable[[int, int], None]
Compression = Literal["none", "gzip", "zstd", "zip"]

BLOCK_BYTES = 4 * 2**20
_READ_BYTES = 2**18
_RATIO_FROM_BYTES = 16 * 2**20
_ZSTD_MAX_WINDOW = 2**27
_ZSTD_CRUMB_BYTES = 1024

_REFUSED_MAGIC = {
    b"PK\x05\x06": "an empty zip archive",
    b"PK\x07\x08": "a part of a split zip archive",
    b"\xfd7zXZ\x00": "an xz file",
    b"BZh": "a bzip2 file",
    b"\x80\x04\x95": "a Python pickle",
    b"SQLite format 3\x00": "an SQLite database",
    b"%PDF": "a PDF",
    b"<!DOCTYPE": "a web page, perhaps an error page in place of the file",
    b"<!doctype": "a web page, perhaps an error page in place of the file",
    b"<html": "a web page, perhaps an error page in place of the file",
    b"<?xml": "XML",
    b"version https://": "a pointer of Git LFS in place of the file (git lfs pull gets it)",
    b"ARROW1": "an Arrow IPC file",
    b"Obj\x01": "an Avro file",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
}
_UTF16 = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32"}


def refusal(code: str, detail: str, rule: str, cure: str, line: int | None = None) -> TraceError:
    """A TraceError about the file as a whole."""
    return TraceError(f"trace.{code}", detail, [FieldError(detail, field="file", line=line, rule=rule, cure=cure)])


def no_progress(done_bytes: int, total_bytes: int) -> None:
    """A progress callback that does nothing."""


@dataclass
class Source:
    """One file. ``blocks()`` may be called again: it starts over."""

    path: Path
    limits: Limits
    progress: Progress = no_progress
    open_ended: bool = False
    """Whether the text, once read to its end, had no line break there."""

    def __post_init__(self) -> None:
        self.size = self.path.stat().st_size
        if self.size == 0:
            raise refusal("empty", "the file is empty", "empty", "upload a file with at least one request")
        with self.path.open("rb") as handle:
            self.magic = handle.read(16)
        self.compression: Compression = _compression(self.magic)
        if self.compression == "none":
            _check_content(self.magic, nested=False)

    @property
    def is_parquet(self) -> bool:
        """Whether the file (not a compressed copy of it) is Parquet."""
        return self.magic.startswith(b"PAR1")

    def blocks(self) -> Iterator[bytes]:
        """Non-empty decompressed blocks of at most about 4 MiB.

        Raises:
            TraceError: truncated or corrupt compression, a limit passed, text in another encoding, a nested archive.
        """
        out = 0
        with self.path.open("rb") as handle:
            for block in self._decompressed(handle):
                if out == 0 and self.compression != "none":
                    _check_content(block[:16], nested=True)
                out += len(block)
                self._check_size(out, handle.tell())
                yield block
                self.progress(min(handle.tell(), self.size), self.size)
        if out == 0:
            raise refusal("empty", "the file holds nothing once decompressed", "empty", "upload a file with requests")

    def _check_size(self, out: int, read: int) -> None:
        if out > self.limits.max_decompressed_bytes:
            raise refusal(
                "too_large",
                f"the file unfolds to more than {self.limits.max_decompressed_bytes:,} bytes",
                "max_decompressed_bytes",
                "split the file by time, or raise limits.max_decompressed_bytes",
            )
        if self.compression != "none" and out > _RATIO_FROM_BYTES and out > self.limits.max_ratio * read:
            raise refusal(
                "ratio",
                f"the file unfolds to more than {self.limits.max_ratio:g} times its size: a decompression bomb",
                "max_ratio",
                "upload it with less compression or plain, or raise limits.max_ratio",
            )

    def _decompressed(self, handle: BinaryIO) -> Iterator[bytes]:
        if self.compression == "gzip":
            return _gunzip(handle)
        if self.compression == "zstd":
            return _unzstd(handle)
        if self.compression == "zip":
            return _unzip(handle)
        return _plain(handle)


def _compression(magic: bytes) -> Compression:
    if magic.startswith(b"\x1f\x8b"):
        return "gzip"
    if magic.startswith(b"PK\x03\x04"):
        return "zip"
    if magic.startswith(b"\x28\xb5\x2f\xfd") or (
        magic[1:4] == b"\x2a\x4d\x18" and magic[:1] and 0x50 <= magic[0] <= 0x5F
    ):
        return "zstd"
    return "none"


def _check_content(head: bytes, *, nested: bool) -> None:
    if nested and (_compression(head) != "none" or head.startswith(b"PAR1")):
        raise refusal(
            "nested", "a compressed file inside a compressed file", "nested_archive", "upload the inner file by itself"
        )
    for magic, name in _REFUSED_MAGIC.items():
        if head.startswith(magic):
            cure = "upload CSV, TSV, JSONL, a JSON array or Parquet; text may be compressed with gzip, zstd or zip"
            raise refusal("container", f"this is {name}, which is not read", "container", cure)
    for magic, name in sorted(_UTF16.items(), key=lambda item: -len(item[0])):
        if head.startswith(magic):
            raise refusal(
                "encoding", f"the text is {name}, not UTF-8", "encoding", "save the file as UTF-8 and upload it again"
            )


def _plain(handle: BinaryIO) -> Iterator[bytes]:
    while block := handle.read(BLOCK_BYTES):
        yield block


def _truncated() -> TraceError:
    return refusal(
        "truncated",
        "the compressed data ends in the middle",
        "truncated",
        "the upload or the export was cut off: make it again",
    )


def _corrupt(error: Exception) -> TraceError:
    return refusal(
        "corrupt", f"the compressed data is damaged ({error})", "corrupt", "make the file again and upload it"
    )


def _gunzip(handle: BinaryIO) -> Iterator[bytes]:
    """All members of a gzip file; zero padding after the last is allowed, anything else is not."""
    member = zlib.decompressobj(wbits=31)
    pending = b""
    while True:
        if not pending:
            pending = handle.read(_READ_BYTES)
        if member.eof:
            pending = pending.lstrip(b"\x00")
            if pending:
                member = zlib.decompressobj(wbits=31)
            elif not (pending := handle.read(_READ_BYTES)):
                return
            continue
        if not pending and not member.unconsumed_tail:
            raise _truncated()
        try:
            block = member.decompress(pending, BLOCK_BYTES)
        except zlib.error as error:
            raise _corrupt(error) from error
        pending = member.unused_data if member.eof else member.unconsumed_tail
        if block:
            yield block


def _unzip(handle: BinaryIO) -> Iterator[bytes]:
    """The one file of a zip archive; its checksum is proved at the end.

    Raises:
        TraceError: no file, several files, a password, a spreadsheet, damage.
    """
    try:
        with zipfile.ZipFile(handle) as archive:
            member = _only_member(archive)
            with archive.open(member) as inside:
                while block := inside.read(BLOCK_BYTES):
                    yield block
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise _corrupt(error) from error


def _only_member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    names = [item.filename for item in archive.infolist()]
    if any(name == "[Content_Types].xml" for name in names):
        cure = "save the sheet as CSV (UTF-8) and upload that"
        raise refusal(
            "container", "this is an Excel workbook or another office file, which is not read", "container", cure
        )
    files = [
        item
        for item in archive.infolist()
        if not item.is_dir() and not item.filename.startswith("__MACOSX/") and not item.filename.endswith(".DS_Store")
    ]
    if len(files) != 1:
        seen = ", ".join(item.filename[:60] for item in files[:5]) or "none"
        cure = "upload one file by itself, or a zip archive that holds one"
        raise refusal("container", f"the zip archive holds {len(files):,} files ({seen}), not one", "container", cure)
    if files[0].flag_bits & 1:
        raise refusal("container", "the file in the zip archive has a password", "container", "upload it without one")
    return files[0]


def _unzstd(handle: BinaryIO) -> Iterator[bytes]:
    """All frames of a zstd file, fed in crumbs: a byte may unfold into 40 kB, and the library bounds no output.

    The library's stream reader is not used: it ends in silence where the data is cut off.
    """
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    frame = context.decompressobj()
    inside = False
    ready: list[bytes] = []
    size = 0
    while crumb := handle.read(_ZSTD_CRUMB_BYTES):
        while crumb:
            try:
                block = frame.decompress(crumb)
            except zstandard.ZstdError as error:
                raise _corrupt(error) from error
            crumb = frame.unused_data if frame.eof else b""
            inside = not frame.eof
            if frame.eof:
                frame = context.decompressobj()
            ready.append(block)
            size += len(block)
        if size >= BLOCK_BYTES:
            yield b"".join(ready)
            ready, size = [], 0
    if size:
        yield b"".join(ready)
    if inside:
        raise _truncated()
