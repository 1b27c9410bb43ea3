"""Views of an explanation: figures, a page, a terminal. Each needs nothing but the result."""
