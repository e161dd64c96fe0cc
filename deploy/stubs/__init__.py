"""The client distribution: stubs and ``isthmus.client``, as a wheel for other people's programs.

``python -m deploy.stubs`` (``make stubs``) assembles a project of its own under ``build/stubs/project`` out
of the protos and ``libs/public/isthmus/client``, and builds
``build/stubs/dist/isthmus_client-<version>-py3-none-any.whl``. Neither ``libs`` nor ``services`` is in it.
``isthmus`` stays a namespace: no ``__init__.py``, and each part of it is marked as typed.
"""
