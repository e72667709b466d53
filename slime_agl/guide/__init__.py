"""The guide: Markdown pages in this folder, which `slime-agl guide` shows."""
