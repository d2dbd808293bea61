"""`python -m toolkit.cli` is `toolkit`."""

from toolkit.cli import main

raise SystemExit(main())
