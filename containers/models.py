"""Makes the adapters of the vendors out of what settings say of models, and tells what a model still lacks."""

from __future__ import annotations

import re

from app.agent.turn import ModelConfig
from app.llm.anthropic import AnthropicAdapter
from app.llm.local import LocalAdapter
from app.llm.openai import OpenAIAdapter
from app.llm.vendor import Endpoint, VendorAdapter
from app.session.errors import ConfigurationError
from containers.known import variable
from containers.settings import NamedModel, Settings

TAKEN = ("script", "python")
"""What `--model` takes for something else."""
KINDS: dict[str, type[VendorAdapter]] = {"openai": OpenAIAdapter, "anthropic": AnthropicAdapter, "local": LocalAdapter}

_NAME = re.compile(r"[a-z0-9_-]+")


def named_models(settings: Settings) -> dict[str, NamedModel]:
    """Those of the settings, and each kind of adapter under its own name."""
    return {**{kind: NamedModel() for kind in KINDS}, **settings.models}


def vendor_adapters(settings: Settings) -> dict[str, VendorAdapter]:
    """An adapter for each named model; none of them does anything before it is asked. Raises ConfigurationError."""
    made: dict[str, VendorAdapter] = {}
    for name, model in named_models(settings).items():
        if not _NAME.fullmatch(name) or name in TAKEN:
            raise ConfigurationError(f"models.{name}: a name is of a-z, 0-9, - and _, and none of {', '.join(TAKEN)}")
        kind = KINDS.get(model.adapter or name)
        if kind is None:
            raise ConfigurationError(f"models.{name}.adapter: not set; takes openai or anthropic")
        made[name] = kind(name, _endpoint(name, model))
    return made


def _endpoint(name: str, model: NamedModel) -> Endpoint:
    return Endpoint(
        base_url=model.base_url,
        api_key=None if model.api_key is None else model.api_key.get_secret_value().strip(),
        headers={header: text.get_secret_value() for header, text in model.headers.items()},
        options=model.options,
        connect_timeout_s=model.connect_timeout_s,
        timeout_s=model.timeout_s,
        key_hint=f"set {variable(f'models.{name}.api_key')}, or put a file of that name into secrets_dir",
    )


def model_config(settings: Settings) -> ModelConfig:
    """What agents ask their models with: what the named model says, and `model` where it says nothing."""
    model = settings.model
    named = named_models(settings).get(model.adapter or "", NamedModel())
    return ModelConfig(
        model.adapter,
        model.name or named.name,
        model.temperature if named.temperature is None else named.temperature,
        model.max_tokens if named.max_tokens is None else named.max_tokens,
        named.stop or model.stop,
        settings.system,
    )


def check_model(settings: Settings) -> None:
    """Raises ConfigurationError if no request could be made: no model, its package or its key is missing."""
    config = model_config(settings)
    if config.adapter is None:
        raise ConfigurationError("no model is configured: pass --model, or set model.adapter and model.name")
    if config.name is None:
        raise ConfigurationError(f"no model is named: pass --model {config.adapter}:MODEL, or set model.name")
    adapter = vendor_adapters(settings).get(config.adapter)
    if adapter is not None and (failure := adapter.lacks()) is not None:
        raise ConfigurationError(failure.message)
