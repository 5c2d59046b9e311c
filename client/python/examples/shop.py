"""A shop: stock that is never sold twice, a counter, and orders in the order of their numbers.

``python client/python/examples/shop.py [HOST:PORT,..]`` beside ``coppice demo``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Optional

from coppice import AsyncClient, Client, Operation


async def sell(client: AsyncClient, customer: str) -> Optional[int]:
    """Sells one apple: the number of the order, or None if there is none left."""
    while True:
        stock = await client.get("stock/apple")
        if stock is None or int(stock) == 0:
            return None
        # Whoever was quicker has changed the stock: then nothing happens, and this one looks again.
        sold = await client.many_if(
            [Operation.check_equals("stock/apple", stock)],
            [Operation.increment("stock/apple", -1), Operation.increment("stock/sold")],
        )
        if sold and sold.results is not None:
            number = int(sold.results[1])
            await client.put(f"order/{number:06}", customer)
            return number


async def open_shop(endpoints: Optional[str], apples: int, customers: int) -> int:
    """Sells apples to many customers at once; how many were sold."""
    async with AsyncClient(endpoints) as client:
        await client.delete_range(prefix="order/")
        await client.delete("stock/sold")
        await client.put("stock/apple", str(apples))
        orders = await asyncio.gather(*(sell(client, f"customer {n}") for n in range(customers)))
        return sum(order is not None for order in orders)


def run(endpoints: Optional[str] = None) -> int:
    """What the example does; how many apples were sold."""
    sold = asyncio.run(open_shop(endpoints, apples=10, customers=25))
    with Client(endpoints) as client:
        for key, customer in client.range(prefix="order/"):
            print(key.decode(), customer.decode())
        print(dict(zip(["left", "sold"], client.get_many(["stock/apple", "stock/sold"]))))
    return sold


if __name__ == "__main__":
    run(sys.argv[1] if len(sys.argv) > 1 else None)
