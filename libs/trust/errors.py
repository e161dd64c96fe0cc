"""The one error of this library."""

from libs.common.errors import Invalid


class Untrusted(Invalid):
    """Bytes that must not be believed; `reason` says why.

    Reasons: MALFORMED, TYPE_MISMATCH, SIGNATURE_THRESHOLD, DIGEST_MISMATCH, EXPIRED, ROOT_EXPIRED,
    ROOT_VERSION, WRONG_TENANT, WRONG_DEVICE, ROLLBACK, NOT_IN_SET.
    """

    default_reason = "UNTRUSTED"
