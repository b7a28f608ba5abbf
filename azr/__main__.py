"""``python -m azr`` is ``azr``."""

from azr.cli.main import main

main()
