"""The kinds of reasoning, and the prompts and answer formats that they share."""
