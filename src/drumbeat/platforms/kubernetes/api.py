"""Calls of Kubernetes' API server, each with a deadline, and what their errors mean.

Source: kubernetes (the Python client) 31 and later; Kubernetes' API conventions, Status.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.deadline import within

CONNECT_S, READ_S = 5.0, 30.0
CALL_S = 90.0
LOAD_S = 120.0
"""A context's program for credentials may ask its user."""
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_RETRIES = 1


class Server:
    """The API server of a context.

    Nothing is read or called before the first use.

    Args:
        context: Of the kubeconfig; None for its current one.
        namespace: Where the job is; None for the context's.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._context = context
        self._namespace = namespace
        self._client: Any = None

    @property
    def namespace(self) -> str:
        """Where the job is, where nobody says.

        Raises:
            ConfigError: There is no kubeconfig, or no such context.
        """
        self._load()
        return self._namespace or "default"

    def core(self) -> Any:
        """The core API.

        Raises:
            ConfigError: As `namespace`.
        """
        from kubernetes import client

        return client.CoreV1Api(self._load())

    def objects(self) -> Any:
        """The API of custom objects.

        Raises:
            ConfigError: As `namespace`.
        """
        from kubernetes import client

        return client.CustomObjectsApi(self._load())

    def call(self, what: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """The answer of a call.

        Args:
            what: What was wanted, for messages: "create the Secret digits-drumbeat".
            function: Of one of the APIs.
            *args: Its arguments.
            **more: Likewise.

        Raises:
            Refused: The server said no.
            ConfigError: It can't be reached.
            DrumbeatError: It has not answered in time.
        """
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        def asked() -> Any:
            return function(*args, _request_timeout=(CONNECT_S, READ_S), **more)

        try:
            # READ_S is for each part of an answer, of which there may be many.
            return within(CALL_S, asked, f"Asking {self._where()}")
        except ApiException as error:
            raise Refused(what, error.status or 0, _said(error), self._where()) from None
        except (HTTPError, OSError) as error:
            raise self.unreachable(error) from None
        # The client checks some of what comes back, and trips over the rest.
        except (ValueError, TypeError, AttributeError) as error:
            raise self._unreadable(what, str(error).splitlines()[0]) from None

    def custom(self, what: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """As `call`; the answer is an object, of which the client checks nothing."""
        answer = self.call(what, function, *args, **more)
        if isinstance(answer, dict) and {"apiVersion", "kind", "metadata"} <= set(answer):
            metadata = answer["metadata"]
            if isinstance(metadata, dict) and {"name", "uid"} <= set(metadata):
                return answer
        raise self._unreadable(what, answer)

    def understood(self, what: str, read: Callable[..., Any], *answers: Any) -> Any:
        """What `read` makes of answers, in which parts may be missing or of another kind.

        Raises:
            ConfigError: It makes nothing of them.
        """
        try:
            return read(*answers)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(what, str(error)) from None

    def _unreadable(self, what: str, answer: object) -> ConfigError:
        return ConfigError(
            f"{self._where()} gave an answer that can't be read, asked to {what}: "
            f"{shown(answer, 200)}. Is it the API server of Kubernetes?"
        )

    def unreachable(self, error: Exception) -> ConfigError:
        """The message for a server that does not answer."""
        reason = getattr(error, "reason", None) or error
        return ConfigError(
            f"{self._where()} can't be reached: {shown(str(reason), 200)}. Is the cluster up, and "
            "its address right? kubectl cluster-info shows it."
        )

    def _where(self) -> str:
        host = self._client.configuration.host if self._client is not None else "?"
        return f"The API server {host}"

    def _load(self) -> Any:
        if self._client is None:
            try:
                import kubernetes  # noqa: F401  (only whether it is there)
            except ImportError:
                raise ConfigError(
                    "Kubernetes' Python client is not installed; expected pip install "
                    '"drumbeat[kubernetes]".'
                ) from None
            client, namespace = within(
                LOAD_S, lambda: _connected(self._context), "Reading the kubeconfig's credentials"
            )
            self._client, self._namespace = client, self._namespace or namespace
        return self._client


class Refused(ConfigError):
    """The API server said no.

    Attributes:
        status: Of HTTP.
    """

    def __init__(self, what: str, status: int, said: str, where: str) -> None:
        hint = {
            401: " The context's credentials are not valid, or the program that makes them failed.",
            403: " The context's user may not do that; whoever runs the cluster can allow it.",
        }.get(status, "")
        super().__init__(f"{where} refused to {what} ({status}): {said}{hint}")
        self.status = status


def _said(error: Any) -> str:
    """The message of a Status, or what else came."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body
    try:
        message = json.loads(body or "")["message"]
    except (ValueError, KeyError, TypeError):
        message = body or error.reason or "no reason given"
    text = " ".join(str(message).split())[:500]
    return text if text.endswith(".") else f"{text}."


def _connected(context: str | None) -> tuple[Any, str | None]:
    """A client for the context, and its namespace."""
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    path = os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(each).expanduser() for each in path.split(os.pathsep) if each]
    settings = client.Configuration()
    if not any(each.is_file() for each in files):
        if context is None and _IN_CLUSTER.is_file():
            config.load_incluster_config(client_configuration=settings)
            space = (_IN_CLUSTER.parent / "namespace").read_text().strip()
            return client.ApiClient(_with_retries(settings)), space
        raise ConfigError(
            f"There is no kubeconfig ({path}); expected the file that kubectl uses, in ~/.kube/"
            "config or where KUBECONFIG says."
        )
    try:
        listing: Any = config.list_kube_config_contexts(config_file=path)
        contexts, active = listing
        names = [each["name"] for each in contexts]
        if context is not None and context not in names:
            raise ConfigError(
                f"kubernetes.context is {shown(context)}, which {path} does not have; expected one "
                f"of {listed(names)}."
            )
        config.load_kube_config(config_file=path, context=context, client_configuration=settings)
    except ConfigException as error:
        raise ConfigError(f"{path} can't be used: {error}") from None
    except ConfigError:
        raise
    except Exception as error:  # whatever its YAML parser and its plugins raise
        raise ConfigError(f"{path} can't be used: {shown(str(error), 200)}") from None
    chosen = next((each for each in contexts if each["name"] == context), active)
    space = chosen["context"].get("namespace")
    return client.ApiClient(_with_retries(settings)), space


def _with_retries(settings: Any) -> Any:
    from urllib3 import Retry

    # A busy server may ask for an hour's wait.
    settings.retries = Retry(_RETRIES, respect_retry_after_header=False)
    return settings
