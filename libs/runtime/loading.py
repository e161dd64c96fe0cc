"""Plans from bytes, with every check that needs no sizes of a call: for whoever passes plans on."""

from libs.common.errors import Invalid
from libs.runtime.check import check_plan
from libs.runtime.codec import decode
from libs.runtime.layout import check_layouts
from libs.runtime.plan import Plan


def load_plan(data: bytes, name: str) -> Plan:
    """Return the plan that a file called `name` holds. Needs no numpy.

    Raises Invalid naming the file: PLAN_VERSION for another major version, BAD_PLAN for what is no plan,
    breaks a rule of `libs.runtime.check`, or isn't sound at its smallest or largest sizes.
    """
    try:
        plan = decode(data)
        check_plan(plan)
        check_layouts(plan)
    except Invalid as error:
        raise Invalid(f"{name}: {error.message}", reason=error.reason, metadata={"file": name}) from None
    return plan
