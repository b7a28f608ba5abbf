"""The sandbox of model-written programs, without Ray and torch.

``azr.SandboxPool`` is for asyncio code; `azr.cluster.executor_actor` puts it into a Ray actor.
This file imports nothing: the sandboxed interpreter loads modules of this package too.
"""
