"""The process of a user's environment, without what the run needs beside it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from azr.graders.own import SCORE, checked, load_grader
from azr.isolated import InvalidReply, serve
from azr.text import brief

_OWN = ("reset", "step", "reward", "close")
"""Methods that are not tools."""


def load(arguments: Sequence[str]) -> Callable[[Any], Any]:
    """Return the answer of an environment's process; with ``describe``, to any message what the class has."""
    name, *describes = arguments
    made: Any = load_grader(name)
    steps, rewards = hasattr(made, "step"), hasattr(made, "reward")
    pays = steps and "tuple" in str(inspect.signature(made.step).return_annotation).lower()
    if describes:
        import torch  # noqa: F401 -- get_json_schema would, within the time limit of an answer
        from transformers.utils import get_json_schema  # only here: it takes seconds to load

        public = {name: getattr(made, name) for name in dir(made) if name not in _OWN and name[0] != "_"}
        tools = [name for name, each in public.items() if callable(each) and inspect.isroutine(each) and not steps]
        schemas = lambda made: [get_json_schema(getattr(made, name)) for name in tools]  # noqa: E731
        said = {"steps": steps, "rewards": rewards or pays, "sums": pays and not rewards}
        return lambda _: said | {"tools": schemas(made()) if tools else []}
    talks: dict[int, Any] = {}
    loop = asyncio.new_event_loop()

    def finished(said: Any) -> Any:
        return loop.run_until_complete(said) if inspect.isawaitable(said) else said

    def text_of(said: Any) -> str | None:
        if said is not None and not isinstance(said, str):
            raise InvalidReply(f"{brief(said)}, which is neither text nor None; `-> tuple` pays for turns")
        return said

    def answer(asked: Mapping[str, Any]) -> Any:
        number, what = asked["conversation"], asked["do"]
        if what == "reset":
            environment = talks[number] = made()
            parameters = inspect.signature(environment.reset).parameters.values()
            by_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
            given = [asked["row"]] if parameters else []
            return text_of(finished(environment.reset(**asked["row"]) if by_name else environment.reset(*given)))
        if what == "close":
            environment = talks.pop(number, None)  # it is gone if the process was ended meanwhile
            return finished(environment.close()) if hasattr(environment, "close") else None
        if number not in talks:
            raise RuntimeError("the process with this conversation was ended")
        environment = talks[number]
        if what == "step":
            said = finished(environment.step(asked["text"]))
            if pays and not (isinstance(said, tuple) and len(said) == 2):
                raise InvalidReply(f"{brief(said)}, which is not a pair of a reply and a reward")
            reply, paid = said if pays else (said, None)
            return text_of(reply), checked(paid, "environment")[SCORE]
        if what == "reward":
            return checked(finished(environment.reward()), "environment")
        try:
            return [str(finished(getattr(environment, asked["name"])(**asked["arguments"]))), False]
        except (Exception, SystemExit) as error:  # the model called it so, and learns of it
            return [f"{type(error).__name__}: {error}", True]

    return answer


if __name__ == "__main__":
    serve(load)
