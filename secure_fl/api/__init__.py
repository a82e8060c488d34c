"""The Python API: what `from secure_fl import …` gives (docs/python.md). The command line calls the same functions."""
