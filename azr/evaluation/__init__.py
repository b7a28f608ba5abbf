"""What a model can do: held-out tasks of a suite, answered greedily and at temperature 1, graded by running code."""
