"""Entities that tasks are about, listed by real calls, and the split that each belongs to."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mcpagent.core.placeholders import PlaceholderError, resolve_references
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import result_value
from mcpagent.errors import UserError
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.templates.template import EntityListing, Pool, SplitKey, TemplateSet, fill

K = TypeVar("K", bound=Hashable)

SPLITS = ("train", "validation", "heldout")
_MAX_PAGES = 1000  # a server whose cursor never ends must not hang the run


@dataclass(frozen=True, kw_only=True)
class SplitShares:
    """Shares of the entities that are held out; the rest is for training."""

    heldout: float = 0.25
    validation: float = 0.1

    def __post_init__(self) -> None:
        if min(self.heldout, self.validation) < 0 or self.heldout + self.validation > 1 + 1e-9:
            raise UserError(
                f"shares heldout={self.heldout}, validation={self.validation} add up to more than 1"
            )

    def split_of(self, key: object, *, seed: int) -> str:
        """Return the split of an entity: a hash of the seed and its key, so that it depends on nothing
        else."""
        point = derive_seed(seed, "split", key) / 2**63
        if point < self.heldout:
            return "heldout"
        return "validation" if point < self.heldout + self.validation else "train"

    def assign(self, keys: Iterable[K], *, seed: int, least: Mapping[str, int]) -> dict[K, str]:
        """Return the split of each key by its hash; but if there are few, each split has the `least`
        number asked for, as long as another can spare one, and those first in SPLITS have their first one
        first."""
        splits = {key: self.split_of(key, seed=seed) for key in keys}
        members = {split: [key for key in splits if splits[key] == split] for split in SPLITS}
        for place, split in enumerate(SPLITS):
            while len(members[split]) < least.get(split, 0):
                after = () if members[split] else SPLITS[place + 1 :]
                spare = {s: len(members[s]) - (0 if s in after else least.get(s, 0)) for s in SPLITS}
                # What was not asked for is taken first, then from the split that has the most to spare.
                giver = max(SPLITS, key=lambda s: (spare[s] > 0, not least.get(s), spare[s]))
                if spare[giver] <= 0:
                    break
                key = members[giver].pop()
                members[split].append(key)
                splits[key] = split
        return splits


@dataclass(frozen=True)
class Entity:
    """A value for a slot, and the key that decides its split; `is_shared` are those that every split has."""

    value: Any
    split_key: Any
    is_shared: bool = False


async def list_entities(templates: TemplateSet, cache: CallCache) -> dict[str, list[Entity]]:
    """Return the entities of every pool that a template uses, in the order in which the servers give them."""
    used = {pool for template in templates.templates for pool in template.slots.values()}
    entities: dict[str, list[Entity]] = {}
    for name in sorted(used):
        await _list_pool(name, templates.pools, cache, entities)
    return {name: entities[name] for name in sorted(used)}


def split_entities(
    entities: Mapping[str, Sequence[Entity]],
    *,
    seed: int,
    least: Mapping[str, int],
    splits: Collection[str],
    heldout: Collection[str] = (),
) -> dict[str, dict[str, list[Any]]]:
    """`result[split][pool]`: every entity in exactly one split, stated values in each. If a pool has few,
    each of `splits` has the `least` number of that pool, as long as another can spare them. Of the pools
    `heldout` all is held out but what another has too."""
    split_of: dict[Any, str] = {}
    for pool, members in sorted(entities.items(), key=lambda item: item[0] in heldout):
        keys = dict.fromkeys(entity.split_key for entity in members if not entity.is_shared)
        needed = dict.fromkeys(splits, least.get(pool, 0))
        shares = SplitShares(heldout=1, validation=0) if pool in heldout else SplitShares()
        for key, split in shares.assign(keys, seed=seed, least={} if pool in heldout else needed).items():
            split_of.setdefault(key, split)  # pools that share a key share its split
    result: dict[str, dict[str, list[Any]]] = {split: {pool: [] for pool in entities} for split in SPLITS}
    for pool, members in entities.items():
        for entity in members:
            for name in SPLITS if entity.is_shared else (split_of[entity.split_key],):
                result[name][pool].append(entity.value)
    return result


async def _list_pool(
    name: str, pools: Mapping[str, Pool], cache: CallCache, listed: dict[str, list[Entity]]
) -> list[Entity]:
    if name in listed:
        return listed[name]
    pool = pools[name]
    if pool.values is not None:
        members = [Entity(value, value, is_shared=True) for value in pool.values]
    elif pool.keys_of is not None:
        keys = [entity.split_key for entity in await _list_pool(pool.keys_of, pools, cache, listed)]
        members = [Entity(key, key) for key in dict.fromkeys(keys)]
    else:
        assert pool.list is not None, "Pool admits exactly one source"
        values = await _list_values(name, pool.list, cache)
        members = [Entity(v, await _split_key(name, v, pool.split_key, cache)) for v in dict.fromkeys(values)]
    if not members:
        raise UserError(f"the pool {name!r} is empty: its call lists no entities")
    listed[name] = members
    return members


async def _list_values(name: str, listing: EntityListing, cache: CallCache) -> list[Any]:
    values: list[Any] = []
    arguments = dict(listing.arguments)
    for _ in range(_MAX_PAGES):
        page = await _ask(name, cache, listing.server, listing.tool, arguments)
        items = page.get(listing.items)
        if not isinstance(items, list) or not all(isinstance(i, dict) and listing.field in i for i in items):
            raise UserError(
                f"pool {name!r}: {listing.server}.{listing.tool} gives no list {listing.items!r} of objects "
                f"with {listing.field!r}, but {str(page)[:200]}"
            )
        values += [item[listing.field] for item in items]
        cursor = page.get(listing.cursor.next) if listing.cursor else None
        if not cursor:
            return values
        arguments = {**arguments, listing.cursor.argument: cursor} if listing.cursor else arguments
    raise UserError(f"pool {name!r}: {listing.server}.{listing.tool} still pages on after {_MAX_PAGES} pages")


async def _split_key(name: str, value: Any, key: SplitKey | None, cache: CallCache) -> Any:
    if key is None:
        return value
    result = await _ask(name, cache, key.server, key.tool, fill(key.arguments, {"value": value}))
    try:
        return resolve_references(key.value, {"step1": result})
    except PlaceholderError as error:
        raise UserError(f"pool {name!r}: the split key of {value!r} cannot be read: {error}") from None


async def _ask(pool: str, cache: CallCache, server: str, tool: str, arguments: JsonObject) -> JsonObject:
    async with cache.session() as session:
        result = await session.call(server=server, tool=tool, arguments=arguments)
    if result.is_error:
        raise UserError(
            f"pool {pool!r} cannot be listed: {server}.{tool}({arguments}) answered {result.content[:300]!r}",
            remedy="check the call with: mcpagent tools call SERVER.TOOL 'ARGUMENTS'",
        )
    return result_value(result)
