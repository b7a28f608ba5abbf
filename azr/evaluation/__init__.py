"""What a model can do: questions of public benchmarks and of our own exam, asked, graded by running code, reported."""
