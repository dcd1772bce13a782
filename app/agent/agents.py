"""The live agents of this process: made with their sessions, and stopped together."""

from __future__ import annotations

import asyncio
from typing import Any

from app.agent.agent import Agent
from app.agent.loop import AgentLoop
from app.agent.turn import AfterAppend, ModelConfig
from app.session.errors import AgentClosed
from app.session.session import Session
from app.session.store import SessionStore


class Agents:
    """Creates and resumes agents, one for each live session. `config` is what they ask their models with."""

    def __init__(
        self,
        sessions: SessionStore,
        loop: AgentLoop,
        config: ModelConfig,
        after_append: AfterAppend,
        *,
        shutdown_timeout_s: float = 30.0,
    ) -> None:
        self.sessions = sessions
        self.loop = loop
        self.config = config
        self._after_append = after_append
        self._shutdown_timeout_s = shutdown_timeout_s
        self._agents: dict[str, Agent] = {}
        self._is_closing = False

    async def create(self, session_id: str | None = None, meta: dict[str, Any] | None = None) -> Agent:
        """An agent with a new session. Raises as `SessionStore.create`."""
        self._check_open(session_id)
        return self.start(await self.sessions.create(session_id, meta))

    async def resume(self, session_id: str, *, force: bool = False) -> Agent:
        """An agent that goes on with a stored session; pending messages run at once. Raises as `sessions.resume`."""
        self._check_open(session_id)
        return self.start(await self.sessions.resume(session_id, force=force))

    def get(self, session_id: str) -> Agent | None:
        """The agent of a session, if both are live here."""
        agent = self._agents.get(session_id)
        return None if agent is None or agent.status == "closed" else agent

    async def close(self) -> None:
        """Close every agent, side by side, and make no more. Each is tried; the first error is raised at the end.

        If this is cancelled, because closing takes too long, the agents that have not closed are abandoned.
        """
        self._is_closing = True
        agents = [agent for agent in self._agents.values() if agent.status != "closed"]
        try:
            results = await asyncio.gather(*(agent.close() for agent in agents), return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.gather(*(agent.abandon() for agent in agents))
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _check_open(self, session_id: str | None) -> None:
        if self._is_closing:
            raise AgentClosed(session_id or "(new)")

    def start(self, session: Session) -> Agent:
        """The agent of a session that is live already; its pending messages run at once. Raises AgentClosed."""
        self._check_open(session.id)
        self._agents = {key: agent for key, agent in self._agents.items() if agent.status != "closed"}
        agent = Agent(
            session,
            self.sessions,
            self.loop,
            self.config,
            self._after_append,
            shutdown_timeout_s=self._shutdown_timeout_s,
        )
        self._agents[session.id] = agent
        return agent
