"""A reward of one's own for proposals: most for tasks that the solver solves half of the time."""


def medium(solve_rate, options):
    """From a task's solve rate, 0 to 1, and the options of ``reward`` to what its proposer earns."""
    return 1 - abs(2 * solve_rate - 1)


proposer_rewards = {"medium": medium}
