"""Both clients against real clusters: `COPPICE_BIN=.. python -m unittest discover client/python/tests`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Coroutine, List

from cluster import Demo

import coppice
from coppice import AsyncClient, Client, Operation

VERBS = [
    "append", "cas", "close", "connect", "count", "delete", "delete_if", "delete_range", "execute", "expire", "get",
    "get_many", "increment", "insert", "many", "many_if", "persist", "put", "range", "rename", "resume", "ttl",
    "with_timeout",
]  # fmt: skip


class Awaited:
    """An asynchronous client that is used like a blocking one: each call runs its event loop until it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
        self.loop, self.client = loop, client

    def with_timeout(self, seconds: float) -> Awaited:
        return Awaited(self.loop, self.client.with_timeout(seconds))

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made = getattr(self.client, verb)(*arguments, **named)
            return self.loop.run_until_complete(everything(made) if verb == "range" else made)

        return call


async def everything(pairs: coppice.AsyncPairs) -> List[Any]:
    return [pair async for pair in pairs]


class Shape(unittest.TestCase):
    def test_both_clients_have_the_same_verbs(self) -> None:
        for name in VERBS:
            blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
            parameters = [inspect.signature(verb).parameters for verb in (blocking, awaited)]
            self.assertEqual(list(parameters[0].values()), list(parameters[1].values()), name)
            self.assertTrue(blocking.__doc__ and awaited.__doc__, name)
            self.assertEqual(inspect.iscoroutinefunction(awaited), name not in ("range", "with_timeout"), name)
        for client in (Client, AsyncClient):
            self.assertEqual(VERBS, sorted(name for name in vars(client) if not name.startswith("_")))

    def test_errors_are_what_their_callers_catch(self) -> None:
        for kind in (coppice.Timeout, coppice.Unavailable, coppice.Denied, coppice.TooLarge, coppice.NotDone):
            self.assertTrue(issubclass(kind, coppice.Failed) and issubclass(kind, coppice.CoppiceError))
        self.assertTrue(issubclass(coppice.Timeout, TimeoutError))
        self.assertTrue(issubclass(coppice.Denied, PermissionError))
        self.assertFalse(issubclass(coppice.OutcomeUnknown, coppice.Failed))

    def test_settings_that_make_no_sense_are_named(self) -> None:
        wrong: List[Any] = [
            ({"timeout": 0}, "timeout is 0"),
            ({"timeout": float("nan")}, "timeout is NaN"),
            ({"timeout": float("inf")}, "up to a day"),
            ({"reads": "new"}, "'leader', 'any' or 'stale'"),
            ({"token": "secret"}, "64 hex digits"),
            ({"tls_cert": "a"}, "tls-key"),
            ({"endpoints": ""}, "no endpoints"),
        ]
        for named, said in wrong:
            with self.assertRaises(ValueError) as raised:
                Client(**{"endpoints": "127.0.0.1:1", **named})
            self.assertIn(said, str(raised.exception))
            self.assertNotIn("secret", str(raised.exception))
        files: List[Any] = [{"token_file": "/nonexistent/token"}, {"tls_ca": "/nonexistent/ca.pem"}]
        for named in files:
            with self.assertRaises(OSError) as failed:
                Client("127.0.0.1:1", **named)
            self.assertIn("/nonexistent/", str(failed.exception))

    def test_nobody_listens(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            with Client(f"127.0.0.1:{held.getsockname()[1]}", timeout=0.3) as client:
                with self.assertRaises(coppice.Unavailable) as raised:
                    client.get("apple")
        self.assertIn("refused the connection", str(raised.exception))

    def test_ctrl_c_ends_a_blocking_call(self) -> None:
        # Where the tests run in the background, the shell has had them ignore it.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            with Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=60) as client:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                begun = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    client.get("apple")
                self.assertLess(time.monotonic() - begun, 30)

    def test_a_call_that_waits_releases_the_lock_and_ends_with_its_client(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            client = Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=60)
            ended: List[str] = []

            def wait() -> None:
                try:
                    client.get("apple")
                except coppice.CoppiceError as error:
                    ended.append(type(error).__name__)

            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            # This thread runs: with the lock held it would wait for the timeout.
            time.sleep(0.2)
            self.assertEqual(ended, [])
            client.close()
            client.close()
            with self.assertRaises(coppice.Closed):
                client.get("apple")
            waiter.join(30)
            self.assertEqual(ended, ["Closed"])


    def test_a_forked_child_is_told_to_make_its_own_client(self) -> None:
        with Demo("--nodes", "1") as demo, Client(demo.endpoints, timeout=20) as client:
            client.put("apple", "red")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    client.get("apple")
                except RuntimeError as error:
                    with contextlib.suppress(coppice.CoppiceError):
                        client.close()
                        with Client(demo.endpoints, timeout=20) as own:
                            code = 0 if "make one in each" in str(error) and own.get("apple") == b"red" else 2
                finally:
                    os._exit(code)
            until = time.monotonic() + 40
            ended, status = os.waitpid(child, os.WNOHANG)
            while not ended and time.monotonic() < until:
                time.sleep(0.02)
                ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            self.assertEqual((bool(ended), status), (True, 0))
            self.assertEqual(client.get("apple"), b"red")


class Verbs(unittest.TestCase):
    """The blocking client; `AsyncVerbs` runs the same with the other one."""

    demo: Demo
    client: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.demo = Demo()
        cls.client = Client(cls.demo.endpoints, timeout=20)
        cls.client.connect()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.demo.stop()

    def setUp(self) -> None:
        self.client.delete_range(prefix="")

    def test_single_keys(self) -> None:
        client = self.client
        self.assertIsNone(client.put("apple", "red"))
        self.assertEqual(client.put(b"apple", bytearray(b"green")), b"red")
        self.assertEqual(client.insert("apple", "blue"), b"green")
        self.assertIsNone(client.insert("pear", "\u00fc"))
        self.assertEqual(client.get("pear"), "\u00fc".encode())
        self.assertEqual([client.get("apple", reads=reads) for reads in ("leader", "any")], [b"green"] * 2)
        cas = client.cas("apple", "red", "blue")
        self.assertEqual((bool(cas), cas), (False, coppice.Cas(False, b"green")))
        self.assertTrue(client.cas("apple", "green", "blue"))
        self.assertFalse(client.delete_if("apple", "red"))
        self.assertTrue(client.delete_if("apple", "blue"))
        self.assertIsNone(client.delete("apple"))
        self.assertEqual(client.delete("pear"), "\u00fc".encode())
        self.assertIsNone(client.get("pear"))
        self.assertIsNone(client.put("empty", ""))
        self.assertEqual(client.get("empty"), b"")

    def test_values_of_every_byte_and_size(self) -> None:
        for value in (b"", bytes(range(256)), b"x" * (1 << 20)):
            self.client.put("value", value)
            self.assertEqual(self.client.get("value"), value)
        with self.assertRaises(coppice.TooLarge) as raised:
            self.client.put("value", b"x" * ((1 << 20) + 1))
        self.assertIn("1048577", str(raised.exception))
        with self.assertRaises(coppice.TooLarge):
            self.client.get("k" * 5000)

    def test_updates(self) -> None:
        client = self.client
        self.assertEqual([client.increment("n"), client.increment("n", 41), client.increment("n", -2)], [1, 42, 40])
        self.assertEqual([client.append("log", "ab"), client.append("log", "c")], [2, 3])
        client.put("word", "red")
        with self.assertRaises(coppice.NotDone) as raised:
            client.increment("word")
        self.assertIn("no decimal integer", str(raised.exception))
        with self.assertRaises(OverflowError):
            client.increment("n", 1 << 64)
        self.assertTrue(client.rename("word", "world"))
        self.assertFalse(client.rename("word", "world"))
        self.assertEqual(client.get("world"), b"red")

    def test_commands_of_several_operations(self) -> None:
        client = self.client
        operations = [Operation.put("a", "1"), Operation.increment("a"), Operation.get("a"), Operation.cas("a", "1", "2")]
        self.assertEqual(client.many(operations), [None, 2, b"2", coppice.Cas(False, b"2")])
        client.put("word", "red")
        updates = [Operation.increment("word"), Operation.append("word", "!"), Operation.delete_if("word", "red!")]
        results = client.many(updates)
        self.assertIsInstance(results[0], coppice.NotDone)
        self.assertEqual(results[1:], [4, True])
        guards = [Operation.check_equals("a", "2"), Operation.check_absent("b"), Operation.check_present("a")]
        done = client.many_if(guards, [Operation.put("b", "3")])
        self.assertEqual((bool(done), done), (True, coppice.ManyIf(True, [None], None)))
        self.assertEqual(client.many_if(guards, [Operation.delete("a")]), coppice.ManyIf(False, None, 1))
        self.assertFalse(client.many_if([Operation.check_equals("a", "9")], [Operation.delete("a")]))
        with self.assertRaises(coppice.SpansPartitions):
            client.many([Operation.put("a", "1"), Operation.put("z", "1")])
        with self.assertRaises(coppice.Invalid):
            client.many([])
        alone = [Operation.put("a", "x"), Operation.put("z", "y"), Operation.increment("z"), Operation.put("k" * 5000, "")]
        outcomes = client.execute(alone[:2])
        self.assertEqual(outcomes, [b"2", None])
        outcomes = client.execute(alone[2:])
        self.assertIsInstance(outcomes[0], coppice.NotDone)
        self.assertIsInstance(outcomes[1], coppice.TooLarge)
        self.assertEqual(repr(alone[0]), "<coppice.Operation put b\"a\">")

    def test_keys_that_expire(self) -> None:
        client = self.client
        self.assertIsNone(client.put("session", "ann", ttl=0.2))
        self.assertEqual(client.put("session", "bob", ttl=3600), b"ann")
        left = client.ttl("session")
        self.assertTrue(3000 < left <= 3600, left)
        self.assertTrue(client.persist("session"))
        self.assertFalse(client.persist("session"))
        self.assertEqual((client.ttl("session"), client.ttl("absent")), (None, None))
        self.assertFalse(client.expire("absent", 1))
        self.assertTrue(client.expire("session", 0.3))
        self.assertEqual(client.get("session"), b"bob")
        until = time.monotonic() + 30
        while client.get("session") is not None:
            self.assertLess(time.monotonic(), until, "it never expires")
            time.sleep(0.05)
        self.assertEqual(client.count(), 0)
        for ttl in (0, -1, float("nan")):
            with self.assertRaises(ValueError) as raised:
                client.expire("session", ttl)
            self.assertIn("above 0", str(raised.exception))

    def test_many_keys_at_one_moment(self) -> None:
        client = self.client
        client.put("a", "1")
        client.put("z", "2")
        self.assertEqual(client.get_many(["z", "none", "a", "z"]), [b"2", None, b"1", b"2"])
        self.assertEqual(client.get_many(key for key in ("a", "b")), [b"1", None])
        self.assertEqual(client.get_many([]), [])
        with self.assertRaises(coppice.TooLarge):
            client.get_many([str(n) for n in range(300)])

    def test_ranges(self) -> None:
        client = self.client
        keys = [f"{letter}/{n:04}" for letter in "agntz" for n in range(400)]
        client.execute([Operation.put(key, key[:1]) for key in keys])
        pairs = [(key.encode(), key[:1].encode()) for key in keys]
        self.assertEqual(list(client.range()), pairs)
        self.assertEqual(list(client.range(reverse=True)), pairs[::-1])
        self.assertEqual(list(client.range("g", "o")), pairs[400:1200])
        self.assertEqual(list(client.range(low="t/0399")), pairs[1599:])
        self.assertEqual(list(client.range(prefix=b"n/", limit=3)), pairs[800:803])
        self.assertEqual(list(client.range(prefix="n/", limit=1, reverse=True)), pairs[1199:1200])
        self.assertEqual(list(client.range(limit=0)), [])
        self.assertEqual(list(client.range(prefix="z/", keys_only=True))[0], (b"z/0000", b""))
        self.assertEqual((client.count(), client.count("g", "o"), client.count(prefix="q")), (2000, 800, 0))
        self.assertEqual(client.delete_range(prefix="a/", limit=10), 10)
        self.assertEqual((client.delete_range("a", "h"), client.count()), (790, 1200))
        for wrong in (lambda: client.range("a", prefix="b"), lambda: client.range(limit=-1), client.delete_range):
            with self.assertRaises(ValueError):
                wrong()
        self.assertEqual(client.count(), 1200)

    def test_what_is_no_key_is_named(self) -> None:
        for wrong in (5, None, 1.5, ["a"]):
            with self.assertRaises(TypeError) as raised:
                self.client.put(wrong, "value")
            self.assertIn(type(wrong).__name__, str(raised.exception))

    def test_a_write_whose_outcome_is_unknown_is_resumed(self) -> None:
        hasty, unknown, written = self.client.with_timeout(0.0005), 0, 0
        for n in range(300):
            written += 1
            try:
                hasty.insert(f"once/{n:03}", "written")
                continue
            except coppice.OutcomeUnknown as error:
                unknown += 1
                assert error.resume_token is not None
                answer = self.client.resume(error.resume_token, Operation.insert(f"once/{n:03}", "written"))
                self.assertIsNone(answer, "it is answered as the first time")
            except coppice.Failed:
                self.assertIsNone(self.client.insert(f"once/{n:03}", "written"))
            if unknown > 2:
                break
        self.assertGreater(unknown, 0)
        self.assertEqual(self.client.count(prefix="once/"), written)
        with self.assertRaises(ValueError):
            self.client.resume("p2.1", Operation.put("a", "b"))


class AsyncVerbs(Verbs):
    """The same with the asynchronous client."""

    loop: asyncio.AbstractEventLoop

    @classmethod
    def setUpClass(cls) -> None:
        cls.demo = Demo()
        cls.loop = asyncio.new_event_loop()
        cls.client = Awaited(cls.loop, AsyncClient(cls.demo.endpoints, timeout=20))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.client.close()
        cls.loop.close()
        cls.demo.stop()

    def run_async(self, made: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(made)

    def test_thousands_of_calls_are_under_way_at_once(self) -> None:
        client: AsyncClient = self.client.client

        async def counts() -> None:
            sums = await asyncio.gather(*(client.increment("n") for _ in range(3000)))
            self.assertEqual(sorted(sums), list(range(1, 3001)))

        self.run_async(counts())

    def test_a_cancelled_task_leaves_its_call(self) -> None:
        client: AsyncClient = self.client.client

        async def cancels() -> None:
            for waits in (client.put("a", "1"), everything(client.range())):
                task = asyncio.ensure_future(waits)
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            self.assertEqual(await client.put("b", "2"), None)

        self.run_async(cancels())

    def test_a_client_belongs_to_one_loop_and_ends_with_its_calls(self) -> None:
        async def closes() -> None:
            async with AsyncClient(self.demo.endpoints) as client:
                await client.connect()
                async with client.range() as pairs:
                    async for _ in pairs:
                        break
                waits = asyncio.ensure_future(client.put("a", "1"))
                await asyncio.sleep(0)
            with self.assertRaises(coppice.Closed):
                await waits
            with self.assertRaises(coppice.Closed):
                await client.get("a")

        self.run_async(closes())
        other = asyncio.new_event_loop()
        with self.assertRaises(RuntimeError) as raised:
            other.run_until_complete(self.client.client.get("a"))
        self.assertIn("one for each loop", str(raised.exception))
        other.close()


class Examples(unittest.TestCase):
    def test_the_shop_sells_what_it_has(self) -> None:
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples"))
        shop = importlib.import_module("shop")
        with Demo("--nodes", "1") as demo, contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(shop.run(",".join(demo.endpoints)), 10)
        self.assertIn("order/000010", said.getvalue())
        self.assertIn("{'left': b'0', 'sold': b'10'}", said.getvalue())


class Access(unittest.TestCase):
    def test_certificates(self) -> None:
        with Demo("--tls", "--nodes", "1") as demo:
            tls: Any = {name[len("COPPICE_") :].lower(): file for name, file in demo.variables.items()}
            with Client(demo.endpoints, timeout=20, **tls) as client:
                client.put("apple", "red")
                self.assertEqual(client.get("apple"), b"red")
            with Client(demo.endpoints, timeout=0.5) as client, self.assertRaises(coppice.CoppiceError):
                client.get("apple")

    def test_tokens(self) -> None:
        with Demo("--nodes", "1") as demo, tempfile.TemporaryDirectory() as directory:
            root, shop = os.path.join(directory, "root"), os.path.join(directory, "shop")
            with open(root, "w") as file:
                file.write(demo.run("user", "add", "root", "--role", "admin"))
            with open(shop, "w") as file:
                file.write(demo.run("user", "add", "shop", "--role", "write", "--prefix", "shop/", token_file=root))
            with open(shop) as file:
                token = file.read()
            users: List[Any] = [{"token_file": shop}, {"token": token}]
            for named in users:
                with Client(demo.endpoints, timeout=20, **named) as client:
                    client.put("shop/apple", "red")
                    with self.assertRaises(coppice.Denied) as denied:
                        client.put("apple", "red")
                    self.assertIn("shop", str(denied.exception))


if __name__ == "__main__":
    unittest.main()
