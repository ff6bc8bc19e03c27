"""A cookbook whose lists are numbers alone: search by words, closed sets, things that belong to others."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

RANDOM = random.Random(23)
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)

Cuisine = Literal["thai", "mexican", "italian", "indian", "french", "japanese", "moroccan"]
Difficulty = Literal["easy", "medium", "hard"]
CUISINES = ["thai", "mexican", "italian", "indian", "french", "japanese", "moroccan"]
STYLES = (
    *("Smoky", "Crispy", "Lemon", "Garlic", "Coconut", "Spicy"),
    *("Honey", "Creamy", "Roasted", "Pickled", "Herbed", "Charred"),
)
MAINS = (
    *("Chickpea", "Salmon", "Eggplant", "Lentil", "Chicken"),
    *("Tofu", "Pumpkin", "Mushroom", "Beef", "Cauliflower"),
)
DISHES = ("Stew", "Salad", "Curry", "Pie", "Soup", "Noodles", "Tacos", "Risotto")
FOODS = (
    *("basil", "cumin", "paprika", "lime", "ginger", "rice", "butter", "parsley", "chili", "yogurt"),
    *("tomato", "spinach", "sesame", "coriander", "onion", "cheddar", "walnut", "saffron", "thyme", "oats"),
    *("mint", "fennel", "leek", "turmeric", "vanilla", "miso", "tahini", "capers", "olives", "anchovy"),
)
COOKS = [
    *("Nadia Karam", "Tom Ellery", "Yuki Abe", "Rosa Delgado", "Piet Bos", "Amara Obi"),
    *("Lucie Blanc", "Sanjay Rao", "Ingrid Dahl", "Marco Villa", "Hana Kim", "Leo Strand"),
]
SEASONS = (
    *("harvest", "midsummer", "picnic", "brunch", "ramadan", "christmas"),
    *("lunar", "harbour", "garden", "student", "budget", "wedding"),
)


def _ingredient(number: int, name: str) -> dict[str, Any]:
    return {
        "ingredient_id": f"ing_{number:03}",
        "name": name,
        "kcal_per_100g": RANDOM.randint(12, 720),
        "allergen": RANDOM.choice(["none", "none", "nuts", "dairy", "gluten"]),
        "season": RANDOM.choice(["spring", "summer", "autumn", "winter", "all year"]),
    }


def _chef(name: str) -> dict[str, Any]:
    houses = ["Fig", "Anchor", "Quince", "Magpie", "Lantern", "Thistle"]
    return {
        "id": f"chef-{name.split()[1].lower()}",
        "name": name,
        "restaurant": f"{RANDOM.choice(['The', 'Chez', 'Casa', 'Little'])} {RANDOM.choice(houses)}",
        "city": RANDOM.choice(["Oslo", "Lima", "Beirut", "Kyoto", "Lyon", "Porto"]),
        "followers": RANDOM.randint(900, 88000),
    }


def _recipe(title: str, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    number = RANDOM.randint(10000, 99999)
    while number in known:
        number = RANDOM.randint(10000, 99999)
    parts = RANDOM.sample(list(INGREDIENTS), RANDOM.randint(3, 6))
    return {
        "recipe_id": number,
        "title": title,
        "cuisine": RANDOM.choice(CUISINES),
        "servings": RANDOM.randint(1, 8),
        "prep_minutes": RANDOM.randint(5, 60),
        "cook_minutes": RANDOM.randint(0, 180),
        "difficulty": RANDOM.choice(["easy", "medium", "hard"]),
        "author_id": RANDOM.choice(list(CHEFS)),
        "ingredients": [{"ingredient_id": part, "grams": RANDOM.randint(5, 600)} for part in parts],
        "rating": round(RANDOM.uniform(2, 5), 2),
    }


def _recipes() -> dict[int, dict[str, Any]]:
    titles = [f"{style} {main} {dish}" for style in STYLES for main in MAINS for dish in DISHES]
    recipes: dict[int, dict[str, Any]] = {}
    for title in RANDOM.sample(titles, 240):
        recipe = _recipe(title, recipes)
        recipes[recipe["recipe_id"]] = recipe
    return recipes


def _menu(season: str) -> dict[str, Any]:
    return {
        "slug": f"{season}-menu",
        "title": f"{season.title()} menu",
        "recipe_ids": RANDOM.sample(list(RECIPES), 5),
        "curator": RANDOM.choice(COOKS),
    }


INGREDIENTS = {
    item["ingredient_id"]: item
    for item in [
        _ingredient(number, name)
        for number, name in zip(RANDOM.sample(range(1, 400), len(FOODS)), FOODS, strict=True)
    ]
}
CHEFS = {chef["id"]: chef for chef in map(_chef, COOKS)}
RECIPES = _recipes()
MENUS = {menu["slug"]: menu for menu in map(_menu, SEASONS)}

mcp = MCPServer("recipes", log_level="ERROR")


@mcp.tool(annotations=READS)
def search_recipes(
    query: Annotated[str, Field(description="Free text, matched against titles")],
    cuisine: Cuisine | None = None,
    max_minutes: int | None = None,
) -> list[int]:
    """Full-text search. Returns the ids of at most 30 matching recipes."""
    words = query.lower().split()
    return [
        recipe["recipe_id"]
        for recipe in RECIPES.values()
        if all(word in recipe["title"].lower() for word in words)
        and cuisine in (None, recipe["cuisine"])
        and (max_minutes is None or recipe["prep_minutes"] + recipe["cook_minutes"] <= max_minutes)
    ][:30]


@mcp.tool(annotations=READS, structured_output=False)
def recipes_by_cuisine(cuisine: Cuisine, difficulty: Difficulty | None = None) -> dict[str, Any]:
    """Recipe ids of a cuisine."""
    ids = [
        recipe["recipe_id"]
        for recipe in RECIPES.values()
        if recipe["cuisine"] == cuisine and difficulty in (None, recipe["difficulty"])
    ]
    return {"cuisine": cuisine, "count": len(ids), "recipe_ids": ids}


@mcp.tool(annotations=READS, structured_output=False)
def get_recipe(recipe_id: int) -> dict[str, Any]:
    """Everything about one recipe."""
    if recipe_id not in RECIPES:
        raise ValueError(f"recipe {recipe_id} does not exist")
    return RECIPES[recipe_id]


@mcp.tool(annotations=READS, structured_output=False)
def get_ingredient(ingredient_id: str) -> dict[str, Any]:
    """Nutrition facts about an ingredient."""
    if ingredient_id not in INGREDIENTS:
        raise ValueError("unknown ingredient")
    return INGREDIENTS[ingredient_id]


@mcp.tool(annotations=READS)
def recipes_with_ingredient(ingredient_name: str) -> list[int]:
    """Which recipes use an ingredient, e.g. "basil"."""
    ids = [key for key, item in INGREDIENTS.items() if item["name"] == ingredient_name.lower()]
    if not ids:
        raise ValueError("unknown ingredient")
    return [
        recipe["recipe_id"]
        for recipe in RECIPES.values()
        if any(part["ingredient_id"] == ids[0] for part in recipe["ingredients"])
    ]


@mcp.tool(annotations=READS, structured_output=False)
def get_chef(chef_id: str) -> dict[str, Any]:
    """Profile of a chef."""
    if chef_id not in CHEFS:
        raise ValueError("unknown chef")
    return CHEFS[chef_id]


@mcp.tool(annotations=READS)
def list_menus() -> list[str]:
    """Slugs of the seasonal menus."""
    return list(MENUS)


@mcp.tool(annotations=READS, structured_output=False)
def get_menu(slug: str) -> dict[str, Any]:
    """One seasonal menu."""
    if slug not in MENUS:
        raise ValueError("unknown menu")
    return MENUS[slug]


if __name__ == "__main__":
    mcp.run()
