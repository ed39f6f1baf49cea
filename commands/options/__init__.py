"""Options that several commands share, and what is made of them."""
