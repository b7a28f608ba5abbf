"""Published files become rows of `azr.datasets.rows`."""
