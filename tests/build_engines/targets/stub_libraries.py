"""Makes libraries that let the real bindings of TensorRT be imported on a machine without TensorRT.

    python stub_libraries.py BINDINGS FOLDER

BINDINGS is where `tensorrt_cu13_bindings` was unpacked (`pip install --target`). What they need from `libnvinfer`,
`libnvinfer_plugin` and `libnvonnxparser` is read from the bindings themselves and defined to return a null pointer:
enumerations, classes and signatures are then the real ones, and whatever would compute fails as on a broken machine.
Exits with 77, which means "skip", where there is no C compiler.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

SKIP = 77
_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")


def main(bindings: Path, folder: Path) -> int:
    """Builds the three libraries into `folder`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        print("skipped: the stub libraries for TensorRT's bindings need a C compiler")
        return SKIP
    (extension,) = (bindings / "tensorrt_bindings").glob("tensorrt*.so")
    content = extension.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stubs.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in functions(content)))
    for library in _LIBRARIES:
        name = soname(content, library)
        subprocess.run(
            [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)], check=True
        )
    return 0


def functions(content: bytes) -> list[str]:
    """Names that the bindings expect of TensorRT's libraries."""
    found = re.findall(
        rb"\0(create\w+_INTERNAL|get\w*PluginRegistry|getNvOnnxParserVersion|initLibNvInferPlugins)(?=\0)", content
    )
    return sorted({name.decode() for name in found})


def soname(content: bytes, library: str) -> str:
    """The file that the bindings load for a library, such as `libnvinfer.so.11`."""
    found = re.search(rb"\0(lib%s\.so\.\d+)\0" % library.encode(), content)
    assert found is not None, f"the bindings do not need {library}"
    return found[1].decode()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
