"""Public-domain prose: what conversions are verified on, and, kept apart from it, what quantizers may be calibrated on.

Each file starts with `key: value` lines (title, author, died, published), then a blank line, then the text. An author who
died more than 70 years ago, and a work printed before 1930, are in the public domain in Japan, Europe and the United States.
"""
