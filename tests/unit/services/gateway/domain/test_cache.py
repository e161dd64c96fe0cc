from services.gateway.domain.cache import Cache


def test_the_cache_drops_what_came_first():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (None, 2, 4, 2)
    cache.pop("b")
    cache.pop("b")
    assert list(cache.values()) == [4]
