"""What ``azr`` can do: one file per command, each with ``main(argv) -> exit code``, loaded only when asked for."""
