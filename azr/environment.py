"""What processes that run a model must have in their environment when they are born."""

KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""On a CPU, oneDNN and torch's layer above it keep a compiled kernel for each shape they have met, 1,024 by default. No
two batches have the same shapes here, so a process of the 14M model would grow by more than half a gigabyte."""
