"""The share link, asked for beside the running app: a tunnel that cannot be had never holds anything up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gradio.networking import setup_tunnel

from ui.status import ShareState

PATIENCE = 8.0  # seconds after which the person is told


@dataclass
class ShareLink:
    """Asks for a tunnel in a thread of its own and tells how that goes."""

    say: Callable[[str], None]
    _state: ShareState = field(default_factory=ShareState)
    _settled: threading.Event = field(default_factory=threading.Event)

    def state(self) -> ShareState:
        """The state now."""
        return self._state

    def ask(self, host: str, port: int, token: str, patience: float = PATIENCE) -> None:
        """Begin to ask for a link to this app, which listens at `host` and `port`. Returns at once."""
        self._state = ShareState(asked=True)
        threading.Thread(target=self._ask, args=(host, port, token), name="share-link", daemon=True).start()
        threading.Thread(target=self._remind, args=(patience,), name="share-patience", daemon=True).start()

    def _ask(self, host: str, port: int, token: str) -> None:
        try:
            url = setup_tunnel(host, port, token, None, None)
        except Exception as error:  # whatever the tunnel's client raises, the app serves on
            self._tell(ShareState(asked=True, problem=_describe(str(error) or type(error).__name__)))
        else:
            self._tell(ShareState(asked=True, url=url))

    def _remind(self, patience: float) -> None:
        if not self._settled.wait(patience):
            self._state = ShareState(asked=True, problem=_describe(f"no answer within {patience:.0f} s"))
            self.say(self._state.problem)

    def _tell(self, state: ShareState) -> None:
        self._state = state
        self._settled.set()
        self.say(f"Shared at {state.url}" if state.url else state.problem)


def _describe(reason: str) -> str:
    return (
        f"No share link: the tunnel could not be had ({reason}). The app goes on locally. "
        "Check that this machine reaches the internet, or forward the port yourself, for instance with ssh -L."
    )
