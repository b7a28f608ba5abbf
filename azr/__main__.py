"""``python -m azr`` is ``azr``."""

from azr.cli import main

main()
