"""A transcript in, a report out: pure Python, no window, no third-party package. Wording is copied, never made up."""
