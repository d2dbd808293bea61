"""Where weights come from: one module for each kind of source, all of them ending in files on this disk."""
