# SPDX-License-Identifier: BSD-3-Clause
"""Finishes a wheel that pip made: the tag of glibc 2.28, licences and an SBOM of what is inside, reproducible bytes.

tools/wheel.sh calls it, with SOURCE_DATE_EPOCH set.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import struct
import time
import uuid
import zipfile
import zlib
from pathlib import Path

try:
    import zopfli.zlib
except ImportError:
    zopfli = None

LIST = Path(__file__).resolve().parent.parent / "sources.txt"
GLIBC = "manylinux_2_28"

# Of zip: names are UTF-8; attributes are those of Unix.
UTF8, UNIX = 1 << 11, 3

# The libraries inside the wheel. By the name in tools/sources.txt: their own name, their licence, and its file.
INSIDE = {
    "pmdk": ("PMDK", "BSD-3-Clause", "LICENSE"),
    "libisal": ("ISA-L", "BSD-3-Clause", "LICENSE"),
    "jansson": ("jansson", "MIT", "LICENSE"),
    "xxhash": ("xxHash", "BSD-2-Clause", "LICENSE"),
}


def source_files(name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the version of a source, and the names and SHA-256 of its files."""
    rows = [line.split() for line in LIST.read_text().splitlines() if line.startswith(f"{name} ")]
    return rows[0][1], [(row[2], row[3]) for row in rows]


def licences(sources: Path) -> dict[str, bytes]:
    """Return the licences of what is inside, by their path in .dist-info/licenses."""
    return {
        f"{name}/{file}": (sources / source / file).read_bytes() for source, (name, _, file) in sorted(INSIDE.items())
    }


def sbom(name: str, version: str, moment: int) -> bytes:
    """Return what is inside as CycloneDX 1.6."""
    components = []
    for source, (title, licence, _) in sorted(INSIDE.items()):
        number, files = source_files(source)
        components.append(
            {
                "type": "library",
                "bom-ref": f"{source}@{number}",
                "name": title,
                "version": number,
                "licenses": [{"license": {"id": licence}}],
                "purl": f"pkg:deb/debian/{source}@{number}?arch=source",
                "externalReferences": [
                    {
                        "type": "source-distribution",
                        "url": file,
                        "hashes": [{"alg": "SHA-256", "content": digest}],
                    }
                    for file, digest in files
                ],
            }
        )
    itself = {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)),
            "component": {**itself, "licenses": [{"license": {"id": "BSD-3-Clause"}}]},
        },
        "components": components,
        "dependencies": [
            {"ref": name, "dependsOn": [component["bom-ref"] for component in components]},
            *({"ref": component["bom-ref"]} for component in components),
        ],
    }
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))}"
    return json.dumps(document, indent=2).encode() + b"\n"


def metadata_with(text: str, files: list[str]) -> str:
    """Return METADATA that names the licences of all that is inside."""
    head, blank, body = text.partition("\n\n")
    expression = " AND ".join(sorted({"BSD-3-Clause", *(licence for _, licence, _ in INSIDE.values())}))
    lines = [line for line in head.splitlines() if not line.startswith(("License:", "License-Expression:"))]
    lines = [re.sub(r"^Metadata-Version: .*", "Metadata-Version: 2.4", line) for line in lines]
    lines += [f"License-Expression: {expression}", *(f"License-File: {file}" for file in files)]
    return "\n".join(lines) + (blank or "\n") + body


def record_of(contents: dict[str, bytes], place: str) -> bytes:
    """Return RECORD, which lists every file with its digest."""
    lines = []
    for path, data in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{place},,"]).encode() + b"\n"


def deflated(data: bytes) -> bytes:
    """Compress data for zip. zopfli, which tools/wheel.sh installs, is some 4 % better than zlib."""
    if zopfli is None:
        return zlib.compress(data, 9)[2:-4]
    return zopfli.zlib.compress(data, numiterations=5)[2:-4]


def write(path: Path, contents: dict[str, bytes], programs: set[str], moment: int) -> None:
    """Write the wheel: the same contents give the same bytes. Python's zipfile can't use zopfli."""
    year, month, day, hour, minute, second = time.gmtime(max(moment, 315532800))[:6]  # zip begins in 1980
    stamp = hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
    order = sorted(contents, key=lambda name: (".dist-info/" in name, name))  # metadata last, as PEP 427 advises
    places = b""
    with path.open("wb") as file:
        for name in order:
            data, place, text = deflated(contents[name]), file.tell(), name.encode()
            mode = 0o100755 if name in programs else 0o100644
            sizes = zlib.crc32(contents[name]), len(data), len(contents[name]), len(text), 0
            common = struct.pack("<5H3L2H", 20, UTF8, zipfile.ZIP_DEFLATED, *stamp, *sizes)
            file.write(b"PK\3\4" + common + text + data)
            rest = struct.pack("<3H2L", 0, 0, 0, mode << 16, place)
            places += b"PK\1\2" + struct.pack("<H", UNIX << 8 | 20) + common + rest + text
        end = struct.pack("<4H2LH", 0, 0, len(order), len(order), len(places), file.tell(), 0)
        file.write(places + b"PK\5\6" + end)
    with zipfile.ZipFile(path) as archive:
        if {name: archive.read(name) for name in archive.namelist()} != contents:
            raise SystemExit(f"{path}: zipfile reads other contents than were written")


def finish(wheel: Path, sources: Path, out: Path, moment: int) -> Path:
    """Write the finished wheel into `out`."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        contents = {entry.filename: archive.read(entry) for entry in entries}
    programs = {entry.filename for entry in entries if entry.external_attr >> 16 & 0o111}
    about = next(name.removesuffix("WHEEL") for name in contents if name.endswith(".dist-info/WHEEL"))
    name, version = about.removesuffix(".dist-info/").split("-")

    tag = wheel.stem.split("-", 2)[2].replace("-linux_", f"-{GLIBC}_")
    for path, data in licences(sources).items():
        contents[f"{about}licenses/{path}"] = data
    contents[f"{about}sboms/{name}.cdx.json"] = sbom(name, version, moment)
    metadata = contents[f"{about}METADATA"].decode()
    contents[f"{about}METADATA"] = metadata_with(metadata, sorted(licences(sources))).encode()
    contents[f"{about}WHEEL"] = contents[f"{about}WHEEL"].replace(b"-linux_", f"-{GLIBC}_".encode())
    del contents[f"{about}RECORD"]
    contents[f"{about}RECORD"] = record_of(contents, f"{about}RECORD")

    out.mkdir(parents=True, exist_ok=True)
    made = out / f"{name}-{version}-{tag}.whl"
    write(made, contents, programs, moment)
    return made


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("wheel", type=Path)
    options = parser.parse_args()
    print(finish(options.wheel, options.sources, options.out, int(os.environ["SOURCE_DATE_EPOCH"])))


if __name__ == "__main__":
    main()
