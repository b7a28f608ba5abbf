"""``azr execute`` and ``azr.SandboxPool``: what a line asks, what is refused, what a result looks like; real pipes."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from azr.execution import MAX_INPUTS
from tests.executor.conftest import alive, sandboxes

ROOT = Path(__file__).parents[2]
AZR = [sys.executable, "-m", "azr", "execute"]
# Endless loops aside, no verdict of these tests may depend on how busy the machine is.
CALM = ["--wall", "30", "--memory-mb", "128", "--workers", "2", "--backend", "namespace"]
LOOP = "def f(x):\n    while True: pass"


def request(name: object, program: object, *inputs: object, **more: object) -> str:
    return json.dumps({"id": name, "program": program, "inputs": inputs, **more})


def run(text: str, *options: str) -> list[dict]:
    """The results of lines on standard input."""
    done = subprocess.run([*AZR, "-", *CALM, *options], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("programs run behind namespace") and done.stderr.count("\n") == 1
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_line_has_its_result_in_its_place():
    lines = [
        request("double", "def f(x): return x * 2", "2", "'ab'", "[1]"),
        request({"any": [1]}, "def f(a, b): return a / b", "1, 0", "1, 2"),
        "\ufeff" + request("static_check", "x = 1\nimport random\ndef f(x): return x", "1"),
        request("seeded", "def f(x): return hash(x)", "'a'"), request("no syntax", "def f(:", "1"),
        *[request(number, "def f(x): return x", str(number)) for number in range(150)],
    ]  # fmt: skip
    double, divided, static_check, seeded, unparsed, *rest = run("\n".join(lines))

    assert list(double) == ["id", "status", "outputs", "deterministic", "static_check"]
    assert [output["value"] for output in double["outputs"]] == ["4", "'abab'", "[1, 1]"]
    assert all(set(output) == {"status", "value", "error", "wall_s"} for output in double["outputs"])
    assert [double[key] for key in ("id", "status", "deterministic", "static_check")] == ["double", "ok", True, []]
    assert divided["id"] == {"any": [1]} and divided["status"] == "raised"
    assert [output["error"] for output in divided["outputs"]] == ["ZeroDivisionError", None]
    assert static_check["status"] == "rejected" and static_check["static_check"] == ["line 2: imports random"]
    assert seeded["status"] == "nondeterministic" and seeded["deterministic"] is False
    assert unparsed["status"] == "rejected" and unparsed["static_check"][0].startswith("line 1: ")
    assert [(each["id"], each["outputs"][0]["value"]) for each in rest] == [(i, str(i)) for i in range(150)]


def test_a_line_that_is_no_request_is_refused_with_its_number_and_the_id_that_could_be_read():
    refused = [
        (None, ""), (None, "{broken"), (None, "[1]"), (None, "[" * 100_000), (None, '{"program": "x", "inputs": []}'),
        (1, request(1, ["x"], "1")), (1, '{"id": 1, "program": "x"}'), (1, request(1, "x")), (1, request(1, "x", 2)),
        (1, request(1, "x", *["1"] * (MAX_INPUTS + 1))), (1, request(1, "x", "1", expected="1")),
    ]  # fmt: skip
    results = run("\n".join(line for _, line in refused) + "\n")
    assert [(each["id"], each["line"]) for each in results] == [(id, at) for at, (id, _) in enumerate(refused, 1)]
    empty = {"status": "rejected", "outputs": [], "deterministic": None, "static_check": []}
    assert all(each.items() >= empty.items() and each["error"] for each in results)


def test_options_reach_the_sandbox_and_a_file_is_read_too(tmp_path):
    clock = request(1, "import time\ndef f(): return time.time() > 0", "")
    (answer,) = run(clock, "--no-static-check", "--repeats", "1")
    assert (answer["status"], answer["deterministic"], answer["outputs"][0]["value"]) == ("ok", None, "True")
    (answer,) = run(request(1, LOOP, "1"), "--wall", "0.2")
    assert answer["status"] == "timeout" and answer["outputs"][0]["wall_s"] >= 0.2
    path = tmp_path / "requests.jsonl"
    path.write_text(request(1, "def f(n): return len(bytearray(n))", f"{100 * 2**20}"))
    done = subprocess.run([*AZR, path, *CALM, "--memory-mb", "64"], capture_output=True, check=True)
    assert json.loads(done.stdout)["status"] == "memory"


def test_the_examples_of_the_docs_give_the_printed_results():
    text = (ROOT / "docs" / "execute.md").read_text()
    (command,) = re.findall(r"^echo .*azr execute -$", text, re.MULTILINE)
    (printed,) = re.findall(r"```json\n(.*)\n```", text)
    command = command.replace(".venv/bin/azr", f"{sys.executable} -m azr")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    answer, promised = json.loads(done.stdout), json.loads(printed)
    for output in answer["outputs"] + promised["outputs"]:
        assert output.pop("wall_s") >= 0
    assert answer == promised

    text = (ROOT / "docs" / "executor.md").read_text()
    ((program, printed),) = re.findall(r"```python\n(import asyncio\n.*?)```\n.*?```text\n(.*?)```", text, re.DOTALL)
    light = "import sys, azr\nassert not [name for name in sys.modules if name.startswith('azr.')]\n"
    none = "\nassert not {'torch', 'ray'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", light + program + none], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize("ending", ["close", "interrupt", "leave"])
def test_a_result_comes_while_the_input_is_open_and_no_sandbox_outlives_the_command(ending):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*AZR, "-", *CALM], bufsize=0, **pipes) as process:
        process.stdin.write(request(0, "def f(): return 0", "").encode() + b"\n")
        assert json.loads(process.stdout.readline())["outputs"][0]["value"] == "0"
        below = sandboxes({process.pid})
        assert below
        process.stdin.write(request(1, LOOP if ending == "interrupt" else "def f(x): return x", "1").encode() + b"\n")
        if ending == "interrupt":
            process.send_signal(signal.SIGINT)
        (process.stdout if ending == "leave" else process.stdin).close()
        assert process.wait(25) == {"close": 0, "interrupt": 130, "leave": 141}[ending]
        assert process.stderr.read().splitlines()[1:] == [b"interrupted"] * (ending == "interrupt")
        for _ in range(500):
            if not alive(below):
                return
            time.sleep(0.02)
        raise AssertionError("a sandbox is left")
