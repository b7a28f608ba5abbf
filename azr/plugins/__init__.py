"""Plug-ins: code of the user's own that adds kinds of self-play, rewards, bonuses and estimators by name.

A module states ``kinds``, a list of `azr.tasks.base.TaskKind`; ``proposer_rewards``, ``bonuses`` and ``estimators``,
functions by name. An installed package may offer each by an entry point instead. What they add is used as what is here;
but what they do with a model's text is done in processes of their own. docs/extending.md is the way there.
"""

from azr.plugins.loading import load_for, load_plugins, plugin_processes

__all__ = ["load_for", "load_plugins", "plugin_processes"]
