"""The kinds of reasoning, one file each, and the prompts and answer formats that they share."""
