"""Refusals in OpenAI's error form, so that every client raises its own exception with our message in it."""

__all__ = ["ApiError", "bad_request", "session_closed"]

from collections.abc import Mapping

from starlette.responses import JSONResponse


class ApiError(Exception):
    """An answer other than 200.

    None of them is worth another try by the client (openai retries 408, 409, 429 and 5xx by itself): what can be tried
    again was tried behind the gateway. So each carries ``x-should-retry: false``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code = param, code

    def body(self) -> dict[str, object]:
        """As JSON data."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """As HTTP."""
        return JSONResponse(self.body(), self.status, headers={"x-should-retry": "false", **(headers or {})})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is at fault, and ``param`` says where."""
    return ApiError(400, message, param=param, code=code)


def session_closed(session_id: str) -> ApiError:
    """410: the rollout has ended, whoever still calls is a leftover of it."""
    return ApiError(410, f"the session {session_id!r} is closed: its rollout has ended", code="session_closed")
