"""Questions from a file, for a model to be trained on: their rows, their order, and the play that answers them."""
