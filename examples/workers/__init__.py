"""A package, so that no other module called `workers` on the import path comes first."""
