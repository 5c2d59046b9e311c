"""django-redis, unmodified: Django's cache and its sessions in it, with expiry."""
import sys
import time

import django
from django.conf import settings

settings.configure(
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://{sys.argv[1]}:{sys.argv[2]}/0"}},
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    SECRET_KEY="a test",
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402
from django.core.cache import cache  # noqa: E402

cache.delete_many(["name", "count"])
cache.set("name", {"a": [1, 2]}, timeout=60)
assert cache.get("name") == {"a": [1, 2]} and 50 < cache.ttl("name") <= 60
assert cache.add("name", 1) is False and cache.add("count", 1) is True and cache.incr("count") == 2
cache.set_many({"one": 1, "two": 2})
assert cache.get_many(["one", "two", "three"]) == {"one": 1, "two": 2}
cache.delete_many(["one", "two"])
assert cache.get("one") is None
session = SessionStore()
session["user"] = "somebody"
session.set_expiry(1)
session.save()
assert SessionStore(session.session_key)["user"] == "somebody"
deadline = time.time() + 20
while SessionStore(session.session_key).get("user"):
    assert time.time() < deadline, "the session does not expire"
    time.sleep(0.1)
print("django-redis", "ok")
