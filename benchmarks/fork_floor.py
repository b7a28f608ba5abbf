"""What nothing can beat: a bare interpreter forks, compiles, runs, writes to a pipe and waits. No walls, no protocol.

Started by ``benchmarks.executor`` in an interpreter of its own. Reads JSON lines ``[program, arguments]`` from standard
input and prints seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main(slots: int, modules: list[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    work = [json.loads(line) for line in sys.stdin]
    started = time.perf_counter()
    processes = []
    for slot in range(slots):
        process = os.fork()
        if process == 0:
            for program, arguments in work[slot::slots]:
                fork(program, arguments)
            os._exit(0)
        processes.append(process)
    for process in processes:
        assert os.waitpid(process, 0)[1] == 0
    print(time.perf_counter() - started)


def fork(program: str, arguments: str) -> None:
    """One program of the benchmark's own, with everything that any executor must do."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        space: dict = {}
        exec(compile(program, "program", "exec"), space)
        os.write(writer, repr(eval(f"f({arguments})", space)).encode())
        os._exit(0)
    os.close(writer)
    while os.read(reader, 2**16):
        pass
    os.close(reader)
    os.waitpid(process, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","))
