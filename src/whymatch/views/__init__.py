"""Ways to look at an explanation. Each stands on the result alone."""
