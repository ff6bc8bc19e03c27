"""A shop on the SDK with typed answers: orders are a list of numbers, and one tool changes them."""

from __future__ import annotations

import random

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

RANDOM = random.Random(31)
READS = ToolAnnotations(read_only_hint=True)
KINDS = (
    *("Compact", "Foldable", "Wireless", "Ceramic", "Bamboo"),
    *("Titanium", "Magnetic", "Solar", "Thermal", "Padded"),
)
THINGS = (
    *("Lamp", "Kettle", "Backpack", "Speaker", "Chair", "Notebook"),
    *("Tent", "Bottle", "Keyboard", "Blender", "Helmet", "Tripod"),
)
FIRMS = (
    *("Ostrava Goods", "Lumen Works", "Tagus Trading", "Hanoi Craft", "Puebla Made"),
    *("Izmir Line", "Busan Direct", "Gdansk Supply", "Porto Home", "Delta Forge"),
)
COUNTRIES = ["Portugal", "Vietnam", "Poland", "Mexico", "Turkey", "Korea"]
TAGS = ["sale", "new", "outdoor", "kitchen", "office", "gift"]


class Product(BaseModel):
    sku: str
    title: str
    price_eur: float
    weight_g: int
    supplier: str
    stock: int
    tags: list[str]


class Supplier(BaseModel):
    name: str
    country: str
    lead_time_days: int
    contact: str
    rating: float


class Order(BaseModel):
    number: int
    sku: str
    quantity: int
    status: str
    placed_on: str


SUPPLIERS = {
    name: Supplier(
        name=name,
        country=RANDOM.choice(COUNTRIES),
        lead_time_days=RANDOM.randint(2, 60),
        contact=f"{name.split()[0].lower()}@example.com",
        rating=round(RANDOM.uniform(1, 5), 1),
    )
    for name in FIRMS
}
PRODUCTS: dict[str, Product] = {}
for kind, thing in RANDOM.sample([(kind, thing) for kind in KINDS for thing in THINGS], 80):
    code = f"{kind[:2]}{thing[:2]}-{RANDOM.randint(100, 999)}".upper()
    PRODUCTS[code] = Product(
        sku=code,
        title=f"{kind} {thing}",
        price_eur=RANDOM.randint(300, 19900) / 100,
        weight_g=RANDOM.randint(40, 9000),
        supplier=RANDOM.choice(list(SUPPLIERS)),
        stock=RANDOM.randint(0, 400),
        tags=RANDOM.sample(TAGS, 2),
    )
ORDERS = {
    number: Order(
        number=number,
        sku=RANDOM.choice(list(PRODUCTS)),
        quantity=RANDOM.randint(1, 30),
        status=RANDOM.choice(["open", "shipped", "returned"]),
        placed_on=f"2026-{RANDOM.randint(1, 11):02}-{RANDOM.randint(1, 28):02}",
    )
    for number in RANDOM.sample(range(50000, 59999), 60)
}

server = MCPServer("shop", log_level="ERROR")


@server.tool(annotations=READS)
def search_products(tag: str = "", limit: int = 25, skip: int = 0) -> list[dict[str, str]]:
    """Search the catalog."""
    rows = [row for row in PRODUCTS.values() if not tag or tag in row.tags]
    return [{"sku": row.sku, "title": row.title} for row in rows[skip : skip + limit]]


@server.tool(annotations=READS)
def product(sku: str) -> Product:
    """One product."""
    return PRODUCTS[sku]


@server.tool(annotations=READS)
def supplier(name: str) -> Supplier:
    """One supplier."""
    return SUPPLIERS[name]


@server.tool(annotations=READS)
def recent_orders() -> list[int]:
    """Numbers of recent orders."""
    return list(ORDERS)


@server.tool(annotations=READS)
def order(number: int) -> Order:
    """One order."""
    return ORDERS[number]


@server.tool()
def cancel_order(number: int) -> str:
    """Cancel an order."""
    ORDERS[number].status = "cancelled"
    return "cancelled"


if __name__ == "__main__":
    server.run()
