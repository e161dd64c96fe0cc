import pytest

from libs.common.errors import Exhausted, Invalid
from services.scheduler.runner.users import Users


def test_each_worker_has_its_own_and_the_longest_free_comes_first() -> None:
    users = Users.parse("2000-2002")
    assert users is not None
    users.hold([2001])
    assert [users.take(), users.take()] == [2000, 2002]
    with pytest.raises(Exhausted, match="--worker-users"):
        users.take()
    users.free(2002)
    users.free(2000)
    assert [users.take(), users.take()] == [2000, 2002]
    users.free(2002)
    users.free(2001)
    assert users.take() == 2001


@pytest.mark.parametrize(
    "text", ["x", "2000", "2000-", "-2000", "2001-2000", "0-10", "999-2000", "2000-99999999999"]
)
def test_what_is_no_range_of_users_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="--worker-users"):
        Users.parse(text)
    assert Users.parse("") is None
