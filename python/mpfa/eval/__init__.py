"""Compare attention recipes on a real causal language model; command line `mpfa-eval`."""
