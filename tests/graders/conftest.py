import pytest_asyncio

from azr.graders.sandboxed import answer_pool
from tests.graders.grading import CONFIG


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def answers():
    """Sandboxes for answers of code suites."""
    async with answer_pool(CONFIG) as pool:
        yield pool
