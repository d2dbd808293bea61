"""Commands that print this project's figures on the machine they run on. README.md says which prints what."""
