"""Agent Lightning's Trainer with slime behind it."""
