"""What goes wrong with a stack."""

from libs.common.errors import Error


class StackError(Error):
    """The stack can't do what was asked; the text says why and what to do."""

    default_reason = "LOCAL_STACK"
