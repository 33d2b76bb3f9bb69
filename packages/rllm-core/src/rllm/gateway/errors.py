"""Refusals in OpenAI's error form, so that every client raises its own exception with our message in it."""

__all__ = ["ApiError", "bad_request"]

from starlette.responses import JSONResponse


class ApiError(Exception):
    """An answer other than 200. ``retry`` False tells clients not to try again (openai retries 408, 409, 429, 5xx)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code, self.retry = param, code, retry

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        """As HTTP."""
        body = {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        extra = {} if self.retry else {"x-should-retry": "false"}
        return JSONResponse(body, self.status, headers={**extra, **(headers or {})})


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is at fault, and ``param`` says where."""
    return ApiError(400, message, param=param, code=code)
