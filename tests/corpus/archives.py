"""Archives of files given as bytes."""

import io
import tarfile
import zipfile
from collections.abc import Iterable


def archive_bytes(members: Iterable[tuple[str, bytes]], mode: str) -> bytes:
    """Return a tar archive (mode w, w:gz, w:xz), which also has a link to /etc/passwd, or a zip archive (mode zip)."""
    packed = io.BytesIO()
    if mode == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            for name, content in members:
                zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return packed.getvalue()
    with tarfile.open(fileobj=packed, mode=mode) as tarred:  # type: ignore[call-overload]
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tarred.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("un/link.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarred.addfile(link)
    return packed.getvalue()
