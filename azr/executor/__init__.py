"""Where model-written programs run: isolated, away from the trainer.

``pool.SandboxPool`` is for asyncio code and ``remote.RemoteExecutor`` the same behind a Ray actor.
Nothing is imported here: the sandboxed interpreter loads modules of this package too.
"""
