"""What trains and serves a policy: the embedded engine in ``local/``, registered by ``builtin``."""
