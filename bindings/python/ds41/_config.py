"""The geometry of a model, and what it says about each layer."""
from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Tuple, Union

from . import _ds41

_LISTS = {
    "compress_ratios": "n_compress_ratios",
    "kv_source_layers": "n_kv_source_layers",
    "index_source_layers": "n_index_source_layers",
}


class LayerRole(NamedTuple):
    """What the lists of a configuration say about one layer."""

    ratio: int
    kv_source: int
    index_source: int
    is_kv_source: bool
    is_index_source: bool
    is_candidate_source: bool
    uses_candidates: bool
    is_draft: bool


class _Number:
    """A member of the C struct."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: Any, owner: type) -> Any:
        return self if config is None else getattr(config._raw, self._name)

    def __set__(self, config: Any, value: Any) -> None:
        setattr(config._raw, self._name, value)


class _List(_Number):
    """An array of the C struct together with the member that counts its entries."""

    def __get__(self, config: Any, owner: type) -> Any:
        if config is None:
            return self
        return tuple(getattr(config._raw, self._name)[: getattr(config._raw, _LISTS[self._name])])

    def __set__(self, config: Any, value: Any) -> None:
        entries = list(value)
        setattr(config._raw, self._name, entries)
        setattr(config._raw, _LISTS[self._name], len(entries))


def _number() -> Any:
    return _Number()


def _list() -> Any:
    return _List()


class Config:
    """Geometry of the model; names are those of DeepSeek's reference (ModelArgs). No size is built in.

    `Config(dim=..., ...)` sets members; the others are 0, and the candidate source -1. `flash()` is V4.1-Flash,
    `parse()` and `load()` read JSON: the release's config.json or the flat names.
    """

    __slots__ = ("_raw",)

    n_layers: int = _number()
    candidate_source_layer: int = _number()
    dim: int = _number()
    n_heads: int = _number()
    head_dim: int = _number()
    rope_head_dim: int = _number()
    q_lora_rank: int = _number()
    o_groups: int = _number()
    o_lora_rank: int = _number()
    window_size: int = _number()
    index_n_heads: int = _number()
    index_head_dim: int = _number()
    index_topk: int = _number()
    candidate_topk_blocks: int = _number()
    candidate_block_size: int = _number()
    norm_eps: float = _number()
    rope_theta: float = _number()
    compress_rope_theta: float = _number()
    rope_factor: float = _number()
    beta_fast: float = _number()
    beta_slow: float = _number()
    original_seq_len: int = _number()
    max_seq_len: int = _number()
    compress_ratios: Tuple[int, ...] = _list()
    kv_source_layers: Tuple[int, ...] = _list()
    index_source_layers: Tuple[int, ...] = _list()

    def __init__(self, **members: Any) -> None:
        self._raw = _ds41.ds41_config()
        for name, value in members.items():
            if not isinstance(getattr(Config, name, None), _Number):
                raise TypeError(f"Config: no member is called {name!r}, need one of {', '.join(CONFIG_MEMBERS)}")
            setattr(self, name, value)

    @classmethod
    def flash(cls) -> "Config":
        """DeepSeek-V4.1-Flash: 40 layers and 3 draft layers."""
        config = cls()
        _ds41.ds41_config_flash(config._raw)
        return config

    @classmethod
    def parse(cls, json: Union[str, bytes]) -> "Config":
        """Read and validate JSON."""
        config = cls()
        _ds41.ds41_config_parse(config._raw, json)
        return config

    @classmethod
    def load(cls, path: Union[str, bytes, "os.PathLike[Any]"]) -> "Config":
        """parse() of a file."""
        config = cls()
        _ds41.ds41_config_load(config._raw, path)
        return config

    @property
    def n_compress_ratios(self) -> int:
        """Layers in all: those from n_layers on are draft layers."""
        n: int = self._raw.n_compress_ratios
        return n

    def validate(self) -> None:
        """Raise InvalidConfigError, which names the first member that is wrong, its value and the range."""
        _ds41.ds41_config_validate(self._raw)

    def role(self, layer: int) -> LayerRole:
        """What a valid configuration says about a layer."""
        raw = _ds41.ds41_layer_role()
        _ds41.ds41_config_get_role(self._raw, layer, raw)
        return LayerRole(raw.ratio, raw.kv_source, raw.index_source, bool(raw.is_kv_source), bool(raw.is_index_source),
                         bool(raw.is_candidate_source), bool(raw.uses_candidates), bool(raw.is_draft))  # fmt: skip

    def copy(self) -> "Config":
        """Another configuration with the same values."""
        config = Config()
        config._raw.assign(self._raw)
        return config

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "Config":
        return self.copy()

    def __reduce__(self) -> Any:
        return _rebuild, (self.members(),)

    def members(self) -> Dict[str, Any]:
        """All members by name."""
        return {name: getattr(self, name) for name in CONFIG_MEMBERS}

    def __eq__(self, other: object) -> bool:
        return self.members() == other.members() if isinstance(other, Config) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ds41.Config({', '.join(f'{name}={value!r}' for name, value in self.members().items())})"


CONFIG_MEMBERS: Tuple[str, ...] = tuple(name for name, member in vars(Config).items() if isinstance(member, _Number))


def _rebuild(members: Dict[str, Any]) -> Config:
    return Config(**members)
