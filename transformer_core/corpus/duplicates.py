"""Which of very many things came before, in bounded memory."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16
_PARTITIONS = 64
_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
_RECORD = np.dtype([*_DIGEST.descr, ("number", "<u8")])


class Repeats:
    """Digests go to partitions on disk, by their value; each partition is then sorted alone, so that it need not hold more than its share.

    Args:
        folder: for the partitions; it is made, and gone when all is found.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._paths = [folder / str(number) for number in range(_PARTITIONS)]
        self._files = [path.open("wb") for path in self._paths]
        self._count = 0

    def add(self, digests: bytes) -> None:
        """Add things by their digests of `DIGEST_BYTES` each, end to end; they are numbered from 0 in the order of adding."""
        read = np.frombuffer(digests, _DIGEST)
        records = np.empty(len(read), _RECORD)
        records["high"], records["low"] = read["high"], read["low"]
        records["number"] = np.arange(self._count, self._count + len(read))
        self._count += len(read)
        partition = read["low"] % _PARTITIONS
        ordered = records[np.argsort(partition, kind="stable")]
        ends = np.bincount(partition.astype(np.int64), minlength=_PARTITIONS).cumsum()
        for file, part in zip(self._files, np.split(ordered, ends[:-1]), strict=True):
            file.write(part.tobytes())

    def found(self) -> NDArray[np.bool_]:
        """(things,) whether a thing equal to one before it; nothing can be added any more, and the partitions are gone."""
        repeated = np.zeros(self._count, dtype=np.bool_)
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            records = np.fromfile(path, _RECORD)
            path.unlink()
            records = records[np.lexsort((records["number"], records["low"], records["high"]))]
            same = (records["high"][1:] == records["high"][:-1]) & (records["low"][1:] == records["low"][:-1])
            repeated[records["number"][1:][same]] = True
        self._folder.rmdir()
        return repeated
