"""Highlights for the documents that other libraries find.

Each module needs its own library, and the rest of whymatch imports none of them. What they add to a hit has one form,
``[{"start": …, "end": …, "score": …}]``: spans of its text, whose scores sum to the model's own score.
"""
