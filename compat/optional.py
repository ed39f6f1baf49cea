"""What needs a package that is not always installed; None where it is not."""

__all__ = ["tool_calls"]

try:
    from ..runtime.chat import tool_calls
except ImportError:  # msgspec comes with the extra `serve`
    tool_calls = None  # type: ignore[assignment]
