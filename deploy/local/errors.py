"""What goes wrong with a stack."""


class StackError(Exception):
    """The stack can't do what was asked; the text says why and what to do."""
