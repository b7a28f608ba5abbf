"""Tasks of one turn of the package `verifiers` as rows, with their own rewards. docs/coming_from.md has the commands.

verifiers and the engine here need different versions of the same packages. So the Python that VERIFIERS_PYTHON names
writes the rows and scores the answers, and a run has only `reward`, which asks it.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from functools import cache


def reward(completions, taskset, task, **kwargs):
    """The sum of a task's weighted rewards for one completion, in the form of TRL."""
    print(json.dumps([taskset[0], task[0], completions[0][0]["content"]]), file=scorer.stdin, flush=True)
    return [json.loads(scorer.stdout.readline())]


def start_scorer():
    """Return a process that answers lines of [taskset, task, response] with rewards. It has imported verifiers."""
    command = [os.environ["VERIFIERS_PYTHON"], __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{command[0]} does not import verifiers")
    return process


@cache
def load(config):
    """The tasks of a taskset, given the JSON of its config. Exits where an answer alone does not decide the reward."""
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    fields = json.loads(config)
    taskset = load_taskset(taskset_config_type(fields["id"]).model_validate(fields))
    tasks = list(taskset)
    for task in tasks:
        hooks = (*task.hooks("reward"), *task.hooks("metric"))
        if task.data.prompt is None or any("runtime" in inspect.signature(each).parameters for each in hooks):
            sys.exit(f"task {task.data.idx} of {fields['id']} has no prompt, or is scored in its sandbox")
        if taskset.toolsets(taskset.config) or task.toolsets(task.config):
            sys.exit(f"task {task.data.idx} of {fields['id']} has tools, which would need more than one turn")
    return tasks


def row(config, task):
    """The row of a task: its system prompt and its prompt as turns, and what `reward` needs to find it again."""
    prompt, system = task.data.prompt, task.data.system_prompt
    first = [("system", system)] if system else []
    turns = [("user", prompt)] if isinstance(prompt, str) else [(each.role, each.content) for each in prompt]
    said = [{"role": role, "content": content} for role, content in first + turns]
    return {"prompt": said, "taskset": json.loads(config), "task": task.data.idx}


async def score(task, response):
    """The reward of a response, by the task's own functions."""
    import verifiers.v1 as vf
    from verifiers.v1.state import state_cls

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[vf.MessageNode(message={"role": "assistant", "content": response}, sampled=True)],
    )
    await task.score(trace)
    return trace.reward


if __name__ != "__main__":
    scorer = start_scorer()
elif len(sys.argv) == 2:
    for each in load(sys.argv[1]):
        print(json.dumps(row(sys.argv[1], each)))
else:
    import verifiers.v1  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        wanted, index, response = json.loads(line)
        print(asyncio.run(score(load(json.dumps(wanted))[index], response)), flush=True)
