"""What is found: a text as a sum, a pair as a matrix, and what is made of them."""
