"""`python -m tf_lossscale_compat`, the same as the console script `tf-lossscale`."""

import sys

from tf_lossscale_compat._tools import cli

if __name__ == "__main__":
    sys.exit(cli.main())
