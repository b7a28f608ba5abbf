"""Tasks of one turn of the package `verifiers` as rows, with their own rewards. docs/coming_from.md has the commands.

verifiers and the engine here need different versions of the same packages. So the Python that VERIFIERS_PYTHON names
writes the rows and scores the answers, and a run has only `reward`, which asks it. VERIFIERS_TASKSET is the JSON of the
taskset's config.
"""

import asyncio
import inspect
import json
import os
import subprocess
import sys


def reward(completions, task, **kwargs):
    """The sum of a task's weighted rewards for one completion, in the form of TRL."""
    print(json.dumps([task[0], completions[0][0]["content"]]), file=scorer.stdin, flush=True)
    said = json.loads(scorer.stdout.readline())
    if isinstance(said, str):
        raise RuntimeError(said)
    return [said]


def start_scorer():
    """Return a process that answers lines of [task, response] with rewards. It has loaded the taskset."""
    command = [os.environ["VERIFIERS_PYTHON"], __file__, "score"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{command[0]} does not load the taskset of VERIFIERS_TASKSET")
    return process


def load(fields):
    """The tasks of a taskset, given its config. Exits where an answer alone does not decide the reward."""
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    taskset = load_taskset(taskset_config_type(fields["id"]).model_validate(fields))
    tasks = list(taskset)
    for task in tasks:
        hooks = (*task.hooks("reward"), *task.hooks("metric"))
        if task.data.prompt is None or any("runtime" in inspect.signature(each).parameters for each in hooks):
            sys.exit(f"task {task.data.idx} of {fields['id']} has no prompt, or is scored in its sandbox")
        if taskset.toolsets(taskset.config) or task.toolsets(task.config):
            sys.exit(f"task {task.data.idx} of {fields['id']} has tools, which would need more than one turn")
    return tasks


def row(task):
    """The row of a task: its system prompt and its prompt as turns, and its number, by which `reward` finds it."""
    prompt, system = task.data.prompt, task.data.system_prompt
    first = [("system", system)] if system else []
    turns = [("user", prompt)] if isinstance(prompt, str) else [(each.role, each.content) for each in prompt]
    said = [{"role": role, "content": content} for role, content in first + turns]
    return {"prompt": said, "task": task.data.idx}


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


def answer(tasks, line):
    """The reward of a line of [task, response], or what its functions raised."""
    index, response = json.loads(line)
    try:
        return asyncio.run(score(tasks[index], response))
    except (Exception, SystemExit) as error:
        return repr(error)


if __name__ != "__main__":
    scorer = start_scorer()
else:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a taskset prints is not a row and no reward
    loaded = load(json.loads(os.environ["VERIFIERS_TASKSET"]))
    if sys.argv[1:] == ["score"]:
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(loaded, line)), file=out, flush=True)
    else:
        for each in loaded:
            print(json.dumps(row(each)), file=out)
