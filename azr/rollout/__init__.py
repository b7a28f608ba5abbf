"""vLLM engines as Ray actors, and how they receive weights."""
