"""What ``azr`` can do: one file per command, each with ``main(argv) -> exit code``, loaded only when asked for.

``azr.cli`` holds the list of commands and turns a ValueError into one sentence and exit code 2.
"""
