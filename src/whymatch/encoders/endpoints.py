"""Services that embed texts over HTTP, in OpenAI's format: ``POST …/embeddings``.

The client is the standard library's. It verifies certificates and honours the usual proxy variables (but for services
on this machine, whose texts and keys would leave it by a proxy), and a few dozen lines need no dependency. Redirects
are not followed: they could take a key to another host.
"""

from __future__ import annotations

import datetime
import hashlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from whymatch.encoders.retries import BusyError, ServiceError, with_retries
from whymatch.words import quote

# Status codes of servers that may answer later.
BUSY = {408, 425, 429, 500, 502, 503, 504}
LONGEST_ANSWER = 2**28  # bytes
REFUSED = (
    "it may not accept this model, so many texts (batch_size=), such long ones, or one without words, which stands for "
    "nothing unless mask='…' is given"
)
ADVICE = {
    400: REFUSED,
    401: "check the key in the environment variable that key_env= names",
    403: "check the key in the environment variable that key_env= names, and what it is allowed to do",
    404: "check the address, which usually ends in /v1, and the model's name",
    413: "the request is too large: give a smaller batch_size=",
    422: REFUSED,
}


def endpoint(
    url: str,
    model: str | None = None,
    key_env: str | None = None,
    *,
    batch_size: int = 64,
    timeout: float = 60.0,
    dimensions: int | None = None,
    similarity: str = "cosine",
    key_header: str = "Authorization",
    allow_http: bool = False,
) -> Endpoint:
    """Return a service as a function from texts to embeddings, which :class:`whymatch.Explainer` takes for a model.

    Args:
        url: where it is, usually up to ``/v1``; ``/embeddings`` is added unless it is there.
        model: what the service calls its model.
        key_env: the environment variable that holds the key, if it needs one. The key is read at each call, and never
            appears in a result, message or log.
        batch_size: how many texts are sent in one request.
        timeout: how many seconds it may be silent before the connection is given up.
        dimensions: how many dimensions to ask for, if the model can give fewer.
        similarity: what its embeddings are compared by, "cosine" or "dot".
        key_header: the header that carries the key; any but Authorization carries the key alone, without "Bearer".
        allow_http: whether texts, and the key, may be sent unencrypted to another machine.
    """
    return Endpoint(url, model, key_env, batch_size, timeout, dimensions, similarity, key_header, allow_http)


