"""The explorer: a page and a JSON API over one or more explainers (FastAPI, the extra ``web``)."""
