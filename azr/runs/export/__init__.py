"""Takes a model out of a run as a plain Hugging Face folder. Copies and edits files; loads no weights and no torch."""
