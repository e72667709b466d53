"""A recorded run made readable: figures for the terminal, one self-contained HTML page."""
