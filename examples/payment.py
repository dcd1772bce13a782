"""A tool that must not pay twice: the vendor knows a repetition by its key, so that it may simply be called again.

Needs an HTTP client of httpx's kind, which comes with the extras, and the vendor's address in PAYMENTS_URL.
"""

import os
from typing import Annotated

import httpx2

from app.tools.idempotent import idempotent
from app.tools.schema import tool
from app.tools.types import ToolError, ToolExecution


@tool(effects="idempotent", timeout_s=30)
async def pay(
    to: Annotated[str, "who gets the money"],
    cents: Annotated[int, "how much"],
    purpose: Annotated[str, "what it is for; a second payment of the same amount needs another purpose"],
    *,
    execution: ToolExecution,
) -> str:
    """Pay somebody."""
    client = httpx2.AsyncClient(base_url=os.environ["PAYMENTS_URL"])
    async with idempotent(execution, client, same="arguments") as http:
        answer = await http.post("/payments", json={"to": to, "cents": cents, "purpose": purpose})
    if answer.status_code != 201:
        raise ToolError("PAYMENT_REFUSED", f"the vendor answered {answer.status_code}: {answer.text:.200}")
    return f"payment {answer.json()['id']}"
