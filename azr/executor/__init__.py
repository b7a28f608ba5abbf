"""Where model-written programs run: inside walls, away from the trainer.

``pool.SandboxPool`` is the door for asyncio code and ``remote.RemoteExecutor`` the same door behind a Ray actor.
Nothing is imported here: the sandboxed interpreter loads modules of this package too.
"""