@dataclass(eq=False, repr=False)
class Endpoint:
    """What :func:`endpoint` returns: call it with a list of texts."""

    url: str
    model: str | None
    key_env: str | None
    batch_size: int
    timeout: float
    dimensions: int | None
    similarity: str
    key_header: str
    allow_http: bool

    def __post_init__(self) -> None:
        self.url = _check_url(self.url, self.allow_http)
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size!r} is not a number of texts; give 1 or more")
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout!r} is not a number of seconds")
        self._format = {"encoding_format": "float"}
        self._key()  # a missing key is an error now, not when the first text is embedded
        handlers = [urllib.request.HTTPSHandler(context=ssl.create_default_context()), _NoRedirects()]
        if _is_here(urlsplit(self.url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def name(self) -> str:
        """What results call it: its model and its address, without what may follow a question mark."""
        place = urlunsplit((*urlsplit(self.url)[:3], "", "")).removesuffix("/embeddings")
        return f"{self.model} at {place}" if self.model else place

    def __repr__(self) -> str:
        return f"endpoint({self.name!r})"

    def identity(self) -> str:
        """A hash of the address, the model's name and the dimensions; what answers there is up to the service."""
        return hashlib.sha256(f"{self.name} {self.dimensions}".encode("utf-8", "surrogatepass")).hexdigest()

    def __call__(self, texts: Sequence[str]) -> NDArray[np.floating]:
        """Embed texts: (texts, dimensions). Temporary failures are tried again."""
        vectors: list[Any] = []
        for low in range(0, len(texts), self.batch_size):
            batch = list(texts[low : low + self.batch_size])
            vectors.extend(with_retries(lambda batch=batch: self.request(batch)))  # type: ignore[misc]
        return self._array(vectors)

    def request(self, texts: list[str]) -> NDArray[np.floating]:
        """Embed texts by one request; a failure that may pass is a :class:`whymatch.encoders.retries.BusyError`."""
        try:
            return self._post(texts)
        except ServiceError as error:
            # Some providers behind LiteLLM refuse the format even if it is their own; others do not go without.
            # https://github.com/BerriAI/litellm/issues/33173
            if not self._format or "encoding_format" not in str(error):
                raise
            self._format = {}
            return self._post(texts)

    def _post(self, texts: list[str]) -> NDArray[np.floating]:
        # Most services refuse an empty text; a space is as empty to a tokenizer.
        body: dict[str, Any] = {"input": [text or " " for text in texts], **self._format}
        if self.model is not None:
            body["model"] = self.model
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "whymatch"}
        key = self._key()
        if key is not None:
            headers[self.key_header] = f"Bearer {key}" if self.key_header == "Authorization" else key
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                answer: bytes = response.read(LONGEST_ANSWER + 1)
                if response.length and len(answer) <= LONGEST_ANSWER:  # what was announced and did not come
                    raise BusyError(f"{self.name} broke the connection off in the middle of an answer")
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(error, key) from None
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ServiceError(f"the certificate of {self.name} is not valid: {reason.verify_message}") from None
            if isinstance(reason, socket.gaierror):
                raise ServiceError(f"{self.name} cannot be found: {reason.strerror}") from None
            raise BusyError(f"{self.name} cannot be reached ({reason})") from None
        except BusyError:
            raise
        except TimeoutError:
            raise BusyError(f"{self.name} was silent for {self.timeout:g} seconds") from None
        except (ConnectionError, http.client.HTTPException) as error:
            raise BusyError(f"{self.name} broke the connection off ({type(error).__name__})") from None
        return self._read(answer, len(texts), key)

    def _failure(self, error: urllib.error.HTTPError, key: str | None) -> Exception:
        try:
            body = error.read(2000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            body = ""
        body = _without(key, body)
        message = f"{self.name} answers {error.code} {_without(key, error.reason)}"
        message += f": {quote(body, 300)}" if body.strip() else ""
        if error.code in BUSY:
            return BusyError(message, _seconds(error.headers.get("Retry-After")))
        if 300 <= error.code < 400:
            place = _without(key, error.headers.get("Location", "another address"))
            return ServiceError(f"{message}: it has moved to {quote(place)}; name that address if you trust it")
        return ServiceError(message + (f"; {ADVICE[error.code]}" if error.code in ADVICE else ""))

    def _read(self, answer: bytes, count: int, key: str | None) -> NDArray[np.floating]:
        """Return the vectors in the order of the texts."""
        if len(answer) > LONGEST_ANSWER:
            raise ServiceError(f"{self.name} answers with more than {LONGEST_ANSWER:,} bytes")
        try:
            rows = json.loads(answer)["data"]
            vectors = {row["index"]: row["embedding"] for row in rows}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            beginning = quote(_without(key, answer[:2000].decode("utf-8", "replace")), 200)
            raise ServiceError(
                f"{self.name} does not answer in OpenAI's format ({type(error).__name__}): {beginning}"
            ) from None
        if sorted(vectors, key=repr) != sorted(range(count), key=repr) or len(rows) != count:
            raise ServiceError(
                f"{self.name} gives {len(rows)} vectors for {count} texts, or does not say whose they are"
            )
        return self._array([vectors[i] for i in range(count)])

    def _array(self, vectors: list[Any]) -> NDArray[np.floating]:
        try:
            return np.asarray(vectors, np.float64)
        except (TypeError, ValueError) as error:
            raise ServiceError(f"{self.name} gives vectors that are not numbers of equal length ({error})") from None

    def _key(self) -> str | None:
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise ValueError(f"key_env={self.key_env!r}: there is no such environment variable, or it is empty")
        if not (key.isascii() and key.isprintable()):  # the client would say so with the key in its message
            raise ValueError(f"key_env={self.key_env!r}: that environment variable holds what cannot be a key")
        return key


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _check_url(url: str, allow_http: bool) -> str:
    parts = urlsplit(url if isinstance(url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{quote(url)} is not the address of a service; give one like https://host/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address with a name or a password in it would be in every result; name a key_env= instead")
    if parts.scheme == "http" and not allow_http and not _is_here(parts.hostname):
        raise ValueError(
            f"{quote(url)} is not encrypted: texts and keys could be read on the way. Use https, or say allow_http=True"
        )
    path = parts.path.rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/embeddings") + "/embeddings", parts.query, ""))


def _without(key: str | None, text: str) -> str:
    """Leave a key out of what a service says: some repeat it."""
    return text.replace(key, "…") if key else text


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(value: str | None) -> float | None:
    """Read a Retry-After header: a number of seconds, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        then = parsedate_to_datetime(value)
        return max(0.0, (then - datetime.datetime.now(then.tzinfo)).total_seconds())
    except (TypeError, ValueError):
        return None
