"""One recipe per file: only its differences from the default config."""
