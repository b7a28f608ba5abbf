from tests.graders.conftest import answers

__all__ = ["answers"]
