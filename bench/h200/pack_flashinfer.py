"""Pack a FlashInfer wheel for a machine without network: what paged decode needs, as one tar of about 25 MB.

    python bench/h200/pack_flashinfer.py flashinfer_python-0.7.4-py3-none-any.whl build/peers/flashinfer.tar.gz

Kernels are built there at first use, which needs nvcc. Folders of its C++ sources above 300 KB belong to other
operations and are left out, as are the Python back ends of other operations.
"""

from __future__ import annotations

import argparse
import collections
import io
import tarfile
import zipfile
from pathlib import Path

SOURCES = "flashinfer/data/csrc/"
LARGE_FOLDER = 300_000
TIMED = ("xqa",)  # of the large ones
OTHER_OPERATIONS = ("experimental/", "fused_moe/", "moe_ep/", "gdn_kernels/", "comm/")


def wanted(names: dict[str, int]) -> list[str]:
    """Names of the members to keep, of {name: bytes}."""
    folders: collections.Counter[str] = collections.Counter()
    for name, size in names.items():
        if name.startswith(SOURCES) and "/" in name[len(SOURCES) :]:
            folders[name[len(SOURCES) :].split("/")[0]] += size
    large = tuple(
        f"{SOURCES}{folder}/" for folder, size in folders.items() if size > LARGE_FOLDER and folder not in TIMED
    )

    def keep(name: str) -> bool:
        inner = name.removeprefix("flashinfer/")
        other = inner.startswith(OTHER_OPERATIONS) and not inner.endswith(".py")
        back_end = inner.startswith("cake_") and not inner.endswith(".py")
        return not (name.startswith(large) or other or back_end or name.endswith("/"))

    return [name for name in names if keep(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.wheel) as wheel, tarfile.open(args.out, "w:gz") as out:
        names = {info.filename: info.file_size for info in wheel.infolist()}
        for name in wanted(names):
            member = tarfile.TarInfo(name)
            member.size = names[name]
            member.mode = 0o644
            out.addfile(member, io.BytesIO(wheel.read(name)))
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
