"""The key goes to its server, and nowhere else; and none comes from where the settings do not say."""

from __future__ import annotations

import logging
import traceback

import pytest
from pydantic import SecretStr

from app.llm.types import LlmError
from containers.lifespan import running
from containers.settings import Model, Persistence, Settings
from tests.integration.models.asking import VENDORS, adapter, application, chunks, turn
from tests.support.vendors import KEY, Vendor, VendorServer, said, stream


@pytest.mark.parametrize("vendor", VENDORS)
async def test_the_key_is_sent_to_the_server_and_told_to_nobody(
    vendor: Vendor, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even when the server quotes it in its refusal, nor by what is raised, logged or shown of the adapter."""
    caplog.set_level(logging.INFO)
    header = "canary-in-a-header"
    server = VendorServer(vendor, key="another")
    async with server, application(server, headers={"x-extra": SecretStr(header)}) as built:
        agent = await built.agents.create()
        outcome = await turn(agent)
        adapters = repr(built.llm._adapters)
    sent = said(server.heads)
    assert (KEY in sent, header in sent) == (True, True)
    assert outcome.error is not None
    assert outcome.error["code"] == "AUTH"
    told = [event.line for event in agent.session.events]
    told += [
        repr(outcome),
        adapters,
        repr(built.settings),
        repr(built.settings.models),
        caplog.text,
        *capsys.readouterr(),
    ]
    assert [text for text in told if KEY in text or header in text] == []
    assert "**********" in outcome.error["message"]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_what_is_raised_holds_no_request(vendor: Vendor) -> None:
    """Exceptions of the SDK hold the request with its headers, and whoever logs a chain logs those."""
    async with VendorServer(vendor, key="another") as server:
        with pytest.raises(LlmError) as raised:
            await chunks(adapter(server))
    assert raised.value.__cause__ is None
    assert KEY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("vendor", VENDORS)
async def test_the_variables_of_the_vendors_are_not_read(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, an address, an organization or a header in the environment is for other programs."""
    name = vendor.upper()
    for variable in ("API_KEY", "AUTH_TOKEN", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "BASE_URL"):
        monkeypatch.setenv(f"{name}_{variable}", "http://evil.example/canary")
    monkeypatch.setenv(f"{name}_CUSTOM_HEADERS", "X-Evil: canary\nAuthorization: Bearer canary")
    server = VendorServer(vendor, stream(vendor, "ok"), key=None)
    async with server, application(server, api_key=None, headers={"x-ours": SecretStr("1")}) as built:
        assert (await turn(await built.agents.create())).reason == "completed"
    assert server.heads[0]["x-ours"] == "1"
    assert "canary" not in said(server.heads)


@pytest.mark.parametrize("vendor", VENDORS)
async def test_without_a_key_for_the_vendors_own_address_nothing_is_sent(vendor: Vendor) -> None:
    settings = Settings(persistence=Persistence(kind="memory"), model=Model(adapter=vendor, name="m"))
    async with running(settings) as built:
        outcome = await turn(await built.agents.create())
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["message"].partition(";")[2]) == (
        "AUTH",
        f" set BEFOREHAND_MODELS__{vendor.upper()}__API_KEY, or put a file of that name into secrets_dir",
    )
