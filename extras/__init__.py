"""Optional features. They import the core; the core imports none of them."""
