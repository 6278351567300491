"""`python -m mpfa.eval` is the command `mpfa-eval`."""

import sys

from mpfa.eval.cli import main

if __name__ == "__main__":
    sys.exit(main())
