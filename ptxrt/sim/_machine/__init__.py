"""The machine: memory, lanes and the order of their work, and what watches them."""
