"""The process behind `guard.py`: files from standard input, statuses and pixels to standard output, one by one.

Started with the folders of the caller's `sys.path` as arguments. The first line that it reads is the order, as JSON.
"""

import json
import resource
import signal
import struct
import sys
from pathlib import Path

sys.path[:] = [str(Path(__file__).parent), *sys.argv[1:]]

import imaging  # noqa: E402  # from beside this file, and what it needs from where the caller has it


def main() -> None:
    """Until the input ends, or a picture takes too long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which closes the input
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    order = json.loads(source.readline())
    recipe = imaging.Recipe.from_json(order["recipe"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is no reason to write a gigabyte to disk
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + order["memory"], hard))
    while head := source.read(16):
        length, max_pixels = struct.unpack("<qq", head)
        file = source.read(length)
        signal.setitimer(signal.ITIMER_PROF, order["cpu_seconds"])  # of processor time, then SIGPROF ends this
        try:
            pixels = imaging.preprocess(file, recipe, max_pixels=max_pixels)
        except imaging.ImageError as error:
            sink.write(int(error.status).to_bytes(4, "little"))
        else:
            sink.write(bytes(4))
            sink.write(pixels.tobytes())
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.flush()


def _address_space() -> int:
    """Bytes of address space in use; proc(5), statm, counts pages."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
