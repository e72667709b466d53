"""A recorded run as figures, findings and one self-contained HTML page."""
