"""pyarrow, which only this package needs; the extra ``corpus`` installs it."""

try:
    import pyarrow as pa
    import pyarrow.ipc  # noqa: F401  # as pa.ipc
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"Parquet files, batches, indexes and studies need pyarrow ({error}): pip install 'whymatch[corpus]'",
        name=error.name,
    ) from None

__all__ = ["pa", "pq"]
