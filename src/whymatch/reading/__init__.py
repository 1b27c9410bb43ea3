"""What an encoder is given: texts, pictures and templates, their tokens, and the reference that says nothing."""
